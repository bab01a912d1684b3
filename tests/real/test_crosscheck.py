"""Tests that GENERIC kernels run identically on kinst-emu's machine and on QEMU."""

import os
import random

import pytest

from dtrace.calls.calls import Evaluation, parse
from emu.machine.call import Caller
from emu.machine.machine import StopReason, Until
from emu.qemu.machine import QemuMachine
from images import boots
from images.shell import with_userland
from kinst.verify.crosscheck import call_table, system_call_table
from kinst.verify.crosscheck.agreement import Agreement
from kinst.verify.crosscheck.crosscheck import Crosscheck
from kinst.verify.crosscheck.faults import FaultyCrosscheck
from kinst.verify.crosscheck.lockstep import Divergence
from kinst.verify.sweep.task import carry_out
from kinst_emu.cli.xvals import AGREES, NOT_COMPARED, CrosscheckTask, Pair
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import run

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
def test_random_system_calls_of_a_program_agree(arch):
    image = with_userland(real_kernel(arch))
    pair = Pair(str(image.path), (), 512 << 20, "", image.identity, system=True)
    agreed, generator = Agreement(), random.Random(SEED)
    entries = call_table.available(image, system_call_table.ENTRIES)
    assert len(entries) > 100
    for entry in generator.sample(entries, min(CALLS, len(entries))):
        (result,) = carry_out(CrosscheckTask(pair), [call_table.call(entry, generator)])
        assert result.word in (AGREES, NOT_COMPARED), (result, f"KINST_SEED={SEED}")
        assert result.word == AGREES or "more than" in result.problem, result.problem
        agreed.add(result.agreed)
    assert agreed.calls > 0.9 * CALLS and agreed.distinct() > 300


@pytest.mark.parametrize("call, says", [
    ("strlen(\"a\")", "not a system call"), ("sys_read(0, buf(4096), 1)", "have 4096 bytes"),
    ("sys_read(1, 2, 3, 4, 5, 6, 7, 8, 9)", "at most"),
])
def test_an_invalid_system_call_is_refused(call, says):
    done = run("kinst", "xval", "-k", str(real_kernel("amd64").path), "--system", "-c", call)
    assert done.returncode == 1 and says in done.stderr and done.stderr.count("\n") == 1


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
    with pytest.raises(Divergence) as raised:
        crosscheck.check(workload_of('snprintf(buf(64), 64, "%d-%s", 42, "xyz")'))
    assert raised.value.address == crosscheck.faulty
