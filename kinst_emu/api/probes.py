"""Probes enabled by a Python program."""

from collections.abc import Callable
from typing import Self

from dtrace.debug.debug_index import debug_index
from dtrace.debug.kernel_types import kernel_types
from dtrace.descriptions import description
from dwarf.dwarf_types import DwarfTypes
from dwarf.index import Function
from dwarf.linked_types import LinkedTypes
from emu.elf.symbols import Symbol
from emu.host.errors import KinstError
from kinst.probes.arguments import Arguments
from kinst.probes.breakpoints import Breakpoints
from kinst.probes.probe_table import Probe
from kinst.probes.probed_code import ProbeError
from kinst.probes.seam_breakpoints import SeamBreakpoints
from kinst_emu.api.firing import Fired, Firing, Placed, full_name
from kinst_emu.api.inspected import Inspected

MAX_KEPT = 1_000_000  # maximum number of recorded firings
Fire = Callable[[Firing], object]


class Probes:
    """Probes that match one description, enabled until they are closed; a context manager."""

    def __init__(self, machine: Inspected, remove: "Callable[[Probes], None]", wanted: str,
                 fire: Fire | None, unsafe: bool) -> None:
        self._remove = remove
        self._machine, self._fire, self._unsafe = machine, fire, unsafe
        self._wanted = wanted
        self._numbers: list[int] = []
        self.names: list[str] = []  # full probe names, provider:module:function:name
        self.count = 0  # number of firings
        self.closed = False
        self.records: list[Fired] = []  # firings; recorded only if there is no callback
        self._arguments: Arguments | None = None
        self._copies: dict[int, list[Function]] = {}
        self._places: dict[int, Placed] = {}
        self._table: Breakpoints | SeamBreakpoints | None = None

    def make(self, breakpoints: Breakpoints | SeamBreakpoints) -> list[int]:
        """Create the probes in a table of breakpoints, and return their numbers."""
        kernel = breakpoints.image
        try:
            made = description.create(
                breakpoints, description.parse(self._wanted), self._unsafe,
                lambda: debug_index(kernel), lambda: kernel_types(kernel))
        except ProbeError as error:
            raise KinstError(str(error)) from None
        self.names = [full_name(breakpoints.probe(number)) for number in made.numbers]
        self._table, self._copies = breakpoints, made.copies
        self._places.clear()
        self._arguments = None
        return list(made.numbers)

    def fired(self, probe: Probe, read: Callable[[str], int]) -> None:
        """Count a firing, and call the callback or record the firing."""
        self.count += 1
        if self._fire is not None:
            assert self._table is not None
            firing = Firing(self._machine, probe, read, self._placed, self._table.after)
            try:
                self._fire(firing)
            finally:
                firing.end()
        elif len(self.records) < MAX_KEPT:
            m = self._machine.emulated
            self.records.append(Fired(full_name(probe), m.instructions if m.counts else None,
                                      m.now if m.counts else None))

    def _placed(self, probe: Probe) -> Placed:
        """Return the prototype of a probe's function, and the argument locations at the probe."""
        number = probe.id - 1
        if number not in self._places:
            self._places[number] = self._place(probe)
        return self._places[number]

    def _place(self, probe: Probe) -> Placed:
        machine, table, number = self._machine, self._table, probe.id - 1
        assert table is not None
        types = machine.kernel.prototypes.types()
        if copies := self._copies.get(number, []):
            known = [placed for copy in copies if isinstance(types, DwarfTypes | LinkedTypes)
                     and (placed := types.inlined(copy, probe.instruction.address)) is not None]
            if len(known) != 1:
                raise KinstError(f"{full_name(probe)}: the arguments of the inline copies that "
                                 "begin at this address are unknown or ambiguous")
            return known[0]
        function = table.function(number)
        if function is None or probe.name == "return":
            raise KinstError(f"{full_name(probe)}: arguments are not available at this probe: use "
                             f"fbt::{probe.function}:entry")
        if self._arguments is None:
            self._arguments = Arguments(table, types)
        offset = table.offset(number)
        procedure = self._arguments.procedure(function)
        if procedure is None:
            return self._untyped(function, offset)
        return procedure, self._arguments.by_type(function, offset)

    def _untyped(self, function: Symbol, offset: int) -> Placed:
        """Locate the arguments of a C library function in a kernel without debug data."""
        assert self._arguments is not None
        procedure = self._machine.prototype(function.name, function.address)
        return procedure, [self._arguments.by_number(function, offset, n)
                           for n in range(len(procedure.parameters))]

    def close(self) -> None:
        """Disable the probes, after waiting for any other thread that is using the machine."""
        with self._machine.turn.waited():
            self._remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self._wanted}: {len(self.names)} probes, {self.count} firings>"
