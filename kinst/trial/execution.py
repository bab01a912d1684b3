"""The module's own way through a probe, held to the instruction in place."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kinst.code.verdict import summary
from kinst.laboratory.outcome import Mismatch, Outcome
from kinst.trial.bed import CALM, JUMPS, LOST, POINTERS, REPEATS, Bed, Placed, Sample
from kinst.trial.module import KinstModule

INTERRUPTED = 16  # one in so many of those that are copied is also interrupted
BATCH = 400  # instructions that are placed at once
NO_STACK = "not executed: it leaves the kernel without its stack, or does not end"
BY_MODULE = "by the module"
IN_MODULE = "where it faults, the module's own code faults"


@dataclass(frozen=True)
class Tried:
    """What became of an encoding.

    :param word: the module's verdict: ``copy``, ``rewrite``, ``emulate``; ``refuse`` with its
        error; ``not executed: ...``.
    :param mismatch: the first state where it goes wrong.
    :param faults: states in which it faults, in place too.
    :param note: what else is to be said.
    """

    code: bytes
    word: str
    mismatch: Mismatch | None = None
    faults: int = 0
    note: str = ""


def tried(bed: Bed, codes: Sequence[bytes], states: int) -> Iterator[Tried]:
    """Try encodings: each with so many random states."""
    length = bed.machine.arch.instruction_length
    whole = [code for code in codes if length(code) == len(code)]
    for code in codes:
        if length(code) != len(code):
            yield Tried(code, "refuse: is not one instruction")
    for batch in _batches(bed, whole):
        yield from _batch(bed, batch, states)


def _batches(bed: Bed, codes: Sequence[bytes]) -> Iterator[list[bytes]]:
    batch, size = list[bytes](), 0
    for code in codes:
        if batch and (len(batch) == BATCH or size + bed.size_of(code) > bed.room):
            yield batch
            batch, size = [], 0
        batch.append(code)
        size += bed.size_of(code)
    if batch:
        yield batch


def _batch(bed: Bed, codes: list[bytes], states: int) -> Iterator[Tried]:
    for one in bed.place(codes):
        yield _one(bed, one, states)


def _truths(bed: Bed, sample: Sample, states: int) -> dict[int, Outcome]:
    """What happens in place, by the states in which the kernel can go on, and it comes to an end.
    """
    found = {}
    for number in range(states):
        for state in (number, CALM + number):
            # Where it faults, the kernel's handler is left at its begin: its frame lies in the
            # stack that the next state lays out again; differences are confirmed from a restart.
            outcome = bed.in_place(sample, state)
            if outcome.fault == REPEATS:
                bed.restart()
            elif bed.has_stack(outcome):
                found[state] = outcome
                break
    if all(outcome.fault for outcome in found.values()):
        for state in (JUMPS, POINTERS):
            outcome = bed.in_place(sample, state)
            if not outcome.fault and bed.has_stack(outcome):
                found[state] = outcome
    return found


def _word(bed: Bed, one: Placed) -> str:
    if one.probe is None and one.error == LOST:
        return "refuse: the module panics, or does not return"
    if one.probe is None:
        return f"refuse: error {one.error}" if one.error else "refuse: it makes no probe"
    if not isinstance(bed.module, KinstModule):
        return "emulate"  # FBT does nothing else
    return bed.arch.becomes(bed.module.probe, one.probe).word


def _one(bed: Bed, one: Placed, states: int) -> Tried:
    sample, word = one.sample, _word(bed, one)
    if one.probe is None:
        return Tried(sample.code, word)
    reason = bed.arch.not_executed(sample.code)
    if reason is not None:
        return Tried(sample.code, f"not executed: {reason}")
    truth = _truths(bed, sample, states)
    if not truth:
        return Tried(sample.code, NO_STACK)
    faults, note = 0, ""
    for number, in_place in truth.items():
        outcome = _displaced(bed, one, number, in_place)
        faults += bool(in_place.fault)
        if outcome != in_place:
            # Again from states that nothing was executed in.
            bed.restart()
            in_place = bed.in_place(sample, number)
            bed.restart()
            bed.make_way(sample, in_place.pc)
            outcome = _displaced(bed, one, number, in_place)
            bed.restart()
            if in_place.fault and outcome.fault == in_place.fault and (
                    bed.module.holds(bed.fault_at)):
                note = IN_MODULE
            elif outcome != in_place:
                ours = summary(bed.trap.classify(sample.code, sample.address)[1])
                return Tried(sample.code, word, Mismatch(
                    sample.code, sample.address, number, f"{word} (ours: {ours})", in_place,
                    outcome, BY_MODULE), faults)
    calm = [number for number, outcome in truth.items()
            if not outcome.fault and number % 2 == 0]
    if word in ("copy", "rewrite") and calm and zlib.crc32(sample.code) % INTERRUPTED == 0:
        wrong = _interrupted(bed, one, calm[0])
        if wrong is not None:
            return Tried(sample.code, word, wrong, faults, note)
    return Tried(sample.code, word, None, faults, note)


def _interrupted(bed: Bed, one: Placed, number: int) -> Mismatch | None:
    """The same, with an interrupt when its trampoline is about to be executed."""
    bed.restart()
    in_place = bed.in_place(one.sample, number)
    bed.restart()
    bed.enable(one, True)
    outcome = bed.interrupted(one, number, in_place)
    bed.restart()
    if outcome is None or outcome == in_place:
        return None
    return Mismatch(one.sample.code, one.sample.address, number, "interrupted in its trampoline",
                    in_place, outcome, BY_MODULE)


def _displaced(bed: Bed, one: Placed, number: int, in_place: Outcome) -> Outcome:
    bed.enable(one, True)
    outcome = bed.displaced(one.sample, number, in_place)
    if outcome.fault:
        bed.restart()
    else:
        bed.enable(one, False)
    return outcome
