"""C types as debug data describes them, independent of the format (DWARF or CTF).

Types form cyclic graphs (``struct thread`` leads to ``struct proc`` and back), so referenced types
are read on demand.  Sizes are in bytes; offsets (from the beginning of the structure) and widths of
members are in bits.  Guests are little-endian, so bit 0 is the lowest bit of the first byte.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from dwarf.debug_file import DebugDataError

MAX_STEPS = 64  # maximum length of a chain of typedefs, qualifiers, arrays or unnamed members
MAX_PARTS = 4096  # maximum number of parts of a declaration, or of structures searched for a member
MAX_NUMBER = 16  # maximum size of a number in bytes
MAX_SIZE = 1 << 40  # maximum size of a structure in bytes, and maximum number of array elements
POINTER_SIZE = 8


def _bounded(what: str, number: int | None, least: int, most: int) -> None:
    if number is not None and not least <= number <= most:
        raise DebugDataError(f"damaged debug data: invalid {what} {number}")


@dataclass(frozen=True)
class Void:
    """The type ``void``."""


@dataclass(frozen=True)
class Integer:
    """An integer type, such as ``char``, ``_Bool`` or ``unsigned long``.

    :param encoding: "integer", "char" or "boolean".
    """

    name: str
    size: int
    signed: bool
    encoding: str = "integer"

    def __post_init__(self) -> None:
        _bounded("integer size", self.size, 1, MAX_NUMBER)


@dataclass(frozen=True)
class Float:
    """A floating-point type, such as ``float`` or ``double``, including complex types."""

    name: str
    size: int

    def __post_init__(self) -> None:
        _bounded("floating-point size", self.size, 1, 2 * MAX_NUMBER)


@dataclass(frozen=True)
class Incomplete:
    """A structure, union or enumeration that is declared but not defined."""

    kind: str
    name: str


@dataclass(frozen=True, eq=False)
class Pointer:
    """A pointer type.

    :param link: callback that returns the type pointed to.
    """

    link: Callable[[], "Type"] = field(repr=False)

    @property
    def target(self) -> "Type":
        """Type to which the pointer points."""
        return self.link()


@dataclass(frozen=True, eq=False)
class Array:
    """An array type.

    :param count: number of elements; None if the declaration omits it (``char name[]``).
    :param link: callback that returns the type of an element.
    """

    count: int | None
    link: Callable[[], "Type"] = field(repr=False)

    def __post_init__(self) -> None:
        _bounded("array length", self.count, 0, MAX_SIZE)

    @property
    def element(self) -> "Type":
        """Type of an element."""
        return self.link()


@dataclass(frozen=True, eq=False)
class Member:
    """A member of a structure or union.

    :param name: empty for an unnamed structure or union.
    :param offset: offset in bits from the beginning of the structure.
    :param width: width in bits of a bit-field; None for other members.
    :param link: callback that returns the member's type.
    """

    name: str
    offset: int
    width: int | None
    link: Callable[[], "Type"] = field(repr=False)

    def __post_init__(self) -> None:
        _bounded("member offset", self.offset, 0, 8 * MAX_SIZE)
        _bounded("bit-field width", self.width, 0, 8 * MAX_NUMBER)

    @property
    def type(self) -> "Type":
        """Type of the member."""
        return self.link()


@dataclass(frozen=True, eq=False)
class Structure:
    """A structure or union type.

    :param kind: "struct" or "union".
    :param name: tag; empty if the type has none.
    :param link: callback that returns the members.
    :param of_program: whether a D program declares it.
    """

    kind: str
    name: str
    size: int
    link: Callable[[], tuple[Member, ...]] = field(repr=False)
    of_program: bool = False

    def __post_init__(self) -> None:
        _bounded(f"{self.kind} size", self.size, 0, MAX_SIZE)

    @property
    def members(self) -> tuple[Member, ...]:
        """Members in the order of the declaration."""
        return self.link()


@dataclass(frozen=True, eq=False)
class Enumeration:
    """An enumeration type.

    :param link: callback that returns the enumerators.
    """

    name: str
    size: int
    link: Callable[[], tuple[tuple[str, int], ...]] = field(repr=False)

    def __post_init__(self) -> None:
        _bounded("enumeration size", self.size, 1, MAX_NUMBER)

    @property
    def values(self) -> tuple[tuple[str, int], ...]:
        """Enumerators as (name, value), in the order of the declaration."""
        return self.link()

    @property
    def signed(self) -> bool:
        """Whether any enumerator is negative."""
        return any(value < 0 for _name, value in self.values)


@dataclass(frozen=True, eq=False)
class Typedef:
    """A type name defined by ``typedef``.

    :param link: callback that returns the type that the name stands for.
    """
    name: str
    link: Callable[[], "Type"] = field(repr=False)

    @property
    def target(self) -> "Type":
        """Type that the name denotes."""
        return self.link()


@dataclass(frozen=True, eq=False)
class Qualified:
    """A type with a qualifier, such as ``const``.

    :param qualifier: "const", "volatile", "restrict" or "_Atomic".
    :param link: callback that returns the unqualified type.
    """

    qualifier: str
    link: Callable[[], "Type"] = field(repr=False)

    @property
    def target(self) -> "Type":
        """Type without the qualifier."""
        return self.link()


@dataclass(frozen=True, eq=False)
class Parameter:
    """A parameter of a function type.

    :param name: empty if the debug data has none (always in CTF).
    :param link: callback that returns the parameter's type.
    """

    name: str
    link: Callable[[], "Type"] = field(repr=False)

    @property
    def type(self) -> "Type":
        """Type of the parameter."""
        return self.link()


@dataclass(frozen=True, eq=False)
class Procedure:
    """A function type.

    :param variadic: whether ``...`` follows the parameters.
    :param link: callback that returns the return type.
    """

    parameters: tuple[Parameter, ...]
    variadic: bool
    link: Callable[[], "Type"] = field(repr=False)

    @property
    def result(self) -> "Type":
        """Type of the function's result."""
        return self.link()


