"""The path of a firing of the kernel's own tracer, divided into moments for drawing."""

from collections.abc import Sequence

from emu.guest.tracer import TracerPart
from kinst_emu.explain.record.seen_tracing import SeenTracing
from kinst_emu.explain.steps.step import Step
from kinst_emu.explain.steps.way import MAX_ROWS, Moments, Way
from kinst_emu.explain.steps.words import Words

WORD = 8  # size of a word in bytes
MAX_STAYS = 120  # maximum number of moments in C functions
STATIONS = {
    TracerPart.CODE: 0, TracerPart.TRAP: 1, TracerPart.PROVIDER: 2, TracerPart.COPY: 2,
    TracerPart.PROBE: 3, TracerPart.PREDICATE: 4, TracerPart.ACTION: 4, TracerPart.ERROR: 3,
    TracerPart.TRAMPOLINE: 5}
NAMES = ("code", "trap", "provider", "probe", "clause", "trampoline")
ABOUT = {"patch": "code", "exception": "registers", "vector": "words", "frame": "words",
         "lookup": "way", "probe": "way", "predicate": "way", "clause": "way", "error": "way",
         "record": "words", "trampoline": "words", "emulated": "words", "displaced": "code",
         "after": "registers", "cost": "way"}


def tracing_way(seen: SeenTracing, steps: Sequence[Step], words: Words) -> Way:
    """Return the path from the probed instruction through the tracer and back.

    Each instruction of assembly code is a moment; in C, the first of each uninterrupted stay in a
    function is one, and each instruction that stores to a word which is shown.
    """
    builder, moments = Moments(), dict[int, int]()
    assembly = stays = 0
    steps_at = {step.row for step in steps}
    before = None
    for number, row in enumerate(seen.rows):
        here = seen.functions[number], seen.parts[number]
        in_assembly = not seen.functions[number]
        stores = number + 1 < len(seen.stored) and bool(seen.stored[number + 1])
        wanted = number in (0, len(seen.rows) - 1) or number in steps_at
        if in_assembly and assembly < MAX_ROWS:
            assembly += 1
            wanted = True
        elif stays < MAX_STAYS and (here != before or (
                stores and builder.found[-1].seen.address != row.address)):
            stays += 1
            wanted = True
        before = here
        if wanted:
            builder.add(STATIONS[seen.parts[number]], row, seen.stored[number])
        else:
            builder.skip(seen.stored[number])
        moments[number] = builder.last
    return Way(NAMES, _heading(seen), _labels(seen, words), builder.found,
               [(moments[step.row], step) for step in steps], ABOUT, bool(seen.frame),
               _pushed(seen, words))


def _heading(seen: SeenTracing) -> str:
    parts = [name for name, there in (("trap frame", seen.frame), ("trampoline", seen.slot),
                                      ("record", seen.record)) if there]
    return " and ".join((", ".join(parts[:-1]), parts[-1]) if len(parts) > 1 else parts
                        ).capitalize() or "Memory"


def _labels(seen: SeenTracing, words: Words) -> dict[int, tuple[str, ...]]:
    """Return what each word is, by its address, of those that were recorded."""
    labels = dict[int, tuple[str, ...]]()
    recorded = seen.stored[0] if seen.stored else {}
    if seen.frame:
        for name, (offset, size) in sorted(words.guest.traps.trap_frame.fields.items(),
                                           key=lambda one: one[1]):
            for word in range(seen.frame + offset & -WORD, seen.frame + offset + size, WORD):
                labels[word] = (*labels.get(word, ()), name)
    for name, at, size in (("trampoline", seen.trampoline, len(seen.slot)),
                           ("record", seen.record_at, len(seen.record))):
        for number, word in enumerate(range(at & -WORD, at + size, WORD) if at else ()):
            labels[word] = (f"{name} {number}" if size > WORD else name,)
    return {at: names for at, names in labels.items() if at in recorded}


def _pushed(seen: SeenTracing, words: Words) -> frozenset[int]:
    """Return the addresses of the words that are known when the exception has been taken.

    These are the words that the CPU itself has pushed, and a trampoline that was written earlier.
    """
    if not seen.frame or len(seen.stored) < 2:
        return frozenset()
    written = frozenset[int]() if seen.count(TracerPart.COPY) else frozenset(
        range(seen.trampoline & -WORD, seen.trampoline + len(seen.slot), WORD))
    sp, frame = seen.rows[1].registers[words.arch.sp], seen.frame
    size = words.guest.traps.trap_frame.size
    return written | (frozenset(range(sp & -WORD, frame + size, WORD))
                      if frame <= sp < frame + size else frozenset())
