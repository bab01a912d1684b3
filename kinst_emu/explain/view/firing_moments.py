"""Moments of a firing: program counter, registers, stack and code, taken from the recording."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from emu.arch.architectures import ARCHITECTURES
from kinst_emu.explain.record.seen_firing import SeenFiring, SeenFrame
from kinst_emu.explain.steps.step import Step
from kinst_emu.explain.view.memory_words import StackWord

WORD = 8
BESIDE = 2  # maximum number of words drawn above the trap frame
MOST_WORDS = 72  # maximum number of stack words drawn
STACK = 4096  # number of bytes above the stack pointer that belong to the current stack
# names of the trap frame fields in each drawn word, keyed by the address of the word
DrawnWords = dict[int, tuple[str, ...]]


class Station(Enum):
    """Part of a firing, named after the code that is executed in this part."""

    FUNCTION = "the function"
    VECTOR = "the vector"
    HANDLER = "the handler"
    RETURN = "the return path"
    TRAMPOLINE = "the trampoline"
    ELSEWHERE = "unexpected code"


# Parts of a firing in which the trap frame is on the stack or is being built.
TRAP = (Station.VECTOR, Station.HANDLER, Station.RETURN)


@dataclass(frozen=True)
class FiringMoment:
    """State of the machine at one moment of a firing.

    :param row: number of the recorded instruction that is executed next.
    :param handles: number of the trap frame whose handler is called at this moment; None: an
        instruction is about to be executed.
    :param patched: whether the breakpoint has been written; false only at the first moment.
    :param code: bytes of the next instruction; empty when the handler is called.
    :param changed: registers that changed since the previous moment.
    """

    row: int
    handles: int | None
    patched: bool
    place: Station
    pc: int
    code: bytes
    registers: Mapping[str, int]
    changed: frozenset[str]
    sp: int
    stack: tuple[StackWord, ...]

    def owned(self, address: int) -> bool:
        """Return whether an address is on the current stack, at or above the stack pointer."""
        return 0 <= address - self.sp < STACK

    @property
    def key(self) -> tuple[int, int | None]:
        """Row number, and trap frame number or None, which are compared with those of a step."""
        return self.row, self.handles


def moments(firing: SeenFiring) -> list[FiringMoment]:
    """Return the moments of a firing: each instruction and each call of the handler."""
    return list(_moments(firing, [_drawn(firing, frame) for frame in firing.frames] or [{}]))


def at_step(found: Sequence[FiringMoment], step: Step) -> int:
    """Return the number of the moment to which a step belongs.

    :raises StopIteration: if no moment belongs to the step.
    """
    return next(number for number, moment in enumerate(found)
                if moment.key == (step.row, step.handles)
                and moment.patched is (step.name != "function"))


def _moments(firing: SeenFiring, drawn: Sequence[DrawnWords]) -> Iterator[FiringMoment]:
    words: dict[int, int] = {}
    stored: set[int] = set()  # addresses of words stored since the current exception
    registers: Mapping[str, int] = firing.rows[0].registers
    frames = {frame.row: number for number, frame in enumerate(firing.frames)}
    exception, places = 0, _places(firing)
    for number, row in enumerate(firing.rows):
        if number in frames:
            frame = firing.frames[frames[number]]
            stored |= frame.written
            yield _moment(firing, number, frames[number], Station.HANDLER, drawn[exception], words,
                          frame.words, registers, stored, frame.written)
            registers = frame.called.registers
        place = places[number]
        if number and place is Station.VECTOR and places[number - 1] is Station.TRAMPOLINE:
            exception = min(exception + 1, len(firing.frames) - 1)
            stored.clear()
        written = firing.memory.written.get(number, frozenset())
        stored |= written
        if not number:
            yield _moment(firing, number, None, place, drawn[0], words,
                          firing.memory.words.get(0, {}), registers, stored, written,
                          patched=False)
        yield _moment(firing, number, None, place, drawn[exception], words,
                      firing.memory.words.get(number, {}), registers, stored, written)
        registers = row.registers


def _moment(firing: SeenFiring, row: int, handles: int | None, place: Station, drawn: DrawnWords,
            words: dict[int, int], more: Mapping[int, int], before: Mapping[str, int],
            stored: Collection[int], written: Collection[int], patched: bool = True
            ) -> FiringMoment:
    """Return one moment of a firing.

    :param words: values of memory words; updated with the changed words, ``more``.
    :param stored: addresses stored to since the exception; ``written``: since the last moment.
    """
    changed = {at for at, word in more.items() if at in words and words[at] != word} | set(written)
    words |= more
    seen = firing.rows[row] if handles is None else firing.frames[handles].called
    code = seen.code if patched else firing.original
    pushed = _return_addresses(firing, row)
    return FiringMoment(
        row, handles, patched, place, seen.address, b"" if handles is not None else code,
        seen.registers, frozenset(name for name, value in seen.registers.items()
                                  if before.get(name) != value),
        seen.registers[ARCHITECTURES[firing.architecture].sp],
        tuple(StackWord(at, words.get(at), names if place in TRAP else
                        ("return address",) if at in pushed else (), at in changed, at in stored)
              for at, names in drawn.items()))


def _return_addresses(firing: SeenFiring, row: int) -> set[int]:
    """Return the addresses of the words in which a displaced call has stored its return address."""
    after = firing.instruction.address + len(firing.instruction.code)
    return {store.address for number, stores in firing.memory.stores.items() if number <= row
            for store in stores if store.address is not None
            and store.after == after.to_bytes(WORD, "little")}


def _places(firing: SeenFiring) -> list[Station]:
    """Return the part of the firing to which each recorded row belongs."""
    frames, places = {frame.row for frame in firing.frames}, list[Station]()
    slot = range(firing.slot, firing.slot + len(firing.trampoline))
    state = Station.VECTOR
    for number, row in enumerate(firing.rows):
        if number in frames:
            state = Station.RETURN
        if firing.slot and row.address in slot:
            places.append(Station.TRAMPOLINE)
            state = Station.VECTOR  # the trampoline's second breakpoint enters the vector
        else:
            places.append(state)
    places[0] = Station.FUNCTION
    end = firing.rows[firing.last].address
    inside = 0 <= end - firing.function.address < firing.function.size
    # A firing with a deliberate mistake may never return to the function.
    if inside or not firing.mistake.kind:
        places[firing.last :] = [Station.FUNCTION] * (len(places) - firing.last)
    if strayed := firing.mistake.strayed:
        places[strayed:] = [Station.ELSEWHERE] * (len(places) - strayed)
    return places


def _field_names(firing: SeenFiring, frame: SeenFrame) -> DrawnWords:
    """Return the names of the trap frame fields in each word, keyed by the word's address."""
    fields: dict[int, tuple[str, ...]] = {}
    for name, (offset, size) in sorted(firing.layout.items(), key=lambda one: one[1]):
        for at in range((frame.address + offset) & -WORD, frame.address + offset + size, WORD):
            fields[at] = (*fields.get(at, ()), name)
    return fields


def _changes(firing: SeenFiring) -> set[int]:
    """Return the addresses of all stack words that change during the firing.

    Words of another stack, which are unknown until they are first recorded, do not count.
    """
    known, changes = dict[int, int](), set[int]()
    frames = {frame.row: frame.words for frame in firing.frames}
    for number, words in sorted(firing.memory.words.items()):
        for found in (frames.get(number, {}), words):
            changes |= {at for at, word in found.items() if known.get(at, word) != word}
            known |= found
    return changes


def _drawn(firing: SeenFiring, frame: SeenFrame) -> DrawnWords:
    """Return the stack words to draw: the trap frame and words around it.

    Below the frame, all adjacent words that change are drawn; above the frame, up to ``BESIDE``
    words of the interrupted function.
    """
    names = _field_names(firing, frame)
    known = set().union(*firing.memory.words.values())
    changes = _changes(firing)
    low, high = min(names), max(names)
    while high + WORD in known and high - max(names) < BESIDE * WORD:
        high += WORD
    high = min(high, low + (MOST_WORDS - 1) * WORD)
    while low - WORD in changes and (high - low) // WORD + 1 < MOST_WORDS:
        low -= WORD
    return {at: names.get(at, ()) for at in range(low, high + WORD, WORD)}
