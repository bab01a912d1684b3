"""Tests of the relocation of an image's distinct encodings, distributed over workers."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from emu.host.fingerprint import fingerprint, machine_modules
from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import summary
from kinst.verify.laboratory.architecture import LABORATORIES
from kinst.verify.laboratory.finding import UNPROVEN, Finding, UnpreparedTask, finding
from kinst.verify.laboratory.laboratory import Laboratory
from kinst.verify.laboratory.memory_map import CODE
from kinst.verify.sweep.store import Key, Store
from kinst.verify.sweep.sweep import sweep
from kinst.verify.sweep.workers import Workers

# Modules whose code determines the results of a sweep.
MADE_BY = ("kinst.relocation", "kinst.code", "kinst.probes", "kinst.providers",
           *(f"kinst.verify.laboratory.{name}" for name in (
               "architecture", "emulated_state", "encodings", "finding", "flat_cpu", "foreign",
               "laboratory", "memory_map", "outcome", "protocol")))


UNPROVEN_STATUS = 3  # exit status if no result is wrong, but at least one is unproven


@dataclass
class Report:
    """Counts, verdicts and mismatches of the tested encodings.

    :param verdicts: number of encodings by verdict.
    :param refused: verdicts on refused encodings, with the reason.
    :param unexecuted: encodings that were not executed, with the reason.
    :param unproven: encodings in which no state could have revealed a mistake, with the reason.
    :param words: verdict on each encoding.
    :param said: verdict of the relocator, if ``words`` does not name it.
    :param mismatches: findings about wrong encodings.
    :param judged: number of encodings by result on the host's CPU, if it was used.
    :param noted: notes on encodings.
    """

    verdicts: Counter[str] = field(default_factory=Counter)
    refused: dict[bytes, str] = field(default_factory=dict)
    unexecuted: dict[bytes, str] = field(default_factory=dict)
    unproven: dict[bytes, str] = field(default_factory=dict)
    words: dict[bytes, str] = field(default_factory=dict)
    said: dict[bytes, str] = field(default_factory=dict)
    mismatches: list[Finding] = field(default_factory=list)
    judged: Counter[str] = field(default_factory=Counter)
    noted: dict[bytes, str] = field(default_factory=dict)

    def add(self, one: Finding) -> None:
        """Add a finding to the report."""
        self.verdicts[one.word] += 1
        self.words[one.code] = one.word
        if one.verdict:
            self.said[one.code] = one.verdict
        if one.word.startswith("refuse"):
            self.refused[one.code] = one.word
        if one.word.startswith("not executed"):
            self.unexecuted[one.code] = one.word
        if one.unproven:
            self.unproven[one.code] = one.word
        if one.wrong:
            self.mismatches.append(one)
        if one.judged:
            self.judged[one.judged] += 1
        if one.note:
            self.noted[one.code] = one.note

    @property
    def status(self) -> int:
        """Exit status: 1 if an encoding is wrong, else 3 if one is unproven, else 0."""
        return 1 if self.mismatches else UNPROVEN_STATUS if self.unproven else 0


def tested(
    arch: str, codes: Sequence[bytes], seed: int, states: int, host: bool = False
) -> list[Finding]:
    """Test the relocation of encodings and return a finding for each."""
    laboratory = Laboratory(LABORATORIES[arch](), TRAPS[arch], seed, host)
    findings = []
    try:
        for code in codes:
            before = laboratory.judged.copy()
            word, mismatch = laboratory.test(code, states)
            (judged,) = (*(laboratory.judged - before), "")[:1]
            verdict = (summary(TRAPS[arch].instructions.classify(code, CODE)[1])
                       if word.startswith(("not executed", UNPROVEN)) else "")
            findings.append(finding(word, mismatch, code, judged=judged, verdict=verdict))
    finally:
        laboratory.close()
    return findings


@dataclass(frozen=True)
class RelocationTask(UnpreparedTask):
    """Sweep task that tests the relocation of encodings (see ``tested``)."""

    arch: str
    seed: int
    states: int
    host: bool = False

    def results(self, prepared: None, items: Sequence[bytes]) -> list[Finding]:
        """Return a finding for each encoding."""
        return tested(self.arch, items, self.seed, self.states, self.host)


def made_by(arch: str, *more: str) -> str:
    """Return a fingerprint of the code that determines the laboratory's results.

    :param more: additional modules that take part.
    """
    return fingerprint((*machine_modules(arch), *MADE_BY, f"kinst.{arch}", *more),
                       ("unicorn", "capstone"))


def key_of(arch: str, seed: int, states: int, host: bool) -> Key:
    """Return the store key for results of this version of the relocation tables."""
    return Key("relocate", f"{made_by(arch)}{' and the host' * host}", arch, seed, states)


def relocate(
    arch: str, codes: Sequence[bytes], seed: int, states: int, jobs: Workers,
    progress: Callable[[int], None], host: bool = False, store: Store | None = None,
) -> Report:
    """Test the relocation of encodings and return a report.

    :param jobs: workers that run the tests.
    :param host: whether the host's CPU executes the encodings, too.
    :param progress: called with the number of encodings just completed.
    :param store: supplies known results and keeps new ones.
    """
    order, by_code = list(codes), dict[bytes, Finding]()
    key = key_of(arch, seed, states, host) if store is not None else None
    for findings in sweep(RelocationTask(arch, seed, states, host), order, jobs, store, key):
        by_code |= {one.code: one for one in findings}
        progress(len(findings))
    report = Report()
    for code in order:
        report.add(by_code[code])
    return report
