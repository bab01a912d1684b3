"""Tests of remapped code addresses, and of trapped floating-point instructions in user mode."""

import pytest

from emu.machine.machine import StopReason, Until
from images import catalog
from tests.emu.qemu.test_faults import PAGE, Ground, in_user_mode, to_user
from tests.kinst.verify.test_upstream_mistakes import words

NEAR = 1 << 39  # second virtual address of the test pages on amd64, in the user half

# Pairs of code sequences of equal size but different instruction counts.  Each sequence jumps to
# the address in the first argument register.
CODES = {
    "amd64": (b"\x90\x90\x90\x90\xff\xe7", b"\x48\x83\xc0\x01\xff\xe7"),
    "arm64": (bytes.fromhex("1f2003d5 00001fd6"), bytes.fromhex("00001fd6 00001fd6")),
    "riscv64": (bytes.fromhex("01000100 67000500"), bytes.fromhex("13000000 67000500")),
}
COUNTS = {"amd64": (5, 2), "arm64": (2, 1), "riscv64": (3, 2)}


def low(ground, address):
    """Return a user-half alias of an address on amd64, or the address itself elsewhere."""
    if ground.name != "amd64":
        return address
    machine = ground.machine
    root = machine.read_register("cr3") & 0xFFFFFFFFF000
    machine.write_physical(root + 8, machine.read_physical(root + 8 * 511, 8))
    return NEAR | address & NEAR - 1


def test_remapping_an_address_executes_the_code_of_the_new_page(image, arch):
    ground = Ground(image)
    machine = ground.machine
    number = (ground.pairs["rx", "rx"] - ground.base) // PAGE
    pages = [ground._physical(number), ground._physical(number + 1)]
    for page, code in zip(pages, CODES[arch], strict=True):
        machine.write_physical(page, code)
    address, end = low(ground, ground.pairs["rx", "rx"]), ground.text
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


# Three NOPs and the first byte of an instruction that ends on the next page
ENDS = b"\x90\x90\x90\x48"
GOES_ON = (bytes.fromhex("83c001 909090 ffe7"), bytes.fromhex("8d8001000000 ffe7"))


def test_remapping_the_second_page_of_a_block_executes_the_new_code():
    ground = Ground(catalog.find("teaching/amd64"))
    machine = ground.machine
    address, end = low(ground, ground.pairs["rx", "rx"]), ground.text
    number = (ground.pairs["rx", "rx"] - ground.base) // PAGE
    first, seconds = ground._physical(number), [ground._physical(number + i) for i in (1, 2)]
    machine.write_physical(first + PAGE - len(ENDS), ENDS)
    for page, code in zip(seconds, GOES_ON, strict=True):
        machine.write_physical(page, code)
    found = []
    for which in (0, 1, 0, 1, 1, 0):
        entry = ground.table.pages["rx"](seconds[which])
        machine.write_physical(ground.leaves + 8 * (number + 1), entry.to_bytes(8, "little"))
        machine.pc, before = address + PAGE - len(ENDS), machine.instructions
        machine.write_register(ground.table.address, end)
        stop = machine.run(Until(addresses=[end], instructions=before + 100))
        assert stop.reason is StopReason.ADDRESS
        found.append(machine.instructions - before)
    assert found == [8, 5, 8, 5, 5, 8]


NOP, FMOV, MRS_FPCR, LDR_Q = 0xD503201F, 0x1E604020, 0xD53B4400, 0x3DC00000
FP_ACCESS = 0x1FE00000  # ESR_EL1: EC 0x07, IL, CV, COND 0xe


BRANCH = 0x14000001  # branch to the next instruction, which starts a new block


def floating(code, before):
    """Prepare a user program that executes a trapped instruction in its second block."""
    ground = Ground(catalog.find("teaching/arm64"), "user")
    machine = ground.machine
    machine.write_physical(
        ground._physical(0), words(NOP, BRANCH, *[NOP] * before, code, NOP, 0x14000000))
    to_user(ground, machine, ground.text)
    machine.write_register("cpacr_el1", 1 << 20)  # trap floating point in EL0 only
    machine.write_register("x0", ground.pairs["rw", "rw"])
    return ground, machine


@pytest.mark.parametrize("before", [0, 1, 5])
@pytest.mark.parametrize("code", [FMOV, MRS_FPCR, LDR_Q])
def test_user_floating_point_is_trapped_at_the_exact_instruction(
    before, code
):
    """Interrupt the run at different points; Unicorn by itself does not trap the instruction."""
    for piece in (1, 2, 3, 100):
        ground, machine = floating(code, before)
        start, at = machine.instructions, ground.text + 8 + 4 * before
        while in_user_mode(machine):
            assert machine.instructions - start <= before + 2
            machine.run(Until(addresses=[ground.vectors + 0x400],
                              instructions=machine.instructions + piece))
        assert machine.read_register("elr_el1") == at
        assert machine.read_register("esr_el1") == FP_ACCESS
        assert machine.instructions - start - before - 2 < piece
        machine.write_register("cpacr_el1", 3 << 20)
        to_user(ground, machine, at)
        machine.run(Until(instructions=machine.instructions + 2))
        assert in_user_mode(machine) and machine.pc == at + 8


@pytest.mark.parametrize("before", [0, 1, 5])
@pytest.mark.parametrize("way", ["count", "address", "handler"])
def test_stops_at_the_start_of_a_block_precede_its_floating_point_trap(before, way):
    ground, machine = floating(FMOV, before)
    begins, count, seen = ground.text + 8, machine.instructions + 2, []
    if way == "handler":
        machine.handle(begins, lambda: seen.append(machine.instructions))
        machine.run(Until(addresses=[ground.vectors + 0x400]))
        assert seen == [count]
        return
    wanted = {"count": Until(instructions=count), "address": Until(addresses=[begins])}[way]
    stop = machine.run(wanted)
    assert (machine.pc, machine.instructions) == (begins, count) and in_user_mode(machine)
    assert stop.reason is {"count": StopReason.INSTRUCTIONS, "address": StopReason.ADDRESS}[way]
    machine.run(Until(addresses=[ground.vectors + 0x400]))
    assert machine.read_register("elr_el1") == begins + 4 * before
    assert machine.instructions == count + before
