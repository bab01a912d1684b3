"""Flame graphs of functions for the page of a trace."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtrace.flow.call_tree import Node
from dtrace.flow.flame_graph import drawing
from kinst_emu.trace_page.collected import MAX_STACKS, Collected

if TYPE_CHECKING:
    from markupsafe import Markup

MOST_FRAMES = 1_500  # maximum number of frames in one flame graph


@dataclass(frozen=True)
class Flames:
    """A flame graph.

    :param name: what is counted, for example an aggregation.
    :param left_out: sentence to show if not all frames are drawn; otherwise empty.
    """

    name: str
    drawing: "Markup"
    left_out: str


def flames(trace: Collected) -> Iterator[Flames]:
    """Yield the flame graphs of a trace."""
    from markupsafe import Markup  # markupsafe is a dependency of the template engine

    for name, stacks in trace.stacks.items():
        root = tree(stacks)
        label = f"{name}: flame graph of {root.total} stacks, {_levels(root)} frames high"
        drawn, count = drawing(root, label, "firings", MOST_FRAMES)
        yield Flames(name, Markup(drawn), f"Only the lowest {MOST_FRAMES} frames are drawn."
                     if count == MOST_FRAMES else "")


def left_out(trace: Collected) -> str:
    """Return a note if not all stacks were stored, otherwise an empty string."""
    return (f"{trace.stacks_left_out} stacks were left out, because a flame graph has at most "
            f"{MAX_STACKS} distinct ones." if trace.stacks_left_out else "")


def tree(stacks: Counter[tuple[str, ...]]) -> Node:
    """Merge stacks into a call tree, adding up their counts."""
    root = Node("all")
    for frames, count in stacks.items():
        root.total += count
        node = root
        for name in frames:
            node = node.below.setdefault(name, Node(name))
            node.total += count
    return root


def _levels(root: Node) -> int:
    levels, row = 0, [root]
    while row:
        levels, row = levels + 1, [below for node in row for below in node.below.values()]
    return levels
