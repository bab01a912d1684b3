"""Strings of the kernel: names and types of what it declares."""

from emu.guest.guest import VirtualMemory
from emu.guest.static_probe import StaticProbeError

LONGEST = 256  # bytes of a name or a type, with the zero behind it


def text(memory: VirtualMemory, address: int) -> str:
    """:raises StaticProbeError: when it has no end."""
    found = b""
    while b"\0" not in found:
        if len(found) >= LONGEST:
            raise StaticProbeError(f"{address:#x}: a static probe's name has no end")
        # Not beyond its own piece of memory: what follows may not be mapped.
        found += memory.read(address + len(found), 32 - (address + len(found)) % 32)
    return found.partition(b"\0")[0].decode("latin-1")
