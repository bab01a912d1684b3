"""Tests that interruptions at 2,000 random points do not change runs of GENERIC kernels.

$KINST_SEED repeats the choices of a failed run, which prints its seed.
"""

import os
import random

import pytest

from dtrace.calls.calls import Evaluation, check, parse
from emu.machine.call import Caller
from emu.machine.machine import Until
from emu.unicorn import snapshot
from emu.unicorn.engine_probe import context_bytes
from emu.unicorn.machine import UnicornMachine
from images import boots
from tests.conftest import ARCHES, real_kernel
from tests.cutting import Cutting
from tests.emu.unicorn.test_cpu_state import differences

SEED = int(os.environ.get("KINST_SEED") or random.SystemRandom().randrange(1 << 31))
CUTS = 2000
CALLS = [
    'strlen("hello")', 'memcmp("abc", "abd", 3)', 'strtoul("1234zz", 0, 10)',
    'crc32(0, "hello", 5)', 'strcmp("a", "a")', 'snprintf(buf(64), 64, "%d-%s", 42, "xyz")',
    'm = buf(64); _mtx_init(m+24, "x", 0, 0); __mtx_lock_flags(m+24, 0, "f", 1); '
    '__mtx_unlock_flags(m+24, 0, "f", 2)',
    'p = malloc(100, &M_TEMP, 0x102); free(p, &M_TEMP)',
    'free(malloc(5000, &M_TEMP, 2), &M_TEMP)', 'strlen(buf(100000))', 'strncmp("ab", "ac", 2)',
    'strdup("copied", &M_TEMP)', 'memset(buf(4096), 7, 4096)',
    'memmove(buf(3000), buf(3000), 3000)',
    'strchr("hello", 108)', 'strrchr("hello", 108)', 'strtol("-77", 0, 10)',
    'snprintf(buf(256), 256, "%s %x %lu", "a", 255, 1)', 'malloc(70000, &M_TEMP, 0x102)',
    'random()',
]


@pytest.fixture(params=ARCHES, scope="module")
def kernel(request):
    return real_kernel(request.param)


def cutting(machine, every, directory, start=0):
    functions = [f for f in machine.image.symbols.functions() if f.size > 8]
    print(f"KINST_SEED={SEED}")
    choice = random.Random(SEED).sample(functions, 300)
    # Add functions that are sure to run.
    choice += [machine.symbol(name) for name in ("strlen", "malloc", "strcmp", "uma_zalloc_arg")]
    return Cutting(machine, SEED, every, choice, directory, start=start)


def fresh(kernel):
    machine = UnicornMachine(kernel, 512 << 20)
    machine.boot()
    return machine


def test_a_boot_cut_at_2000_points_ends_like_an_uncut_boot(kernel, tmp_path):
    machine = fresh(kernel)
    boots.at_start(machine)
    start = machine.instructions
    boots.boot_to_prompt(machine)
    end, digest = machine.instructions, machine.digest()
    cut = cutting(fresh(kernel), end // (CUTS + 200), tmp_path, start)
    cut.run(Until(instructions=end))
    print(cut.cuts)
    assert cut.machine.digest() == digest
    assert sum(cut.cuts.values()) >= CUTS * 0.8 and all(cut.cuts.values())


def test_twenty_calls_cut_at_2000_points_end_like_uncut_calls(kernel, tmp_path):
    assert len(CALLS) == 20
    machine = boots.booted(kernel)
    plain = machine.snapshot()
    begin = machine.instructions
    values = [evaluate(machine, text) for text in CALLS]
    length, digest = machine.instructions - begin, machine.digest()
    machine.restore(plain)
    cut = cutting(machine, max(1, length // (CUTS + 200)), tmp_path)
    assert [evaluate(cut, text) for text in CALLS] == values
    print(cut.cuts)
    assert cut.machine.digest() == digest
    assert sum(cut.cuts.values()) >= CUTS / 2


def evaluate(machine, text):
    program = parse(text)
    check(machine.image, program)
    return Evaluation(Caller(machine)).run(program)


@pytest.mark.parametrize("share", [0.3, 0.6, 1])
def test_a_restored_machine_has_the_raw_context_of_one_that_ran_on(
    kernel, tmp_path, share
):
    machine = fresh(kernel)
    boots.boot_to_prompt(machine)
    end = machine.instructions
    machine = fresh(kernel)
    machine.run(Until(instructions=int(end * share)))
    snapshot.save(machine, tmp_path / "s")
    other = snapshot.restore(tmp_path / "s", kernel)
    arch = machine.arch.name
    assert differences(arch, context_bytes(machine.uc), context_bytes(other.uc)) == []
    for one in (machine, other):
        one.run(Until(instructions=one.instructions + 1_000_000))
    assert differences(arch, context_bytes(machine.uc), context_bytes(other.uc)) == []
    assert machine.digest() == other.digest()
