"""Tests the relocation of every distinct encoding of an image, on several processes."""

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from emu.elf import Image, Symbol
from kinst.benches import BENCHES
from kinst.laboratory import Laboratory, Mismatch
from kinst.listing import image_code, instructions
from kinst.traps import TRAPS

CHUNK = 200


@dataclass
class Report:
    """What became of the encodings: how many of each verdict, and those that failed."""

    verdicts: Counter[str] = field(default_factory=Counter)
    mismatches: list[Mismatch] = field(default_factory=list)


def encodings(arch: str, image: Image, functions: Sequence[Symbol]) -> dict[bytes, str]:
    """Distinct encodings, each with the first place where it stands."""
    found: dict[bytes, str] = {}
    for function in functions:
        for i in instructions(TRAPS[arch], image_code(image, function), function):
            found.setdefault(i.code, f"{function.name}+{i.offset}")
    return found


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
    for verdicts, mismatches in _results(chunks, jobs):
        report.verdicts.update(verdicts)
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
