"""Drawing of scenes as SVG pictures, with ``data-`` attributes for programs that read them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

from emu.host.templates import templates
from kinst_emu.explain.steps.step import Value
from kinst_emu.explain.view.layout import MARGIN, Band, Column, Frame, Grid, Layout, box
from kinst_emu.explain.view.scene import Pane, Row, Scene

STYLE = "picture.css"
# Characters that XML 1.0 forbids (section 2.2), but that a clause or a name may contain
NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
MOST_BYTES = 20  # maximum length in characters at which bytes are separated by spaces
# font size of a title in pixels; maximum number of characters at this size
TITLE, MOST_TITLE = 22, 90
LETTER, BOLD = 0.61, 0.62  # width of a normal and of a bold character, relative to the font size
# CSS classes of the curve and of the head of an arrow, by kind of arrow
EDGES = {"control": ("arrow", "tip"), "store": ("store", "stored")}


@dataclass(frozen=True)
class Element:
    """An SVG element with its text or its child elements."""

    tag: str
    attributes: dict[str, str]
    text: str = ""
    inside: list["Element"] = field(default_factory=list)

    def all(self) -> Iterator["Element"]:
        """Yield the element and all elements inside it, in document order."""
        yield self
        for one in self.inside:
            yield from one.all()

    def __str__(self) -> str:
        head = self.tag + "".join(f" {name}={quoteattr(cleaned(value))}"
                                  for name, value in self.attributes.items())
        if not self.text and not self.inside:
            return f"<{head}/>"
        inside = "".join(map(str, self.inside)) + escape(cleaned(self.text))
        return f"<{head}>{inside}</{self.tag}>{'' if self.tag == 'text' else chr(10)}"


def svg(scene: Scene, layout: Layout, styled: bool = True, every: bool = False, pane: str = "",
        data: bool = True) -> str:
    """Return the picture of a scene as SVG text; for the parameters, see ``picture``."""
    return str(picture(scene, layout, styled, every, pane, data))


def picture(scene: Scene, layout: Layout, styled: bool = True, every: bool = False, pane: str = "",
            data: bool = True) -> Element:
    """Return the picture of a scene as an SVG element.

    :param styled: whether the picture contains its colors; if not, the page defines them.
    :param every: whether to include elements that are empty at this moment, so that all moments
        have the same elements.
    :param pane: the only pane to draw, for human readers; empty for all panes.
    :param data: whether rows have ``data-`` attributes for programs.
    """
    return _Drawing(scene, layout, every, pane, data and not pane).picture(styled)


@dataclass(frozen=True)
class _Drawing:
    scene: Scene
    layout: Layout
    every: bool
    pane: str
    data: bool

    def picture(self, styled: bool) -> Element:
        scene, layout = self.scene, self.layout
        seen = box(layout.frames, self.pane) if self.pane else f"0 0 {layout.width} {layout.height}"
        root = Element("svg", {
            "class": layout.kind, "xmlns": "http://www.w3.org/2000/svg", "viewBox": seen,
            "role": "img", "aria-label": scene.title, "data-moment": str(scene.number),
            **{f"data-{name}": value for name, value in scene.data.items()}})
        add = root.inside.append
        add(Element("title", {}, scene.title))
        add(Element("desc", {}, scene.about))
        if styled:
            add(Element("style", {}, templates("kinst_emu").get_template(STYLE).render()))
        if not self.pane:
            add(self._title())
            add(Element("text", {"x": str(MARGIN), "y": "54"}, scene.place))
        for name, frame in layout.frames.items():
            if name in scene.panes and self.pane in ("", name):
                add(self._pane(name, scene.panes[name], frame))
        if not self.pane:
            add(self._arrows())
        return root

    def _title(self) -> Element:
        title = self.scene.title
        attributes = {"class": "title", "x": str(MARGIN), "y": "32"}
        if self.layout.most_title:
            if len(title) > self.layout.most_title:
                title = title[: self.layout.most_title] + "\N{HORIZONTAL ELLIPSIS}"
        elif self.every or len(title) > MOST_TITLE:
            size = min(TITLE, (self.layout.width - 2 * MARGIN) / (len(title) * BOLD))
            attributes["style"] = f"font-size:{_number(size)}px"
        return Element("text", attributes, title)

    def _pane(self, name: str, pane: Pane, frame: Frame) -> Element:
        about = " about" if name == self.scene.about_pane else ""
        made = Element("g", {"class": f"pane{about}", "data-pane": name,
                             "transform": f"translate({frame.x} {frame.y})"}, inside=[
            Element("rect", {"class": "edge", "width": str(frame.width),
                             "height": str(frame.height), "rx": "4"}),
            Element("text", {"class": "head", "x": "10", "y": "20"}, pane.head)])
        for block, grid in frame.blocks.items():
            rows = list(pane.blocks.get(block, ()))
            rows += [None] * (grid.rows - len(rows))
            drawn = [one for number, row in enumerate(rows) for one in self._row(number, row, grid)]
            if grid.size:
                drawn = [Element("g", {"style": f"font-size:{grid.size}px"}, inside=drawn)]
            made.inside.extend(drawn)
        return made

    def _row(self, number: int, row: Row | None, grid: Grid) -> Iterator[Element]:
        if row is None and not self.every:
            return
        x, y = grid.place(number)
        marks = () if row is None else row.marks
        texts = list(self._texts(row, grid, x, y))
        if not grid.grouped:
            yield from texts
            return
        kind = " ".join((grid.kind, *marks))
        data = {f"data-{name}": "" if row is None else row.data.get(name, "")
                for name in grid.data} if self.data else {}
        band = grid.band
        if band is not None and (self.every or not band.marks or set(band.marks) & set(marks)):
            texts.insert(0, _band(band, x, y))
        yield Element("g", {"class": kind, **data}, inside=texts)

    def _texts(self, row: Row | None, grid: Grid, x: float, y: float) -> Iterator[Element]:
        cells = () if row is None else row.cells
        joined = grid.joined if self.pane and row is not None else None
        values = iter(cells)
        for column in grid.columns:
            if column.mark:
                text = column.text if row is not None and column.mark in row.marks else ""
            elif joined is None:
                text = _written(next(values, ""), column.form)
            else:
                continue
            if text or self.every:
                yield self._text(text, column, grid, x, y)
        if joined is not None:
            yield Element("text", {"x": _number(x + joined[0]), "y": _number(y)},
                          joined[1].format(*map(_written, cells, grid.forms())))

    def _text(self, text: str, column: Column, grid: Grid, x: float, y: float) -> Element:
        kind = column.kind or ("" if grid.grouped else grid.kind)
        made = {**({"class": kind} if kind else {}),
                "x": _number(x + column.x), "y": _number(y + column.dy)}
        size = grid.letters
        if column.room and (self.every or len(text) * LETTER * size > column.room):
            made["font-size"] = f"{min(size, column.room / (max(len(text), 1) * LETTER)):.3g}"
        return Element("text", made, text)

    def _arrows(self) -> Element:
        paths = {name: "" for kind in ("store", "control") for name in EDGES[kind]}
        for arrow in self.scene.arrows:
            for name, path in zip(EDGES[arrow.kind], self.layout.path(arrow), strict=True):
                paths[name] += path
        return Element("g", {"class": "arrows"}, inside=[
            Element("path", {"class": name, "d": path}) for name, path in paths.items()])


def _band(band: Band, x: float, y: float) -> Element:
    corner = {"rx": str(band.corner)} if band.corner else {}
    return Element("rect", {"class": band.kind, "x": _number(x + band.x),
                            "y": _number(y + band.dy), "width": _number(band.width),
                            "height": _number(band.height), **corner})


def _written(value: Value, form: str) -> str:
    if isinstance(value, bytes):
        spelled = value.hex(" ")
        return spelled if len(spelled) <= MOST_BYTES else value.hex()
    return value if isinstance(value, str) else f"{value:{form}}"


def _number(value: float) -> str:
    return f"{round(value, 1):g}"


def cleaned(text: str) -> str:
    """Replace the characters that XML does not allow in a text."""
    return NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
