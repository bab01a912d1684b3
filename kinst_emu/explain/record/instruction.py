"""Recorded instructions, each with the registers before its execution."""

from dataclasses import dataclass

from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine

LONGEST = 16  # number of bytes to read when the length of an instruction is unknown
PAGE = 4096


@dataclass(frozen=True)
class SeenInstruction:
    """An executed instruction, with the registers before its execution.

    :param registers: the general registers and the flags, before it.
    :param returns_to: the system register that holds the return address of an exception, before
        it; None if the architecture has none.
    """

    address: int
    code: bytes
    registers: dict[str, int]
    returns_to: int | None = None


def seen_instruction(machine: Machine, address: int, code: bytes | None = None,
                     system: str | None = None) -> SeenInstruction:
    """Return a record of the instruction that is executed next.

    :param code: its bytes; None: read them from memory (empty if it is not mapped).
    :param system: name of the register for ``returns_to``, if any.
    """
    registers = {name: machine.read_register(name) for name in machine.arch.registers}
    registers[machine.arch.pc] = address
    if code is None:
        code = code_at(machine, address)
    return SeenInstruction(address, code, registers,
                           machine.read_register(system) if system else None)


def code_at(machine: Machine, address: int) -> bytes:
    """Return the bytes of the instruction at ``address``, or empty bytes if none is mapped."""
    # If the next page is not mapped, read only up to the end of this page.
    for size in (LONGEST, -address & PAGE - 1 or LONGEST):
        try:
            code = machine.read(address, size)
        except MemoryAccessError:
            continue
        return code[: machine.arch.instruction_length(code) or 1]
    return b""
