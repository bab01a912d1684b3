"""Operands of an instruction, as its manual writes them."""

from collections.abc import Callable
from dataclasses import dataclass

from emu.arch.parts import Parts


@dataclass(frozen=True)
class Operand:
    """A register, a constant, or memory.

    :param size: size in bytes; 0 if unknown.
    :param register: register, named as in ``Arch.registers``; empty for a constant or memory.
    :param constant: constant; None for a register or memory.
    :param base: register with the address, or empty; used if there is neither register nor
        constant.
    :param index: register that is added to the address after multiplication by ``scale``.
    :param offset: number that is added to the address.
    :param shift: number of the register's lowest bit that belongs to the operand.
    :param segment: another register that is added to the address: the base of a segment.
    """

    size: int
    register: str = ""
    constant: int | None = None
    base: str = ""
    index: str = ""
    scale: int = 1
    offset: int = 0
    shift: int = 0
    segment: str = ""

    @property
    def memory(self) -> bool:
        """Whether the operand is in memory."""
        return not self.register and self.constant is None


@dataclass(frozen=True)
class Operands:
    """Operands of one instruction.

    :param operands: in the order of the assembly language; code addresses are left out.
    :param sets_flags: whether the instruction changes the condition flags.
    :param reads_flags: whether its effect depends on the condition flags.
    :param loads_constant: whether it does nothing but load a constant into a register.
    :param ands: whether its result is the bitwise AND of its last two operands.
    """

    operands: tuple[Operand, ...] = ()
    sets_flags: bool = False
    reads_flags: bool = False
    loads_constant: bool = False
    ands: bool = False


# Architecture name -> function that decodes (code, address) of one instruction
OPERANDS: Parts[Callable[[bytes, int], Operands]] = Parts("kinst.{}.operands", "operands")
