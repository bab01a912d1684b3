"""Stacks as flame graphs of functions, as the page draws them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtrace.flow.call_tree import Node
from dtrace.flow.flame_graph import drawing
from kinst_emu.trace_page.collected import MAX_STACKS, Collected

if TYPE_CHECKING:
    from markupsafe import Markup

MOST_FRAMES = 1_500


@dataclass(frozen=True)
class Flames:
    """:param name: of what counts the stacks.
    :param left_out: what is said when not all frames are drawn.
    """

    name: str
    drawing: "Markup"
    left_out: str


def flames(trace: Collected) -> Iterator[Flames]:
    from markupsafe import Markup  # comes with the template engine

    for name, stacks in trace.stacks.items():
        root = tree(stacks)
        label = f"{name}: a flame graph of {root.total} stacks, {_levels(root)} frames high"
        drawn, count = drawing(root, label, "firings", MOST_FRAMES)
        yield Flames(name, Markup(drawn), f"The {MOST_FRAMES} frames nearest to the bottom."
                     if count == MOST_FRAMES else "")


def left_out(trace: Collected) -> str:
    """What is said when not all stacks were kept."""
    return (f"{trace.stacks_left_out} stacks are not in it: there were more than {MAX_STACKS} "
            "different ones." if trace.stacks_left_out else "")


def tree(stacks: Counter[tuple[str, ...]]) -> Node:
    """Stacks added up."""
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
