"""Symbols of ELF files, by name and by address (System V gABI, "Symbol Table")."""

import bisect
import difflib
import functools
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from emu.elf._symbol_rows import rows
from emu.host.errors import ImageError
from emu.host.printable import name as printable_name

SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym: st_name, st_info, st_other, st_shndx, value, size
STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_GNU_IFUNC = 0, 1, 2, 10
KINDS = (STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_GNU_IFUNC)
SHN_UNDEF = 0
MAX_NAME = 4096
MOST_COVERED = 16  # times the code that there is: so much may all functions be together
FEW_QUESTIONS = 16  # answered without an index of all names
FEW_NAMES = 16  # places in the string table that are looked for one by one
KERNEL = "kernel"  # as its own linker names it


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol: its virtual address, and the file that it is of, as the kernel's linker names it.
    """

    name: str
    address: int
    size: int
    kind: int
    module: str = KERNEL

    @property
    def module_name(self) -> str:
        """The module as probes name it: without the file's suffix."""
        return self.module.removesuffix(".ko")


MAX_FOUND = 4096  # names that are kept with what was found


class SymbolTable:
    """Symbols by name and by address.

    :param code: where there is code (begin, end): a function ends with what it lies in.
    :param where: what errors begin with: the file.
    :raises ImageError: from a question by address, when functions lie over one another many times.

    Several functions may share a name (static functions of different files): ``named`` gives all.
    """

    def __init__(self, entries: bytes, strings: bytes, module: str = KERNEL,
                 code: Sequence[tuple[int, int]] | None = None, where: str = KERNEL) -> None:
        self._strings, self.module, self._where = strings, module, where
        self._code = None if code is None else sorted(code)
        self._raw = entries[: len(entries) - len(entries) % SYMBOL.size]
        self._by_name: dict[str, list[int]] | None = None
        self._functions: list[tuple[int, int, int, int]] | None = None
        self._questions = 0  # so far, by name
        self._found: dict[str, Symbol | None] = {}  # by ``find``
        self._addresses: list[int] = []
        self._labels: list[tuple[int, int, int, int]] | None = None
        self._objects: list[tuple[int, int, int, int]] | None = None

    @property
    def tables(self) -> tuple[bytes, bytes]:
        """All of it: the entries and their names, as in the file."""
        return self._raw, self._strings

    @functools.cached_property
    def _entries(self) -> list[tuple[int, int, int, int]]:
        return rows(self._raw, len(self._strings), KINDS, False)

    def __len__(self) -> int:
        return len(self._entries)

    def _text(self, offset: int) -> str:
        end = self._strings.find(b"\0", offset, offset + MAX_NAME)
        return printable_name(self._strings[offset : end if end >= 0 else offset + MAX_NAME])

    def _symbol(self, entry: tuple[int, int, int, int]) -> Symbol:
        value, size, name, kind = entry
        if kind == STT_FUNC and self._code is not None:
            size = min(size, self._room(value))
        return Symbol(self._text(name), value, size, kind, self.module)

    def _room(self, address: int) -> int:
        """Bytes of code from an address on."""
        code = self._code or []
        at = bisect.bisect_right(code, (address, 1 << 64)) - 1
        return max(code[at][1] - address, 0) if at >= 0 else 0

    def named(self, name: str) -> list[Symbol]:
        """All symbols of that name, in table order; empty when there is none."""
        if self._by_name is None:
            self._questions += 1
            plain = name.isascii() and "\0" not in name and len(name) < MAX_NAME
            if plain and self._questions <= FEW_QUESTIONS:
                return self._at_names(self._offsets(name.encode()))
            names: dict[str, list[int]] = {}
            for index, entry in enumerate(self._entries):
                names.setdefault(self._text(entry[2]), []).append(index)
            self._by_name = names
        return [self._symbol(self._entries[i]) for i in self._by_name.get(name, ())]

    def _at_names(self, wanted: set[int]) -> list[Symbol]:
        """The symbols whose names are there in the string table, in table order."""
        if len(wanted) > FEW_NAMES:
            return [self._symbol(entry) for entry in self._entries if entry[2] in wanted]
        return [symbol for _where, symbol in sorted(
            ((where, symbol) for offset in wanted for where, symbol in self._with_name(offset)),
            key=lambda pair: pair[0])]

    def _with_name(self, offset: int) -> Iterator[tuple[int, Symbol]]:
        """(place in the table, symbol) of those with that st_name, the first field of an entry."""
        wanted = offset.to_bytes(4, "little")
        where = self._raw.find(wanted)
        while where >= 0:
            if where % SYMBOL.size == 0:
                _name, info, _other, section, value, size = SYMBOL.unpack_from(self._raw, where)
                if section != SHN_UNDEF and info & 15 in KINDS and offset < len(self._strings):
                    yield where, self._symbol((value, size, offset, info & 15))
            where = self._raw.find(wanted, where + 1)

    def _offsets(self, name: bytes) -> set[int]:
        """Where a name stands in the string table, also as the tail of another."""
        found: set[int] = set()
        if self._strings.endswith(name):  # the table's last name may lack its end
            found.add(len(self._strings) - len(name))
        at = self._strings.find(name + b"\0")
        while at >= 0:
            found.add(at)
            at = self._strings.find(name + b"\0", at + 1)
        return found

    def find(self, name: str) -> Symbol | None:
        """The first symbol of that name; faster than ``named`` for one question."""
        if name not in self._found:
            if len(self._found) >= MAX_FOUND:
                self._found.clear()
            self._found[name] = self._find(name)
        return self._found[name]

    def _find(self, name: str) -> Symbol | None:
        if self._by_name is not None:
            found = self.named(name)
            return found[0] if found else None
        # The first time the name stands alone in the table; the linker may share tails of names.
        at = self._strings.find(b"\0" + name.encode("utf-8", "surrogateescape") + b"\0")
        if at >= 0:
            for _where, symbol in self._with_name(at + 1):
                return symbol
        found = self.named(name)
        return found[0] if found else None

    def globals(self, names: Collection[str]) -> dict[str, int]:
        """The addresses of those of the names that other files can take from this one."""
        found: dict[str, int] = {}
        for at, info, _other, section, value, _size in SYMBOL.iter_unpack(self._raw):
            if section != SHN_UNDEF and info >> 4 and (name := self._text(at)) in names:
                found.setdefault(name, value)
        return found

    def similar(self, name: str) -> list[str]:
        """Function names a person may have meant."""
        names = {self._text(e[2]) for e in self._entries if e[3] == STT_FUNC}
        return difflib.get_close_matches(name, names, 3, 0.8)

    def _index(self) -> list[tuple[int, int, int, int]]:
        if self._functions is None:
            functions = self._cut(sorted(rows(self._raw, len(self._strings), (STT_FUNC,), True)))
            if self._code is not None and sum(e[1] for e in functions) > MOST_COVERED * sum(
                    end - begin for begin, end in self._code):
                raise ImageError(f"{self._where}: its functions are many times longer than its "
                                 "code: the symbols are damaged")
            self._functions = functions
            self._addresses = [e[0] for e in self._functions]
        return self._functions

    def _cut(self, functions: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
        """Functions in the order of their addresses, as long as the code that they lie in has it.
        """
        if self._code is None:
            return functions
        code, at, found = self._code, 0, []
        for entry in functions:
            address, size, name, kind = entry
            while at < len(code) and code[at][1] <= address:
                at += 1
            room = code[at][1] - address if at < len(code) and code[at][0] <= address else 0
            if size <= room:
                found.append(entry)
            elif room:
                found.append((address, room, name, kind))
        return found

    def functions(self) -> Iterator[Symbol]:
        """Every STT_FUNC symbol with a size, by address."""
        return (self._symbol(entry) for entry in self._index())

    def names(self, kinds: Collection[int] = KINDS) -> set[str]:
        """Of all symbols of some kinds (``STT_``)."""
        return {self._text(entry[2]) for entry in self._entries if entry[3] in kinds}

    def function_at(self, address: int) -> Symbol | None:
        """The function whose range holds the address."""
        table = self._index()
        at = bisect.bisect_right(self._addresses, address) - 1
        while at >= 0 and table[at][0] + table[at][1] > address - (1 << 20):
            if table[at][0] <= address < table[at][0] + table[at][1]:
                return self._symbol(table[at])
            if table[at][0] + (1 << 20) < address:
                break
            at -= 1
        return None

    def where(self, address: int) -> str:
        """An address as ``function+offset``; hexadecimal, where there is no function."""
        function = self.function_at(address)
        return f"{function.name}+{address - function.address:#x}" if function else f"{address:#x}"

    def object_at(self, address: int) -> Symbol | None:
        """The variable whose range holds the address."""
        if self._objects is None:
            self._objects = sorted(e for e in self._entries if e[3] == STT_OBJECT and e[1])
        at = bisect.bisect_right(self._objects, (address, 1 << 64)) - 1
        if at < 0 or address >= self._objects[at][0] + self._objects[at][1]:
            return None
        return self._symbol(self._objects[at])

    def label_at(self, address: int) -> Symbol | None:
        """The last function or label of assembly at or below an address."""
        if self._labels is None:
            self._labels = sorted(e for e in self._entries if e[3] in (STT_NOTYPE, STT_FUNC))
        at = bisect.bisect_right(self._labels, (address, 1 << 64)) - 1
        while at >= 0 and self._text(self._labels[at][2])[:1] in ("", "$"):
            at -= 1  # a mapping symbol, which marks a change between code and data
        return self._symbol(self._labels[at]) if at >= 0 else None
