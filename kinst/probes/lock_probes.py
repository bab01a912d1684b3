"""Probes of a machine's locks that inline code acquires or releases (``lock_swaps.py``)."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from dwarf.debug_file import DebugDataError
from dwarf.members import MemberError, offset_of
from dwarf.types import Types
from emu.guest.guest import LockMembers, LockProbes
from emu.guest.static_probe import StaticProbe
from emu.host.errors import KinstError, MemoryAccessError
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
        self._found: dict[str, list[LockSwap]] | None = None
        self._found_at = 0  # instruction count at which ``_found`` was found
        self._numbers: dict[int, int] = {}  # index of a kind in the guest's -> in the dispatcher
        self._missing: dict[str, list[str]] = {}  # probe -> symbols that were not found
        self._refused: dict[str, str] = {}  # probe -> why its first site was refused
        self._unseen: list[str] = []  # modules that use paths, but whose calls were not found

    def forget(self) -> None:
        """Forget what was added to the dispatcher."""
        self._numbers.clear()

    def knows(self, probe: StaticProbe) -> bool:
        """Return whether locks of a probe bypass its tracepoints."""
        locks = self._guest.probes.locks
        return locks is not None and probe.provider == locks.provider and any(
            path.probe == probe.name for path in locks.paths)

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
        now = self._code.machine.instructions
        if self._found is None or (self._unseen and now != self._found_at):
            self._found_at = now  # the guest may link modules when it runs
            try:
                self._found = self._find(locks, declared)
            except KinstError as error:
                raise ProbeError(f"{probe.text}: {error}") from None
        return self._found.get(probe.name, [])

    def replaced(self, probe: StaticProbe, swaps: Iterable[LockSwap]) -> set[int]:
        """Return the tracepoints of a probe in functions that acquire locks by swaps.

        :param swaps: the probe's swaps.
        """
        symbols = self._code.image.symbols
        functions = [function for address in {one.inside for one in swaps if one.inside}
                     if (function := symbols.function_at(address)) is not None]
        return {point.address for point in probe.tracepoints for one in functions
                if one.address <= point.address < one.address + one.size}

    def reports(self, probe: StaticProbe) -> list[str]:
        """Return why a probe, which was added, does not fire for some locks."""
        locks = self._guest.probes.locks
        if locks is None or self._found is None or not self.knows(probe):
            return []
        why = [f"'{name}' was not found" for name in self._missing[probe.name]]
        why += [self._refused[probe.name]] if probe.name in self._refused else []
        inside = {one.path.function for one in self._found.get(probe.name, []) if one.inside}
        why += [f"'{path.function}' does not swap the word of a lock itself"
                for path in locks.paths if path.acquires and path.probe == probe.name
                and path.function not in inside
                and self._code.image.symbols.find(path.function) is not None]
        if self._unseen:
            why.append(f"those that inline code in {' and '.join(self._unseen)} acquires or "
                       "releases")
        return [f"{probe.text}: some locks are not seen: {'; '.join(why)}"] if why else []

    def add(self, probe: int, one: LockSwap) -> None:
        """Add a swap to the dispatcher.

        :param probe: number of the swap's probe.
        """
        swap, names = one.swap, self._code.templates.names

        def number(name: str) -> int:
            return names.index(name) if name else NO_REGISTER

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
        self._missing = {path.probe: finder.missing(path.probe) for path in locks.paths}
        self._unseen.clear()
        self._refused.clear()
        found = defaultdict[str, list[LockSwap]](list)
        modules = {range_: module for module in code.image.modules for range_ in module.code}
        for begin, end in code.image.code_ranges:
            module, count = modules.get((begin, end)), 0
            try:
                text = code.machine.read(begin, end - begin)
            except MemoryAccessError:
                if module is None:
                    raise
                text = b""  # the kernel has not mapped the module yet
            for one in finder.found(text, begin, traced):
                count += 1
                length, verdict = code.trap.instructions.classify(one.code, one.swap.after)
                if length and not isinstance(verdict, Refuse):
                    found[one.path.probe].append(one)
                else:
                    self._refused.setdefault(one.path.probe, "no breakpoint can be set at "
                                             f"{code.image.symbols.where(one.swap.after)}")
            if module is not None and not count and any(
                    path.function in module.outside for path in locks.paths):
                # The kernel has not linked it yet, or it calls the functions through a table.
                self._unseen.append(module.name)
        return found

    def _add_kind(self, types: Types, members: LockMembers, number: int) -> int:
        kind = members.kinds[number]
        assert kind is not None
        return self._code.dispatcher.add_lock(
            word=offset_of(types, kind.kind, kind.word), flags=kind.flags, shared=kind.shared,
            sharers=kind.sharers, kind_at=offset_of(types, members.kind, members.flags),
            shift=members.shift, mask=members.mask, number=number)
