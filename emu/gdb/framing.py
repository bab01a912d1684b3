"""How packets of the gdb remote serial protocol stand on the line: begin, end, checksum, escapes.

For a debugger that is served, and for a stub that is asked (gdb manual, appendix E, "Overview").
"""

import re

ESCAPE, FLIPPED = 0x7D, 0x20
ESCAPED = re.compile(rb"[}$#*]")
ESCAPES = re.compile(rb"\x7d(.)", re.DOTALL)


def framed(content: bytes) -> bytes:
    """A packet with its checksum, its content escaped."""
    escaped = ESCAPED.sub(lambda one: bytes((ESCAPE, one[0][0] ^ FLIPPED)), content)
    return b"$%s#%02x" % (escaped, sum(escaped) & 0xFF)


def unescaped(content: bytes) -> bytes:
    return ESCAPES.sub(lambda one: bytes((one[1][0] ^ FLIPPED,)), content)


def first(received: bytes | bytearray) -> tuple[int, int] | None:
    """Where the first packet begins, and where its checksum ends; None: none is complete."""
    begin = received.find(b"$")
    end = received.find(b"#", begin + 1) if begin >= 0 else -1
    return (begin, end + 3) if end >= 0 and len(received) >= end + 3 else None


def opened(packet: bytes | bytearray) -> tuple[bytes, bool]:
    """What a packet says, still escaped, and whether its checksum fits."""
    content = bytes(packet[1:-3])
    return content, b"%02x" % (sum(content) & 0xFF) == bytes(packet[-2:]).lower()
