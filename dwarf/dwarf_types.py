"""C types from DWARF 4 and 5; the index locates them by name, and entries are read on demand."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from elftools.dwarf.die import DIE

from dwarf import types as c
from dwarf.entries import Entries
from dwarf.index import MAX_NAME, VARIABLE, DebugIndex, Declared, Function, shown
from emu.elf.reader import ElfFile

if TYPE_CHECKING:
    from dwarf.call_sites import CallSites
    from dwarf.locations import Frame, Locations, Place, Term
    from dwarf.scopes import Scopes, Variable

# C keyword for each tag (DWARF 5, 7.5.3) of a type that can be looked up by name
PREFIXES = {0x04: "enum ", 0x13: "struct ", 0x17: "union ", 0x16: "", 0x24: ""}
QUALIFIERS = {"DW_TAG_const_type": "const", "DW_TAG_volatile_type": "volatile",
              "DW_TAG_restrict_type": "restrict", "DW_TAG_atomic_type": "_Atomic"}
MOST_REFERENCES = 8  # maximum number of entries that refer to one another
AGGREGATES = {"DW_TAG_structure_type": "struct", "DW_TAG_class_type": "struct",
              "DW_TAG_union_type": "union"}
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
        self._known: dict[int, c.Type] = {}
        self._procedures: dict[int, c.Procedure] = {}  # prototypes of inline copies, keyed by entry
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
        return [self._read(self._entries.entry(d.entry, d.unit)) for d in self._index.declared(name)
                if PREFIXES.get(d.tag) == prefix]

    def function(self, name: str, address: int | None = None) -> c.Procedure | None:
        """Return a function's type, or None; ``address`` selects among functions of this name."""
        candidates = [f for f in self._index.named(name) if not f.inlined]
        # Prefer the function at the address, or else a function with code over a declaration.
        candidates.sort(key=lambda f: (
            not any(low == address for low, _high in f.pieces), not f.pieces, f.number))
        for function in candidates:
            place = self._index.subject(function.number)
            if place is not None:
                with self._entries.reading():
                    return self._procedure(self._entries.entry(*place))
        return None

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

            self._scopes = Scopes(self._entries, self._index, self._places(), self._linked)
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
            entry = self._entries.entry(*place)
            for _ in range(MOST_REFERENCES):
                for name in ("DW_AT_linkage_name", "DW_AT_MIPS_linkage_name"):
                    if name in entry.attributes and isinstance(entry.attributes[name].value, bytes):
                        return shown(entry.attributes[name].value)
                if "DW_AT_specification" not in entry.attributes:
                    break
                entry = entry.get_DIE_from_attribute("DW_AT_specification")
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
        if place[0] not in self._procedures:
            with self._entries.reading():
                self._procedures[place[0]] = self._procedure(self._entries.entry(*place))
        procedure = self._procedures[place[0]]
        return procedure, self._places().parameters(copy, address, frame)

    def variable(self, name: str, address: int | None = None) -> c.Type | None:
        """Return a variable's type, or None; ``address`` selects among variables of this name."""
        candidates = [d for d in self._index.declared(name) if d.tag == VARIABLE]
        candidates.sort(key=lambda d: d.value != address)
        return self._variable(candidates[0]) if candidates else None

    def _variable(self, declared: Declared) -> c.Type:
        with self._entries.reading():
            return self._linked(self._entries.entry(declared.entry, declared.unit))()

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

    def _read(self, entry: DIE) -> c.Type:
        """Return the type that an entry describes, following DW_AT_signature to its type unit."""
        if "DW_AT_signature" in entry.attributes:
            with self._entries.reading():
                entry = entry.get_DIE_from_attribute("DW_AT_signature")
        known = self._known.get(entry.offset)
        if known is None:
            with self._entries.reading():
                known = self._known[entry.offset] = self._type(entry)
        return known

    def _linked(self, entry: DIE) -> Callable[[], c.Type]:
        """Return a callback that reads the type in an entry's DW_AT_type."""
        for _ in range(c.MAX_STEPS):
            if "DW_AT_type" in entry.attributes:
                return partial(self._follow, entry)
            origin = next((a for a in ("DW_AT_abstract_origin", "DW_AT_specification")
                           if a in entry.attributes), None)
            if origin is None:
                return c.Void
            entry = entry.get_DIE_from_attribute(origin)
        raise ValueError(f"the chain of references to the entry at {entry.offset:#x} is too long")

    def _follow(self, entry: DIE) -> c.Type:
        with self._entries.reading():
            return self._read(entry.get_DIE_from_attribute("DW_AT_type"))

    def _type(self, entry: DIE) -> c.Type:
        name, size = _name(entry), _number(entry, "DW_AT_byte_size")
        link = self._linked(entry)
        if entry.tag in AGGREGATES or entry.tag == "DW_TAG_enumeration_type":
            kind = AGGREGATES.get(entry.tag, "enum")
            if size is None or "DW_AT_declaration" in entry.attributes:
                return self._definition(kind, name, entry.offset)
            if kind == "enum":
                return c.Enumeration(name, size, partial(self._values, entry))
            return c.Structure(kind, name, size, partial(self._members, entry))
        if entry.tag in QUALIFIERS:
            return c.Qualified(QUALIFIERS[entry.tag], link)
        match entry.tag:
            case "DW_TAG_base_type":
                return _base(entry, name, size or 0)
            case "DW_TAG_pointer_type" | "DW_TAG_reference_type":
                return c.Pointer(link)
            case "DW_TAG_typedef":
                return c.Typedef(name, link)
            case "DW_TAG_array_type":
                return self._array(entry, link)
            case "DW_TAG_subroutine_type":
                return self._procedure(entry)
            case "DW_TAG_unspecified_type":
                return c.Void()
        raise ValueError(f"{entry.tag} at {entry.offset:#x} is not a type")

    def _definition(self, kind: str, name: str, asked: int) -> c.Type:
        """Return the definition of a declared type if exactly one exists, else the declaration."""
        definitions = [d for d in self._index.declared(name)
                       if PREFIXES.get(d.tag) == f"{kind} "] if name else []
        if len(definitions) == 1 and definitions[0].entry != asked:
            return self._read(self._entries.entry(definitions[0].entry, definitions[0].unit))
        return c.Incomplete(kind, name)

    def _array(self, entry: DIE, link: Callable[[], c.Type]) -> c.Type:
        """Return an array type from an entry that has a child for each dimension."""
        counts = [_count(child) for child in self._entries.children(
            entry, "DW_TAG_subrange_type", "DW_TAG_enumeration_type")] or [None]
        for count in reversed(counts[1:]):
            link = partial(c.Array, count, link)
        return c.Array(counts[0], link)

    def _procedure(self, entry: DIE) -> c.Procedure:
        parameters = tuple(
            c.Parameter(_name(child), self._linked(child))
            for child in self._entries.children(entry, "DW_TAG_formal_parameter"))
        variadic = any(True for _ in self._entries.children(entry, "DW_TAG_unspecified_parameters"))
        return c.Procedure(parameters, variadic, self._linked(entry))

    def _values(self, entry: DIE) -> tuple[tuple[str, int], ...]:
        with self._entries.reading():
            return tuple((_name(child), _number(child, "DW_AT_const_value") or 0)
                         for child in self._entries.children(entry, "DW_TAG_enumerator"))

    def _members(self, entry: DIE) -> tuple[c.Member, ...]:
        with self._entries.reading():
            return tuple(
                c.Member(_name(child), *_place(child), self._linked(child))
                for child in self._entries.children(entry, "DW_TAG_member"))


