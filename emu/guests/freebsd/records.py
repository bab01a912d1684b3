"""The records that FreeBSD's boot loader leaves for the kernel (sys/linker.h, MODINFO_*): the
kernel itself, then each module behind it, then a memory disk."""

import functools
import operator
import struct
from collections.abc import Callable, Sequence

from emu.elf.boot_options import BootOptions
from emu.elf.image import Image
from emu.elf.kernel_module import PAGE, Module
from emu.guest.guest import BareMachine
from emu.host.errors import ImageError

NAME, TYPE, ADDRESS, SIZE, METADATA = 1, 2, 3, 4, 0x8000
ELFHDR, DYNAMIC, ENVP, HOWTO, KERNEND, SHDR = 2, 5, 6, 7, 8, 9  # of METADATA
OBJECT, SHARED = b"elf obj module\0", b"elf module\0"
DISK = b"mfs_root\0"  # md(4), "PRELOADED"
ROOT = "vfs.root.mountfrom"  # loader.conf(5)
# Boot flags: letters of boot(8), bits of boothowto (sys/reboot.h).
FLAGS = {"a": 1 << 0, "s": 1 << 1, "r": 1 << 5, "d": 1 << 6, "v": 1 << 11, "h": 1 << 12,
         "C": 1 << 13, "g": 1 << 15, "m": 1 << 16, "p": 1 << 20, "D": 1 << 29}


def record(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def u64(kind: int, value: int) -> bytes:
    return record(kind, struct.pack("<Q", value))


def howto(options: BootOptions) -> int:
    """:raises ImageError: for a flag that there is not."""
    unknown = [letter for letter in options.flags if letter not in FLAGS]
    if unknown:
        raise ImageError(f"there is no boot flag -{unknown[0]}: there are "
                         f"{', '.join(sorted(FLAGS, key=str.lower))}")
    return functools.reduce(operator.or_, (FLAGS[letter] for letter in options.flags), 0)


def environment(options: BootOptions, own: Sequence[str] = ()) -> bytes:
    """The kernel's environment: strings, and an empty one; what was given counts, not the loader's
    own.  A memory disk is the root file system, or else the first disk, unless another is named."""
    chosen = dict(one.split("=", 1) for one in own)
    if options.programs:
        chosen[ROOT] = "ufs:/dev/md0" if options.memory_disk is not None else "ufs:/dev/vtbd0"
    chosen |= dict(one.split("=", 1) for one in options.environment)
    return b"".join(f"{name}={value}\0".encode() for name, value in chosen.items()) + b"\0"


def command_line(options: BootOptions, guard: str = "") -> str:
    """The same, and the flags, for a kernel that reads a command line (boot_parse_cmdline).

    :param guard: what it must begin with to be read.
    :raises ImageError: for what it cannot say.
    """
    if options.memory_disk is not None:
        raise ImageError("QEMU's own boot takes no memory disk on this architecture: give --disk")
    told = [word.decode() for word in environment(options).split(b"\0") if word]
    if any(" " in word for word in told):
        raise ImageError("QEMU's own boot takes no variable with a space in it")
    if options.flags:
        told.append(f"-{options.flags}")
    return " ".join([*([guard] if guard else []), *told]) if told else ""


def disk_pieces(image: Image, at: int) -> tuple[list[tuple[int, bytes]], int]:
    """(virtual address, content) of the memory disk behind ``at``, if there is one; the end."""
    disk = image.options.memory_disk
    if disk is None:
        return [], at
    at = at + PAGE - 1 & -PAGE
    return [(at, bytes(disk.content[:]))], at + len(disk.content)


def records(
    image: Image, start: int, size: int, metadata: Sequence[bytes],
    address: Callable[[int], int] = lambda virtual: virtual, disk_at: int = 0,
) -> bytes:
    """All records, and their end.

    :param start: where the kernel begins, as ADDRESS has it.
    :param metadata: the kernel's own.
    :param address: what ADDRESS has for a module's virtual address.
    :param disk_at: virtual address of the memory disk, if there is one.
    """
    out = record(NAME, b"kernel\0") + record(TYPE, b"elf kernel\0")
    out += u64(ADDRESS, start) + u64(SIZE, size) + b"".join(metadata)
    for module in image.modules:
        out += _module(module, address(module.address))
    disk = image.options.memory_disk
    if disk is not None:
        out += record(NAME, b"disk\0") + record(TYPE, DISK)
        out += u64(ADDRESS, address(disk_at)) + u64(SIZE, len(disk.content))
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


def loads_more(image: Image) -> bool:
    """Whether the loader has to say more than where the device tree is."""
    return bool(image.modules or image.options.digest)


def load_behind(
    computer: BareMachine, image: Image, physical: int, end: int, tree: tuple[int, bytes],
    metadata: Sequence[bytes] = (),
) -> int:
    """Put behind a kernel that is given its device tree by a record: modules, a memory disk, the
    environment, the tree, the records.

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
    disk, end_of_files = disk_pieces(image, image.virtual_end)
    at_environment = end_of_files + PAGE - 1 & -PAGE
    variables = environment(image.options)
    at_tree = at_environment + len(variables) + 15 & -16
    start = at_tree + len(tree[1]) + 15 & -16

    def all_records(kernend: int) -> bytes:
        own = [record(METADATA | HOWTO, struct.pack("<I", howto(image.options))),
               u64(METADATA | ENVP, at_environment), u64(METADATA | tree[0], at_tree),
               u64(METADATA | KERNEND, kernend), *metadata]
        return records(image, low, size, own, disk_at=disk[0][0] if disk else 0)

    kernend = start + len(all_records(0)) + PAGE - 1 & -PAGE
    pieces += [*disk, (at_environment, variables), (at_tree, tree[1]),
               (start, all_records(kernend))]
    if physical + kernend - low > end:
        raise ImageError(f"{image.path}: with what is loaded behind it, it does not fit the "
                         "machine's memory")
    for virtual, content in pieces:
        computer.write_physical(physical + virtual - low, content)
    return start
