"""The module's own way through a probe, held to the instruction in place."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kinst.relocation.verdict import ConditionalJump, Refuse, Verdict, summary
from kinst.verify.laboratory.finding import NOT_SHOWN, NOT_TOLD, not_shown
from kinst.verify.laboratory.laboratory import SAME, UNKNOWN, Told
from kinst.verify.laboratory.outcome import Mismatch, Outcome
from kinst.verify.trial.provider_module import KinstModule
from kinst.verify.trial.sample import Sample
from kinst.verify.trial.states import CALM, HALVES, JUMPS, MIXED, POINTERS
from kinst.verify.trial.trial import LOST, REPEATS, PlacedProbe, Trial
from kinst.verify.trial.verdicts import LENGTH, OPERANDS, TARGET, kind_of

INTERRUPTED = 16  # one in so many of those that are copied is also interrupted
BATCH = 400  # instructions that are placed at once
NO_STACK = "not executed: it leaves the kernel without its stack, or does not end"
BY_MODULE = "by the module"
IN_MODULE = "where it faults, the module's own code faults"
ROUNDS = 48  # of states that are made where others show nothing
GONE = 16  # states in which it jumps to where nothing is: it always does
MADE = tuple(first + 2 * i for i in range(ROUNDS) for first in (JUMPS, POINTERS, MIXED))


@dataclass(frozen=True)
class Tried:
    """What became of an encoding.

    :param word: the module's verdict: ``copy``, ``rewrite``, ``emulate``; ``refuse`` with its
        error; ``not executed: ...``; ``not shown: ...``.
    :param mismatch: the first state where it goes wrong.
    :param faults: states in which it faults, in place too.
    :param note: what else is to be said.
    :param verdict: the module's, where the word is another.
    """

    code: bytes
    word: str
    mismatch: Mismatch | None = None
    faults: int = 0
    note: str = ""
    verdict: str = ""


def tried(trial: Trial, codes: Sequence[bytes], states: int) -> Iterator[Tried]:
    """Try encodings: each with so many random states."""
    length = trial.machine.arch.instruction_length
    whole = [code for code in codes if length(code) == len(code)]
    for code in codes:
        if length(code) != len(code):
            yield Tried(code, "refuse: is not one instruction")
    for batch in _batches(trial, whole):
        yield from _batch(trial, batch, states)


def _batches(trial: Trial, codes: Sequence[bytes], where: int = 0) -> Iterator[list[bytes]]:
    batch, size = list[bytes](), 0
    for code in codes:
        if batch and (len(batch) == BATCH or size + trial.size_of(code) > trial.room(where)):
            yield batch
            batch, size = [], 0
        batch.append(code)
        size += trial.size_of(code)
    if batch:
        yield batch


def _batch(trial: Trial, codes: list[bytes], states: int) -> Iterator[Tried]:
    elsewhere = list[bytes]()
    for one in trial.place(codes):
        found = _one(trial, one, states)
        if found.word.startswith(NOT_SHOWN) and trial.is_placed(one.sample.code):
            elsewhere.append(one.sample.code)
        else:
            yield found
    for number in range(1, len(trial.functions)):
        rest, elsewhere = elsewhere, []
        for batch in _batches(trial, rest, number):
            for one in trial.place(batch, number):
                found = _one(trial, one, states)
                if found.word.startswith(NOT_SHOWN) and number + 1 < len(trial.functions):
                    elsewhere.append(one.sample.code)
                else:
                    yield found


def _truths(trial: Trial, sample: Sample, states: int, verdict: Verdict, difference: str
            ) -> tuple[dict[int, Outcome], Told]:
    """What happens in place, by the states in which the kernel can go on, and it comes to an end.

    :param difference: between what the module has read and we: all states are wanted that may tell.
    """
    found, told, gone = dict[int, Outcome](), Told(verdict, trial.machine.arch.sp), 0
    for number in range(states):
        for state in (number, CALM + number):
            # Where it faults, the kernel's handler is left at its begin: its frame lies in the
            # stack that the next state lays out again; differences are confirmed from a restart.
            outcome = trial.in_place(sample, state)
            if outcome.fault == REPEATS:
                trial.restart()
                continue
            went = trial.gone(sample, outcome)
            told.unknown |= (bool(outcome.fault) and trial.faults.unknown
                             and trial.faults.at == sample.address)
            if trial.has_stack(outcome):
                found[state] = outcome
                if state % 2 == 0:  # what the module leaves masked does not show in the others
                    told.add(outcome)
                    gone += went
                break
    if told.unknown and not told.ways:
        return {}, told
    halves = (range(HALVES, HALVES + 2 * len(SAME), 2)
              if isinstance(verdict, ConditionalJump) else ())
    for state in (*halves, *MADE):
        if state in MADE and (told.enough or gone >= GONE) and not difference:
            break
        outcome = trial.in_place(sample, state)
        if outcome.fault == REPEATS:
            trial.restart()
        elif trial.gone(sample, outcome):
            if not gone:
                found[state] = outcome
            gone += 1
        elif not outcome.fault and trial.has_stack(outcome):
            found[state] = outcome
            told.add(outcome)
    if gone:  # to where nothing is: no address of code
        told.ways.add(0)
    return found, told


def _word(trial: Trial, one: PlacedProbe) -> str:
    if one.probe is None and one.error == LOST:
        return "refuse: the module panics, or does not return"
    if one.probe is None:
        return f"refuse: error {one.error}" if one.error else "refuse: it makes no probe"
    if not isinstance(trial.module, KinstModule):
        return "emulate"  # FBT does nothing else
    return trial.arch.becomes(trial.module.probe, one.probe).word


def _difference(trial: Trial, one: PlacedProbe, verdict: Verdict) -> str:
    """How the module's verdict differs from ours; empty: it does not, or one says nothing."""
    if (one.probe is None or not isinstance(trial.module, KinstModule)
            or isinstance(verdict, Refuse)):
        return ""
    return kind_of(trial.arch.becomes(trial.module.probe, one.probe),
                   trial.arch.ours(one.sample.code, verdict), len(one.sample.code), "")


