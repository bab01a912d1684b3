"""Films: the picture of the first moment, and the changes that lead to each later picture."""

from collections.abc import Sequence
from dataclasses import dataclass

from kinst_emu.explain.view.pictures import Pictures
from kinst_emu.explain.view.scene import Moment
from kinst_emu.explain.view.svg import Element, cleaned, picture

TEXT = ""  # used instead of an attribute name for the text of an element
# (index of an SVG element in document order, attribute name)
Place = tuple[int, str]
Values = dict[Place, str]


@dataclass(frozen=True)
class Film:
    """Pictures of all moments of an explanation, stored as the first picture plus changes.

    :param first: the picture of the first moment, as SVG.
    :param places: attributes and texts that ever change.
    :param strings: all values that the places take.
    :param changes: for each moment, the changes since the previous moment as a flat sequence of
        pairs: index of the place, index of the string. Those of the first moment are empty.
    :param steps: for each step, the number of its moment, its name, and the changes that it adds
        to the picture of the moment.
    """

    first: str
    places: tuple[Place, ...]
    strings: tuple[str, ...]
    changes: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[int, str, tuple[int, ...]], ...]

    def for_script(self) -> dict[str, object]:
        """Return the places, strings, changes and steps as JSON values, without the picture."""
        return {"places": self.places, "strings": self.strings, "changes": self.changes,
                "steps": self.steps}

    def moment_of(self, step: str) -> int | None:
        """Return the number of the moment at which a step begins, or None for an unknown step."""
        return next((moment for moment, name, _own in self.steps if name == step), None)


@dataclass(frozen=True)
class Showing:
    """Films that are played side by side, in common units of time called beats.

    Each step begins in all films at the same time; a film that reaches the end of a step early
    waits for the others.

    :param films: the films by name; a single film has an empty name.
    :param beats: for each beat, the number of the moment that each film shows.
    :param steps: for each step, the number of the beat at which it begins, and its name.
    """

    films: dict[str, Film]
    beats: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[int, str], ...]

    def for_script(self) -> dict[str, object]:
        """Return the films, beats and steps as JSON values, without the pictures."""
        return {"films": [one.for_script() for one in self.films.values()], "beats": self.beats,
                "steps": self.steps}


def together(films: dict[str, Film], order: Sequence[str]) -> Showing:
    """Combine films so that each step begins in all films at the same time.

    :param order: names of all steps in their order; a film may lack some of them.
    """
    shown = [0] * len(films)
    beats, steps = [tuple(shown)], list[tuple[int, str]]()

    def go_on(to: Sequence[int]) -> None:
        nonlocal shown
        while any(now < then for now, then in zip(shown, to, strict=True)):
            shown = [min(now + 1, max(now, then)) for now, then in zip(shown, to, strict=True)]
            beats.append(tuple(shown))

    for name in order:
        moments = [film.moment_of(name) for film in films.values()]
        if any(moment is not None for moment in moments):
            go_on([now if moment is None else moment
                   for now, moment in zip(shown, moments, strict=True)])
            steps.append((len(beats) - 1, name))
    go_on([len(film.changes) - 1 for film in films.values()])
    return Showing(films, tuple(beats), tuple(steps))


def alone(found: Film) -> Showing:
    """Return a ``Showing`` of a single film, which shows one moment per beat."""
    return together({"": found}, [name for _moment, name, _own in found.steps])


def film(pictures: Pictures[Moment]) -> Film:
    """Draw all moments of an explanation as a film.

    :raises ValueError: if the pictures of two moments differ in their elements, which is a bug.
    """
    places, strings = dict[Place, int](), dict[str, int]()
    about = {number: [step.name for at, step in pictures.steps if at == number]
             for number, _step in pictures.steps}
    changes, steps = list[tuple[int, ...]](), list[tuple[int, str, tuple[int, ...]]]()

    def differences(before: Values, now: Values) -> tuple[int, ...]:
        if now.keys() != before.keys():
            raise ValueError("the pictures of two moments have different elements")
        return tuple(one for place, value in now.items() if before[place] != value
                     for one in (places.setdefault(place, len(places)),
                                 strings.setdefault(value, len(strings))))

    def drawn(number: int, step: str = "") -> Element:
        return picture(pictures.scenes.scene(number, step), pictures.layout, styled=False,
                       every=True)

    first = drawn(0)
    before = values_of(first)
    for number in range(len(pictures.moments)):
        now = values_of(drawn(number)) if number else before
        changes.append(differences(before, now))
        steps += [(number, name, differences(now, values_of(drawn(number, name))))
                  for name in about.get(number, ())]
        before = now
    return Film(str(first), tuple(places), tuple(strings), tuple(changes), tuple(steps))


def values_of(drawn: Element) -> Values:
    """Return the attribute values and texts of a picture, keyed by element number and attribute."""
    values: Values = {}
    for number, element in enumerate(drawn.all()):
        values |= {(number, name): cleaned(value) for name, value in element.attributes.items()
                   if name != "xmlns"}
        if not element.inside:
            values[number, TEXT] = cleaned(element.text)
    return values
