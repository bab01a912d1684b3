"""Scenes drawn as SVG."""

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

MOST_STILL = 3  # firings that a page has pictures of, side by side


@dataclass(frozen=True)
class Pictures(Generic[Moment]):
    """Scenes, and where a picture has what they say."""

    scenes: Scenes[Moment]
    layout: Layout

    @property
    def moments(self) -> Sequence[Moment]:
        return self.scenes.moments

    @property
    def steps(self) -> Sequence[tuple[int, Step]]:
        """With the numbers of the moments that they are about."""
        return self.scenes.steps

    def svg(self, number: int, step: str = "", styled: bool = True) -> str:
        """The picture of a moment.

        :param step: the name of the one that it is drawn for, of those that are about it.
        :param styled: whether it has its colours in it; else a page has them.
        """
        return svg(self.scenes.scene(number, step), self.layout, styled)

    def of_steps(self) -> dict[str, str]:
        """By the names of the steps, the pictures of what they are about, for readers alone."""
        return {step.name: svg(self.scenes.scene(number, step.name), self.layout, styled=False,
                               data=False) for number, step in self.steps}

    def with_data(self) -> dict[str, str]:
        """By the names of the steps, pictures that programs can read, too; of steps about one
        moment, the first has it."""
        found: dict[int, str] = {}
        for number, step in self.steps:
            found.setdefault(number, step.name)
        return {name: self.svg(number, name, styled=False) for number, name in found.items()}

    def of_step(self, name: str, pane: str) -> str:
        """A pane of the picture of a step; empty: there is no such step."""
        number = self.scenes.moment_of(name)
        return "" if number is None else svg(self.scenes.scene(number, name), self.layout,
                                             styled=False, pane=pane)


def firing_pictures(firing: SeenFiring, table: Sequence[ProbedInstruction], words: Words,
                    steps: Sequence[Step]) -> Pictures[FiringMoment]:
    """Parameters as of ``FiringScenes``."""
    scenes = FiringScenes(firing, table, words, steps)
    return Pictures(scenes, firing_layout(scenes))


def pictures_of(explained: Explained) -> Pictures[FiringMoment]:
    return firing_pictures(explained.firing, explained.table, explained.words, explained.steps)


def way_pictures(explained: ExplainedWay) -> Pictures[WayMoment]:
    return Pictures(WayScenes(explained.way, explained.words), way_layout(explained.way))


def stills(pictures: Mapping[str, Pictures[FiringMoment]], steps: Sequence[str]
           ) -> dict[str, dict[str, str]]:
    """By the names of the steps, what each is about in the pictures of several firings; of steps
    that come one behind the other and are about the same pane, the last has it.  More than
    ``MOST_STILL`` are too much for a page."""
    if len(pictures) > MOST_STILL:
        return {}
    about = [ABOUT.get(step, "stack") for step in steps]
    return {step: {name: one.of_step(step, pane) for name, one in pictures.items()}
            for step, pane, then in zip(steps, about, [*about[1:], ""], strict=True)
            if pane != then or pane == "function"}
