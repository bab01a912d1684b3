"""Layout of the pictures of a firing."""

from dataclasses import replace

from kinst_emu.explain.view.firing_scenes import LAST, FiringScenes
from kinst_emu.explain.view.layout import (
    LETTERS,
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

WIDTH, HEIGHT = 1280, 720
LEFT, MIDDLE, RIGHT = 430, 364, 422  # widths of the columns
MACHINE, STACK = MARGIN * 2 + LEFT, MARGIN * 3 + LEFT + MIDDLE  # left edges of columns 2 and 3
# height of the trampoline pane without its code and notes, and y of the notes, in pixels
HEADS, NOTES = 58, 52
FIELD_LETTERS = 14  # maximum number of characters in the column of field names
HERE = "\N{BLACK RIGHT-POINTING TRIANGLE}"
PANES = {"function": Frame(MARGIN, TOP, LEFT, 200),
         "trampoline": Frame(MARGIN, TOP + 216, LEFT, 236),
         "clause": Frame(MARGIN, TOP + 468, LEFT, HEIGHT - TOP - 484),
         "registers": Frame(MACHINE, TOP, MIDDLE, 360),
         "way": Frame(MACHINE, TOP + 376, MIDDLE, HEIGHT - TOP - 392),
         "stack": Frame(STACK, TOP, RIGHT, HEIGHT - TOP - MARGIN)}
# Panes of each view.  If the screen is too narrow for the picture, only one view is shown.
VIEWS = {"code": ("function", "trampoline", "clause"), "machine": ("registers", "way"),
         "stack": ("stack",)}


def firing_layout(scenes: FiringScenes) -> Layout:
    """Return a layout with enough room for every moment of a firing."""
    lines, notes = len(scenes.in_slot), len(scenes.notes)
    room = PANES["trampoline"].height - HEADS - lines * LINE
    note_pitch = min(LINE, room / max(1, notes))
    stacks = [moment.stack for moment in scenes.moments]
    words = max(map(len, stacks))
    pitch = min(LINE, (HEIGHT - TOP - 2 * MARGIN - LINE * 2) / max(1, words))
    long = any(len(", ".join(word.fields)) > FIELD_LETTERS for stack in stacks for word in stack)
    code = Grid("code", (Column(10, mark="here", text=HERE), Column(26), Column(70, room=160),
                         Column(236, room=LEFT - 242)), rows=lines, data=("address", "bytes"),
                band=Band(4, -13, LEFT - 8, LINE, ("here", "probed")))
    clause = len(scenes.clause(len(scenes.moments) - 1))
    blocks = {
        "function": {"code": code},
        "trampoline": {"code": code, "notes": texts_grid(
            "note", 10, LEFT - 20, NOTES + lines * LINE, note_pitch, notes,
            min(LETTERS, note_pitch - 2))},
        "clause": {"text": texts_grid("clause", 10, LEFT - 20, pitch=LINE - 1, rows=clause)},
        "registers": {"registers": registers_grid()},
        "way": {"stations": stations_grid(), "whose": texts_grid("trail", 128, MIDDLE - 134),
                "trail": texts_grid("trail", 128, MIDDLE - 134, y=46 + LINE, rows=LAST)},
        "stack": {"words": words_grid(
            words, pitch, (Column(6, mark="sp", text=f"sp{HERE}"), Column(34),
                           Column(166, form="016x"), Column(298, room=long * (RIGHT - 304))),
            RIGHT, (34, "{:<17}{:<16}  {}"))}}
    return Layout("picture", WIDTH, HEIGHT, {
        name: replace(frame, blocks=blocks[name]) for name, frame in PANES.items()})
