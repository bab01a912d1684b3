import keystone
import pytest

from emu.riscv64.effective_address import effective_address


def register(number):
    return 0x1000 * number


@pytest.mark.parametrize("code, address", [
    (0x00853503, 0x1000 * 10 + 8),  # ld a0, 8(a0)
    (0xFE853503, 0x1000 * 10 - 24),  # ld a0, -24(a0)
    (0xFEA5BC23, 0x1000 * 11 - 8),  # sd a0, -8(a1)
    (0x00A5A02F, 0x1000 * 11),  # amoadd.w zero, a0, (a1)
    (0x0085B507, 0x1000 * 11 + 8),  # fld fa0, 8(a1)
    (0x651C, 0x1000 * 10 + 8),  # c.ld a5, 8(a0)
    (0xE51C, 0x1000 * 10 + 8),  # c.sd a5, 8(a0)
    (0x415C, 0x1000 * 10 + 4),  # c.lw a5, 4(a0)
    (0xC15C, 0x1000 * 10 + 4),  # c.sw a5, 4(a0)
    (0x60A2, 0x1000 * 2 + 8),  # c.ldsp ra, 8(sp)
    (0xE406, 0x1000 * 2 + 8),  # c.sdsp ra, 8(sp)
    (0x4532, 0x1000 * 2 + 12),  # c.lwsp a0, 12(sp)
    (0xC62A, 0x1000 * 2 + 12),  # c.swsp a0, 12(sp)
    (0x00000013, None),  # nop
    (0x8082, None),  # ret
])
def test_the_address_of_a_load_or_store(code, address):
    assert effective_address(code, register) == address


def test_keystone_is_there_for_the_stub_of_qemu():
    assert keystone.Ks(keystone.KS_ARCH_X86, keystone.KS_MODE_64).asm("nop")[0] == [0x90]
