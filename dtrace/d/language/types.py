"""Types available to a D program: types of C (LP64), of D, of the program and of the kernel.

They are represented by ``dwarf.types``.  D's ``string``, and the types of values that only the
consumer can show, are typedefs that are recognized by identity.
"""

from collections.abc import Callable, Iterator, Sequence

from dwarf.types import (
    Array,
    Enumeration,
    Float,
    Incomplete,
    Integer,
    Pointer,
    Procedure,
    Qualified,
    Structure,
    Type,
    Typedef,
    Types,
    Void,
    declare,
    size_of,
    strip,
)

VOID = Void()
CHAR = Integer("char", 1, True, "char")
UNSIGNED_CHAR = Integer("unsigned char", 1, False, "char")
SHORT, UNSIGNED_SHORT = Integer("short", 2, True), Integer("unsigned short", 2, False)
INT, UNSIGNED_INT = Integer("int", 4, True), Integer("unsigned int", 4, False)
LONG, UNSIGNED_LONG = Integer("long", 8, True), Integer("unsigned long", 8, False)
LONG_LONG = Integer("long long", 8, True)
UNSIGNED_LONG_LONG = Integer("unsigned long long", 8, False)

BASE: tuple[Type, ...] = (
    CHAR, UNSIGNED_CHAR, SHORT, UNSIGNED_SHORT, INT, UNSIGNED_INT, LONG, UNSIGNED_LONG, LONG_LONG,
    UNSIGNED_LONG_LONG, Integer("signed char", 1, True, "char"), Integer("signed short", 2, True),
    Integer("signed int", 4, True), Integer("signed long", 8, True),
    Integer("signed long long", 8, True), Integer("signed", 4, True),
    Integer("unsigned", 4, False), Integer("_Bool", 1, False, "boolean"),
    Float("float", 4), Float("double", 8), Float("long double", 16),
)

SCOPES = ("", "C", "D", "kernel")  # scopes that may precede the name of a type
TYPEDEFS = {
    "int8_t": "char", "int16_t": "short", "int32_t": "int", "int64_t": "long", "intptr_t": "long",
    "ssize_t": "long", "uint8_t": "unsigned char", "uint16_t": "unsigned short",
    "uint32_t": "unsigned", "uint64_t": "unsigned long", "uchar_t": "unsigned char",
    "ushort_t": "unsigned short", "uint_t": "unsigned", "ulong_t": "unsigned long",
    "u_longlong_t": "unsigned long long", "ptrdiff_t": "long", "uintptr_t": "unsigned long",
    "size_t": "unsigned long", "id_t": "int", "pid_t": "int",
}

MAX_DIMENSIONS = 64  # more than any array has; ``size_of`` refuses an array with more
STRING_SIZE = 256  # maximum size of a string in bytes (default of -x strsize)
_CHARACTERS = Array(STRING_SIZE, lambda: CHAR)
STRING = Typedef("string", lambda: _CHARACTERS)
DYNAMIC = Typedef("<DYN>", lambda: VOID)  # type of a variable before its first assignment
STACK = Typedef("stack", lambda: VOID)
SYMBOL_ADDRESS = Typedef("_symaddr", lambda: VOID)
USER_ADDRESS = Typedef("_usymaddr", lambda: VOID)
SPECIAL = (STRING, DYNAMIC, STACK, SYMBOL_ADDRESS, USER_ADDRESS)
NAMED = (Typedef, Qualified)


def special(kind: Type) -> Type | None:
    """Return the special D type, such as ``string``, that a type resolves to, or None."""
    for _ in range(64):
        if not isinstance(kind, NAMED):
            return None
        if kind in SPECIAL:  # types are compared by identity
            return kind
        kind = kind.target
    return None


def is_string(kind: Type) -> bool:
    """Return whether a type is D's ``string``."""
    return special(kind) is STRING


def is_dynamic(kind: Type) -> bool:
    """Return whether a type is ``DYNAMIC``, the type of a variable before its first assignment."""
    return special(kind) is DYNAMIC


def is_integer(kind: Type) -> bool:
    """Return whether a type is an integer or an enumeration."""
    return isinstance(strip(kind), Integer | Enumeration) and special(kind) is None


def is_float(kind: Type) -> bool:
    """Return whether a type is a floating-point type."""
    return isinstance(strip(kind), Float)


def is_pointer(kind: Type) -> bool:
    """Return whether a type is a pointer or an array, but not a string."""
    return isinstance(strip(kind), Pointer | Array) and not is_string(kind)


def is_undefined(kind: Type) -> bool:
    """Return whether a type, or that of an array's elements, is declared but not defined."""
    kind = _element(kind)
    return isinstance(kind, Incomplete) or (isinstance(kind, Structure) and not kind.size)


