"""Over a boot and a program every function that is entered is left; and what is not is known."""

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

DEEP = 200  # frames
# A thread that ends calls it, with all its frames; it calls cpu_throw, or jumps there.
LAST = "sched_throw"
# A fault in them goes on in another function (pcb_onfault), which returns to their caller.
FAULTING = {"copyin_nosmap_std", "copyin", "copycommon"}
FIRST = "fork_trampoline"  # of each thread; assembly, which returns to programs by an exception


@pytest.fixture(params=ARCHES, scope="module")
def traced(request):
    """A machine that has booted and run our test program, its probes, and the functions whose
    frames have gone with the threads that ended."""
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
    only_told(counted, throw)
    counted.enable()
    boot_to_prompt(machine, LIMIT)
    run_command(machine, "check", LIMIT)
    return machine, counted, ended, stacks


def only_told(breakpoints, number):
    """Count all, and tell Python of one probe alone."""
    fire = breakpoints._fire

    def told(fired):
        if fired == number:
            fire(fired)

    breakpoints._fire = told


def on_stack(machine, addresses):
    """The names of the functions whose frames these are."""
    symbols = machine.image.symbols
    for pc, is_return in addresses:
        function = symbols.function_at(pc - is_return)
        if function is not None:
            yield function.name


def balance(breakpoints):
    """For each function, its entries and its returns."""
    entries, returns = Counter(), Counter()
    for number in range(len(breakpoints.dispatcher)):
        _at, _code, function, kind, count, _removed = breakpoints.dispatcher.probe(number)
        (entries if kind == ProbeKind.ENTRY else returns)[breakpoints.functions[function]] += count
    return entries, returns


def standing(machine, stacks):
    """The functions whose frames are on the stacks of threads, the running one's, too."""
    found = Counter(on_stack(machine, stacks.addresses(machine.read_register, DEEP)))
    threads = Threads(machine)
    running = thread_of(machine)
    for thread in threads.all():
        saved = threads.saved(thread)
        if thread.address != running and saved:
            found.update(on_stack(machine, stacks.addresses(
                lambda name, saved=saved: saved.get(name, 0), DEEP)))
    return found


def left_by_tail(breakpoints):
    """The functions that wait for the function that they jumped to: they have no frame any more."""
    dispatcher = breakpoints.dispatcher
    return Counter(breakpoints.functions[dispatcher.probe(number)[2]].name
                   for _thread, number in dispatcher.pending_returns())


def test_every_function_that_is_entered_is_left_but_where_its_frame_stands_or_its_thread_ended(
        traced):
    machine, breakpoints, ended, stacks = traced
    entries, returns = balance(breakpoints)
    frames = standing(machine, stacks) + left_by_tail(breakpoints)
    assert sum(1 for count in entries.values() if count) > 3000
    wrong, faulted = {}, 0
    for function in entries | returns:
        more, name = entries[function] - returns[function], function.name
        if more == frames[name] + ended[name] or name in (FIRST, LAST):
            continue
        if name in FAULTING and more > 0:
            faulted += more
        elif breakpoints.boundaries(function)[0] >= 0:
            wrong[name] = entries[function], returns[function], frames[name], ended[name]
    assert not wrong
    assert 0 < faulted < 10, "addresses that the test program knows to be bad"


def test_what_has_no_place_for_an_entry_or_a_return_is_listed(traced):
    machine, breakpoints, _ended, _stacks = traced
    listed = breakpoints.left_out
    for function in machine.image.symbols.functions():
        if machine.guest.traps.exclusions.reason(function.name):
            continue
        first, left, _framed, leaving = breakpoints.boundaries(function)
        named = [listed.get(function.name, "")]
        assert (first >= 0 or any("no entry" in one for one in named)) and (
            left or leaving or any("never returns" in one for one in named)), function.name


CALLERS = """
fbt:::entry { @callers[probefunc, caller] = sum(1); @all[probefunc] = sum(1); }
fbt:::return { @callers[probefunc, caller] = sum(-1); @all[probefunc] = sum(-1); }
END { printa("caller %s %a %@d\\n", @callers); printa("all %s %@d\\n", @all); }
"""


@pytest.mark.parametrize("workload", ["boot", "$ check"])
@pytest.mark.parametrize("arch", ARCHES)
def test_a_function_returns_to_the_callers_that_have_entered_it(arch, workload, tmp_path):
    kernel, script = real_kernel(arch), tmp_path / "callers.d"
    script.write_text(CALLERS)
    traced = run("kdtrace", "-k", str(kernel.path), "-x", "aggsize=64m", "-qs", str(script),
                 "-c", workload)
    assert traced.returncode == 0, traced.stderr
    lines = [line.split() for line in traced.stdout.splitlines()]
    more = {line[1]: int(line[2]) for line in lines if line[:1] == ["all"]}
    assert len(more) > 1500
    wrong = {}
    for line in lines:
        if line[:1] == ["caller"]:
            function, caller, count = line[1], line[2], int(line[3])
            if count and (more[function] == 0 or (count < 0) != (more[function] < 0)):
                wrong[function, caller] = count
    assert not wrong
    for function in (function for function, count in more.items() if count < 0):
        listed = run("kdtrace", "-k", str(kernel.path), "-l", "-n", f"fbt::{function}:entry")
        assert listed.returncode == 1 and "has an instruction for this probe" in listed.stderr
