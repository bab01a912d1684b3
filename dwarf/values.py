"""C objects in guest memory, read and written through their types.

Numbers become Python numbers, and arrays of ``char`` become strings.  Structures, arrays and
pointers read memory on access: ``thread.td_proc.p_pid``, ``table[3]``, ``pointer[0]``.  Attributes
are always members; the functions ``addressof``, ``sizeof`` and ``typeof`` return other properties.
A member whose name is also a Python attribute (``real``, of a pointer) is ``p["real"]``.  Guests
are little-endian.
"""

import difflib
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, overload

from dwarf.debug_file import DebugDataError
from dwarf.types import (
    MAX_PARTS,
    Array,
    Enumeration,
    Float,
    Integer,
    Member,
    Pointer,
    Procedure,
    Structure,
    Type,
    Void,
    declare,
    find_member,
    size_of,
    strip,
)

MAX_TEXT = 1 << 20  # maximum size of a string in bytes
MAX_SHOWN = 64  # maximum number of elements or members in the text of a value
CHUNK = 256
FLOATS = {4: "<f", 8: "<d"}
BITS = 64


class Memory(Protocol):
    """Memory that contains C objects."""

    def read(self, address: int, size: int) -> bytes:
        """Return ``size`` bytes at an address."""
        ...

    def write(self, address: int, data: bytes) -> None:
        """Write bytes to an address."""
        ...


def _ours(name: str) -> bool:
    """Return whether a name is reserved for Python (``__name__``)."""
    return name.startswith("__") and name.endswith("__")


Value = Any  # None | bool | int | float | str | CEnum | CPointer | CArray | CStruct


class CEnum(int):
    """Value of an enumeration; ``name`` is empty if no enumerator has the value."""

    kind: Enumeration

    def __new__(cls, value: int, kind: Enumeration) -> "CEnum":
        instance = super().__new__(cls, value)
        instance.kind = kind
        return instance

    @property
    def name(self) -> str:
        """Name of the first enumerator with this value, or an empty string."""
        return next((name for name, value in self.kind.values if value == int(self)), "")

    def __repr__(self) -> str:
        return f"{self.name or declare(self.kind)} ({int(self)})"

    __str__ = __repr__

    def __copy__(self) -> "CEnum":
        return self

    def __deepcopy__(self, _memo: object) -> "CEnum":
        return self


class CPointer(int):
    """Typed pointer to guest memory: ``p[0]``, ``p[3]``, ``p.member``.

    A pointer to a structure has the structure's members as attributes.  ``p["member"]`` also finds
    members whose names are Python attributes.
    """

    _kind: Type
    _memory: Memory

    def __new__(cls, value: int, kind: Type, memory: Memory) -> "CPointer":
        instance = super().__new__(cls, value & (1 << BITS) - 1)
        object.__setattr__(instance, "_kind", kind)
        object.__setattr__(instance, "_memory", memory)
        return instance

    def _target(self) -> Type:
        pointer = strip(self._kind)
        assert isinstance(pointer, Pointer)
        return pointer.target

    def _structure(self) -> "CStruct":
        kind = strip(self._target())
        if not isinstance(kind, Structure):
            raise AttributeError(f"{declare(self._kind)} does not point to a structure")
        return CStruct(kind, int(self), self._memory)

    def __getitem__(self, key: int | str) -> Value:
        if isinstance(key, str):
            return self._structure()[key]
        target = self._target()
        size = size_of(target)
        if not size:
            raise TypeError(f"the type that {declare(self._kind)} points to has no size")
        return load(self._memory, target, int(self) + key * size & (1 << BITS) - 1)

    def __setitem__(self, key: int | str, value: object) -> None:
        if isinstance(key, str):
            self._structure()[key] = value
            return
        target = self._target()
        store(self._memory, target, int(self) + key * size_of(target) & (1 << BITS) - 1, value)

    def __getattr__(self, name: str) -> Value:
        if _ours(name):
            raise AttributeError(name)
        return self._structure()._get(name)

    def __setattr__(self, name: str, value: object) -> None:
        self._structure()[name] = value

    def __iter__(self) -> Iterator[Value]:
        raise TypeError("cannot iterate over a pointer; use a range: [p[i] for i in range(4)]")

    def __dir__(self) -> list[str]:
        kind = strip(self._target())
        return list(names(kind)) if isinstance(kind, Structure) else list(super().__dir__())

    def __repr__(self) -> str:
        return f"({declare(self._kind)}) {int(self):#x}"

    __str__ = __repr__

    def __copy__(self) -> "CPointer":
        return self

    def __deepcopy__(self, _memo: object) -> "CPointer":
        return self


