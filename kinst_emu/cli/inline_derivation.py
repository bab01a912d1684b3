"""Derive FUNCTION:OFFSET of an inline copy from the debug data, for ``kinst inline --dwarf``."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from dtrace.debug.debug_data import Sources
from dwarf.debug_file import debug_file
from dwarf.index import DebugIndex, Function
from dwarf.inline_entries import Attribute, CopyEntries, DebugEntry, InlineEntries
from dwarf.linked_index import OWN, SHIFT
from emu.elf.image import Image
from emu.elf.symbols import Symbol
from kinst.providers import inline
from kinst.providers.copy_ends import begin

MAX_DEPTH = 256  # maximum nesting depth of inline copies
FILES = ("DW_AT_decl_file", "DW_AT_call_file")
WIDTH = 22  # width of the attribute names, in columns


@dataclass(frozen=True)
class Derivation:
    """Debug data and intermediate results from which the place of an inline copy is derived.

    :param address: load address that is added to the file's addresses: 0, or a module's.
    :param entry: address at which the copy begins.
    :param within: function that contains the copy according to DWARF: its name, and ``file:line``.
    :param caller: symbol that covers ``entry``; None when no symbol does.
    :param offset: offset of ``entry`` in the caller, in bytes; the address without a caller.
    :param entered: addresses at which control enters the copy, found in the code.
    :param files: file names for DW_AT_decl_file and DW_AT_call_file, by entry and attribute.
    """

    entries: CopyEntries
    address: int
    entry: int
    within: tuple[str, str]
    caller: Symbol | None
    offset: int
    entered: list[int]
    files: dict[tuple[int, str], str]


def entered_in(image: Image, index: DebugIndex, copy: Function, entrances: inline.Entrances
               ) -> tuple[str | None, int]:
    """Return the function in which control enters an inline copy, and the offset of the entry.

    In code that no symbol covers (a cold part without a symbol), the offset counts from the symbol
    of the function that the part belongs to, and may be negative.  Without any symbol, the name is
    None and the offset is the address.
    """
    entry = entrances.of(copy)[0]
    caller = image.symbols.function_at(entry)
    if caller is not None:
        return caller.name, entry - caller.address
    around = _around(index, copy)
    symbol = None if around is None else next(
        (one for low, _high in around.pieces if (one := image.symbols.function_at(low))), None)
    return (None, entry) if symbol is None else (symbol.name, entry - symbol.address)


def _around(index: DebugIndex, copy: Function) -> Function | None:
    """Return the function that contains an inline copy, skipping other inline copies around it."""
    number = copy.parent
    for _ in range(MAX_DEPTH):
        if number is None:
            return None
        function = index.function(number)
        if not function.inlined:
            return function
        number = function.parent
    return None


def derived(image: Image, index: DebugIndex, sources: Sources, copies: list[Function]
            ) -> Iterator[Derivation]:
    """Derive the place of each inline copy from the debug data.

    :raises DebugDataError: when the debug data is damaged.
    """
    readers: dict[int, InlineEntries] = {}
    entrances = inline.Entrances(image)
    for copy in copies:
        part = copy.number >> SHIFT
        module = image.modules[part - 1] if part else None
        if part not in readers:
            file = debug_file(module.file.elf if module is not None else image.file)
            assert file is not None
            readers[part] = InlineEntries(file)
        origin = index.subject(copy.number)
        assert origin is not None
        entries = readers[part].copy(_own(index.entry(copy.number)), _own(origin))
        entry = begin(copy, image.symbols.function_at)
        caller = image.symbols.function_at(entry)
        yield Derivation(
            entries, module.address if module is not None else 0, entry,
            _defined(index, sources, readers[part], copy), caller,
            entry - caller.address if caller is not None else entry, entrances.of(copy),
            _files(index, sources, readers[part], copy, entries))


def _defined(index: DebugIndex, sources: Sources, reader: InlineEntries, copy: Function
             ) -> tuple[str, str]:
    """Return the name and source location of the function that contains an inline copy."""
    around = _around(index, copy)
    if around is None:
        return "?", "?"
    place = _own(index.subject(around.number) or index.entry(around.number))
    values = {a.name: a.value for a in reader.entry(place).attributes}
    number = values.get("DW_AT_decl_file", "")
    files = _files_of(sources, reader, copy, place)
    file = files.get(int(number), "?") if number.isdecimal() else "?"
    return around.name, f"{file}:{values.get('DW_AT_decl_line', '?')}"


def _own(place: tuple[int, int]) -> tuple[int, int]:
    """Convert the offsets of an entry and its unit in the linked index to offsets in the file."""
    return place[0] & OWN, place[1] & OWN


def _files_of(sources: Sources, reader: InlineEntries, copy: Function, place: tuple[int, int]
              ) -> dict[int, str]:
    """Return the file names in the line table of an entry's unit, keyed by file number."""
    table = reader.line_table(place)
    return {} if table is None else sources.files(table | copy.number & ~OWN)


