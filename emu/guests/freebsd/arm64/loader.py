"""FreeBSD's boot loader on arm64: how the kernel is loaded and entered."""

from emu.elf.image import Image
from emu.guest.guest import BareMachine
from emu.guests.freebsd.image_copy import copy_image
from emu.guests.freebsd.records import load_behind, loads_more

DTBP = 0x1002  # metadata type of the device tree (arm64's machine/metadata.h)
OFFSET = 2 << 20  # offset of the kernel from the start of RAM in bytes


def load(computer: BareMachine, image: Image) -> None:
    """Load the kernel, and enter its start code (``locore``) at EL1 with the MMU off.

    x0 is the physical address of the device tree or, with modules or boot options, the virtual
    address of the loader's records.
    """
    tree = computer.firmware()
    low = copy_image(computer, image, OFFSET)
    base, at = computer.ram_base + OFFSET, computer.ram_base + computer.memory - (2 << 20)
    computer.write_physical(at, tree)
    if loads_more(image):
        at = load_behind(computer, image, base, at - (2 << 20), (DTBP, tree))
    computer.write_register("x0", at)
    computer.write_register("pc", base + image.entry - low)


def place(computer: BareMachine, image: Image) -> None:
    """Load the kernel; map it with 2 MiB blocks in TTBR1, and RAM with 1 GiB blocks in TTBR0.

    The granule is 4 KiB.
    """
    computer.firmware()
    low = copy_image(computer, image, OFFSET)
    base, top = computer.ram_base, computer.ram_base + computer.memory
    ram, level0, level1, level2 = (top - (2 << 20) + 4096 * i for i in range(4))
    block, table = 0x701, 3  # access flag, inner shareable, attribute 0
    put = computer.write_physical
    for at in range(base, top, 1 << 30):
        put(ram + 8 * (at >> 30), (at | block).to_bytes(8, "little"))
    put(level0 + 8 * (low >> 39 & 0x1FF), (level1 | table).to_bytes(8, "little"))
    put(level1 + 8 * (low >> 30 & 0x1FF), (level2 | table).to_bytes(8, "little"))
    first = low >> 21 & 0x1FF
    for i in range(512 - first):
        at = base + OFFSET + (i << 21)
        if at < top:
            put(level2 + 8 * (first + i), (at | block).to_bytes(8, "little"))
    for name, value in (("mair_el1", 0xFF), ("ttbr0_el1", ram), ("ttbr1_el1", level0),
                        ("tcr_el1", 25 | 16 << 16 | 2 << 30 | 2 << 32),
                        ("cpacr_el1", 3 << 20), ("sctlr_el1", 0x30D00801),
                        ("sp", top - (3 << 20)), ("pc", image.entry)):
        computer.write_register(name, value)
