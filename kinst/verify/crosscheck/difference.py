"""Where two models of one architecture need not agree: a short list in each one's folder, with
reasons.  It is no tolerance: after such an instruction the second machine is given the first one's
result, in the bits that may differ, and everything else must be equal.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from emu.arch.parts import Parts

MASK = (1 << 64) - 1
Names = tuple[str, ...] | Callable[[bytes], tuple[str, ...]]


@dataclass(frozen=True)
class Difference:
    """An instruction whose result is the model's own.

    :param code: what it begins with, where ``mask`` has ones (empty: everywhere).
    :param registers: that it writes; a function of the instruction where it names them.
    :param bits: of the result that may differ.
    """

    code: bytes
    registers: Names
    reason: str
    mask: bytes = b""
    bits: int = MASK

    def matches(self, code: bytes) -> bool:
        return _matches(code, self.code, self.mask)

    def names(self, code: bytes) -> tuple[str, ...]:
        return self.registers if isinstance(self.registers, tuple) else self.registers(code)


@dataclass(frozen=True)
class MemoryDifference:
    """An instruction that also writes what is the model's own.  It may stay different where it
    lies: what is read of it later is compared in the registers.

    :param code: what it begins with, where ``mask`` has ones.
    :param offset: from where its first write begins; ``size`` bytes.
    """

    code: bytes
    mask: bytes
    offset: int
    size: int
    reason: str

    def matches(self, code: bytes) -> bool:
        return _matches(code, self.code, self.mask)


def _matches(code: bytes, begin: bytes, mask: bytes) -> bool:
    if len(code) < len(begin):
        return False
    mask = mask or b"\xff" * len(begin)
    return all(a & m == b for a, b, m in zip(code, begin, mask, strict=False))


@dataclass(frozen=True)
class StateDifference:
    """A register, or a field of the trap frame, that may differ.

    :param bits: in these bits.
    :param or_zero: and only so that the second machine has 0 in them.
    """

    bits: int
    reason: str
    or_zero: bool = False

    def allows(self, ours: int, theirs: int) -> bool:
        return not (ours ^ theirs) & ~self.bits and (not self.or_zero or not theirs & self.bits)


@dataclass(frozen=True)
class Model:
    """What is known of an architecture's models.

    :param instructions: whose results differ; ``memory``: that write what differs.
    :param frame: fields of the trap frame, ``state`` registers that differ always, ``trapped``
        registers in which a trap leaves something: our machine takes that back.
    :param flags: the status register's bits that instructions compute.
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
    """The one register a field of a 32-bit instruction names.

    :param names: by number, or a prefix of the number.
    """
    def chosen(code: bytes) -> tuple[str, ...]:
        number = int.from_bytes(code[:4], "little") >> shift & mask
        return (f"{names}{number}" if isinstance(names, str) else names[number],)

    return chosen


MODELS: Parts[Model] = Parts("kinst.{}.model", "MODEL")
