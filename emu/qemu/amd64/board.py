"""QEMU board for amd64, which starts a kernel through a PVH stub that jumps to ``btext``.

QEMU's firmware runs first and leaves its ACPI tables. QEMU's generic loader puts the kernel's
segments, the loader's metadata and the page tables into memory; the stub then switches to long
mode.
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emu.amd64 import registers
from emu.elf.image import Image
from emu.guests.freebsd.amd64 import loader
from emu.host.errors import MachineError
from emu.host.extras import need
from emu.qemu.board import Entered, QemuBoard
from emu.qemu.disks import disk_words
from emu.unicorn.machine import UnicornMachine

STUB = 0x100000
FIRMWARE = 2 << 20  # size in bytes of the area at the end of memory for the firmware's tables

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


def _assemble(bits: int, source: str, at: int) -> bytes:
    need("assembler", "QEMU on amd64")
    import keystone

    mode = keystone.KS_MODE_64 if bits == 64 else keystone.KS_MODE_32
    code, _count = keystone.Ks(keystone.KS_ARCH_X86, mode).asm(source, at)
    return bytes(code or ())


def _stub(sp: int, entry: int) -> bytes:
    gdtr = STUB + 0x200
    head = _assemble(32,
                     SOURCE.format(pml4=hex(loader.PML4), gdtr=hex(gdtr)), STUB)
    jump = b"\xea" + struct.pack("<IH", STUB + len(head) + 7, 8)
    tail = _assemble(64, LONG_MODE.format(sp=hex(sp), entry=hex(entry)),
                     STUB + len(head) + 7)
    code = (head + jump + tail).ljust(0x200, b"\x90")
    return code + struct.pack("<HQ", len(loader.GDT_ENTRIES) - 1, loader.GDT)


def _pvh_image(code: bytes) -> bytes:
    """Return a one-segment ELF file with a note that names its 32-bit entry point (Xen PVH)."""
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


def boot(image: Image, memory: int, directory: Path) -> list[str]:
    """Write the files from which QEMU boots, and return QEMU's options for the boot."""
    usable = memory - FIRMWARE
    module, at, data, kernend = loader.metadata(image, loader.memory_map(usable))
    sp, words = loader.stack(module, kernend)
    tables = bytearray(loader.page_tables().ljust(loader.GDT - loader.PML4, b"\0"))
    tables[sp - loader.PML4 : sp - loader.PML4 + len(words)] = words
    pieces = {
        "metadata": (at, data),
        "tables": (loader.PML4, bytes(tables) + loader.GDT_ENTRIES),
    }
    for i, segment in enumerate(image.segments):
        pieces[f"segment{i}"] = segment.physical, bytes(segment.data)
    for i, piece in enumerate(loader.files(image)):
        pieces[f"file{i}"] = piece
    (directory / "stub").write_bytes(_pvh_image(_stub(sp, image.entry)))
    words_ = ["-kernel", str(directory / "stub")]
    for name, (address, content) in pieces.items():
        if content:
            (directory / name).write_bytes(content)
            words_ += ["-device",
                       f"loader,addr={address:#x},file={directory / name},force-raw=on"]
    return words_ + disk_words(image, directory, "virtio-blk-pci")


# -- transfer of a state --------------------------------------------------------------------------

REAL, DATA, ROOM = 0x7000, 0x8000, 0x2000  # stub: physical addresses of code and data, total size
FLAT_GDT = struct.pack("<3Q", 0, 0x00AF9A000000FFFF, 0x00CF92000000FFFF)
LMA, PSE, PAE = 1 << 10, 1 << 4, 1 << 5
MMR = struct.Struct("<H6xQII")  # uc_x86_mmr: selector, base, limit, flags
TSS_TYPE, TSS_AVAILABLE = 5, 0x89  # offset of a descriptor's type byte; type of an available TSS
SEGMENTS = ("cs", "ss", "ds", "es", "fs", "gs")


def _real_mode(pml4: int, efer: int, long_mode: int) -> bytes:
    """Return real-mode code that enters long mode with the page tables at ``pml4``."""
    return b"".join((
        b"\x66\x0f\x01\x16", struct.pack("<H", DATA),  # lgdt [DATA]
        b"\x66\xb8", struct.pack("<I", PSE | PAE), b"\x0f\x22\xe0",  # mov cr4, eax
        b"\x66\xb8", struct.pack("<I", pml4), b"\x0f\x22\xd8",  # mov cr3, eax
        b"\x66\xb9", struct.pack("<I", registers.MSRS["efer"]),
        b"\x66\xb8", struct.pack("<I", efer & ~LMA), b"\x66\x31\xd2\x0f\x30",  # wrmsr
        b"\x66\xb8", struct.pack("<I", 0x80010033), b"\x0f\x22\xc0",  # mov cr0, eax
        b"\x66\xea", struct.pack("<IH", long_mode, 8),  # far jump into the 64-bit segment
    ))


