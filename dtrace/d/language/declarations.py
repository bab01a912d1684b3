"""Declarations: types from specifiers and declarators, and the layout of structures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dtrace.d.language import constants, syntax
from dtrace.d.language.errors import DError, SourcePlace
from dtrace.d.language.types import INT, Universe, is_dynamic, is_undefined, is_void, spelled, width
from dwarf.types import (
    Array,
    Enumeration,
    Float,
    Incomplete,
    Integer,
    Member,
    Pointer,
    Procedure,
    Structure,
    Type,
    strip,
)

ATTRIBUTES = ("signed", "unsigned", "short", "long")
MAX_COUNT = (1 << 32) - 1
MAX_SIZE = 1 << 31  # maximum size of a structure in bytes

Parameters = list[tuple[str, Type, SourcePlace]]


def _link(kind: Type) -> Callable[[], Type]:
    return lambda: kind


@dataclass
class Specifiers:
    """The specifiers before the declarators of a declaration.

    Qualifiers are parsed but have no effect, since D ignores them.
    """

    place: SourcePlace
    storage: str = ""
    base: Type | None = None
    word: str = ""  # basic type, such as "int" or "void"
    attributes: list[str] = field(default_factory=list)
    qualified: bool = False

    @property
    def has_type(self) -> bool:
        """Whether a type has been specified."""
        return self.base is not None or bool(self.word)

    def whole(self, kind: Type, place: SourcePlace) -> None:
        """Set the type to a structure, an enumeration, a string or a typedef.

        :raises DError: if a type was already specified.
        """
        if self.has_type:
            raise DError("D_DECL_COMBO", "invalid type combination", place)
        self.base = kind

    def add(self, word: str, place: SourcePlace) -> None:
        """Add a keyword of a type, such as ``unsigned`` or ``int``.

        :raises DError: if a type was already specified.
        """
        if word in ATTRIBUTES:
            self.attributes.append(word)
        elif word != "userland":
            if self.has_type:
                raise DError("D_DECL_COMBO", "invalid type combination", place)
            self.word = word

    def storage_class(self, word: str, place: SourcePlace) -> None:
        """Set the storage class.

        :raises DError: if another one was already specified.
        """
        if self.storage and self.storage != word:
            raise DError("D_DECL_CLASS", "only one storage class allowed in a declaration", place)
        self.storage = word

    @property
    def nothing(self) -> bool:
        """Whether a declaration with these specifiers is useless without a name."""
        return self.storage != "" or not isinstance(
            None if self.base is None else strip(self.base), Structure | Incomplete | Enumeration)

    def resolve(self, universe: Universe) -> Type:
        """Return the specified type.

        :raises DError: if the specifiers do not form a type.
        """
        self._check()
        if self.base is not None:
            return self.base
        attributes = self.attributes
        if not self.word and not attributes and self.qualified:
            raise self._fail("D_UNKNOWN", "failed to resolve type : Unknown type name")
        if not self.word and not attributes:
            return INT
        longs = min(attributes.count("long"), 2)
        sized = ("short " * ("short" in attributes) + "long " * longs)
        word = "" if sized and self.word in ("", "int") else self.word
        name = ("signed " * ("signed" in attributes) + "unsigned " * ("unsigned" in attributes)
                + sized + word)
        found = universe.own(name.strip())
        if found is None:
            raise self._fail("D_UNKNOWN", f"failed to resolve type {name}: Unknown type name")
        return found

    def _check(self) -> None:
        """Check that the attributes are allowed for the base type."""
        attributes, base = self.attributes, None if self.base is None else strip(self.base)
        prefix = "invalid type declaration: "
        if self.word == "char" and {"short", "long"} & set(attributes):
            raise self._fail(
                "D_DECL_CHARATTR", f"{prefix}short and long may not be used with char type")
        if self.word == "void" and attributes:
            raise self._fail(
                "D_DECL_VOIDATTR", f"{prefix}attributes may not be used with void type")
        number = self.base is None and self.word not in ("float", "double")
        if {"signed", "unsigned"} & set(attributes) and not number:
            raise self._fail("D_DECL_SIGNINT",
                             f"{prefix}signed and unsigned may only be used with integer type")
        if "long" in attributes and self.base is not None and not isinstance(base, Float):
            raise self._fail("D_DECL_LONGINT", f"{prefix}long and long long may only be used with "
                             "integer or floating-point type")

    def _fail(self, tag: str, text: str) -> DError:
        return DError(tag, text, self.place)


@dataclass
class Declarator:
    """A declarator, such as ``*name[3](int)``.

    :param own: name that is directly in this declarator, if any.
    :param pointers: number of ``*`` before it.
    :param inner: declarator in parentheses.
    """

    place: SourcePlace
    own: str | None
    pointers: int
    inner: "Declarator | None" = None
    suffixes: list[tuple[str, int | None, Parameters, bool]] = field(default_factory=list)

    @property
    def name(self) -> str | None:
        """Name that the declarator declares, or None."""
        return self.own if self.inner is None else self.inner.name

    def function(self, parameters: Parameters, variadic: bool) -> None:
        """Append the parameters of a function."""
        self.suffixes.append(("function", None, parameters, variadic))

    def array(self, count: int | None) -> None:
        """Append an array dimension; ``count`` is None for ``[]``."""
        self.suffixes.append(("array", count, [], False))

    def keyed(self, parameters: Parameters) -> None:
        """Append the keys of an associative array."""
        self.suffixes.append(("keys", None, parameters, False))

    @property
    def nearest(self) -> "Declarator":
        """The declarator whose brackets are next to the name."""
        found = self
        while found.inner is not None and not found.inner.pointers:
            found = found.inner
        return found

    def keys(self) -> Parameters | None:
        """Remove the keys of an associative array, which are not part of its type, and return them.

        :return: None if the declarator has no keys.
        """
        suffixes = self.nearest.suffixes
        if suffixes and suffixes[0][0] == "keys":
            return suffixes.pop(0)[2]
        return None

    @property
    def open_array(self) -> bool:
        """Whether empty brackets follow the name, as in ``name[]``."""
        suffixes = self.nearest.suffixes
        return bool(suffixes) and suffixes[0][:2] == ("array", None)


def apply(specifiers: Specifiers, declarator: Declarator, universe: Universe) -> Type:
    """Return the type of the name that a declarator declares."""
    return _apply(specifiers.resolve(universe), declarator)


def _apply(kind: Type, declarator: Declarator) -> Type:
    for _ in range(declarator.pointers):
        kind = Pointer(_link(kind))
    for what, count, _parameters, _variadic in reversed(declarator.suffixes):
        if what == "function":
            kind = Procedure((), False, _link(INT))  # as in DTrace, without the declared types
        elif what == "keys":
            raise DError("D_DECL_DYNOBJ", "cannot declare array of associative arrays",
                         declarator.place)
        else:
            if is_void(kind):
                raise DError("D_DECL_VOIDOBJ", "cannot declare array of void", declarator.place)
            if (count or 0) * max(width(kind), 1) > 1 << 40:
                raise DError("D_DECL_ARRBIG", "array dimension too big", declarator.place)
            kind = Array(count, _link(kind))
    return kind if declarator.inner is None else _apply(kind, declarator.inner)


def array_size(value: syntax.Expression, universe: Universe) -> int:
    """Return the number of elements in an array declaration.

    :raises DError: if it is not a positive constant, or is too large.
    """
    text = ("positive integral constant expression or tuple signature expected as array "
            "declaration subscript")
    count = constants.integer(value, universe, "D_DECL_ARRSUB", text)
    if count <= 0:
        raise DError("D_DECL_ARRSUB", text, value.place)
    if count > MAX_COUNT:
        raise DError("D_DECL_ARRBIG", "array dimension too big", value.place)
    return count


def check_parameters(parameters: Parameters, variadic: bool, of: str, place: SourcePlace) -> None:
    """Check the parameters of a function, or the keys of an associative array.

    :param of: "function" or "array".
    :raises DError: if one is not allowed.
    """
    if variadic and of != "function":
        raise DError("D_DECL_PROTO_VARARGS", f"{of} prototype may not use a variable-length "
                     "argument list", place)
    seen: set[str] = set()
    for number, (name, kind, where) in enumerate(parameters):
        shown = f"{name or '(anonymous)'}, parameter #{number + 1}"
        if is_dynamic(kind) or (is_void(kind) and of == "array"):
            raise DError("D_DECL_PROTO_TYPE", f"{of} prototype may not use parameter of type "
                         f"{spelled(kind)}: {shown}", where)
        if is_void(kind) and name:
            raise DError("D_DECL_PROTO_NAME", f"void parameter may not have a name: {name}", where)
        if name and name in seen:
            raise DError("D_DECL_PROTO_FORM", f"parameter is already declared in {of} prototype: "
                         f"{shown}", where)
        seen.add(name)
    if len(parameters) > 1 and any(is_void(kind) for _name, kind, _where in parameters):
        raise DError("D_DECL_PROTO_VOID", "void must be sole parameter", place)


Entry = tuple[Declarator, Specifiers, syntax.Expression | None]


def member_layout(word: str, entries: Sequence[Entry], universe: Universe
                  ) -> tuple[int, list[Member]]:
    """Return the size of a structure or union, and its members.

    D's own structures differ from C's: each member begins at a byte boundary, aligned for its type,
    or if it is a structure, for the first member of that; bit-fields are not packed together, and
    there is no padding at the end.
    """
    members: list[Member] = []
    names: set[str] = set()
    offset, size = 0, 0  # sizes and offsets in bytes
    for declarator, specifiers, bits in entries:
        place, name = declarator.place, declarator.name or ""
        if not name and bits is None:
            raise DError("D_DECL_MNAME", "member declaration requires a name", place)
        if declarator.keys() is not None:
            raise DError("D_DECL_DYNOBJ", f"cannot have dynamic member: {name}", place)
        kind = apply(specifiers, declarator, universe)
        if "`" in name:
            raise DError("D_DECL_SCOPE", "D scoping operator may not be used in a member name "
                         f"({name})", place)
        if is_dynamic(kind):
            raise DError("D_DECL_DYNOBJ", f"cannot have dynamic member: {name}", place)
        if is_undefined(kind):
            raise DError("D_DECL_INCOMPLETE", "incomplete struct/union/enum "
                         f"{spelled(kind)}: {name}", place)
        octets = universe.width(kind)
        if not octets and bits is None:
            raise DError("D_DECL_VOIDOBJ", f"cannot have void member: {name}", place)
        if name in names and name:
            raise DError("D_UNKNOWN", f"failed to define member '{name}': Duplicate member name "
                         "definition", place)
        names.add(name)
        bit_width = None if bits is None else _bit_field(bits, name, kind, universe)
        if bit_width == 0:
            continue
        align = _alignment(kind) if bit_width is None else _storage(bit_width)
        offset = 0 if word == "union" else -(-offset // align) * align
        members.append(Member(name, 8 * offset, bit_width, _link(kind)))
        size = max(size, offset + (octets if bit_width is None else align))
        offset += octets if bit_width is None else -(-bit_width // 8)
        if size > MAX_SIZE:
            raise DError("D_DECL_ARRBIG", "array dimension too big", place)
    return size, members


def _storage(bits: int) -> int:
    """Return the size in bytes of a bit-field's storage, a power of two."""
    octets = 1
    while 8 * octets < bits:
        octets *= 2
    return octets