def _files(index: DebugIndex, sources: Sources, reader: InlineEntries, copy: Function,
           found: CopyEntries) -> dict[tuple[int, str], str]:
    named = dict[tuple[int, str], str]()
    origin = index.subject(copy.number)
    places = [(found.copy, index.entry(copy.number)),
              *([(found.function, origin)] if origin is not None else [])]
    for entry, place in places:
        files = _files_of(sources, reader, copy, _own(place))
        named |= {(entry.offset, a.name): files[int(a.value)] for a in entry.attributes
                  if a.name in FILES and a.value.isdecimal() and int(a.value) in files}
    return named


def as_json(one: Derivation) -> dict[str, Any]:
    """Return a derivation as an object for JSON."""
    return {
        "function": asdict(one.entries.function), "copy": asdict(one.entries.copy),
        "unit": asdict(one.entries.unit),
        "pieces": [{"base": s.base, "begin": s.begin, "end": s.end, "low": s.low + one.address,
                    "high": s.high + one.address} for s in one.entries.sums],
        "within": {"function": one.within[0], "source": one.within[1]},
        "caller": one.caller.name if one.caller else None, "entry": one.entry,
        "offset": one.offset,
    }


def listing(found: Iterable[Derivation]) -> Iterator[str]:
    """Yield the lines for all inline copies; a function's own lines precede those of its copies."""
    functions = set[tuple[int, int]]()
    for one in found:
        function = one.address, one.entries.function.offset
        if function not in functions:
            functions.add(function)
            yield from _entry_lines(one, one.entries.function, "the function its copies refer to")
            yield ""
        yield from _copy_lines(one)
        yield ""


def _copy_lines(one: Derivation) -> Iterator[str]:
    yield from _entry_lines(one, one.entries.copy, "inline copy")
    yield "  code:"
    base = next((s.base for s in one.entries.sums), 0)
    if base and any(a.name == "DW_AT_ranges" for a in one.entries.copy.attributes):
        if Attribute("DW_AT_low_pc", f"{base:#x}") in one.entries.unit.attributes:
            yield from _entry_lines(
                one, one.entries.unit, "compilation unit; ranges are relative to DW_AT_low_pc",
                ("DW_AT_name", "DW_AT_low_pc", "DW_AT_comp_dir"), "    ")
        else:
            yield f"    the range list has its own base address, {base:#x}"
    for s in one.entries.sums:
        if s.base:
            yield f"    L = {s.base:#x} + {s.begin:#x} = {s.low:#x}"
            yield f"    H = {s.base:#x} + {s.end:#x} = {s.high:#x}"
        else:
            yield f"    L = {s.low:#x}"
            yield f"    H = {s.high:#x}"
    if one.address:
        yield f"    in memory, add the load address of the module: + {one.address:#x}"
    yield f"  in {one.within[0]}, {one.within[1]}:"
    if one.caller is None:
        yield f"    no symbol covers {one.entry:#x}, so it cannot be probed"
    else:
        begin, end = one.caller.address, one.caller.address + one.caller.size
        yield f"    symbol {one.caller.name}: [{begin:#x}, {end:#x})"
        yield f"    entry = {one.entry:#x} - {begin:#x} = {one.offset}"
        yield f"    kinst::{one.caller.name}:{one.offset}"
        if one.entered != [one.entry]:
            probes = " ".join(f"kinst::{one.caller.name}:{address - one.caller.address}"
                              for address in one.entered)
            yield f"    in the code, control enters the copy at {probes}"


def _entry_lines(one: Derivation, entry: DebugEntry, what: str, only: tuple[str, ...] = (),
                 indent: str = "") -> Iterator[str]:
    yield f"{indent}<{entry.offset:x}> {entry.tag}  ({what})"
    for attribute in entry.attributes:
        if only and attribute.name not in only:
            continue
        file = one.files.get((entry.offset, attribute.name))
        yield (f"{indent}    {attribute.name:{WIDTH}} {attribute.value}"
               + (f"  ({file})" if file else ""))
