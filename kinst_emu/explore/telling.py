"""Descriptions of schedules: the lines that access shared memory, in one column per run."""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

from dtrace.debug.debug_data import Sources
from dtrace.debug.debug_index import debug_index
from dtrace.debug.kernel_types import kernel_types
from dwarf.debug_file import DebugDataError
from dwarf.index import VARIABLE
from dwarf.types import Array, Structure, Type, declare, size_of, strip
from emu.machine.machine import Machine
from kinst_emu.explore.accesses import Access, read_accesses
from kinst_emu.explore.races import DataRace
from kinst_emu.explore.schedule import LETTERS, Schedule
from kinst_emu.explore.stage import Stage
from kinst_emu.explore.trampolines import ProbedRuns

MAX_ROWS = 120  # maximum number of rows; if there are more, only the last ones are shown
PAGE = 4096
MOST_NESTED = 32
NO_LINE = "?"  # result of ``Sources`` for an instruction without a source line


@dataclass(frozen=True)
class Row:
    """One access to shared memory.

    :param run: number of the run.
    :param position: number of instructions that the machine executed before.
    :param where: function and offset of the instruction.
    :param source: source line of the instruction, e.g. ``file.c:12``, or ``?``.
    :param place: name of the variable; an address if it is unknown.
    :param note: text that replaces the place and the value, or an empty string.
    """

    run: int
    position: int
    where: str
    source: str
    stores: bool
    place: str
    size: int
    value: int
    note: str = ""

    @property
    def text(self) -> str:
        """Text of the row, e.g. ``file.c:12  counter = 0x1``."""
        line = self.source if self.source != NO_LINE else self.where
        if self.note:
            return f"{line}  {self.note}"
        arrow = "=" if self.stores else "is"
        return f"{line}  {self.place} {arrow} {self.value:#x}"


class VariableNames:
    """Names of the kernel's variables and of the variables' members, keyed by physical address."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._pages: dict[int, int] = {}
        for begin, end in (*((one.virtual, one.virtual_end) for one in machine.image.segments),
                           *((one.address, one.end) for one in machine.image.modules)):
            for virtual in range(begin & -PAGE, end, PAGE):
                physical = machine.translate(virtual)
                if physical is not None:
                    self._pages.setdefault(physical // PAGE, virtual)
        self._types = kernel_types(machine.image)
        found = sorted({(one.value, one.name) for one in debug_index(machine.image).declarations()
                        if one.tag == VARIABLE and one.value})
        self._addresses = [address for address, _name in found]
        self._names = [name for _address, name in found]
        self._known: dict[int, tuple[str, str]] = {}

    def name(self, physical: int) -> str:
        """Return the variable and member at a physical address, or the address if unknown."""
        return self._found(physical)[0]

    def kind(self, physical: int) -> str:
        """Return the C declaration of the variable at an address, or an empty string if unknown."""
        return self._found(physical)[1]

    def _found(self, physical: int) -> tuple[str, str]:
        if physical not in self._known:
            self._known[physical] = self._look(physical)
        return self._known[physical]

    def _look(self, physical: int) -> tuple[str, str]:
        virtual = self._pages.get(physical // PAGE)
        if virtual is None:
            return f"memory at {physical:#x}", ""
        address = virtual + physical % PAGE
        number = bisect.bisect_right(self._addresses, address) - 1
        if number < 0:
            return f"{address:#x}", ""
        name, begin = self._names[number], self._addresses[number]
        try:
            kind = self._types.variable(name, begin)
            if kind is None or not begin <= address < begin + max(size_of(kind), 1):
                return f"{address:#x}", ""
            return name + member_path(kind, address - begin), declare(kind, name)
        except DebugDataError:
            return f"{address:#x}", ""


def member_path(kind: Type, offset: int) -> str:
    """Return the member path to a byte offset in a variable, e.g. ``[2].lock`` or ``+0x4``."""
    path = ""
    for _ in range(MOST_NESTED):
        kind = strip(kind)
        if isinstance(kind, Array) and (size := size_of(kind.element)):
            path += f"[{offset // size}]"
            kind, offset = kind.element, offset % size
            continue
        member = None
        if isinstance(kind, Structure):
            member = next((one for one in kind.members if one.width is None
                           and 0 <= offset - one.offset // 8 < size_of(one.type)), None)
        if member is None:
            break
        path += f".{member.name}" if member.name else ""
        kind, offset = member.type, offset - member.offset // 8
    return path + (f"+{offset:#x}" if offset else "")


def shared_accesses(entries: bytes, runs: int) -> list[Access]:
    """Return the accesses to granules that several runs use and at least one run stores to."""
    accesses = [a for a in read_accesses(entries) if a.cpu < runs]
    users: dict[int, int] = {}
    stored = set[int]()
    for access in accesses:
        for place in access.places:
            users[place] = users.get(place, 0) | 1 << access.cpu
            if access.stores:
                stored.add(place)
    return [a for a in accesses if any(
        users[place] & users[place] - 1 and place in stored for place in a.places)]


class SourceLines:
    """Lookup of the source line of each instruction that a run executes.

    An instruction of an inlined function for atomic accesses has the line of the call.
    """

    def __init__(self, machine: Machine, sources: Sources) -> None:
        self._machine, self._sources = machine, sources
        self._known: dict[int, str] = {}

    def of(self, pc: int) -> str:
        """Return the source line of an instruction."""
        if pc not in self._known:
            self._known[pc] = self._look(pc)
        return self._known[pc]

    def _look(self, pc: int) -> str:
        line, atomics = self._sources.line(pc), self._machine.guest.threads.atomics
        if atomics:
            index = debug_index(self._machine.image)
            for function in index.stack(pc):
                if not (function.inlined and function.name.startswith(atomics)):
                    break
                line = self._sources.call(index, function)
        return line


def rows(machine: Machine, sources: Sources, entries: bytes, runs: int,
         probed: ProbedRuns | None = None) -> Iterator[Row]:
    """Yield a row for each access to shared memory, but at most the last MAX_ROWS rows."""
    places, symbols = VariableNames(machine), machine.image.symbols
    lines = SourceLines(machine, sources)
    for access in shared_accesses(entries, runs)[-MAX_ROWS:]:
        said = name = ""
        if probed is not None:
            name = probed.name(access.physical)
            said = probed.said.get((access.position, access.stores), "") if name else ""
        yield Row(access.cpu, access.position, symbols.where(access.pc),
                  lines.of(access.pc), access.stores, name or places.name(access.physical),
                  access.size, access.value & (1 << 8 * min(access.size, 8)) - 1, said)


def side_by_side(table: list[Row], runs: int, width: int = 58) -> Iterator[str]:
    """Yield a header, then a line for each row; each run has its own column."""
    yield "".join(f"{LETTERS[run]:<{width}}" for run in range(runs)).rstrip()
    for row in table:
        yield " " * width * row.run + row.text


def of_race(stage: Stage, sources: Sources, race: DataRace, schedule: Schedule) -> Iterator[str]:
    """Yield lines that describe the two accesses of a data race, each with its call stack."""
    machine = stage.machine
    places, symbols = VariableNames(machine), machine.image.symbols
    lines = SourceLines(machine, sources)
    if kind := places.kind(race.second.physical):
        yield kind
    for access in (race.first, race.second):
        what = "stores" if access.stores else "loads"
        yield (f"{LETTERS[access.cpu]} {what} {access.size} bytes of "
               f"{places.name(access.physical)} ({access.value:#x}) at {symbols.where(access.pc)}, "
               f"{lines.of(access.pc)}")
        yield from (f"    {line}" for line in stage.stack_at(schedule, access.position))
