"""Values at the locations that debug data and calling conventions describe."""

import operator
from collections.abc import Callable

from dwarf.debug_file import DebugDataError
from dwarf.locations import (
    MASK,
    Constant,
    Entered,
    Load,
    Operation,
    Pieces,
    Place,
    Register,
    Term,
)
from dwarf.types import Structure, Type, declare, size_of, strip
from dwarf.values import CStruct, Memory, Value, from_bits, load

OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "&": operator.and_,
    "|": operator.or_, "^": operator.xor, "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class Copied:
    """Read-only memory with the bytes of a value that was copied out of registers."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes of the copied value, starting at offset ``address``.

        :raises DebugDataError: if the range is not within the value.
        """
        if not 0 <= address <= len(self._content) - size:
            raise DebugDataError(f"cannot read bytes {address} to {address + size}: the value has "
                                 f"only {len(self._content)} bytes")
        return self._content[address : address + size]

    def write(self, address: int, data: bytes) -> None:
        """Refuse to write, because the value is a copy.

        :raises DebugDataError: always.
        """
        raise DebugDataError("a structure passed in registers cannot be written; "
                             "write to the registers instead")


def not_known(number: int) -> int:
    """Refuse to return the value of a register at the function's entry.

    :raises DebugDataError: always.
    """
    raise DebugDataError("only the function's caller knows the value")


def value_at(place: Place, kind: Type, register: Callable[[int], int], memory: Memory,
             entered: Callable[[int], int] = not_known) -> Value:
    """Return the value of a given type at a location.

    :param register: callback that returns a register by its DWARF number.
    :param entered: callback that returns the value of a register at the function's entry.
    :raises DebugDataError: if the type cannot be read, or if the location is incomplete.
    :raises MemoryAccessError: from ``memory``, if an address is not mapped.
    """
    inner = strip(kind)
    if isinstance(place, Pieces):
        content = b"".join(
            (evaluate(term, register, memory, entered) & (1 << 8 * size) - 1).to_bytes(
                size, "little") for term, size in place.parts)
    elif place.memory:
        return load(memory, kind, evaluate(place.term, register, memory, entered))
    elif not isinstance(inner, Structure):
        return from_bits(memory, kind, evaluate(place.term, register, memory, entered))
    else:
        content = evaluate(place.term, register, memory, entered).to_bytes(8, "little")
    if len(content) < size_of(kind):
        raise DebugDataError(f"{declare(kind)}: only part of the value is available")
    copied = Copied(content)
    return CStruct(inner, 0, copied) if isinstance(inner, Structure) else load(copied, kind, 0)


def evaluate(term: Term, register: Callable[[int], int], memory: Memory,
             entered: Callable[[int], int] = not_known) -> int:
    """Return the value of a term as an unsigned 64-bit integer; see ``value_at``."""
    match term:
        case Constant(value=value):
            return value
        case Register(number=number):
            return register(number) & MASK
        case Load(address=address, size=size):
            at = evaluate(address, register, memory, entered)
            return int.from_bytes(memory.read(at, size), "little")
        case Operation(operator=sign, left=left, right=right, signed=signed):
            return _operation(sign, evaluate(left, register, memory, entered),
                              evaluate(right, register, memory, entered), signed)
        case Entered(number=number):
            return entered(number) & MASK


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _operation(sign: str, left: int, right: int, signed: bool) -> int:
    if signed:
        left, right = _signed(left), _signed(right)
    if sign in ("<<", ">>"):
        amount = right & MASK
        if amount > 63:
            return MASK if sign == ">>" and left < 0 else 0
        return (left << amount if sign == "<<" else left >> amount) & MASK
    if sign in ("/", "%"):
        if right == 0:
            raise DebugDataError("a location expression divides by zero")
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return (quotient if sign == "/" else left - right * quotient) & MASK
    return OPERATORS[sign](left, right) & MASK
