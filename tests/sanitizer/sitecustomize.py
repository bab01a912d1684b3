"""For ``make sanitize``: Capstone's library is loaded with RTLD_DEEPBIND, which a sanitizer's own
allocator does not survive."""

import os

os.RTLD_DEEPBIND = 0
