"""Object files of programs with probes: the calls that stand for probes are found and replaced.

An object file that was processed is recognized, so that it can be linked again.
"""

import bisect
import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dtrace.usdt.functions import ASKS, parse_symbol
from emu.elf.reader import (
    ET_REL,
    HEADER,
    SECTION,
    SHT_RELA,
    SHT_SYMTAB,
    ElfFile,
    SectionHeader,
    read_file,
)
from emu.host.errors import ImageError
from kinst.code.usdt_code import USDT_CODES, is_form

SYMBOL, RELA = struct.Struct("<IBBHQQ"), struct.Struct("<QQq")
SHF_ALLOC, SHF_EXECINSTR = 2, 4
SHT_SYMTAB_SHNDX = 18
STT_FUNC, STB_GLOBAL, STB_WEAK, STV_HIDDEN, SHN_ABS, SHN_LORESERVE = 2, 1, 2, 2, 0xFFF1, 0xFF00
# Beginning of the names of symbols for functions with probes, and of those that dtrace(1) makes.
# The latter look like mapping symbols ($d) on arm64 and riscv64.
ALIAS = "usdt$"
ALIASES = (ALIAS, "$dtrace")
MOST_SITES = 100_000  # maximum number of calls for probes in a file
MOST_SYMBOLS = 10_000_000
LONGEST_NAME = 65_536  # maximum length of the name of a symbol
MOST_NAMES = 64 << 20  # maximum length of all names together
MOST_NESTED = 64  # maximum number of functions that begin between a function and its end


@dataclass(frozen=True)
class ProbeSite:
    """A call for a probe in an object file.

    :param asks: whether it asks if the probe is enabled.
    :param symbol: global symbol from which ``offset`` counts.
    """

    provider: str
    probe: str
    asks: bool
    function: str
    symbol: str
    offset: int


@dataclass
class _Symbol:
    name: str
    info: int
    other: int
    section: int
    value: int
    size: int

    @property
    def is_function(self) -> bool:
        return self.info & 0xF == STT_FUNC


