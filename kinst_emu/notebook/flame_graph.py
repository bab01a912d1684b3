"""Flame graphs for notebooks, drawn from stacks that a D program has counted."""

from collections import Counter
from collections.abc import Mapping

from dtrace.flow.flame_graph import drawing
from kinst_emu.notebook import html
from kinst_emu.trace_page.flames import MOST_FRAMES, tree

GRAPH_HEIGHT = 500  # height of the graph's iframe in pixels


class FlameGraph:
    """A flame graph of counted stacks.

    :param name: name of the aggregation.
    :param stacks: count of each stack, innermost frame first.
    """

    def __init__(self, name: str, stacks: Mapping[tuple[str, ...], int]) -> None:
        self.name = name
        self._root = tree(Counter({tuple(reversed(stack)): count
                                   for stack, count in stacks.items()}))

    def __repr__(self) -> str:
        return (f"<flame graph of {self._root.total} stacks in {self.name}: drawn in notebooks; "
                ".svg contains the drawing>")

    @property
    def svg(self) -> str:
        """The flame graph as an SVG document."""
        return drawing(self._root, f"{self.name}: a flame graph of {self._root.total} stacks",
                       "firings", MOST_FRAMES)[0]

    def _repr_html_(self) -> str:
        """Return an iframe that shows the graph; a click on a stack frame enlarges that frame."""
        return html.framed(f"<!DOCTYPE html><html lang=\"en\"><title>{self.name}</title>{self.svg}",
                           f"{self.name}: a flame graph", GRAPH_HEIGHT)
