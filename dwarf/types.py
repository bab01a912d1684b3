"""C types as debug data describes them, whichever format it has: what the D language asks for.

Types are graphs with loops (``struct thread`` leads to ``struct proc`` and back), so what a type
refers to is read when it is asked for.  Sizes are in bytes, offsets and widths of members in bits
from the structure's begin; guests are little-endian, so bit 0 is the lowest of the first byte.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from dwarf.debug_file import DebugDataError

MAX_STEPS = 64  # through typedefs, qualifiers, arrays and members without a name
MAX_PARTS = 4096  # of a declaration, or structures looked through for a member
MAX_NUMBER = 16  # bytes of a number
MAX_SIZE = 1 << 40  # bytes of a structure, elements of an array
POINTER_SIZE = 8


def _bounded(what: str, number: int | None, least: int, most: int) -> None:
    if number is not None and not least <= number <= most:
        raise DebugDataError(f"{what} of {number}: damaged debug data")


@dataclass(frozen=True)
class Void:
    """No value."""


@dataclass(frozen=True)
class Integer:
    """``char``, ``_Bool``, ``unsigned long`` and the like.

    :param encoding: "integer", "char" or "boolean".
    """

    name: str
    size: int
    signed: bool
    encoding: str = "integer"

    def __post_init__(self) -> None:
        _bounded("a number with a size", self.size, 1, MAX_NUMBER)


@dataclass(frozen=True)
class Float:
    """``float``, ``double`` and the like; also complex ones."""

    name: str
    size: int

    def __post_init__(self) -> None:
        _bounded("a number with a size", self.size, 1, 2 * MAX_NUMBER)


@dataclass(frozen=True)
class Incomplete:
    """A structure, union or enumeration of which only the name is known."""

    kind: str
    name: str


@dataclass(frozen=True, eq=False)
class Pointer:
    """:param link: gives the type pointed to."""

    link: Callable[[], "Type"] = field(repr=False)

    @property
    def target(self) -> "Type":
        return self.link()


@dataclass(frozen=True, eq=False)
class Array:
    """:param count: of elements; None where the declaration leaves it open (``char name[]``)."""

    count: int | None
    link: Callable[[], "Type"] = field(repr=False)

    def __post_init__(self) -> None:
        _bounded("an array with a count", self.count, 0, MAX_SIZE)

    @property
    def element(self) -> "Type":
        return self.link()


@dataclass(frozen=True, eq=False)
class Member:
    """A member of a structure or union.

    :param name: empty for a structure or union without one.
    :param offset: bits from the begin of the structure.
    :param width: bits of a bit-field; None for any other member.
    """

    name: str
    offset: int
    width: int | None
    link: Callable[[], "Type"] = field(repr=False)

    def __post_init__(self) -> None:
        _bounded("a member with an offset", self.offset, 0, 8 * MAX_SIZE)
        _bounded("a bit-field with a width", self.width, 0, 8 * MAX_NUMBER)

    @property
    def type(self) -> "Type":
        return self.link()


@dataclass(frozen=True, eq=False)
class Structure:
    """:param kind: "struct" or "union"; ``name`` is empty where it has none."""

    kind: str
    name: str
    size: int
    link: Callable[[], tuple[Member, ...]] = field(repr=False)

    def __post_init__(self) -> None:
        _bounded(f"a {self.kind} with a size", self.size, 0, MAX_SIZE)

    @property
    def members(self) -> tuple[Member, ...]:
        return self.link()


@dataclass(frozen=True, eq=False)
class Enumeration:
    """:param link: gives the enumerators, (name, value), in the order of the declaration."""

    name: str
    size: int
    link: Callable[[], tuple[tuple[str, int], ...]] = field(repr=False)

    def __post_init__(self) -> None:
        _bounded("an enumeration with a size", self.size, 1, MAX_NUMBER)

    @property
    def values(self) -> tuple[tuple[str, int], ...]:
        return self.link()

    @property
    def signed(self) -> bool:
        return any(value < 0 for _name, value in self.values)


@dataclass(frozen=True, eq=False)
class Typedef:
    name: str
    link: Callable[[], "Type"] = field(repr=False)

    @property
    def target(self) -> "Type":
        return self.link()


@dataclass(frozen=True, eq=False)
class Qualified:
    """:param qualifier: "const", "volatile", "restrict" or "_Atomic"."""

    qualifier: str
    link: Callable[[], "Type"] = field(repr=False)

    @property
    def target(self) -> "Type":
        return self.link()


@dataclass(frozen=True, eq=False)
class Parameter:
    """:param name: empty where the debug data has none (CTF never has)."""

    name: str
    link: Callable[[], "Type"] = field(repr=False)

    @property
    def type(self) -> "Type":
        return self.link()


@dataclass(frozen=True, eq=False)
class Procedure:
    """The type of a function.

    :param variadic: whether ``...`` follows the parameters.
    """

    parameters: tuple[Parameter, ...]
    variadic: bool
    link: Callable[[], "Type"] = field(repr=False)

    @property
    def result(self) -> "Type":
        return self.link()


Type = (Void | Integer | Float | Incomplete | Pointer | Array | Structure | Enumeration | Typedef
        | Qualified | Procedure)


class Types(Protocol):
    """The types of a kernel.  Every question may raise DebugDataError (damaged debug data)."""

    @property
    def format(self) -> str:
        """Where they come from, as a user would say it: "DWARF", "CTF version 3"."""

    def named(self, name: str) -> list[Type]:
        """The types of that name, as C spells it: ``struct thread``, ``uint32_t``, ``unsigned
        long``.  Several files may each have their own; empty when there is none."""

    def function(self, name: str, address: int | None = None) -> Procedure | None:
        """What a function takes and gives.

        :param address: tells static functions of one name from each other.
        """

    def variable(self, name: str, address: int | None = None) -> Type | None:
        """The type of a variable, ``address`` as above."""

    def names(self) -> Iterator[str]:
        """All names that ``named`` knows."""


# Base types have one meaning and many spellings; compilers choose different ones.
_WORDS = ("unsigned", "signed", "short", "char", "int", "long", "float", "double", "_Bool",
          "__int128", "_Complex")


def spellings(name: str) -> tuple[str, ...]:
    """The ways in which debug data may spell a type's name, the given one first."""
    words = name.split()
    name = " ".join(words)
    if not words or any(word not in _WORDS for word in words):
        return (name,)
    longs = words.count("long")
    rest = [w for w in words if w not in ("long", "int", "signed", "unsigned", "short")]
    if rest and rest != ["char"]:
        return (name,)
    if rest:  # a plain char is neither the signed one nor the unsigned one
        sign = "unsigned " if "unsigned" in words else "signed " if "signed" in words else ""
        return tuple(dict.fromkeys((name, f"{sign}char")))
    size = "long " * longs + "short " * words.count("short")
    if "unsigned" in words:
        ways = [f"unsigned {size}", f"{size}unsigned int", f"unsigned {size}int"]
    else:
        ways = [f"{size}", f"{size}int", f"signed {size}", f"{size}signed int"]
    return tuple(dict.fromkeys((name, *(way.strip() for way in ways if way.strip()))))


