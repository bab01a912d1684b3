"""Tests that FreeBSD GENERIC kernels boot and run calls, and that tracing changes neither."""

import json
import os
import random
import subprocess
import sys

import pytest

from dtrace.calls.calls import Evaluation, check, parse
from emu.machine.call import Caller, CallError
from emu.machine.machine import StopReason, Until
from emu.unicorn import snapshot
from emu.unicorn.machine import UnicornMachine
from images import boots
from kinst.probes.breakpoints import Breakpoints
from kinst.providers import fbt
from kinst.providers.kinst_provider import create
from tests.conftest import ARCHES, real_kernel
from tests.kinst.providers.test_provider import executed, fired


@pytest.fixture(params=ARCHES, scope="module")
def kernel(request):
    return real_kernel(request.param)


@pytest.fixture
def machine(kernel):
    return boots.booted(kernel)


def kinst(*words, **environment):
    return subprocess.run([sys.executable, "-m", "kinst_emu.commands.kinst", *words],
                          capture_output=True, text=True, env=os.environ | environment,
                          check=False)


def evaluate(machine, text):
    program = parse(text)
    check(machine.image, program)
    return Evaluation(Caller(machine)).run(program)


def test_a_kernel_boots_to_the_mountroot_prompt_and_lists_devices(kernel):
    result = kinst("boot", "-k", str(kernel.path), "--type", r"?\r")
    assert result.returncode == 0, result.stderr
    assert "mountroot> ?" in result.stdout
    assert "List of GEOM managed disk devices:" in result.stdout
    assert "wall seconds" in result.stdout.splitlines()[-1]


def test_two_boots_in_two_processes_are_equal(kernel):
    digests = {
        json.loads(kinst("boot", "-k", str(kernel.path), "--digest", "--json", TZ=zone).stdout)
        ["digest"]
        for zone in ("UTC", "Pacific/Auckland")
    }
    assert len(digests) == 1


def test_a_snapshot_is_small_and_the_restored_machine_runs_the_same(machine, tmp_path):
    path = tmp_path / "s.kinst"
    snapshot.save(machine, path)
    assert path.stat().st_size < 48 << 20
    other = snapshot.restore(path, machine.image)
    ends = []
    for one in (machine, other):
        one.type(b"?\r")
        assert one.run(Until(console="mountroot> ")).reason is StopReason.CONSOLE
        ends.append(one.digest())
    assert ends[0] == ends[1]


CALLS = [
    ('strlen("hello")', 5),
    ('memcmp("abc", "abc", 3)', 0),
    ('strtoul("1234zz", 0, 10)', 1234),
    ('crc32(0, "hello", 5)', 0x3610A686),
    ('strcmp("a", "a")', 0),
    ('snprintf(buf(64), 64, "%d-%s", 42, "xyz")', 6),
    ('m = buf(64); _mtx_init(m+24, "x", 0, 0); __mtx_lock_flags(m+24, 0, "f", 1); '
     '__mtx_unlock_flags(m+24, 0, "f", 2); memcmp(m+24, buf(8), 8)', 0),  # compare with MTX_UNOWNED
    ('p = malloc(100, &M_TEMP, 0x102); memcmp(p, buf(100), 100)', 0),
    ('free(malloc(5000, &M_TEMP, 2), &M_TEMP); strlen(buf(100000))', 0),
]


@pytest.mark.parametrize("text, value", CALLS, ids=lambda v: str(v)[:30])
def test_calls_return_the_correct_values(machine, text, value):
    assert evaluate(machine, text) & 0xFFFFFFFF == value


def test_a_call_on_an_unbooted_machine_returns_the_correct_value(kernel):
    assert evaluate(boots.unbooted(kernel), 'strlen("hello")') == 5


def test_a_fault_panics_the_guest_through_its_own_handlers(machine):
    with pytest.raises(CallError, match="strlen panicked") as error:
        evaluate(machine, "strlen(0)")
    assert b"panic:" in error.value.console or b"Fatal trap" in error.value.console


