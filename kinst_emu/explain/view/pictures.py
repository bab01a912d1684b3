"""Pictures of explanations, drawn as SVG from scenes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from kinst.code.listing import ProbedInstruction
from kinst_emu.explain.record.seen_firing import SeenFiring
from kinst_emu.explain.steps.explained import Explained, ExplainedWay
from kinst_emu.explain.steps.step import Step
from kinst_emu.explain.steps.way import WayMoment
from kinst_emu.explain.steps.words import Words
from kinst_emu.explain.view.firing_moments import FiringMoment
from kinst_emu.explain.view.firing_picture import firing_layout
from kinst_emu.explain.view.firing_scenes import ABOUT, FiringScenes
from kinst_emu.explain.view.layout import Layout
from kinst_emu.explain.view.scene import Moment, Scenes
from kinst_emu.explain.view.svg import svg
from kinst_emu.explain.view.way_picture import way_layout
from kinst_emu.explain.view.way_scenes import WayScenes

MOST_STILL = 3  # maximum number of firings on a page with still pictures


@dataclass(frozen=True)
class Pictures(Generic[Moment]):
    """Pictures of an explanation: its scenes and the layout in which they are drawn."""

    scenes: Scenes[Moment]
    layout: Layout

    @property
    def moments(self) -> Sequence[Moment]:
        """Moments of the explanation."""
        return self.scenes.moments

    @property
    def steps(self) -> Sequence[tuple[int, Step]]:
        """Steps of the explanation, each preceded by the number of its moment."""
        return self.scenes.steps

    def svg(self, number: int, step: str = "", styled: bool = True) -> str:
        """Return the picture of a moment as SVG text.

        :param step: name of the step for which it is drawn, if the moment has several.
        :param styled: whether the picture contains its colors; if not, the page defines them.
        """
        return svg(self.scenes.scene(number, step), self.layout, styled)

    def of_steps(self) -> dict[str, str]:
        """Return the pictures of all steps, keyed by step name, without ``data-`` attributes."""
        return {step.name: svg(self.scenes.scene(number, step.name), self.layout, styled=False,
                               data=False) for number, step in self.steps}

    def with_data(self) -> dict[str, str]:
        """Return the pictures of all steps, keyed by step name, with ``data-`` attributes.

        If several steps have the same moment, only the first of them gets a picture.
        """
        names: dict[int, str] = {}
        for number, step in self.steps:
            names.setdefault(number, step.name)
        return {name: self.svg(number, name, styled=False) for number, name in names.items()}

    def of_step(self, name: str, pane: str) -> str:
        """Return one pane of a step's picture as SVG, or an empty string for an unknown step."""
        number = self.scenes.moment_of(name)
        return "" if number is None else svg(self.scenes.scene(number, name), self.layout,
                                             styled=False, pane=pane)


def firing_pictures(firing: SeenFiring, table: Sequence[ProbedInstruction], words: Words,
                    steps: Sequence[Step]) -> Pictures[FiringMoment]:
    """Return the pictures of a firing; for the parameters, see ``FiringScenes``."""
    scenes = FiringScenes(firing, table, words, steps)
    return Pictures(scenes, firing_layout(scenes))


def pictures_of(explained: Explained) -> Pictures[FiringMoment]:
    """Return the pictures of an explained firing."""
    return firing_pictures(explained.firing, explained.table, explained.words, explained.steps)


def way_pictures(explained: ExplainedWay) -> Pictures[WayMoment]:
    """Return the pictures of an explained system call, page fault or context switch."""
    return Pictures(WayScenes(explained.way, explained.words), way_layout(explained.way))


def stills(pictures: Mapping[str, Pictures[FiringMoment]], steps: Sequence[str]
           ) -> dict[str, dict[str, str]]:
    """Return still pictures of several firings, keyed by step name, then by firing name.

    Each picture shows the pane that its step is about; of consecutive steps about the same pane,
    only the last has a picture. For more than ``MOST_STILL`` firings, return no pictures.
    """
    if len(pictures) > MOST_STILL:
        return {}
    about = [ABOUT.get(step, "stack") for step in steps]
    return {step: {name: one.of_step(step, pane) for name, one in pictures.items()}
            for step, pane, then in zip(steps, about, [*about[1:], ""], strict=True)
            if pane != then or pane == "function"}
