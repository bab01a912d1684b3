"""Probes on inline copies in a program: ``pid17:MODULE:NAME:entry`` and ``:return``.

``kinst/providers/copy_ends.py`` says where they are.  Like the kinst provider's, they have the name
of the function that contains the copy, and an offset.
"""

from collections.abc import Sequence
from dataclasses import replace

from dwarf.debug_file import DebugDataError
from dwarf.index import Function
from emu.elf.program import END
from emu.elf.symbols import Symbol
from emu.host.errors import ImageError
from emu.host.printable import counted
from kinst.probes.probe_table import CopyEnd, ProbeTable
from kinst.probes.traced_program import TracedObject
from kinst.providers.copy_ends import CopiedInto
from kinst.providers.provider import MadeProbes, Wanted


class _Object(CopiedInto):
    """The code of an object that a process has mapped.

    :param process: the process ID.
    :param program: the program's number, from ``ProbeTable.add_program``.
    """

    def __init__(self, probes: ProbeTable, where: str, process: int, program: int,
                 one: TracedObject) -> None:
        super().__init__(probes, where)
        self._process, self._program, self._one = process, program, one

    @property
    def program(self) -> int:
        return self._program

    def function_at(self, address: int) -> Symbol | None:
        found = self._one.file.symbols.function_at(address - self._one.moved)
        return None if found is None else replace(found, address=found.address + self._one.moved)

    def is_wanted(self, caller: Symbol) -> bool:
        return True

    def refusal(self, caller: Symbol) -> str:
        try:
            self._code(caller)
        except ImageError:
            return "is not in the file"
        return ""

    def add_ends(self, caller: Symbol, copies: Sequence[tuple[int, int | None, bool]], entry: bool,
                 returns: bool) -> list[tuple[list[CopyEnd], list[CopyEnd]]]:
        return self.probes.add_copy_ends_in_program(
            self._program, caller, self._code(caller), copies, entry, returns)

    def end(self, caller: Symbol, offset: int) -> str:
        return f"pid{self._process}:{self._one.name}:{caller.name}:{offset:x}"

    def _code(self, caller: Symbol) -> bytes:
        return self._one.file.code(replace(caller, address=caller.address - self._one.moved))


def create(probes: ProbeTable, process: int, program: int, one: TracedObject,
           copies: Sequence[Function], wanted: Wanted) -> MadeProbes:
    """Create the ``entry`` or ``return`` probes of inline copies of a function in an object.

    :param process: the process ID.
    :param program: the program's number, from ``ProbeTable.add_program``.
    :param copies: as in the object's file.
    """
    moved = one.moved
    own = {copy.number: copy for copy in copies if all(
        0 <= low <= high and low + moved >= 0 and high + moved < END for low, high in copy.pieces)}
    made = _Object(probes, wanted.text, process, program, one).create(
        [replace(copy, pieces=tuple((low + moved, high + moved) for low, high in copy.pieces),
                 begins=None if copy.begins is None else copy.begins + moved)
         for copy in own.values()], wanted.name)
    outside = len(copies) - len(own)
    if outside:
        made.reports.append(f"{wanted.text}: {counted(outside, 'inline copy')} outside the address "
                            f"space of programs: damaged debug data in {one.file.path}")
    return replace(made, copies={number: [own[copy.number] for copy in found]
                                 for number, found in made.copies.items()})


def copies_in(one: TracedObject, wanted: Wanted, reports: list[str]) -> list[Function]:
    """Return the inline copies of the wanted function in an object; report damaged debug data."""
    try:
        functions = None if wanted.debug is None else wanted.debug(one.file)
        return [] if functions is None else functions.copies(wanted.function)
    except DebugDataError as error:
        reports.append(f"{wanted.text}: the inline copies are unknown: {error}")
        return []


def why_none(objects: Sequence[TracedObject], wanted: Wanted) -> str:
    """Return why a function has no inline copies in objects, as the end of a message, or ""."""
    if wanted.debug is None:
        return ""
    found = [functions for one in objects if (functions := wanted.debug(one.file)) is not None]
    names = [name for functions in found for name in functions.symbols(wanted.function)]
    if names:
        return (f"; in C++, inline functions have the names of symbols: {', '.join(names[:3])}"
                + " and others" * (len(names) > 3))
    if any(functions.is_declared(wanted.function) for functions in found):
        return "; the debug data has no code for it: its inline copies were optimized away"
    return "" if found else (
        "; an inline function has probes only if there is DWARF (compile with -g)")
