"""All moments of what happened in one picture: what is to be set in it to come from each scene to
the next."""

from collections.abc import Sequence
from dataclasses import dataclass

from kinst_emu.explain.view.pictures import Pictures
from kinst_emu.explain.view.scene import Moment
from kinst_emu.explain.view.svg import Element, cleaned, picture

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

    def moment_of(self, step: str) -> int | None:
        """None: it has no such step."""
        return next((moment for moment, name, _own in self.steps if name == step), None)


@dataclass(frozen=True)
class Showing:
    """Films that are shown together: each step begins in all of them at once, and one that comes
    to a step's end sooner waits for the others.

    :param films: by their names; of one alone, the name is empty.
    :param beats: the numbers of the moments, one of each film, that are to be seen at a time.
    :param steps: the number of the beat at which each begins, and its name.
    """

    films: dict[str, Film]
    beats: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[int, str], ...]

    def for_script(self) -> dict[str, object]:
        """As JSON, without the pictures."""
        return {"films": [one.for_script() for one in self.films.values()], "beats": self.beats,
                "steps": self.steps}


def together(films: dict[str, Film], order: Sequence[str]) -> Showing:
    """:param order: the names of the steps; not each film has all."""
    at = [0] * len(films)
    beats, steps = [tuple(at)], list[tuple[int, str]]()

    def go_on(to: Sequence[int]) -> None:
        nonlocal at
        while any(now < then for now, then in zip(at, to, strict=True)):
            at = [min(now + 1, max(now, then)) for now, then in zip(at, to, strict=True)]
            beats.append(tuple(at))

    for name in order:
        moments = [film.moment_of(name) for film in films.values()]
        if any(moment is not None for moment in moments):
            go_on([now if moment is None else moment
                   for now, moment in zip(at, moments, strict=True)])
            steps.append((len(beats) - 1, name))
    go_on([len(film.changes) - 1 for film in films.values()])
    return Showing(films, tuple(beats), tuple(steps))


def alone(found: Film) -> Showing:
    """A film, moment by moment."""
    return together({"": found}, [name for _moment, name, _own in found.steps])


def film(pictures: Pictures[Moment]) -> Film:
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
    """Every attribute and every text of a picture."""
    found: Values = {}
    for number, element in enumerate(drawn.all()):
        found |= {(number, name): cleaned(value) for name, value in element.attributes.items()
                  if name != "xmlns"}
        if not element.inside:
            found[number, TEXT] = cleaned(element.text)
    return found
