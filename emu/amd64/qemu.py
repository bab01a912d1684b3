"""How QEMU boots an amd64 kernel: a stub of ours, entered by PVH, goes on at ``btext``.

QEMU's firmware has run by then and left its ACPI tables.  The kernel's segments, the loader's
metadata and its page tables are put into memory by QEMU's generic loader; the stub switches to
long mode on them.
"""

import struct
from pathlib import Path

import keystone

from emu.amd64 import loader
from emu.elf import Image

STUB = 0x100000
FIRMWARE = 2 << 20  # at the end of memory: where QEMU's firmware leaves its tables

SOURCE = """
    cli
    mov eax, cr4
    or eax, 0x220
    mov cr4, eax
    mov eax, {pml4}
    mov cr3, eax
    mov ecx, 0xc0000080
    rdmsr
    or eax, 0x100
    wrmsr
    mov eax, cr0
    or eax, 0x80010013
    mov cr0, eax
    lgdt [{gdtr}]
"""
LONG_MODE = """
    mov ax, 16
    mov ss, ax
    mov ds, ax
    mov es, ax
    mov rsp, {sp}
    movabs rax, {entry}
    jmp rax
"""


def _assemble(mode: int, source: str, at: int) -> bytes:
    code, _count = keystone.Ks(keystone.KS_ARCH_X86, mode).asm(source, at)
    return bytes(code or ())


def _stub(sp: int, entry: int) -> bytes:
    gdtr = STUB + 0x200
    head = _assemble(keystone.KS_MODE_32,
                     SOURCE.format(pml4=hex(loader.PML4), gdtr=hex(gdtr)), STUB)
    jump = b"\xea" + struct.pack("<IH", STUB + len(head) + 7, 8)
    tail = _assemble(keystone.KS_MODE_64, LONG_MODE.format(sp=hex(sp), entry=hex(entry)),
                     STUB + len(head) + 7)
    code = (head + jump + tail).ljust(0x200, b"\x90")
    return code + struct.pack("<HQ", len(loader.GDT_ENTRIES) - 1, loader.GDT)


def _pvh_image(code: bytes) -> bytes:
    """A one-segment ELF file with the note that names its 32-bit entry (Xen PVH)."""
    note = struct.pack("<III4sQ", 4, 8, 18, b"Xen\0", STUB)
    header, ph = 64, 56
    at = header + 2 * ph
    body = note.ljust(64, b"\0") + code
    out = struct.pack(
        "<4sBBBB8xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 2, 62, 1, STUB, header, 0, 0, header, ph,
        2, 0, 0, 0,
    )
    out += struct.pack("<IIQQQQQQ", 1, 7, at + 64, STUB, STUB, len(code), len(code), 4096)
    out += struct.pack("<IIQQQQQQ", 4, 4, at, 0, 0, len(note), len(note), 4)
    return out + body


def command(image: Image, memory: int, directory: Path) -> list[str]:
    """The command that boots the kernel with its console on standard output.

    :param directory: where the files that QEMU loads are written.
    """
    end = max(s.physical_end for s in image.segments)
    usable = memory - FIRMWARE
    module, data, kernend = loader.metadata(image, end, loader.memory_map(usable))
    sp, words = loader.stack(module, kernend)
    tables = bytearray(loader.page_tables().ljust(loader.GDT - loader.PML4, b"\0"))
    tables[sp - loader.PML4 : sp - loader.PML4 + len(words)] = words
    pieces = {
        "metadata": ((end + 0xFFF) & ~0xFFF, data),
        "tables": (loader.PML4, bytes(tables) + loader.GDT_ENTRIES),
    }
    for i, segment in enumerate(image.segments):
        pieces[f"segment{i}"] = segment.physical, bytes(segment.data)
    (directory / "stub").write_bytes(_pvh_image(_stub(sp, image.entry)))
    words_ = ["qemu-system-x86_64", "-M", "pc", "-nodefaults", "-display", "none", "-no-reboot",
              "-m", f"{memory >> 20}M", "-serial", "stdio", "-kernel", str(directory / "stub")]
    for name, (address, content) in pieces.items():
        if content:
            (directory / name).write_bytes(content)
            words_ += ["-device",
                       f"loader,addr={address:#x},file={directory / name},force-raw=on"]
    return words_
