"""What a program can refer to beside itself: a kernel's symbols, and the arguments of probes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dwarf.locations import Location
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

    def located(self, index: int) -> "Located | None":
        """Where ``args[index]`` is at those of its probes that stand for inline copies; None where
        there are none.

        :raises KinstError: when their functions are different ones.
        """

    @property
    def registers(self) -> Mapping[int, int]:
        """The numbers of registers in ``regs[]``, by DWARF's."""


@dataclass(frozen=True)
class Located:
    """A parameter of an inline function.

    :param places: by the ID of a probe; None where the compiler does not keep it.
    :param others: whether the clause has other probes too.
    :param partly: says of how many probes it is kept, where it is not at all.
    """

    name: str
    function: str
    type: Type
    places: Mapping[int, Location | None]
    others: bool
    partly: Callable[[str], None]


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

    def located(self, index: int) -> Located | None:
        return None

    @property
    def registers(self) -> Mapping[int, int]:
        return {}
