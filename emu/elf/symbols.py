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
FUNCTIONS = (STT_FUNC,)
SHN_UNDEF = 0
MAX_NAME = 4096
MOST_COVERED = 16  # maximum total size of all functions, as a multiple of the code size
FEW_QUESTIONS = 16  # maximum number of lookups by name before all names are indexed
FEW_NAMES = 16  # maximum number of st_name values to look up one by one; else scan all symbols
VECTOR_REACH = 64  # largest distance in bytes between the code and the symbol of a vector
KERNEL = "kernel"  # name under which the kernel's own linker lists the kernel


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol: its name, its virtual address, and the file that defines it.

    :param module: name of that file in the kernel's linker.
    """

    name: str
    address: int
    size: int
    kind: int
    module: str = KERNEL

    @property
    def module_name(self) -> str:
        """Name of the module in probe names: the file name without its suffix."""
        return self.module.removesuffix(".ko")


MAX_FOUND = 4096  # maximum number of names in the cache of ``find``


class SymbolTable:
    """Symbols of a file, for lookup by name and by address.

    Several functions may share a name (static functions of different files); ``named`` returns all
    of them.

    :param code: ranges (begin, end) of code; functions are cut off at the end of their range.
    :param where: file name for error messages.
    :param stripped: if the table lacks static functions, how to get a complete one; otherwise
        empty.
    :raises ImageError: from lookups by address, if functions overlap many times.
    """

    def __init__(self, entries: bytes, strings: bytes, module: str = KERNEL,
                 code: Sequence[tuple[int, int]] | None = None, where: str = KERNEL,
                 stripped: str = "") -> None:
        self.stripped = stripped
        self._strings, self.module, self._where = strings, module, where
        self._code = None if code is None else sorted(code)
        self._raw = entries[: len(entries) - len(entries) % SYMBOL.size]
        self._by_name: dict[str, list[int]] | None = None
        self._functions: list[tuple[int, int, int, int]] | None = None
        self._questions = 0  # number of lookups by name so far
        self._found: dict[str, Symbol | None] = {}  # cache of ``find``
        self._addresses: list[int] = []
        self._labels: list[tuple[int, int, int, int]] | None = None
        self._objects: list[tuple[int, int, int, int]] | None = None

    @property
    def tables(self) -> tuple[bytes, bytes]:
        """The raw symbol table entries and string table, as in the file."""
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
        """Return the number of bytes between an address and the end of its code range."""
        code = self._code or []
        at = bisect.bisect_right(code, (address, 1 << 64)) - 1
        return max(code[at][1] - address, 0) if at >= 0 else 0

    def named(self, name: str) -> list[Symbol]:
        """Return all symbols with the given name, in table order."""
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
        """Return the symbols whose st_name is one of the given offsets, in table order."""
        if len(wanted) > FEW_NAMES:
            return [self._symbol(entry) for entry in self._entries if entry[2] in wanted]
        return [symbol for _where, symbol in sorted(
            ((where, symbol) for offset in wanted for where, symbol in self._with_name(offset)),
            key=lambda pair: pair[0])]

    def _with_name(self, offset: int) -> Iterator[tuple[int, Symbol]]:
        """Yield (offset in the table, symbol) for each symbol with a given st_name."""
        wanted = offset.to_bytes(4, "little")  # st_name is the first field of an entry
        where = self._raw.find(wanted)
        while where >= 0:
            if where % SYMBOL.size == 0:
                _name, info, _other, section, value, size = SYMBOL.unpack_from(self._raw, where)
                if section != SHN_UNDEF and info & 15 in KINDS and offset < len(self._strings):
                    yield where, self._symbol((value, size, offset, info & 15))
            where = self._raw.find(wanted, where + 1)

    def _offsets(self, name: bytes) -> set[int]:
        """Return a name's string table offsets, including those at the end of longer names."""
        offsets: set[int] = set()
        if self._strings.endswith(name):  # the last name of the table may lack its terminator
            offsets.add(len(self._strings) - len(name))
        at = self._strings.find(name + b"\0")
        while at >= 0:
            offsets.add(at)
            at = self._strings.find(name + b"\0", at + 1)
        return offsets

    def find(self, name: str) -> Symbol | None:
        """Return the first symbol with the given name, or None; faster than ``named``."""
        if name not in self._found:
            if len(self._found) >= MAX_FOUND:
                self._found.clear()
            self._found[name] = self._find(name)
        return self._found[name]

    def _find(self, name: str) -> Symbol | None:
        if self._by_name is not None:
            named = self.named(name)
            return named[0] if named else None
        # Linkers may store a name as the tail of a longer one, so look for a complete string first.
        at = self._strings.find(b"\0" + name.encode("utf-8", "surrogateescape") + b"\0")
        if at >= 0:
            for _where, symbol in self._with_name(at + 1):
                return symbol
        named = self.named(name)
        return named[0] if named else None

    def globals(self, names: Collection[str]) -> dict[str, int]:
        """Return the addresses of the global symbols with the given names, keyed by name."""
        addresses: dict[str, int] = {}
        for at, info, _other, section, value, _size in SYMBOL.iter_unpack(self._raw):
            if section != SHN_UNDEF and info >> 4 and (name := self._text(at)) in names:
                addresses.setdefault(name, value)
        return addresses

    def similar(self, name: str, kinds: Collection[int] = FUNCTIONS) -> list[str]:
        """Return up to three names that resemble the given name.

        :param kinds: types of the symbols (``STT_`` numbers).
        """
        names = {self._text(e[2]) for e in self._entries if e[3] in kinds}
        return difflib.get_close_matches(name, names, 3, 0.8)

    def advice(self, name: str, kinds: Collection[int] = FUNCTIONS) -> str:
        """Return what may help if there is no symbol with the given name, or nothing.

        :param kinds: types of the symbols that may be meant.
        """
        near = self.similar(name, kinds)
        meant = [f"did you mean {', '.join(near)}?"] if near else []
        return " ".join([*meant, *([self.incomplete] if self.stripped else [])])

    @property
    def incomplete(self) -> str:
        """What to say about names that are missing because the file was stripped."""
        return ("the kernel was stripped, so the names of its static functions and variables are "
                f"unknown: {self.stripped}") if self.stripped else ""

    def gap_at(self, address: int) -> int:
        """Return the start of the code without a name around an address.

        It begins where the nearest function below ends; without such a function, at the address.
        """
        table = self._index()
        at = bisect.bisect_right(self._addresses, address) - 1
        return min(table[at][0] + table[at][1], address) if at >= 0 else address

    def gap_end(self, address: int) -> int:
        """Return where the code without a name around an address ends: at the next function.

        Without such a function, it ends after the address.
        """
        self._index()
        at = bisect.bisect_right(self._addresses, address)
        return self._addresses[at] if at < len(self._addresses) else address + 1

    def entry_at(self, address: int, names: Collection[str]) -> Symbol | None:
        """Return the symbol around an address if its name is one of the given names.

        These are names of code without a size, whose end is unknown.  In a stripped file, the
        symbol counts only if it is near.
        """
        symbol = self.function_at(address) or self._label(address)
        if symbol is None or symbol.name not in names or (
                self.stripped and address - symbol.address > max(symbol.size, VECTOR_REACH)):
            return None
        return symbol

    def _index(self) -> list[tuple[int, int, int, int]]:
        if self._functions is None:
            functions = self._cut(sorted(rows(self._raw, len(self._strings), (STT_FUNC,), True)))
            if self._code is not None and sum(e[1] for e in functions) > MOST_COVERED * sum(
                    end - begin for begin, end in self._code):
                raise ImageError(f"{self._where}: damaged symbols: the sizes of the functions add "
                                 f"up to more than {MOST_COVERED} times the size of the code")
            self._functions = functions
            self._addresses = [e[0] for e in self._functions]
        return self._functions

    def _cut(self, functions: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
        """Clip functions, sorted by address, to the code ranges that contain them."""
        if self._code is None:
            return functions
        code, at, clipped = self._code, 0, []
        for entry in functions:
            address, size, name, kind = entry
            while at < len(code) and code[at][1] <= address:
                at += 1
            room = code[at][1] - address if at < len(code) and code[at][0] <= address else 0
            if size <= room:
                clipped.append(entry)
            elif room:
                clipped.append((address, room, name, kind))
        return clipped

    def functions(self) -> Iterator[Symbol]:
        """Yield all functions (STT_FUNC) with a nonzero size, in address order."""
        return (self._symbol(entry) for entry in self._index())

    def function_addresses(self) -> list[int]:
        """Return the addresses of all functions with a nonzero size, in ascending order."""
        return sorted(
            address for address, *_ in rows(self._raw, len(self._strings), (STT_FUNC,), True))

    def names(self, kinds: Collection[int] = KINDS) -> set[str]:
        """Return the names of all symbols of the given types (``STT_`` numbers)."""
        return {self._text(entry[2]) for entry in self._entries if entry[3] in kinds}

    def function_at(self, address: int) -> Symbol | None:
        """Return the function whose range contains an address, or None."""
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
        """Format an address as ``function+offset``, or in hexadecimal outside functions."""
        function = self.function_at(address)
        return f"{function.name}+{address - function.address:#x}" if function else f"{address:#x}"

    def object_at(self, address: int) -> Symbol | None:
        """Return the variable whose range contains an address, or None."""
        if self._objects is None:
            self._objects = sorted(e for e in self._entries if e[3] == STT_OBJECT and e[1])
        at = bisect.bisect_right(self._objects, (address, 1 << 64)) - 1
        if at < 0 or address >= self._objects[at][0] + self._objects[at][1]:
            return None
        return self._symbol(self._objects[at])

    def label_at(self, address: int) -> Symbol | None:
        """Return the nearest function or assembly label at or below an address, or None.

        In the table of a stripped file, the nearest symbol may belong to other code than the
        address, so only a symbol at the address itself is returned.
        """
        symbol = self._label(address)
        return None if symbol and self.stripped and symbol.address != address else symbol

    def _label(self, address: int) -> Symbol | None:
        if self._labels is None:
            self._labels = sorted(e for e in self._entries if e[3] in (STT_NOTYPE, STT_FUNC))
        at = bisect.bisect_right(self._labels, (address, 1 << 64)) - 1
        while at >= 0 and self._text(self._labels[at][2])[:1] in ("", "$"):
            at -= 1  # skip unnamed symbols, and mapping symbols such as $x and $d
        return self._symbol(self._labels[at]) if at >= 0 else None
