"""Flame graph (Brendan Gregg) of a call tree, as an SVG file or as a part of an HTML page.

A frame's width is its share of the total. A click zooms in on a frame.
"""

import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dtrace.flow.call_lines import thread_name
from dtrace.flow.call_tree import Node, by_total
from emu.host.templates import templates

WIDTH, ROW, TOP, LETTER = 1200, 17, 40, 6.6  # sizes in pixels
NARROWEST = 0.4  # minimum width of a drawn frame in pixels
MAX_DEPTH = 400
INSTRUCTIONS = "instructions"


@dataclass(frozen=True, slots=True)
class FlameFrame:
    """A frame of the flame graph, for the template.

    :param level: the number of frames below it.
    :param left: the left edge in pixels.
    :param width: the width in pixels.
    :param said: the text of the tooltip after the name.
    :param top: the upper edge in pixels.
    :param text: the part of the name that fits in the frame.
    """

    name: str
    level: int
    left: float
    width: float
    said: str
    top: int
    text: str
    colour: str


def of_threads(trees: Mapping[int, Node], names: Mapping[int, str]) -> Node:
    """Combine the call trees of threads into one tree with a common root."""
    tops = {label: Node(label, top.calls, top.own, top.total, top.below)
            for label, top in ((f"thread {thread_name(thread, names)}", top)
                               for thread, top in trees.items())}
    return Node("all", total=sum(top.total for top in trees.values()), below=tops)


def svg(root: Node, title: str) -> Iterator[str]:
    """Yield the parts of an SVG file with a flame graph of executed instructions."""
    placed = list(_placed(root))
    return _template(placed, root.total, INSTRUCTIONS, title, title)


def drawing(root: Node, label: str, unit: str, most: int) -> tuple[str, int]:
    """Return a flame graph as SVG for an HTML page, and the number of frames in the graph.

    :param label: the description for screen readers.
    :param unit: what is counted, in the plural.
    :param most: the maximum number of frames; those nearest to the bottom are kept.
    """
    placed = [frame for frame, _n in zip(_placed(root), range(most), strict=False)]
    return "".join(_template(placed, root.total, unit, label, "")), len(placed)


Placed = tuple[Node, int, float, float]  # node, level, left edge and width in pixels


def _placed(root: Node) -> Iterator[Placed]:
    """Yield the frames that are wide enough to draw, level by level; wider children come first."""
    if not root.total:
        return
    scale = WIDTH / root.total
    waiting = deque([(root, 0, 0.0)])
    while waiting:
        node, level, left = waiting.popleft()
        yield node, level, left, node.total * scale
        if level == MAX_DEPTH:
            continue
        for below in by_total(node):
            if below.total * scale >= NARROWEST:
                waiting.append((below, level + 1, left))
            left += below.total * scale


def _template(placed: list[Placed], whole: int, unit: str, label: str, heading: str
              ) -> Iterator[str]:
    """Yield the parts of the SVG drawing.

    :param heading: shown above the frames in an SVG file; empty for a part of a page.
    """
    levels = max((level for _node, level, _left, _width in placed), default=0) + 1
    height = levels * ROW + (TOP if heading else 0)
    frames = (_frame(frame, height, whole, unit) for frame in placed)
    return templates("dtrace").get_template("flame_graph.svg").generate(
        frames=frames, width=WIDTH, height=height, row=ROW, letter=LETTER, narrowest=NARROWEST,
        label=label, heading=heading)


def _frame(placed: Placed, height: int, whole: int, unit: str) -> FlameFrame:
    node, level, left, width = placed
    room, name = int((width - 6) / LETTER), node.name
    calls = f", {node.calls} calls" if node.calls else ""
    return FlameFrame(name, level, left, width,
                 f"{node.total} {unit} ({100 * node.total / whole:.2f}%){calls}",
                 height - (level + 1) * ROW,
                 "" if room < 3 else name if len(name) <= room else name[: room - 2] + "..",
                 _colour(name))


def _colour(name: str) -> str:
    """Return a warm, light color that depends only on the name; dark text is legible on it."""
    seed = zlib.crc32(name.encode("utf-8", "backslashreplace"))
    return f"rgb({205 + seed % 50},{115 + (seed >> 8) % 95},{(seed >> 16) % 60})"
