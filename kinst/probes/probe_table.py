"""Table of a machine's probes: creation, names and lookup, without writing to the guest."""

import array
import functools
import itertools
from collections.abc import Iterator, Sequence
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

# Kind of probe -> (provider, name); if the name is empty, the instruction's offset is the name.
KINDS: dict[int, tuple[str, str]] = {
    ProbeKind.OFFSET: ("kinst", ""), ProbeKind.ENTRY: ("fbt", "entry"),
    ProbeKind.RETURN: ("fbt", "return"), ProbeKind.PROGRAM_OFFSET: ("pid", ""),
    ProbeKind.PROGRAM_ENTRY: ("pid", "entry"), ProbeKind.PROGRAM_RETURN: ("pid", "return")}
# Kinds of probes that are declared, by the kernel or by a program
DECLARED_KINDS = (ProbeKind.STATIC, ProbeKind.PROGRAM_STATIC)
# size in bytes of the first instruction of a far jump (riscv64 AUIPC)
FAR_JUMP = 4
# Values that the dispatcher returns instead of a probe's ID; -2 means that the probe is refused.
NO_INSTRUCTION, IN_EXCLUSIVE = -1, -3


# Offset of an instruction, and the ID of its probe or the reason why it has no probe
CopyEnd = tuple[int, int | str]


@dataclass(frozen=True)
class Probe:
    """A probe, named as in dtrace(1): provider, module, function, name."""

    id: int
    provider: str
    module: str
    function: str
    name: str
    instruction: ProbedInstruction


class ProbeList(Sequence[Probe]):
    """Sequence of all probes, whose objects are created on access."""

    def __init__(self, breakpoints: "ProbeTable") -> None:
        self._of = breakpoints

    def __len__(self) -> int:
        return len(self._of.dispatcher)

    def __getitem__(self, number):  # type: ignore[no-untyped-def]
        if isinstance(number, slice):
            return [self._of.probe(i) for i in range(*number.indices(len(self)))]
        return self._of.probe(number if number >= 0 else number + len(self))


