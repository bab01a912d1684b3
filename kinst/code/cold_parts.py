"""Cold parts: code that compilers moved out of its function, with symbol names like ``f.cold``."""

import re

from emu.elf.image import Image

COLD = re.compile(r"\.cold(\.\d+)?$")


def is_cold(name: str) -> bool:
    """Return whether a symbol name denotes the cold part of a function."""
    return COLD.search(name) is not None


def beginnings(image: Image) -> frozenset[int]:
    """Return the start addresses of all functions, excluding cold parts.

    A jump to such an address may be a tail call.
    """
    return frozenset(f.address for f in image.symbols.functions() if not is_cold(f.name))
