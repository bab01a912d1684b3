"""What an instruction does with values: which registers it writes, and which of them get a value
that was there before, in another register or in memory."""

from collections.abc import Callable
from dataclasses import dataclass, field

from emu.arch.parts import Parts

MEMORY = "memory"  # as a source: what the instruction itself has loaded


@dataclass(frozen=True)
class Effect:
    """Registers go by the names of ``Arch.registers``.

    :param writes: all general registers that it may write.
    :param copies: register -> the one, or one of those, that its value comes from, with or without
        an extension of its sign.
    :param loads: registers that get what is in memory, in the order of the loads.
    :param stores: what is stored, in the order of the stores: a register, MEMORY, or None for a
        value that is made here.
    :param clears: it writes memory without storing: zeros to a block of the cache.
    """

    writes: frozenset[str] = frozenset()
    copies: dict[str, tuple[str, ...]] = field(default_factory=dict)
    loads: tuple[str, ...] = ()
    stores: tuple[str | None, ...] = ()
    clears: bool = False


NOTHING = Effect()
# (bytes of one instruction) -> its effect
EFFECTS: Parts[Callable[[bytes], Effect]] = Parts("kinst.{}.dataflow", "effect")
