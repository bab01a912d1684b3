"""What a program can refer to beside itself: a kernel's symbols, and the arguments of probes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dwarf.locations import Place
from dwarf.types import Type


class Surroundings(Protocol):
    """What answers the checker's questions about a kernel."""

    def symbol(self, module: str, name: str) -> tuple[int, Type] | None:
        """Address and type of a kernel's variable.

        :raises KinstError: saying why there is none.
        """

    def entered(self, probes: Sequence[Any]) -> None:
        """A clause for these probes is about to be checked."""

    def argument(self, index: int) -> Type | None:
        """The type of ``args[index]`` in it."""

    def translated(self, index: int) -> str:
        """The type that a translator makes of ``args[index]``, as C spells it; empty: its own."""

    def located(self, index: int, typed: bool) -> "Located | None":
        """Where an argument is at those of the clause's probes that do not have it in their
        context; None when all have it there.

        :param typed: of ``args[index]``; otherwise of ``argN``.
        :raises KinstError: when the probes' functions are of different types, or have no such
            argument.
        """

    @property
    def registers(self) -> Mapping[int, int]:
        """The numbers of registers in ``regs[]``, by DWARF's."""


@dataclass(frozen=True)
class Located:
    """An argument that the contexts of some probes do not hold.

    :param what: names it in messages.
    :param places: by the ID of a probe; None where it cannot be known.
    :param others: whether the clause has other probes, whose contexts hold it.
    :param nowhere: why it is at none of ``places``, as an error of the program; empty when each
        firing is to end with an error instead.
    :param partly: reports in a message that it is known only at some of the probes.
    """

    what: str
    type: Type
    places: Mapping[int, Place | None]
    others: bool
    nowhere: str
    partly: Callable[[int, int], None]


class Nowhere:
    """A program without a kernel."""

    def symbol(self, module: str, name: str) -> tuple[int, Type] | None:
        return None

    def entered(self, probes: Sequence[Any]) -> None:
        return

    def argument(self, index: int) -> Type | None:
        return None

    def translated(self, index: int) -> str:
        return ""

    def located(self, index: int, typed: bool) -> Located | None:
        return None

    @property
    def registers(self) -> Mapping[int, int]:
        return {}
