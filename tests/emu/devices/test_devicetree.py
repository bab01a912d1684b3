import struct

from emu.devices.devicetree import DeviceNode, cells64, flatten


def parse(blob):
    """Parse a flattened device tree independently into (name, properties, children)."""
    magic, total, structure, strings = struct.unpack_from(">4I", blob)
    assert magic == 0xD00DFEED and total == len(blob)
    at = structure
    stack = [("", {}, [])]
    while True:
        (token,) = struct.unpack_from(">I", blob, at)
        at += 4
        if token == 1:
            end = blob.index(b"\0", at)
            stack.append((blob[at:end].decode(), {}, []))
            at = (end + 4) & ~3
        elif token == 2:
            node = stack.pop()
            stack[-1][2].append(node)
        elif token == 3:
            size, name = struct.unpack_from(">II", blob, at)
            end = blob.index(b"\0", strings + name)
            stack[-1][1][blob[strings + name : end].decode()] = blob[at + 8 : at + 8 + size]
            at = (at + 8 + size + 3) & ~3
        elif token == 9:
            return stack[0][2][0]


def test_a_flattened_tree_is_read_back_as_written():
    root = DeviceNode("", N_address_cells=2, compatible=["a", "bc"]).add(
        DeviceNode("cpu@0", riscv__isa="rv64", empty=None,
                   reg=cells64(1, 2)).add(DeviceNode("intc", phandle=7))
    )
    name, properties, children = parse(flatten(root))
    assert (name, properties) == ("", {"#address-cells": b"\0\0\0\2", "compatible": b"a\0bc\0"})
    assert children[0][1] == {
        "riscv,isa": b"rv64\0", "empty": b"", "reg": b"\0" * 7 + b"\1" + b"\0" * 7 + b"\2"}
    assert children[0][2] == [("intc", {"phandle": b"\0\0\0\7"}, [])]


def test_the_reservation_map_is_empty_and_all_blocks_are_aligned():
    blob = flatten(DeviceNode("", odd="x"))
    reserve, structure = struct.unpack_from(">I", blob, 16)[0], struct.unpack_from(">I", blob, 8)[0]
    assert blob[reserve : reserve + 16] == bytes(16)
    assert reserve % 8 == 0 and structure % 4 == 0
