"""Services of the host's operating system beyond Python's library.

They are those of ``linux`` on Linux and those of ``portable`` elsewhere, which describe them.
"""

import os
import sys

if sys.platform == "linux" and os.environ.get("KINST_HOST") != "portable":
    from emu.host import linux as system
else:
    from emu.host import portable as system  # type: ignore[no-redef]

DESCRIPTORS = system.DESCRIPTORS
KILLED_WITH_PARENT = system.KILLED_WITH_PARENT
boot_id = system.boot_id
changed = system.changed
discard = system.discard
end_with = system.end_with
memory_file = system.memory_file
parent_of = system.parent_of
populate = system.populate
processors = system.processors
release = system.release
try_address_space = system.try_address_space
use_huge_pages = system.use_huge_pages
