"""FreeBSD's boot loader on amd64: metadata, environment and page tables for the kernel."""

import itertools
import struct
from collections.abc import Sequence

from emu.elf.image import Image
from emu.guest.guest import BareMachine
from emu.guests.freebsd.records import (
    ENVP,
    HOWTO,
    KERNEND,
    METADATA,
    disk_pieces,
    environment,
    howto,
    record,
    records,
    symbol_pieces,
    symbol_records,
    u64,
)
from emu.host.errors import ImageError

KERNBASE = 0xFFFFFFFF80000000
# Addresses of the page tables, the stack and the GDT, in free memory below the kernel.
PML4, PDP, PD, STACK_TOP, GDT = 0x1F0000, 0x1F1000, 0x1F2000, 0x1F5000, 0x1F5000

SMAP = 0x1001
SERIAL = 0x1000  # RB_SERIAL in boothowto
RAM, RESERVED = 1, 2

ENVIRONMENT = (
    "hw.uart.console=io:0x3f8,br:115200", "console=comconsole", "boot_serial=YES",
    "hint.uart.0.at=isa", "hint.uart.0.port=0x3F8", "hint.uart.0.flags=0x10",
    "hint.uart.0.irq=4", "hint.atrtc.0.at=isa", "hint.atrtc.0.port=0x70",
    "hint.attimer.0.at=isa", "hint.attimer.0.port=0x40", "hint.attimer.0.irq=0",
)
# Variables that the environment compiled into FIRECRACKER sets, and their values for this machine,
# which has ACPI tables instead of an MP table, and no other source of the TSC's frequency.
COMPILED_IN = "static_env"
OTHER_MACHINE = {b"hint.acpi.0.disabled=1": "hint.acpi.0.disabled=0",
                 b"machdep.disable_tsc_calibration=1": "machdep.disable_tsc_calibration=0"}
MAX_COMPILED_IN = 1 << 16  # maximum size in bytes of the environment compiled into a kernel


def memory_map(memory: int) -> list[tuple[int, int, int]]:
    """Return the entries (base, length, type) of the BIOS memory map."""
    return [(0, 0x9F000, RAM), (0xF0000, 0x10000, RESERVED), (0x100000, memory - 0x100000, RAM)]


def metadata(
    image: Image, memory: Sequence[tuple[int, int, int]],
    own_environment: Sequence[str] = ENVIRONMENT,
) -> tuple[int, int, bytes, int]:
    """Return the environment and metadata records that follow the kernel and its modules.

    :param memory: the memory map.
    :param own_environment: variables of the loader itself.
    :return: physical address of the first record; physical address of the environment; bytes of
        both; physical end of everything.
    """
    end = max(s.physical_end for s in image.segments)
    disk, disk_end = disk_pieces(image, max([end + KERNBASE, *(m.end for m in image.modules)]))
    symbols, symbols_end = symbol_pieces(image, disk_end)
    start = symbols_end - KERNBASE + 0xFFF & ~0xFFF
    env = environment(image.options, (*own_environment, *_for_this_machine(image)))
    env += bytes(-len(env) % 16)
    first = start + len(env)
    base = min(s.physical for s in image.segments)
    smap = b"".join(struct.pack("<QQI", *entry) for entry in memory)

    def all_records(kernend: int) -> bytes:
        own = [record(METADATA | SMAP, smap),
               record(METADATA | HOWTO, struct.pack("<I", SERIAL | howto(image.options))),
               u64(METADATA | ENVP, start), u64(METADATA | KERNEND, kernend),
               symbol_records([(at - KERNBASE, table) for at, table in symbols])]
        return records(image, base, end - base, own, lambda virtual: virtual - KERNBASE,
                       disk[0][0] if disk else 0)

    kernend = (first + len(all_records(0)) + 0xFFF) & ~0xFFF
    return first, start, env + all_records(kernend), kernend


