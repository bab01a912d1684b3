"""Programs: each has its own code at an address, and floating point of its own."""

import pytest

from emu.machine import StopReason, Until
from tests.emu.qemu.test_faults import PAGE, Ground, in_user_mode, to_user
from tests.kinst.test_upstream_mistakes import words

NEAR = 1 << 39  # amd64: where the ground's pages are mapped again, in a program's half

# As many bytes, and not as many instructions; the second jumps to the first argument's register.
CODES = {
    "amd64": (b"\x90\x90\x90\x90\xff\xe7", b"\x48\x83\xc0\x01\xff\xe7"),
    "arm64": (bytes.fromhex("1f2003d5 00001fd6"), bytes.fromhex("00001fd6 00001fd6")),
    "riscv64": (bytes.fromhex("01000100 67000500"), bytes.fromhex("13000000 67000500")),
}
COUNTS = {"amd64": (5, 2), "arm64": (2, 1), "riscv64": (3, 2)}


def test_the_same_address_with_another_page_has_other_blocks(image, arch):
    ground = Ground(image)
    machine = ground.machine
    number = (ground.pairs["rx", "rx"] - ground.base) // PAGE
    pages = [ground._physical(number), ground._physical(number + 1)]
    for page, code in zip(pages, CODES[arch], strict=True):
        machine.write_physical(page, code)
    address, end = ground.pairs["rx", "rx"], ground.text
    if arch == "amd64":
        root = machine.read_register("cr3") & 0xFFFFFFFFF000
        machine.write_physical(root + 8, machine.read_physical(root + 8 * 511, 8))
        address = NEAR | address & NEAR - 1
    found = []
    for which in (0, 1, 0, 1, 1, 0):
        entry = ground.table.pages["rx"](pages[which])
        machine.write_physical(ground.leaves + 8 * number, entry.to_bytes(8, "little"))
        machine.pc, before = address, machine.instructions
        machine.write_register(ground.table.address, end)
        stop = machine.run(Until(addresses=[end], instructions=before + 100))
        assert stop.reason is StopReason.ADDRESS
        found.append(machine.instructions - before)
    assert found == [COUNTS[arch][which] for which in (0, 1, 0, 1, 1, 0)]


NOP, FMOV, MRS_FPCR, LDR_Q = 0xD503201F, 0x1E604020, 0xD53B4400, 0x3DC00000
FP_ACCESS = 0x1FE00000  # EC 0x07, IL, CV, COND 0xe


@pytest.mark.parametrize("before", [0, 1, 5])
@pytest.mark.parametrize("code", [FMOV, MRS_FPCR, LDR_Q])
def test_a_programs_floating_point_is_trapped_at_the_instruction_where_the_guest_wants_it(
    image, arch, before, code
):
    """However the run is cut.  The CPU model would let it pass."""
    if arch != "arm64":
        return
    for piece in (1, 2, 100):
        ground = Ground(image, "user")
        machine = ground.machine
        machine.write_physical(ground._physical(0), words(*[NOP] * before, code, NOP, 0x14000000))
        to_user(ground, machine, ground.text)
        machine.write_register("cpacr_el1", 1 << 20)  # EL0's are trapped
        machine.write_register("x0", ground.pairs["rw", "rw"])
        start, at = machine.instructions, ground.text + 4 * before
        while in_user_mode(machine):
            assert machine.instructions - start <= before
            machine.run(Until(addresses=[ground.vectors + 0x400],
                              instructions=machine.instructions + piece))
        assert machine.read_register("elr_el1") == at
        assert machine.read_register("esr_el1") == FP_ACCESS
        assert machine.instructions - start - before < piece
        machine.write_register("cpacr_el1", 3 << 20)
        to_user(ground, machine, at)
        machine.run(Until(instructions=machine.instructions + 2))
        assert in_user_mode(machine) and machine.pc == at + 8
