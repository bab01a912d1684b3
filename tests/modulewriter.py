"""Writer of kernel modules: relocatable files for amd64, shared objects for arm64 and riscv64.

A module has a function ``f`` that calls the external function ``outside`` of the kernel or another
module, a word of data that points to ``f``, and metadata with its name and dependencies.
"""

import struct
from dataclasses import dataclass, field

EM = {"amd64": 62, "arm64": 183, "riscv64": 243}
ABSOLUTE = {"amd64": 1, "arm64": 257, "riscv64": 2}
RELATIVE = {"arm64": 1027, "riscv64": 3}
NAMES = {"amd64": "X86_64", "arm64": "AARCH64", "riscv64": "RISCV"}
PC32 = 2


@dataclass
class KernelModule:
    """A kernel module with one function and one variable.

    :param text: code of ``f``, with a 32-bit placeholder at ``call`` for the distance to
        ``outside``
    :param depends: (name, lowest version, highest version) of the required modules
    """

    name: str = "mine"
    arch: str = "amd64"
    text: bytes = b"\x55\xe8\0\0\0\0\x5d\xc3"
    call: int = 2
    outside: str = "panic"
    depends: tuple[tuple[str, int, int], ...] = (("kernel", 1500000, 1500999),)
    symbols: list[tuple[str, int, int]] = field(default_factory=list)  # (name, section, value)

    def build(self) -> bytes:
        """Return the bytes of the module's file."""
        return self._relocatable() if self.arch == "amd64" else self._shared()

    def _said(self, base: int) -> tuple[bytes, list[tuple[int, int]], int]:
        """Return the metadata, its pointers as (address, target), and its number of records."""
        records, strings, pointers = bytearray(), bytearray(), []
        count = len(self.depends) + 1
        depends_at = count * 24
        strings_at = depends_at + 12 * len(self.depends)
        numbers = bytearray()
        for i, (name, least, last) in enumerate(((self.name, 0, 0), *self.depends)):
            records += struct.pack("<iiQQ", 1, 3 if i == 0 else 1, 0, 0)
            if i:
                pointers.append((24 * i + 8, depends_at + 12 * (i - 1)))
                numbers += struct.pack("<iii", least, least, last)
            pointers.append((24 * i + 16, strings_at + len(strings)))
            strings += name.encode() + b"\0"
        metadata = bytes(records + numbers + strings)
        return metadata, [(base + p, base + t) for p, t in pointers], count

    def _relocatable(self) -> bytes:
        metadata, pointers, count = self._said(0)
        names = bytearray(b"\0")
        sections: list[list] = [["", 0, 0, b"", 0, 0, 1, 0]]

        def add(name, kind, flags, data, link=0, info=0, align=8, entry=0):
            sections.append([name, kind, flags, data, link, info, align, entry])
            return len(sections) - 1

        text = add(".text", 1, 6, self.text, align=16)
        data = add(".data", 1, 3, bytes(8) + metadata)
        set_ = add("set_modmetadata_set", 1, 2, bytes(8 * count))
        bss = add(".bss", 8, 3, 64)
        strings, entries = bytearray(b"\0"), bytearray(24)

        def symbol(name, info, section, value, size):
            entries.extend(struct.pack("<IBBHQQ", len(strings) if name else 0, info, 0, section,
                                       value, size))
            strings.extend(name.encode() + b"\0" if name else b"")
            return len(entries) // 24 - 1

        in_data = symbol("", 3, data, 0, 0)
        f = symbol("f", 0x12, text, 0, len(self.text))
        symbol("variable", 0x11, data, 0, 8)
        symbol("zeros", 0x11, bss, 0, 64)
        out = symbol(self.outside, 0x10, 0, 0, 0)
        begin = symbol("__start_set_modmetadata_set", 0x10, 0, 0, 0)
        for name, section, value in self.symbols:
            symbol(name, 0x12, section, value, 1)
        symtab = len(sections) + 3

        def rela(*rows):
            return b"".join(struct.pack("<QQq", at, number << 32 | kind, addend)
                            for at, number, kind, addend in rows)

        add(".rela.text", 4, 0, rela((self.call, out, PC32, -4)), symtab, text, 8, 24)
        add(".rela.data", 4, 0, rela((0, f, 1, 0), *(
            (8 + p, in_data, 1, 8 + t) for p, t in pointers)), symtab, data, 8, 24)
        add(".rela.set", 4, 0, rela(*((8 * i, in_data, 1, 8 + 24 * i) for i in range(count))),
            symtab, set_, 8, 24)
        assert begin and len(sections) == symtab
        add(".symtab", 2, 0, bytes(entries), symtab + 1, 2, 8, 24)
        add(".strtab", 3, 0, bytes(strings), align=1)
        add(".shstrtab", 3, 0, b"", align=1)
        for section in sections:
            section.append(len(names))  # type: ignore[attr-defined]
            names += section[0].encode() + b"\0"
        sections[-1][3] = bytes(names)
        out_ = bytearray(64)
        heads = bytearray()
        for _name, kind, flags, content, link, info, align, entry, name_at in sections:
            size = content if kind == 8 else len(content)
            out_ += bytes(-len(out_) % 16)
            heads += struct.pack("<IIQQQQIIQQ", name_at, kind, flags, 0, len(out_), size, link,
                                 info, align, entry)
            out_ += b"" if kind == 8 else content
        at = len(out_)
        out_ += heads
        struct.pack_into("<4sBBBB8xHHIQQQIHHHHHH", out_, 0, b"\x7fELF", 2, 1, 1, 9, 1,
                         EM[self.arch], 1, 0, 0, at, 0, 64, 0, 0, 64, len(sections),
                         len(sections) - 1)
        return bytes(out_)

    def _shared(self) -> bytes:
        """Build a shared object with segments for code (at 0x1000) and data (at 0x2000)."""
        metadata, pointers, count = self._said(0x2008)
        set_at = 0x2008 + len(metadata) + -len(metadata) % 8
        data = bytes(8) + metadata + bytes(-len(metadata) % 8) + bytes(8 * count)
        strings, entries = bytearray(b"\0"), bytearray(24)
        for name, section, value, size, info in (
                ("f", 1, 0x1000, len(self.text), 0x12), ("variable", 2, 0x2000, 8, 0x11),
                (self.outside, 0, 0, 0, 0x10)):
            entries += struct.pack("<IBBHQQ", len(strings), info, 0, section, value, size)
            strings += name.encode() + b"\0"
        relative, absolute = RELATIVE[self.arch], ABSOLUTE[self.arch]
        rows = [(0x2000, 0, relative, 0x1000)]
        rows += [(place, 0, relative, target) for place, target in pointers]
        rows += [(set_at + 8 * i, 0, relative, 0x2008 + 24 * i) for i in range(count)]
        rows.append((0x1000 + len(self.text), 3, absolute, 0))  # a relocated word after the code
        rela = b"".join(struct.pack("<QQq", at, number << 32 | kind, addend)
                        for at, number, kind, addend in rows)
        pieces = [(".text", 1, 6, 0x1000, self.text + bytes(8), 0, 0, 0),
                  (".data", 1, 3, 0x2000, data[: set_at - 0x2000], 0, 0, 0),
                  ("set_modmetadata_set", 1, 3, set_at, data[set_at - 0x2000 :], 0, 0, 0),
                  (".rela.dyn", 4, 2, 0, rela, 5, 0, 24),
                  (".dynsym", 11, 2, 0, bytes(entries), 6, 1, 24),
                  (".dynstr", 3, 2, 0, bytes(strings), 0, 0, 0)]
        names = bytearray(b"\0")
        out = bytearray(64 + 2 * 56)
        heads = bytearray(64)
        places = {}
        for name, kind, flags, address, content, link, info, entry in pieces:
            places[name] = len(out)
            heads += struct.pack("<IIQQQQIIQQ", len(names), kind, flags, address, len(out),
                                 len(content), link, info, 8, entry)
            names += name.encode() + b"\0"
            out += content
        heads += struct.pack("<IIQQQQIIQQ", len(names), 3, 0, 0, len(out), len(names) + 10, 0, 0,
                             1, 0)
        names += b".shstrtab\0"
        out += names
        at = len(out)
        out += heads
        struct.pack_into("<4sBBBB8xHHIQQQIHHHHHH", out, 0, b"\x7fELF", 2, 1, 1, 9, 3,
                         EM[self.arch], 1, 0, 64, at, 0, 64, 56, 2, 64, len(pieces) + 2,
                         len(pieces) + 1)
        for i, (name, address, size, flags) in enumerate((
                (".text", 0x1000, len(self.text) + 8, 5), (".data", 0x2000, len(data), 6))):
            struct.pack_into("<IIQQQQQQ", out, 64 + 56 * i, 1, flags, places[name], address,
                             address, size, size + (64 if name == ".data" else 0), 8)
        return bytes(out)