def is_void(kind: Type) -> bool:
    """Return whether a type is ``void``."""
    return isinstance(strip(kind), Void) and special(kind) is None


def is_array(kind: Type) -> bool:
    """Return whether a type is an array, but not a string."""
    return isinstance(strip(kind), Array) and special(kind) is None


def is_indirect(kind: Type) -> bool:
    """Return whether a type is a pointer, an array or a string, for which 0 means null."""
    return isinstance(strip(kind), Pointer | Array)


def is_scalar(kind: Type) -> bool:
    """Return whether a type is an integer, an enumeration or a pointer."""
    return is_integer(kind) or isinstance(strip(kind), Pointer)


def is_reference(kind: Type) -> bool:
    """Return whether values of a type are handled by address: strings, structures and arrays."""
    return is_string(kind) or isinstance(strip(kind), Structure | Array | Procedure)


def is_text(kind: Type) -> bool:
    """Return whether a value can be used as a string: a string, ``char *`` or an array of char."""
    if is_string(kind):
        return True
    stripped = strip(kind)
    if not isinstance(stripped, Pointer | Array):
        return False
    inner = strip(pointed(stripped))
    return isinstance(inner, Integer) and inner.size == 1 and inner.signed


def is_vague(kind: Type) -> bool:
    """Return whether a type is a pointer without arithmetic: a pointer to void or to a function."""
    found = strip(kind)
    return isinstance(found, Pointer) and isinstance(strip(found.target), Void | Procedure)


def is_signed(kind: Type) -> bool:
    """Return whether a type is a signed integer; D's enumerations are not, except in arithmetic."""
    kind = strip(kind)
    return isinstance(kind, Integer) and kind.signed


def pointed(kind: Type) -> Type:
    """Return the type that a pointer or an array refers to, or ``void`` for any other type."""
    kind = strip(kind)
    if isinstance(kind, Pointer):
        return kind.target
    if isinstance(kind, Array):
        return kind.element
    return VOID


def pointer_to(kind: Type) -> Pointer:
    """Return the type of a pointer to a given type."""
    return Pointer(lambda: kind)


def width(kind: Type) -> int:
    """Return the size of a type in bytes, or 0 for ``void``, functions and incomplete types.

    An array whose elements have no size has none.
    """
    return 0 if isinstance(_element(kind), Void | Procedure | Incomplete) else size_of(kind)


def _element(kind: Type) -> Type:
    """Return the type of an array's elements, or of those of its elements; or another type."""
    kind = strip(kind)
    for _ in range(MAX_DIMENSIONS):
        if not isinstance(kind, Array):
            break
        kind = strip(kind.element)
    return kind


_ORDER = {kind: number for number, kind in enumerate((
    "signed", "unsigned", "char", "short", "int", "long", "long long", "signed char",
    "signed short", "signed int", "signed long", "signed long long", "unsigned char",
    "unsigned short", "unsigned int", "unsigned long", "unsigned long long", "_Bool"))}


def arithmetic(left: Type, right: Type) -> Type:
    """Return an integer operation's result type: the wider or, at equal width, the unsigned type.

    Of two names for the same type, it is the left one.  Unlike C, D does not promote the operands
    to ``int`` first.
    """
    def rank(kind: Type) -> tuple[int, int]:
        found = strip(kind)
        if isinstance(found, Enumeration):
            found = INT
        assert isinstance(found, Integer)
        return 8 * found.size + (not found.signed), _ORDER.get(found.name, 0)

    chosen = left if rank(left) >= rank(right) else right
    return INT if isinstance(strip(chosen), Enumeration) else chosen


def compatible(left: Type, right: Type, depth: int = 0) -> bool:
    """Return whether two types are the same, apart from qualifiers and typedefs."""
    if special(left) is not special(right):
        return False
    first, second = strip(left), strip(right)
    if first is second or depth > 16:
        return True
    match first, second:
        case Integer(), Integer():
            return first == second
        case Float(), Float():
            return first == second
        case Enumeration(), Enumeration():
            return first.name == second.name
        case Pointer(), Pointer():
            return compatible(first.target, second.target, depth + 1)
        case Array(), Array():
            return first.count == second.count and compatible(
                first.element, second.element, depth + 1)
        case (Structure() | Incomplete()), (Structure() | Incomplete()):
            return bool(first.name) and (first.kind, first.name) == (second.kind, second.name)
        case Void(), Void():
            return True
        case Procedure(), Procedure():
            return True
    return False


def pointers_compatible(left: Type, right: Type) -> bool:
    """Return whether two pointer operands are compatible; one of them may point to void.

    Neither operand is a constant.
    """
    if not is_indirect(left) or not is_indirect(right):
        return False
    first, second = strip(pointed(left)), strip(pointed(right))
    if isinstance(first, Void) or isinstance(second, Void):
        return True
    return compatible(first, second)


