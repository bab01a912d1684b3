"""The records that FreeBSD's boot loader leaves for the kernel (sys/linker.h, MODINFO_*): the
kernel itself, then each module behind it."""

import struct
from collections.abc import Callable, Sequence

from emu.elf import Image
from emu.errors import ImageError
from emu.guest import BareMachine
from emu.module import PAGE, Module

NAME, TYPE, ADDRESS, SIZE, METADATA = 1, 2, 3, 4, 0x8000
ELFHDR, DYNAMIC, ENVP, HOWTO, KERNEND, SHDR = 2, 5, 6, 7, 8, 9  # of METADATA
OBJECT, SHARED = b"elf obj module\0", b"elf module\0"


def record(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def u64(kind: int, value: int) -> bytes:
    return record(kind, struct.pack("<Q", value))


def records(
    image: Image, start: int, size: int, metadata: Sequence[bytes],
    address: Callable[[int], int] = lambda virtual: virtual,
) -> bytes:
    """All records, and their end.

    :param start: where the kernel begins, as ADDRESS has it.
    :param metadata: the kernel's own.
    :param address: what ADDRESS has for a module's virtual address.
    """
    out = record(NAME, b"kernel\0") + record(TYPE, b"elf kernel\0")
    out += u64(ADDRESS, start) + u64(SIZE, size) + b"".join(metadata)
    for module in image.modules:
        out += _module(module, address(module.address))
    return out + bytes(8)


def _module(module: Module, address: int) -> bytes:
    file = module.file
    out = record(NAME, b"/boot/kernel/" + module.name.encode() + b"\0")
    out += record(TYPE, OBJECT if file.relocatable else SHARED)
    out += u64(ADDRESS, address) + u64(SIZE, file.size)
    if file.relocatable:
        return (out + record(METADATA | ELFHDR, file.header)
                + record(METADATA | SHDR, file.headers(address)))
    return out + u64(METADATA | DYNAMIC, file.dynamic)


def load_behind(
    computer: BareMachine, image: Image, physical: int, end: int, tree: tuple[int, bytes],
    metadata: Sequence[bytes] = (),
) -> int:
    """Put behind a kernel that is given its device tree by a record: modules, an empty environment,
    the tree, the records.

    :param physical: address of the kernel's first byte; all lies behind it as in virtual memory.
    :param end: of the memory that can be used.
    :param tree: of METADATA, the record with the tree's virtual address; the tree.
    :param metadata: more of the kernel's own records.
    :return: virtual address of the records.
    :raises ImageError: when there is no room.
    """
    low = min(s.virtual for s in image.segments)
    size = max(s.virtual_end for s in image.segments) - low
    pieces = [(module.address, module.file.image) for module in image.modules]
    environment = image.virtual_end + PAGE - 1 & -PAGE
    at_tree = environment + 16
    start = at_tree + len(tree[1]) + 15 & -16

    def all_records(kernend: int) -> bytes:
        own = [record(METADATA | HOWTO, bytes(4)), u64(METADATA | ENVP, environment),
               u64(METADATA | tree[0], at_tree), u64(METADATA | KERNEND, kernend), *metadata]
        return records(image, low, size, own)

    kernend = start + len(all_records(0)) + PAGE - 1 & -PAGE
    pieces += [(environment, bytes(16)), (at_tree, tree[1]), (start, all_records(kernend))]
    if physical + kernend - low > end:
        raise ImageError(f"{image.path}: with its modules it does not fit the machine's memory")
    for virtual, content in pieces:
        computer.write_physical(physical + virtual - low, content)
    return start
