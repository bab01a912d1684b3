"""Paths through the kernel, built from recordings and divided into moments for drawing.

In assembly, each instruction is a moment; in C, each uninterrupted stay in a function is a moment.
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

MAX_ROWS = 90  # maximum number of assembly instructions drawn in one part of the path
MAX_STAYS = 24  # maximum number of moments in C functions drawn in one part of the path
WORD = 8  # size of a word in bytes
Changes = Mapping[int, int]  # values of the changed memory words, keyed by address


@dataclass(frozen=True)
class WayMoment:
    """A moment on a path through the kernel.

    :param station: number of the station where control is.
    :param seen: the instruction that is about to be executed, with the registers.
    :param words: the words that changed since the previous moment.
    """

    station: int
    seen: SeenInstruction
    words: Changes


@dataclass(frozen=True)
class Way:
    """A path through the kernel, divided into moments for drawing.

    :param stations: names of the parts of the path.
    :param heading: heading of the words that are drawn; ``labels``: what each word is, by address.
    :param steps: each step with the number of its moment; ``about``: the pane that each step is
        about, by the name of the step.
    :param builds: whether the path stores the words, like those of a trap frame; until then the
        words have earlier contents.
    :param pushed: words that are known from the second moment on, such as those that the CPU itself
        stores when it takes the exception.
    """

    stations: tuple[str, ...]
    heading: str
    labels: Mapping[int, tuple[str, ...]]
    moments: Sequence[WayMoment]
    steps: Sequence[tuple[int, Step]]
    about: Mapping[str, str]
    builds: bool = False
    pushed: frozenset[int] = frozenset()


class Moments:
    """Builder of a sequence of moments, each with the words that changed since the previous one."""

    def __init__(self) -> None:
        self.found: list[WayMoment] = []
        self._words: dict[int, int] = {}

    def skip(self, words: Changes) -> None:
        """Keep the changed words of a row without a moment, and add them to the next moment."""
        self._words |= words

    def add(self, station: int, seen: SeenInstruction, words: Changes) -> None:
        """Append a moment."""
        self.found.append(WayMoment(station, seen, {**self._words, **words}))
        self._words = {}

    def all(self, station: int, rows: Sequence[SeenInstruction], words: Sequence[Changes],
            where: Words) -> None:
        """Append a moment for each of the first ``MAX_ROWS`` rows; pass later rows to ``stays``."""
        for row, more in zip(rows[:MAX_ROWS], words[:MAX_ROWS], strict=True):
            self.add(station, row, more)
        self.stays(station, rows[MAX_ROWS:], words[MAX_ROWS:], where)

    def stays(self, station: int, rows: Sequence[SeenInstruction], words: Sequence[Changes],
              where: Words) -> None:
        """Append a moment for the first row of each uninterrupted stay in a function."""
        first = set(list(stays_of(rows, where))[:MAX_STAYS])
        for number, (row, more) in enumerate(zip(rows, words, strict=True)):
            if number in first:
                self.add(station, row, more)
            else:
                self.skip(more)

    @property
    def last(self) -> int:
        """Number of the last moment."""
        return len(self.found) - 1


def stays_of(rows: Sequence[SeenInstruction], words: Words) -> Iterator[int]:
    names = [function(row.address, words) for row in rows]
    if names:
        yield 0
    yield from (number for number, (one, then) in enumerate(pairwise(names), 1) if one != then)


def function(address: int, words: Words) -> str:
    """Return the name of the function that contains an address.

    Return the address itself if it is in no kernel function, or "the program" if it is a user
    address.
    """
    name = words.where(address).partition("+")[0]
    return "the program" if name == f"{address:#x}" and not address >> 63 else name


def entry_way(seen: SeenEntry, steps: Sequence[Step], words: Words) -> Way:
    """Return the path from a program into the kernel and back."""
    program, entry, handler, inside, leaving = range(5)
    builder = Moments()
    rows, written, at = seen.entry.rows, seen.entry.stored, seen.entry.boundary
    builder.add(program, rows[0], written[0])
    builder.all(entry, rows[1:at], written[1:at], words)
    numbers = {"instruction": 0, "exception": min(1, builder.last), "entry": builder.last}
    builder.stays(handler, rows[at:-1], written[at:-1], words)
    numbers["frame"] = numbers["entry"] + 1
    builder.add(inside, rows[-1], written[-1])
    numbers["dispatch"] = builder.last
    for _name, row in seen.entered:
        builder.add(inside, row, {})
    numbers["work"] = builder.last
    rows, changed, at = seen.leaving.rows, seen.leaving.stored, seen.leaving.boundary
    builder.stays(handler, rows[:at], changed[:at], words)
    numbers["result"] = builder.last + 1
    builder.all(leaving, rows[at:-1], changed[at:-1], words)
    numbers["leaving"] = builder.last
    builder.add(program, rows[-1], changed[-1])
    numbers["after"] = builder.last
    labels: dict[int, tuple[str, ...]] = {}
    for name, (offset, size) in sorted(words.guest.traps.trap_frame.fields.items(),
                                       key=lambda one: one[1]):
        for word in range((seen.frame + offset) & -WORD, seen.frame + offset + size, WORD):
            labels[word] = (*labels.get(word, ()), name)
    return Way(("program", "entry", "handler", seen.function.name, "exit"),
               "The trap frame", labels, builder.found,
               [(numbers[step.name], step) for step in steps],
               {"instruction": "code", "exception": "registers", "entry": "words",
                "frame": "words", "dispatch": "way", "work": "way", "result": "words",
                "leaving": "registers", "after": "code"}, True, _pushed(seen, words, labels))


def _pushed(seen: SeenEntry, words: Words, labels: Collection[int]) -> frozenset[int]:
    """Return the addresses of the trap frame words that the CPU itself has pushed.

    These words are on the stack before the first instruction of the kernel is executed.
    """
    if len(seen.entry.rows) < 2:
        return frozenset()
    sp = seen.entry.rows[1].registers[words.arch.sp]
    return frozenset(at for at in labels if at >= sp) if min(labels) <= sp <= max(labels) else (
        frozenset())


def switch_way(seen: SeenSwitch, steps: Sequence[Step], words: Words) -> Way:
    """Return the path through a context switch, from the old thread to the new thread."""
    old, saves, space, loads, new = range(5)
    end, begin = saved(seen), loading(seen)
    builder = Moments()
    builder.add(old, seen.rows[0], seen.words[0])
    builder.all(saves, seen.rows[1:end], seen.words[1:end], words)
    inside = range(seen.function.address, seen.function.address + seen.function.size)
    between = range(end, begin)
    stays = {end + number for number in list(stays_of(seen.rows[end:begin], words))[:MAX_STAYS]}
    for number in between:
        row, more = seen.rows[number], seen.words[number]
        if row.address in inside or number in stays:
            builder.add(space, row, more)
        else:
            builder.skip(more)
    numbers = {"call": 0, "save": min(end, builder.last)}
    builder.all(loads, seen.rows[begin:-1], seen.words[begin:-1], words)
    numbers["space"] = next(number for number, one in enumerate(builder.found)
                            if one.seen is seen.rows[begin])
    numbers["load"] = builder.last
    builder.add(new, seen.rows[-1], seen.words[-1])
    numbers["after"] = builder.last
    labels: dict[int, tuple[str, ...]] = {}
    for thread, which in ((seen.before, "old"), (seen.after, "new")):
        for name, at in sorted(((name, thread.kept[name]) for name in seen.names),
                               key=lambda one: one[1]):
            labels[at] = (*labels.get(at, ()), f"{which} {name}")
    return Way(("old thread", "saves", "addr. space", "loads", "new thread"),
               "The saved registers of both threads", labels, builder.found,
               [(numbers[step.name], step) for step in steps],
               {"call": "registers", "save": "words", "space": "way", "load": "registers",
                "after": "code"})
