"""Interface for the kernel symbols and probe arguments to which a D program can refer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from dwarf.locations import Place
from dwarf.types import Type
from emu.host.errors import KinstError


class KernelSymbol(NamedTuple):
    """A variable or function of the kernel.

    :param type: None if the debug data do not have it.
    :param module: name of the kernel or module that contains it.
    """

    address: int
    type: Type | None
    module: str


class Surroundings(Protocol):
    """Interface through which the checker asks about a kernel and its probes."""

    def symbol(self, module: str, name: str) -> KernelSymbol | None:
        """Return a variable or function of the kernel, or None if there is no kernel.

        :raises KinstError: if there is no such variable.
        """

    def entered(self, probes: Sequence[Any]) -> None:
        """Prepare for checking a clause that is enabled at the given probes."""

    def argument(self, index: int) -> Type | None:
        """Return the type of ``args[index]`` in the clause being checked."""

    def translated(self, index: int) -> str:
        """Return the C spelling of the type to which ``args[index]`` is translated.

        :return: empty if the argument is not translated.
        """

    def located(self, index: int, typed: bool) -> "Located | None":
        """Return the locations of an argument that is missing from some firing contexts, or None.

        :param typed: whether the argument is ``args[index]`` rather than ``argN``.
        :return: None if all contexts hold the argument.
        :raises KinstError: if the probes' functions are of different types, or have no such
            argument.
        """

    def local(self, name: str) -> "Located":
        """Return the locations of a local variable at the probes of the clause being checked.

        :raises KinstError: if none of the probes has such a variable.
        """

    @property
    def registers(self) -> Mapping[int, int]:
        """Mapping from DWARF register numbers to indices in ``regs[]``."""


@dataclass(frozen=True)
class Located:
    """An argument that is missing from the firing contexts of some probes, or a local variable.

    :param what: description of the argument for messages.
    :param places: where the argument is, by probe ID; None where that is unknown.
    :param others: whether the clause has other probes, whose contexts hold the argument.
    :param nowhere: error to raise if none of ``places`` is known; empty if each firing ends with an
        error instead.
    :param partly: callback that reports that the argument is known only at some of the probes.
    """

    what: str
    type: Type
    places: Mapping[int, Place | None]
    others: bool
    nowhere: str
    partly: Callable[[int, int], None]


class Nowhere:
    """Surroundings of a program that runs without a kernel."""

    def symbol(self, module: str, name: str) -> KernelSymbol | None:
        """Return None: there are no kernel symbols."""
        return None

    def entered(self, probes: Sequence[Any]) -> None:
        """Do nothing, since the probes have no typed arguments."""
        return

    def argument(self, index: int) -> Type | None:
        """Return None: the probes have no typed arguments."""
        return None

    def translated(self, index: int) -> str:
        """Return an empty string: no argument is translated."""
        return ""

    def located(self, index: int, typed: bool) -> Located | None:
        """Return None: the contexts hold all arguments."""
        return None

    def local(self, name: str) -> Located:
        """Refuse: there are no local variables.

        :raises KinstError: always.
        """
        raise KinstError(f"local->{name}: local variables need a kernel (-k)")

    @property
    def registers(self) -> Mapping[int, int]:
        """An empty mapping: there are no registers."""
        return {}