def _for_this_machine(image: Image) -> list[str]:
    """Return replacements for variables that a kernel contains for a different machine."""
    symbol = image.symbols.find(COMPILED_IN)
    if symbol is None or not 0 < symbol.size <= MAX_COMPILED_IN:
        return []
    try:
        content = image.virtual_to_file(symbol.address, symbol.size)
    except ImageError:
        return []  # the kernel sets nothing: the symbol is in memory that the file does not fill
    variables = content.split(b"\0")
    return [value for name, value in OTHER_MACHINE.items() if name in variables]


def files(image: Image) -> list[tuple[int, bytes]]:
    """Return (physical address, content) of the modules, the memory disk and the symbols."""
    disk, end = disk_pieces(image, image.virtual_end)
    pieces = [*((module.address, module.file.image) for module in image.modules), *disk,
              *symbol_pieces(image, end)[0]]
    return [(virtual - KERNBASE, content) for virtual, content in pieces]


def page_tables() -> bytes:
    """Return page tables, PML4 first, that map every GiB to the first GiB of RAM (2 MiB pages)."""
    writable = 3
    pml4 = struct.pack("<Q", PDP | writable) * 512
    pdp = struct.pack("<Q", PD | writable) * 512
    pd = b"".join(struct.pack("<Q", i << 21 | writable | 1 << 7) for i in range(512))
    return pml4 + pdp + pd


def stack(module: int, kernend: int) -> tuple[int, bytes]:
    """Return the stack pointer and the stack: return address, metadata, kernel end (u32 each)."""
    data = struct.pack("<III", 0, module, kernend).ljust(16, b"\0")
    return STACK_TOP - len(data), data


# Descriptors: null, 64-bit code segment, data segment.
GDT_ENTRIES = struct.pack("<3Q", 0, 0x00209A0000000000, 0x0000920000000000)
CR4_PAE, CR4_OSFXSR = 1 << 5, 1 << 9
CR0_PG, CR0_WP, CR0_ET, CR0_MP, CR0_PE = 1 << 31, 1 << 16, 1 << 4, 1 << 1, 1 << 0
EFER_LME, EFER_LMA = 1 << 8, 1 << 10
CODE, DATA = 8, 16  # segment selectors


def load(computer: BareMachine, image: Image) -> None:
    """Load the kernel, and enter it in long mode with the address of the records on the stack."""
    ordered = sorted(image.segments, key=lambda s: s.physical)
    for first, second in itertools.pairwise(ordered):
        if first.physical_end > second.physical:
            raise ImageError(
                f"{image.path}: not a usable kernel image: two segments overlap at physical "
                f"address {second.physical:#x}"
            )
    computer.firmware()
    put, memory = computer.write_physical, computer.memory
    for segment in image.segments:
        if segment.physical < 0x200000 or segment.physical_end > memory - (1 << 20):
            raise ImageError(
                f"{image.path}: the segment at physical address {segment.physical:#x} does not fit "
                f"in {memory >> 20} MiB of memory"
            )
        put(segment.physical, bytes(segment.data))
    module, at, data, kernend = metadata(image, memory_map(memory))
    if kernend > memory - (1 << 20):
        raise ImageError(f"{image.path}: the kernel with its symbols, its modules and the "
                         f"memory disk do not fit in {memory >> 20} MiB of memory")
    sp, words = stack(module, kernend)
    for address, content in (*files(image), (at, data), (PML4, page_tables()),
                             (GDT, GDT_ENTRIES), (sp, words)):
        put(address, content)
    for name, value in (("gdtr", GDT << 16 | len(GDT_ENTRIES) - 1), ("efer", EFER_LME | EFER_LMA),
                        ("cr4", CR4_PAE | CR4_OSFXSR), ("cr3", PML4),
                        ("cr0", CR0_PG | CR0_WP | CR0_ET | CR0_MP | CR0_PE), ("rflags", 2),
                        ("rsp", sp), ("rip", image.entry), ("cs", CODE), ("ss", DATA)):
        computer.write_register(name, value)


def place(computer: BareMachine, image: Image) -> None:
    """Load the kernel, map it with the loader's page tables, and set up a larger stack."""
    load(computer, image)
    # The loader's stack page holds only a few words, so this stack is at the end of memory.
    computer.write_register("rsp", computer.memory - (1 << 20) | KERNBASE)
