"""Firings of probes, as passed to a probe's callback."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dtrace.stacks.locals import MAX_ENTERED, Locals
from dtrace.stacks.stack import DEFAULT_FRAMES
from dwarf.debug_file import DebugDataError
from dwarf.locations import Place
from dwarf.placed import value_at
from dwarf.types import Procedure, declare
from dwarf.values import Value, from_bits
from emu.host.errors import KinstError
from kinst.probes.probe_table import Probe
from kinst.relocation.trap import TRAPS
from kinst_emu.api.inspected import Inspected
from kinst_emu.api.registers import Registers

# The prototype of a function, and the location of each parameter at a probe, or None if unknown.
Placed = tuple[Procedure, list[Place | None]]


@dataclass(frozen=True)
class Fired:
    """Record of one firing.

    :param probe: full name of the probe, ``provider:module:function:name``.
    :param instructions: number of instructions that the guest had executed; None on QEMU, which
        does not count them.
    :param now: virtual time in nanoseconds since the start of the boot; None on QEMU.
    """

    probe: str
    instructions: int | None
    now: int | None


class FiringArguments(Mapping[str, Value]):
    """Arguments of the probed function by name, read from the guest on access.

    Reading an argument that is not available raises a KinstError with the reason; the other
    arguments remain readable.
    """

    def __init__(self, names: list[str], read: Callable[[int], Value]) -> None:
        self._names, self._read_one = names, read

    def __getitem__(self, name: str) -> Value:
        if name not in self._names:
            raise KeyError(name)
        return self._read_one(self._names.index(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        shown = []
        for name in self._names:
            try:
                shown.append(f"{name}={self[name]!r}")
            except KinstError:
                shown.append(f"{name}=?")
        return f"<arguments {', '.join(shown)}>"


class Firing:
    """Firing of a probe, with the guest stopped before the probed instruction.

    When a function that left by a tail call returns, the guest is stopped in the function's caller
    instead.

    The guest can be read while the probe's callback runs.  Afterwards only the names and the
    address remain; anything else raises a KinstError.

    :param placed: returns the prototype of the probe's function and the locations of its arguments.
    :param returned: whether the function has already returned to its caller, after leaving by a
        tail call at ``address``.
    """

    def __init__(self, machine: Inspected, probe: Probe, read: Callable[[str], int],
                 placed: Callable[[Probe], Placed], returned: bool = False) -> None:
        self.machine, self.returned = machine, returned
        self._probe, self._read_now, self._placed = probe, read, placed
        self._over = False

    def _present(self) -> None:
        """Check that the probe's callback is still running.

        :raises KinstError: after the callback has returned.
        """
        if self._over:
            raise KinstError(f"{self.probe}: the firing is over: read its data in the probe's "
                             "callback")

    def _read(self, register: str) -> int:
        self._present()
        return self._read_now(register)

    def end(self) -> None:
        """Mark the firing as over; called after the probe's callback has returned."""
        self._over = True

    @property
    def probe(self) -> str:
        """Full name of the probe, such as ``kinst:kernel:strlen:4``."""
        return full_name(self._probe)

    @property
    def function(self) -> str:
        """Name of the probed function."""
        return self._probe.function

    @property
    def name(self) -> str:
        """Name of the probe within its function: ``entry``, ``return`` or an instruction offset."""
        return self._probe.name

    @property
    def address(self) -> int:
        """Address of the probed instruction."""
        return self._probe.instruction.address

    @property
    def instructions(self) -> int:
        """Number of instructions that the guest has executed since the start of the boot.

        :raises MachineError: on QEMU, which does not count them.
        """
        self._present()
        return self.machine.instructions

    @property
    def now(self) -> int:
        """Virtual time in nanoseconds since the start of the boot.

        :raises MachineError: on QEMU, which has no virtual time.
        """
        self._present()
        return self.machine.now

    @property
    def registers(self) -> Registers:
        """General registers of the interrupted code, by name."""
        return Registers(tuple(self.machine.emulated.arch.registers), self._read)

    @property
    def args(self) -> FiringArguments:
        """Arguments of the probed function by name, with their C types.

        At a function's entry the calling convention determines where the arguments are, elsewhere
        the debug data does.  Reading an argument that neither of them locates raises KinstError;
        so does reading a floating-point number, or a structure that contains one.

        :raises KinstError: at a return, or when the function's prototype is unknown.
        """
        procedure, _places = self._placed(self._probe)
        names = [p.name or f"arg{i}" for i, p in enumerate(procedure.parameters)]
        return FiringArguments(names, self._argument)

    def arg(self, which: int | str) -> Value:
        """Return the argument with a given name or number; arguments are numbered from 0.

        :raises KinstError: as for ``args``, or when the function has no such argument.
        """
        procedure, _places = self._placed(self._probe)
        names = [p.name for p in procedure.parameters]
        number = names.index(which) if which in names else which
        if not isinstance(number, int) or not 0 <= number < len(names):
            raise KinstError(f"{declare(procedure, self.function)} has no argument '{which}'")
        return self._argument(number)

    @property
    def result(self) -> Value:
        """Return value of the function with its C type, available only where the function returns.

        :raises KinstError: at any other instruction.
        """
        arch = self.machine.emulated.arch
        trap = TRAPS[arch.name]
        if not self.returned and not trap.instructions.is_return(self._probe.instruction.code):
            raise KinstError(f"{self.probe}: a return value is not available: the function does "
                             "not return at this instruction")
        result_type = self.machine.prototype(self.function, self._start).result
        return from_bits(self.machine, result_type, self._read(arch.result))

    def stack(self, frames: int = DEFAULT_FRAMES) -> list[str]:
        """Return the call stack, one line per frame, with inline functions and source lines."""
        return [line.strip() for line in
                self.machine.stacks.text(self._read, frames, self.returned)]

    @property
    def _start(self) -> int:
        return self.address - self._probe.instruction.offset

    def _argument(self, number: int) -> Value:
        procedure, places = self._placed(self._probe)
        parameter, place = procedure.parameters[number], places[number]
        unknown = (f"{self.probe}: the location of argument {number + 1} of "
                   f"{declare(procedure, self.function)} is unknown at this instruction")
        if place is None:
            raise KinstError(unknown)
        names = self.machine.emulated.arch.dwarf_registers

        def entered(register: int) -> int:
            """Return the value of a register at the function's entry, from its callers."""
            variables = Locals(self.machine.emulated, stacks=self.machine.stacks)
            try:
                return variables.entered(variables.frames(self._read, MAX_ENTERED), 0, register)
            except DebugDataError as error:
                raise KinstError(f"{unknown}: {error}") from None

        return value_at(place, parameter.type, lambda n: self._read(names[n]), self.machine,
                        entered)

    def __repr__(self) -> str:
        return f"<{self.probe} at {self.address:#x}>"


def full_name(probe: Probe) -> str:
    """Return the full name of a probe, ``provider:module:function:name``."""
    return f"{probe.provider}:{probe.module}:{probe.function}:{probe.name}"