TRACED = [
    ("strlen", 'strlen("hello, world")'), ("memcmp", 'memcmp("abcdefghij", "abcdefghik", 10)'),
    ("strtoul", 'strtoul(" -0x1fz", 0, 0)'), ("strcmp", 'strcmp("abc", "abd")'),
    ("snprintf", 'snprintf(buf(64), 64, "%d", 42)'),
    ("kvprintf", 'snprintf(buf(64), 64, "%5d|%s|%lx", 42, "xyz", -1)'),
    ("malloc", "malloc(100, &M_TEMP, 2)"), ("free", "free(malloc(100, &M_TEMP, 2), &M_TEMP)"),
    ("crc32", 'crc32(0, "hello", 5)'), ("qsort", 'qsort("dcba", 4, 1, &strcmp)'),
]


@pytest.mark.parametrize("function, text", TRACED, ids=lambda v: v[:12])
def test_tracing_every_instruction_changes_nothing(machine, function, text):
    plain = machine.snapshot()
    value = evaluate(machine, text)
    untraced = machine.digest()
    machine.restore(plain)
    fired = []
    provider = Breakpoints(machine, lambda probe, state: fired.append(probe.id))
    create(provider, function, "")
    provider.enable()
    assert evaluate(machine, text) == value
    provider.disable()
    assert fired
    assert machine.digest() == untraced


# These functions also run in other threads and interrupts, whose stacks contain old trap frames.
ELSEWHERE = ["spinlock_enter", "spinlock_exit", "sched_switch", "callout_process", "tc_windup",
             "sleepq_add", "critical_exit_preempt", "mi_switch"]


@pytest.mark.parametrize("function", ELSEWHERE)
def test_probes_in_the_scheduler_change_neither_clock_nor_registers(machine, function):
    text = 'pause_sbt("x", 50000000, 0, 0)'
    plain = machine.snapshot()
    value = evaluate(machine, text)
    untraced = machine.digest()
    machine.restore(plain)
    order = []
    provider = Breakpoints(machine, lambda probe, state: order.append(probe.id))
    create(provider, function, "")
    provider.enable()
    assert evaluate(machine, text) == value
    provider.disable()
    assert order
    assert machine.digest() == untraced


@pytest.mark.parametrize("function", ["malloc", "kvprintf", "snprintf", "strlen", "uma_zalloc_arg"])
def test_entry_and_return_probes_balance_and_change_nothing(machine, function):
    text = 'p = malloc(100, &M_TEMP, 2); snprintf(p, 50, "%s %d", "x", 42); strlen(p)'
    plain = machine.snapshot()
    value = evaluate(machine, text)
    untraced = machine.digest()
    machine.restore(plain)
    names = []
    breakpoints = Breakpoints(machine, lambda probe, state: names.append(probe.name))
    fbt.create(breakpoints, function, "")
    breakpoints.enable()
    assert evaluate(machine, text) == value
    breakpoints.disable()
    assert names.count("entry") == names.count("return") > 0
    assert machine.digest() == untraced


def test_a_boot_in_pieces_and_from_snapshots_ends_like_an_uncut_boot(kernel, tmp_path):
    uncut = UnicornMachine(kernel, 256 << 20)
    uncut.boot()
    boots.boot_to_prompt(uncut)
    pieces = UnicornMachine(kernel, 256 << 20)
    pieces.boot()
    generator = random.Random(15)
    for point in sorted(generator.randrange(1, uncut.instructions) for _ in range(4)):
        assert pieces.run(Until(instructions=point)).reason is StopReason.INSTRUCTIONS
        snapshot.save(pieces, tmp_path / "s.kinst")
        pieces = snapshot.restore(tmp_path / "s.kinst", kernel)
    boots.boot_to_prompt(pieces)
    assert pieces.digest() == uncut.digest()


def test_every_executed_instruction_of_strlen_fires_in_order(machine):
    truth = executed(machine, "strlen", lambda: evaluate(machine, 'strlen("hello")'))
    order, probes = fired(machine, "strlen", lambda: evaluate(machine, 'strlen("hello")'))
    assert order == [offset for offset in truth if offset in probes]
    assert len(order) > 10


@pytest.mark.parametrize("memory", [128, 2048])
def test_a_kernel_boots_with_other_memory_sizes(kernel, memory):
    machine = UnicornMachine(kernel, memory << 20)
    machine.boot()
    assert boots.boot_to_prompt(machine).reason is StopReason.CONSOLE
