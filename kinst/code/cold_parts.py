"""Cold parts: code of functions that compilers have put elsewhere, with names like ``f.cold``."""

import re

from emu.elf.image import Image

COLD = re.compile(r"\.cold(\.\d+)?$")


def is_cold(name: str) -> bool:
    """Whether a symbol's name is that of a function's cold part."""
    return COLD.search(name) is not None


def beginnings(image: Image) -> frozenset[int]:
    """Where functions begin that may be jumped to in place of a return: not their cold parts."""
    return frozenset(f.address for f in image.symbols.functions() if not is_cold(f.name))
