"""What a probe's function is given when the probe fires."""

from collections.abc import Callable
from dataclasses import dataclass

from dtrace.stack import DEFAULT_FRAMES
from dwarf.types import Enumeration, Integer, Pointer, Procedure, declare, strip
from dwarf.values import Value, from_bits
from emu.errors import KinstError
from kinst.probe_table import Probe
from kinst.trap import TRAPS
from kinst_emu.inspected import Inspected
from kinst_emu.registers import Registers

ENTRIES = (("fbt", "entry"), ("kinst", "0"))  # where arguments are still in their registers


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


class Firing:
    """A probe fires: the guest stands before the probed instruction.  Only while its function runs.
    """

    def __init__(self, machine: Inspected, probe: Probe, read: Callable[[str], int]) -> None:
        self.machine = machine
        self._probe, self._read = probe, read

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
        return self.machine.instructions

    @property
    def now(self) -> int:
        """Virtual nanoseconds since the start of the boot."""
        return self.machine.now

    @property
    def registers(self) -> Registers:
        """The interrupted registers."""
        return Registers(tuple(self.machine.emulated.arch.registers), self._read)

    @property
    def args(self) -> dict[str, Value]:
        """The function's arguments by name, typed; where the function is entered.

        :raises KinstError: elsewhere, and where the function's type is not known.
        """
        procedure = self._procedure()
        return {p.name or f"arg{i}": self._argument(procedure, i)
                for i, p in enumerate(procedure.parameters)}

    def arg(self, which: int | str) -> Value:
        """One of the arguments, by name, or by number from 0."""
        procedure = self._procedure()
        names = [p.name for p in procedure.parameters]
        number = names.index(which) if which in names else which
        if not isinstance(number, int) or not 0 <= number < len(names):
            raise KinstError(f"{declare(procedure, self.function)}: has no argument '{which}'")
        return self._argument(procedure, number)

    @property
    def result(self) -> Value:
        """What the function returns, typed; where it returns.

        :raises KinstError: elsewhere, behind which no result stands yet (a tail call).
        """
        arch = self.machine.emulated.arch
        trap = TRAPS[arch.name]
        if not trap.is_return(self._probe.instruction.code):
            raise KinstError(f"{self.probe}: the function does not return at this instruction")
        kind = self.machine.prototype(self.function, self._start).result
        return from_bits(self.machine, kind, self._read(arch.result))

    def stack(self, frames: int = DEFAULT_FRAMES) -> list[str]:
        """The stack, a line for each frame, with inline functions and source lines."""
        return [line.strip() for line in self.machine.stacks.text(self._read, frames)]

    @property
    def _start(self) -> int:
        return self.address - self._probe.instruction.offset

    def _procedure(self) -> Procedure:
        if (self._probe.provider, self.name) not in ENTRIES:
            raise KinstError(f"{self.probe}: arguments are known only where a function is entered: "
                             f"fbt::{self.function}:entry")
        return self.machine.prototype(self.function, self._start)

    def _argument(self, procedure: Procedure, number: int) -> Value:
        """Each of one register: so do the calling conventions pass integers and pointers."""
        registers = self.machine.emulated.arch.arguments
        where = f"{declare(procedure, self.function)}: argument {number + 1}"
        for parameter in procedure.parameters[: number + 1]:
            kind = strip(parameter.type)
            if not isinstance(kind, Integer | Enumeration | Pointer) or (
                    not isinstance(kind, Pointer) and kind.size > 8):
                raise KinstError(f"{where}: not known where {declare(parameter.type)} is passed")
        if number >= len(registers):
            raise KinstError(f"{where} is not in a register")
        return from_bits(self.machine, procedure.parameters[number].type,
                         self._read(registers[number]))

    def __repr__(self) -> str:
        return f"<{self.probe} at {self.address:#x}>"


def full_name(probe: Probe) -> str:
    return f"{probe.provider}:{probe.module}:{probe.function}:{probe.name}"
