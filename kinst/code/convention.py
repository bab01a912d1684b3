"""Locations of a function's arguments at its entry.

``Convention`` describes how the C calling convention of an architecture passes integers, pointers,
structures and unions; ``words`` applies it to a prototype.  Floating-point numbers are passed in
registers that probes do not read, so the location of an argument that contains one, and of all
arguments after it, is unknown.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dwarf.debug_file import DebugDataError
from dwarf.types import (
    MAX_STEPS,
    Array,
    Enumeration,
    Incomplete,
    Integer,
    Pointer,
    Procedure,
    Structure,
    Type,
    strip,
)
from emu.arch.parts import Parts

WORD = 8  # size of a word in bytes
MAX_MEMBERS = 4096  # maximum number of members of a structure and its nested structures


@dataclass(frozen=True)
class Linkage:
    """Procedure linkage table: small pieces of code through which a program calls other objects.

    :param first: size in bytes of the first entry, to which the others jump.
    :param entry: size of the others.
    :param pushed: bytes that an entry pushes before it jumps to the first one.
    """

    first: int
    entry: int
    pushed: int


@dataclass(frozen=True)
class Convention:
    """C calling convention of an architecture, except for floating-point arguments.

    :param registers: the argument registers, in order.
    :param stacked_at: bytes from the stack pointer to the first stack argument at function entry.
    :param by_reference: whether the caller passes structures of more than two words by address;
        otherwise it copies them to the stack.
    :param splits: whether a two-word argument may be split between the last register and the stack.
    :param even: whether a two-word argument that is aligned to 16 bytes starts in an even-numbered
        register.
    :param refills: whether registers that were too few for one argument are used for the next one.
    :param packed_in_memory: whether a structure with a misaligned member is passed on the stack,
        however small it is.
    :param result_first: whether the address of a result in memory is passed as an additional first
        argument; otherwise a separate register holds it.
    :param preserved: registers with the same value after a call as before it.
    :param linkage: the procedure linkage table of programs.
    """

    registers: tuple[str, ...]
    stacked_at: int
    by_reference: bool
    splits: bool
    even: bool
    refills: bool
    packed_in_memory: bool
    result_first: bool
    preserved: frozenset[str]
    linkage: Linkage


CONVENTIONS: Parts[Convention] = Parts("kinst.{}.convention", "CONVENTION")


@dataclass(frozen=True)
class Word:
    """Location of one eight-byte word of an argument.

    :param register: the register that holds the word; empty if the word is on the stack.
    :param offset: for a word on the stack, bytes from the first stack argument.
    """

    register: str = ""
    offset: int = 0


@dataclass(frozen=True)
class Passed:
    """Location of an argument.

    :param words: the locations of the value's words or, by reference, of its address.
    :param size: the size of the value in bytes.
    :param by_reference: whether the words hold the address of the value.
    """

    words: tuple[Word, ...]
    size: int
    by_reference: bool = False


@dataclass(frozen=True)
class _Shape:
    size: int
    alignment: int
    whole: bool  # whether the type is an integer or a pointer, not a structure
    packed: bool


class _Unknown(Exception):
    """Error raised if the type of an argument does not determine its location."""


def words(convention: Convention, procedure: Procedure) -> list[Passed | None]:
    """Return the locations of a function's parameters in order; an unknown location is None."""
    locations: list[Passed | None] = []
    cursor = _Cursor(convention)
    try:
        if convention.result_first and _in_memory(convention, procedure.result):
            cursor.take(_Shape(WORD, WORD, True, False))
        for parameter in procedure.parameters:
            locations.append(cursor.take(_shape(parameter.type)))
    except (_Unknown, DebugDataError):
        pass
    return locations + [None] * (len(procedure.parameters) - len(locations))


def _in_memory(convention: Convention, result: Type) -> bool:
    """Return whether a function stores its result in memory that the caller provides.

    :raises _Unknown: when the type is incomplete, too complex, or contains a floating-point number.
    """
    inner = strip(result)
    if isinstance(inner, Incomplete):
        raise _Unknown
    if not isinstance(inner, Structure):
        return False
    if inner.size > 2 * WORD:
        return True
    return convention.packed_in_memory and inner.size > 0 and _alignment(inner, [0], 0)[1]