def _name(entry: DIE) -> str:
    attribute = entry.attributes.get("DW_AT_name")
    if attribute is None or not isinstance(attribute.value, bytes):
        return ""
    return shown(attribute.value[:MAX_NAME])


def _number(entry: DIE, name: str) -> int | None:
    """Return the value of an integer attribute, or None."""
    attribute = entry.attributes.get(name)
    if attribute is None or not isinstance(attribute.value, int):
        return None
    return int(attribute.value)


def _base(entry: DIE, name: str, size: int) -> c.Type:
    encoding = _number(entry, "DW_AT_encoding")
    if encoding in FLOATS:
        return c.Float(name, size)
    kind = "boolean" if encoding == BOOLEAN else "char" if encoding in CHARS else "integer"
    return c.Integer(name, size, encoding in SIGNED, kind)


def _count(entry: DIE) -> int | None:
    """Return the number of elements in an array dimension, or None.

    clang writes the number of elements, and GCC the upper bound of the index.
    """
    count, last = _number(entry, "DW_AT_count"), _number(entry, "DW_AT_upper_bound")
    if count is None and last is not None:
        # The index type is unsigned, so an empty array's upper bound is -1 modulo 2^32 or 2^64.
        count = last - (_number(entry, "DW_AT_lower_bound") or 0) + 1 & (1 << 64) - 1
        count = 0 if count == 1 << 32 else count
    return count


def _place(entry: DIE) -> tuple[int, int | None]:
    """Return a member's (bit offset, bit width or None); see DWARF 5, 5.7.6 and DWARF 3, 5.5.6."""
    width = _number(entry, "DW_AT_bit_size")
    offset = _number(entry, "DW_AT_data_bit_offset")
    if offset is not None:
        return offset, width
    location = entry.attributes.get("DW_AT_data_member_location")
    if location is None:
        begin = 0
    elif isinstance(location.value, int):
        begin = 8 * location.value
    else:
        begin = 8 * _expression(list(location.value))
    high = _number(entry, "DW_AT_bit_offset")
    if width is not None and high is not None:
        # DW_AT_bit_offset counts from the most significant bit of the declared type.
        size = _number(entry, "DW_AT_byte_size")
        if size is None:
            size = _number(entry.get_DIE_from_attribute("DW_AT_type"), "DW_AT_byte_size") or 4
        begin += 8 * size - high - width
    return begin, width


def _expression(operations: list[int]) -> int:
    """Return the constant that a member's location expression adds to the structure's address."""
    if not operations or operations[0] not in (OP_PLUS_UCONST, OP_CONSTU):
        raise ValueError("the location of a member is not a constant offset")
    value = 0
    for number, byte in enumerate(operations[1:10]):
        value |= (byte & 0x7F) << 7 * number
        if not byte & 0x80:
            break
    return value
