"""Copy a kernel's segments to addresses that differ from their link addresses."""

from emu.elf.image import Image
from emu.guest.guest import BareMachine
from emu.host.errors import ImageError

KEPT = 4 << 20  # number of bytes at the end of memory for device tree, records and page tables


def copy_image(computer: BareMachine, image: Image, offset: int) -> int:
    """Copy an image to memory so that it begins ``offset`` bytes from the start of RAM.

    :return: the first virtual address of the image.
    :raises ImageError: if memory is too small.
    """
    low = min(s.virtual for s in image.segments)
    for segment in image.segments:
        at = computer.ram_base + offset + segment.virtual - low
        if at + segment.memory_size > computer.ram_base + computer.memory - KEPT:
            raise ImageError(f"{image.path}: the kernel does not fit in "
                             f"{computer.memory >> 20} MiB of memory")
        computer.write_physical(at, bytes(segment.data))
    return low