Type = (Void | Integer | Float | Incomplete | Pointer | Array | Structure | Enumeration | Typedef
        | Qualified | Procedure)


class Types(Protocol):
    """C types of a kernel; every method raises DebugDataError for damaged debug data."""

    @property
    def format(self) -> str:
        """User-visible name of the format, such as "DWARF" or "CTF version 3"."""

    def named(self, name: str) -> list[Type]:
        """Return the types with a given C name: ``struct thread``, ``uint32_t``, ``unsigned long``.

        Several source files may each define a type of that name; the list may be empty.
        """

    def function(self, name: str, address: int | None = None) -> Procedure | None:
        """Return the type of a function, or None if it is unknown.

        :param address: address that selects one of several static functions with the same name.
        """

    def variable(self, name: str, address: int | None = None) -> Type | None:
        """Return the type of a variable, or None if it is unknown.

        :param address: address that selects one of several static variables with the same name.
        """

    def names(self) -> Iterator[str]:
        """Yield the names of all types that ``named`` can return."""


# Words of base type names, which compilers spell in different ways
_WORDS = ("unsigned", "signed", "short", "char", "int", "long", "float", "double", "_Bool",
          "__int128", "_Complex")


def spellings(name: str) -> tuple[str, ...]:
    """Return the equivalent spellings of a type's name in debug data, the given spelling first."""
    words = name.split()
    name = " ".join(words)
    if not words or any(word not in _WORDS for word in words):
        return (name,)
    longs = words.count("long")
    rest = [w for w in words if w not in ("long", "int", "signed", "unsigned", "short")]
    if rest and rest != ["char"]:
        return (name,)
    if rest:  # plain char is distinct from both signed char and unsigned char
        sign = "unsigned " if "unsigned" in words else "signed " if "signed" in words else ""
        return tuple(dict.fromkeys((name, f"{sign}char")))
    size = "long " * longs + "short " * words.count("short")
    if "unsigned" in words:
        ways = [f"unsigned {size}", f"{size}unsigned int", f"unsigned {size}int"]
    else:
        ways = [f"{size}", f"{size}int", f"signed {size}", f"{size}signed int"]
    return tuple(dict.fromkeys((name, *(way.strip() for way in ways if way.strip()))))


