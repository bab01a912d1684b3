"""Tests the relocation of every distinct encoding of an image, by whoever works."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from emu.host.fingerprint import fingerprint, machine_modules
from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import summary
from kinst.verify.laboratory.architecture import LABORATORIES
from kinst.verify.laboratory.finding import NOT_SHOWN, Finding, UnpreparedTask, finding
from kinst.verify.laboratory.laboratory import Laboratory
from kinst.verify.laboratory.memory_map import CODE
from kinst.verify.sweep.store import Key, Store
from kinst.verify.sweep.sweep import sweep
from kinst.verify.sweep.workers import Workers

# What decides a result: the tables and what executes them.
MADE_BY = ("kinst.relocation", "kinst.code", "kinst.probes", "kinst.providers",
           *(f"kinst.verify.laboratory.{name}" for name in (
               "architecture", "emulated_state", "encodings", "finding", "flat_cpu", "foreign",
               "laboratory", "memory_map", "outcome", "protocol")))


UNSHOWN = 3  # exit status


@dataclass
class Report:
    """What became of the encodings: how many of each verdict, those refused with the reason, and
    those that failed.

    :param unexecuted: those that were not executed, with the reason; ``unshown`` those of which no
        state could have told a mistake.
    :param words: what became of each; ``said`` the relocator's verdict, where that is another.
    :param judged: what became of them on the host's own CPU, when that was asked for.
    :param noted: what else was said of encodings.
    """

    verdicts: Counter[str] = field(default_factory=Counter)
    refused: dict[bytes, str] = field(default_factory=dict)
    unexecuted: dict[bytes, str] = field(default_factory=dict)
    unshown: dict[bytes, str] = field(default_factory=dict)
    words: dict[bytes, str] = field(default_factory=dict)
    said: dict[bytes, str] = field(default_factory=dict)
    mismatches: list[Finding] = field(default_factory=list)
    judged: Counter[str] = field(default_factory=Counter)
    noted: dict[bytes, str] = field(default_factory=dict)

    def add(self, one: Finding) -> None:
        self.verdicts[one.word] += 1
        self.words[one.code] = one.word
        if one.verdict:
            self.said[one.code] = one.verdict
        if one.word.startswith("refuse"):
            self.refused[one.code] = one.word
        if one.word.startswith("not executed"):
            self.unexecuted[one.code] = one.word
        if one.unshown:
            self.unshown[one.code] = one.word
        if one.wrong:
            self.mismatches.append(one)
        if one.judged:
            self.judged[one.judged] += 1
        if one.note:
            self.noted[one.code] = one.note

    @property
    def status(self) -> int:
        """Of a command that reports it: 1 when something is wrong, 3 when something is not shown.
        """
        return 1 if self.mismatches else UNSHOWN if self.unshown else 0


def tested(
    arch: str, codes: Sequence[bytes], seed: int, states: int, host: bool = False
) -> list[Finding]:
    """What becomes of each encoding."""
    laboratory = Laboratory(LABORATORIES[arch](), TRAPS[arch], seed, host)
    found = []
    try:
        for code in codes:
            before = laboratory.judged.copy()
            word, mismatch = laboratory.test(code, states)
            (judged,) = (*(laboratory.judged - before), "")[:1]
            verdict = (summary(TRAPS[arch].instructions.classify(code, CODE)[1])
                       if word.startswith(("not executed", NOT_SHOWN)) else "")
            found.append(finding(word, mismatch, code, judged=judged, verdict=verdict))
    finally:
        laboratory.close()
    return found


@dataclass(frozen=True)
class RelocationTask(UnpreparedTask):
    """What becomes of encodings: see ``tested``."""

    arch: str
    seed: int
    states: int
    host: bool = False

    def results(self, prepared: None, items: Sequence[bytes]) -> list[Finding]:
        return tested(self.arch, items, self.seed, self.states, self.host)


def made_by(arch: str, *more: str) -> str:
    """What decides results in the laboratory: changes when our code does.

    :param more: modules that have a part in it, too.
    """
    return fingerprint((*machine_modules(arch), *MADE_BY, f"kinst.{arch}", *more),
                       ("unicorn", "capstone"))


def key_of(arch: str, seed: int, states: int, host: bool) -> Key:
    """Under which a store keeps results of our relocation: of this version of the tables."""
    return Key("relocate", f"{made_by(arch)}{' and the host' * host}", arch, seed, states)


def relocate(
    arch: str, codes: Sequence[bytes], seed: int, states: int, jobs: Workers,
    progress: Callable[[int], None], host: bool = False, store: Store | None = None,
) -> Report:
    """Test the encodings.

    :param jobs: who works.
    :param host: the host's own CPU judges, too.
    :param progress: is told how many more are done.
    :param store: keeps the results, and has those that are known.
    """
    order, found = list(codes), dict[bytes, Finding]()
    key = key_of(arch, seed, states, host) if store is not None else None
    for findings in sweep(RelocationTask(arch, seed, states, host), order, jobs, store, key):
        found |= {one.code: one for one in findings}
        progress(len(findings))
    report = Report()
    for code in order:
        report.add(found[code])
    return report
