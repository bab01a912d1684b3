"""System registers of arm64 that the engine accesses by Unicorn's own numbers, not by encoding."""

import pytest
import unicorn
from unicorn import arm64_const as numbers

from emu.arm64.registers import SYSTEM


@pytest.mark.parametrize("name", ["esr_el1", "elr_el1", "vbar_el1", "far_el1", "ttbr0_el1",
                                  "ttbr1_el1"])
def test_unicorns_number_and_the_encoding_mean_the_same_register(name):
    machine = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    number = getattr(numbers, f"UC_ARM64_REG_{name.upper()}")
    op0, op1, crn, crm, op2 = SYSTEM[name]
    by_encoding = (crn, crm, op0, op1, op2)
    machine.reg_write(numbers.UC_ARM64_REG_CP_REG, (*by_encoding, 0x1234_5678_90AB_CDE0))
    assert machine.reg_read(number) == 0x1234_5678_90AB_CDE0
    machine.reg_write(number, 0xFEDC_BA98_7654_3210)
    assert machine.reg_read(numbers.UC_ARM64_REG_CP_REG, by_encoding) == 0xFEDC_BA98_7654_3210
