"""Helpers that encode DWARF sections."""

import struct


def uleb(value):
    """Encode an integer as ULEB128."""
    out = b""
    while True:
        byte = value & 0x7F
        value >>= 7
        out += bytes([byte | (0x80 if value else 0)])
        if not value:
            return out


def abbrev(code, tag, children, *attributes):
    """Encode an abbreviation with attributes (name, form)."""
    out = uleb(code) + uleb(tag) + bytes([children])
    for name, form in attributes:
        out += uleb(name) + uleb(form)
    return out + b"\0\0"


def unit(version, body):
    """Encode a unit of .debug_info with its header."""
    if version >= 5:
        rest = struct.pack("<HBBI", version, 1, 8, 0) + body
    else:
        rest = struct.pack("<HIB", version, 0, 8) + body
    return struct.pack("<I", len(rest)) + rest