class CStruct:
    """Structure or union in memory; access its members as ``s.member`` or ``s["member"]``."""

    __slots__ = ("_address", "_kind", "_memory")
    _address: int
    _kind: Structure
    _memory: Memory

    def __init__(self, kind: Structure, address: int, memory: Memory) -> None:
        for name, value in (("_kind", kind), ("_address", address), ("_memory", memory)):
            object.__setattr__(self, name, value)

    def _get(self, name: str) -> Value:
        member = find_member(self._kind, name)
        if member is None:
            near = difflib.get_close_matches(name, list(names(self._kind)), 3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise AttributeError(f"{declare(self._kind)} has no member '{name}'{hint}")
        if member.width is not None:
            return _bits(self, member.type, member.offset, member.width)
        return load(self._memory, member.type, self._address + member.offset // 8)

    def __getattr__(self, name: str) -> Value:
        if _ours(name) or name in self.__slots__:
            raise AttributeError(name)
        return self._get(name)

    def __getitem__(self, name: str) -> Value:
        return self._get(name)

    def __setattr__(self, name: str, value: object) -> None:
        self[name] = value

    def __setitem__(self, name: str, value: object) -> None:
        member = find_member(self._kind, name)
        if member is None:
            self._get(name)
        elif member.width is not None:
            _set_bits(self, member.type, member.offset, member.width, value)
        else:
            store(self._memory, member.type, self._address + member.offset // 8, value)

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, CStruct) and self._address == other._address
                and self._memory is other._memory and declare(self._kind) == declare(other._kind))

    def __hash__(self) -> int:
        return hash(self._address)

    def __copy__(self) -> "CStruct":
        return CStruct(self._kind, self._address, self._memory)

    def __deepcopy__(self, _memo: object) -> "CStruct":
        return self.__copy__()  # the copy refers to the same guest memory

    def __dir__(self) -> list[str]:
        return list(names(self._kind))

    def __repr__(self) -> str:
        return f"<{declare(self._kind)} at {self._address:#x}>"

    def __str__(self) -> str:
        parts = []
        for name, _ in zip(names(self._kind), range(MAX_SHOWN), strict=False):
            try:
                parts.append(f"{name} = {_shown(self._get(name))}")
            except DebugDataError:
                parts.append(f"{name} = ?")
        return f"{{{', '.join(parts)}{', ...' if len(parts) == MAX_SHOWN else ''}}}"


class CArray(Sequence[Value]):
    """Array in memory; ``len`` fails if its length is unknown (``char name[]``)."""

    def __init__(self, kind: Array, address: int, memory: Memory) -> None:
        self._kind, self._address, self._memory = kind, address, memory

    def __len__(self) -> int:
        if self._kind.count is None:
            raise TypeError(f"{declare(self._kind)}: the array length is not known")
        return self._kind.count

    def _at(self, index: int) -> int:
        count = self._kind.count
        if count is not None and not -count <= index < count:
            raise IndexError(f"{declare(self._kind)} has no element {index}")
        if index < 0:
            index += len(self)
        return self._address + index * size_of(self._kind.element)

    @overload
    def __getitem__(self, index: int) -> Value: ...

    @overload
    def __getitem__(self, index: slice) -> list[Value]: ...

    def __getitem__(self, index: int | slice) -> Value:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return load(self._memory, self._kind.element, self._at(index))

    def __setitem__(self, index: int, value: object) -> None:
        store(self._memory, self._kind.element, self._at(index), value)

    def __iter__(self) -> Iterator[Value]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"<{declare(self._kind)} at {self._address:#x}>"

    def __str__(self) -> str:
        count = self._kind.count or 0
        parts = [_shown(self[i]) for i in range(min(count, MAX_SHOWN))]
        return f"{{{', '.join(parts)}{', ...' if count > MAX_SHOWN else ''}}}"


def names(kind: Structure) -> Iterator[str]:
    """Yield the names of a structure's members, including members of unnamed inner structures."""
    waiting = [kind]
    for inner in waiting:
        for member in inner.members:
            if member.name:
                yield member.name
            elif isinstance(below := strip(member.type), Structure):
                if len(waiting) == MAX_PARTS:
                    raise DebugDataError(
                        f"damaged debug data: {declare(kind)} has too many unnamed members")
                waiting.append(below)


def parts(value: Value) -> Iterator[tuple[str, Callable[[], Value]]]:
    """Yield the name of each member or element of a value, and a callback that reads it.

    A pointer has the members of the structure to which it points, or one element, ``*``; numbers,
    strings and null pointers have none.  At most 64 are yielded.
    """
    if isinstance(value, CPointer):
        pointer = value
        if not int(pointer) or isinstance(strip(pointer._target()), Void | Procedure):
            return
        if not isinstance(strip(pointer._target()), Structure):
            yield "*", lambda: pointer[0]
            return
        value = pointer._structure()
    if isinstance(value, CStruct):
        structure = value
        for name, _ in zip(names(structure._kind), range(MAX_SHOWN), strict=False):
            yield name, lambda name=name: structure[name]  # type: ignore[misc]
    elif isinstance(value, CArray):
        array = value
        for number in range(min(array._kind.count or 0, MAX_SHOWN)):
            yield f"[{number}]", lambda number=number: array[number]  # type: ignore[misc]


def pointed_text(value: Value, limit: int) -> str | None:
    """Return the string that a value of type ``char *`` points to, or None for other values.

    :param limit: maximum number of bytes to read.
    :raises MemoryAccessError: if the memory is not mapped.
    """
    if not isinstance(value, CPointer) or not int(value) or not is_text(value._target()):
        return None
    return text_at(value._memory, int(value), limit)


def addressof(value: CStruct | CArray, member: str | None = None) -> int:
    """Return the address of a structure, of an array, or of a structure's member.

    :raises TypeError: if the value has no address, or if the member is a bit-field.
    """
    if not isinstance(value, CStruct | CArray):
        raise TypeError(f"a value of type {type(value).__name__} has no address")
    if member is None:
        return value._address
    if not isinstance(value, CStruct):
        raise TypeError(f"{value!r} has no members")
    return value._address + _field(value, member).offset // 8


def _field(value: CStruct, member: str) -> Member:
    """Return a member that is not a bit-field."""
    field = find_member(value._kind, member)
    if field is None:
        value._get(member)
        raise AssertionError
    if field.width is not None:
        raise TypeError(f"{member} is a bit-field, which has no address")
    return field


def sizeof(value: CStruct | CArray | CPointer | CEnum, member: str | None = None) -> int:
    """Return the size in bytes of a value's type, or of a structure's member, like C's ``sizeof``.

    :raises TypeError: if the value has no members, or if the member is a bit-field.
    """
    if member is not None:
        if not isinstance(value, CStruct):
            raise TypeError(f"{value!r} has no members")
        return size_of(_field(value, member).type)
    return size_of(value.kind if isinstance(value, CEnum) else value._kind)


def typeof(value: CStruct | CArray | CPointer | CEnum) -> str:
    """Return the type of a value as C writes it, such as ``struct thread *``."""
    return declare(value.kind if isinstance(value, CEnum) else value._kind)


def _shown(value: Value) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, CStruct | CArray):
        return "{...}"
    return str(value)


