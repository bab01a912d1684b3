"""HTML page that explains a firing with an animated picture, or with two for --what-if."""

from kinst_emu.explain.record.what_if import COPY
from kinst_emu.explain.steps.explained import Explained
from kinst_emu.explain.steps.what_if_steps import up_to_trampoline
from kinst_emu.explain.view.film import alone, film, together
from kinst_emu.explain.view.page import page
from kinst_emu.explain.view.pictures import firing_pictures, pictures_of, stills

RIGHT, WRONG = "correct", {True: "copied unchanged", False: "with a shared trampoline"}


def firing_page(explained: Explained) -> str:
    """Return the HTML page of an explained firing."""
    pictures, wrong = pictures_of(explained), explained.wrong
    if wrong is None:
        still, showing = pictures.with_data(), alone(film(pictures))
    else:  # two animations make the page large, so each still picture shows only one pane
        steps = up_to_trampoline(explained.steps, wrong)
        other = firing_pictures(wrong, explained.table, explained.words, steps)
        still = {name: one[RIGHT] for name, one in stills(
            {RIGHT: pictures}, [step.name for step in explained.steps if not step.wrong]).items()}
        still |= {steps[-1].name: other.of_step(steps[-1].name, "function")}
        order = [step.name for step in explained.steps]
        showing = together({RIGHT: film(pictures), WRONG[wrong.mistake.kind == COPY]: film(other)},
                           order if "trampoline" in order else _with_trampoline(order))
    return page(explained.title, explained.about, explained.steps, still, showing)


def _with_trampoline(order: list[str]) -> list[str]:
    """Insert the trampoline step, which exists only in the firing with the mistake."""
    at = order.index("verdict") + 1
    return [*order[:at], "trampoline", *order[at:]]
