"""Where a kernel's segments go that is linked at one address and loaded at another."""

from emu.elf.image import Image
from emu.guest.guest import BareMachine
from emu.host.errors import ImageError

KEPT = 4 << 20  # bytes at the end of memory, for the device tree, records and page tables


def copy_image(computer: BareMachine, image: Image, offset: int) -> int:
    """The image's first virtual address goes to ``offset`` bytes from the begin of memory.

    :return: that virtual address.
    :raises ImageError: when memory is too small.
    """
    low = min(s.virtual for s in image.segments)
    for segment in image.segments:
        at = computer.ram_base + offset + segment.virtual - low
        if at + segment.memory_size > computer.ram_base + computer.memory - KEPT:
            raise ImageError(f"{image.path}: does not fit {computer.memory >> 20} MiB of memory")
        computer.write_physical(at, bytes(segment.data))
    return low
