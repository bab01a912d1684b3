"""Disable RTLD_DEEPBIND for ``make sanitize``.

Capstone's Python package loads its library with this flag, which breaks the allocators of
sanitizers.
"""

import os

os.RTLD_DEEPBIND = 0
