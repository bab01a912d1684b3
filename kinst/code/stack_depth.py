"""How far the stack pointer is lowered at the instructions of a function."""

import functools
from collections.abc import Sequence

from emu.arch.arch import Arch
from kinst.code.stack_effect import STACK_EFFECTS


@functools.lru_cache(maxsize=1 << 16)
def _raised(arch: str, stack_pointer: str, code: bytes) -> int | None:
    """Bytes that an instruction raises the stack pointer by; None: that is not known."""
    change = STACK_EFFECTS[arch](code)
    if change.base not in ("", stack_pointer) or stack_pointer in change.lost:
        return None
    return change.change


def stack_depths(arch: Arch, code: bytes, ways: Sequence[tuple[int, int, int, int, bool]]
                 ) -> dict[int, int]:
    """Bytes below what it is when the function is entered, by offset; only where the code says it
    on a way from there without jumps to addresses in registers.

    :param ways: as of ``Dispatcher.ways``.
    """
    found: dict[int, int] = {}
    waiting = [(0, 0)] if ways else []
    while waiting:
        number, depth = waiting.pop()
        at, length, following, branch, calls = ways[number]
        if at in found:
            continue
        found[at] = depth
        # What is called leaves the stack pointer as it was.
        raised = 0 if calls else _raised(arch.name, arch.sp, code[at : at + length])
        if raised is not None:
            waiting += [(one, depth - raised) for one in (following, branch) if one >= 0]
    return found
