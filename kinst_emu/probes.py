"""Probes that a Python program has enabled."""

from collections.abc import Callable
from typing import Self

from dtrace import description
from dtrace.debug_index import debug_index
from dtrace.kernel_types import kernel_types
from emu.errors import KinstError
from kinst.breakpoints import Breakpoints
from kinst.probe_table import Probe, ProbeError
from kinst.seam_breakpoints import SeamBreakpoints
from kinst_emu.firing import Fired, Firing, full_name
from kinst_emu.inspected import Inspected

MAX_KEPT = 1_000_000  # records of firings
Fire = Callable[[Firing], object]


class Probes:
    """Probes of one description, enabled until they are closed; a context manager."""

    def __init__(self, machine: Inspected, remove: "Callable[[Probes], None]", wanted: str,
                 fire: Fire | None, unsafe: bool) -> None:
        self._remove = remove
        self._machine, self._fire, self._unsafe = machine, fire, unsafe
        self._wanted = wanted
        self._numbers: list[int] = []
        self.names: list[str] = []  # of the probes, provider:module:function:name
        self.count = 0  # firings
        self.closed = False
        self.records: list[Fired] = []  # of the firings, where no function is called

    def make(self, breakpoints: Breakpoints | SeamBreakpoints) -> list[int]:
        """Make the probes in a table."""
        kernel = breakpoints.image
        try:
            made = description.create(
                breakpoints, description.parse(self._wanted), self._unsafe,
                lambda: debug_index(kernel), lambda: kernel_types(kernel))
        except ProbeError as error:
            raise KinstError(str(error)) from None
        self.names = [full_name(breakpoints.probe(number)) for number in made.numbers]
        return made.numbers

    def fired(self, probe: Probe, read: Callable[[str], int]) -> None:
        self.count += 1
        if self._fire is not None:
            self._fire(Firing(self._machine, probe, read))
        elif len(self.records) < MAX_KEPT:
            m = self._machine.emulated
            self.records.append(Fired(full_name(probe), m.instructions if m.counts else None,
                                      m.now if m.counts else None))

    def close(self) -> None:
        """Disable the probes."""
        self._remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self._wanted}: {len(self.names)} probes, {self.count} firings>"
