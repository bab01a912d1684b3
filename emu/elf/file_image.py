"""An ELF file that is read and not booted, as an image: a module, an object file, or a file that
has debug data alone."""

from pathlib import Path

from emu.elf.image import SHF_EXECINSTR, Image, Segment, file_symbols
from emu.elf.kernel_module import Module, ModuleFile
from emu.elf.reader import ELF_MAGIC, ET_REL, SHT_NOBITS, ElfFile, read_file
from emu.elf.symbols import SymbolTable
from emu.host.errors import ImageError

PF_X = 1


def file_image(path: Path) -> Image:
    """The symbols of a file, and its code where that is in it.  A relocatable file is linked to
    address 0, as its debug data is.

    :raises ImageError: when it is not a 64-bit little-endian ELF file with symbols, or damaged.
    """
    taken = read_file(path)
    if bytes(taken.content[:4]) != ELF_MAGIC:
        raise ImageError(f"{path}: not an ELF file; give a kernel, a module, an object file, or a "
                         "file of debug data")
    elf = ElfFile(taken)
    if elf.kind == ET_REL:
        return _relocatable(elf)
    entries, strings, build_id = file_symbols(elf)
    if not entries:
        raise ImageError(f"{path}: has no symbols")
    code = tuple(
        Segment(s.address, s.address, elf.view(s), s.size, PF_X) for s in elf.sections
        if s.flags & SHF_EXECINSTR and s.kind != SHT_NOBITS and s.size)
    places = [(s.virtual, s.virtual_end) for s in code]
    return Image(elf, elf.entry, code,
                 SymbolTable(entries, strings, code=places or None, where=str(path)), build_id)


def _relocatable(elf: ElfFile) -> Image:
    file = ModuleFile(elf.file)
    module = Module(file, 0, {})
    code = tuple(
        Segment(s.at, s.at, memoryview(module.memory)[s.at : s.at + s.size], s.size, PF_X)
        for s in file.sections
        if s.at is not None and s.flags & SHF_EXECINSTR and s.kind != SHT_NOBITS)
    return Image(elf, 0, code, module.symbols, file.build_id)
