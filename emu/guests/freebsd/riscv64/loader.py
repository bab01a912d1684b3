"""How FreeBSD's riscv64 kernel is entered."""

from emu.elf.image import Image
from emu.guest.guest import BareMachine
from emu.guests.freebsd.image_copy import copy_image
from emu.guests.freebsd.records import METADATA, load_behind, loads_more, u64

OFFSET = 2 << 20  # of the kernel in memory
TREE_LIMIT = 3 << 30
DTBP, BOOT_HARTID = 0x1001, 0x1004  # of the loader's metadata (riscv's machine/metadata.h)


def load(computer: BareMachine, image: Image) -> None:
    """Its locore enters at the first byte of the image with a0 = hart, a1 = tree; where the
    loader has more to say, at the ELF entry, with a0 = virtual address of the loader's records."""
    tree = computer.firmware()
    low = copy_image(computer, image, OFFSET)
    base, end = computer.ram_base + OFFSET, computer.ram_base + computer.memory
    if loads_more(image):
        at = load_behind(computer, image, base, end - (4 << 20), (DTBP, tree),
                         [u64(METADATA | BOOT_HARTID, 0)])
        computer.write_register("a0", at)
        computer.write_register("pc", base + image.entry - low)
        return
    # At the end of memory but below 3 GiB: the kernel's early mapping of the tree reaches no
    # further, and firmware puts it there, too.
    at = min(end, TREE_LIMIT) - (2 << 20)
    computer.write_physical(at, tree)
    computer.write_register("a0", 0)
    computer.write_register("a1", at)
    computer.write_register("pc", base)


def _entry(physical: int, flags: int) -> bytes:
    """A page table entry."""
    return (physical >> 12 << 10 | flags).to_bytes(8, "little")


def place(computer: BareMachine, image: Image) -> None:
    """Sv39: the kernel by 2 MiB pages, RAM at its physical address by 1 GiB pages."""
    computer.firmware()
    low = copy_image(computer, image, OFFSET)
    base, top = computer.ram_base, computer.ram_base + computer.memory
    root, kernel = top - (2 << 20), top - (2 << 20) + 4096
    leaf = 0xCF  # V R W X A D
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
