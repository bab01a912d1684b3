"""A writer of object files that call functions, and a small linker for the result of -G."""

import struct
from dataclasses import dataclass, field

from dtrace.usdt.program_objects import ALIASES
from emu.elf.reader import ElfFile
from emu.host.input_file import InputFile
from tests.elfwriter import EM

FUNC, SECTION_SIZE = 2, 64
# Calls and tail calls as compilers emit them; type and place of the relocation
CALLS = {"amd64": (bytes.fromhex("e800000000"), bytes.fromhex("e900000000"), 4, 1),
         "arm64": (bytes.fromhex("00000094"), bytes.fromhex("00000014"), (283, 282), 0),
         "riscv64": (bytes.fromhex("97000000e7800000"), bytes.fromhex("1703000067000300"), 19, 0)}


@dataclass
class ObjectFile:
    """An object file whose functions consist of calls.

    :param functions: name -> names of the called functions; a name with ``!`` is a tail call.
    :param weak: names of weak functions.
    :param kind: ``e_type``.
    """

    arch: str
    functions: dict[str, list[str]]
    weak: tuple[str, ...] = ()
    kind: int = 1
    relocation: int | None = None
    section_flags: int = 6
    extra: dict[str, bytes] = field(default_factory=dict)

    def build(self) -> bytes:
        """Return the file's bytes."""
        call, jump, types, place = CALLS[self.arch]
        text, relocations, strings = bytearray(), [], bytearray(1)
        symbols = [struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)]
        called: dict[str, int] = {}

        def named(name):
            strings.extend(name.encode("utf-8", "surrogateescape") + b"\0")
            return len(strings) - len(name.encode("utf-8", "surrogateescape")) - 1

        bodies = {}
        for name, callees in self.functions.items():
            start = len(text)
            for callee in callees:
                tail = callee.startswith("!")
                relocations.append((len(text) + place, callee.lstrip("!"), tail))
                text += jump if tail else call
            bodies[name] = start, len(text) - start
        for name, (start, size) in bodies.items():
            info = (2 if name in self.weak else 1) << 4 | FUNC
            symbols.append(struct.pack("<IBBHQQ", named(name), info, 0, 1, start, size))
        for _at, name, _tail in relocations:
            if name not in called:
                called[name] = len(symbols)
                symbols.append(struct.pack("<IBBHQQ", named(name), 0x10, 0, 0, 0, 0))
        rows = b"".join(struct.pack(
            "<QQq", at, called[name] << 32 | (
                self.relocation if self.relocation is not None else
                types if isinstance(types, int) else types[tail]), -4)
            for at, name, tail in relocations)
        names = b"\0.text\0.rela.text\0.symtab\0.strtab\0"
        contents = [(0, 0, 0, b"", 0, 0), (1, 1, self.section_flags, bytes(text), 0, 0),
                    (7, 4, 0, rows, 3, 1), (18, 2, 0, b"".join(symbols), 4, 1),
                    (26, 3, 0, bytes(strings), 0, 0), (0, 3, 0, names, 0, 0)]
        out, heads = bytearray(64), bytearray()
        for name, kind, flags, content, link, info in contents:
            out += bytes(-len(out) % 8)
            heads += struct.pack("<IIQQQQIIQQ", name, kind, flags, 0, len(out) if kind else 0,
                                 len(content), link, info, 8, 24 if kind in (2, 4) else 0)
            out += content
        out += bytes(-len(out) % 8)
        table = len(out)
        out += heads
        struct.pack_into("<4sBBBB8xHHIQQQIHHHHHH", out, 0, b"\x7fELF", 2, 1, 1, 9, self.kind,
                         EM[self.arch], 1, 0, 0, table, 5, 64, 0, 0, SECTION_SIZE, len(contents), 5)
        return bytes(out)


def symbols_of(file: ElfFile) -> dict[str, tuple[int, int, int]]:
    """Return the information, section and value of the symbols of an object file."""
    table = next(file.of_kind(2))
    strings = file.content(file.sections[table.link])
    found = {}
    for name, info, _other, section, value, _size in struct.iter_unpack(
            "<IBBHQQ", file.content(table)):
        text = strings[name : strings.index(b"\0", name)].decode("utf-8", "surrogateescape")
        found[text] = info, section, value
    return found


def linked(parts: list[bytes], probes: bytes, text: int, dof: int) -> tuple[bytes, bytes]:
    """Link object files as a linker would; return the code and the contents of .SUNW_dof.

    :param text: address of the code of the first object; the others follow.
    :param dof: address of .SUNW_dof.
    """
    code, places = b"", {}
    for content in parts:
        file = ElfFile(InputFile(None, memoryview(content), (0, 0, 0, 0, 0)))
        for name, (_info, section, value) in symbols_of(file).items():
            if section == 1 and name.startswith(ALIASES):
                places[name] = text + len(code) + value
        code += file.content(file.section(".text"))
    file = ElfFile(InputFile(None, memoryview(probes), (0, 0, 0, 0, 0)))
    section = file.section(".SUNW_dof")
    made = bytearray(file.content(section))
    table = next(file.of_kind(2))
    strings = file.content(file.sections[table.link])
    names = [strings[row[0] : strings.index(b"\0", row[0])].decode()
             for row in struct.iter_unpack("<IBBHQQ", file.content(table))]
    for at, info, addend in struct.iter_unpack("<QQq", file.content(
            file.section(".rela.SUNW_dof"))):
        kind, number = info & 0xFFFFFFFF, info >> 32
        value, = struct.unpack_from("<Q", made, at)
        if kind in (24, 260):  # the distance from the field
            value = places[names[number]] + addend - (dof + at)
        elif kind == 36:
            value += places[names[number]] + addend
        elif kind == 40:
            value -= dof + addend
        else:
            raise AssertionError(kind)
        struct.pack_into("<Q", made, at, value & (1 << 64) - 1)
    return code, bytes(made)
