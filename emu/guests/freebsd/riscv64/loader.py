"""FreeBSD's boot loader on riscv64: how the kernel is loaded and entered."""

from emu.elf.image import Image
from emu.guest.guest import BareMachine
from emu.guests.freebsd.image_copy import copy_image
from emu.guests.freebsd.records import METADATA, load_behind, loads_more, u64

OFFSET = 2 << 20  # offset of the kernel from the start of RAM in bytes
TREE_LIMIT = 3 << 30
# Metadata types of the device tree and the boot hart (riscv's machine/metadata.h).
DTBP, BOOT_HARTID = 0x1001, 0x1004


def load(computer: BareMachine, image: Image) -> None:
    """Load the kernel, and enter its start code (``locore``) with the MMU off.

    The entry is the first byte of the image, with the hart in a0 and the address of the device tree
    in a1.  With modules or boot options it is the ELF entry, with the virtual address of the
    loader's records in a0.
    """
    tree = computer.firmware()
    low = copy_image(computer, image, OFFSET)
    base, end = computer.ram_base + OFFSET, computer.ram_base + computer.memory
    if loads_more(image):
        at = load_behind(computer, image, base, end - (4 << 20), (DTBP, tree),
                         [u64(METADATA | BOOT_HARTID, 0)])
        computer.write_register("a0", at)
        computer.write_register("pc", base + image.entry - low)
        return
    # Put the device tree at the end of memory, as firmware does, but below 3 GiB, because the
    # kernel's early mapping of the tree ends there.
    at = min(end, TREE_LIMIT) - (2 << 20)
    computer.write_physical(at, tree)
    computer.write_register("a0", 0)
    computer.write_register("a1", at)
    computer.write_register("pc", base)


def _entry(physical: int, flags: int) -> bytes:
    """Return a page table entry."""
    return (physical >> 12 << 10 | flags).to_bytes(8, "little")


def place(computer: BareMachine, image: Image) -> None:
    """Load the kernel; map it with 2 MiB pages (Sv39), and identity-map RAM with 1 GiB pages."""
    computer.firmware()
    low = copy_image(computer, image, OFFSET)
    base, top = computer.ram_base, computer.ram_base + computer.memory
    root, kernel = top - (2 << 20), top - (2 << 20) + 4096
    leaf = 0xCF  # flags V R W X A D
    for at in range(base, top, 1 << 30):
        computer.write_physical(root + 8 * (at >> 30), _entry(at, leaf))
    computer.write_physical(root + 8 * (low >> 30 & 0x1FF), _entry(kernel, 1))
    for i in range(512 - (low >> 21 & 0x1FF)):
        if base + OFFSET + (i << 21) < top:
            at = kernel + 8 * ((low >> 21 & 0x1FF) + i)
            computer.write_physical(at, _entry(base + OFFSET + (i << 21), leaf))
    for name, value in (("satp", 8 << 60 | root >> 12), ("sp", top - (3 << 20)),
                        ("pc", image.entry)):
        computer.write_register(name, value)
