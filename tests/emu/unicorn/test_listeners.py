"""Tests of listeners to memory accesses while loads fault that span two pages.

Unicorn calls no memory hook between such a fault and the next time that it is entered.
"""

import struct

import pytest

from emu.machine.machine import StopReason, Until
from emu.unicorn._steps import StepKind, Steps
from emu.unicorn._watch import WriteWatch
from tests.emu.qemu.test_faults import PAGE, TEXT_ROOM, Ground
from tests.kinst.verify.test_upstream_mistakes import assemble

# A load of eight bytes through the first argument register, and a handler that stores a register.
LOADS = {"amd64": "mov rax, [rdi]", "arm64": "ldr x1, [x0]", "riscv64": "ld a1, 0(a0)"}
STORES = {"amd64": "mov [rsp - 128], rax", "arm64": "stur x3, [sp, #-16]",
          "riscv64": "sd a3, -16(sp)"}
CODES = {"riscv64": (bytes.fromhex("83350500"), bytes.fromhex("2338d1fe"))}  # for keystone
ENTRY = struct.Struct("<IIQQ")


@pytest.fixture
def ground(image):
    ground = Ground(image)
    machine, arch = ground.machine, ground.name
    load, store = CODES.get(arch) or (assemble(arch, LOADS[arch]), assemble(arch, STORES[arch]))
    machine.write_physical(ground._physical(0) + TEXT_ROOM * len(ground.codes), load)
    for entry in ground.ends[:64]:
        if entry & -PAGE == ground.vectors:
            machine.write(entry, store)
    machine.write_register(machine.arch.sp, ground.kernel_stack)
    return ground


def fault(ground):
    """Execute the load across the border to a page that is not mapped, and the handler's store."""
    machine = ground.machine
    border = ground.pairs["rw", "absent"] + PAGE
    machine.write_register(ground.table.address, border - 4)
    machine.pc = ground.text + TEXT_ROOM * len(ground.codes)
    before = machine.instructions
    stop = machine.run(Until(instructions=before + 400))
    assert stop.reason is StopReason.INSTRUCTIONS
    assert machine.pc & -PAGE == ground.vectors, hex(machine.pc)


def test_a_store_after_a_load_that_faults_on_its_second_page_is_observed(ground):
    found = []
    steps = Steps(ground.machine.engine, found.append, [], loads=True)
    try:
        fault(ground)
        steps.flush()
    finally:
        steps.close()
    kinds = [kind for kind, _what, _a, _b in ENTRY.iter_unpack(b"".join(found))]
    assert int(StepKind.STEP_STORE) in kinds, kinds


def test_a_watchpoint_sees_a_store_after_such_a_load(ground):
    machine = ground.machine
    offset = {"amd64": -176, "arm64": -16, "riscv64": -16}[ground.name]
    physical = machine.translate(ground.kernel_stack + offset)
    watch = WriteWatch(machine.engine, physical, 8)
    try:
        fault(ground)
        assert watch.writes
    finally:
        watch.close()
