"""Tests that hundreds of probes on FreeBSD GENERIC kernels do not change the boot.

Functions are chosen at random; $KINST_SEED repeats the choice of a failed run.
"""

import os
import random

import pytest

from emu.machine.machine import StopReason
from emu.unicorn.machine import UnicornMachine
from images import boots
from kinst.code.listing import literals
from kinst.probes.breakpoints import DIRECT, PATHS, Breakpoints
from kinst.probes.probed_code import ProbeError
from kinst.providers import fbt, kinst_provider
from tests.conftest import ARCHES, real_kernel

SEED = int(os.environ.get("KINST_SEED") or random.SystemRandom().randrange(1 << 31))
HOT = 20_000  # functions that a boot calls at least this often are not traced (too slow)


@pytest.fixture(params=ARCHES, scope="module")
def kernel(request):
    return real_kernel(request.param)


@pytest.fixture(scope="module")
def boot(kernel):
    """Boot a machine twice, the second time with probes that count the calls of each function.

    Return the machine, its state, the digest and the console after the boot, and the number of
    calls of each function during the boot.
    """
    machine = UnicornMachine(kernel, 512 << 20)
    machine.boot()
    boots.at_start(machine)
    start = machine.snapshot()
    boots.boot_to_prompt(machine)
    digest, console = machine.digest(), bytes(machine.console.text)
    machine.restore(start)
    breakpoints = Breakpoints(machine, path="direct")
    numbers = fbt.create(breakpoints, "*", "entry")
    breakpoints.enable()
    boots.boot_to_prompt(machine)
    breakpoints.disable()
    assert machine.digest() == digest
    calls = {breakpoints.probe(n).function: breakpoints.dispatcher.probe(n)[4] for n in numbers}
    return machine, start, digest, console, calls


def traced_boot(boot, functions, path):
    """Boot with every instruction of some functions traced; return the number of firings."""
    machine, start, digest, console, _calls = boot
    machine.restore(start)
    breakpoints = Breakpoints(machine, path=path)
    for name in functions:
        try:
            kinst_provider.create(breakpoints, name, "")
        except ProbeError as error:
            assert "no matching instruction can be probed" in str(error)
    breakpoints.enable()
    stop = boots.boot_to_prompt(machine)
    breakpoints.disable()
    assert stop.reason is StopReason.CONSOLE
    assert bytes(machine.console.text) == console, f"KINST_SEED={SEED}"
    assert machine.digest() == digest, f"KINST_SEED={SEED}"
    return breakpoints.dispatcher.firings


@pytest.mark.parametrize("path", PATHS)
def test_tracing_200_executed_functions_does_not_change_the_boot(boot, path):
    calls = boot[4]
    ran = sorted(name for name, count in calls.items() if 0 < count < HOT)
    chosen = random.Random(SEED).sample(ran, 200)
    print(f"KINST_SEED={SEED}")
    assert traced_boot(boot, chosen, path) > 10_000


@pytest.mark.parametrize("path", PATHS)
def test_tracing_500_functions_does_not_change_the_boot(kernel, boot, path):
    exclusions = boot[0].guest.traps.exclusions
    names = sorted({s.name for s in kernel.symbols.functions() if not exclusions.reason(s.name)
                    and boot[4].get(s.name, 0) < HOT})
    print(f"KINST_SEED={SEED}")
    traced_boot(boot, random.Random(SEED).sample(names, 500), path)


def test_the_native_decoder_and_boundaries_match_the_instruction_tables(kernel, boot):
    machine = boot[0]
    breakpoints = Breakpoints(machine)
    machine.restore(boot[1])
    functions = random.Random(SEED).sample(list(kernel.symbols.functions()), 1500)
    for function in functions:
        table = breakpoints.instructions(function)
        code = breakpoints.code(function)
        lengths = breakpoints.dispatcher.lengths(code)
        # The native decoder does not recognize literal data, so compare only the code before it.
        data = literals(breakpoints.trap, code, function.address)
        known = [len(i.code) for i in table if not data or i.offset < data[0][0]]
        assert lengths[: len(known)] == known, function.name
        first = fbt.entry(breakpoints.trap, function, table)
        returns = fbt.returns(breakpoints.trap, function, table)
        offset, left, _framed, leaving = breakpoints.boundaries(function)
        assert leaving == [i.offset for i in fbt.leaving(breakpoints.trap, function, table)]
        assert offset == (first.offset if first else -1), function.name
        assert left == [i.offset for i in returns], function.name


def test_disabling_probes_frees_all_their_memory(boot):
    machine = boot[0]
    machine.restore(boot[1])
    before = machine.digest()
    breakpoints = Breakpoints(machine)
    kinst_provider.create(breakpoints, "vm_*", "")
    breakpoints.enable()
    assert breakpoints.dispatcher.slots_used > 1000
    assert machine.digest() != before
    breakpoints.disable()
    assert breakpoints.dispatcher.slots_used == 2  # the first slot and the seam
    assert machine.digest() == before


def test_an_excluded_function_can_be_probed_unsafely_on_the_direct_path(boot):
    machine, start, _digest, console, _calls = boot
    machine.restore(start)
    names = [n for n in ("trap", "do_el1h_sync", "do_trap_supervisor")
             if machine.image.symbols.find(n)]
    with pytest.raises(ProbeError, match="--unsafe"):
        kinst_provider.create(Breakpoints(machine), names[0], "")
    for path in PATHS:
        machine.restore(start)
        breakpoints = Breakpoints(machine, path=path)
        kinst_provider.create(breakpoints, names[0], "", unsafe=True)
        fbt.create(breakpoints, "malloc", "entry")
        breakpoints.enable()
        if path == DIRECT or machine.arch.link is None:  # on amd64, INT3 does not reach trap()
            boots.boot_to_prompt(machine)
            assert bytes(machine.console.text) == console
        else:
            with pytest.raises(ProbeError, match="kernel's own breakpoint handling"):
                boots.boot_to_prompt(machine)
        breakpoints.disable()
