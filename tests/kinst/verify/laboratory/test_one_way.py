"""Tests of conditional jumps that can go only one way."""

import pytest

from emu.arch.architectures import ARCHITECTURES
from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import ConditionalJump
from kinst.verify.laboratory.one_way import goes_one_way


def one_way(arch, code):
    verdict = TRAPS[arch].instructions.classify(bytes.fromhex(code), 0x1000)[1]
    assert isinstance(verdict, ConditionalJump)
    return goes_one_way(verdict.condition, ARCHITECTURES[arch].sp)


@pytest.mark.parametrize("code", ["63000006", "631e001a", "63837b03", "63d5b526", "63e30500",
                                  "63f10708", "63040100"])
def test_jumps_with_a_constant_condition_go_one_way(code):
    """Jumps such as ``beq s7, s7`` and ``bltu a1, zero`` have a constant condition."""
    assert one_way("riscv64", code)


@pytest.mark.parametrize("arch, code", [
    ("riscv64", "6304b500"), ("riscv64", "63c40500"), ("riscv64", "6364b500"), ("riscv64", "01c1"),
    ("amd64", "7410"), ("amd64", "7f10"), ("amd64", "e310"), ("arm64", "80000054"),
    ("arm64", "8c000054"), ("arm64", "800000b4"), ("arm64", "8000f8b7")])
def test_other_jumps_go_both_ways(arch, code):
    assert not one_way(arch, code)
