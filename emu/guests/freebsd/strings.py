"""Reader of strings in the kernel's memory, such as the names and types of static probes."""

from emu.guest.guest import VirtualMemory
from emu.guest.static_probe import StaticProbeError

LONGEST = 256  # maximum size of a name or type in bytes, with the null character


def text(memory: VirtualMemory, address: int) -> str:
    """Read a null-terminated string.

    :raises StaticProbeError: if the string is too long.
    """
    data = b""
    while b"\0" not in data:
        if len(data) >= LONGEST:
            raise StaticProbeError(f"{address:#x}: a string of a static probe is not terminated")
        # Read only up to the next multiple of 32 bytes: the memory after it may not be mapped.
        data += memory.read(address + len(data), 32 - (address + len(data)) % 32)
    return data.partition(b"\0")[0].decode("latin-1")
