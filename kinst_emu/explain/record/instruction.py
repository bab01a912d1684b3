"""An instruction that a recorder has seen."""

from dataclasses import dataclass

from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine

LONGEST = 16  # bytes that are read to find an instruction's length
PAGE = 4096


@dataclass(frozen=True)
class SeenInstruction:
    """An instruction that was executed.

    :param registers: before it: the general ones and the flags.
    :param returns_to: the system register that a return from an exception goes to then; None: the
        architecture has none.
    """

    address: int
    code: bytes
    registers: dict[str, int]
    returns_to: int | None = None


def seen_instruction(machine: Machine, address: int, code: bytes | None = None,
                     system: str | None = None) -> SeenInstruction:
    """The instruction that is executed next.

    :param code: its bytes; None: those in memory, none where nothing is mapped.
    :param system: the register that ``returns_to`` tells of, if any.
    """
    registers = {name: machine.read_register(name) for name in machine.arch.registers}
    registers[machine.arch.pc] = address
    if code is None:
        code = code_at(machine, address)
    return SeenInstruction(address, code, registers,
                           machine.read_register(system) if system else None)


def code_at(machine: Machine, address: int) -> bytes:
    """An instruction's bytes; empty: nothing is mapped there."""
    # The next page may not be there.
    for size in (LONGEST, -address & PAGE - 1 or LONGEST):
        try:
            code = machine.read(address, size)
        except MemoryAccessError:
            continue
        return code[: machine.arch.instruction_length(code) or 1]
    return b""