def strip(kind: Type) -> Type:
    """A type without the typedefs and qualifiers around it."""
    for _ in range(MAX_STEPS):
        if not isinstance(kind, Typedef | Qualified):
            return kind
        kind = kind.target
    raise DebugDataError("a type that is defined by itself: damaged debug data")


def size_of(kind: Type) -> int:
    """What ``sizeof`` gives: 0 for void, functions and arrays of no known length.

    :raises DebugDataError: for a type that is not complete.
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
            raise DebugDataError("an array of too many dimensions: damaged debug data")
        case Pointer():
            return count * POINTER_SIZE
        case Incomplete():
            raise DebugDataError(f"{kind.kind} {kind.name} is declared but not defined")
    return 0


def find_member(structure: Structure, name: str) -> Member | None:
    """A member by name, also one inside members without a name (C11, 6.7.2.1), with its offset from
    the begin of ``structure``."""
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
    raise DebugDataError(f"{structure.kind} {structure.name} is nested too much: damaged "
                         "debug data")


def declare(kind: Type, name: str = "") -> str:
    """A declaration of ``name`` as C writes it: ``char *argv[3]``, ``int (*f)(void *)``."""
    return _declare(kind, name, 0, [])


def _declare(kind: Type, inner: str, depth: int, parts: list[None]) -> str:
    parts.append(None)
    if depth > MAX_STEPS or len(parts) > MAX_PARTS:
        raise DebugDataError("a type that is nested too deep: damaged debug data")
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
            if isinstance(target, Array):  # it is the elements that are (C11, 6.7.3)
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
