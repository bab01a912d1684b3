"""A writer of small ELF files for tests."""

import struct
from dataclasses import dataclass, field

EM = {"amd64": 62, "arm64": 183, "riscv64": 243}


@dataclass
class Elf:
    """An ELF file of one architecture, described by its segments, symbols and sections."""

    arch: str = "amd64"
    entry: int = 0x1000
    segments: list[tuple[int, bytes, int]] = field(default_factory=lambda: [(0x1000, b"\x90", 1)])
    symbols: list[tuple[str, int, int, int]] = field(
        default_factory=lambda: [("start", 0x1000, 1, 2)]
    )
    build_id: bytes = b""
    # {name: content} of the sections that are not loaded
    others: dict[str, bytes] = field(default_factory=dict)
    # names of those unloaded sections that have the flag SHF_COMPRESSED
    compressed: tuple[str, ...] = ()
    elf_class: int = 2
    kind: int = 2
    symbols_type: int = 2  # type of the symbol table's section: 2 is SHT_SYMTAB, 11 is SHT_DYNSYM

    def build(self) -> bytes:
        """Return the file's bytes."""
        header, ph_size, sh_size = 64, 56, 64
        out = bytearray(header + ph_size * len(self.segments))
        programs = []
        for address, data, size in self.segments:
            programs.append((len(out), address, len(data), size))
            out += data
        strings, entries = bytearray(b"\0"), bytearray(24)
        for name, value, size, kind in self.symbols:
            entries += struct.pack("<IBBHQQ", len(strings), 0x10 | kind, 0, 1, value, size)
            strings += name.encode() + b"\0"
        names = b"\0.symtab\0.strtab\0.note.gnu.build-id\0.shstrtab\0"
        others, flagged = [], set()
        for name, data in self.others.items():
            others.append((len(names), 1, len(out), len(data), 0))
            if name in self.compressed:
                flagged.add(len(names))
            names += name.encode() + b"\0"
            out += data
        sections = [(0, 0, 0, 0, 0)]
        if self.symbols:
            sections.append((1, self.symbols_type, len(out), len(entries), 2))
            out += entries
            sections.append((9, 3, len(out), len(strings), 0))
            out += strings
        if self.build_id:
            note = struct.pack("<III4s", 4, len(self.build_id), 3, b"GNU\0") + self.build_id
            sections.append((17, 7, len(out), len(note), 0))
            out += note
        sections += others
        sections.append((36, 3, len(out), len(names), 0))
        out += names
        table = len(out)
        for name, kind, offset, size, link in sections:
            entry_size = 24 if kind in (2, 11) else 0
            flags = 0x800 if name in flagged else 0
            out += struct.pack("<IIQQQQIIQQ", name, kind, flags, 0, offset, size, link, 1, 1,
                               entry_size)
        struct.pack_into(
            "<4sBBBB8xHHIQQQIHHHHHH", out, 0, b"\x7fELF", self.elf_class, 1, 1, 0, self.kind,
            EM.get(self.arch, 0), 1, self.entry, header, table, 0, header, ph_size,
            len(self.segments), sh_size, len(sections), len(sections) - 1,
        )
        for i, (offset, address, size, memory) in enumerate(programs):
            struct.pack_into("<IIQQQQQQ", out, header + ph_size * i, 1, 7, offset, address,
                             address, size, memory, 1)
        return bytes(out)
