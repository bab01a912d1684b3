"""Two programs have their own code at one address: each block is counted as what it is."""

from emu.machine import StopReason, Until
from tests.emu.qemu.test_faults import PAGE, Ground

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