class ProgramObject:
    """An object file, changed in memory so that its probes do nothing.

    :param machine: the architecture's ``e_machine`` without the EM_ prefix.
    :param path: also makes the names of symbols unique, together with the contents.
    :raises ImageError: if the file is not such an object file, or a call cannot be replaced.
    """

    def __init__(self, path: Path, arch: str, machine: str) -> None:
        self.path, self._code = path, USDT_CODES[arch]
        self._file = ElfFile(read_file(path))
        if self._file.kind != ET_REL:
            raise ImageError(f"{path}: not an object file (.o)")
        if self._file.machine != machine:
            raise ImageError(f"{path}: is for {self._file.machine}, not for {machine} like the "
                             "first file")
        if any(one.kind == SHT_SYMTAB_SHNDX for one in self._file.sections):
            raise ImageError(f"{path}: has more than {SHN_LORESERVE} sections")
        self.flags = HEADER.unpack(self._file.header)[7]
        self._data = bytearray(self._file.data)
        self._key = hashlib.sha256(str(path).encode() + bytes(self._file.data)).hexdigest()[:8]
        self._table = next(self._file.of_kind(SHT_SYMTAB), None)
        self._symbols: list[_Symbol] = []
        self._added: list[_Symbol] = []
        self._functions: dict[int, list[_Symbol]] = {}  # section -> functions by address
        # (section, address, name of the function and offset in it) -> its symbol
        self._aliases: dict[tuple[int, int, str], _Symbol] = {}
        self.sites: list[ProbeSite] = []
        if self._table is not None:
            self._symbols = list(self._read_symbols(self._table))
            self._sort_symbols()
            sections = list(self._file.of_kind(SHT_RELA))
            if sum(one.size for one in sections) > len(self._file.data):
                raise ImageError(f"{path}: damaged: its relocations are larger than the file")
            for section in sections:
                self._take(section)
        self.changed = bytes(self._data) != bytes(self._file.data) or bool(self._added)

    @property
    def content(self) -> bytes:
        """The changed file."""
        if not self._added:
            return bytes(self._data)
        assert self._table is not None
        names = self._file.sections[self._table.link]
        strings = bytearray(self._file.content(names))
        rows = bytearray(self._data[self._table.offset : self._table.offset + self._table.size])
        for one in self._added:
            rows += SYMBOL.pack(len(strings), one.info, one.other, one.section, one.value, one.size)
            strings += one.name.encode("utf-8", "surrogateescape") + b"\0"
        data = self._data
        for section, content in ((self._table, rows), (names, strings)):
            data += bytes(-len(data) % 8)
            self._resize(data, self._file.sections.index(section), len(data), len(content))
            data += content
        return bytes(data)

    def _resize(self, data: bytearray, index: int, offset: int, size: int) -> None:
        at = HEADER.unpack(self._file.header)[6] + index * SECTION.size
        row = list(SECTION.unpack_from(data, at))
        row[4:6] = offset, size
        SECTION.pack_into(data, at, *row)

    def _read_symbols(self, table: SectionHeader) -> Iterator[_Symbol]:
        if table.link >= len(self._file.sections) or table.size > MOST_SYMBOLS * SYMBOL.size:
            raise ImageError(f"{self.path}: damaged symbol table")
        strings = self._file.content(self._file.sections[table.link])
        left = MOST_NAMES
        for name, info, other, section, value, size in SYMBOL.iter_unpack(
                self._file.content(table)[: table.size // SYMBOL.size * SYMBOL.size]):
            end = strings.find(b"\0", name, name + LONGEST_NAME)
            if name >= len(strings) or end < 0:
                raise ImageError(f"{self.path}: damaged symbol table: a name is outside its "
                                 f"section, or longer than {LONGEST_NAME} bytes")
            left -= end - name
            if left < 0:
                raise ImageError(f"{self.path}: the names of its symbols have more than "
                                 f"{MOST_NAMES >> 20} MiB")
            yield _Symbol(strings[name:end].decode("utf-8", "surrogateescape"), info, other,
                          section, value, size)

    def _sort_symbols(self) -> None:
        for one in self._symbols:
            if one.name.startswith(ALIASES):
                self._aliases[one.section, one.value, one.name.partition(".")[2]] = one
            elif one.is_function:
                self._functions.setdefault(one.section, []).append(one)
        for functions in self._functions.values():
            functions.sort(key=lambda one: one.value)

    def _take(self, section: SectionHeader) -> None:
        """Replace the calls for probes that a section of relocations describes."""
        sections, code = self._file.sections, self._code
        if section.info >= len(sections) or not sections[section.info].flags & SHF_ALLOC:
            return
        target = sections[section.info]
        if section.link >= len(sections) or sections[section.link] is not self._table:
            return
        rows = self._file.content(section)
        for index, (offset, info, addend) in enumerate(RELA.iter_unpack(
                rows[: len(rows) // RELA.size * RELA.size])):
            if info >> 32 >= len(self._symbols):
                raise ImageError(f"{self.path}: damaged relocations: one names a symbol that "
                                 "is missing")
            called = self._symbols[info >> 32]
            probe = parse_symbol(called.name)
            if probe is None:
                continue
            kind, begin = info & 0xFFFFFFFF, offset - code.before
            if not target.flags & SHF_EXECINSTR or kind not in (*code.relocations, code.done):
                raise ImageError(f"{self.path}: {called.name} is not called directly; call it by "
                                 "the macro of the header, and compile without -fno-plt")
            self._replace(target, begin, probe[0] == ASKS, called.name)
            self._note(section.info, begin, probe)
            RELA.pack_into(self._data, section.offset + index * RELA.size, offset,
                           info >> 32 << 32 | code.done, addend)
            self._hide(info >> 32)
            if len(self.sites) > MOST_SITES:
                raise ImageError(f"{self.path}: has more than {MOST_SITES} calls for probes")

    def _replace(self, target: SectionHeader, begin: int, asks: bool, name: str) -> None:
        code = self._code
        whole, last = (code.asks, code.asks_last) if asks else (code.fires, code.fires_last)
        if not 0 <= begin <= target.size - len(whole):
            raise ImageError(f"{self.path}: damaged relocations: {name} is called outside a "
                             "section")
        at = target.offset + begin
        now = bytes(self._data[at : at + len(whole)])
        if now in (whole, last):
            return  # it was processed before
        if not (is_form(now, code.call) or is_form(now, code.jump)):
            raise ImageError(f"{self.path}: the call of {name} in {target.name} is {now.hex()}, "
                             "not a call or jump that can be replaced")
        self._data[at : at + len(whole)] = whole if is_form(now, code.call) else last

    def _note(self, section: int, begin: int, probe: tuple[str, str, str]) -> None:
        kind, provider, name = probe
        site = begin + (self._code.asks_at if kind == ASKS else 0)
        function = self._function_at(section, begin)
        if function is None:
            raise ImageError(f"{self.path}: a call for {provider}:{name} is in no function")
        alias = self._alias(function, site)
        self.sites.append(ProbeSite(provider, name, kind == ASKS, function.name, alias.name,
                                    site - alias.value))

    def _alias(self, function: _Symbol, site: int) -> _Symbol:
        """Return a global symbol for a function, or for an instruction if linkers move it."""
        value = site if self._code.moves else function.value
        suffix = f"+{site - function.value}" if self._code.moves else ""
        known = self._aliases.get((function.section, value, function.name + suffix))
        if known is not None:
            return known
        weak = function.info >> 4 == STB_WEAK
        made = _Symbol(f"{ALIAS}{'' if weak else self._key}.{function.name}{suffix}",
                       (STB_WEAK if weak else STB_GLOBAL) << 4, STV_HIDDEN, function.section, value,
                       0)
        self._added.append(made)
        self._aliases[function.section, value, function.name + suffix] = made
        return made

    def _function_at(self, section: int, offset: int) -> _Symbol | None:
        """Return the function that contains an offset of a section."""
        functions = self._functions.get(section, [])
        index = bisect.bisect_right(functions, offset, key=lambda one: one.value)
        return next((one for one in reversed(functions[max(0, index - MOST_NESTED) : index])
                     if offset < one.value + one.size), None)

    def _hide(self, index: int) -> None:
        """Define the function of a probe as address 0, so that nothing needs it."""
        assert self._table is not None
        at = self._table.offset + index * SYMBOL.size
        name, _info, other, _section, value, size = SYMBOL.unpack_from(self._data, at)
        SYMBOL.pack_into(self._data, at, name, STB_WEAK << 4 | STT_FUNC, other, SHN_ABS, value,
                         size)
