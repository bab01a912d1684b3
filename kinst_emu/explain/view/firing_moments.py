"""One firing as moments that can be drawn: where control is, the registers, the stack, the code;
from what was recorded, and nothing else."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from emu.arch.architectures import ARCHITECTURES
from kinst_emu.explain.record.seen_firing import SeenFiring, SeenFrame
from kinst_emu.explain.steps.step import Step
from kinst_emu.explain.view.memory_words import StackWord

WORD = 8
BESIDE = 2  # words above what the firing uses that are drawn, too
MOST_WORDS = 72
STACK = 4096  # bytes above a stack pointer that are taken for its stack's
DrawnWords = dict[int, tuple[str, ...]]  # by address, the fields of a trap frame that lie there


class Station(Enum):
    """Whose code it is that is executed."""

    FUNCTION = "the function"
    VECTOR = "the vector"
    HANDLER = "the handler"
    RETURN = "the return path"
    TRAMPOLINE = "the trampoline"
    ELSEWHERE = "where nobody waits for it"


# A trap frame is on the stack, or is being built there.
TRAP = (Station.VECTOR, Station.HANDLER, Station.RETURN)


@dataclass(frozen=True)
class FiringMoment:
    """The machine at one time of a firing.

    :param row: the number of the recorded instruction that is about to be executed.
    :param handles: the number of the trap frame whose handler has been called; None: none has.
    :param patched: whether the breakpoint is there; it is not in the first moment alone.
    :param code: of the instruction that is about to be executed; empty: it is the handler.
    :param changed: registers that are not what they were in the moment before.
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
        """Whether a word is somebody's: of the stack that is used, and not below its pointer."""
        return 0 <= address - self.sp < STACK

    @property
    def key(self) -> tuple[int, int | None]:
        """As a step refers to it."""
        return self.row, self.handles


def moments(firing: SeenFiring) -> list[FiringMoment]:
    """All of a firing, one an instruction and one a call of the handler."""
    return list(_moments(firing, [_drawn(firing, frame) for frame in firing.frames] or [{}]))


def at_step(found: Sequence[FiringMoment], step: Step) -> int:
    """The number of the moment that a step is about.

    :raises StopIteration: when it is about none.
    """
    return next(number for number, moment in enumerate(found)
                if moment.key == (step.row, step.handles)
                and moment.patched is (step.name != "function"))


def _moments(firing: SeenFiring, drawn: Sequence[DrawnWords]) -> Iterator[FiringMoment]:
    words: dict[int, int] = {}
    stored: set[int] = set()  # by the exception
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
    """One moment.

    :param words: known so far; ``more`` of them have changed by now.
    :param stored: by the exception so far; ``written`` since the moment before.
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
    """Where the displaced instruction has pushed where its callee returns to, by then."""
    after = firing.instruction.address + len(firing.instruction.code)
    return {store.address for number, stores in firing.memory.stores.items() if number <= row
            for store in stores if store.address is not None
            and store.after == after.to_bytes(WORD, "little")}


def _places(firing: SeenFiring) -> list[Station]:
    """Of each row."""
    frames, found = {frame.row for frame in firing.frames}, list[Station]()
    slot = range(firing.slot, firing.slot + len(firing.trampoline))
    state = Station.VECTOR
    for number, row in enumerate(firing.rows):
        if number in frames:
            state = Station.RETURN
        if firing.slot and row.address in slot:
            found.append(Station.TRAMPOLINE)
            state = Station.VECTOR  # a second breakpoint leads there
        else:
            found.append(state)
    found[0] = Station.FUNCTION
    gone = firing.rows[firing.last].address
    inside = 0 <= gone - firing.function.address < firing.function.size
    if inside or not firing.mistake.kind:  # else it went wrong, and has not come back
        found[firing.last :] = [Station.FUNCTION] * (len(found) - firing.last)
    if strayed := firing.mistake.strayed:
        found[strayed:] = [Station.ELSEWHERE] * (len(found) - strayed)
    return found


def _field_names(firing: SeenFiring, frame: SeenFrame) -> DrawnWords:
    """By the address of a word, the fields of a trap frame in it."""
    found: dict[int, tuple[str, ...]] = {}
    for name, (offset, size) in sorted(firing.layout.items(), key=lambda one: one[1]):
        for at in range((frame.address + offset) & -WORD, frame.address + offset + size, WORD):
            found[at] = (*found.get(at, ()), name)
    return found


def _changes(firing: SeenFiring) -> set[int]:
    """Words that were seen to change: not those of another stack, when it is looked at first."""
    known, changes = dict[int, int](), set[int]()
    frames = {frame.row: frame.words for frame in firing.frames}
    for number, words in sorted(firing.memory.words.items()):
        for found in (frames.get(number, {}), words):
            changes |= {at for at, word in found.items() if known.get(at, word) != word}
            known |= found
    return changes


def _drawn(firing: SeenFiring, frame: SeenFrame) -> DrawnWords:
    """The words of the stack that are drawn: a trap frame's, and what changes below it, up to where
    the interrupted function's own are."""
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
