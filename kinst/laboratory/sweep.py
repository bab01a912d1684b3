"""Encodings, part by part, by whoever works; what is known already is not done again."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from kinst.laboratory.finding import Finding
from kinst.laboratory.store import Key, Store
from kinst.laboratory.workers import Workers

Part = TypeVar("Part")
CHUNK = 200  # encodings of a part


def sweep(
    codes: Sequence[bytes], work: Callable[[Part], list[Finding]],
    part: Callable[[list[bytes]], Part], workers: Workers, store: Store | None = None,
    key: Key | None = None, chunk: int = CHUNK,
) -> Iterator[list[Finding]]:
    """What becomes of the encodings, in any order, some at a time.

    :param work: a function of a module, of a part that ``part`` makes of some encodings.
    :param key: under which the store keeps them.
    """
    rest = list(codes)
    if store is not None and key is not None:
        known = {one.code: one for one in store.known(key, rest)}
        if known:
            yield list(known.values())
        rest = [code for code in rest if code not in known]
    pieces = [rest[at : at + chunk] for at in range(0, len(rest), chunk)]
    for _number, findings in workers.results(work, [part(piece) for piece in pieces]):
        if store is not None and key is not None:
            store.put(key, findings)
        yield findings
