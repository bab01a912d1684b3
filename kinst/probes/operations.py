"""Direct calls of vnode operations, which bypass the operations' tracepoints.

FreeBSD's ``VOP_LOOKUP()`` and similar inline functions test whether any static probe is enabled,
and call either the file system's function or ``VOP_LOOKUP_APV``, which has the tracepoints.  The
debug data tells where the inline copies are.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from dwarf.index import DebugIndex
from emu.elf.image import Image
from emu.elf.symbols import Symbol
from kinst.code.listing import ProbedInstruction, instructions
from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import ConditionalJump, Jump, Refuse

SLOW = "_APV"  # name suffix of the function that contains an operation's tracepoints
DESCRIPTOR = "_desc"  # name suffix of what the first word of its argument structure points to
MOST_AFTER = 8  # maximum number of instructions from an inline copy to a call that it shares


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
        ways = set[int]()  # addresses at which control leaves the copy
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
                if isinstance(i.verdict, Jump | ConditionalJump):
                    ways.add(i.verdict.target)
            ways.add(high)
        if has_slow_call and (direct or image.symbols.find(function + DESCRIPTOR)):
            yield from direct or _shared(trap, image, pieces, ways, code_at)


def _shared(trap: GuestTrap, image: Image, pieces: Sequence[tuple[int, int]], ways: set[int],
            code_at: Callable[[int, int], bytes]) -> Iterator[ProbedInstruction]:
    """Yield the calls that follow an inline copy without one.

    The compiler has merged the call with that of another operation, so that it belongs to neither.
    """
    for way in sorted(ways):
        function = image.symbols.function_at(way)
        if function is None or any(low <= way < high for low, high in pieces):
            continue
        size = function.address + function.size - way
        code = code_at(way, size)
        before = None
        for i in islice(instructions(trap, code, Symbol(function.name, way, size, 0)), MOST_AFTER):
            if trap.instructions.links(i.verdict):
                if trap.instructions.call_target(before, i.verdict) is None:
                    yield i
                break
            if isinstance(i.verdict, Jump | ConditionalJump | Refuse) or (
                    trap.instructions.is_return(i.code)):
                break
            before = i.verdict
