"""Tree of function calls, with the number of calls and instructions of each call path."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dtrace.flow.call_lines import thread_name

MAX_NODES = 4_000_000


@dataclass(slots=True)
class Node:
    """A function on one call path.

    :param own: instructions that the function executed itself.
    :param total: instructions including those of the functions that it called.
    :param below: the functions that it called, by name.
    """

    name: str
    calls: int = 0
    own: int = 0
    total: int = 0
    below: dict[str, "Node"] = field(default_factory=dict)


class CallTree:
    """Listener of a ``Walk`` that counts calls and instructions.

    :ivar threads: the root of each thread's tree, by the thread's address.
    """

    def __init__(self) -> None:
        self.threads: dict[int, Node] = {}
        self._stacks: dict[int, list[Node]] = {}
        self._nodes = 0

    def _stack(self, thread: int) -> list[Node]:
        stack = self._stacks.get(thread)
        if stack is None:
            self.threads[thread] = top = Node("")
            stack = self._stacks[thread] = [top]
        return stack

    def enter(self, thread: int, position: int, time: int, name: str, how: str,
              site: int | None) -> None:
        """Count a call, and descend to the function's node."""
        stack = self._stack(thread)
        below = stack[-1].below
        node = below.get(name)
        if node is None:
            self._nodes += 1
            if self._nodes > MAX_NODES:
                node = stack[-1]  # the tree is full: count the function as part of its caller
            else:
                node = below[name] = Node(name)
        node.calls += 1
        stack.append(node)

    def leave(self, thread: int, position: int, time: int) -> None:
        """Return to the caller's node."""
        self._stack(thread).pop()

    def ran(self, thread: int, count: int) -> None:
        """Add executed instructions to the current function."""
        self._stack(thread)[-1].own += count

    def mark(self, thread: int, position: int, time: int, number: int) -> None:
        """Ignore a marked instruction."""
        return None

    def named(self, thread: int) -> None:
        """Record the address of the thread that has been reported as thread 0 until now."""
        if 0 in self.threads:
            self.threads[thread] = self.threads.pop(0)
            self._stacks[thread] = self._stacks.pop(0)

    def finish(self) -> dict[int, Node]:
        """Compute all totals and return the call trees, keyed by thread."""
        for top in self.threads.values():
            order, at = [top], 0
            while at < len(order):
                order += order[at].below.values()
                at += 1
            for node in reversed(order):
                node.total = node.own + sum(n.total for n in node.below.values())
        return self.threads


def lines(trees: Mapping[int, Node], names: Mapping[int, str]) -> Iterator[str]:
    """Yield the call trees as lines of text; the thread with the most instructions is first."""
    for thread, top in sorted(trees.items(), key=lambda t: -t[1].total):
        yield f"thread {thread_name(thread, names)}: {top.total} instructions"
        yield f"{'instructions':>14} {'self':>12} {'calls':>9}"
        waiting = [(node, 0) for node in by_total(top)[::-1]]
        while waiting:
            node, depth = waiting.pop()
            yield (f"{node.total:>14} {node.own:>12} {node.calls:>9} "
                   f"{'  ' * depth}{node.name}")
            waiting += [(below, depth + 1) for below in by_total(node)[::-1]]


def by_total(node: Node) -> list[Node]:
    """Return a node's children in descending order of executed instructions."""
    return sorted(node.below.values(), key=lambda n: (-n.total, n.name))
