"""C types from DWARF 4 and 5; the index locates them by name, and entries are read on demand."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from elftools.dwarf.die import DIE

from dwarf import types as c
from dwarf._entries import Entry
from dwarf.entries import Entries, EntryFile
from dwarf.index import MAX_NAME, VARIABLE, DebugIndex, Declared, Function, shown
from emu.elf.reader import ElfFile

if TYPE_CHECKING:
    from dwarf.call_sites import CallSites
    from dwarf.locations import Frame, Locations, Place, Term
    from dwarf.scopes import Scopes, Variable

# C keyword for each tag (DWARF 5, 7.5.3) of a type that can be looked up by name
PREFIXES = {0x04: "enum ", 0x13: "struct ", 0x17: "union ", 0x16: "", 0x24: ""}
# DW_TAG codes (DWARF 5, 7.5.3)
ARRAY, FORMAL_PARAMETER, UNSPECIFIED_PARAMETERS, SUBROUTINE = 0x01, 0x05, 0x18, 0x15
ENUMERATION, MEMBER, POINTERS, TYPEDEF, UNSPECIFIED = 0x04, 0x0D, (0x0F, 0x10), 0x16, 0x3B
SUBRANGE, BASE, ENUMERATOR = 0x21, 0x24, 0x28
QUALIFIERS = {0x26: "const", 0x35: "volatile", 0x37: "restrict", 0x47: "_Atomic"}
MOST_REFERENCES = 8  # maximum number of entries that refer to one another
AGGREGATES = {0x13: "struct", 0x02: "struct", 0x17: "union"}
# DW_AT codes (DWARF 5, 7.5.4)
NAME, BYTE_SIZE, LOWER_BOUND, UPPER_BOUND, COUNT = 0x03, 0x0B, 0x22, 0x2F, 0x37
BIT_OFFSET, BIT_SIZE, DATA_BIT_OFFSET, DATA_MEMBER_LOCATION = 0x0C, 0x0D, 0x6B, 0x38
CONST_VALUE, ENCODING, DECLARATION, TYPE, SIGNATURE = 0x1C, 0x3E, 0x3C, 0x49, 0x69
ABSTRACT_ORIGIN, SPECIFICATION = 0x31, 0x47
LINKAGE_NAMES = 0x6E, 0x2007  # DW_AT_linkage_name, DW_AT_MIPS_linkage_name
# DW_ATE codes (DWARF 5, 7.8)
BOOLEAN, FLOATS, SIGNED, CHARS = 0x02, (0x03, 0x04), (0x05, 0x06, 0x0D), (0x06, 0x08, 0x10)
OP_PLUS_UCONST, OP_CONSTU = 0x23, 0x10


class DwarfTypes(c.Types):
    """C types from the DWARF of a file.

    :param loaded: address at which a module is loaded; 0 for a kernel.
    :raises DebugDataError: from every method, if the data is damaged.
    """

    def __init__(self, file: ElfFile, index: DebugIndex, loaded: int = 0) -> None:
        self._entries, self._index, self._loaded = Entries(file), index, loaded
        self._file = EntryFile(file, index)
        self._known: dict[int, c.Type] = {}
        self._procedures: dict[int, c.Procedure] = {}  # prototypes, keyed by entry
        self._locations: Locations | None = None
        self._scopes: Scopes | None = None
        self._call_sites: CallSites | None = None

    @property
    def format(self) -> str:
        """User-visible name of the format, "DWARF"."""
        return "DWARF"

    # -- lookup ---------------------------------------------------------------------------------

    def named(self, name: str) -> list[c.Type]:
        """Return the types with a given C name, in any spelling ("long" or "long int")."""
        if name.strip() == "void":
            return [c.Void()]
        prefix, _, tag = name.strip().partition(" ")
        if f"{prefix} " in PREFIXES.values() and tag.strip():
            return self._declared(tag.strip(), f"{prefix} ")
        for spelling in c.spellings(name):
            if types := self._declared(spelling, ""):
                return types
        return []

    def _declared(self, name: str, prefix: str) -> list[c.Type]:
        with self._entries.reading():
            return [self._read(self._file.entry(d.entry, d.unit))
                    for d in self._index.declared(name) if PREFIXES.get(d.tag) == prefix]

    def function(self, name: str, address: int | None = None) -> c.Procedure | None:
        """Return a function's type, or None; ``address`` selects among functions of this name."""
        candidates = [f for f in self._index.named(name) if not f.inlined]
        # Prefer the function at the address, or else a function with code over a declaration.
        candidates.sort(key=lambda f: (
            not any(low == address for low, _high in f.pieces), not f.pieces, f.number))
        for function in candidates:
            place = self._index.subject(function.number)
            if place is not None:
                return self._prototype(*place)
        return None

    def _prototype(self, offset: int, unit: int) -> c.Procedure:
        """Return the prototype of the function with an entry."""
        known = self._procedures.get(offset)
        if known is None:
            with self._entries.reading():
                known = self._procedures[offset] = self._procedure(self._file.entry(offset, unit))
        return known

    def _places(self) -> "Locations":
        if self._locations is None:
            from dwarf.locations import Locations  # imported late, because it is rarely needed

            self._locations = Locations(self._entries, self._index, self._loaded)
        return self._locations

    @property
    def scopes(self) -> "Scopes":
        """Reader for the variables in scope at instructions of this file."""
        if self._scopes is None:
            from dwarf.scopes import Scopes  # imported late, because it is rarely needed

            self._scopes = Scopes(self._entries, self._index, self._places(), self._type_of)
        return self._scopes

    def variables(self, copy: Function, address: int, frame: "Frame | None"
                  ) -> "list[Variable]":
        """Return the variables in scope at an instruction, as ``Scopes.variables`` does."""
        return self.scopes.variables(copy, address, frame)

    def variable_names(self, copy: Function) -> set[str]:
        """Return the names of all variables of a function, in scope or not."""
        return self.scopes.names(copy)

    def call_value(self, caller: Function, back: int, register: int
                   ) -> "tuple[Term, str | Term | None]":
        """Return the value that a call passes in a register, as ``CallSites.value`` does."""
        if self._call_sites is None:
            from dwarf.call_sites import CallSites  # imported late, because it is rarely needed

            self._call_sites = CallSites(self._entries, self._index, self._places())
        return self._call_sites.value(caller, back, register)

    def kept(self, name: str, start: int, address: int, frame: "Frame | None"
             ) -> "list[Place | None] | None":
        """Return the location of each parameter of a function just before an instruction executes.

        A location is None for a parameter that is not available there; the result is None for an
        unknown function.

        :param start: address of the function.
        :param address: address of the instruction.
        :param frame: frame as in ``Locations.parameters``.
        """
        function = self._starting(name, start)
        return None if function is None else self._places().parameters(function, address, frame)

    def changed(self, name: str, start: int) -> bool:
        """Return whether the compiler has changed how a function takes its arguments.

        The calling convention does not locate the arguments of such a function.

        :param start: address of the function.
        """
        function = self._starting(name, start)
        return function is not None and self._places().changed(function)

    def _starting(self, name: str, start: int) -> Function | None:
        return next((f for f in self._index.named(name) if not f.inlined and any(
            low == start for low, _high in f.pieces)), None)

    def linkage_name(self, function: Function) -> str:
        """Return the name of a function's symbol if it differs from its name, as in C++, or ""."""
        place = self._index.subject(function.number)
        if place is None:
            return ""
        with self._entries.reading():
            entry = self._file.entry(*place)
            for _ in range(MOST_REFERENCES):
                for name in LINKAGE_NAMES:
                    value = entry.attributes.get(name)
                    if isinstance(value, bytes):
                        return shown(value)
                if SPECIFICATION not in entry.attributes:
                    break
                entry = self._file.referred(entry, SPECIFICATION)
        return ""

    def inlined(self, copy: Function, address: int, frame: "Frame | None" = None
                ) -> tuple[c.Procedure, "list[Place | None]"] | None:
        """Return the prototype of an inline copy's function, and the location of each parameter.

        A location is None for a parameter that is not available when the instruction at
        ``address`` begins.
        """
        place = self._index.subject(copy.number)
        if place is None:
            return None
        return self._prototype(*place), self._places().parameters(copy, address, frame)

    def variable(self, name: str, address: int | None = None) -> c.Type | None:
        """Return a variable's type, or None; ``address`` selects among variables of this name."""
        candidates = [d for d in self._index.declared(name) if d.tag == VARIABLE]
        candidates.sort(key=lambda d: d.value != address)
        return self._variable(candidates[0]) if candidates else None

    def _variable(self, declared: Declared) -> c.Type:
        with self._entries.reading():
            return self._linked(self._file.entry(declared.entry, declared.unit))()

    def names(self) -> Iterator[str]:
        """Yield the C names of all types."""
        before = ""
        for declared in self._index.declarations():
            if declared.tag in PREFIXES:
                name = PREFIXES[declared.tag] + declared.name
                if name != before:
                    yield name
                before = name

    # -- entries --------------------------------------------------------------------------------

    def _type_of(self, entry: DIE) -> Callable[[], c.Type]:
        """Return a callback that reads the type in the DW_AT_type of an entry of pyelftools."""
        return self._linked(self._file.entry(entry.offset, entry.cu.cu_offset))

    def _read(self, entry: Entry) -> c.Type:
        """Return the type that an entry describes, following DW_AT_signature to its type unit."""
        if SIGNATURE in entry.attributes:
            entry = self._file.referred(entry, SIGNATURE)
        known = self._known.get(entry.offset)
        if known is None:
            known = self._known[entry.offset] = self._type(entry)
        return known

    def _linked(self, entry: Entry) -> Callable[[], c.Type]:
        """Return a callback that reads the type in an entry's DW_AT_type."""
        for _ in range(c.MAX_STEPS):
            if TYPE in entry.attributes:
                return partial(self._follow, entry)
            origin = next((a for a in (ABSTRACT_ORIGIN, SPECIFICATION) if a in entry.attributes),
                          None)
            if origin is None:
                return c.Void
            entry = self._file.referred(entry, origin)
        raise ValueError(f"the chain of references to the entry at {entry.offset:#x} is too long")

    def _follow(self, entry: Entry) -> c.Type:
        offset = entry.attributes[TYPE]
        known = self._known.get(offset) if isinstance(offset, int) else None
        if known is not None:
            return known
        with self._entries.reading():
            return self._read(self._file.referred(entry, TYPE))

    def _type(self, entry: Entry) -> c.Type:
        name, size, tag = _name(entry), _number(entry, BYTE_SIZE), entry.tag
        link = self._linked(entry)
        if tag in AGGREGATES or tag == ENUMERATION:
            kind = AGGREGATES.get(tag, "enum")
            if size is None or DECLARATION in entry.attributes:
                return self._definition(kind, name, entry.offset)
            if kind == "enum":
                return c.Enumeration(name, size, partial(self._values, entry))
            return c.Structure(kind, name, size, partial(self._members, entry))
        if tag in QUALIFIERS:
            return c.Qualified(QUALIFIERS[tag], link)
        if tag == BASE:
            return _base(entry, name, size or 0)
        if tag in POINTERS:
            return c.Pointer(link)
        if tag == TYPEDEF:
            return c.Typedef(name, link)
        if tag == ARRAY:
            return self._array(entry, link)
        if tag == SUBROUTINE:
            return self._procedure(entry)
        if tag == UNSPECIFIED:
            return c.Void()
        raise ValueError(f"the entry at {entry.offset:#x} with the tag {tag:#x} is not a type")

    def _definition(self, kind: str, name: str, asked: int) -> c.Type:
        """Return the definition of a declared type if exactly one exists, else the declaration."""
        definitions = [d for d in self._index.declared(name)
                       if PREFIXES.get(d.tag) == f"{kind} "] if name else []
        if len(definitions) == 1 and definitions[0].entry != asked:
            return self._read(self._file.entry(definitions[0].entry, definitions[0].unit))
        return c.Incomplete(kind, name)

    def _array(self, entry: Entry, link: Callable[[], c.Type]) -> c.Type:
        """Return an array type from an entry that has a child for each dimension."""
        counts = [_count(child) for child in self._file.children(
            entry, SUBRANGE, ENUMERATION)] or [None]
        for count in reversed(counts[1:]):
            link = partial(c.Array, count, link)
        return c.Array(counts[0], link)

    def _procedure(self, entry: Entry) -> c.Procedure:
        children = self._file.children(entry, FORMAL_PARAMETER, UNSPECIFIED_PARAMETERS)
        return c.Procedure(
            tuple(c.Parameter(_name(child), self._linked(child)) for child in children
                  if child.tag == FORMAL_PARAMETER),
            any(child.tag == UNSPECIFIED_PARAMETERS for child in children), self._linked(entry))

    def _values(self, entry: Entry) -> tuple[tuple[str, int], ...]:
        with self._entries.reading():
            return tuple((_name(child), _number(child, CONST_VALUE) or 0)
                         for child in self._file.children(entry, ENUMERATOR))

    def _members(self, entry: Entry) -> tuple[c.Member, ...]:
        with self._entries.reading():
            return tuple(c.Member(_name(child), *self._place(child), self._linked(child))
                         for child in self._file.children(entry, MEMBER))

    def _place(self, entry: Entry) -> tuple[int, int | None]:
        """Return a member's (bit offset, bit width or None); see DWARF 5, 5.7.6, and 3, 5.5.6."""
        width, offset = _number(entry, BIT_SIZE), _number(entry, DATA_BIT_OFFSET)
        if offset is not None:
            return offset, width
        location = entry.attributes.get(DATA_MEMBER_LOCATION, 0)
        if location is None:
            raise ValueError("the location of a member is not a constant offset")
        begin = 8 * (location if isinstance(location, int) else _expression(location))
        high = _number(entry, BIT_OFFSET)
        if width is not None and high is not None:
            # DW_AT_bit_offset counts from the most significant bit of the declared type.
            size = _number(entry, BYTE_SIZE)
            if size is None:
                size = _number(self._file.referred(entry, TYPE), BYTE_SIZE) or 4
            begin += 8 * size - high - width
        return begin, width


