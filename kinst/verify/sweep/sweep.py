"""Sweeps over items: workers process the items in parts, and skip items with known results."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from kinst.verify.sweep.store import Kept, Key, Store
from kinst.verify.sweep.task import Item, Prepared, Result, Task
from kinst.verify.sweep.workers import Workers

CHUNK = 500  # number of items in a part
MOST = 4  # maximum size of a part in multiples of CHUNK, used while many items remain
SHARE = 10  # a part larger than CHUNK has at most 1/SHARE of the remaining items


class KeptTask(Task[Item, Result, Prepared]):
    """Task whose results can be kept in a store."""

    @abstractmethod
    def named(self, item: Item) -> bytes:
        """Return the name of an item in a store."""

    @abstractmethod
    def kept(self, item: Item, result: Result) -> Kept | None:
        """Return the stored form of a result, or None if it must not be stored."""

    @abstractmethod
    def known(self, kept: Kept) -> Result:
        """Convert the stored form of a result back to the result.

        :raises ValueError: if ``kept`` cannot have produced it.
        """


def sweep(task: KeptTask[Item, Result, Prepared], items: Sequence[Item], workers: Workers,
          store: Store | None = None, key: Key | None = None, chunk: int = CHUNK,
          most: int = MOST) -> Iterator[list[Result]]:
    """Yield the results of all items as lists, in any order.

    :param key: key of the results in the store.
    :param chunk: items per part; the first parts have up to ``most`` times as many.
    :raises KinstError: if a part fails or the store is damaged.
    """
    rest = list(items)
    if store is not None and key is not None:
        by_name = {task.named(item): item for item in rest}
        known = dict[bytes, Result]()
        with store.reading():
            for kept_result in store.known(key, list(by_name)):
                known[kept_result.item] = task.known(kept_result)
        if known:
            yield list(known.values())
        rest = [item for name, item in by_name.items() if name not in known]
    for done in workers.done(task, _parts(rest, chunk, most)):
        if store is not None and key is not None:
            kept = (task.kept(item, result)
                    for item, result in zip(done.items, done.results, strict=True))
            store.put(key, [kept_result for kept_result in kept if kept_result is not None])
        yield done.results


def _parts(items: list[Item], chunk: int, most: int) -> Iterator[Sequence[Item]]:
    start = 0
    while start < len(items):
        size = min(most * chunk, max(chunk, (len(items) - start) // SHARE))
        yield items[start : start + size]
        start += size
