"""A flame graph of stacks that a D program has counted, as a notebook shows it."""

from collections import Counter
from collections.abc import Mapping

from dtrace.flow.flame_graph import drawing
from kinst_emu.notebook import html
from kinst_emu.trace_page.flames import MOST_FRAMES, tree

GRAPH_HEIGHT = 500  # pixels


class FlameGraph:
    """Stacks that were counted, as a flame graph.

    :param stacks: how often each was there, its innermost frame first.
    """

    def __init__(self, name: str, stacks: Mapping[tuple[str, ...], int]) -> None:
        self.name = name
        self._root = tree(Counter({tuple(reversed(stack)): count
                                   for stack, count in stacks.items()}))

    def __repr__(self) -> str:
        return (f"<flame graph of {self._root.total} stacks in {self.name}: a notebook draws it; "
                ".svg is the drawing>")

    @property
    def svg(self) -> str:
        return drawing(self._root, f"{self.name}: a flame graph of {self._root.total} stacks",
                       "firings", MOST_FRAMES)[0]

    def _repr_html_(self) -> str:
        """In a frame: a click makes a frame of the graph wide, by a script."""
        return html.framed(f"<!DOCTYPE html><html lang=\"en\"><title>{self.name}</title>{self.svg}",
                           f"{self.name}: a flame graph", GRAPH_HEIGHT)
