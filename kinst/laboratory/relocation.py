"""Tests the relocation of every distinct encoding of an image, on several processes."""

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kinst.laboratory.bench import BENCHES
from kinst.laboratory.laboratory import Laboratory
from kinst.laboratory.outcome import Mismatch
from kinst.trap import TRAPS

CHUNK = 200


@dataclass
class Report:
    """What became of the encodings: how many of each verdict, those refused with the reason, and
    those that failed.

    :param unexecuted: those that were not executed, with the reason.
    :param judged: what became of them on the host's own CPU, when that was asked for.
    """

    verdicts: Counter[str] = field(default_factory=Counter)
    refused: dict[bytes, str] = field(default_factory=dict)
    unexecuted: dict[bytes, str] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)
    judged: Counter[str] = field(default_factory=Counter)


Work = tuple[list[str], list[Mismatch], Counter[str]]


def tested(
    arch: str, codes: Sequence[bytes], seed: int, states: int, host: bool = False
) -> Work:
    """The verdict of each encoding, the mismatches, and what became of them on the host's CPU."""
    laboratory = Laboratory(BENCHES[arch](), TRAPS[arch], seed, host)
    verdicts, mismatches = [], []
    try:
        for code in codes:
            verdict, mismatch = laboratory.test(code, states)
            verdicts.append(verdict)
            if mismatch is not None:
                mismatches.append(mismatch)
    finally:
        laboratory.close()
    return verdicts, mismatches, laboratory.judged


def _work(job: tuple[str, int, int, bool, list[bytes]]) -> Work:
    arch, seed, states, host, codes = job
    return tested(arch, codes, seed, states, host)


def relocate(
    arch: str, codes: Sequence[bytes], seed: int, states: int, jobs: int,
    progress: Callable[[int], None], host: bool = False,
) -> Report:
    """Test the encodings.

    :param host: the host's own CPU judges, too.
    :param progress: is told how many more are done.
    """
    chunks = [
        (arch, seed, states, host, list(codes[at : at + CHUNK]))
        for at in range(0, len(codes), CHUNK)
    ]
    report = Report()
    for chunk, (verdicts, mismatches, judged) in zip(chunks, _results(chunks, jobs), strict=True):
        report.verdicts.update(verdicts)
        report.refused.update(
            (code, word) for code, word in zip(chunk[4], verdicts, strict=True)
            if word.startswith("refuse")
        )
        report.unexecuted.update(
            (code, word) for code, word in zip(chunk[4], verdicts, strict=True)
            if word.startswith("not executed")
        )
        report.mismatches += mismatches
        report.judged += judged
        progress(len(verdicts))
    return report


def _results(
    chunks: list[tuple[str, int, int, bool, list[bytes]]], jobs: int
) -> Iterator[Work]:
    if jobs == 1 or len(chunks) < 2:
        yield from map(_work, chunks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_work, chunks)
