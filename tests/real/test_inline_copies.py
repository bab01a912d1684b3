"""Over a boot and a program, every inline copy that is entered is left; what is not is known."""

from collections import Counter

import pytest

from dtrace.debug.debug_index import debug_index
from dtrace.stacks.threads import Threads
from emu.machine.running_thread import thread_of
from emu.unicorn.machine import UnicornMachine
from images.boots import LIMIT, at_start, boot_to_prompt
from images.shell import run_command, with_userland
from kinst.probes.breakpoints import Breakpoints
from kinst.probes.kinds import ProbeKind
from kinst.probes.probed_code import ProbeError
from kinst.providers import fbt, inline
from tests.conftest import ARCHES, real_kernel
from tests.real.test_boundaries import LAST, only_told


class Followed:
    """A machine with probes on all inline functions, that has booted and run our test program."""

    def __init__(self, arch):
        self.machine = machine = UnicornMachine(with_userland(real_kernel(arch)))
        machine.boot()
        at_start(machine)
        self.breakpoints = breakpoints = Breakpoints(machine, fire=self._ended, path="direct")
        self.dispatcher = breakpoints.dispatcher
        self.functions = {}  # a copy's number: (function, kind of probe)
        self.probes = {"entry": {}, "return": {}}  # a probe's number: function
        self.alone = []  # functions of copies of which an end has no probe
        self.reports = []
        self.gone = Counter()  # copies that threads were in which have ended
        index = debug_index(machine.image)
        for name in index.names():
            if name and index.copies(name):
                for kind in self.probes:
                    self._probe(index, name, kind)
        throw = fbt.create(breakpoints, LAST, "entry")[0]
        self.dispatcher.act_by(None, lambda: None)
        only_told(breakpoints, throw)
        breakpoints.enable()
        boot_to_prompt(machine, LIMIT)
        run_command(machine, "check", LIMIT)

    def _probe(self, index, name, kind):
        try:
            made = inline.create(self.breakpoints, index, name, kind, whole=False)
        except ProbeError as error:
            self.reports.append(str(error))
            return
        self.reports += made.reports
        for number in made.numbers:
            followed = self.dispatcher.copy_of(number)
            if followed is not None:
                self.probes[kind][number] = name
                self.functions[followed[0]] = name, kind
            else:
                self.alone.append(name)

    def _ended(self, _probe, _state):
        self.gone.update(self._inside(lambda thread: thread == thread_of(self.machine)))

    def _inside(self, chosen):
        """(function, kind) for each copy that one of the threads is in."""
        return [self.functions[copy] for thread, copy in self.dispatcher.copies_entered()
                if copy in self.functions and chosen(thread)]

    def counted(self, kind):
        """How often the copies of each function were entered, or left."""
        found = Counter()
        for number, name in self.probes[kind].items():
            found[name] += self.dispatcher.probe(number)[4]
        return found

    def inside(self):
        """The copies in which threads stand, or stood when they ended."""
        alive = {thread.address for thread in Threads(self.machine).all()}
        return Counter(self._inside(lambda thread: thread in alive)) + self.gone


@pytest.fixture(params=ARCHES, scope="module")
def followed(request):
    return Followed(request.param)


def test_every_copy_that_is_entered_is_left_but_where_a_thread_is_inside_or_has_ended(followed):
    entered, left = followed.counted("entry"), followed.counted("return")
    inside = followed.inside()
    probed = set(followed.probes["entry"].values()) & set(followed.probes["return"].values())
    assert sum(1 for name in probed if entered[name]) > 1000
    unequal = {name: (entered[name], left[name]) for name in probed if entered[name] != left[name]}
    for name, (more, fewer) in sorted(unequal.items()):
        print(f"{name}: entered {more} times, left {fewer}")
    assert not {name: counts for name, counts in unequal.items()
                if counts[0] - counts[1] != inside[name, "entry"]}
    assert len(unequal) < 15


def test_a_copy_that_is_entered_and_has_an_end_without_a_probe_is_reported(followed):
    assert followed.alone
    for name in set(followed.alone):
        assert any(f":{name}:return: " in one for one in followed.reports), name


def test_kinds_of_probes_are_entries_and_returns_of_the_functions_named(followed):
    """The test above would hold of no probes at all."""
    kinds = Counter(followed.dispatcher.probe(number)[3] for number in followed.probes["entry"])
    assert ProbeKind.ENTRY not in kinds
    assert len(followed.probes["return"]) > len(followed.probes["entry"]) > 10_000