def is_text(kind: Type) -> bool:
    """Return whether arrays of a type are strings: plain ``char`` only, not ``unsigned char``."""
    kind = strip(kind)
    return isinstance(kind, Integer) and kind.name == "char" and kind.size == 1


def text_at(memory: Memory, address: int, limit: int) -> str:
    """Return the string at an address, up to a NUL or a limit; invalid bytes are ``\\xNN``."""
    content = bytearray()
    while len(content) < min(limit, MAX_TEXT):
        at = address + len(content)  # read in chunks: the page after the string may be unmapped
        content += memory.read(at, min(CHUNK - at % CHUNK, limit - len(content)))
        end = content.find(b"\0")
        if end >= 0:
            return content[:end].decode("utf-8", "backslashreplace")
    if limit > MAX_TEXT:
        raise DebugDataError(f"the string at {address:#x} is longer than {MAX_TEXT} bytes")
    return content.decode("utf-8", "backslashreplace")


def from_bits(memory: Memory, kind: Type, bits: int) -> Value:
    """Return a value of a given type from its bits in a register.

    :param bits: contents of the register; bits beyond the type's size are ignored.
    :return: the value; None for ``void``.
    :raises DebugDataError: if the type does not fit one general-purpose register.
    """
    inner = strip(kind)
    if isinstance(inner, Void):
        return None
    if isinstance(inner, Pointer):
        return CPointer(bits, kind, memory)
    if isinstance(inner, Integer | Enumeration) and inner.size <= 8:
        return _integer(inner, bits & (1 << 8 * inner.size) - 1, 8 * inner.size)
    raise DebugDataError(f"{declare(kind)}: a value of this type does not fit in one "
                         "general-purpose register")