class ProbeTable(ProgramProbes):
    """All probes of a machine, held by a native dispatcher."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.probes = ProbeList(self)
        self._objects: dict[int, Probe] = {}
        # (number of the program or 0, function address) -> stack depths at the function's
        # instructions, keyed by offset
        self._known_depths: dict[tuple[int, int], dict[int, int]] = {}
        # Inline copy and end -> its probes, for the providers
        self.copy_probes: dict[tuple[object, ...], object] = {}
        # function that matched a pattern -> reason for skipping the function
        self.left_out: dict[str, str] = {}
        self.not_followed: dict[str, list[str]] = {}  # function -> jumps that are not tail calls

    def add(self, function: Symbol, kind: int, instruction: ProbedInstruction) -> int:
        """Add a probe to an instruction, unless the probe exists; return the probe's number."""
        assert not isinstance(instruction.verdict, Refuse)
        return self._added(self.dispatcher.add(
            instruction.address, instruction.code, self._function(function), kind
        ), instruction.address)

    def fires(self, number: int, state: CpuState) -> bool:
        """Return whether a probe fires; some probes fire only if control leaves a function."""
        bounds = self.dispatcher.leaves(number)
        if bounds is None:
            return True
        verdict = self.probe(number).instruction.verdict
        assert not isinstance(verdict, Refuse | Copy | Rewrite)
        return not bounds[0] < verdict.next_pc(state) < bounds[1]

    def at_copy(self, number: int, state: ReadableState) -> tuple[int, int] | None:
        """Return a probe's inline copy and role in the copy, or None for a probe without a copy.

        The roles are those of ``kinst.probes.inline_copies``; 0: control stays inside the copy.
        """
        membership = self.dispatcher.copy_of(number)
        if membership is None:
            return None
        copy, role, _silent = membership
        if role == WAY_OUT and not goes_out(self.trap, self.dispatcher.ranges_of(copy),
                                            self.probe(number).instruction, state):
            role = 0
        return copy, role

    def addresses(self, number: int) -> list[int]:
        """Return the addresses at which a probe fires, or the tracepoints of a static probe."""
        static = self.static(number)
        return ([self.dispatcher.probe(number)[0]] if static is None
                else [point.address for point in static.tracepoints])

    def add_boundaries(self, function: Symbol, entry: bool, returns: bool) -> list[int]:
        """Add probes where a function is entered, where it is left, or both.

        :return: the probes' numbers.
        :raises ProbeError: when the function's pages are not mapped.
        """
        code, start = self._around(function)
        return self.dispatcher.add_boundaries(
            function.address, code, start, function.size, self._function(function),
            ProbeKind.ENTRY if entry else None, ProbeKind.RETURN if returns else None,
            partial(self._strays, function, code, start))

    def _strays(self, function: Symbol, code: bytes, start: int, at: int, target: int | None
                ) -> bool:
        """Return whether the jump at an offset leads to an address where no function begins.

        The target may be in the middle of another function, or in another part of this one.  In a
        stripped kernel, code without a name is taken for a static function.

        :param target: the jump's target; None: it is in a register.
        """
        if target is None:
            target = self._jump_target(function, code[start : start + function.size], at)
        if target is None or target in self._starts or (
                self.image.symbols.stripped and self.image.symbols.function_at(target) is None):
            return False
        where = self.image.symbols.where(target)
        self.not_followed.setdefault(function.name, []).append(
            f"the jump at {function.name}+{at:#x} leads to {where}, where no function begins")
        return True

    def _jump_target(self, function: Symbol, code: bytes, at: int) -> int | None:
        """Return the target of the jump at an offset, or None if the jump is indirect."""
        known = self.trap.instructions
        verdict = known.classify(code[at : at + LONGEST_CODE], function.address + at)[1]
        if isinstance(verdict, ConditionalJump):
            return verdict.target
        target = known.jump_target(None, verdict)
        if target is None and at >= FAR_JUMP:  # the address may be split between two instructions
            before = known.classify(code[at - FAR_JUMP : at], function.address + at - FAR_JUMP)
            target = known.jump_target(before[1], verdict)
        return target

    @functools.cached_property
    def _starts(self) -> frozenset[int]:
        """Addresses of functions that may be tail-called, not of cold parts such as ``f.cold``."""
        return beginnings(self.image)

    def add_all(self, function: Symbol) -> list[int]:
        """Add kinst probes to every instruction of a function except refused instructions.

        :return: the probes' numbers.
        :raises ProbeError: when the function's pages are not mapped.
        """
        code, start = self._around(function)
        return self.dispatcher.add_all(
            function.address, code, start, function.size, self._function(function), ProbeKind.OFFSET
        )

    def add_copy_ends(self, function: Symbol, copies: Sequence[tuple[int, int | None, bool]],
                      entry: bool, returns: bool) -> list[tuple[list[CopyEnd], list[CopyEnd]]]:
        """Add kinst probes where control enters and leaves inline copies in a function.

        :param copies: (number from ``dispatcher.add_copy``, offset of the entry or None if it is in
            another function, whether the copy has no other entry).
        :param entry: whether the entry probes fire; otherwise they only track the copies.
        :param returns: the same for the exit probes.
        :return: for each copy, its entries and the instructions that may leave it.
        :raises ProbeError: when the function's pages are not mapped.
        """
        code, start = self._around(function)
        return self._copy_ends(function, code, start, copies, entry, returns, 0)

    def add_copy_ends_in_program(
        self, program: int, function: Symbol, code: bytes,
        copies: Sequence[tuple[int, int | None, bool]], entry: bool, returns: bool,
    ) -> list[tuple[list[CopyEnd], list[CopyEnd]]]:
        """Add pid probes where control enters and leaves inline copies in a program's function.

        :param program: the program's number, from ``add_program``.
        :param code: the function's code; for the other parameters and the result, see
            ``add_copy_ends``.
        """
        return self._copy_ends(function, code, 0, copies, entry, returns, program)

    def _copy_ends(
        self, function: Symbol, code: bytes, start: int,
        copies: Sequence[tuple[int, int | None, bool]], entry: bool, returns: bool, program: int,
    ) -> list[tuple[list[CopyEnd], list[CopyEnd]]]:
        number, kind = ((self._function_of_program(function), ProbeKind.PROGRAM_OFFSET) if program
                        else (self._function(function), ProbeKind.OFFSET))
        copy_ends = self.dispatcher.add_copy_ends(
            function.address, code, start, function.size, number, kind, copies, entry, returns,
            self.trap.instructions.is_padding, is_cold(function.name), program)

        if any(len(entered) > 1 for entered, _left in copy_ends):
            depths = self._depths(function, code, start, program)
            for entered, _left in copy_ends:
                for at, number in entered if len(entered) > 1 else ():
                    if number >= 0:
                        self.dispatcher.lies_lower(number, depths.get(at, 0))

        def end(at: int, number: int) -> CopyEnd:
            if number >= 0:
                return at, number
            return at, (f"it is not an instruction of {function.name}" if program
                        else self._refusal(function, at, number))

        return [([end(*place) for place in entered], [end(*place) for place in left])
                for entered, left in copy_ends]

    def _depths(self, function: Symbol, code: bytes, start: int, program: int) -> dict[int, int]:
        """Return the stack depths at a function's instructions, keyed by offset."""
        key = program, function.address
        if key not in self._known_depths:
            self._known_depths[key] = stack_depths(
                self.arch, code[start : start + function.size],
                self.dispatcher.ways(function.address, code, start, function.size))
        return self._known_depths[key]

    def _refusal(self, function: Symbol, at: int, number: int) -> str:
        """Return the reason why no probe can be placed at an offset."""
        if number == IN_EXCLUSIVE:
            return f"it {EXCLUSIVE}"
        for i in self.instructions(function) if number == NO_INSTRUCTION else ():
            if i.offset == at and isinstance(i.verdict, Refuse):
                return f"it {i.verdict.reason}"  # data in the code
        verdict = self.trap.instructions.classify(self.code(function)[at : at + 16],
                                                  function.address + at)[1]
        return (f"it {verdict.reason}" if number != NO_INSTRUCTION and isinstance(verdict, Refuse)
                else f"it is not an instruction of {function.name}")

    def boundaries(self, function: Symbol) -> tuple[int, list[int], bool, list[int]]:
        """Return where a function is entered and left, and whether the function has a frame.

        :return: (offset of the entry or -1, offsets of the exits, whether it has a frame, offsets
            of the exits that depend on a condition or a computed address).
        """
        code, start = self._around(function)
        return self.dispatcher.boundaries(function.address, code, start, function.size)

    def is_removed(self, number: int) -> bool:
        """Return whether a probe was removed."""
        return self.dispatcher.probe(number)[5]

    def names(self, number: int) -> tuple[str, str, str, str]:
        """Return the provider, module, function and name of a probe, by its number from 0."""
        address, _code, index, kind, _count, _removed = self.dispatcher.probe(number)
        static = self.static(number)
        if static is not None:
            return static.provider, static.module, static.function, static.name
        function = self.functions[index]
        provider, name = KINDS[kind]
        program = self.program_of(number)
        if program is not None:
            module = program.name if len(program.objects) == 1 else function.module_name
            return (f"{provider}{program.process}", module, function.name,
                    name or f"{address - function.address:x}")
        return (provider, function.module_name, function.name,
                name or str(address - function.address))

    def runs(self, numbers: Sequence[int]) -> Iterator[tuple[Symbol, int, list[int]]]:
        """Yield (function, first, offsets) for runs of many probes in one function of the kernel.

        :param numbers: the numbers of the probes, which are in the kernel's code.
        """
        addresses, runs = self.dispatcher.columns(array.array("I", numbers))
        places = memoryview(addresses).cast("Q")
        for (index, at), (_next, end) in itertools.pairwise([*runs, (0, len(places))]):
            function = self.functions[index]
            begin = function.address
            yield function, at, [place - begin for place in places[at:end].tolist()]

    def function(self, number: int) -> Symbol | None:
        """Return the function that contains a probe, or None for a static probe."""
        _address, _code, index, kind, _count, _removed = self.dispatcher.probe(number)
        return None if kind in DECLARED_KINDS else self.functions[index]

    def offset(self, number: int) -> int:
        """Return a probe's offset in its function, or 0 for a static probe."""
        address, _code, index, kind, _count, _removed = self.dispatcher.probe(number)
        if kind in DECLARED_KINDS:
            return 0
        return address - self.functions[index].address

    def probe(self, number: int) -> Probe:
        """Return a probe by number, from 0; the number is one less than the ID in dtrace(1)."""
        known = self._objects.get(number)
        if known is None:
            address, code, _index, kind, _count, _removed = self.dispatcher.probe(number)
            if kind in DECLARED_KINDS:
                address = next(iter(self.addresses(number)), 0)
                code = self.dispatcher.displaced(address)
            verdict = (self.trap.instructions.classify(code, address)[1] if code
                       else Refuse("has no address"))
            known = self._objects[number] = Probe(
                number + 1, *self.names(number),
                ProbedInstruction(self.offset(number), address, code, verdict),
            )
        return known

    def remove_all(self) -> None:
        """Forget all probes; they must not be enabled."""
        super().remove_all()
        self._objects.clear()
        self._known_depths.clear()
        self.copy_probes.clear()
