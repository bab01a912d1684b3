"""Known differences between two CPU models of one architecture; each architecture lists its own.

They are not a tolerance: after such an instruction, the second machine receives the first one's
result in the bits that may differ, and everything else must be equal.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from emu.arch.parts import Parts

MASK = (1 << 64) - 1
Names = tuple[str, ...] | Callable[[bytes], tuple[str, ...]]


@dataclass(frozen=True)
class Difference:
    """Instruction whose result depends on the CPU model.

    :param code: the instruction's first bytes, compared in the bits of ``mask`` (empty: all bits).
    :param registers: the registers that it writes, or a function that returns them.
    :param bits: the bits of the result that may differ.
    """

    code: bytes
    registers: Names
    reason: str
    mask: bytes = b""
    bits: int = MASK

    def matches(self, code: bytes) -> bool:
        """Return whether the difference applies to an instruction."""
        return _matches(code, self.code, self.mask)

    def names(self, code: bytes) -> tuple[str, ...]:
        """Return the names of the registers that an instruction writes."""
        return self.registers if isinstance(self.registers, tuple) else self.registers(code)


@dataclass(frozen=True)
class MemoryDifference:
    """Instruction that also writes model-dependent data to memory.

    The data may stay different in memory; if the guest reads it later, the registers are compared.

    :param code: the instruction's first bytes, compared in the bits of ``mask``.
    :param offset: bytes from the start of its first write to the ``size`` bytes that may differ.
    """

    code: bytes
    mask: bytes
    offset: int
    size: int
    reason: str

    def matches(self, code: bytes) -> bool:
        """Return whether the difference applies to an instruction."""
        return _matches(code, self.code, self.mask)


def _matches(code: bytes, begin: bytes, mask: bytes) -> bool:
    if len(code) < len(begin):
        return False
    mask = mask or b"\xff" * len(begin)
    return all(a & m == b for a, b, m in zip(code, begin, mask, strict=False))


@dataclass(frozen=True)
class StateDifference:
    """Difference that is allowed in a register or a trap frame field.

    :param bits: the bits that may differ.
    :param or_zero: whether these bits must be 0 on the second machine if they differ.
    """

    bits: int
    reason: str
    or_zero: bool = False

    def allows(self, ours: int, theirs: int) -> bool:
        """Return whether two values are equal except for the allowed difference."""
        return not (ours ^ theirs) & ~self.bits and (not self.or_zero or not theirs & self.bits)


@dataclass(frozen=True)
class Model:
    """Known differences between the CPU models of an architecture.

    :param instructions: instructions whose results differ.
    :param flags: the bits of the status register that instructions compute.
    :param frame: trap frame fields that may differ.
    :param state: registers that may always differ.
    :param trapped: registers that a trap changes; kinst-emu's machine restores them.
    :param memory: instructions that write differing data to memory.
    """

    instructions: tuple[Difference, ...]
    flags: int
    frame: Mapping[str, StateDifference] = field(default_factory=dict)
    state: Mapping[str, StateDifference] = field(default_factory=dict)
    trapped: Mapping[str, StateDifference] = field(default_factory=dict)
    memory: tuple[MemoryDifference, ...] = ()


def destination(
    shift: int, mask: int, names: str | Sequence[str]
) -> Callable[[bytes], tuple[str, ...]]:
    """Return a function that names the register in a field of a 32-bit instruction.

    :param names: the register names by number, or the prefix of the number in all of them.
    """
    def chosen(code: bytes) -> tuple[str, ...]:
        number = int.from_bytes(code[:4], "little") >> shift & mask
        return (f"{names}{number}" if isinstance(names, str) else names[number],)

    return chosen


MODELS: Parts[Model] = Parts("kinst.{}.model", "MODEL")