NAMED = (Typedef, Qualified)


def strip(kind: Type) -> Type:
    """Return a type without its outer typedefs and qualifiers."""
    for _ in range(MAX_STEPS):
        if not isinstance(kind, NAMED):
            return kind
        kind = kind.target
    raise DebugDataError("damaged debug data: a type is defined in terms of itself")


def size_of(kind: Type) -> int:
    """Return the size of a type in bytes, like C's ``sizeof``.

    The size is 0 for void, functions and arrays of unknown length.

    :raises DebugDataError: if the type is incomplete.
    """
    count = 1
    for _ in range(MAX_STEPS):
        kind = strip(kind)
        if not isinstance(kind, Array):
            break
        count *= kind.count or 0
        kind = kind.element
    match kind:
        case Integer() | Float() | Structure() | Enumeration():
            return count * kind.size
        case Array():
            raise DebugDataError("damaged debug data: an array has more than "
                                 f"{MAX_STEPS} dimensions")
        case Pointer():
            return count * POINTER_SIZE
        case Incomplete():
            raise DebugDataError(f"{kind.kind} {kind.name} is declared but not defined")
    return 0


def find_member(structure: Structure, name: str) -> Member | None:
    """Return a member by name, with its offset counted from the start of ``structure``, or None.

    The members of unnamed structures and unions are included (C11, 6.7.2.1).
    """
    waiting = [(structure, 0, 0)]
    for _ in range(MAX_PARTS):
        if not waiting:
            return None
        inner, offset, depth = waiting.pop(0)
        for member in inner.members:
            if member.name == name:
                return Member(name, offset + member.offset, member.width, member.link)
            below = strip(member.type) if not member.name else None
            if isinstance(below, Structure) and depth < MAX_STEPS:
                waiting.append((below, offset + member.offset, depth + 1))
    raise DebugDataError(f"damaged debug data: {structure.kind} {structure.name} has too many "
                         f"unnamed members (more than {MAX_PARTS})")


def declare(kind: Type, name: str = "") -> str:
    """Return a C declaration of ``name``, such as ``char *argv[3]`` or ``int (*f)(void *)``."""
    return _declare(kind, name, 0, [])


def _declare(kind: Type, inner: str, depth: int, parts: list[None]) -> str:
    parts.append(None)
    if depth > MAX_STEPS or len(parts) > MAX_PARTS:
        raise DebugDataError("damaged debug data: a type is nested too deeply or too large")
    match kind:
        case Pointer():
            target = kind.target
            inner = f"(*{inner})" if isinstance(target, Array | Procedure) else f"*{inner}"
            return _declare(target, inner, depth + 1, parts)
        case Array():
            count = "" if kind.count is None else kind.count
            return _declare(kind.element, f"{inner}[{count}]", depth + 1, parts)
        case Procedure():
            parameters = [_declare(p.type, p.name, depth + 1, parts) for p in kind.parameters]
            if kind.variadic:
                parameters.append("...")
            return _declare(
                kind.result, f"{inner}({', '.join(parameters) or 'void'})", depth + 1, parts)
        case Qualified():
            target, qualifier = kind.target, kind.qualifier
            if isinstance(target, Qualified) and target.qualifier == qualifier:
                return _declare(target, inner, depth + 1, parts)
            if isinstance(target, Array):  # the qualifier applies to the elements (C11, 6.7.3)
                link = target.link
                qualified = Array(target.count, lambda: Qualified(qualifier, link))
                return _declare(qualified, inner, depth + 1, parts)
            if isinstance(target, Pointer):
                return _declare(target, f"{qualifier} {inner}".rstrip(), depth + 1, parts)
            return f"{qualifier} {_declare(target, inner, depth + 1, parts)}"
        case Void():
            word = "void"
        case Structure() | Incomplete():
            word = f"{kind.kind} {kind.name or '{...}'}"
        case Enumeration():
            word = f"enum {kind.name or '{...}'}"
        case _:
            word = kind.name
    return f"{word} {inner}".rstrip() if inner else word
