"""Encodings, part by part, by whoever works; what is known already is not done again."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from kinst.verify.laboratory.finding import Finding
from kinst.verify.laboratory.store import Key, Store
from kinst.verify.sweep.workers import Workers

Part = TypeVar("Part")
CHUNK = 500  # encodings of a part
MOST = 4  # times as many, where much is left to be done: parts cost something, too
SHARE = 10  # parts that what is left is good for at least, until they are of CHUNK


def sweep(
    codes: Sequence[bytes], work: Callable[[Part], list[Finding]],
    part: Callable[[list[bytes]], Part], workers: Workers, store: Store | None = None,
    key: Key | None = None, chunk: int = CHUNK, most: int = MOST,
    final: Callable[[Finding], bool] = lambda finding: True,
) -> Iterator[list[Finding]]:
    """What becomes of the encodings, in any order, some at a time.

    :param work: a function of a module, of a part that ``part`` makes of some encodings.
    :param key: under which the store keeps them.
    :param final: whether a result is one, and not of this time alone.
    :param chunk: encodings of a part, up to ``most`` times as many at first.
    """
    rest = list(codes)
    if store is not None and key is not None:
        known = {one.code: one for one in store.known(key, rest)}
        if known:
            yield list(known.values())
        rest = [code for code in rest if code not in known]
    pieces, at = list[list[bytes]](), 0
    while at < len(rest):
        size = min(most * chunk, max(chunk, (len(rest) - at) // SHARE))
        pieces.append(rest[at : at + size])
        at += size
    for _number, findings in workers.results(work, [part(piece) for piece in pieces]):
        if store is not None and key is not None:
            store.put(key, [one for one in findings if final(one)])
        yield findings
