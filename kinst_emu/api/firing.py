"""What a probe's function is given when the probe fires."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dtrace.stacks.stack import DEFAULT_FRAMES
from dwarf.locations import Place
from dwarf.placed import value_at
from dwarf.types import Procedure, declare
from dwarf.values import Value, from_bits
from emu.host.errors import KinstError
from kinst.probes.probe_table import Probe
from kinst.relocation.trap import TRAPS
from kinst_emu.api.inspected import Inspected
from kinst_emu.api.registers import Registers

# (prototype, the place of each parameter at a probe; None where it cannot be known)
Placed = tuple[Procedure, list[Place | None]]


@dataclass(frozen=True)
class Fired:
    """The record of a firing.

    :param probe: ``provider:module:function:name``.
    :param instructions: that the guest had executed; None on QEMU, which does not count.
    :param now: virtual nanoseconds since the start of the boot; None on QEMU.
    """

    probe: str
    instructions: int | None
    now: int | None


class FiringArguments(Mapping[str, Value]):
    """A function's arguments by name; each is read when it is asked for.

    One that cannot be read raises a KinstError that says why, and leaves the others readable.
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
    """A firing of a probe: the guest stands before the probed instruction, or, where a function
    that left by a tail call returns, in its caller.

    It can be read while the probe's function runs.  Later only its names and its address remain;
    anything else raises a KinstError.

    :param placed: gives the prototype of the probe's function and the places of its arguments.
    :param returned: whether the function has returned to its caller already: it left by a tail
        call, at ``address``.
    """

    def __init__(self, machine: Inspected, probe: Probe, read: Callable[[str], int],
                 placed: Callable[[Probe], Placed], returned: bool = False) -> None:
        self.machine, self.returned = machine, returned
        self._probe, self._read_now, self._placed = probe, read, placed
        self._over = False

    def _present(self) -> None:
        """Check that the firing is not over.

        :raises KinstError: after the probe's function has returned.
        """
        if self._over:
            raise KinstError(f"{self.probe}: the firing is over: keep what is needed of it in the "
                             "probe's function")

    def _read(self, register: str) -> int:
        self._present()
        return self._read_now(register)

    def end(self) -> None:
        """The probe's function has returned."""
        self._over = True

    @property
    def probe(self) -> str:
        """``provider:module:function:name``, like ``kinst:kernel:strlen:4``."""
        return full_name(self._probe)

    @property
    def function(self) -> str:
        return self._probe.function

    @property
    def name(self) -> str:
        """The last part: ``entry``, ``return``, or the offset in the function."""
        return self._probe.name

    @property
    def address(self) -> int:
        """Of the probed instruction."""
        return self._probe.instruction.address

    @property
    def instructions(self) -> int:
        """Executed by the guest so far."""
        self._present()
        return self.machine.instructions

    @property
    def now(self) -> int:
        """Virtual nanoseconds since the start of the boot."""
        self._present()
        return self.machine.now

    @property
    def registers(self) -> Registers:
        """The interrupted registers."""
        return Registers(tuple(self.machine.emulated.arch.registers), self._read)

    @property
    def args(self) -> FiringArguments:
        """The function's arguments by name, with their types.

        At a function's entry the calling convention says where they are, elsewhere the debug data.
        Reading one that neither of them knows raises KinstError, as does a structure or number
        with a floating-point part.

        :raises KinstError: at a return, and where the function's type is not known.
        """
        procedure, _places = self._placed(self._probe)
        names = [p.name or f"arg{i}" for i, p in enumerate(procedure.parameters)]
        return FiringArguments(names, self._argument)

    def arg(self, which: int | str) -> Value:
        """One of the arguments, by name, or by number from 0.

        :raises KinstError: as of ``args``.
        """
        procedure, _places = self._placed(self._probe)
        names = [p.name for p in procedure.parameters]
        number = names.index(which) if which in names else which
        if not isinstance(number, int) or not 0 <= number < len(names):
            raise KinstError(f"{declare(procedure, self.function)}: has no argument '{which}'")
        return self._argument(number)

    @property
    def result(self) -> Value:
        """What the function returns, typed; where it returns.

        :raises KinstError: elsewhere.
        """
        arch = self.machine.emulated.arch
        trap = TRAPS[arch.name]
        if not self.returned and not trap.instructions.is_return(self._probe.instruction.code):
            raise KinstError(f"{self.probe}: the function does not return at this instruction")
        kind = self.machine.prototype(self.function, self._start).result
        return from_bits(self.machine, kind, self._read(arch.result))

    def stack(self, frames: int = DEFAULT_FRAMES) -> list[str]:
        """The stack, a line for each frame, with inline functions and source lines."""
        return [line.strip() for line in
                self.machine.stacks.text(self._read, frames, self.returned)]

    @property
    def _start(self) -> int:
        return self.address - self._probe.instruction.offset

    def _argument(self, number: int) -> Value:
        procedure, places = self._placed(self._probe)
        parameter, place = procedure.parameters[number], places[number]
        if place is None:
            raise KinstError(f"{self.probe}: argument {number + 1} of "
                             f"{declare(procedure, self.function)} cannot be known here")
        names = self.machine.emulated.arch.dwarf_registers
        return value_at(place, parameter.type, lambda n: self._read(names[n]), self.machine)

    def __repr__(self) -> str:
        return f"<{self.probe} at {self.address:#x}>"


def full_name(probe: Probe) -> str:
    return f"{probe.provider}:{probe.module}:{probe.function}:{probe.name}"
