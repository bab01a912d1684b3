"""GENERIC kernels on our machine and on QEMU."""

import os
import random

import pytest

from dtrace.calls import Evaluation, parse
from emu.call import Caller
from emu.machine import StopReason, Until
from emu.qemu.machine import QemuMachine
from images import boots
from kinst.crosscheck import call_table
from kinst.crosscheck.agreement import Agreement
from kinst.crosscheck.crosscheck import Crosscheck
from kinst.crosscheck.faults import FaultyCrosscheck
from kinst.crosscheck.lockstep import Divergence
from tests.conftest import ARCHES, real_kernel

SEED = int(os.environ.get("KINST_SEED") or random.SystemRandom().randrange(1 << 31))
CALLS = int(os.environ.get("KINST_XVAL_CALLS") or 25)


def workload_of(call):
    program = parse(call)
    return lambda machine: Evaluation(Caller(machine, 1_000_000)).run(program)


@pytest.mark.parametrize("arch", ARCHES)
def test_random_calls_agree(arch):
    machine = boots.booted(real_kernel(arch))
    machine.console.text.clear()
    crosscheck, agreed, generator = Crosscheck(machine), Agreement(), random.Random(SEED)
    entries = call_table.available(machine.image)
    for entry in generator.sample(entries, min(CALLS, len(entries))):
        call = call_table.call(entry, generator)
        try:
            agreed.add(crosscheck.check(workload_of(call)))
        except Divergence as divergence:
            pytest.fail(f"{call}: {divergence.what} at {divergence.address:#x}; KINST_SEED={SEED}")
    assert agreed.calls == CALLS and agreed.distinct() > 500


@pytest.mark.parametrize("arch", ARCHES)
def test_the_kernel_boots_on_qemu_to_its_prompt(arch):
    with QemuMachine.boot(real_kernel(arch)) as machine:
        stop = machine.run(Until(console="mountroot> "))
        assert stop.reason is StopReason.CONSOLE, bytes(machine.console.text[-500:])
        machine.type(b"?\r")
        assert machine.run(Until(console="mountroot> ")).reason is StopReason.CONSOLE
        assert b"List of GEOM managed disk devices" in machine.console.text


@pytest.mark.parametrize("fault", ["delivery", "trampoline", "emulation"])
@pytest.mark.parametrize("arch", ARCHES)
def test_a_fault_is_found_at_its_instruction(arch, fault):
    machine = boots.booted(real_kernel(arch))
    crosscheck = FaultyCrosscheck(machine, fault)
    with pytest.raises(Divergence) as found:
        crosscheck.check(workload_of('snprintf(buf(64), 64, "%d-%s", 42, "xyz")'))
    assert found.value.address == crosscheck.faulty
