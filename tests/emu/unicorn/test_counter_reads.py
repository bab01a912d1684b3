"""Tests of finding the instructions that read counters in a riscv64 kernel."""

import pytest

from emu.elf.image import load_image
from emu.unicorn.riscv64.cpu import cycle_reads
from tests.elfwriter import Elf

RDCYCLE = bytes.fromhex("f32500c0")  # rdcycle a1
RDINSTRET = bytes.fromhex("732520c0")  # rdinstret a0
NOP, SHORT = bytes.fromhex("13000000"), bytes.fromhex("0100")
# lui a2, 0x25f3c; c.lui: the halfwords in the middle look like RDCYCLE.
HIDDEN = bytes.fromhex("3796f325" "00c0")
PLAIN = [SHORT, RDCYCLE, HIDDEN, NOP, RDINSTRET]


def reads(tmp_path, symbols, *pieces, start=0x1000):
    path, code = tmp_path / "kernel", b"".join(pieces)
    path.write_bytes(Elf("riscv64", segments=[(start, code, len(code))], symbols=symbols).build())
    return [at - start for at in cycle_reads(load_image(path))]


@pytest.mark.parametrize("symbols", [
    [("all", 0x1000, 20, 2)],  # one function contains everything
    [("first", 0x1000, 2, 2)],  # the functions after this one have no names
    [("last", 0x1010, 4, 2)],  # the function before this one has no name
    [("data", 0x1000, 8, 1)],  # no function has a name
])
def test_counter_reads_are_found_at_instruction_boundaries_only(tmp_path, symbols):
    assert reads(tmp_path, symbols, *PLAIN) == [2, 16]


def test_padding_between_functions_is_skipped(tmp_path):
    assert reads(tmp_path, [("first", 0x1000, 4, 2)], NOP, bytes(6), RDCYCLE) == [10]


def test_many_matches_do_not_take_quadratic_time(tmp_path):
    found = reads(tmp_path, [("first", 0x1000, 4, 2)], NOP, RDCYCLE * 250_000)
    assert len(found) == 250_000 and found[-1] == 4 * 250_000
