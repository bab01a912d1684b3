"""Static probes of FreeBSD's kernel (sdt(9)), read from its linker sets.

Structures are those of ``sys/sys/sdt.h`` on LP64.  A probe contains its own size; other sizes are
refused.  The kernel must have been started, because it relocates the pointers itself.  Names are as
DTrace shows them: the default module is the file's, the default function is ``none``, and two
underscores in the name of a probe become a hyphen.
"""

import struct
from collections import defaultdict

from emu.elf.image import Image
from emu.elf.symbols import KERNEL
from emu.guest.guest import VirtualMemory
from emu.guest.static_probe import Argument, StaticProbe, StaticProbeError, Tracepoint
from emu.guests.freebsd.strings import text
from emu.host.errors import MemoryAccessError

PROBE = struct.Struct("<i4x7Q3Qqi4xQ")  # layout of struct sdt_probe
ARGUMENT = struct.Struct("<i4x5Q")  # layout of struct sdt_argtype
# struct sdt_tracepoint; its linker set contains the structures, not pointers to them.
TRACEPOINT = struct.Struct("<4Q")
MOST = 1 << 16  # maximum number of members of a linker set
MOST_ARGUMENTS = 6
NO_FUNCTION = "none"


def static_probes(image: Image, memory: VirtualMemory) -> list[StaticProbe]:
    """Return the static probes of the kernel itself, in the order of their linker set.

    :return: empty if the kernel has no such set.
    :raises StaticProbeError: if a declaration is invalid or cannot be read.
    """
    try:
        return _probes(image, memory)
    except MemoryAccessError as error:
        raise StaticProbeError(f"{image.path}: the kernel's static probes cannot be read: {error}; "
                               "boot the kernel first") from None


def _probes(image: Image, memory: VirtualMemory) -> list[StaticProbe]:
    providers = {at: text(memory, _word(memory, at))
                 for at in _pointers(image, memory, "sdt_providers_set")}
    arguments = defaultdict[int, dict[int, Argument]](dict)
    for at in _pointers(image, memory, "sdt_argtypes_set"):
        index, kind, translated, _next, _previous, probe = ARGUMENT.unpack(
            memory.read(at, ARGUMENT.size))
        if not 0 <= index < MOST_ARGUMENTS:
            raise StaticProbeError(
                f"{image.path}: {at:#x}: invalid argument number {index} of a static probe")
        arguments[probe][index] = Argument(
            text(memory, kind), text(memory, translated) if translated else "")
    tracepoints = defaultdict[int, list[Tracepoint]](list)
    for probe, address, target, _next in TRACEPOINT.iter_unpack(
            _set(image, memory, "sdt_tracepoint_set", TRACEPOINT.size)):
        tracepoints[probe].append(Tracepoint(address, target))
    probes = []
    for at in _pointers(image, memory, "sdt_probes_set"):
        size, provider, *_lists, module, function, name, _id, _count, _file = PROBE.unpack(
            memory.read(at, PROBE.size))
        if size != PROBE.size or provider not in providers:
            raise StaticProbeError(
                f"{image.path}: {at:#x}: a static probe has {size} bytes instead of {PROBE.size}"
                if size != PROBE.size else f"{image.path}: {at:#x}: a static probe has no provider")
        known = arguments[at]
        if set(known) != set(range(len(known))):
            raise StaticProbeError(f"{image.path}: {at:#x}: argument numbers of a static probe are "
                                   f"not consecutive: {sorted(known)}")
        probes.append(StaticProbe(
            providers[provider], text(memory, module) or KERNEL,
            text(memory, function) or NO_FUNCTION, text(memory, name).replace("__", "-"),
            tuple(known[i] for i in range(len(known))), tuple(tracepoints[at])))
    return probes


def _set(image: Image, memory: VirtualMemory, name: str, size: int) -> bytes:
    """Return the bytes of a linker set, or empty bytes if the kernel does not have the set.

    :param size: size of a member in bytes.
    """
    begin, end = (image.symbols.find(f"__{edge}_set_{name}") for edge in ("start", "stop"))
    if begin is None or end is None:
        return b""
    length = end.address - begin.address
    if not 0 <= length <= MOST * size or length % size:
        raise StaticProbeError(f"{image.path}: linker set {name} has an invalid size of {length} "
                               "bytes")
    return memory.read(begin.address, length)


def _pointers(image: Image, memory: VirtualMemory, name: str) -> list[int]:
    return [at for at, in struct.iter_unpack("<Q", _set(image, memory, name, 8))]


def _word(memory: VirtualMemory, address: int) -> int:
    return int.from_bytes(memory.read(address, 8), "little")
