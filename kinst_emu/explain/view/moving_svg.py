"""Animated SVG images that show all moments of an explanation and need no script.

SMIL animations (SVG 1.1, chapter 19) change attributes at given times. SMIL cannot change text,
so each version of a text is an element of its own that is visible while the version applies.
"""

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from emu.host.templates import templates
from kinst_emu.explain.view.pictures import Pictures
from kinst_emu.explain.view.scene import Moment
from kinst_emu.explain.view.svg import STYLE, Element, cleaned, picture

# display times in seconds: a moment within a step, the first moment of a step, the last moment
MOMENT, STEP, LAST = 0.5, 2.5, 5.0
UNANIMATED = frozenset({"style", "aria-label"})  # attributes that SMIL cannot animate


def moving_svg(pictures: Pictures[Moment]) -> str:
    """Return an animated SVG that shows all moments in turn, repeated forever.

    The moment of a step is shown longer; a moment of several steps is drawn for the first of them.
    """
    names = {moment: step.name for moment, step in reversed(pictures.steps)}
    count = len(pictures.moments)
    drawn = [picture(pictures.scenes.scene(number, names.get(number, "")), pictures.layout,
                     styled=False, every=True, data=False) for number in range(count)]
    times = [STEP if number in names else MOMENT for number in range(count - 1)] + [LAST]
    return _Clock(times).merged(drawn, templates("kinst_emu").get_template(STYLE).render())


class _Clock:
    """Timing of an animation, with the methods that merge its pictures.

    :param times: seconds for which each moment is shown.
    """

    def __init__(self, times: Sequence[float]) -> None:
        self._total = sum(times)
        self._begins = [sum(times[:number]) / self._total for number in range(len(times))]

    def merged(self, drawn: Sequence[Element], style: str) -> str:
        """Merge the pictures of all moments into one animated picture."""
        first = drawn[0]
        about = f"Animation of {len(drawn)} moments. {first.inside[1].text}"
        kept = _shown(first) | {"aria-label": about}
        inside = "".join(self._versions(versions) for versions in zip(
            *(one.inside[2:] for one in drawn), strict=True))
        return (f"<svg{_written(kept)}><title>{escape(cleaned(first.inside[0].text))}</title>"
                f"<desc>{escape(cleaned(about))}</desc><style>{style}</style>\n{inside}</svg>\n")

    def _versions(self, versions: Sequence[Element]) -> str:
        """Merge the versions of an element at all moments into one animated element."""
        first, names = versions[0], {name for one in versions for name in _shown(one)}
        changing = {name for name in names
                    if len({one.attributes.get(name, "") for one in versions}) > 1}
        texts = {one.text for one in versions}
        if not first.inside and (len(texts) > 1 or changing & UNANIMATED):
            return self._alternatives(versions)
        if first.tag == "text" and not any(texts):
            return ""
        inside = "".join(self._versions(parts) for parts in zip(
            *(one.inside for one in versions), strict=True))
        if first.inside and not inside:
            return ""
        animations = "".join(
            self._animation(name, [one.attributes.get(name, "") for one in versions])
            for name in sorted(changing))
        return (f"<{first.tag}{_written(_shown(first))}>{animations}{inside}"
                f"{escape(cleaned(first.text))}</{first.tag}>\n")

    def _alternatives(self, versions: Sequence[Element]) -> str:
        """Return the distinct versions of an element, each visible only at its own moments."""
        spelled = ["" if one.tag == "text" and not one.text else str(one) for one in versions]
        return "".join(
            f'<g visibility="hidden">{self._animation("visibility", shown)}{version}</g>\n'
            for version in dict.fromkeys(spelled) if version
            for shown in [["visible" if one == version else "hidden" for one in spelled]])

    def _animation(self, name: str, values: Sequence[str]) -> str:
        """Return an SMIL animation that sets an attribute to one value per moment."""
        changes = [number for number in range(len(values))
                   if number == 0 or values[number] != values[number - 1]]
        return (f"<animate{_written({'attributeName': name, 'calcMode': 'discrete'})}"
                f' values={quoteattr(";".join(cleaned(values[one]) for one in changes))}'
                f' keyTimes="{";".join(f"{self._begins[one]:.5g}" for one in changes)}"'
                f' dur="{self._total:g}s" repeatCount="indefinite"/>')


def _shown(element: Element) -> dict[str, str]:
    """Return the attributes of an element that affect the picture."""
    return {name: value for name, value in element.attributes.items()
            if not name.startswith("data-")}


def _written(attributes: dict[str, str]) -> str:
    return "".join(f" {name}={quoteattr(cleaned(value))}" for name, value in attributes.items())
