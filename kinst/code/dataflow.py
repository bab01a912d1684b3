"""Data flow of an instruction: which registers it writes, and the sources of the values."""

from collections.abc import Callable
from dataclasses import dataclass, field

from emu.arch.parts import Parts

MEMORY = "memory"  # pseudo-register for the value that the instruction itself loads


@dataclass(frozen=True)
class Effect:
    """Data flow of one instruction; registers are named as in ``Arch.registers``.

    :param writes: all general registers that the instruction may write.
    :param copies: register -> the possible sources of its value, which may be sign-extended or
        zero-extended.
    :param loads: registers that receive values from memory, in the order of the loads.
    :param stores: sources of the stored values, in the order of the stores: a register, MEMORY, or
        None for a value that the instruction computes.
    :param clears: whether the instruction writes memory without a store: it zeroes a cache block.
    """

    writes: frozenset[str] = frozenset()
    copies: dict[str, tuple[str, ...]] = field(default_factory=dict)
    loads: tuple[str, ...] = ()
    stores: tuple[str | None, ...] = ()
    clears: bool = False


NOTHING = Effect()
# Architecture name -> function that returns the effect of an instruction from its bytes
EFFECTS: Parts[Callable[[bytes], Effect]] = Parts("kinst.{}.dataflow", "effect")
