"""How QEMU boots an arm64 kernel: flattened, behind the header of a Linux Image.

Header: Documentation/arch/arm64/booting.rst of Linux.  Its first word branches to the entry.
"""

import struct
from pathlib import Path

from emu.elf import Image

FLAGS = 0b1010  # little-endian, 4 KiB pages, anywhere in memory


def flatten(image: Image) -> bytes:
    """The segments as one blob, with the header over its first 64 bytes."""
    low = min(s.virtual for s in image.segments)
    high = max(s.virtual_end for s in image.segments)
    filled = max(s.virtual + len(s.data) for s in image.segments)
    blob = bytearray(filled - low)
    for segment in image.segments:
        at = segment.virtual - low
        blob[at : at + len(segment.data)] = segment.data
    branch = 0x14000000 | (image.entry - low) // 4
    struct.pack_into("<IIQQQQQQ4sI", blob, 0, branch, 0, 0, high - low, FLAGS, 0, 0, 0,
                     b"ARM\x64", 0)
    return bytes(blob)


def command(image: Image, memory: int, directory: Path) -> list[str]:
    """The command that boots the kernel with its console on standard output."""
    (directory / "Image").write_bytes(flatten(image))
    return ["qemu-system-aarch64", "-M", "virt,gic-version=2", "-cpu", "cortex-a57", "-nodefaults",
            "-display", "none", "-no-reboot", "-m", f"{memory >> 20}M", "-serial", "stdio",
            "-kernel", str(directory / "Image")]
