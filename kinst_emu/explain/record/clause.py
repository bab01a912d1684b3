"""A D clause on the explained probe, carried out by the executor in Python."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dtrace.bpf.encoding import LOCAL, BpfInstruction, BpfJump, Class, disassemble
from dtrace.bpf.layout import BASE, REGION_SHIFT, Region
from dtrace.d.compile.listing import NAMES
from dtrace.d.language.options import Options
from dtrace.pipeline import Pipeline, linked
from dtrace.run.kernel import FIRST_PROBE
from dtrace.run.structured import Row
from dtrace.run.target import new_target
from dtrace.stacks.user_programs import UserPrograms
from dwarf.types import Types
from emu.elf.symbols import Symbol
from emu.host.errors import KinstError
from kinst.probes.breakpoints import Breakpoints, NativeState
from kinst.relocation.trap import CpuState

MAX_NARRATED = 5_000  # instructions of BPF


@dataclass(frozen=True)
class Narrated:
    """An instruction of BPF that was executed.

    :param place: its number in the program.
    :param line: of the clause's text, from 1; 0: it is the probe's own, which calls the clause.
    :param before: r0 to r10 before it; ``after`` behind it.
    :param following: the number of the instruction that was executed behind it.
    """

    place: int
    text: str
    line: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    following: int
    instruction: BpfInstruction = field(repr=False)

    def effect(self) -> str:
        """What it did."""
        i = self.instruction
        kind, operation = i.opcode & 7, i.opcode & 0xF0
        if kind in (Class.JMP, Class.JMP32):
            if operation == BpfJump.EXIT or (operation == BpfJump.CALL and i.source == LOCAL):
                return "back to its caller" if operation == BpfJump.EXIT else "the clause is called"
            if operation == BpfJump.CALL:
                given = ", ".join(_value(value) for value in self.before[1:6])
                name = NAMES.get(i.immediate, i.immediate)
                if self.following != self.place + 1:
                    return f"{name}({given}) faults, and ends the clause"
                return f"{name}({given}) gives {_value(self.after[0])}"
            if operation == BpfJump.JA:
                return "it goes there"
            compared = f"{_value(self.before[i.destination])} is compared"
            return f"{compared}: {'not ' * (self.following == self.place + 1)}taken"
        if kind in (Class.ST, Class.STX):
            value = self.before[i.source] if kind == Class.STX else i.immediate
            return (f"{_value(value)} is written to "
                    f"{_value(self.before[i.destination] + i.offset)}")
        return f"r{i.destination} is {_value(self.after[i.destination])}"


def _value(value: int) -> str:
    """A number, or a place in the executor's own memory."""
    region = (value >> REGION_SHIFT) - (BASE >> REGION_SHIFT)
    if 0 <= region < len(Region):
        return f"{Region(region).name.lower()}+{value & (1 << REGION_SHIFT) - 1:#x}"
    return f"{value:#x}"


@dataclass
class Narration:
    """What a clause did at the firing.

    :param text: the clause.
    :param executed: instructions, of which at most MAX_NARRATED are kept.
    :param left: what its actions recorded, as ``kdtrace --json`` has it; faults, too.
    :param aggregated: all aggregations behind it.
    """

    text: str
    executed: int = 0
    instructions: list[Narrated] = field(default_factory=list)
    left: list[Row] = field(default_factory=list)
    aggregated: list[Row] = field(default_factory=list)


class ExplainedClause:
    """:param text: ``[/predicate/] { actions }``.
    :param number: of the probe among ``breakpoints``, that it is for.
    :raises KinstError: when it does not compile, or is not for that probe alone.
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
        probes = {one.probe.number for one in self._session.enabled
                  if not one.function.clause.hidden}  # what the compiler has added
        if len(probes) != 1 or (probe := probes.pop()) != FIRST_PROBE + number:
            raise KinstError(f"-n: '{text}': give clauses of the explained probe alone: "
                             "[/PREDICATE/] { ACTIONS }")
        self._probe = probe
        self._lines = self._where()

    def _where(self) -> dict[int, int]:
        """The line of the clause's text, by the number of the instruction."""
        linked, found = self._session.linked, dict[int, int]()
        for one in self._session.enabled:
            function = one.function
            at = linked.offsets[function.name]
            for i, line in zip(function.code.finish(), function.code.lines, strict=True):
                found[at] = line
                at += 1 if i.wide is None else 2
        return found

    def fire(self, state: CpuState | NativeState, wanted: bool) -> Narration | None:
        """Carry it out; the narration, where it is wanted."""
        narration, went = Narration(self.text), list[tuple[int, BpfInstruction, tuple[int, ...]]]()

        def narrate(at: int, instruction: BpfInstruction, registers: Sequence[int]) -> None:
            narration.executed += 1
            if wanted and len(went) <= MAX_NARRATED:
                went.append((at, instruction, tuple(registers)))

        if self._session.stopped:
            narration.left = [{"said": "tracing had ended before: by exit()"}]
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
        said: list[Row] = [{"said": text} for text in self._said]
        narration.left = self._rows + said
        narration.aggregated = self._session.aggregated()
        return narration