def word(convention: Convention, number: int) -> Word:
    """Return the location of argument ``number`` (from 0) if each argument takes one word."""
    count = len(convention.registers)
    return (Word(convention.registers[number]) if number < count
            else Word(offset=WORD * (number - count)))


class _Cursor:
    """Allocator of argument registers and stack space, in the order of the arguments."""

    def __init__(self, convention: Convention) -> None:
        self._convention = convention
        self._register = self._stack = 0

    def take(self, shape: _Shape) -> Passed:
        convention, left = self._convention, self._left
        if shape.size == 0:
            return Passed((), 0)
        if shape.size > 2 * WORD and not shape.whole:
            if convention.by_reference:
                return Passed(self.take(_Shape(WORD, WORD, True, False)).words, shape.size, True)
            return self._on_stack(shape)
        if shape.packed and convention.packed_in_memory:
            return self._on_stack(shape)
        count = -(-shape.size // WORD)
        if count == 2 and shape.alignment == 2 * WORD and convention.even and self._register % 2:
            self._register, left = self._register + 1, max(0, left - 1)
        if count <= left:
            return Passed(self._registers(count), shape.size)
        if convention.splits and left == 1:
            first = self._registers(1)
            return Passed((*first, *self._stacked(1, WORD)), shape.size)
        if not convention.refills:
            self._register = len(convention.registers)
        return self._on_stack(shape)

    @property
    def _left(self) -> int:
        return max(0, len(self._convention.registers) - self._register)

    def _registers(self, count: int) -> tuple[Word, ...]:
        first = self._register
        self._register += count
        return tuple(Word(name) for name in self._convention.registers[first : first + count])

    def _on_stack(self, shape: _Shape) -> Passed:
        count = -(-shape.size // WORD)
        return Passed(self._stacked(count, shape.alignment), shape.size)

    def _stacked(self, count: int, alignment: int) -> tuple[Word, ...]:
        aligned = min(max(alignment, WORD), 2 * WORD)
        self._stack = -(-self._stack // aligned) * aligned
        first = self._stack
        self._stack += WORD * count
        return tuple(Word(offset=at) for at in range(first, self._stack, WORD))


def _shape(kind: Type) -> _Shape:
    """Return a type's size and alignment, and the properties that determine how it is passed.

    :raises _Unknown: when the type is incomplete or contains a floating-point number.
    """
    inner = strip(kind)
    match inner:
        case Pointer():
            return _Shape(WORD, WORD, True, False)
        case Integer() | Enumeration():
            if inner.size not in (1, 2, 4, 8, 16):
                raise _Unknown
            return _Shape(inner.size, inner.size, True, False)
        case Structure():
            alignment, packed = _alignment(inner, [0], 0)
            return _Shape(inner.size, alignment, False, packed)
    raise _Unknown


def _alignment(kind: Type, seen: list[int], depth: int) -> tuple[int, bool]:
    """Return the alignment of a type in bytes, and whether the type has a misaligned member."""
    inner = strip(kind)
    seen[0] += 1
    if seen[0] > MAX_MEMBERS or depth > MAX_STEPS:
        raise _Unknown
    match inner:
        case Pointer():
            return WORD, False
        case Integer() | Enumeration():
            return inner.size, False
        case Array():
            return _alignment(inner.element, seen, depth + 1)
        case Structure():
            alignment, packed = 1, False
            for member in inner.members:
                own, inside = _alignment(member.type, seen, depth + 1)
                alignment = max(alignment, own)
                packed |= inside or (member.width is None and member.offset % (8 * own) != 0)
            if inner.size % alignment:  # a packed structure, even if all members are aligned
                alignment = 1
            return alignment, packed
    raise _Unknown


def sizes(passed: Passed) -> Sequence[int]:
    """Return how many bytes of each word of an argument belong to the value."""
    count = len(passed.words)
    return [min(WORD, passed.size - WORD * number) for number in range(count)]


