"""Execution of instructions through the module's probes, compared with execution in place."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kinst.relocation.verdict import ConditionalJump, Refuse, Verdict, summary
from kinst.verify.laboratory.finding import NOT_TOLD, UNPROVEN, unproven
from kinst.verify.laboratory.laboratory import SAME, UNKNOWN, Told
from kinst.verify.laboratory.outcome import Mismatch, Outcome
from kinst.verify.trial.provider_module import KinstModule
from kinst.verify.trial.sample import Sample
from kinst.verify.trial.states import CALM, HALVES, JUMPS, MIXED, POINTERS
from kinst.verify.trial.trial import LOST, REPEATS, PlacedProbe, Trial
from kinst.verify.trial.verdicts import LENGTH, OPERANDS, TARGET, kind_of

INTERRUPTED = 16  # one in INTERRUPTED copied encodings is also executed with an interrupt
BATCH = 400  # maximum number of instructions placed at the same time
NO_STACK = "not executed: it leaves the kernel without its stack or does not finish"
BY_MODULE = "by the module"
IN_MODULE = "the fault occurs in the module's own code instead of at the instruction"
ROUNDS = 48  # number of rounds of special states, used if the random states prove too little
GONE = 16  # number of jumps to unmapped addresses after which no more special states are tried
MADE = tuple(first + 2 * i for i in range(ROUNDS) for first in (JUMPS, POINTERS, MIXED))


@dataclass(frozen=True)
class Tried:
    """Result of testing an encoding.

    :param word: verdict of the module: ``copy``, ``rewrite``, ``emulate`` or ``refuse: ...``; or
        ``not executed: ...`` or ``unproven: ...``.
    :param mismatch: first state with a wrong result.
    :param faults: number of states in which the instruction faults in place.
    :param note: additional remark, or an empty string.
    :param verdict: verdict of the module, if ``word`` does not name it.
    """

    code: bytes
    word: str
    mismatch: Mismatch | None = None
    faults: int = 0
    note: str = ""
    verdict: str = ""


def tried(trial: Trial, codes: Sequence[bytes], states: int) -> Iterator[Tried]:
    """Test encodings in ``states`` random states each, and yield the results."""
    length = trial.machine.arch.instruction_length
    valid = [code for code in codes if length(code) == len(code)]
    for code in codes:
        if length(code) != len(code):
            yield Tried(code, "refuse: is not exactly one instruction")
    for batch in _batches(trial, valid):
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
    for placed in trial.place(codes):
        result = _one(trial, placed, states)
        if result.word.startswith(UNPROVEN) and trial.is_placed(placed.sample.code):
            elsewhere.append(placed.sample.code)
        else:
            yield result
    for number in range(1, len(trial.functions)):
        rest, elsewhere = elsewhere, []
        for batch in _batches(trial, rest, number):
            for placed in trial.place(batch, number):
                result = _one(trial, placed, states)
                if result.word.startswith(UNPROVEN) and number + 1 < len(trial.functions):
                    elsewhere.append(placed.sample.code)
                else:
                    yield result


def _truths(trial: Trial, sample: Sample, states: int, verdict: Verdict, difference: str
            ) -> tuple[dict[int, Outcome], Told]:
    """Execute a sample in place; return the outcomes by state, and the evidence from them.

    States in which the kernel cannot continue, or the instruction does not finish, are left out.

    :param difference: difference between the module's decoding and kinst-emu's; if there is one,
        all special states are executed.
    """
    outcomes, told, gone = dict[int, Outcome](), Told(verdict, trial.machine.arch.sp), 0
    for number in range(states):
        for state in (number, CALM + number):
            # After a fault, the kernel's handler is abandoned at its entry: the next state
            # overwrites the trap frame on the stack.  Differences are confirmed after a restart.
            outcome = trial.in_place(sample, state)
            if outcome.fault == REPEATS:
                trial.restart()
                continue
            went = trial.gone(sample, outcome)
            told.unknown |= (bool(outcome.fault) and trial.faults.unknown
                             and trial.faults.at == sample.address)
            if trial.has_stack(outcome):
                outcomes[state] = outcome
                # Odd-numbered states mask interrupts: they hide a module that leaves them masked.
                if state % 2 == 0:
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
                outcomes[state] = outcome
            gone += 1
        elif not outcome.fault and trial.has_stack(outcome):
            outcomes[state] = outcome
            told.add(outcome)
    if gone:  # count all jumps to unmapped addresses as one target, with pc 0
        told.ways.add(0)
    return outcomes, told


def _word(trial: Trial, one: PlacedProbe) -> str:
    if one.probe is None and one.error == LOST:
        return "refuse: the module panics or does not return"
    if one.probe is None:
        return f"refuse: module error {one.error}" if one.error else "refuse: no probe is made"
    if not isinstance(trial.module, KinstModule):
        return "emulate"  # fbt.ko emulates every instruction that it probes
    return trial.arch.becomes(trial.module.probe, one.probe).word


def _difference(trial: Trial, one: PlacedProbe, verdict: Verdict) -> str:
    """Describe how the module's verdict differs from kinst-emu's, or return an empty string.

    Without a verdict of both there is nothing to compare.
    """
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
            # Confirm the difference in a restarted guest.
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
                    sample.code, sample.address, number, f"module: {word}; kinst-emu: {ours}",
                    in_place, outcome, BY_MODULE), faults)
    calm = [number for number, outcome in truth.items()
            if not outcome.fault and number % 2 == 0]
    if word in ("copy", "rewrite") and calm and zlib.crc32(sample.code) % INTERRUPTED == 0:
        wrong = _interrupted(trial, one, calm[0])
        if wrong is not None:
            return Tried(sample.code, word, wrong, faults, note)
    # Equal results prove that a different method is right; a different decoding stays unproven.
    if read or told.lacks:
        why = NOT_TOLD + difference if told.ways and difference else told.lacks
        return Tried(sample.code, unproven(word, why), None, faults, note, word)
    return Tried(sample.code, word, None, faults, note)


def _interrupted(trial: Trial, one: PlacedProbe, number: int) -> Mismatch | None:
    """Execute a sample with an interrupt just before the trampoline; return any mismatch."""
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
