"""Comparison of two sweeps: which encodings were fixed, which broke, which are new."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kinst.verify.laboratory.finding import Finding, from_kept
from kinst.verify.sweep.store import Build, Store

# place where an encoding first occurs, and the finding about the encoding
Place = tuple[str, Finding]
KEPT = 1000  # maximum number of listed wrong encodings that only one of the builds has


def findings_of(store: Store, build: Build) -> Iterator[Place]:
    """Yield the most severe finding for each encoding of a build; skip encodings without results.

    Wrong results precede unproven ones, and those precede correct ones; among wrong results, the
    earliest state comes first.

    :raises KinstError: if the store is damaged.
    """
    with store.reading():
        for place, kept in store.results(build):
            yield place, min(map(from_kept, kept), key=lambda one: (
                not one.wrong, not one.unproven, one.state or 0))


@dataclass
class Comparison:
    """Differences between the results of two builds.

    :param words: number of encodings by verdict, for each build.
    :param wrong: number of wrong encodings, for each build.
    :param fixed: encodings of both builds that are wrong in the first and correct in the second.
    :param broke: encodings of both builds that are wrong only in the second.
    :param changed: number of other changes, by (first verdict, second verdict).
    :param only: number of encodings that the other build does not have, for each build.
    :param only_wrong: wrong ones among those, at most ``KEPT`` for each build.
    :param same: number of encodings with the same verdict in both builds.
    """

    words: tuple[Counter[str], Counter[str]] = field(
        default_factory=lambda: (Counter(), Counter()))
    wrong: tuple[int, int] = (0, 0)
    fixed: list[Place] = field(default_factory=list)
    broke: list[Place] = field(default_factory=list)
    changed: Counter[tuple[str, str]] = field(default_factory=Counter)
    only: tuple[int, int] = (0, 0)
    only_wrong: tuple[list[Place], list[Place]] = field(default_factory=lambda: ([], []))
    same: int = 0


def compare(first: Iterable[Place], second: Iterable[Place]) -> Comparison:
    """Compare the results of two builds."""
    by_code = {finding.code: (place, finding) for place, finding in first}
    comparison = Comparison()
    wrong, only = [0, 0], [0, 0]
    for _place, finding in by_code.values():
        comparison.words[0][finding.word] += 1
        wrong[0] += finding.wrong
    seen = set()
    for place, finding in second:
        comparison.words[1][finding.word] += 1
        wrong[1] += finding.wrong
        before = by_code.get(finding.code)
        if before is None:
            only[1] += 1
            if finding.wrong and len(comparison.only_wrong[1]) < KEPT:
                comparison.only_wrong[1].append((place, finding))
            continue
        seen.add(finding.code)
        if before[1].wrong and not (finding.wrong or finding.unproven):
            comparison.fixed.append((place, finding))
        elif finding.wrong and not before[1].wrong:
            comparison.broke.append((place, finding))
        elif before[1].word != finding.word:
            comparison.changed[before[1].word, finding.word] += 1
        else:
            comparison.same += 1
    for code, (place, finding) in by_code.items():
        if code not in seen:
            only[0] += 1
            if finding.wrong and len(comparison.only_wrong[0]) < KEPT:
                comparison.only_wrong[0].append((place, finding))
    comparison.wrong, comparison.only = (wrong[0], wrong[1]), (only[0], only[1])
    return comparison
