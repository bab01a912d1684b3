"""Programs of a guest: their ELF files, with symbols and code (System V gABI)."""

import hashlib
from pathlib import Path

from emu.elf.reader import ET_EXEC, PT_LOAD, SHT_SYMTAB, ElfFile, read_file
from emu.elf.symbols import Symbol, SymbolTable
from emu.host.errors import ImageError

PF_X = 1
END = 1 << 47  # of the addresses that programs have
MOST_COVERED = 16  # times the code that the file has: so much may all functions be together


class ProgramFile:
    """A statically linked program that is not moved.

    :raises ImageError: when the file is none, is damaged, or has no symbols.
    """

    def __init__(self, path: Path) -> None:
        file = ElfFile(read_file(path))
        if file.kind != ET_EXEC:
            raise ImageError(f"{path}: is linked to be moved, and where to is not known; link it "
                             "statically, with -no-pie")
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
            raise ImageError(f"{path}: its functions lie over one another: the symbols are damaged")

    @property
    def digest(self) -> str:
        """SHA-256 of the whole file."""
        return hashlib.sha256(self._file.data).hexdigest()

    def code(self, function: Symbol) -> bytes:
        """A function's bytes.

        :raises ImageError: when they are not in the file.
        """
        if function.address + function.size > END:
            raise ImageError(f"{self.path}: {function.name} lies at {function.address:#x}, where "
                             "no program does")
        for segment in self._file.segments:
            at = function.address - segment.virtual
            if segment.kind == PT_LOAD and at >= 0 and at + function.size <= segment.in_file:
                return bytes(self._file.piece(segment.offset + at, function.size))
        raise ImageError(f"{self.path}: the code of {function.name} is not in the file")

    def first_other(self, other: "ProgramFile") -> int | None:
        """The first address at which another program has other code, or this one alone has some;
        None: both have the same code."""
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
