"""Results of a session: text in a terminal, tables and pictures in a notebook."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kinst_emu.api.kernel_file import Instruction
from kinst_emu.explain.steps.explained import Explained
from kinst_emu.explain.view.firing_page import firing_page
from kinst_emu.explain.view.pictures import pictures_of
from kinst_emu.explain.view.text import text
from kinst_emu.notebook import html

PAGE_HEIGHT = 900  # height of an embedded page in pixels
AROUND = 4  # number of instructions shown before and after the current one


class Explanation:
    """Explanation of a firing, with its steps and an animated picture."""

    def __init__(self, explained: Explained) -> None:
        self.explained = explained
        self._pictures = pictures_of(explained)

    def __repr__(self) -> str:
        return "\n".join([self.explained.title, self.explained.about, "",
                          *text(self.explained.steps)])

    @property
    def steps(self) -> list[str]:
        """Names of the steps that have a picture."""
        return [step.name for _moment, step in self._pictures.steps]

    def svg(self, step: str = "frame") -> str:
        """Return the picture of a step as SVG.

        :raises KeyError: when the firing has no such step.
        """
        return self._pictures.svg({one.name: moment for moment, one in self._pictures.steps}[step],
                                  step)

    @property
    def page(self) -> str:
        """HTML page, as ``kinst explain --html`` writes it."""
        return firing_page(self.explained)

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        return {"text/plain": repr(self), "image/svg+xml": self.svg(),
                "text/html": html.framed(self.page, self.explained.title, PAGE_HEIGHT)}


@dataclass(frozen=True, repr=False)
class Disassembly:
    """Instructions of a function, with the verdict on each.

    :param at: index of the instruction to be executed next; None if it is not among them.
    """

    function: str
    instructions: Sequence[Instruction]
    at: int | None = None

    def _rows(self) -> list[tuple[str, ...]]:
        return [(str(one.offset), one.code.hex(" "), one.text, one.verdict,
                 "" if one.source == "?" else one.source) for one in self.instructions]

    def __repr__(self) -> str:
        rows = self._rows()
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(5)]
        return "\n".join([f"{self.function}:", *(
            ("> " if number == self.at else "  ") + "  ".join(
                cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for number, row in enumerate(rows))])

    def _repr_html_(self) -> str:
        return html.table(("offset", "bytes", self.function, "verdict", "source"), self._rows(),
                          self.at)


@dataclass(frozen=True, repr=False)
class Standing:
    """Position of a machine, with the code around it.

    :param where: the pc, as ``function+offset``.
    :param said: how the machine came there.
    :param changed: changed registers, with their values before and after.
    """

    where: str
    said: str
    code: Disassembly | None
    changed: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def _lines(self) -> list[str]:
        return [f"{self.said}{': ' if self.said else ''}{self.where}", *(
            f"  {name}: {before:#x} -> {now:#x}" for name, (before, now) in self.changed.items())]

    def __repr__(self) -> str:
        return "\n".join([*self._lines(), *([] if self.code is None else [repr(self.code)])])

    def _repr_html_(self) -> str:
        return html.text(self._lines()) + ("" if self.code is None else self.code._repr_html_())


class Lines(list[str]):
    """Lines of text, such as a call stack or the layout of a type."""

    def __repr__(self) -> str:
        return "\n".join(self)

    def _repr_html_(self) -> str:
        return html.text(self)
