"""Layout of the pictures of a path through the kernel."""

from kinst_emu.explain.steps.way import Way
from kinst_emu.explain.view.firing_picture import (
    HEIGHT,
    HERE,
    LEFT,
    MACHINE,
    MIDDLE,
    RIGHT,
    STACK,
    WIDTH,
)
from kinst_emu.explain.view.layout import (
    LINE,
    MARGIN,
    TOP,
    Band,
    Column,
    Frame,
    Grid,
    Layout,
    registers_grid,
    stations_grid,
    texts_grid,
    words_grid,
)
from kinst_emu.explain.view.way_scenes import FUNCTIONS, LAST, LINES


def way_layout(way: Way) -> Layout:
    """Return a layout for the pictures of a path, with room for all drawn memory words."""
    pitch = min(LINE, (HEIGHT - TOP - 4 * MARGIN) / max(1, len(way.labels)))
    return Layout("picture", WIDTH, HEIGHT, {
        "code": Frame(MARGIN, TOP, LEFT, 328, {"code": Grid(
            "code", (Column(8, mark="here", text=HERE), Column(22, room=204),
                     Column(232, room=LEFT - 238)), rows=LAST,
            band=Band(4, -13, LEFT - 8, LINE))}),
        "way": Frame(MARGIN, TOP + 344, LEFT, HEIGHT - TOP - 360, {
            "stations": stations_grid(),
            "functions": texts_grid("trail", 140, LEFT - 146, rows=FUNCTIONS)}),
        "registers": Frame(MACHINE, TOP, MIDDLE, 360, {"registers": registers_grid()}),
        "told": Frame(MACHINE, TOP + 376, MIDDLE, HEIGHT - TOP - 392, {
            "text": texts_grid("note", 10, MIDDLE - 20, rows=LINES)}),
        "words": Frame(STACK, TOP, RIGHT, HEIGHT - TOP - MARGIN, {"words": words_grid(
            len(way.labels), pitch, (Column(10), Column(146, form="016x"),
                                     Column(282, room=RIGHT - 288)), RIGHT)})})
