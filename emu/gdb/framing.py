"""Packet framing of the gdb remote serial protocol: start, end, checksum and escapes.

Used both for debuggers that connect to a machine and for the gdb stub of QEMU (gdb manual,
appendix E, "Overview").
"""

import re

ESCAPE, FLIPPED = 0x7D, 0x20
ESCAPED = re.compile(rb"[}$#*]")
ESCAPES = re.compile(rb"\x7d(.)", re.DOTALL)


def framed(content: bytes) -> bytes:
    """Return a packet with escaped content and a checksum."""
    escaped = ESCAPED.sub(lambda one: bytes((ESCAPE, one[0][0] ^ FLIPPED)), content)
    return b"$%s#%02x" % (escaped, sum(escaped) & 0xFF)


def unescaped(content: bytes) -> bytes:
    """Return the content of a packet with its escapes resolved."""
    return ESCAPES.sub(lambda one: bytes((one[1][0] ^ FLIPPED,)), content)


def first(received: bytes | bytearray) -> tuple[int, int] | None:
    """Return (start, end of the checksum) of the first complete packet, or None."""
    begin = received.find(b"$")
    end = received.find(b"#", begin + 1) if begin >= 0 else -1
    return (begin, end + 3) if end >= 0 and len(received) >= end + 3 else None


def opened(packet: bytes | bytearray) -> tuple[bytes, bool]:
    """Return a packet's content with unresolved escapes, and whether its checksum is correct."""
    content = bytes(packet[1:-3])
    return content, b"%02x" % (sum(content) & 0xFF) == bytes(packet[-2:]).lower()
