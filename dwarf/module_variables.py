"""Variables of a kernel module that is not loaded, read from its file as in gdb."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elftools.dwarf.die import DIE
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from dwarf.debug_file import DAMAGE, DebugDataError, debug_file, parsed
from dwarf.types import Array, Pointer, Type, Types, Void
from emu.host.input_file import InputFile, taken
from emu.host.printable import name as printable_name

MAX_MODULES = 4096  # maximum number of module files in a kernel's directory
MAX_SIZE = 64 << 20  # maximum size in bytes of a module's file
MAX_VALUE = 1 << 16  # maximum size in bytes of a variable
MAX_DEPTH = 16  # maximum nesting depth of a type
SHF_ALLOC = 2
TAGGED = {"DW_TAG_structure_type": "struct", "DW_TAG_union_type": "union",
          "DW_TAG_enumeration_type": "enum"}
TRANSPARENT = ("DW_TAG_const_type", "DW_TAG_volatile_type")


@contextmanager
def opened(path: Path, content: memoryview) -> Iterator[ELFFile]:
    """Open a file with pyelftools, and convert the exceptions for damaged files.

    :raises DebugDataError: if the file is damaged.
    """
    try:
        yield ELFFile(io.BytesIO(content))
    except DAMAGE as error:
        raise DebugDataError(f"{path}: damaged debug data: {error}") from None


def modules(kernel: Path, name: str) -> Iterator[InputFile]:
    """Search a kernel's directory, and yield each module file that contains a given name.

    :raises ImageError: if a module cannot be read.
    """
    paths = sorted(kernel.parent.glob("*.ko"))[:MAX_MODULES]
    for path in paths:
        size = path.stat().st_size if path.is_file() else 0
        if not 0 < size <= MAX_SIZE:
            continue
        file = taken(path, MAX_SIZE)
        if bytes(file.content).find(name.encode() + b"\0") >= 0:
            yield file


def variable(module: InputFile, name: str, types: Types) -> tuple[bytes, Type] | None:
    """Return the initial contents and the type of a module's variable, or None.

    It is None if the module does not define the variable, if the contents are relocated when the
    module is loaded, or if the kernel's types do not include the type.

    :raises DebugDataError: if a file is damaged or cannot be read.
    """
    with opened(module.path, module.content) as elf:
        content = _content(elf, name)
    file = debug_file(parsed(module))
    if content is None or file is None:
        return None
    with opened(file.path, file.data) as elf:
        for unit in elf.get_dwarf_info(relocate_dwarf_sections=True).iter_CUs():
            for entry in unit.get_top_DIE().iter_children():
                if (entry.tag == "DW_TAG_variable" and _name(entry) == name
                        and "DW_AT_declaration" not in entry.attributes
                        and "DW_AT_type" in entry.attributes):
                    kind = _type(entry.get_DIE_from_attribute("DW_AT_type"), types, 0)
                    if kind is not None:
                        return content, kind
    return None


def _name(entry: DIE) -> str:
    attribute = entry.attributes.get("DW_AT_name")
    return printable_name(attribute.value) if attribute is not None else ""


def _content(elf: ELFFile, name: str) -> bytes | None:
    """Return the initial contents of a variable, or None if it is missing or needs relocation."""
    table = elf.get_section_by_name(".symtab")
    if not isinstance(table, SymbolTableSection):
        return None
    for symbol in table.get_symbol_by_name(name) or ():
        index, size = symbol["st_shndx"], symbol["st_size"]
        if symbol["st_info"]["type"] != "STT_OBJECT" or not isinstance(index, int):
            continue
        if not 0 < size <= MAX_VALUE:
            continue
        section = elf.get_section(index)
        at = symbol["st_value"] - section["sh_addr"]
        inside = 0 <= at <= section["sh_size"] - size
        if not inside or _relocated(elf, index, symbol["st_value"], size):
            continue
        if section["sh_type"] == "SHT_NOBITS":
            return bytes(size)
        elf.stream.seek(section["sh_offset"] + at)
        content = bytes(elf.stream.read(size))
        return content if len(content) == size else None
    return None


def _relocated(elf: ELFFile, index: int, at: int, size: int) -> bool:
    """Return whether loading the module relocates any byte of a variable."""
    return any(
        at <= relocation["r_offset"] < at + size for section in elf.iter_sections()
        if isinstance(section, RelocationSection) and (
            section["sh_info"] == index or section["sh_flags"] & SHF_ALLOC)
        for relocation in section.iter_relocations())


def _type(entry: DIE, types: Types, depth: int) -> Type | None:
    """Return the kernel's type that corresponds to a module's type, or None."""
    if depth > MAX_DEPTH:
        return None
    tag = entry.tag
    of = entry.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in entry.attributes else None
    if tag in TRANSPARENT:
        return Void() if of is None else _type(of, types, depth + 1)
    if tag == "DW_TAG_pointer_type":
        target = Void() if of is None else _type(of, types, depth + 1)
        return Pointer(lambda: target if target is not None else Void())
    if tag == "DW_TAG_array_type" and of is not None:
        element = _type(of, types, depth + 1)
        counts = [_count(range_) for range_ in entry.iter_children()
                  if range_.tag == "DW_TAG_subrange_type"]
        if element is None or not counts or None in counts:
            return None
        array: Type = element
        for count in reversed(counts):
            array = Array(count, lambda inner=array: inner)  # type: ignore[misc]
        return array
    name = " ".join(word for word in (TAGGED.get(tag, ""), _name(entry)) if word)
    candidates = types.named(name) if _name(entry) else []
    if len(candidates) == 1:
        return candidates[0]
    return _type(of, types, depth + 1) if tag == "DW_TAG_typedef" and of is not None else None


def _count(range_: DIE) -> int | None:
    """Return the number of elements in an array dimension, or None."""
    if "DW_AT_count" in range_.attributes:
        return int(range_.attributes["DW_AT_count"].value)
    bound = range_.attributes.get("DW_AT_upper_bound")
    return None if bound is None else int(bound.value) + 1
