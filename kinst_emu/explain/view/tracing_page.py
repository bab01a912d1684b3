"""HTML page and text that show firings of the kernel's own tracer and of kinst-emu side by side."""

from collections.abc import Iterator

from images import catalog
from kinst_emu.explain.steps.beside import beside
from kinst_emu.explain.steps.explained import Explained, ExplainedWay
from kinst_emu.explain.view.film import film, together
from kinst_emu.explain.view.page import page_beside
from kinst_emu.explain.view.pictures import pictures_of, way_pictures
from kinst_emu.explain.view.text import text_beside

OURS = "kinst-emu"


def tracing_page(real: ExplainedWay, ours: Explained) -> str:
    """Return the HTML page, with a column and a film for each of the two firings."""
    name = real.words.guest.name
    rows = beside({name: real.steps, OURS: ours.steps})
    order = [step for step, _steps in rows]
    title = f"{real.what}: {name} and {OURS}, {catalog.described(real.image)}"
    return page_beside(
        title, real.about, [name, OURS], rows, {},
        together({name: film(way_pictures(real)), OURS: film(pictures_of(ours))}, order), {})


def tracing_text(real: ExplainedWay, ours: Explained) -> Iterator[str]:
    """Yield lines that show both explanations side by side."""
    name = real.words.guest.name
    return text_beside([name, OURS], beside({name: real.steps, OURS: ours.steps}))
