"""How QEMU boots an arm64 kernel: flattened, behind the header of a Linux Image.

Header: Documentation/arch/arm64/booting.rst of Linux.  Its first word branches to the entry.
"""

import struct
from pathlib import Path

from emu.arm64 import registers
from emu.elf.image import Image
from emu.guests.freebsd.records import command_line
from emu.host.errors import MachineError
from emu.qemu.board import Entered, QemuBoard
from emu.qemu.disks import disk_words
from emu.unicorn.arm64.board import RAM_BASE
from emu.unicorn.guest_memory import PAGE
from emu.unicorn.machine import UnicornMachine

HEADER = 64  # bytes
GUARD = "FreeBSD:"  # or the kernel takes the command line for Linux's
FLAGS = 0b1010  # little-endian, 4 KiB pages, anywhere in memory


def flatten(image: Image) -> bytes:
    """The segments as one blob, with the header over its first 64 bytes."""
    low = min(s.virtual for s in image.segments)
    high = max(s.virtual_end for s in image.segments)
    filled = max(s.virtual + len(s.data) for s in image.segments)
    blob = bytearray(filled - low)
    for segment in image.segments:
        at = segment.virtual - low
        blob[at : at + len(segment.data)] = segment.data
    branch = 0x14000000 | (image.entry - low) // 4
    struct.pack_into("<IIQQQQQQ4sI", blob, 0, branch, 0, 0, high - low, FLAGS, 0, 0, 0,
                     b"ARM\x64", 0)
    return bytes(blob)


def boot(image: Image, memory: int, directory: Path) -> list[str]:
    if image.modules:
        raise MachineError("QEMU's own boot takes no modules on this architecture: leave --module "
                           "away, or carry a booted state over")
    path = directory / "Image"
    room = image.entry - min(s.virtual for s in image.segments) >= HEADER
    # Without room for a header it is linked where it is to run.
    path.write_bytes(flatten(image) if room else image.file.data)
    return ["-kernel", str(path), "-append", command_line(image.options, GUARD),
            *disk_words(image, directory, "virtio-blk-device")]


# What the stub is made of (Arm ARM, C6.2).
LOAD_NEXT, LOAD_NEXT_2 = 0xF8408420, 0xF8408422  # ldr x0 (x2), [x1], #8
ISB, DSB, TLBI, BR_X2, LOOP = 0xD5033FDF, 0xD5033F9F, 0xD508871F, 0xD61F0040, 0x14000000
MOV_SP, ERET = 0x9100001F, 0xD69F03E0  # mov sp, x0
BLOCK = 1 | 3 << 8 | 1 << 10  # of 1 GiB: shareable, accessed
EPD0 = 1 << 7  # of TCR_EL1


def _msr(name: str) -> int:
    """``MSR name, x0``."""
    op0, op1, crn, crm, op2 = registers.SYSTEM[name]
    return 0xD5000000 | op0 << 19 | op1 << 16 | crn << 12 | crm << 8 | op2 << 5


def _identity_map(machine: Entered, physical: int, tcr: int, mair: int) -> int:
    """Page tables for TTBR0_EL1 that map the GiB around an address to itself; where they are."""
    size = 64 - (tcr & 63)
    if tcr & EPD0 or not 31 <= size <= 48:
        raise MachineError("this kernel's TCR_EL1 leaves TTBR0_EL1 unused: it cannot be carried")
    tables = machine.hidden_memory(2 * PAGE)
    normal = next((i for i in range(8) if mair >> 8 * i & 0xFF == 0xFF), 0)
    index = physical >> 30
    block = bytearray(PAGE)
    block[8 * index : 8 * index + 8] = (index << 30 | BLOCK | normal << 2).to_bytes(8, "little")
    top = (tables + PAGE | 3).to_bytes(8, "little")
    machine.write_physical(tables, top)
    machine.write_physical(tables + PAGE, bytes(block))
    return tables if size > 39 else tables + PAGE


def enter(machine: Entered, source: UnicornMachine) -> None:
    """System registers can be set by the CPU alone: by a stub over the kernel's first instructions,
    which nothing executes any more.  It runs at its physical address until the MMU is on, at the
    virtual one then; what it was written over is put back."""
    state = source.cpu.state()
    virtual = source.guest.entry_address(source.image)
    physical = source.translate(virtual)
    if physical is None:
        raise MachineError(f"the kernel's entry at {virtual:#x} is not mapped: nothing to carry")
    names = [n for n in registers.CARRIED if n not in ("ttbr0_el1", "sctlr_el1")]
    table = state["ttbr0_el1"]
    if state["sctlr_el1"] & 1:
        table = _identity_map(machine, physical, state["tcr_el1"], state["mair_el1"])
    program = "sp_el1" in state
    code, values = [], []
    wanted = state | {"ttbr0_el1": table}
    if program:  # it is returned to: gdb's stub changes no exception level for the whole CPU
        wanted |= {"elr_el1": state["pc"], "spsr_el1": state["pstate"]}
    for name in (*names, "ttbr0_el1"):
        code += [LOAD_NEXT, _msr(name)]
        values.append(wanted[name])
    if program:  # the kernel's stack pointer, which is in use here
        code += [LOAD_NEXT, MOV_SP]
        values.append(state["sp_el1"])
    code += [DSB, ISB, LOAD_NEXT_2, LOAD_NEXT, _msr("sctlr_el1"), ISB, BR_X2]
    values += [virtual + 4 * len(code), state["sctlr_el1"]]
    code += [LOAD_NEXT, _msr("ttbr0_el1"), ISB, TLBI, DSB, ISB, ERET if program else LOOP]
    values.append(state["ttbr0_el1"])
    end = state["pc"] if program else virtual + 4 * len(code) - 4
    code += [0] * (len(code) % 2)
    data = struct.pack(f"<{len(code)}I{len(values)}Q", *code, *values)
    saved = machine.read_physical(physical, len(data))
    machine.write_physical(physical, data)
    machine.write_register("x1", physical + 4 * len(code))
    machine.pc = physical
    machine.run_stub(end)
    machine.write_physical(physical, saved)
    for i in range(32):
        machine.write_register(f"v{i}", int.from_bytes(bytes.fromhex(state[f"v{i}"]), "little"))
    for name in ("fpcr", "fpsr", *registers.GENERAL):
        machine.write_register(name, state[name])


def _spellings(name: str) -> tuple[str, ...]:
    """QEMU names some system registers without the exception level."""
    if name == "pstate":
        return ("cpsr",)
    if name in registers.VECTORS:
        return ("v" + name[1:],)
    return name, name.upper(), name.upper().removesuffix("_EL1")


BOARD = QemuBoard(
    program="qemu-system-aarch64", machine="virt,gic-version=2", cpu="cortex-a57",
    ram_base=RAM_BASE, boot=boot, carry=(), enter=enter, spellings=_spellings, breakpoint_kind=4,
    constants=frozenset({"xzr"}),
)