def _one(trial: Trial, one: PlacedProbe, states: int) -> Tried:
    sample, word = one.sample, _word(trial, one)
    if one.probe is None:
        return Tried(sample.code, word)
    reason = trial.arch.not_executed(sample.code)
    if reason is not None:
        return Tried(sample.code, f"not executed: {reason}", verdict=word)
    verdict = trial.trap.instructions.classify(sample.code, sample.address)[1]
    difference = _difference(trial, one, verdict)
    read = difference if difference in (LENGTH, OPERANDS, TARGET) else ""
    truth, told = _truths(trial, sample, states, verdict, read)
    if not truth:
        why = f"not executed: {UNKNOWN}" if told.unknown else NO_STACK
        return Tried(sample.code, why, verdict=word)
    faults, note = 0, ""
    for number, in_place in truth.items():
        outcome = _displaced(trial, one, number, in_place)
        faults += bool(in_place.fault)
        if outcome != in_place:
            # Again from states that nothing was executed in.
            trial.restart()
            in_place = trial.in_place(sample, number)
            trial.restart()
            trial.make_way(sample, in_place.pc)
            outcome = _displaced(trial, one, number, in_place)
            trial.restart()
            if in_place.fault and outcome.fault == in_place.fault and (
                    trial.module.holds(trial.faults.at)):
                note = IN_MODULE
            elif outcome != in_place:
                ours = summary(verdict)
                return Tried(sample.code, word, Mismatch(
                    sample.code, sample.address, number, f"{word} (ours: {ours})", in_place,
                    outcome, BY_MODULE), faults)
    calm = [number for number, outcome in truth.items()
            if not outcome.fault and number % 2 == 0]
    if word in ("copy", "rewrite") and calm and zlib.crc32(sample.code) % INTERRUPTED == 0:
        wrong = _interrupted(trial, one, calm[0])
        if wrong is not None:
            return Tried(sample.code, word, wrong, faults, note)
    # Another way to do the same is right where it did the same; what was read otherwise is not.
    if read or told.lacks:
        why = NOT_TOLD + difference if told.ways and difference else told.lacks
        return Tried(sample.code, not_shown(word, why), None, faults, note, word)
    return Tried(sample.code, word, None, faults, note)


def _interrupted(trial: Trial, one: PlacedProbe, number: int) -> Mismatch | None:
    """The same, with an interrupt when its trampoline is about to be executed."""
    trial.restart()
    in_place = trial.in_place(one.sample, number)
    trial.restart()
    trial.enable(one, True)
    outcome = trial.interrupted(one, number, in_place)
    trial.restart()
    if outcome is None or outcome == in_place:
        return None
    return Mismatch(one.sample.code, one.sample.address, number, "interrupted in its trampoline",
                    in_place, outcome, BY_MODULE)


def _displaced(trial: Trial, one: PlacedProbe, number: int, in_place: Outcome) -> Outcome:
    trial.enable(one, True)
    outcome = trial.displaced(one.sample, number, in_place)
    if outcome.fault:
        trial.restart()
    else:
        trial.enable(one, False)
    return outcome
