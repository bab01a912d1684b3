"""Places where a kernel acquires or releases locks without a tracepoint.

Inline code swaps the word of a lock, and calls a function (a *path*) only if that fails or if the
kernel's own tracing is enabled::

    if (lockstat_enabled || !swap(&lock->word, &old, new))
            path(lock, old);

A swap from which code leads to the call of a path therefore belongs to this path.  The code of the
next lock begins with a test of the variable, so the search does not go past such a test.  A path
that acquires locks does so by swaps, too, and passes its tracepoint only if tracing is enabled.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from emu.arch.arch import Arch
from emu.elf.image import Image
from emu.elf.symbols import Symbol
from emu.guest.guest import LockPath, LockProbes
from emu.host.errors import KinstError
from kinst.code.listing import MAX_FUNCTION, instructions
from kinst.code.operands import OPERANDS
from kinst.code.swaps import SWAPS, Swap
from kinst.relocation.template import NO_REGISTER
from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import Op

MOST = 64  # maximum number of instructions between a swap and the call of its path
MOST_CALLS = 2  # maximum number of other calls between them, which compute the lock's address
LONGEST = 16
MASK = (1 << 64) - 1
MOST_DECODED = 8  # maximum number of bytes to decode, as a multiple of the size of the code
BRANCHES = frozenset({Op.BRANCH_FLAGS, Op.BRANCH_COMPARE, Op.BRANCH_BIT, Op.BRANCH_COUNT})
NOTHING = NO_REGISTER, 0


@dataclass(frozen=True)
class LockSwap:
    """A swap that acquires or releases a lock.

    :param code: bytes that begin with the instruction after the swap.
    :param path: the path to which it belongs.
    :param is_certain: whether it does so whenever it succeeds, so that the word need not be tested.
    :param merges: address of the instruction after another swap, to which the instruction after
        this one jumps; 0: none.
    :param inside: address of the function of ``path`` if the swap is part of this function, else 0.
    """

    swap: Swap
    code: bytes
    path: LockPath
    is_certain: bool
    merges: int = 0
    inside: int = 0


class LockSwaps:
    """Finder of the swaps in a kernel.

    :param step: returns where an instruction leads, as ``CodeReader.step``.
    :param lengths: returns the lengths of instructions, as ``CodeReader.lengths``.
    """

    def __init__(self, arch: Arch, trap: GuestTrap, image: Image, locks: LockProbes,
                 step: Callable[[bytes, int], tuple[int, int, int, int, int, int, bool, bool]],
                 lengths: Callable[[bytes], list[int]]) -> None:
        self._trap, self._image, self._locks = trap, image, locks
        self._swaps, self._operands = SWAPS[arch.name], OPERANDS[arch.name]
        self._stack = {arch.sp, arch.frame_record[0]}
        self._step, self._lengths = step, lengths
        self._paths = {symbol.address: path for path in locks.paths
                       if (symbol := image.symbols.find(path.function)) is not None}
        variable = image.symbols.find(locks.enabled)
        self._size = variable.size if variable is not None else 0
        self._reads: dict[bytes, bool] = {}  # code of an instruction -> may it read the variable
        self._text, self._base, self._decoded = b"", 0, 0

    def missing(self, probe: str) -> list[str]:
        """Return the symbols that the search for a probe's locks needs, but that do not exist."""
        names = [path.function for path in self._locks.paths if path.probe == probe
                 and self._image.symbols.find(path.function) is None]
        return names if self._size else [self._locks.enabled, *names]

    def found(self, text: bytes, base: int, traced: Mapping[str, Collection[int]]
              ) -> Iterator[LockSwap]:
        """Yield the swaps in a kernel's code that no tracepoint follows.

        :param text: the code, which begins at address ``base``.
        :param traced: probe -> addresses of its tracepoints.
        :raises KinstError: if the symbols are damaged.
        """
        if not self._paths or not self._size:
            return
        self._text, self._base, self._decoded = text, base, 0
        swaps = list(self._swaps(text, base))
        after = {one.after: one for one in swaps}
        region, starts = range(0), set[int]()
        own: LockPath | None
        for one in swaps:
            if one.after not in region:
                region = self._region(one.after)
                starts = self._starts(region)
            if one.after not in starts:
                continue
            path, calls = self._path(one.after, after)
            own = self._paths.get(region.start) if path is None else None
            if own is not None and own.acquires:
                path = own
            elif path is None or self._is_traced(one.after, after, [
                    at for at in traced.get(path.probe, ()) if at in starts]):
                continue
            other = after.get(self._jumps(one.after))
            if other is not None and replace(other, after=one.after) == one:
                continue  # the site of the other swap serves both
            yield LockSwap(one, self._code(one.after), path, own is None and not calls,
                           0 if other is None else other.after,
                           region.start if own is not None else 0)

    def _region(self, address: int) -> range:
        """Return the addresses of the function around an address, or of the code without a name."""
        function = self._image.symbols.function_at(address)
        if function is not None and function.size <= MAX_FUNCTION:
            return range(max(function.address, self._base), function.address + function.size)
        symbols = self._image.symbols
        return range(max(symbols.gap_at(address), self._base, address - MAX_FUNCTION),
                     min(symbols.gap_end(address), address + MAX_FUNCTION))

    def _code(self, address: int) -> bytes:
        at = address - self._base
        return self._text[at : at + LONGEST] if at >= 0 else b""

    def _starts(self, region: range) -> set[int]:
        """Return the addresses at which instructions of a region begin.

        :raises KinstError: if more code is decoded than symbols that are in order require.
        """
        at = region.start - self._base
        code = self._text[at : at + len(region) + LONGEST]
        self._decoded += len(code)
        if self._decoded > MOST_DECODED * len(self._text):
            raise KinstError(f"{self._image.path}: damaged symbols: functions overlap")
        starts, address = set[int](), region.start
        for length in self._lengths(code):
            starts.add(address)
            address += length
        if address < region.stop:  # it contains data
            function = Symbol("", region.start, len(region), 0)
            return {i.address for i in instructions(self._trap, code[: len(region)], function)}
        return starts

    def _jumps(self, address: int) -> int:
        """Return where an unconditional jump leads; 0 for any other instruction."""
        _length, op, target, *_others = self._step(self._code(address), address)
        return target if op == Op.JUMP else 0

    def _path(self, start: int, after: Collection[int]) -> tuple[LockPath | None, int]:
        """Return the path to which the code from ``start`` leads, and the number of other calls.

        :param after: addresses of the instructions after swaps.
        """
        for calls in range(MOST_CALLS + 1):
            found = self._leads(start, after, calls, self._paths)
            if found is not None:
                return self._paths[found], calls
        return None, 0

    def _is_traced(self, start: int, after: Collection[int], points: Collection[int]) -> bool:
        """Return whether the code from ``start`` leads to a tracepoint."""
        return bool(points) and self._leads(start, after, 0, points) is not None

    def _leads(self, start: int, after: Collection[int], most: int, wanted: Collection[int]
               ) -> int | None:
        """Return the first wanted address to which code leads, breadth first.

        :param most: maximum number of calls on the way to this address or to its call.
        """
        # Address, register and value that the instruction before it sets, number of calls, code of
        # the instructions since ``start``
        waiting = deque[tuple[int, tuple[int, int], int, tuple[bytes, ...]]](
            [(start, NOTHING, 0, ())])
        seen = set[int]()
        while waiting and len(seen) < MOST:
            address, before, calls, passed = waiting.popleft()
            if address in wanted:
                return address
            if address in seen:
                continue
            seen.add(address)
            code = self._code(address)
            length, op, target, a, b, extra, returns, is_call = self._step(code, address)
            following = address + length
            if not length or following in after or returns:
                continue
            passed = (*passed, code[:length])
            if op in BRANCHES:
                if not any(map(self._may_read, passed)):
                    waiting += [(target, NOTHING, calls, ()), (following, NOTHING, calls, ())]
                continue
            if op == Op.LINK and b != NO_REGISTER:
                target = before[1] + extra & MASK & ~1 if before[0] == b else 0
            elif op == Op.INDIRECT:
                target = 0
            if is_call:
                if target in wanted:
                    return target
                if calls < most:
                    waiting.append((following, NOTHING, calls + 1, passed))
            elif op in (Op.JUMP, Op.LINK, Op.INDIRECT):
                if target:
                    waiting.append((target, NOTHING, calls, passed))
            else:
                waiting.append((following, (a, target) if op == Op.SET else NOTHING, calls, passed))
        return None

    def _may_read(self, code: bytes) -> bool:
        """Return whether an instruction may read the variable.

        Registers that are spilled to the stack are not the variable.
        """
        found = self._reads.get(code)
        if found is None:
            found = self._reads[code] = any(
                one.memory and one.size == self._size and one.base not in self._stack
                for one in self._operands(code, 0).operands)
        return found
