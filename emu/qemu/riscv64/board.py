"""QEMU board for riscv64, where QEMU's firmware runs first and then starts the ELF file.

A transferred state runs without firmware; the gdb stub can set all of it.
"""

from pathlib import Path

from emu.elf.image import Image
from emu.guests.freebsd.records import command_line
from emu.host.errors import MachineError
from emu.qemu.board import Entered, QemuBoard
from emu.qemu.disks import disk_words
from emu.riscv64 import registers
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.riscv64.board import RAM_BASE

# Registers whose names differ in gdb's target description, which uses ABI names for f0 to f31.
FLOATS = [*(f"ft{i}" for i in range(8)), "fs0", "fs1", *(f"fa{i}" for i in range(8)),
          *(f"fs{i}" for i in range(2, 12)), *(f"ft{i}" for i in range(8, 12))]
SPELLINGS = {"s0": ("s0", "fp")} | {f"f{i}": (name,) for i, name in enumerate(FLOATS)}
# Register values that the firmware (OpenSBI) would set. They delegate all exceptions except calls
# from S-mode, delegate S-mode interrupts, and allow counters and all memory (one NAPOT PMP entry).
FIRMWARE = {
    "medeleg": 0xB1FF, "mideleg": 0x222, "mcounteren": 7, "pmpaddr0": (1 << 54) - 1,
    "pmpcfg0": 0x1F,
}
FS_INITIAL = 1 << 13
MACHINE = 3  # machine mode, in which all registers are accessible


def boot(image: Image, memory: int, directory: Path) -> list[str]:
    """Write the files from which QEMU boots, and return QEMU's options for the boot.

    :raises MachineError: if the image has modules.
    """
    if image.modules:
        raise MachineError("QEMU cannot boot a kernel with modules on this architecture: omit "
                           "--module, or transfer the state of a booted machine")
    path = directory / "kernel"
    path.write_bytes(image.file.data)
    return ["-kernel", str(path), "-append", command_line(image.options),
            *disk_words(image, directory, "virtio-blk-device")]


def enter(machine: Entered, source: UnicornMachine) -> None:
    """Copy another machine's CPU state to QEMU's CPU.

    The register fcsr is left out: QEMU's gdb stub does not provide it, and kernels do not use it.
    """
    state = source.cpu.state()
    machine.write_register("priv", MACHINE)
    for name, value in FIRMWARE.items():
        machine.write_register(name, value)
    machine.write_register("sstatus", state["sstatus"] | FS_INITIAL)
    for i in range(32):
        machine.write_register(f"f{i}", state[f"f{i}"])
    for name in (*registers.SUPERVISOR, *registers.NAMES):
        machine.write_register(name, state[name])
    machine.write_register("priv", state["priv"])
    machine.write_register("pc", state["pc"])


BOARD = QemuBoard(
    program="qemu-system-riscv64", machine="virt", cpu="rv64", ram_base=RAM_BASE, boot=boot,
    carry=("-bios", "none"), enter=enter, spellings=lambda name: SPELLINGS.get(name, (name,)),
    breakpoint_kind=2, constants=frozenset({"zero"}),
)
