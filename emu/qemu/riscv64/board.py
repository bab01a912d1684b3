"""riscv64 on QEMU: the ELF file as it is, behind QEMU's firmware; or a state carried over, without
firmware.  All state can be set through the gdb stub."""

from pathlib import Path

from emu.elf.image import Image
from emu.guests.freebsd.records import command_line
from emu.host.errors import MachineError
from emu.qemu.board import Entered, QemuBoard
from emu.qemu.disks import disk_words
from emu.riscv64 import registers
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.riscv64.board import RAM_BASE

# Names of gdb's target description where they differ: floating-point registers by their ABI names.
FLOATS = [*(f"ft{i}" for i in range(8)), "fs0", "fs1", *(f"fa{i}" for i in range(8)),
          *(f"fs{i}" for i in range(2, 12)), *(f"ft{i}" for i in range(8, 12))]
SPELLINGS = {"s0": ("s0", "fp")} | {f"f{i}": (name,) for i, name in enumerate(FLOATS)}
# What firmware delegates and allows (OpenSBI): all exceptions but calls from S-mode, S's
# interrupts, the counters, and all memory by one NAPOT entry of PMP.
FIRMWARE = {
    "medeleg": 0xB1FF, "mideleg": 0x222, "mcounteren": 7, "pmpaddr0": (1 << 54) - 1,
    "pmpcfg0": 0x1F,
}
FS_INITIAL = 1 << 13
MACHINE = 3  # the privilege level that sees all registers


def boot(image: Image, memory: int, directory: Path) -> list[str]:
    if image.modules:
        raise MachineError("QEMU's own boot takes no modules on this architecture: leave --module "
                           "away, or carry a booted state over")
    path = directory / "kernel"
    path.write_bytes(image.file.data)
    return ["-kernel", str(path), "-append", command_line(image.options),
            *disk_words(image, directory, "virtio-blk-device")]


def enter(machine: Entered, source: UnicornMachine) -> None:
    """But fcsr, which QEMU's stub does not know, and kernels do not use."""
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
