"""Layout of pictures: the positions of the panes and texts of a scene, in pixels."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kinst_emu.explain.view.scene import Anchor, Arrow

TOP, MARGIN = 64, 16
LINE, LETTERS = 17, 13  # distance between lines of text and font size, in pixels
HEAD = 42  # y of the baseline of a pane's first row, in pixels
BEND, POINT = 20, 9  # distance of an arrow's control points from its ends, and length of its head
STORE_FROM = 180  # distance from a pane's top edge to the start of its store arrows, in pixels
# number of registers in a column; distance between columns in pixels
REGISTERS, REGISTER_STEP = 17, 176
STATION = 26  # distance between the boxes of a path, in pixels


@dataclass(frozen=True)
class Column:
    """A column of a grid, with a text in each row.

    :param room: width in pixels; longer text is set in smaller letters. 0: no limit.
    :param kind: CSS class of the text.
    :param form: format specification for numbers.
    :param mark: if set, rows with this mark show ``text`` here and other rows nothing; if empty,
        the column shows the next cell of the row.
    """

    x: float
    room: float = 0
    dy: float = 0
    kind: str = ""
    form: str = "x"
    mark: str = ""
    text: str = ""


@dataclass(frozen=True)
class Band:
    """A rectangle drawn behind a row.

    :param marks: marks of the rows that have the rectangle; empty: all rows have it.
    :param corner: radius of the corners.
    """

    x: float
    dy: float
    width: float
    height: float
    marks: tuple[str, ...] = ("here",)
    kind: str = "row"
    corner: int = 0


@dataclass(frozen=True)
class Grid:
    """Layout of the rows of one kind in a pane.

    :param y: baseline of the first row; ``pitch``: distance between rows.
    :param wrap: number of rows after which a new column begins at the distance ``step``; 0: all
        rows are in one column.
    :param rows: minimum number of rows that are drawn at every moment.
    :param letters: font size; ``size``: font size to set for the whole block, 0: none.
    :param grouped: whether a row is an SVG group with its marks and data; if not, it is a text.
    :param data: names of the ``data-`` attributes of a row.
    :param joined: x and format string for drawing a row as a single text, in pictures of one pane.
    :param anchor: side of the pane where arrows begin and end (1: right, -1: left), and their
        distances from that side and from the baseline.
    """

    kind: str
    columns: tuple[Column, ...]
    x: float = 0
    y: float = HEAD
    pitch: float = LINE
    wrap: int = 0
    step: float = 0
    rows: int = 0
    band: Band | None = None
    letters: float = LETTERS
    size: int = 0
    grouped: bool = True
    data: tuple[str, ...] = ()
    joined: tuple[float, str] | None = None
    anchor: tuple[int, float, float] = (1, 0, -4)

    def place(self, number: int) -> tuple[float, float]:
        """Return the x coordinate of a row and the y coordinate of its baseline."""
        column, line = divmod(number, self.wrap) if self.wrap else (0, number)
        return self.x + column * self.step, self.y + line * self.pitch

    def forms(self) -> list[str]:
        """Return the format specifications of all columns except the columns of marks."""
        return [column.form for column in self.columns if not column.mark]


@dataclass(frozen=True)
class Frame:
    """Position and size of a pane, with the grids that are drawn in the pane."""

    x: int
    y: int
    width: int
    height: int
    blocks: Mapping[str, Grid] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """Positions of a picture's panes, and paths of its arrows.

    :param kind: CSS class of the picture.
    :param most_title: number of letters after which a title is cut; 0: a long title is set in
        smaller letters instead.
    """

    kind: str
    width: int
    height: int
    frames: Mapping[str, Frame]
    most_title: int = 0

    def path(self, arrow: Arrow) -> tuple[str, str]:
        """Return the curve and the head of an arrow as SVG path data."""
        (x1, y1, leaves), (x2, y2, comes) = self._end(arrow.begin), self._end(arrow.end)
        return (f"M{x1} {y1}C{x1 + leaves * BEND} {y1} {x2 + comes * BEND} {y2} {x2} {y2}",
                f"M{x2} {y2}l{comes * POINT} -5v10z")

    def _end(self, anchor: Anchor) -> tuple[int, int, int]:
        """Return (x, y, side) for an arrow's end at a pane; side is 1 for right and -1 for left."""
        frame = self.frames[anchor.pane]
        if anchor.row is None:
            return frame.x + frame.width, frame.y + STORE_FROM, 1
        grid = frame.blocks[anchor.block]
        side, dx, dy = grid.anchor
        x = frame.x + (frame.width if side > 0 else 0) + dx
        return round(x), round(frame.y + grid.place(anchor.row)[1] + dy), side


def box(frames: Mapping[str, Frame], *panes: str) -> str:
    """Return an SVG ``viewBox`` that encloses a column of panes.

    :param panes: names of the panes, from the topmost to the lowest.
    """
    first, last, edge = frames[panes[0]], frames[panes[-1]], MARGIN // 4
    return (f"{first.x - edge} {first.y - edge} {first.width + 2 * edge} "
            f"{last.y + last.height - first.y + 2 * edge}")


def registers_grid() -> Grid:
    """Return a grid of register names and right-aligned values."""
    return Grid("register", (Column(0), Column(164, kind="value")), x=10, pitch=LINE * 1.08,
                wrap=REGISTERS, step=REGISTER_STEP, data=("register", "value"),
                band=Band(-4, -13, 170, LINE, ("changed",)))


def stations_grid() -> Grid:
    """Return a grid of the parts of a path, drawn as boxes."""
    return Grid("station", (Column(30, room=84),), pitch=STATION, data=("station",),
                band=Band(24, -16, 94, 22, (), "stop", 4), anchor=(-1, 24, -5))


def words_grid(rows: int, pitch: float, columns: tuple[Column, ...], width: int,
               joined: tuple[float, str] | None = None) -> Grid:
    """Return a grid of memory words."""
    small = min(LETTERS, round(pitch - 2))
    return Grid("word", columns, pitch=pitch, rows=rows, letters=small, size=small,
                data=("address", "value", "fields"), joined=joined,
                band=Band(4, -0.8 * pitch, width - 8, pitch, ("changed",)),
                anchor=(-1, 2, -0.3 * pitch))


def texts_grid(kind: str, x: float, room: float, y: float = HEAD, pitch: float = LINE,
               rows: int = 0, letters: float = LETTERS) -> Grid:
    """Return a grid of text lines."""
    return Grid(kind, (Column(x, room),), y=y, pitch=pitch, rows=rows, letters=letters,
                grouped=False)