def assignable(to: Type, given: Type, zero: bool = False) -> bool:
    """Return whether a value can be assigned to a variable or passed as an argument.

    :param to: type of the variable or parameter.
    :param zero: whether the value is the constant 0, which is also a null pointer.
    """
    if (is_integer(to) and is_integer(given)) or (is_text(to) and is_text(given)):
        return True
    for only in (STACK, SYMBOL_ADDRESS, USER_ADDRESS):
        if special(to) is only or special(given) is only:
            return special(to) is special(given)
    if is_dynamic(to) or is_dynamic(given):
        return False
    if isinstance(strip(to), Procedure | Structure | Incomplete):
        return compatible(to, given)
    if (is_indirect(to) and is_integer(given)) or (is_integer(to) and is_indirect(given)):
        return zero
    return pointers_compatible(to, given)


def spelled(kind: Type) -> str:
    """Return the name of a type for error messages."""
    if is_dynamic(kind):
        return "dynamic variable"
    stripped = strip(kind)
    if isinstance(stripped, Pointer) and isinstance(strip(stripped.target), Procedure):
        return "function pointer"
    if isinstance(stripped, Procedure):
        return "function"
    return declare(_plain(kind))


def _plain(kind: Type) -> Type:
    """Return a type without qualifiers, which D ignores."""
    while isinstance(kind, Qualified):
        kind = kind.target
    if isinstance(kind, Pointer):
        inner = _plain(kind.target)
        return Pointer(lambda: inner)
    if isinstance(kind, Array):
        element, count = _plain(kind.element), kind.count
        return Array(count, lambda: element)
    return kind


class Universe:
    """The types and enumerators that a D program can name.

    :param kernel: types of the kernel; None for a program without one.
    """

    def __init__(self, kernel: Types | None = None) -> None:
        self.kernel = kernel
        # Returns the types of a program, by a scope such as ``pid17``
        self.programs: Callable[[str], Sequence[Types]] = lambda _scope: ()
        self.string_size: Callable[[], int] = lambda: STRING_SIZE  # in bytes, as -x strsize says
        self._named: dict[str, Type] = {}
        self._tags: dict[tuple[str, str], Type] = {}
        self._enumerators: dict[str, tuple[int, Type]] = {}
        for kind in BASE:
            self._named[declare(kind)] = kind
        self._named["void"] = VOID
        for kind in (STRING, STACK, SYMBOL_ADDRESS, USER_ADDRESS):
            self._named[kind.name] = kind
        for name, of in TYPEDEFS.items():
            self.define(name, self._named[of])

    def width(self, kind: Type) -> int:
        """Return the size of a type in bytes, like ``width()``; a string has the program's size.

        The elements of an array of strings have the default size.
        """
        return self.string_size() if is_string(kind) else width(kind)

    def define(self, name: str, kind: Type) -> None:
        """Define a typedef."""
        self._named[name] = Typedef(name, lambda: kind)

    def own(self, name: str) -> Type | None:
        """Return a type that the program or D itself defines, or None."""
        return self._named.get(name)

    def named(self, name: str) -> Type | None:
        """Return the type with an unprefixed name (no ``struct``, ``union``, ``enum``), or None."""
        scope, mark, plain = name.rpartition("`")
        if mark and scope not in SCOPES:
            return self._of_program(scope, plain)
        found = self._named.get(plain)
        if found is None and self.kernel is not None:
            kernel = self.kernel.named(plain)
            found = kernel[0] if kernel else None
        return found

    def tagged(self, kind: str, name: str) -> Type | None:
        """Return the ``struct``, ``union`` or ``enum`` type with a given tag, or None if unknown.

        The type is incomplete if there is no definition.
        """
        scope, mark, plain = name.rpartition("`")
        if mark and scope not in SCOPES:
            return self._of_program(scope, f"{kind} {plain}")
        found = self._tags.get((kind, plain))
        if (found is None or isinstance(found, Incomplete)) and self.kernel is not None:
            kernel = self.kernel.named(f"{kind} {plain}")
            found = kernel[0] if kernel else found
        return found

    def _of_program(self, scope: str, name: str) -> Type | None:
        return next((kind for types in self.programs(scope) for kind in types.named(name)[:1]),
                    None)

    def tag(self, kind: str, name: str, what: Type) -> None:
        """Define a ``struct``, ``union`` or ``enum`` type."""
        self._tags[kind, name] = what

    def enumerate(self, values: Iterator[tuple[str, int]], kind: Type) -> None:
        """Define the enumerators of an enumeration."""
        for name, value in values:
            self._enumerators[name] = value, kind

    def enumerator(self, name: str) -> tuple[int, Type] | None:
        """Return the value and type of an enumerator, or None."""
        return self._enumerators.get(name)
