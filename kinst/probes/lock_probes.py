"""Probes of a machine's locks that inline code acquires or releases (``lock_swaps.py``)."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from dwarf.debug_file import DebugDataError
from dwarf.members import MemberError, offset_of
from dwarf.types import Types
from emu.guest.guest import LockMembers, LockProbes
from emu.guest.static_probe import StaticProbe
from emu.host.errors import MemoryAccessError
from kinst.probes.lock_swaps import LockSwap, LockSwaps
from kinst.probes.probed_code import ProbedCode, ProbeError
from kinst.relocation.template import NO_REGISTER
from kinst.relocation.verdict import Refuse

SIGN, MASK = 1 << 63, (1 << 64) - 1


class MachineLocks:
    """The swaps of locks in a machine's kernel, which are found at first use.

    :param code: the kernel's code, and the dispatcher of its probes.
    """

    def __init__(self, code: ProbedCode) -> None:
        self._code, self._guest = code, code.machine.guest
        self._swaps: dict[str, list[LockSwap]] | None = None
        self._numbers: dict[int, int] = {}  # index of a kind in the guest's -> in the dispatcher

    def forget(self) -> None:
        """Forget what was added to the dispatcher."""
        self._numbers.clear()

    def knows(self, probe: StaticProbe) -> bool:
        """Return whether locks of a probe bypass its tracepoints."""
        locks = self._guest.probes.locks
        return locks is not None and probe.provider == locks.provider and any(
            path.probe == probe.name for path in locks.paths)

    def replaced(self, probe: StaticProbe) -> set[int]:
        """Return the tracepoints of a probe that are in functions which acquire locks by swaps."""
        locks, symbols = self._guest.probes.locks, self._code.image.symbols
        assert locks is not None
        functions = [symbol for path in locks.paths if path.acquires and path.probe == probe.name
                     and (symbol := symbols.find(path.function)) is not None]
        return {point.address for point in probe.tracepoints for one in functions
                if one.address <= point.address < one.address + one.size}

    def swaps(self, probe: StaticProbe, declared: Sequence[StaticProbe],
              types: Callable[[], Types] | None) -> list[LockSwap]:
        """Return the swaps of a probe's locks, after adding their kinds to the dispatcher.

        :param declared: all static probes.
        :param types: returns the kernel's types.
        :raises ProbeError: when the types do not describe the locks, or the code cannot be read.
        """
        locks, members = self._guest.probes.locks, self._guest.threads.locks
        assert locks is not None and members is not None
        kinds = {path.kind for path in locks.paths if path.probe == probe.name}
        try:
            ktypes = None if types is None else types()
            if ktypes is None:
                raise MemberError("the kernel has neither DWARF nor CTF")
            for kind in kinds - self._numbers.keys():
                self._numbers[kind] = self._add_kind(ktypes, members, kind)
        except (MemberError, DebugDataError) as error:
            raise ProbeError(f"{probe.text}: the words of locks cannot be found: {error}") from None
        if self._swaps is None:
            try:
                self._swaps = self._find(locks, declared)
            except MemoryAccessError as error:
                raise ProbeError(f"{probe.text}: {error}") from None
        return self._swaps.get(probe.name, [])

    def add(self, probe: int, one: LockSwap) -> None:
        """Add a swap to the dispatcher.

        :param probe: number of the swap's probe.
        :raises ProbeError: when no breakpoint can be set after it.
        """
        swap, names = one.swap, self._code.templates.names

        def number(name: str) -> int:
            return names.index(name) if name else NO_REGISTER

        length, verdict = self._code.trap.instructions.classify(one.code, swap.after)
        if not length or isinstance(verdict, Refuse):
            raise ProbeError(
                f"{self._code.image.symbols.where(swap.after)}: a lock is acquired or released "
                "before this instruction, at which no breakpoint can be set")
        self._code.dispatcher.add_lock_swap(
            probe, self._numbers[one.path.kind], swap.after, one.code,
            acquires=one.path.acquires, uncertain=not one.is_certain,
            result=number(swap.result), result_mask=swap.mask, equal=number(swap.equal),
            value=swap.value, base=number(swap.word.base), index=number(swap.word.index),
            scale=swap.word.scale, offset=((swap.word.offset & MASK) ^ SIGN) - SIGN,
            old=number(swap.old), new=number(swap.new), merges=one.merges)

    def _find(self, locks: LockProbes, declared: Iterable[StaticProbe]
              ) -> dict[str, list[LockSwap]]:
        code = self._code
        traced = {probe.name: [point.address for point in probe.tracepoints]
                  for probe in declared if probe.provider == locks.provider}
        finder = LockSwaps(code.arch, code.trap, code.image, locks, code.dispatcher.step,
                           code.dispatcher.lengths)
        found = defaultdict[str, list[LockSwap]](list)
        for segment in code.image.segments:
            if segment.executable:
                size = min(segment.memory_size, len(segment.data))
                text = code.machine.read(segment.virtual, size)
                for one in finder.found(text, segment.virtual, traced):
                    found[one.path.probe].append(one)
        return found

    def _add_kind(self, types: Types, members: LockMembers, number: int) -> int:
        kind = members.kinds[number]
        assert kind is not None
        return self._code.dispatcher.add_lock(
            word=offset_of(types, kind.kind, kind.word), flags=kind.flags, shared=kind.shared,
            sharers=kind.sharers, kind_at=offset_of(types, members.kind, members.flags),
            shift=members.shift, mask=members.mask, number=number)
