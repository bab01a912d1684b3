"""Base class of probe providers, and the types of their input and output."""

from abc import ABC, abstractmethod
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from dwarf.debug_file import DebugDataError
from dwarf.index import DebugIndex, Function
from dwarf.types import Types
from emu.elf.program import ProgramFile
from emu.host.printable import counted
from kinst.probes.probe_table import ProbeTable
from kinst.probes.traced_program import TracedProgram
from kinst.providers.patterns import is_glob, matches


class InlineFunctions(Protocol):
    """Inline functions of a program or shared object, by the names of their symbols."""

    def copies(self, symbol: str) -> list[Function]:
        """Return the inline copies of the function whose symbol has a name."""
        ...

    def is_declared(self, symbol: str) -> bool:
        """Return whether there is such a function, with code or without."""
        ...

    def symbols(self, name: str) -> list[str]:
        """Return the symbols of inline functions with a name, which may be that of a method."""
        ...


@dataclass(frozen=True)
class Wanted:
    """Probes that a description requests from a provider.

    :param text: the description, for messages.
    :param function: a name or a shell pattern; empty for every function.
    :param name: the last part of the description, in the same form.
    :param unsafe: whether to probe excluded functions, too.
    :param index: returns the debug data; raises DebugDataError if there is none.
    :param module: the modules, in the same form; likewise ``provider``.
    :param types: returns the kernel's types; raises DebugDataError if there is no debug data.
    :param program: returns the program that a process runs, by the process number; raises
        KinstError.
    :param programs: returns the programs that a process runs, one after the other, by the process
        number; None: those of all processes, also of later ones.  Raises KinstError.
    :param debug: returns the inline functions of a program or shared object, or None if it has no
        debug data; raises DebugDataError if that is damaged.
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
    programs: Callable[[int | None], Sequence[TracedProgram]] | None = None
    debug: Callable[[ProgramFile], InlineFunctions | None] | None = None


@dataclass(frozen=True)
class MadeProbes:
    """Probes that were created for a description.

    :param numbers: the numbers of the probes.
    :param text: the descriptions of what was probed, as ``dtrace -d`` prints them.
    :param reports: messages about parts of the description that cannot be probed.
    :param copies: probe number -> the inline copies that are entered at the probe.
    """

    numbers: MutableSequence[int]
    text: list[str]
    reports: list[str]
    copies: dict[int, list[Function]] = field(default_factory=dict)

    def add(self, more: "MadeProbes") -> None:
        """Add the probes that were created for another part of the description."""
        self.numbers.extend(more.numbers)
        self.text.extend(more.text)
        self.reports.extend(more.reports)
        self.copies.update(more.copies)


def inlined_only(probes: ProbeTable, wanted: Wanted) -> str:
    """Return a hint if a missing function exists as inline copies, otherwise an empty string."""
    if wanted.index is None or is_glob(wanted.function) or probes.image.symbols.named(
            wanted.function):
        return ""
    try:
        copies = len(wanted.index().copies(wanted.function))
    except DebugDataError:
        return ""
    return (f"; it exists only as {counted(copies, 'inline copy')}; probe them with "
            f"kinst::{wanted.function}:entry and :return" if copies else "")


class Provider(ABC):
    """Base class of probe providers."""

    name: ClassVar[str]

    def matches(self, pattern: str) -> bool:
        """Return whether the first part of a description selects this provider."""
        return matches(pattern, self.name)

    @abstractmethod
    def create(self, probes: ProbeTable, wanted: Wanted) -> MadeProbes:
        """Create the probes that a description requests.

        :raises ProbeError: when no probe can be created; the message says why.
        """