def _alignment(kind: Type, known: dict[int, int] | None = None) -> int:
    """Return the alignment of a type in bytes.

    :param known: alignments of structures, by ``id()``: nested structures may occur many times.
    """
    known = {} if known is None else known
    kind = strip(kind)
    for _ in range(64):
        if not isinstance(kind, Array):
            break
        kind = strip(kind.element)
    if isinstance(kind, Structure):
        if id(kind) not in known:
            # As in DTrace, a structure is aligned as its first member, a union as any member.
            members = kind.members[:1] if kind.kind == "struct" else kind.members
            known[id(kind)] = max([
                _alignment(member.type, known) if member.width is None or not kind.of_program
                else _storage(member.width) for member in members], default=1)
        return known[id(kind)]
    return max(width(kind), 1)


def _bit_field(bits: syntax.Expression, name: str, kind: Type, universe: Universe) -> int:
    text = "positive integral constant expression expected as bit-field size"
    value = constants.integer(bits, universe, "D_DECL_BFCONST", text)
    if value < 0 or (value == 0 and name):
        raise DError("D_DECL_BFCONST", text, bits.place)
    if not isinstance(strip(kind), Integer) or is_void(kind):
        raise DError(
            "D_DECL_BFTYPE", f"invalid type for bit-field: {name or '(anon)'}", bits.place)
    if value > 8 * width(kind):
        raise DError(
            "D_DECL_BFSIZE", f"bit-field too big for type: {name or '(anon)'}", bits.place)
    return value
