"""Text, JSON and the order graph of the locks in a recorded run."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dtrace.flow.lock_events import Holding, Lock

MOST_PLACES = 3  # maximum number of places shown of a lock or an order


@dataclass(frozen=True)
class Order:
    """An order in which threads acquired locks: ``after`` while they held ``before``.

    :param count: how often.
    :param where: the first such acquisition of ``after``.
    """

    before: str
    after: str
    count: int
    where: tuple[int, ...]


def named(lock: Lock) -> str:
    """Return a name for a lock's class, which all locks with the same kind and name share."""
    return f"{lock.kind} {lock.name}".strip()


def is_new(one: Holding) -> bool:
    """Return whether a lock was acquired in the window, and not only upgraded or downgraded."""
    return one.position is not None and not one.changed


def orders(holdings: Iterable[Holding]) -> list[Order]:
    """Return the orders of the locks' classes, in the order of their first occurrence."""
    found: dict[tuple[str, str], list[tuple[int, ...]]] = {}
    for one in holdings:
        if not is_new(one):
            continue
        for outer in {named(lock) for lock in one.within}:
            found.setdefault((outer, named(one.lock)), []).append(one.where)
    return [Order(before, after, len(places), places[0])
            for (before, after), places in found.items()]


def inversions(found: Sequence[Order]) -> list[tuple[Order, Order]]:
    """Return the pairs of classes that were acquired in both orders."""
    by_pair = {(one.before, one.after): one for one in found}
    return [(one, by_pair[one.after, one.before]) for one in found
            if one.before < one.after and (one.after, one.before) in by_pair]


def events(holdings: Sequence[Holding], names: Mapping[int, str], where: Callable[
        [tuple[int, ...]], str], first: int) -> Iterator[str]:
    """Yield a line for each acquisition and release, in their order.

    :param names: names of threads.
    :param where: returns the text of a place.
    :param first: virtual time in ns at the start.
    """
    rows: list[tuple[int, int, str]] = []
    for number, one in enumerate(holdings):
        thread = names.get(one.thread) or (
            "(no thread)" if one.handed else f"{one.thread:#x}" if one.thread else "?")
        lock = f"{named(one.lock)} {one.lock.at}"
        mode = " shared" if one.shared else ""
        if one.changed:
            mode = (" handed over" if one.handed else " downgraded" if one.shared
                    else " upgraded")
        if one.position is not None:
            waited = f", waited {one.waited} ns" if one.waited else ""
            indent = "  " * len(one.within)
            rows.append((one.position, number, f"{one.time - first:>10} {thread:<12} {indent}"
                         f"+ {lock}{mode} {where(one.where)}{waited}"))
        if one.released is not None:
            by = "" if one.releaser == one.thread else (
                f" by {names.get(one.releaser) or hex(one.releaser)}")
            indent = "  " * len(one.within)
            rows.append((one.released, number, f"{one.time + one.held - first:>10} {thread:<12} "
                         f"{indent}- {lock}{mode}, held {one.held} ns{by}"))
    rows.sort(key=lambda row: row[:2])
    yield f"{'ns':>10} {'thread':<12} lock"
    for _position, _number, line in rows:
        yield line


def classes(holdings: Iterable[Holding], where: Callable[[tuple[int, ...]], str]
            ) -> Iterator[str]:
    """Yield a line for each class of locks: how often and how long it was held and waited for."""
    found: dict[str, list[Holding]] = defaultdict(list)
    for one in holdings:
        found[named(one.lock)].append(one)
    yield f"{'taken':>7} {'held ns':>12} {'longest':>10} {'waited':>9}  class"
    for name, rows in sorted(found.items(), key=lambda item: -sum(r.held for r in item[1])):
        longest = max(rows, key=lambda one: one.held)
        text = where(longest.where) or "before the run"
        yield (f"{sum(map(is_new, rows)):>7} "
               f"{sum(one.held for one in rows):>12} {longest.held:>10} "
               f"{sum(one.waited for one in rows):>9}  {name}; longest: {text}")


def to_json(holdings: Iterable[Holding], names: Mapping[int, str],
            where: Callable[[tuple[int, ...]], str]) -> list[dict[str, object]]:
    """Return the acquisitions as JSON data."""
    return [{"kind": one.lock.kind, "name": one.lock.name, "address": one.lock.address,
             "shared": one.shared, "thread": one.thread or None,
             "thread_name": names.get(one.thread, ""), "acquired": one.position,
             "released": one.released, "time": one.time,
             "held": one.held, "waited": one.waited, "changed": one.changed, "handed": one.handed,
             "where": where(one.where),
             "released_where": where(one.released_where),
             "within": [named(lock) for lock in one.within]} for one in holdings]


def graph(found: Sequence[Order]) -> str:
    """Return the order graph in the language of Graphviz; inversions are red."""
    wrong = {(one.before, one.after) for pair in inversions(found) for one in pair}
    lines = ["digraph locks {", '  node [shape=box, fontname="sans-serif"];']
    for one in found:
        colour = ', color="#b3001b"' if (one.before, one.after) in wrong else ""
        lines.append(f'  "{_quoted(one.before)}" -> "{_quoted(one.after)}" '
                     f'[label="{one.count}"{colour}];')
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
