"""Tests the relocation of every distinct encoding of an image, on several processes."""

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kinst.benches import BENCHES
from kinst.laboratory import Laboratory, Mismatch
from kinst.traps import TRAPS

CHUNK = 200


@dataclass
class Report:
    """What became of the encodings: how many of each verdict, those refused with the reason, and
    those that failed."""

    verdicts: Counter[str] = field(default_factory=Counter)
    refused: dict[bytes, str] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)


def _work(job: tuple[str, int, int, list[bytes]]) -> tuple[list[str], list[Mismatch]]:
    arch, seed, states, codes = job
    laboratory = Laboratory(BENCHES[arch](), TRAPS[arch], seed)
    verdicts, mismatches = [], []
    for code in codes:
        verdict, mismatch = laboratory.test(code, states)
        verdicts.append(verdict)
        if mismatch is not None:
            mismatches.append(mismatch)
    return verdicts, mismatches


def relocate(
    arch: str, codes: Sequence[bytes], seed: int, states: int, jobs: int,
    progress: Callable[[int], None],
) -> Report:
    """Test the encodings.

    :param progress: is told how many more are done.
    """
    chunks = [
        (arch, seed, states, list(codes[at : at + CHUNK])) for at in range(0, len(codes), CHUNK)
    ]
    report = Report()
    for chunk, (verdicts, mismatches) in zip(chunks, _results(chunks, jobs), strict=True):
        report.verdicts.update(verdicts)
        report.refused.update(
            (code, word) for code, word in zip(chunk[3], verdicts, strict=True)
            if word.startswith("refuse")
        )
        report.mismatches += mismatches
        progress(len(verdicts))
    return report


def _results(
    chunks: list[tuple[str, int, int, list[bytes]]], jobs: int
) -> Iterator[tuple[list[str], list[Mismatch]]]:
    if jobs == 1 or len(chunks) < 2:
        yield from map(_work, chunks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_work, chunks)
