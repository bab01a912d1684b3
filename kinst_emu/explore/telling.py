"""What happened in an order, by source lines: the accesses to memory that several runs use, one
column a run."""

from collections.abc import Iterator
from dataclasses import dataclass

from dtrace.debug_data import Sources
from dtrace.debug_index import debug_index
from emu.unicorn.machine import UnicornMachine
from kinst_emu.explore.accesses import Access, read_accesses
from kinst_emu.explore.order import LETTERS
from kinst_emu.explore.races import DataRace
from kinst_emu.explore.trampolines import ProbedRuns

MAX_ROWS = 120  # the last ones are shown
PAGE = 4096


@dataclass(frozen=True)
class Row:
    """One access.

    :param run: its number.
    :param source: ``file.c:12`` or ``?``.
    :param place: the variable, as far as it is known, or a physical address.
    """

    run: int
    position: int
    where: str
    source: str
    stores: bool
    place: str
    size: int
    value: int
    said: str = ""

    @property
    def text(self) -> str:
        if self.said:
            return f"{self.source}  {self.said}"
        arrow = "=" if self.stores else "is"
        return f"{self.source}  {self.place} {arrow} {self.value:#x}"


class VariableNames:
    """Names of physical addresses: of the kernel's own variables."""

    def __init__(self, machine: UnicornMachine) -> None:
        self._machine = machine
        self._pages: dict[int, int] = {}
        for begin, end in (*((one.virtual, one.virtual_end) for one in machine.image.segments),
                           *((one.address, one.end) for one in machine.image.modules)):
            for virtual in range(begin & -PAGE, end, PAGE):
                physical = machine.translate(virtual)
                if physical is not None:
                    self._pages.setdefault(physical // PAGE, virtual)

    def name(self, physical: int) -> str:
        virtual = self._pages.get(physical // PAGE)
        if virtual is None:
            return f"memory at {physical:#x}"
        address = virtual + physical % PAGE
        variable = debug_index(self._machine.image).variable_at(address)
        if variable is None:
            return f"{address:#x}"
        offset = address - variable.value
        return f"{variable.name}+{offset:#x}" if offset else variable.name


def shared_accesses(entries: bytes, runs: int) -> list[Access]:
    """The accesses to what several runs use, one of them with a store."""
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
    """The source line of an instruction: of one in a function for atomic accesses that is inline,
    the line that calls it."""

    def __init__(self, machine: UnicornMachine, sources: Sources) -> None:
        self._machine, self._sources = machine, sources
        self._known: dict[int, str] = {}

    def of(self, pc: int) -> str:
        if pc not in self._known:
            self._known[pc] = self._look(pc)
        return self._known[pc]

    def _look(self, pc: int) -> str:
        line, atomics = self._sources.line(pc), self._machine.guest.atomics
        if atomics:
            index = debug_index(self._machine.image)
            for function in index.stack(pc):
                if not (function.inlined and function.name.startswith(atomics)):
                    break
                line = self._sources.call(index, function)
        return line


def rows(machine: UnicornMachine, sources: Sources, entries: bytes, runs: int,
         probed: ProbedRuns | None = None) -> Iterator[Row]:
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
    """One line a row, each in its run's column."""
    yield "".join(f"{LETTERS[run]:<{width}}" for run in range(runs)).rstrip()
    for row in table:
        yield " " * width * row.run + row.text


def of_race(machine: UnicornMachine, sources: Sources, race: DataRace) -> Iterator[str]:
    """The two accesses: what, where, which value."""
    places, symbols = VariableNames(machine), machine.image.symbols
    lines = SourceLines(machine, sources)
    for access in (race.first, race.second):
        what = "stores" if access.stores else "loads"
        yield (f"{LETTERS[access.cpu]} {what} {access.size} bytes of "
               f"{places.name(access.physical)} ({access.value:#x}) at {symbols.where(access.pc)}, "
               f"{lines.of(access.pc)}")
