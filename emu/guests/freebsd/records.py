"""Records that FreeBSD's boot loader leaves for the kernel (sys/linker.h, MODINFO_*).

Those of the kernel come first, then those of each module, then those of a memory disk.
"""

import functools
import operator
import struct
from collections.abc import Callable, Sequence

from emu.elf.boot_options import BootOptions
from emu.elf.image import Image, file_symbols
from emu.elf.kernel_module import PAGE, Module
from emu.guest.guest import BareMachine
from emu.guests.freebsd.partitions import root_partition
from emu.host.errors import ImageError

NAME, TYPE, ADDRESS, SIZE, METADATA = 1, 2, 3, 4, 0x8000
# Metadata types
ELFHDR, SSYM, ESYM, DYNAMIC, ENVP, HOWTO, KERNEND, SHDR = 2, 3, 4, 5, 6, 7, 8, 9
OBJECT, SHARED = b"elf obj module\0", b"elf module\0"
DISK = b"mfs_root\0"  # type of a memory disk image (md(4), "PRELOADED")
ROOT = "vfs.root.mountfrom"  # variable that names the root file system: loader.conf(5)
# Boot flags: letter of boot(8) -> bit of boothowto (sys/reboot.h).
FLAGS = {"a": 1 << 0, "s": 1 << 1, "r": 1 << 5, "d": 1 << 6, "v": 1 << 11, "h": 1 << 12,
         "C": 1 << 13, "g": 1 << 15, "m": 1 << 16, "p": 1 << 20, "D": 1 << 29}


def record(kind: int, data: bytes) -> bytes:
    """Return a record: its type, its size, and its data with padding."""
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def u64(kind: int, value: int) -> bytes:
    """Return a record with a 64-bit number."""
    return record(kind, struct.pack("<Q", value))


def howto(options: BootOptions) -> int:
    """Return the boot flags as bits of boothowto.

    :raises ImageError: if a flag is unknown.
    """
    unknown = [letter for letter in options.flags if letter not in FLAGS]
    if unknown:
        raise ImageError(f"unknown boot flag -{unknown[0]}; known flags: "
                         f"{', '.join(sorted(FLAGS, key=str.lower))}")
    return functools.reduce(operator.or_, (FLAGS[letter] for letter in options.flags), 0)


def environment(options: BootOptions, own: Sequence[str] = ()) -> bytes:
    """Return the kernel's environment: null-terminated strings, then an empty string.

    Variables in the options override the loader's own.  The memory disk, or else the first disk or
    its first UFS partition, is the root file system unless a variable names another one.
    """
    variables = dict(text.split("=", 1) for text in own)
    if options.programs:
        variables[ROOT] = ("ufs:/dev/md0" if options.memory_disk is not None else
                           f"ufs:/dev/vtbd0{root_partition(options.disks[0].content)}")
    variables |= dict(text.split("=", 1) for text in options.environment)
    return b"".join(f"{name}={value}\0".encode() for name, value in variables.items()) + b"\0"


def command_line(options: BootOptions, guard: str = "") -> str:
    """Return the environment and boot flags as a kernel's command line (boot_parse_cmdline).

    :param guard: word that the command line must begin with to be read by the kernel.
    :raises ImageError: if an option is impossible on a command line.
    """
    if options.memory_disk is not None:
        raise ImageError("QEMU cannot boot a kernel with a memory disk on this architecture; use "
                         "--disk")
    words = [word.decode() for word in environment(options).split(b"\0") if word]
    spaced = next((word for word in words if " " in word), None)
    if spaced is not None:
        raise ImageError(f"--env {spaced.partition('=')[0]}=...: QEMU cannot pass a value that "
                         "contains a space to this kernel; leave out the variable")
    if options.flags:
        words.append(f"-{options.flags}")
    return " ".join([*([guard] if guard else []), *words]) if words else ""


def disk_pieces(image: Image, at: int) -> tuple[list[tuple[int, bytes]], int]:
    """Return the memory disk as [(virtual address, content)] or [], and its end address.

    :param at: address that the disk is placed after.
    """
    disk = image.options.memory_disk
    if disk is None:
        return [], at
    at = at + PAGE - 1 & -PAGE
    return [(at, bytes(disk.content[:]))], at + len(disk.content)