def _long_mode(state: Mapping[str, Any], task: int, local: int) -> bytes:
    """Return code that loads the registers that the gdb stub cannot write, and then loops."""
    code = b"\x48\xbe" + struct.pack("<Q", DATA)  # mov rsi, DATA
    code += b"\x0f\x01\x56\x10\x0f\x01\x5e\x20"  # lgdt [rsi + 16]; lidt [rsi + 32]
    if task:
        code += b"\x66\xb8" + struct.pack("<H", task) + b"\x0f\x00\xd8"  # ltr ax
    code += b"\x66\xb8" + struct.pack("<H", local) + b"\x0f\x00\xd0"  # lldt ax
    for name, number in registers.MSRS.items():
        if name != "efer":
            low, high = state[name] & 0xFFFFFFFF, state[name] >> 32
            code += struct.pack("<BIBIBI", 0xB9, number, 0xB8, low, 0xBA, high) + b"\x0f\x30"
    return code + b"\xeb\xfe"


def enter(machine: Entered, source: UnicornMachine) -> None:
    """Set QEMU's CPU to the state of another machine.

    Only instructions can load descriptor tables, the task register and MSRs. So a stub in low
    memory starts in real mode, under page tables that contain the guest's upper half and the stub.
    The memory that it overwrites is restored. The gdb stub sets all other registers.

    :raises MachineError: if the guest's GDT is not mapped.
    """
    state = source.cpu.state()
    wide = {name: MMR.unpack(bytes.fromhex(state[name])) for name in registers.WIDE}
    pml4 = machine.hidden_memory(3 * 4096)
    theirs = bytearray(source.read_physical(state["cr3"] & 0x000FFFFFFFFFF000, 4096))
    theirs[:8] = struct.pack("<Q", pml4 + 4096 | 3)
    machine.write_physical(pml4, bytes(theirs))
    machine.write_physical(pml4 + 4096, struct.pack("<Q", pml4 + 8192 | 3))
    machine.write_physical(pml4 + 8192, struct.pack("<Q", 0x83))  # maps the first 2 MiB
    head = _real_mode(pml4, state["efer"], 0)
    start = REAL + len(head)
    task, local = wide["tr"][0], wide["ldtr"][0]
    code = _real_mode(pml4, state["efer"], start) + _long_mode(state, task, local)
    saved = machine.read_physical(REAL, ROOM)
    data = struct.pack("<HI", len(FLAT_GDT) - 1, DATA + 0x40).ljust(16, b"\0")
    for name in ("gdtr", "idtr"):
        data += struct.pack("<HQ", wide[name][2], wide[name][1]).ljust(16, b"\0")
    machine.write_physical(REAL, code)
    machine.write_physical(DATA, data.ljust(0x40, b"\0") + FLAT_GDT)
    if task:  # LTR requires an available TSS, and marks it as busy
        machine.write_physical(_physical(source, wide["gdtr"][1] + (task & ~7) + TSS_TYPE),
                               bytes([TSS_AVAILABLE]))
    machine.write_register("cs", REAL >> 4)
    machine.pc = 0
    machine.run_stub(REAL + len(code) - 2)
    machine.write_physical(REAL, saved)
    for name in ("cr4", "cr3", "efer", "cr0", "cr2", "cr8", *SEGMENTS, "fs_base", "gs_base",
                 "mxcsr", "fpcw", "fpsw", *registers.NAMES):
        machine.write_register(name, state[name])
    for i in range(16):
        machine.write_register(f"xmm{i}", int.from_bytes(bytes.fromhex(state[f"xmm{i}"]), "little"))


def _physical(source: UnicornMachine, address: int) -> int:
    found = source.translate(address)
    if found is None:
        raise MachineError(f"cannot transfer the state: the GDT at {address:#x} is not mapped")
    return found


SPELLINGS = {"rflags": ("eflags",), "kernel_gs_base": ("k_gs_base",), "fpcw": ("fctrl",),
             "fpsw": ("fstat",), "fop": ()}  # QEMU's gdb stub always reports fop as 0

BOARD = QemuBoard(
    program="qemu-system-x86_64", machine="pc", cpu="qemu64", ram_base=0, boot=boot, carry=(),
    enter=enter, spellings=lambda name: SPELLINGS.get(name, (name,)), breakpoint_kind=1,
)
