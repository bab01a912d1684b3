"""All moments of a firing in one picture: what is to be set in it to come from each to the next."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass

from kinst_emu.explain.drawing import Pictures

TEXT = ""  # the name of what is no attribute
Place = tuple[int, str]  # the number of an element, as the picture is read; an attribute's name
Values = dict[Place, str]


@dataclass(frozen=True)
class Film:
    """:param first: the picture of the first moment.
    :param places: what changes, at any time.
    :param strings: all that is set anywhere.
    :param changes: of each moment against the one before, pairs: the number of a place, that of
        a string. The first moment's are against ``first``: none.
    :param steps: the number of its moment, the step's name, and what it has otherwise than the
        moment.
    """

    first: str
    places: tuple[Place, ...]
    strings: tuple[str, ...]
    changes: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[int, str, tuple[int, ...]], ...]

    def for_script(self) -> dict[str, object]:
        """As JSON, without the picture."""
        return {"places": self.places, "strings": self.strings, "changes": self.changes,
                "steps": self.steps}


def film(pictures: Pictures) -> Film:
    """:raises ValueError: when a picture has other elements than the one before (it has not)."""
    places, strings = dict[Place, int](), dict[str, int]()
    about = {number: [step.name for at, step in pictures.steps if at == number]
             for number, _step in pictures.steps}
    changes, steps = list[tuple[int, ...]](), list[tuple[int, str, tuple[int, ...]]]()

    def differences(before: Values, now: Values) -> tuple[int, ...]:
        if now.keys() != before.keys():
            raise ValueError("a picture has other elements than another")
        return tuple(one for place, value in now.items() if before[place] != value
                     for one in (places.setdefault(place, len(places)),
                                 strings.setdefault(value, len(strings))))

    first = before = dict(_values(_drawn(pictures, 0)))
    for number in range(len(pictures.moments)):
        now = dict(_values(_drawn(pictures, number))) if number else first
        changes.append(differences(before, now))
        steps += [(number, name, differences(now, dict(_values(_drawn(pictures, number, name)))))
                  for name in about.get(number, ())]
        before = now
    return Film(_drawn(pictures, 0), tuple(places), tuple(strings), tuple(changes), tuple(steps))


def _drawn(pictures: Pictures, number: int, step: str = "") -> str:
    return pictures.svg(number, step, styled=False, every=True)


def _values(svg: str) -> Iterator[tuple[Place, str]]:
    """Every attribute and every text of a picture."""
    for number, element in enumerate(ElementTree.fromstring(svg).iter()):
        yield from (((number, name), value) for name, value in element.attrib.items())
        if not len(element):
            yield (number, TEXT), element.text or ""
