"""ELF files of guest programs, with their symbols and code (System V gABI)."""

import hashlib
from pathlib import Path

from emu.elf.reader import ET_EXEC, PT_LOAD, SHT_SYMTAB, ElfFile, read_file
from emu.elf.symbols import Symbol, SymbolTable
from emu.host.errors import ImageError

PF_X = 1
END = 1 << 47  # end of a program's address space
MOST_COVERED = 16  # maximum total size of all functions, as a multiple of the code size


class ProgramFile:
    """A statically linked program that runs at its link address.

    :raises ImageError: if the file is not such a program, is damaged, or has no symbols.
    """

    def __init__(self, path: Path) -> None:
        file = ElfFile(read_file(path))
        if file.kind != ET_EXEC:
            raise ImageError(f"{path}: is position-independent, so its load address is unknown; "
                             "link it statically, with -no-pie")
        table = next(file.of_kind(SHT_SYMTAB), None)
        if table is None or table.link >= len(file.sections):
            raise ImageError(f"{path}: has no symbols (it was stripped)")
        self.path, self.machine, self._file = path, file.machine, file
        self.symbols = SymbolTable(
            file.content(table), file.content(file.sections[table.link]), path.stem)
        sizes: dict[int, int] = {}
        for function in self.symbols.functions():
            sizes[function.address] = max(function.size, sizes.get(function.address, 0))
        if sum(sizes.values()) > MOST_COVERED * sum(s.in_file for s in file.segments
                                                    if s.kind == PT_LOAD):
            raise ImageError(f"{path}: damaged symbols: the sizes of the functions add up to more "
                             f"than {MOST_COVERED} times the size of the code")

    @property
    def digest(self) -> str:
        """SHA-256 digest of the file, in hexadecimal."""
        return hashlib.sha256(self._file.data).hexdigest()

    def code(self, function: Symbol) -> bytes:
        """Return the bytes of a function.

        :raises ImageError: if the file does not contain them.
        """
        if function.address + function.size > END:
            raise ImageError(f"{self.path}: {function.name} is at {function.address:#x}, outside "
                             "the address space of programs")
        for segment in self._file.segments:
            at = function.address - segment.virtual
            if segment.kind == PT_LOAD and at >= 0 and at + function.size <= segment.in_file:
                return bytes(self._file.piece(segment.offset + at, function.size))
        raise ImageError(f"{self.path}: the code of {function.name} is not in the file")

    def first_other(self, other: "ProgramFile") -> int | None:
        """Return the first address at which the code of two programs differs, or None.

        An address where only one of the programs has code is a difference.
        """
        mine, theirs = (
            sorted((s.virtual, bytes(one._file.piece(s.offset, s.in_file)))
                   for s in one._file.segments if s.kind == PT_LOAD and s.flags & PF_X)
            for one in (self, other))
        for (at, code), (their_at, their_code) in zip(mine, theirs, strict=False):
            if at != their_at:
                return at
            if code != their_code:
                return at + next((n for n, (a, b) in enumerate(
                    zip(code, their_code, strict=False)) if a != b),
                    min(len(code), len(their_code)))
        if len(mine) == len(theirs):
            return None
        return max(mine, theirs, key=len)[min(len(mine), len(theirs))][0]
