"""Stack depth at each instruction: how many bytes the stack pointer is below its entry value."""

import functools
from collections.abc import Sequence

from emu.arch.arch import Arch
from kinst.code.stack_effect import STACK_EFFECTS


@functools.lru_cache(maxsize=1 << 16)
def _raised(arch: str, stack_pointer: str, code: bytes) -> int | None:
    """Return the number of bytes by which an instruction raises the stack pointer, or None."""
    change = STACK_EFFECTS[arch](code)
    if change.base not in ("", stack_pointer) or stack_pointer in change.lost:
        return None
    return change.change


def stack_depths(arch: Arch, code: bytes, ways: Sequence[tuple[int, int, int, int, bool]]
                 ) -> dict[int, int]:
    """Return stack depths keyed by offset, in bytes below the stack pointer at function entry.

    Only instructions that the entry reaches without indirect jumps and without unknown changes of
    the stack pointer are included.

    :param ways: the function's control flow, as returned by ``Dispatcher.ways``.
    """
    depths: dict[int, int] = {}
    waiting = [(0, 0)] if ways else []
    while waiting:
        number, depth = waiting.pop()
        at, length, following, branch, calls = ways[number]
        if at in depths:
            continue
        depths[at] = depth
        # A called function restores the stack pointer.
        raised = 0 if calls else _raised(arch.name, arch.sp, code[at : at + length])
        if raised is not None:
            waiting += [(one, depth - raised) for one in (following, branch) if one >= 0]
    return depths
