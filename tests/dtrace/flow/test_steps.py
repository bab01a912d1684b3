"""Tests of the virtual addresses that instructions of a recorded run have accessed."""

from types import SimpleNamespace

import pytest

from dtrace.flow.steps import Translations
from emu.arch.architectures import ARCHITECTURES

PC, TABLE = 0xFFFF_FFFF_8000_0000, 0xFFFF_FFFF_81C2_26D8
# (architecture, code, registers, accessed address)
CASES = (
    ("amd64", "f0480fb199d826c281", {"rcx": 0, "rbx": 5}, TABLE),  # lock cmpxchg [rcx+TABLE], rbx
    ("amd64", "488904cdd826c281", {"rcx": 0x300, "rax": 1}, TABLE + 0x1800),  # mov [rcx*8+TABLE]
    ("amd64", "48890500100000", {"rax": 1}, PC + 0x1007),  # mov [rip+0x1000], rax
    ("amd64", "6548890425400a0000", {"rax": 1}, 0x7000_0A40),  # mov gs:[0xa40], rax
    ("amd64", "65480118", {"rax": 0x300_0000, "rbx": 1}, 0x7300_0000),  # add gs:[rax], rbx
    ("amd64", "6548011ccb", {"rbx": 0x300_0000, "rcx": 0x10_0000}, 0x7380_0000),  # gs:[rbx+rcx*8]
    ("arm64", "017822f8", {"x0": PC, "x2": 0x2000, "x1": 1}, PC + 0x10000),  # str x1,[x0,x2,lsl 3]
    ("arm64", "01fc3ff9", {"x0": PC, "x1": 1}, PC + 0x7FF8),  # str x1, [x0, 0x7ff8]
)


@pytest.mark.parametrize(("arch", "code", "registers", "address"), CASES)
def test_an_address_is_found_however_far_it_is_from_the_registers(arch, code, registers, address):
    """Each page is mapped to the physical page whose number is its own without the upper half."""
    content = bytes.fromhex(code)
    machine = SimpleNamespace(
        arch=ARCHITECTURES[arch], translate=lambda page: page & 0xFFFF_FFFF,
        read=lambda at, size: content[:size] if at == PC else bytes(size),
        read_register=lambda name: {"gs_base": 0x7000_0000}[name])
    assert Translations(machine).virtual(registers, PC, address & 0xFFFF_FFFF) == address


def test_an_address_that_nothing_leads_to_is_unknown():
    machine = SimpleNamespace(arch=ARCHITECTURES["amd64"], translate=lambda page: page,
                              read=lambda at, size: bytes.fromhex("48890500100000"),
                              read_register=lambda name: 0)
    assert Translations(machine).virtual({"rax": 1}, PC, 0x12345678) is None
