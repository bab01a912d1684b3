"""What FreeBSD's boot loader hands to the amd64 kernel: metadata, environment, page tables."""

import struct
from collections.abc import Sequence

from emu.elf import Image

KERNBASE = 0xFFFFFFFF80000000
# Page tables, stack and GDT: in free memory below the kernel.
PML4, PDP, PD, STACK_TOP, GDT = 0x1F0000, 0x1F1000, 0x1F2000, 0x1F5000, 0x1F5000

NAME, TYPE, ADDRESS, SIZE, METADATA = 1, 2, 3, 4, 0x8000
ENVP, HOWTO, KERNEND, SMAP = 6, 7, 8, 0x1001
RAM, RESERVED = 1, 2

ENVIRONMENT = (
    "hw.uart.console=io:0x3f8,br:115200", "console=comconsole", "boot_serial=YES",
    "hint.uart.0.at=isa", "hint.uart.0.port=0x3F8", "hint.uart.0.flags=0x10",
    "hint.uart.0.irq=4", "hint.atrtc.0.at=isa", "hint.atrtc.0.port=0x70",
    "hint.attimer.0.at=isa", "hint.attimer.0.port=0x40", "hint.attimer.0.irq=0",
)


def memory_map(memory: int) -> list[tuple[int, int, int]]:
    """BIOS memory map: (base, length, type)."""
    return [(0, 0x9F000, RAM), (0xF0000, 0x10000, RESERVED), (0x100000, memory - 0x100000, RAM)]


def metadata(
    image: Image, end: int, memory: Sequence[tuple[int, int, int]],
    environment: Sequence[str] = ENVIRONMENT,
) -> tuple[int, bytes, int]:
    """The records behind the kernel.

    :param end: physical end of the kernel's segments.
    :return: physical address of the first record, the bytes from ``end`` (rounded to a page) on,
        and the physical end of everything.
    """
    start = (end + 0xFFF) & ~0xFFF
    env = b"".join(e.encode() + b"\0" for e in environment) + b"\0"
    env += bytes(-len(env) % 16)
    module = start + len(env)
    base = min(s.physical for s in image.segments)

    def record(kind: int, data: bytes) -> bytes:
        return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)

    smap = b"".join(struct.pack("<QQI", *entry) for entry in memory)

    def records(kernend: int) -> bytes:
        return (
            record(NAME, b"kernel\0") + record(TYPE, b"elf kernel\0")
            + record(ADDRESS, struct.pack("<Q", base))
            + record(SIZE, struct.pack("<Q", end - base))
            + record(METADATA | SMAP, smap) + record(METADATA | HOWTO, struct.pack("<I", 0x1000))
            + record(METADATA | ENVP, struct.pack("<Q", start))
            + record(METADATA | KERNEND, struct.pack("<Q", kernend)) + bytes(8)
        )

    kernend = (module + len(records(0)) + 0xFFF) & ~0xFFF
    return module, env + records(kernend), kernend


def page_tables() -> bytes:
    """The first GiB by 2 MiB pages, at every GiB of the address space; from PML4 on."""
    writable = 3
    pml4 = struct.pack("<Q", PDP | writable) * 512
    pdp = struct.pack("<Q", PD | writable) * 512
    pd = b"".join(struct.pack("<Q", i << 21 | writable | 1 << 7) for i in range(512))
    return pml4 + pdp + pd


def stack(module: int, kernend: int) -> tuple[int, bytes]:
    """Stack pointer and the bytes there: return address, u32 metadata, u32 end."""
    data = struct.pack("<III", 0, module, kernend).ljust(16, b"\0")
    return STACK_TOP - len(data), data


GDT_ENTRIES = struct.pack("<3Q", 0, 0x00209A0000000000, 0x0000920000000000)  # 64-bit code, data
