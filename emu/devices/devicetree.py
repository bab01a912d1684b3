"""Flattened device trees (Devicetree Specification v0.4, chapter 5)."""

import struct
from typing import Self

Value = int | str | bytes | list[int] | list[str] | None

MAGIC, VERSION, COMPATIBLE = 0xD00DFEED, 17, 16
BEGIN_NODE, END_NODE, PROP, END = 1, 2, 3, 9


def cells64(*values: int) -> bytes:
    """Encode numbers as big-endian 64-bit values, two cells each."""
    return struct.pack(f">{len(values)}Q", *values)


def _encode(value: Value) -> bytes:
    match value:
        case None:
            return b""
        case bytes():
            return value
        case int():
            return struct.pack(">I", value)
        case str():
            return value.encode() + b"\0"
        case _:
            return b"".join(_encode(item) for item in value)


class DeviceNode:
    """Device tree node with properties and child nodes, in the order in which they were added."""

    def __init__(self, name: str, **properties: Value) -> None:
        self.name = name
        self.properties: dict[str, Value] = {}
        self.children: list[DeviceNode] = []
        self.set(**properties)

    def set(self, **properties: Value) -> Self:
        """Set properties; keywords use ``_`` for ``-``, ``__`` for ``,``, and ``N_`` for ``#``."""
        for key, value in properties.items():
            name = key.replace("N_", "#").replace("__", ",").replace("_", "-")
            self.properties[name] = value
        return self

    def add(self, *children: "DeviceNode") -> Self:
        """Append child nodes."""
        self.children += children
        return self


def cpu_node(number: int, count: int, **properties: Value) -> DeviceNode:
    """Create a child node of /cpus (Devicetree Specification, 3.8)."""
    node = DeviceNode(f"cpu@{number}", device_type="cpu", reg=number, **properties)
    if count > 1:
        # With the misspelling "device-type", a kernel finds no CPU node and uses only the boot CPU.
        # A single CPU's node keeps the misspelling, so that existing recordings remain valid.
        node.properties["device_type"] = node.properties.pop("device-type")
    return node


def flatten(root: DeviceNode) -> bytes:
    """Serialize a device tree into the blob that a boot loader passes to a kernel."""
    strings = bytearray()
    offsets: dict[str, int] = {}
    out = bytearray()

    def pad() -> None:
        out.extend(b"\0" * (-len(out) % 4))

    def emit(node: DeviceNode) -> None:
        out.extend(struct.pack(">I", BEGIN_NODE) + node.name.encode() + b"\0")
        pad()
        for key, value in node.properties.items():
            if key not in offsets:
                offsets[key] = len(strings)
                strings.extend(key.encode() + b"\0")
            data = _encode(value)
            out.extend(struct.pack(">III", PROP, len(data), offsets[key]) + data)
            pad()
        for child in node.children:
            emit(child)
        out.extend(struct.pack(">I", END_NODE))

    emit(root)
    out.extend(struct.pack(">I", END))
    header, reserve = 40, 16
    structure = header + reserve
    total = structure + len(out) + len(strings)
    return (
        struct.pack(
            ">10I", MAGIC, total, structure, structure + len(out), header, VERSION, COMPATIBLE, 0,
            len(strings), len(out),
        )
        + bytes(reserve) + bytes(out) + bytes(strings)
    )
