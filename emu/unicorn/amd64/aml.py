"""Encoder for the ACPI machine language terms that ``acpi`` uses (ACPI 6.5, chapter 20)."""

import struct
from collections.abc import Sequence

NAME, BYTE, WORD, DWORD, BUFFER, PACKAGE, SCOPE = 0x08, 0x0A, 0x0B, 0x0C, 0x11, 0x12, 0x10
DEVICE = b"\x5b\x82"
END_TAG = b"\x79\x00"  # end of a resource list (6.4.2.9); readers accept a zero checksum


def _sized(body: bytes) -> bytes:
    """Prefix a term's body with a PkgLength: the size of the body plus the PkgLength itself."""
    if len(body) + 1 < 1 << 6:
        return bytes((len(body) + 1,)) + body
    length = len(body) + 2
    if length >= 1 << 12:
        raise ValueError("an AML term has more than 4,095 bytes")
    return bytes((1 << 6 | length & 0xF, length >> 4)) + body


def integer(value: int) -> bytes:
    """Encode an integer as the shortest constant.

    :raises ValueError: if it has more than 32 bits.
    """
    if value in (0, 1):
        return bytes((value,))
    for code, size in ((BYTE, 1), (WORD, 2), (DWORD, 4)):
        if value < 1 << 8 * size:
            return bytes((code,)) + value.to_bytes(size, "little")
    raise ValueError(f"{value:#x} does not fit in an AML integer of 32 bits")


def name(path: str, value: bytes) -> bytes:
    """Encode a named object."""
    return bytes((NAME,)) + path.encode() + value


def package(elements: Sequence[bytes]) -> bytes:
    """Encode a package of elements."""
    return bytes((PACKAGE,)) + _sized(bytes((len(elements),)) + b"".join(elements))


def buffer(data: bytes) -> bytes:
    """Encode a buffer."""
    return bytes((BUFFER,)) + _sized(integer(len(data)) + data)


def scope(path: str, *terms: bytes) -> bytes:
    """Encode a scope that contains terms."""
    return bytes((SCOPE,)) + _sized(path.encode() + b"".join(terms))


def device(path: str, *terms: bytes) -> bytes:
    """Encode a device that contains terms."""
    return DEVICE + _sized(path.encode() + b"".join(terms))


def eisa_id(text: str) -> bytes:
    """Encode a hardware ID (three letters, four digits) such as ``PNP0501`` (19.3.4, "EISAID")."""
    letters = [ord(letter) - 0x40 for letter in text[:3]]
    number = letters[0] << 10 | letters[1] << 5 | letters[2]
    return bytes((DWORD,)) + number.to_bytes(2, "big") + int(text[3:], 16).to_bytes(2, "big")


BUSES, PORTS = 2, 1


def window(kind: int, first: int, last: int) -> bytes:
    """Encode the range of buses or I/O ports that a bridge forwards (6.4.3.5.3)."""
    return struct.pack("<BHBBBHHHHH", 0x88, 13, kind, 0x0C, 3 if kind == PORTS else 0, 0,
                       first, last, 0, last - first + 1)


def ports(base: int, count: int) -> bytes:
    """Encode an I/O port resource with 16-bit decoding (6.4.2.5)."""
    return bytes((0x47, 1)) + base.to_bytes(2, "little") * 2 + bytes((1, count))


def interrupt(number: int) -> bytes:
    """Encode an IRQ resource: edge-triggered and active-high (6.4.2.1)."""
    return bytes((0x22,)) + (1 << number).to_bytes(2, "little")