def symbol_pieces(image: Image, at: int) -> tuple[list[tuple[int, bytes]], int]:
    """Return the kernel's symbol table as [(virtual address, content)] or [], and its end address.

    Without it, the kernel knows only its dynamic symbols: fbt.ko, for example, finds no static
    functions.  It is passed only if ``loads_more``, because nothing else in a guest needs it.

    :param at: address that the table is placed after.
    """
    entries, strings, _build_id = file_symbols(image.file)
    if not (entries and loads_more(image)):
        return [], at
    at = at + PAGE - 1 & -PAGE
    table = b"".join(struct.pack("<Q", len(part)) + part + bytes(-len(part) % 8)
                     for part in (entries, strings))
    return [(at, table)], at + len(table)


def symbol_records(pieces: Sequence[tuple[int, bytes]]) -> bytes:
    """Return the records of the kernel's symbol table.

    :param pieces: its address, as the kernel expects it, and its content; or nothing.
    """
    return b"".join(u64(METADATA | SSYM, at) + u64(METADATA | ESYM, at + len(table))
                    for at, table in pieces)


def records(
    image: Image, start: int, size: int, metadata: Sequence[bytes],
    address: Callable[[int], int] = lambda virtual: virtual, disk_at: int = 0,
) -> bytes:
    """Return all records of the boot loader, including the terminating record.

    :param start: address of the kernel for its ADDRESS record.
    :param size: size of the kernel in bytes.
    :param metadata: further records of the kernel.
    :param address: converts the virtual address of a module for its ADDRESS record.
    :param disk_at: virtual address of the memory disk, if there is one.
    """
    # dtrace(1) reads the kernel's types from the file of this name.
    out = record(NAME, b"/boot/kernel/kernel\0") + record(TYPE, b"elf kernel\0")
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
    """Return whether the loader passes modules or boot options to the kernel."""
    return bool(image.modules or image.options.digest)


def load_behind(
    computer: BareMachine, image: Image, physical: int, end: int, tree: tuple[int, bytes],
    metadata: Sequence[bytes] = (),
) -> int:
    """Load the modules, memory disk, symbols, environment, device tree and records, in this order.

    They follow the kernel at the same distances in physical and in virtual memory.  The kernel
    finds its device tree through a record.

    :param physical: address of the kernel's first byte.
    :param end: end of the physical memory that can be used.
    :param tree: metadata type of the record with the tree's virtual address; the tree.
    :param metadata: further records of the kernel.
    :return: virtual address of the records.
    :raises ImageError: if memory is too small.
    """
    low = min(s.virtual for s in image.segments)
    size = max(s.virtual_end for s in image.segments) - low
    pieces = [(module.address, module.file.image) for module in image.modules]
    disk, end_of_files = disk_pieces(image, image.virtual_end)
    symbols, end_of_files = symbol_pieces(image, end_of_files)
    at_environment = end_of_files + PAGE - 1 & -PAGE
    variables = environment(image.options)
    at_tree = at_environment + len(variables) + 15 & -16
    start = at_tree + len(tree[1]) + 15 & -16

    def all_records(kernend: int) -> bytes:
        own = [record(METADATA | HOWTO, struct.pack("<I", howto(image.options))),
               u64(METADATA | ENVP, at_environment), u64(METADATA | tree[0], at_tree),
               u64(METADATA | KERNEND, kernend), symbol_records(symbols), *metadata]
        return records(image, low, size, own, disk_at=disk[0][0] if disk else 0)

    kernend = start + len(all_records(0)) + PAGE - 1 & -PAGE
    pieces += [*disk, *symbols, (at_environment, variables), (at_tree, tree[1]),
               (start, all_records(kernend))]
    if physical + kernend - low > end:
        raise ImageError(f"{image.path}: the kernel with its symbols, its modules and the "
                         "memory disk do not fit in the machine's memory")
    for virtual, content in pieces:
        computer.write_physical(physical + virtual - low, content)
    return start
