"""A way through the kernel as moments that can be drawn, from what was recorded, and nothing else.

Assembly is gone through instruction by instruction; of C, each stay in a function is a moment.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kinst_emu.explain.record.context_switch import SeenSwitch
from kinst_emu.explain.record.entry import SeenEntry
from kinst_emu.explain.record.instruction import SeenInstruction
from kinst_emu.explain.steps.context_switch_steps import loading, saved
from kinst_emu.explain.steps.step import Step
from kinst_emu.explain.steps.words import Words

MAX_ROWS = 90  # of assembly on one part of the way
MAX_STAYS = 24  # of C on one part of the way
WORD = 8
Changes = Mapping[int, int]  # by address, the words that are not what they were


@dataclass(frozen=True)
class WayMoment:
    """:param station: the number of where control is.
    :param seen: the instruction that is about to be executed, and the registers.
    :param words: those that are not what they were in the moment before.
    """

    station: int
    seen: SeenInstruction
    words: Changes


@dataclass(frozen=True)
class Way:
    """:param heading: of the words that are drawn; ``labels``, by address, what each is.
    :param steps: with the numbers of the moments that they are about; ``about`` by their names what
        they are about: a pane.
    :param builds: whether the words are built on the way, as a trap frame is: before they are
        stored, they hold what an earlier one has left there.
    :param pushed: words that the CPU has stored when it takes the exception.
    """

    stations: tuple[str, ...]
    heading: str
    labels: Mapping[int, tuple[str, ...]]
    moments: Sequence[WayMoment]
    steps: Sequence[tuple[int, Step]]
    about: Mapping[str, str]
    builds: bool = False
    pushed: frozenset[int] = frozenset()


class _Moments:
    """Moments, one behind the other, with all words that change in between."""

    def __init__(self) -> None:
        self.found: list[WayMoment] = []
        self._words: dict[int, int] = {}

    def skip(self, words: Changes) -> None:
        self._words |= words

    def add(self, station: int, seen: SeenInstruction, words: Changes) -> None:
        self.found.append(WayMoment(station, seen, {**self._words, **words}))
        self._words = {}

    def all(self, station: int, rows: Sequence[SeenInstruction], words: Sequence[Changes],
            where: Words) -> None:
        """Each, but for what is too long for a picture: of the rest, the stays."""
        for row, more in zip(rows[:MAX_ROWS], words[:MAX_ROWS], strict=True):
            self.add(station, row, more)
        self.stays(station, rows[MAX_ROWS:], words[MAX_ROWS:], where)

    def stays(self, station: int, rows: Sequence[SeenInstruction], words: Sequence[Changes],
              where: Words) -> None:
        """The first row of each stay in a function."""
        first = set(list(_stays(rows, where))[:MAX_STAYS])
        for number, (row, more) in enumerate(zip(rows, words, strict=True)):
            if number in first:
                self.add(station, row, more)
            else:
                self.skip(more)

    @property
    def last(self) -> int:
        """The number of the last one."""
        return len(self.found) - 1


def _stays(rows: Sequence[SeenInstruction], words: Words) -> Iterator[int]:
    names = [function(row.address, words) for row in rows]
    if names:
        yield 0
    yield from (number for number, (one, then) in enumerate(pairwise(names), 1) if one != then)


def function(address: int, words: Words) -> str:
    """The name of the one that an address is in; the address, where it is in none of the
    kernel's."""
    name = words.where(address).partition("+")[0]
    return "the program" if name == f"{address:#x}" and not address >> 63 else name


def entry_way(seen: SeenEntry, steps: Sequence[Step], words: Words) -> Way:
    """From a program into the kernel and back."""
    program, entry, handler, inside, leaving = range(5)
    made = _Moments()
    rows, written, at = seen.entry.rows, seen.entry.stored, seen.entry.boundary
    made.add(program, rows[0], written[0])
    made.all(entry, rows[1:at], written[1:at], words)
    numbers = {"instruction": 0, "exception": min(1, made.last), "entry": made.last}
    made.stays(handler, rows[at:-1], written[at:-1], words)
    numbers["frame"] = numbers["entry"] + 1
    made.add(inside, rows[-1], written[-1])
    numbers["dispatch"] = made.last
    for _name, row in seen.entered:
        made.add(inside, row, {})
    numbers["work"] = made.last
    rows, changed, at = seen.leaving.rows, seen.leaving.stored, seen.leaving.boundary
    made.stays(handler, rows[:at], changed[:at], words)
    numbers["result"] = made.last + 1
    made.all(leaving, rows[at:-1], changed[at:-1], words)
    numbers["leaving"] = made.last
    made.add(program, rows[-1], changed[-1])
    numbers["after"] = made.last
    labels: dict[int, tuple[str, ...]] = {}
    for name, (offset, size) in sorted(words.guest.traps.trap_frame.fields.items(),
                                       key=lambda one: one[1]):
        for word in range((seen.frame + offset) & -WORD, seen.frame + offset + size, WORD):
            labels[word] = (*labels.get(word, ()), name)
    return Way(("program", "entry", "handler", seen.function.name, "exit"),
               "The trap frame", labels, made.found,
               [(numbers[step.name], step) for step in steps],
               {"instruction": "code", "exception": "registers", "entry": "words",
                "frame": "words", "dispatch": "way", "work": "way", "result": "words",
                "leaving": "registers", "after": "code"}, True, _pushed(seen, words, labels))


def _pushed(seen: SeenEntry, words: Words, labels: Collection[int]) -> frozenset[int]:
    """The words of the trap frame that are on the stack when the first instruction of the kernel is
    about to be executed."""
    if len(seen.entry.rows) < 2:
        return frozenset()
    sp = seen.entry.rows[1].registers[words.arch.sp]
    return frozenset(at for at in labels if at >= sp) if min(labels) <= sp <= max(labels) else (
        frozenset())


def switch_way(seen: SeenSwitch, steps: Sequence[Step], words: Words) -> Way:
    """From one thread to another."""
    old, saves, space, loads, new = range(5)
    end, begin = saved(seen), loading(seen)
    made = _Moments()
    made.add(old, seen.rows[0], seen.words[0])
    made.all(saves, seen.rows[1:end], seen.words[1:end], words)
    inside = range(seen.function.address, seen.function.address + seen.function.size)
    between = range(end, begin)
    stays = {end + number for number in list(_stays(seen.rows[end:begin], words))[:MAX_STAYS]}
    for number in between:
        row, more = seen.rows[number], seen.words[number]
        if row.address in inside or number in stays:
            made.add(space, row, more)
        else:
            made.skip(more)
    numbers = {"call": 0, "save": min(end, made.last)}
    made.all(loads, seen.rows[begin:-1], seen.words[begin:-1], words)
    numbers["space"] = next(number for number, one in enumerate(made.found)
                            if one.seen is seen.rows[begin])
    numbers["load"] = made.last
    made.add(new, seen.rows[-1], seen.words[-1])
    numbers["after"] = made.last
    labels: dict[int, tuple[str, ...]] = {}
    for thread, which in ((seen.before, "old"), (seen.after, "new")):
        for name, at in sorted(((name, thread.kept[name]) for name in seen.names),
                               key=lambda one: one[1]):
            labels[at] = (*labels.get(at, ()), f"{which} {name}")
    return Way(("old thread", "saves", "addr. space", "loads", "new thread"),
               "What is kept of both threads", labels, made.found,
               [(numbers[step.name], step) for step in steps],
               {"call": "registers", "save": "words", "space": "way", "load": "registers",
                "after": "code"})
