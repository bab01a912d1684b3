"""Calls of operations that go by their tracepoints: where a function that is inline in its callers
calls the operation of an object directly.

FreeBSD's ``VOP_LOOKUP()`` and the like look whether any static probe is enabled, and call the file
system's function, or ``VOP_LOOKUP_APV``, which has the tracepoints.  Which is which is told by the
debug data of the inline copies.
"""

from collections.abc import Callable, Iterator

from dwarf.index import DebugIndex
from emu.elf.image import Image
from emu.elf.symbols import Symbol
from kinst.code.listing import ProbedInstruction, instructions
from kinst.relocation.trap import GuestTrap

SLOW = "_APV"  # behind the name of the function that has the tracepoints


def calls(trap: GuestTrap, index: DebugIndex, image: Image, function: str,
          code_at: Callable[[int, int], bytes]) -> Iterator[ProbedInstruction]:
    """The direct calls in all copies of an operation's function.

    :param function: of a static probe: ``vop_lookup``.
    :param code_at: gives the kernel's code at an address, of so many bytes.
    """
    name = function.upper()
    slow = image.symbols.find(name + SLOW)
    if slow is None:
        return
    # A caller may have it as a function of its file's own.
    own = [((f.address, f.address + f.size),) for f in image.symbols.named(name)]
    for pieces in [*(copy.pieces for copy in index.copies(name)), *own]:
        direct: list[ProbedInstruction] = []
        found = False
        for low, high in pieces:
            if not (image.holds_code(low) and image.holds_code(high - 1)):
                continue  # damaged
            before = None
            for i in instructions(trap, code_at(low, high - low), Symbol(name, low, high - low, 0)):
                if trap.instructions.links(i.verdict):
                    target = trap.instructions.call_target(before, i.verdict)
                    found |= target == slow.address
                    if target is None:
                        direct.append(i)
                before = i.verdict
        if found:
            yield from direct
