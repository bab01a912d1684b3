"""QEMU board for arm64, which boots a kernel as a flat image with a Linux Image header.

The header is described in Documentation/arch/arm64/booting.rst of Linux. Its first word is a branch
to the entry point.
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

HEADER = 64  # size in bytes of a Linux Image header
# Without this prefix, the kernel parses its command line as a Linux command line.
GUARD = "FreeBSD:"
FLAGS = 0b1010  # header flags: little-endian, 4 KiB pages, loadable at any address


def flatten(image: Image) -> bytes:
    """Return the segments as one block, with a Linux Image header in the first 64 bytes."""
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
    """Write the files from which QEMU boots, and return QEMU's options for the boot.

    :raises MachineError: if the image has modules.
    """
    if image.modules:
        raise MachineError("QEMU cannot boot a kernel with modules on this architecture: omit "
                           "--module, or transfer the state of a booted machine")
    path = directory / "Image"
    room = image.entry - min(s.virtual for s in image.segments) >= HEADER
    # A kernel without room for a header is linked at its load address, so QEMU loads the ELF file.
    path.write_bytes(flatten(image) if room else image.file.data)
    return ["-kernel", str(path), "-append", command_line(image.options, GUARD),
            *disk_words(image, directory, "virtio-blk-device")]


# Instructions of the stub (Arm ARM, C6.2).
LOAD_NEXT, LOAD_NEXT_2 = 0xF8408420, 0xF8408422  # ldr x0 (x2), [x1], #8
ISB, DSB, TLBI, BR_X2, LOOP = 0xD5033FDF, 0xD5033F9F, 0xD508871F, 0xD61F0040, 0x14000000
MOV_SP, ERET = 0x9100001F, 0xD69F03E0  # mov sp, x0
BLOCK = 1 | 3 << 8 | 1 << 10  # block descriptor (1 GiB): valid, inner shareable, accessed
EPD0 = 1 << 7  # bit of TCR_EL1 that disables TTBR0_EL1


def _msr(name: str) -> int:
    """Return the encoding of ``MSR name, x0``."""
    op0, op1, crn, crm, op2 = registers.SYSTEM[name]
    return 0xD5000000 | op0 << 19 | op1 << 16 | crn << 12 | crm << 8 | op2 << 5


def _identity_map(machine: Entered, physical: int, tcr: int, mair: int) -> int:
    """Build page tables that identity-map the GiB around an address; return their address."""
    size = 64 - (tcr & 63)
    if tcr & EPD0 or not 31 <= size <= 48:
        raise MachineError("cannot transfer the state: the kernel's TCR_EL1 disables TTBR0_EL1")
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
    """Set QEMU's CPU to the state of another machine.

    Only instructions can set system registers. So a stub temporarily replaces the kernel's first
    instructions, which are not executed again. It runs at its physical address until the MMU is
    on, and then at its virtual address.

    :raises MachineError: if the state cannot be transferred.
    """
    state = source.cpu.state()
    virtual = source.guest.entry_address(source.image)
    physical = source.translate(virtual)
    if physical is None:
        raise MachineError(f"cannot transfer the state: the kernel's entry point {virtual:#x} is "
                           "not mapped")
    names = [n for n in registers.CARRIED if n not in ("ttbr0_el1", "sctlr_el1")]
    table = state["ttbr0_el1"]
    if state["sctlr_el1"] & 1:
        table = _identity_map(machine, physical, state["tcr_el1"], state["mair_el1"])
    program = "sp_el1" in state
    code, values = [], []
    wanted = state | {"ttbr0_el1": table}
    if program:  # ERET enters the program, since the gdb stub cannot fully change exception levels
        wanted |= {"elr_el1": state["pc"], "spsr_el1": state["pstate"]}
    for name in (*names, "ttbr0_el1"):
        code += [LOAD_NEXT, _msr(name)]
        values.append(wanted[name])
    if program:  # the stub runs on the kernel's stack pointer
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
    """Return the names that QEMU's gdb stub may use for a register, with or without ``_EL1``."""
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
