"""A writer of CTF sections (ctf(5)), versions 2 and 3."""

import struct
import zlib
from dataclasses import dataclass, field

INTEGER, FLOAT, POINTER, ARRAY, FUNCTION, STRUCT, UNION, ENUM, FORWARD, TYPEDEF = range(1, 11)
CONST = 12


@dataclass
class Ctf:
    """Builder of a CTF section of types, variables and functions."""

    version: int = 3
    parent: str = ""
    text: bytearray = field(default_factory=lambda: bytearray(b"\0"))
    types: bytearray = field(default_factory=bytearray)
    objects: list[int] = field(default_factory=list)
    functions: bytearray = field(default_factory=bytearray)
    count: int = 0

    def name(self, text):
        """Add a string and return its offset."""
        if not text:
            return 0
        self.text += text.encode() + b"\0"
        return len(self.text) - len(text) - 1

    def word(self, kind, count):
        """Return a type's info word, which encodes the kind, the root flag and the member count."""
        return kind << 26 | 1 << 25 | count if self.version == 3 else kind << 11 | 1 << 10 | count

    def add(self, name, kind, value, count=0, rest=b""):
        """Add a type and return its number; ``value`` is the size or a referenced type's number."""
        layout = "<III" if self.version == 3 else "<IHH"
        large = 0xFFFFFFFF if self.version == 3 else 0xFFFF
        sized = value >= large and kind in (INTEGER, STRUCT, UNION, ENUM)
        self.types += struct.pack(
            layout, self.name(name), self.word(kind, count), large if sized else value)
        if sized:
            self.types += struct.pack("<II", value >> 32, value & 0xFFFFFFFF)
        self.types += rest
        self.count += 1
        return self.count

    def integer(self, name, size, flags=0, bits=None):
        """Add an integer type of ``size`` bytes and return its number."""
        encoding = flags << 24 | (8 * size if bits is None else bits)
        return self.add(name, INTEGER, size, rest=struct.pack("<I", encoding))

    def array(self, element, count):
        """Add an array type and return its number."""
        layout = "<III" if self.version == 3 else "<HHI"
        return self.add("", ARRAY, 0, rest=struct.pack(layout, element, 1, count))

    def structure(self, name, size, *members, kind=STRUCT):
        """Add a structure or union with members (name, type, bit offset) and return its number."""
        rest = b""
        for member, type_, bit in members:
            if size >= (1 << 29 if self.version == 3 else 1 << 13):
                layout = "<IIII" if self.version == 3 else "<IHxxII"
                rest += struct.pack(layout, self.name(member), type_, bit >> 32, bit & 0xFFFFFFFF)
            else:
                layout = "<III" if self.version == 3 else "<IHH"
                rest += struct.pack(layout, self.name(member), type_, bit)
        return self.add(name, kind, size, len(members), rest)

    def enumeration(self, name, size, *values):
        """Add an enumeration with (name, value) pairs and return its number."""
        rest = b"".join(struct.pack("<Ii", self.name(n), v) for n, v in values)
        return self.add(name, ENUM, size, len(values), rest)

    def procedure(self, result, *parameters):
        """Add a function type and return its number."""
        letter = "I" if self.version == 3 else "H"
        rest = struct.pack(f"<{len(parameters)}{letter}", *parameters)
        rest += bytes(-len(rest) % 4)
        return self.add("", FUNCTION, result, len(parameters), rest)

    def function(self, result, *parameters):
        """Add the result and parameter types of the next function symbol."""
        letter = "I" if self.version == 3 else "H"
        self.functions += struct.pack(
            f"<{2 + len(parameters)}{letter}", self.word(FUNCTION, len(parameters)), result,
            *parameters)

    def build(self, compress=True):
        """Return the section's bytes."""
        letter = "I" if self.version == 3 else "H"
        parent = self.name(self.parent)
        content = struct.pack(f"<{len(self.objects)}{letter}", *self.objects)
        functions = len(content)
        content += self.functions
        content += bytes(-len(content) % 4)
        types = len(content)
        content += self.types
        text = len(content)
        content += self.text
        head = struct.pack("<HBB8I", 0xCFF1, self.version, int(compress), 0, parent, 0, 0,
                           functions, types, text, len(self.text))
        return head + (zlib.compress(content) if compress else content)
