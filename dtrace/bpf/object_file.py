"""Export of linked BPF code as an ELF-64 object file for other tools (e_machine EM_BPF)."""

from dtrace.bpf.encoding import SIZE
from dtrace.bpf.linker import Linked
from emu.elf.reader import ET_REL, HEADER, SECTION, SHT_SYMTAB
from emu.elf.symbols import SYMBOL

IDENT = b"\x7fELF\x02\x01\x01" + bytes(9)  # 64-bit, little-endian, version 1, System V ABI
EM_BPF = 247
SHT_PROGBITS, SHT_STRTAB = 1, 3
SHF_ALLOC, SHF_EXECINSTR = 2, 4
STB_LOCAL_SECTION, STB_GLOBAL_FUNC = 3, 1 << 4 | 2


def object_file(linked: Linked, constants: bytes) -> bytes:
    """Return an ELF object with the functions in .text and the string constants in .rodata.

    Calls between functions are resolved. Helpers have the numbers of ``dtrace/bpf/layout.py``, and
    memory has the addresses that this project's executors use.
    """
    strings = bytearray(b"\0")
    symbols = [SYMBOL.pack(0, 0, 0, 0, 0, 0), SYMBOL.pack(0, STB_LOCAL_SECTION, 0, 1, 0, 0)]
    ends = [*sorted(linked.offsets.values()), len(linked.code) // SIZE]
    for name, slot in linked.offsets.items():
        end = ends[ends.index(slot) + 1]
        symbols.append(SYMBOL.pack(
            len(strings), STB_GLOBAL_FUNC, 0, 1, slot * SIZE, (end - slot) * SIZE))
        strings += name.encode() + b"\0"
    # Sections: name, type, flags, content, sh_link, sh_info, alignment, entry size.
    table = (
        (".text", SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, linked.code, 0, 0, 8, 0),
        (".rodata", SHT_PROGBITS, SHF_ALLOC, constants, 0, 0, 8, 0),
        (".symtab", SHT_SYMTAB, 0, b"".join(symbols), 4, 2, 8, SYMBOL.size),
        (".strtab", SHT_STRTAB, 0, bytes(strings), 0, 0, 1, 0),
    )
    names = bytearray(b"\0")
    headers, body = [SECTION.pack(*[0] * 10)], bytearray()
    for name, kind, flags, content, link, info, align, entry in table:
        body += bytes(-len(body) % align)
        headers.append(SECTION.pack(len(names), kind, flags, 0, HEADER.size + len(body),
                                    len(content), link, info, align, entry))
        names += name.encode() + b"\0"
        body += content
    own = len(names)
    names += b".shstrtab\0"
    headers.append(SECTION.pack(own, SHT_STRTAB, 0, 0, HEADER.size + len(body), len(names), 0, 0,
                                1, 0))
    body += names
    body += bytes(-len(body) % 8)
    head = HEADER.pack(IDENT, ET_REL, EM_BPF, 1, 0, 0, HEADER.size + len(body), 0, HEADER.size, 0,
                       0, SECTION.size, len(headers), len(headers) - 1)
    return head + bytes(body) + b"".join(headers)
