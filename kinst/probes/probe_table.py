"""The probes of a machine: made, named, looked up; nothing here writes to the guest."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from emu.elf.symbols import Symbol
from emu.machine.machine import Machine
from kinst.code.cold_parts import beginnings, is_cold
from kinst.code.listing import EXCLUSIVE, ProbedInstruction
from kinst.code.stack_depth import stack_depths
from kinst.probes.inline_copies import WAY_OUT, ReadableState, goes_out
from kinst.probes.kinds import ProbeKind
from kinst.probes.probed_code import LONGEST_CODE
from kinst.probes.program_probes import ProgramProbes
from kinst.relocation.trap import CpuState
from kinst.relocation.verdict import ConditionalJump, Copy, Refuse, Rewrite

# Provider and name of the probes of a kind; an offset stands in the probe's own name.
KINDS: dict[int, tuple[str, str]] = {
    ProbeKind.OFFSET: ("kinst", ""), ProbeKind.ENTRY: ("fbt", "entry"),
    ProbeKind.RETURN: ("fbt", "return"), ProbeKind.PROGRAM_OFFSET: ("pid", ""),
    ProbeKind.PROGRAM_ENTRY: ("pid", "entry"), ProbeKind.PROGRAM_RETURN: ("pid", "return")}
FAR_JUMP = 4  # bytes of the first instruction of two that jump to any address (riscv64's AUIPC)
# Of the dispatcher, where a probe's number should be; what is refused is -2.
NO_INSTRUCTION, IN_EXCLUSIVE = -1, -3


# The offset of an instruction, and the probe's number or why there is none.
CopyEnd = tuple[int, int | str]


@dataclass(frozen=True)
class Probe:
    """A probe as dtrace(1) names it: provider, module, function, name."""

    id: int
    provider: str
    module: str
    function: str
    name: str
    instruction: ProbedInstruction


class ProbeList(Sequence[Probe]):
    """All probes made, made into objects when they are looked at."""

    def __init__(self, breakpoints: "ProbeTable") -> None:
        self._of = breakpoints

    def __len__(self) -> int:
        return len(self._of.dispatcher)

    def __getitem__(self, number):  # type: ignore[no-untyped-def]
        if isinstance(number, slice):
            return [self._of.probe(i) for i in range(*number.indices(len(self)))]
        return self._of.probe(number if number >= 0 else number + len(self))


class ProbeTable(ProgramProbes):
    """All probes of a machine, kept by a native dispatcher."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.probes = ProbeList(self)
        self._objects: dict[int, Probe] = {}
        self._known_depths: dict[int, dict[int, int]] = {}  # by the address of a function
        self.left_out: dict[str, str] = {}  # functions that a pattern matched, and why not
        self.not_followed: dict[str, list[str]] = {}  # by function: jumps that are no returns

    def add(self, function: Symbol, kind: int, instruction: ProbedInstruction) -> int:
        """A probe on an instruction that is not refused; asked for again, the same one.

        :return: its number.
        """
        assert not isinstance(instruction.verdict, Refuse)
        return self._added(self.dispatcher.add(
            instruction.address, instruction.code, self._function(function), kind
        ), instruction.address)

    def fires(self, number: int, state: CpuState) -> bool:
        """Whether a probe fires at its instruction: some do only where the guest leaves the
        function then."""
        bounds = self.dispatcher.leaves(number)
        if bounds is None:
            return True
        verdict = self.probe(number).instruction.verdict
        assert not isinstance(verdict, Refuse | Copy | Rewrite)
        return not bounds[0] < verdict.next_pc(state) < bounds[1]

    def at_copy(self, number: int, state: ReadableState) -> tuple[int, int] | None:
        """What a probe of an inline copy is at its instruction: (the copy, its role); None for a
        probe of no copy, and where control stays inside.

        The roles are those of ``kinst.probes.inline_copies``; 0: control stays inside.
        """
        found = self.dispatcher.copy_of(number)
        if found is None:
            return None
        copy, role, _silent = found
        if role == WAY_OUT and not goes_out(self.trap, self.dispatcher.ranges_of(copy),
                                            self.probe(number).instruction, state):
            role = 0
        return copy, role

    def addresses(self, number: int) -> list[int]:
        """Where a probe fires: of a static one its tracepoints."""
        static = self.static(number)
        return ([self.dispatcher.probe(number)[0]] if static is None
                else [point.address for point in static.tracepoints])

    def add_boundaries(self, function: Symbol, entry: bool, returns: bool) -> list[int]:
        """Probes where a function is entered, where it is left, or both.

        :return: their numbers.
        :raises ProbeError: when the function's pages are not mapped.
        """
        code, start = self._around(function)
        return self.dispatcher.add_boundaries(
            function.address, code, start, function.size, self._function(function),
            ProbeKind.ENTRY if entry else None, ProbeKind.RETURN if returns else None,
            partial(self._strays, function, code, start))

    def _strays(self, function: Symbol, code: bytes, start: int, at: int, target: int | None
                ) -> bool:
        """Whether the jump at an offset leads into the middle of another function, or into another
        part of this one: no function that will return to this one's caller.

        :param target: where it leads; None: a register says it.
        """
        if target is None:
            target = self._jump_target(function, code[start : start + function.size], at)
        if target is None or target in self._starts:
            return False
        where = self.image.symbols.where(target)
        self.not_followed.setdefault(function.name, []).append(
            f"it jumps from {function.name}+{at:#x} to {where}, where no function begins")
        return True

    def _jump_target(self, function: Symbol, code: bytes, at: int) -> int | None:
        """Where the jump at an offset leads; None: a register or memory says it."""
        known = self.trap.instructions
        verdict = known.classify(code[at : at + LONGEST_CODE], function.address + at)[1]
        if isinstance(verdict, ConditionalJump):
            return verdict.target
        target = known.jump_target(None, verdict)
        if target is None and at >= FAR_JUMP:  # the address may be in two instructions
            before = known.classify(code[at - FAR_JUMP : at], function.address + at - FAR_JUMP)
            target = known.jump_target(before[1], verdict)
        return target

    @functools.cached_property
    def _starts(self) -> frozenset[int]:
        """Where functions begin that may be jumped to in place of a return: not their cold parts,
        which compilers give names like ``f.cold``."""
        return beginnings(self.image)

    def add_all(self, function: Symbol) -> list[int]:
        """kinst probes on every instruction of a function that is not refused.

        :return: their numbers.
        :raises ProbeError: when the function's pages are not mapped.
        """
        code, start = self._around(function)
        return self.dispatcher.add_all(
            function.address, code, start, function.size, self._function(function), ProbeKind.OFFSET
        )

    def add_copy_ends(self, function: Symbol, copies: Sequence[tuple[int, int | None, bool]],
                      entry: bool, returns: bool) -> list[tuple[list[CopyEnd], list[CopyEnd]]]:
        """kinst probes where inline copies with code in a function are entered and left.

        :param copies: (number that ``dispatcher.add_copy`` gave, offset of its begin or None where
            that is in another function, whether it is entered there alone).
        :param entry: whether the entries are wanted; otherwise their probes only follow the copies.
            So ``returns``.
        :return: for each copy where it is entered, and the instructions that may lead out of it.
        :raises ProbeError: when the function's pages are not mapped.
        """
        code, start = self._around(function)
        found = self.dispatcher.add_copy_ends(
            function.address, code, start, function.size, self._function(function),
            ProbeKind.OFFSET, copies, entry, returns, self.trap.instructions.is_padding,
            is_cold(function.name))

        if any(len(entered) > 1 for entered, _left in found):
            depths = self._depths(function)
            for entered, _left in found:
                for at, number in entered if len(entered) > 1 else ():
                    if number >= 0:
                        self.dispatcher.lies_lower(number, depths.get(at, 0))

        def end(at: int, number: int) -> CopyEnd:
            return at, number if number >= 0 else self._refusal(function, at, number)

        return [([end(*one) for one in entered], [end(*one) for one in left])
                for entered, left in found]

    def _depths(self, function: Symbol) -> dict[int, int]:
        """How far the stack pointer is lowered at a function's instructions, by offset."""
        if function.address not in self._known_depths:
            code, start = self._around(function)
            self._known_depths[function.address] = stack_depths(
                self.arch, code[start : start + function.size],
                self.dispatcher.ways(function.address, code, start, function.size))
        return self._known_depths[function.address]

    def _refusal(self, function: Symbol, at: int, number: int) -> str:
        """Why there is no probe at an offset."""
        if number == IN_EXCLUSIVE:
            return f"it {EXCLUSIVE}"
        for i in self.instructions(function) if number == NO_INSTRUCTION else ():
            if i.offset == at and isinstance(i.verdict, Refuse):
                return f"it {i.verdict.reason}"  # data
        verdict = self.trap.instructions.classify(self.code(function)[at : at + 16],
                                                  function.address + at)[1]
        return (f"it {verdict.reason}" if number != NO_INSTRUCTION and isinstance(verdict, Refuse)
                else f"it is no instruction of {function.name}")

    def boundaries(self, function: Symbol) -> tuple[int, list[int], bool, list[int]]:
        """Where a function is entered (an offset, or -1) and left, whether it has a frame, and
        where it is left if a condition or an address says so."""
        code, start = self._around(function)
        return self.dispatcher.boundaries(function.address, code, start, function.size)

    def names(self, number: int) -> tuple[str, str, str, str]:
        """Provider, module, function and name of the probe of that number, from 0."""
        address, _code, index, kind, _count, _removed = self.dispatcher.probe(number)
        if kind == ProbeKind.STATIC:
            static = self.declared[index]
            return static.provider, static.module, static.function, static.name
        function = self.functions[index]
        provider, name = KINDS[kind]
        program = self.program_of(number)
        if program is not None:
            return (f"{provider}{program.process}", program.name, function.name,
                    name or f"{address - function.address:x}")
        return (provider, function.module_name, function.name,
                name or str(address - function.address))

    def function(self, number: int) -> Symbol | None:
        """The function that a probe lies in; None for a static probe."""
        _address, _code, index, kind, _count, _removed = self.dispatcher.probe(number)
        return None if kind == ProbeKind.STATIC else self.functions[index]

    def offset(self, number: int) -> int:
        """The place of that probe in its function."""
        address, _code, index, kind, _count, _removed = self.dispatcher.probe(number)
        if kind == ProbeKind.STATIC:
            return 0
        return address - self.functions[index].address

    def probe(self, number: int) -> Probe:
        """The probe of that number, from 0; its id is one more, as dtrace counts."""
        known = self._objects.get(number)
        if known is None:
            address, code, _index, kind, _count, _removed = self.dispatcher.probe(number)
            if kind == ProbeKind.STATIC:
                address = next(iter(self.addresses(number)), 0)
                code = self.dispatcher.displaced(address)
            verdict = (self.trap.instructions.classify(code, address)[1] if code
                       else Refuse("is nowhere"))
            known = self._objects[number] = Probe(
                number + 1, *self.names(number),
                ProbedInstruction(self.offset(number), address, code, verdict),
            )
        return known

    def remove_all(self) -> None:
        """Forget all probes; they must not be enabled."""
        super().remove_all()
        self._objects.clear()
