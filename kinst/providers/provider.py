"""What a provider is: whoever makes probes of a kind, and knows what they tell."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from dwarf.debug_file import DebugDataError
from dwarf.index import DebugIndex, Function
from dwarf.types import Types
from kinst.probes.probe_table import ProbeTable
from kinst.probes.traced_program import TracedProgram
from kinst.providers.patterns import is_glob, matches


@dataclass(frozen=True)
class Wanted:
    """The probes that a description asks a provider for.

    :param text: the description, for messages.
    :param function: a name or a shell pattern; empty for every function.
    :param name: the last part of the description, likewise.
    :param unsafe: also in functions that are excluded.
    :param types: gives the kernel's types, likewise.
    :param module: a name or a shell pattern of the modules, likewise; so ``provider``.
    :param program: gives what a process runs, by its number; raises KinstError.
    :param index: gives the debug data; raises DebugDataError where there is none.
    """

    text: str
    function: str
    name: str
    unsafe: bool = False
    index: Callable[[], DebugIndex] | None = None
    module: str = ""
    provider: str = ""
    types: Callable[[], Types] | None = None
    program: Callable[[int], TracedProgram] | None = None


@dataclass(frozen=True)
class MadeProbes:
    """:param numbers: of the probes a description stands for.
    :param text: what it was rewritten to, as dtrace -d prints it.
    :param reports: what of it cannot be probed.
    :param copies: by its probe's number, the inline copies that are entered there.
    """

    numbers: list[int]
    text: list[str]
    reports: list[str]
    copies: dict[int, list[Function]] = field(default_factory=dict)


def inlined_only(probes: ProbeTable, wanted: Wanted) -> str:
    """What to do about a function that is missing because it is inline in all its callers; empty:
    it is not, or that is not known."""
    if wanted.index is None or is_glob(wanted.function) or probes.image.symbols.named(
            wanted.function):
        return ""
    try:
        copies = len(wanted.index().copies(wanted.function))
    except DebugDataError:
        return ""
    return (f"; it is inline in {copies} places: kinst::{wanted.function}:entry and :return probe "
            "these" if copies else "")


class Provider(ABC):
    """A provider of probes in the kernel's code."""

    name: ClassVar[str]

    def matches(self, pattern: str) -> bool:
        """Whether a description's first part means this provider."""
        return matches(pattern, self.name)

    @abstractmethod
    def create(self, probes: ProbeTable, wanted: Wanted) -> MadeProbes:
        """Make the probes.

        :raises ProbeError: naming what does not fit.
        """
