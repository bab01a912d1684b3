"""The probes that the kernel declares statically: sdt(9), by its linker sets.

Structures are those of ``sys/sys/sdt.h`` on LP64; a probe says its own size, and another one is not
read.  Pointers are those of a kernel that has relocated itself: of one that was started.  Names are
as DTrace shows them: a module where none is declared is the file's, a function ``none``, and two
underscores in a probe's name are a hyphen.
"""

import struct
from collections import defaultdict

from emu.elf.image import Image
from emu.elf.symbols import KERNEL
from emu.guest.guest import VirtualMemory
from emu.guest.static_probe import Argument, StaticProbe, StaticProbeError, Tracepoint
from emu.guests.freebsd.strings import text
from emu.host.errors import MemoryAccessError

PROBE = struct.Struct("<i4x7Q3Qqi4xQ")  # struct sdt_probe
ARGUMENT = struct.Struct("<i4x5Q")  # struct sdt_argtype
TRACEPOINT = struct.Struct("<4Q")  # struct sdt_tracepoint, which stands in its set itself
MOST = 1 << 16  # members of a set
MOST_ARGUMENTS = 6
NO_FUNCTION = "none"


def static_probes(image: Image, memory: VirtualMemory) -> list[StaticProbe]:
    """Those of the kernel itself, in the order of its set; none where it has no such set.

    :raises StaticProbeError: naming what is not as it should be.
    """
    try:
        return _probes(image, memory)
    except MemoryAccessError as error:
        raise StaticProbeError(f"{image.path}: the kernel's static probes cannot be read: {error}; "
                               "has it been started?") from None


def _probes(image: Image, memory: VirtualMemory) -> list[StaticProbe]:
    providers = {at: text(memory, _word(memory, at))
                 for at in _pointers(image, memory, "sdt_providers_set")}
    arguments = defaultdict[int, dict[int, Argument]](dict)
    for at in _pointers(image, memory, "sdt_argtypes_set"):
        index, kind, translated, _next, _previous, probe = ARGUMENT.unpack(
            memory.read(at, ARGUMENT.size))
        if not 0 <= index < MOST_ARGUMENTS:
            raise StaticProbeError(
                f"{image.path}: {at:#x}: a static probe's argument number {index}")
        arguments[probe][index] = Argument(
            text(memory, kind), text(memory, translated) if translated else "")
    tracepoints = defaultdict[int, list[Tracepoint]](list)
    for probe, address, target, _next in TRACEPOINT.iter_unpack(
            _set(image, memory, "sdt_tracepoint_set", TRACEPOINT.size)):
        tracepoints[probe].append(Tracepoint(address, target))
    found = []
    for at in _pointers(image, memory, "sdt_probes_set"):
        size, provider, *_lists, module, function, name, _id, _count, _file = PROBE.unpack(
            memory.read(at, PROBE.size))
        if size != PROBE.size or provider not in providers:
            raise StaticProbeError(
                f"{image.path}: {at:#x}: a static probe of {size} bytes, not {PROBE.size}"
                if size != PROBE.size else f"{image.path}: {at:#x}: a static probe of no provider")
        known = arguments[at]
        if set(known) != set(range(len(known))):
            raise StaticProbeError(f"{image.path}: {at:#x}: a static probe's arguments are "
                                   f"{sorted(known)}")
        found.append(StaticProbe(
            providers[provider], text(memory, module) or KERNEL,
            text(memory, function) or NO_FUNCTION, text(memory, name).replace("__", "-"),
            tuple(known[i] for i in range(len(known))), tuple(tracepoints[at])))
    return found


def _set(image: Image, memory: VirtualMemory, name: str, size: int) -> bytes:
    """A linker set, of members of ``size`` bytes."""
    begin, end = (image.symbols.find(f"__{edge}_set_{name}") for edge in ("start", "stop"))
    if begin is None or end is None:
        return b""
    length = end.address - begin.address
    if not 0 <= length <= MOST * size or length % size:
        raise StaticProbeError(f"{image.path}: set_{name} has {length} bytes")
    return memory.read(begin.address, length)


def _pointers(image: Image, memory: VirtualMemory, name: str) -> list[int]:
    return [at for at, in struct.iter_unpack("<Q", _set(image, memory, name, 8))]


def _word(memory: VirtualMemory, address: int) -> int:
    return int.from_bytes(memory.read(address, 8), "little")
