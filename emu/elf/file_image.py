"""Images of ELF files that are read but not booted: modules, object files and debug files."""

from pathlib import Path

from emu.elf.image import SHF_EXECINSTR, Image, Segment, file_symbols
from emu.elf.kernel_module import Module, ModuleFile
from emu.elf.reader import ELF_MAGIC, ET_REL, SHT_NOBITS, ElfFile, read_file
from emu.elf.symbols import SymbolTable
from emu.host.errors import ImageError

PF_X = 1


def file_image(path: Path) -> Image:
    """Read the symbols of an ELF file, and its code if it has any.

    A relocatable file is linked to address 0, like its debug data.

    :raises ImageError: if the file is not a 64-bit little-endian ELF file with symbols, or is
        damaged.
    """
    file = read_file(path)
    if bytes(file.content[:4]) != ELF_MAGIC:
        raise ImageError(f"{path}: not an ELF file; give a kernel, a module, an object file, or a "
                         "debug file")
    elf = ElfFile(file)
    if elf.kind == ET_REL:
        return _relocatable(elf)
    entries, strings, build_id = file_symbols(elf)
    if not entries:
        raise ImageError(f"{path}: has no symbols")
    code = tuple(
        Segment(s.address, s.address, elf.view(s), s.size, PF_X) for s in elf.sections
        if s.flags & SHF_EXECINSTR and s.kind != SHT_NOBITS and s.size)
    code_ranges = [(s.virtual, s.virtual_end) for s in code]
    return Image(elf, elf.entry, code,
                 SymbolTable(entries, strings, code=code_ranges or None, where=str(path)), build_id)


def _relocatable(elf: ElfFile) -> Image:
    file = ModuleFile(elf.file)
    module = Module(file, 0, {})
    code = tuple(
        Segment(s.at, s.at, memoryview(module.memory)[s.at : s.at + s.size], s.size, PF_X)
        for s in file.sections
        if s.at is not None and s.flags & SHF_EXECINSTR and s.kind != SHT_NOBITS)
    return Image(elf, 0, code, module.symbols, file.build_id)
