"""Tests that each function entered in a boot or a program also returns, with known exceptions."""

from collections import Counter

import pytest

from dtrace.stacks.stack import Stacks
from dtrace.stacks.threads import Threads
from emu.machine.running_thread import thread_of
from emu.unicorn.machine import UnicornMachine
from images.boots import LIMIT, at_start, boot_to_prompt
from images.shell import run_command, with_userland
from kinst.probes.breakpoints import Breakpoints
from kinst.probes.kinds import ProbeKind
from kinst.providers import fbt
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import run

DEEP = 200  # maximum number of frames to read from a stack
# An ending thread calls this function, which calls or jumps to cpu_throw and never returns.
LAST = "sched_throw"
# A fault in these functions enters a handler (pcb_onfault) that returns to their caller.
FAULTING = {"copyin_nosmap_std", "copyin", "copycommon"}
# The first function of every thread, in assembly; it enters user mode by an exception return.
FIRST = "fork_trampoline"


@pytest.fixture(params=ARCHES, scope="module")
def traced(request):
    """Boot a machine with probes on all functions, and run the test program.

    The result is a tuple of the machine, the probes, a counter of functions whose frames vanished
    with ended threads, and the stacks.
    """
    image = with_userland(real_kernel(request.param))
    machine = UnicornMachine(image)
    machine.boot()
    at_start(machine)
    ended, stacks = Counter(), Stacks(machine)

    def fire(_probe, state):
        ended.update(on_stack(machine, stacks.addresses(state.get, DEEP)))

    counted = Breakpoints(machine, fire=fire, path="direct")
    numbers = fbt.create(counted, "*", "")
    throw = next(n for n in numbers if counted.names(n)[2:] == (LAST, "entry"))
    counted.dispatcher.act_by(None, lambda: None)
    report_only(counted, throw)
    counted.enable()
    boot_to_prompt(machine, LIMIT)
    run_command(machine, "check", LIMIT)
    return machine, counted, ended, stacks


def report_only(breakpoints, number):
    """Call the Python callback for one probe only; the firings of all probes are still counted."""
    fire = breakpoints._fire

    def filtered(fired):
        if fired == number:
            fire(fired)

    breakpoints._fire = filtered


def on_stack(machine, addresses):
    """Yield the names of the functions at the addresses of a stack."""
    symbols = machine.image.symbols
    for pc, is_return in addresses:
        function = symbols.function_at(pc - is_return)
        if function is not None:
            yield function.name


def balance(breakpoints):
    """Return two counters: the entries and the returns of each function."""
    entries, returns = Counter(), Counter()
    for number in range(len(breakpoints.dispatcher)):
        _at, _code, function, kind, count, _removed = breakpoints.dispatcher.probe(number)
        (entries if kind == ProbeKind.ENTRY else returns)[breakpoints.functions[function]] += count
    return entries, returns


def standing(machine, stacks):
    """Count each function's frames on the stacks of all threads, including the current thread."""
    counts = Counter(on_stack(machine, stacks.addresses(machine.read_register, DEEP)))
    threads = Threads(machine)
    running = thread_of(machine)
    for thread in threads.all():
        saved = threads.saved(thread)
        if thread.address != running and saved:
            counts.update(on_stack(machine, stacks.addresses(
                lambda name, saved=saved: saved.get(name, 0), DEEP)))
    return counts


def left_by_tail(breakpoints):
    """For each function, count the tail calls whose callees have not returned yet."""
    dispatcher = breakpoints.dispatcher
    return Counter(breakpoints.functions[dispatcher.probe(number)[2]].name
                   for _thread, number in dispatcher.pending_returns())


def test_every_entered_function_returns_unless_it_is_on_a_stack_or_its_thread_ended(
        traced):
    machine, breakpoints, ended, stacks = traced
    entries, returns = balance(breakpoints)
    frames = standing(machine, stacks) + left_by_tail(breakpoints)
    assert sum(1 for count in entries.values() if count) > 3000
    wrong, faulted = {}, 0
    for function in entries | returns:
        excess, name = entries[function] - returns[function], function.name
        if excess == frames[name] + ended[name] or name in (FIRST, LAST):
            continue
        if name in FAULTING and excess > 0:
            faulted += excess
        elif breakpoints.boundaries(function)[0] >= 0:
            wrong[name] = entries[function], returns[function], frames[name], ended[name]
    assert not wrong
    assert 0 < faulted < 10, "faults at addresses that the test program passes on purpose"


def test_functions_without_an_entry_or_return_site_are_listed(traced):
    machine, breakpoints, _ended, _stacks = traced
    listed = breakpoints.left_out
    for function in machine.image.symbols.functions():
        if machine.guest.traps.exclusions.reason(function.name):
            continue
        first, left, _framed, leaving = breakpoints.boundaries(function)
        named = [listed.get(function.name, "")]
        assert (first >= 0 or any("no entry" in reason for reason in named)) and (
            left or leaving or any("no return probe" in reason for reason in named)), function.name


CALLERS = """
fbt:::entry { @callers[probefunc, caller] = sum(1); @all[probefunc] = sum(1); }
fbt:::return { @callers[probefunc, caller] = sum(-1); @all[probefunc] = sum(-1); }
END { printa("caller %s %a %@d\\n", @callers); printa("all %s %@d\\n", @all); }
"""


@pytest.mark.parametrize("workload", ["boot", "$ check"])
@pytest.mark.parametrize("arch", ARCHES)
def test_a_function_returns_to_the_callers_that_entered_it(arch, workload, tmp_path):
    kernel, script = real_kernel(arch), tmp_path / "callers.d"
    script.write_text(CALLERS)
    traced = run("kdtrace", "-k", str(kernel.path), "-x", "aggsize=64m", "-qs", str(script),
                 "-c", workload)
    assert traced.returncode == 0, traced.stderr
    lines = [line.split() for line in traced.stdout.splitlines()]
    excess = {line[1]: int(line[2]) for line in lines if line[:1] == ["all"]}
    assert len(excess) > 1500
    wrong = {}
    for line in lines:
        if line[:1] == ["caller"]:
            function, caller, count = line[1], line[2], int(line[3])
            if count and (excess[function] == 0 or (count < 0) != (excess[function] < 0)):
                wrong[function, caller] = count
    assert not wrong
    for function in (function for function, count in excess.items() if count < 0):
        listed = run("kdtrace", "-k", str(kernel.path), "-l", "-n", f"fbt::{function}:entry")
        assert listed.returncode == 1 and "can carry this probe" in listed.stderr
