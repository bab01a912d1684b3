"""Tests of system call tables with unused bytes behind them, and of compiled-in environments."""

import struct

import pytest

from emu.elf.image import load_image
from emu.guest.static_probe import StaticProbeError
from emu.guests.freebsd.amd64.loader import memory_map, metadata
from emu.guests.freebsd.system_calls import system_calls
from tests.elfwriter import Elf

BASE, CODE = 0xFFFFFFFF80200000, 0xFFFFFFFF80201000
TABLE, NAMES, TEXTS = BASE + 0x2000, BASE + 0x4000, BASE + 0x6000
CALLS = ["nosys", "read", "write", "open"]


class Memory:
    """Memory with a table of system calls and their names."""

    def __init__(self, entry, table_padding, names_padding):
        table = b"".join(struct.pack("<Q", CODE + 16 * n).ljust(entry, b"\1")
                         for n in range(len(CALLS))) + b"\0" * table_padding
        names = struct.pack(f"<{len(CALLS)}Q", *(TEXTS + 16 * n for n in range(len(CALLS))))
        self.parts = {TABLE: table, NAMES: names + b"\0" * names_padding,
                      TEXTS: b"".join(name.encode().ljust(16, b"\0") for name in CALLS)}

    def read(self, address, size):
        base = max(start for start in self.parts if start <= address)
        return self.parts[base][address - base : address - base + size]


def kernel(tmp_path, memory, *more):
    symbols = [(f"sys_{name}", CODE + 16 * n, 16, 2) for n, name in enumerate(CALLS)]
    symbols += [("sysent", TABLE, len(memory.parts[TABLE]), 1),
                ("syscallnames", NAMES, len(memory.parts[NAMES]), 1)]
    path = tmp_path / "kernel"
    path.write_bytes(Elf(entry=BASE, symbols=symbols, segments=[
        (BASE, bytes(0x8000), 0x8000)]).build())
    return load_image(path)


@pytest.mark.parametrize("entry", [40, 48, 56])
@pytest.mark.parametrize("table_padding, names_padding", [(0, 0), (64, 32), (32, 96)])
def test_system_calls_are_found_with_unused_bytes_after_the_tables(
        tmp_path, entry, table_padding, names_padding):
    memory = Memory(entry, table_padding, names_padding)
    probes = system_calls(kernel(tmp_path, memory), memory)
    assert [probe.function for probe in probes[::2]] == CALLS
    assert {(p.call.table.size, p.call.table.count) for p in probes} == {(entry, len(CALLS))}


def test_a_table_that_is_far_too_large_is_an_error(tmp_path):
    memory = Memory(40, 0, 1 << 20)
    with pytest.raises(StaticProbeError, match="too much"):
        system_calls(kernel(tmp_path, memory), memory)


@pytest.mark.parametrize("compiled, wanted", [
    (b"hint.acpi.0.disabled=1\0machdep.disable_tsc_calibration=1\0\0",
     [b"hint.acpi.0.disabled=0", b"machdep.disable_tsc_calibration=0"]),
    (b"hint.acpi.0.disabled=1\0\0", [b"hint.acpi.0.disabled=0"]),
    (b"\0\0", [])])
def test_variables_that_were_compiled_in_for_another_machine_are_replaced(
        tmp_path, compiled, wanted):
    path = tmp_path / "kernel"
    path.write_bytes(Elf(entry=BASE, segments=[(BASE, compiled.ljust(0x100, b"\0"), 0x100)],
                         symbols=[("static_env", BASE, len(compiled), 1)]).build())
    _first, _start, content, _end = metadata(load_image(path), memory_map(64 << 20))
    words = content.split(b"\0\0")[0].split(b"\0")
    assert [word for word in words if word.startswith((b"hint.acpi", b"machdep."))] == wanted
