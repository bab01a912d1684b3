"""Items, part by part, by whoever works; what is known already is not done again."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from kinst.verify.sweep.store import Kept, Key, Store
from kinst.verify.sweep.task import Item, Prepared, Result, Task
from kinst.verify.sweep.workers import Workers

CHUNK = 500  # items of a part
MOST = 4  # times as many, where much is left to be done: parts cost something, too
SHARE = 10  # parts that what is left is good for at least, until they are of CHUNK


class KeptTask(Task[Item, Result, Prepared]):
    """A task whose results a store can keep."""

    @abstractmethod
    def named(self, item: Item) -> bytes:
        """The item, as a store names it."""

    @abstractmethod
    def kept(self, item: Item, result: Result) -> Kept | None:
        """The result as a store keeps it; None: it is of this time alone."""

    @abstractmethod
    def known(self, kept: Kept) -> Result:
        """The result that was kept.

        :raises ValueError: for what ``kept`` has not made.
        """


def sweep(task: KeptTask[Item, Result, Prepared], items: Sequence[Item], workers: Workers,
          store: Store | None = None, key: Key | None = None, chunk: int = CHUNK,
          most: int = MOST) -> Iterator[list[Result]]:
    """The results of all items, in any order, some at a time.

    :param key: under which the store keeps them.
    :param chunk: items of a part, up to ``most`` times as many at first.
    :raises KinstError: when a part cannot be done, or the store is damaged.
    """
    rest = list(items)
    if store is not None and key is not None:
        by_name = {task.named(item): item for item in rest}
        known = dict[bytes, Result]()
        with store.reading():
            for one in store.known(key, list(by_name)):
                known[one.item] = task.known(one)
        if known:
            yield list(known.values())
        rest = [item for name, item in by_name.items() if name not in known]
    for done in workers.done(task, _parts(rest, chunk, most)):
        if store is not None and key is not None:
            kept = (task.kept(item, result)
                    for item, result in zip(done.items, done.results, strict=True))
            store.put(key, [one for one in kept if one is not None])
        yield done.results


def _parts(items: list[Item], chunk: int, most: int) -> Iterator[Sequence[Item]]:
    at = 0
    while at < len(items):
        size = min(most * chunk, max(chunk, (len(items) - at) // SHARE))
        yield items[at : at + size]
        at += size
