"""Where a picture has what a scene says: in pixels."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kinst_emu.explain.view.scene import Anchor, Arrow

TOP, MARGIN = 64, 16
LINE, LETTERS = 17, 13  # of text: from one line to the next, and how large letters are
HEAD = 42  # of a pane: the base line of its first row
BEND, POINT = 20, 9  # of an arrow: at its ends, and its point
STORE_FROM = 180  # below the upper edge of a pane: where what is stored comes from
REGISTERS, REGISTER_STEP = 17, 176  # below each other; from one of them to the one beside it
STATION = 26  # from one station to the next


@dataclass(frozen=True)
class Column:
    """A text of a row.

    :param room: what is longer is set in smaller letters; 0: it is drawn as long as it is.
    :param kind: its class, for the style.
    :param form: how a number is written.
    :param mark: rows that have this mark have ``text`` there, others nothing; empty: it is the
        next of the row's cells.
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
    """A rectangle behind a row.

    :param marks: it is there when the row has one of them; none: always.
    :param corner: the radius of its corners.
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
    """Rows of one kind.

    :param y: the base line of the first, and ``pitch`` from one to the next.
    :param wrap: rows below each other, ``step`` from one such column to the next; 0: all are.
    :param rows: so many at least, in every moment.
    :param letters: how large they are; ``size`` that of all text of the block, where it is another.
    :param grouped: whether a row is a group, with its marks and data; else it is its text.
    :param data: names of what is in it for programs.
    :param joined: where a row is one text for readers, and its form.
    :param anchor: on which side of the pane arrows begin and end (1: right, -1: left), and at what
        distance from it and from the base line.
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
        """Of a row."""
        column, line = divmod(number, self.wrap) if self.wrap else (0, number)
        return self.x + column * self.step, self.y + line * self.pitch

    def forms(self) -> list[str]:
        """How the numbers of the cells are written."""
        return [column.form for column in self.columns if not column.mark]


@dataclass(frozen=True)
class Frame:
    """Of a pane: its place, and what of it is drawn."""

    x: int
    y: int
    width: int
    height: int
    blocks: Mapping[str, Grid] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """The places of a picture's panes, and the paths of its arrows.

    :param kind: the picture's class, for the style.
    :param most_title: letters of a title; 0: a long one is set in smaller letters.
    """

    kind: str
    width: int
    height: int
    frames: Mapping[str, Frame]
    most_title: int = 0

    def path(self, arrow: Arrow) -> tuple[str, str]:
        """An arrow: its curve, and its point, as SVG's ``d`` has them."""
        (x1, y1, leaves), (x2, y2, comes) = self._end(arrow.begin), self._end(arrow.end)
        return (f"M{x1} {y1}C{x1 + leaves * BEND} {y1} {x2 + comes * BEND} {y2} {x2} {y2}",
                f"M{x2} {y2}l{comes * POINT} -5v10z")

    def _end(self, anchor: Anchor) -> tuple[int, int, int]:
        """x, y, and to which side an arrow is drawn there."""
        frame = self.frames[anchor.pane]
        if anchor.row is None:
            return frame.x + frame.width, frame.y + STORE_FROM, 1
        grid = frame.blocks[anchor.block]
        side, dx, dy = grid.anchor
        x = frame.x + (frame.width if side > 0 else 0) + dx
        return round(x), round(frame.y + grid.place(anchor.row)[1] + dy), side


def box(frames: Mapping[str, Frame], *panes: str) -> str:
    """Of SVG, a ``viewBox``: panes that stand below each other."""
    first, last, edge = frames[panes[0]], frames[panes[-1]], MARGIN // 4
    return (f"{first.x - edge} {first.y - edge} {first.width + 2 * edge} "
            f"{last.y + last.height - first.y + 2 * edge}")


def registers_grid() -> Grid:
    """Names, and values at their right."""
    return Grid("register", (Column(0), Column(164, kind="value")), x=10, pitch=LINE * 1.08,
                wrap=REGISTERS, step=REGISTER_STEP, data=("register", "value"),
                band=Band(-4, -13, 170, LINE, ("changed",)))


def stations_grid() -> Grid:
    return Grid("station", (Column(30, room=84),), pitch=STATION, data=("station",),
                band=Band(24, -16, 94, 22, (), "stop", 4), anchor=(-1, 24, -5))


def words_grid(rows: int, pitch: float, columns: tuple[Column, ...], width: int,
               joined: tuple[float, str] | None = None) -> Grid:
    """Words of memory."""
    small = min(LETTERS, round(pitch - 2))
    return Grid("word", columns, pitch=pitch, rows=rows, letters=small, size=small,
                data=("address", "value", "fields"), joined=joined,
                band=Band(4, -0.8 * pitch, width - 8, pitch, ("changed",)),
                anchor=(-1, 2, -0.3 * pitch))


def texts_grid(kind: str, x: float, room: float, y: float = HEAD, pitch: float = LINE,
               rows: int = 0, letters: float = LETTERS) -> Grid:
    """Lines of text."""
    return Grid(kind, (Column(x, room),), y=y, pitch=pitch, rows=rows, letters=letters,
                grouped=False)
