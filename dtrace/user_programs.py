"""Programs that run on a guest, as far as their files are known: the functions of their addresses.

A frame of a user's stack is a word: the address, and above it the number of the process's name.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from emu.elf_file import ET_EXEC, SHT_SYMTAB, ElfFile, read_file
from emu.errors import ImageError
from emu.symbols import SymbolTable

ADDRESS = (1 << 48) - 1  # a program's lie below that
NUMBERS = (1 << 13) - 1  # the bits above it: KernelSymbols uses those that follow
NAME = 19  # characters of a process's name that a kernel keeps (FreeBSD's MAXCOMLEN)


def program_symbols(path: Path) -> SymbolTable:
    """Of a statically linked program that is not moved.

    :raises ImageError: when the file is none, is damaged, or has no symbols.
    """
    file = ElfFile(path, read_file(path))
    if file.kind != ET_EXEC:
        raise ImageError(f"{path}: is linked to be moved, and where to is not known; link it "
                         "statically, with -no-pie")
    table = next(file.of_kind(SHT_SYMTAB), None)
    if table is None or table.link >= len(file.sections):
        raise ImageError(f"{path}: has no symbols (it was stripped)")
    return SymbolTable(file.content(table), file.content(file.sections[table.link]), path.name)


class UserPrograms:
    """:param files: processes' names, and the files of their programs; what cannot be read of them
        has no names.
    """

    def __init__(self, files: Mapping[str, Path] | None = None) -> None:
        self._files = {name[:NAME]: path for name, path in (files or {}).items()}
        self._symbols: dict[str, SymbolTable | None] = {}
        self._names: list[str] = [""]

    def frame(self, name: str, address: int) -> int:
        """The word of a frame."""
        if name not in self._names and len(self._names) < NUMBERS:
            self._names.append(name)
        number = self._names.index(name) if name in self._names else 0
        return number << 48 | address & ADDRESS

    def is_frame(self, word: int) -> bool:
        return 0 < word >> 48 < len(self._names)

    def line(self, word: int) -> str:
        """A frame as ustack() of dtrace(1) prints it."""
        name, address = self._names[word >> 48], word & ADDRESS
        if name not in self._symbols:
            self._symbols[name] = self._load(name)
        symbols = self._symbols[name]
        function = None if symbols is None else symbols.function_at(address)
        if function is None:
            return f"{name}`{address:#x}"
        offset = address - function.address
        return f"{name}`{function.name}" + (f"+{offset:#x}" if offset else "")

    def _load(self, name: str) -> SymbolTable | None:
        path = self._files.get(name)
        try:
            return None if path is None else program_symbols(path)
        except ImageError:
            return None


def walk(pc: int, frame: int, record: tuple[int, int], read: Callable[[int], int | None],
         most: int) -> list[int]:
    """The addresses of a program's stack, inner ones first, by the chain of frame records that it
    keeps when it was compiled with a frame pointer.  Where it began, the caller's frame is 0.

    :param record: where a record has the caller's frame, and where the return address.
    :param read: gives a word of the program's memory; None: there is none.
    """
    found = [pc]
    saved, returns = record
    while len(found) < most and frame and not frame & 7 and frame <= ADDRESS:
        back, outer = read(frame + returns), read(frame + saved)
        if not back or back > ADDRESS or not outer:
            break
        found.append(back)
        if outer <= frame:
            break
        frame = outer
    return found[:most]
