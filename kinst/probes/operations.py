"""Direct calls of vnode operations, which bypass the operations' tracepoints.

FreeBSD's ``VOP_LOOKUP()`` and similar inline functions test whether any static probe is enabled,
and call either the file system's function or ``VOP_LOOKUP_APV``, which has the tracepoints.  The
debug data tells where the inline copies are.
"""

from collections.abc import Callable, Iterator

from dwarf.index import DebugIndex
from emu.elf.image import Image
from emu.elf.symbols import Symbol
from kinst.code.listing import ProbedInstruction, instructions
from kinst.relocation.trap import GuestTrap

SLOW = "_APV"  # name suffix of the function that contains an operation's tracepoints


def calls(trap: GuestTrap, index: DebugIndex, image: Image, function: str,
          code_at: Callable[[int, int], bytes]) -> Iterator[ProbedInstruction]:
    """Yield the direct calls in all inline and out-of-line copies of an operation's function.

    :param function: function of a static probe, such as ``vop_lookup``.
    :param code_at: reads the kernel's code; called with an address and a size in bytes.
    """
    name = function.upper()
    slow = image.symbols.find(name + SLOW)
    if slow is None:
        return
    # Besides the inline copies, there may be out-of-line copies, which are static functions.
    standalone = [((f.address, f.address + f.size),) for f in image.symbols.named(name)]
    for pieces in [*(copy.pieces for copy in index.copies(name)), *standalone]:
        direct: list[ProbedInstruction] = []
        has_slow_call = False
        for low, high in pieces:
            if not (image.holds_code(low) and image.holds_code(high - 1)):
                continue  # the debug data is damaged
            before = None
            for i in instructions(trap, code_at(low, high - low), Symbol(name, low, high - low, 0)):
                if trap.instructions.links(i.verdict):
                    target = trap.instructions.call_target(before, i.verdict)
                    has_slow_call |= target == slow.address
                    if target is None:
                        direct.append(i)
                before = i.verdict
        if has_slow_call:
            yield from direct