def _name(entry: Entry) -> str:
    name = entry.attributes.get(NAME)
    return shown(name[:MAX_NAME]) if isinstance(name, bytes) else ""


def _number(entry: Entry, attribute: int) -> int | None:
    """Return the value of an integer attribute, or None."""
    value = entry.attributes.get(attribute)
    return value if isinstance(value, int) else None


def _base(entry: Entry, name: str, size: int) -> c.Type:
    encoding = _number(entry, ENCODING)
    if encoding in FLOATS:
        return c.Float(name, size)
    kind = "boolean" if encoding == BOOLEAN else "char" if encoding in CHARS else "integer"
    return c.Integer(name, size, encoding in SIGNED, kind)


def _count(entry: Entry) -> int | None:
    """Return the number of elements in an array dimension, or None.

    clang writes the number of elements, and GCC the upper bound of the index.
    """
    count, last = _number(entry, COUNT), _number(entry, UPPER_BOUND)
    if count is None and last is not None:
        # The index type is unsigned, so an empty array's upper bound is -1 modulo 2^32 or 2^64.
        count = last - (_number(entry, LOWER_BOUND) or 0) + 1 & (1 << 64) - 1
        count = 0 if count == 1 << 32 else count
    return count


def _expression(operations: bytes) -> int:
    """Return the constant that a member's location expression adds to the structure's address."""
    if not operations or operations[0] not in (OP_PLUS_UCONST, OP_CONSTU):
        raise ValueError("the location of a member is not a constant offset")
    value = 0
    for number, byte in enumerate(operations[1:10]):
        value |= (byte & 0x7F) << 7 * number
        if not byte & 0x80:
            break
    return value