def _integer(kind: Integer | Enumeration, bits: int, width: int) -> Value:
    if kind.signed and width and bits >> width - 1:
        bits -= 1 << width
    if isinstance(kind, Enumeration):
        return CEnum(bits, kind)
    return bool(bits) if kind.encoding == "boolean" else bits


def load(memory: Memory, kind: Type, address: int) -> Value:
    """Load a value of a given type from an address.

    :raises DebugDataError: if the type cannot be read (incomplete types, ``long double``).
    """
    inner = strip(kind)
    match inner:
        case Void():
            return None
        case Structure():
            return CStruct(inner, address, memory)
        case Array():
            if is_text(inner.element) and inner.count is not None:
                return text_at(memory, address, inner.count)
            return CArray(inner, address, memory)
        case Pointer():
            return CPointer(int.from_bytes(memory.read(address, 8), "little"), kind, memory)
        case Procedure():
            return address
        case Integer() | Enumeration():
            bits = int.from_bytes(memory.read(address, inner.size), "little")
            return _integer(inner, bits, 8 * inner.size)
        case Float() if inner.size in FLOATS:
            number: float = struct.unpack(FLOATS[inner.size], memory.read(address, inner.size))[0]
            return number
    raise DebugDataError(f"{declare(kind)}: values of this type cannot be read")


def store(memory: Memory, kind: Type, address: int, value: object) -> None:
    """Store a value of a given type at an address.

    :raises TypeError: if the value does not have the type.
    :raises OverflowError: if the value does not fit.
    """
    memory.write(address, encode(kind, value))


def encode(kind: Type, value: object) -> bytes:
    """Return the bytes that represent a value of a given type.

    The value is a number, a pointer, the name of an enumerator, a string for an array of ``char``,
    or bytes of the type's size.
    """
    inner, size = strip(kind), size_of(kind)
    text = isinstance(inner, Array) and is_text(inner.element)
    if text and isinstance(value, str | bytes):
        content = value.encode() if isinstance(value, str) else value
        if size > MAX_TEXT:
            raise DebugDataError(f"{declare(kind)}: the array is too large to write")
        if len(content) + isinstance(value, str) > size:
            raise OverflowError(f"{len(content)} bytes do not fit in {declare(kind)}")
        return content.ljust(size, b"\0")
    if isinstance(value, bytes):
        if len(value) != size:
            raise OverflowError(f"{declare(kind)} has {size} bytes, but {len(value)} were given")
        return value
    if isinstance(inner, Float) and inner.size in FLOATS and isinstance(value, int | float):
        return struct.pack(FLOATS[inner.size], value)
    if isinstance(inner, Enumeration) and isinstance(value, str):
        value = dict(inner.values).get(value, value)
    if isinstance(inner, Integer | Enumeration | Pointer) and isinstance(value, int):
        return fitting(kind, int(value), 8 * size).to_bytes(size, "little")
    raise TypeError(f"{value!r} is not a value of type {declare(kind)}")


def fitting(kind: Type, value: int, width: int) -> int:
    """Encode a signed or unsigned number in ``width`` bits.

    :raises OverflowError: if the number does not fit.
    """
    if not -(1 << width - 1) <= value < 1 << width:
        raise OverflowError(f"{value} does not fit in the {width} bits of {declare(kind)}")
    return value & (1 << width) - 1


def _bits(of: CStruct, kind: Type, offset: int, width: int) -> Value:
    inner = strip(kind)
    if not isinstance(inner, Integer | Enumeration):
        raise DebugDataError(f"{declare(kind)}: the type of a bit-field is not an integer")
    first, last = offset // 8, (offset + width + 7) // 8
    word = int.from_bytes(of._memory.read(of._address + first, last - first), "little")
    return _integer(inner, word >> offset % 8 & (1 << width) - 1, width)


def _set_bits(of: CStruct, kind: Type, offset: int, width: int, value: object) -> None:
    inner = strip(kind)
    if isinstance(inner, Enumeration) and isinstance(value, str):
        value = dict(inner.values).get(value, value)
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not a value of type {declare(kind)}")
    bits = fitting(kind, int(value), width) if width else 0
    first, last = offset // 8, (offset + width + 7) // 8
    address, size = of._address + first, last - first
    word = int.from_bytes(of._memory.read(address, size), "little")
    mask = (1 << width) - 1 << offset % 8
    of._memory.write(address, (word & ~mask | bits << offset % 8).to_bytes(size, "little"))
