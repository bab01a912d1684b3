"""Execution of the explained probe's clauses in Python, with a record of each BPF instruction."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dtrace.bpf.encoding import LOCAL, BpfInstruction, BpfJump, Class, disassemble
from dtrace.bpf.layout import BASE, REGION_SHIFT, Region
from dtrace.d.compile.listing import NAMES
from dtrace.d.language.options import Options
from dtrace.pipeline import Pipeline, linked
from dtrace.run.kernel_probes import FIRST_PROBE
from dtrace.run.structured import Row
from dtrace.run.target import new_target
from dtrace.stacks.user_programs import UserPrograms
from dwarf.types import Types
from emu.elf.symbols import Symbol
from emu.host.errors import KinstError
from kinst.probes.breakpoints import Breakpoints, NativeState
from kinst.relocation.trap import CpuState

MAX_NARRATED = 5_000  # maximum number of BPF instructions in a narration


@dataclass(frozen=True)
class Narrated:
    """A BPF instruction that was executed.

    :param place: its index in the program.
    :param line: its line in the clause's text, from 1; 0 for the probe's own code, which calls the
        clause.
    :param before: r0 to r10 before the instruction; ``after``: their values after it.
    :param following: index of the instruction that was executed next.
    """

    place: int
    text: str
    line: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    following: int
    instruction: BpfInstruction = field(repr=False)

    def effect(self) -> str:
        """Describe the effect of the instruction in words."""
        i = self.instruction
        opcode_class, operation = i.opcode & 7, i.opcode & 0xF0
        if opcode_class in (Class.JMP, Class.JMP32):
            if operation == BpfJump.EXIT or (operation == BpfJump.CALL and i.source == LOCAL):
                return ("returns to its caller" if operation == BpfJump.EXIT
                        else "calls the clause")
            if operation == BpfJump.CALL:
                arguments = ", ".join(_value(value) for value in self.before[1:6])
                name = NAMES.get(i.immediate, i.immediate)
                if self.following != self.place + 1:
                    return f"{name}({arguments}) faults and ends the clause"
                return f"{name}({arguments}) returns {_value(self.after[0])}"
            if operation == BpfJump.JA:
                return "jumps"
            compared = f"compares {_value(self.before[i.destination])}"
            return f"{compared}: branch {'not ' * (self.following == self.place + 1)}taken"
        if opcode_class in (Class.ST, Class.STX):
            value = self.before[i.source] if opcode_class == Class.STX else i.immediate
            return (f"writes {_value(value)} to "
                    f"{_value(self.before[i.destination] + i.offset)}")
        return f"sets r{i.destination} to {_value(self.after[i.destination])}"


def _value(value: int) -> str:
    """Format a number, or an address in the executor's memory as region+offset."""
    region = (value >> REGION_SHIFT) - (BASE >> REGION_SHIFT)
    if 0 <= region < len(Region):
        return f"{Region(region).name.lower()}+{value & (1 << REGION_SHIFT) - 1:#x}"
    return f"{value:#x}"


@dataclass
class Narration:
    """Record of what a clause did at the explained firing.

    :param text: the clause.
    :param executed: number of executed instructions, of which at most ``MAX_NARRATED`` are kept.
    :param left: output of its actions, in the format of ``kdtrace --json``, and its faults.
    :param aggregated: all aggregations after the firing.
    """

    text: str
    executed: int = 0
    instructions: list[Narrated] = field(default_factory=list)
    left: list[Row] = field(default_factory=list)
    aggregated: list[Row] = field(default_factory=list)


class ExplainedClause:
    """Executor of the explained probe's D clauses.

    :param number: number of the probe in ``breakpoints``.
    :param text: ``[/predicate/] { actions }``.
    :raises KinstError: if the text does not compile or has a clause for another probe.
    """

    def __init__(self, breakpoints: Breakpoints, types: Types | None, function: Symbol,
                 offset: int, number: int, text: str) -> None:
        options = Options()
        options.set("quiet", None)
        self.text = text
        self._rows: list[Row] = []
        self._said: list[str] = []
        parts = ("kinst", function.module_name, function.name, str(offset))
        target = new_target(breakpoints, types, False, UserPrograms(), lambda: "", stops=False)
        pipeline = Pipeline(
            options, target, self._said.append, choose=lambda wanted, found: (
                found if wanted.parts != parts else
                [probe for probe in found if probe.number == FIRST_PROBE + number]))
        self._session = linked(pipeline, f"{':'.join(parts)} {text}", ["explain"],
                               self._rows.append)
        probes = {enabled.probe.number for enabled in self._session.enabled
                  if not enabled.function.clause.hidden}  # skip the compiler's own clauses
        if len(probes) != 1 or (probe := probes.pop()) != FIRST_PROBE + number:
            raise KinstError(f"-n: '{text}': must be a clause for the explained probe, without a "
                             "probe description: [/PREDICATE/] { ACTIONS }")
        self._probe = probe
        self._lines = self._where()

    def _where(self) -> dict[int, int]:
        """Map the index of each BPF instruction to its line in the clause's text."""
        linked, lines = self._session.linked, dict[int, int]()
        for enabled in self._session.enabled:
            function = enabled.function
            number = linked.offsets[function.name]
            for i, line in zip(function.code.finish(), function.code.lines, strict=True):
                lines[number] = line
                number += 1 if i.wide is None else 2
        return lines

    def fire(self, state: CpuState | NativeState, wanted: bool) -> Narration | None:
        """Run the clause; return its narration if ``wanted`` is true, otherwise None."""
        narration, went = Narration(self.text), list[tuple[int, BpfInstruction, tuple[int, ...]]]()

        def narrate(at: int, instruction: BpfInstruction, registers: Sequence[int]) -> None:
            narration.executed += 1
            if wanted and len(went) <= MAX_NARRATED:
                went.append((at, instruction, tuple(registers)))

        if self._session.stopped:
            narration.left = [{"said": "exit() has already ended tracing"}]
            return narration if wanted else None
        self._rows.clear()
        self._said.clear()
        self._session.narrated(self._probe, state, narrate)
        self._session.look()
        if not wanted:
            return None
        for number, (at, instruction, before) in enumerate(went[:MAX_NARRATED]):
            last = number + 1 == len(went)
            following, after = (at, before) if last else (went[number + 1][0], went[number + 1][2])
            narration.instructions.append(Narrated(
                at, disassemble(instruction, at, NAMES), self._lines.get(at, 0), before, after,
                following, instruction))
        printed: list[Row] = [{"said": text} for text in self._said]
        narration.left = self._rows + printed
        narration.aggregated = self._session.aggregated()
        return narration
