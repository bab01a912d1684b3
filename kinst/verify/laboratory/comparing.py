"""Two sweeps compared: what was fixed, what broke, what is new."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kinst.verify.laboratory.finding import Finding, from_kept
from kinst.verify.sweep.store import Build, Store

Place = tuple[str, Finding]  # where an encoding stands first, and what became of it
KEPT = 1000  # encodings of a kind that are kept one by one


def findings_of(store: Store, build: Build) -> Iterator[Place]:
    """The finding of every encoding of a build that has one; of several the worst: what goes wrong,
    in the earliest state, before what was not shown, and that before what is right.

    :raises KinstError: when the store is damaged.
    """
    with store.reading():
        for place, kept in store.results(build):
            yield place, min(map(from_kept, kept), key=lambda one: (
                not one.wrong, not one.unshown, one.state or 0))


@dataclass
class Comparison:
    """:param words: of each side, how many encodings of each verdict; ``wrong`` how many go wrong.
    :param fixed: wrong in the first alone; ``broke`` in the second alone, of what is in both.
    :param changed: other verdicts, by (first, second).
    :param only: of each side, encodings that the other has not; ``only_wrong`` those that go wrong.
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
    one = {finding.code: (place, finding) for place, finding in first}
    found = Comparison()
    wrong, only = [0, 0], [0, 0]
    for _place, finding in one.values():
        found.words[0][finding.word] += 1
        wrong[0] += finding.wrong
    seen = set()
    for place, finding in second:
        found.words[1][finding.word] += 1
        wrong[1] += finding.wrong
        before = one.get(finding.code)
        if before is None:
            only[1] += 1
            if finding.wrong and len(found.only_wrong[1]) < KEPT:
                found.only_wrong[1].append((place, finding))
            continue
        seen.add(finding.code)
        if before[1].wrong and not (finding.wrong or finding.unshown):
            found.fixed.append((place, finding))
        elif finding.wrong and not before[1].wrong:
            found.broke.append((place, finding))
        elif before[1].word != finding.word:
            found.changed[before[1].word, finding.word] += 1
        else:
            found.same += 1
    for code, (place, finding) in one.items():
        if code not in seen:
            only[0] += 1
            if finding.wrong and len(found.only_wrong[0]) < KEPT:
                found.only_wrong[0].append((place, finding))
    found.wrong, found.only = (wrong[0], wrong[1]), (only[0], only[1])
    return found
