"""Probes for the types of memory that malloc(9) allocates, as dtmalloc(4) has them.

The kernel keeps the types in a list of ``struct malloc_type`` (``sys/sys/malloc.h``).
"""

import struct

from emu.elf.image import Image
from emu.guest.guest import VirtualMemory
from emu.guest.static_probe import Allocation, Argument, StaticProbe, StaticProbeError
from emu.guests.freebsd.strings import text
from emu.host.errors import MemoryAccessError

PROVIDER = "dtmalloc"
# Functions that count what is allocated and freed, and the names of the probes
EVENTS = {"malloc_type_zone_allocated": "malloc", "malloc_type_freed": "free"}
ARGUMENTS = tuple(Argument(kind, "") for kind in (
    "struct malloc_type *", "struct malloc_type_internal *", "struct malloc_type_stats *",
    "unsigned long", "int"))
ENABLED = "dtrace_malloc_enabled"
FIRST = "kmemstatistics"  # pointer to the first type
TYPE = struct.Struct("<3Q")  # ks_next, ks_version, ks_shortdesc
VERSIONS = (2020110501, 2024073001)  # M_VERSION of FreeBSD 13 to 15
MOST = 1 << 14  # maximum number of types, in case the list is circular
LONGEST = 191  # maximum length of a function's name in DTrace
SPACES = str.maketrans(dict.fromkeys(" \t\n\v\f\r", "_"))


def allocation_probes(image: Image, memory: VirtualMemory) -> list[StaticProbe]:
    """Return two probes for each type: allocating and freeing memory.

    :return: empty if the kernel has no types yet, or was built without DTrace.
    :raises StaticProbeError: if the list of types is invalid or cannot be read.
    """
    first = image.symbols.find(FIRST)
    if first is None or image.symbols.find(ENABLED) is None:
        return []
    probes: dict[str, list[StaticProbe]] = {}
    try:
        at = int.from_bytes(memory.read(first.address, 8), "little")
        known = set[int]()
        while at and at not in known:
            if len(known) == MOST:
                raise StaticProbeError(f"{image.path}: {FIRST} has more than {MOST} types")
            known.add(at)
            following, version, name = TYPE.unpack(memory.read(at, TYPE.size))
            if version not in VERSIONS:
                raise StaticProbeError(f"{image.path}: {at:#x}: the type of memory has version "
                                       f"{version}; known are {', '.join(map(str, VERSIONS))}")
            called = text(memory, name).translate(SPACES)[:LONGEST]
            probes.setdefault(called, [
                StaticProbe(PROVIDER, "", called, event, ARGUMENTS, (),
                            allocation=Allocation(at, function))
                for function, event in EVENTS.items()])
            at = following
    except MemoryAccessError as error:
        raise StaticProbeError(f"{image.path}: the types of memory cannot be read: {error}; boot "
                               "the kernel first") from None
    return [probe for pair in probes.values() for probe in pair]
