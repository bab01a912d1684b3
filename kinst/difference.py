"""Instructions whose result two models of one architecture need not agree on.

A short list in each architecture's folder, with reasons.  It is no tolerance: after such an
instruction the second machine is given the first one's result, and everything else must be equal.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Names = tuple[str, ...] | Callable[[bytes], tuple[str, ...]]


@dataclass(frozen=True)
class Difference:
    """:param code: what the instruction begins with, where ``mask`` has ones (empty: everywhere).
    :param registers: that it writes; a function of the instruction where it names them.
    """

    code: bytes
    registers: Names
    reason: str
    mask: bytes = b""

    def matches(self, code: bytes) -> bool:
        if len(code) < len(self.code):
            return False
        mask = self.mask or b"\xff" * len(self.code)
        return all(a & m == b for a, b, m in zip(code, self.code, mask, strict=False))

    def names(self, code: bytes) -> tuple[str, ...]:
        return self.registers if isinstance(self.registers, tuple) else self.registers(code)


def destination(shift: int, mask: int, names: str | Sequence[str]) -> Callable[[bytes],
                                                                                tuple[str, ...]]:
    """The one register a field of a 32-bit instruction names.

    :param names: by number, or a prefix of the number.
    """
    def chosen(code: bytes) -> tuple[str, ...]:
        number = int.from_bytes(code[:4], "little") >> shift & mask
        return (f"{names}{number}" if isinstance(names, str) else names[number],)

    return chosen
