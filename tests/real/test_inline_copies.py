"""Tests that control leaves every inline copy that it enters, with known exceptions."""

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
from tests.real.test_boundaries import LAST, report_only


class Followed:
    """A machine that has booted and run the test program with probes on all inline functions."""

    def __init__(self, arch):
        self.machine = machine = UnicornMachine(with_userland(real_kernel(arch)))
        machine.boot()
        at_start(machine)
        self.breakpoints = breakpoints = Breakpoints(machine, fire=self._ended, path="direct")
        self.dispatcher = breakpoints.dispatcher
        self.functions = {}  # (function, kind of probe) keyed by copy number
        self.probes = {"entry": {}, "return": {}}  # function keyed by probe number
        self.alone = []  # functions with a copy that lacks an entry or return probe
        self.reports = []
        self.gone = Counter()  # inline copies in which threads have ended
        index = debug_index(machine.image)
        for name in index.names():
            if name and index.copies(name):
                for kind in self.probes:
                    self._probe(index, name, kind)
        throw = fbt.create(breakpoints, LAST, "entry")[0]
        self.dispatcher.act_by(None, lambda: None)
        report_only(breakpoints, throw)
        breakpoints.enable()
        boot_to_prompt(machine, LIMIT)
        run_command(machine, "check", LIMIT)

    def _probe(self, index, name, kind):
        try:
            created = inline.create(self.breakpoints, index, name, kind, whole=False)
        except ProbeError as error:
            self.reports.append(str(error))
            return
        self.reports += created.reports
        for number in created.numbers:
            followed = self.dispatcher.copy_of(number)
            if followed is not None:
                self.probes[kind][number] = name
                self.functions[followed[0]] = name, kind
            else:
                self.alone.append(name)

    def _ended(self, _probe, _state):
        self.gone.update(self._inside(lambda thread: thread == thread_of(self.machine)))

    def _inside(self, chosen):
        """Return (function, probe kind) for each inline copy that a chosen thread has entered."""
        return [self.functions[copy] for thread, copy in self.dispatcher.copies_entered()
                if copy in self.functions and chosen(thread)]

    def counted(self, kind):
        """Count the entries or the returns of each function's inline copies."""
        counts = Counter()
        for number, name in self.probes[kind].items():
            counts[name] += self.dispatcher.probe(number)[4]
        return counts

    def inside(self):
        """Count the inline copies that live threads execute or in which a thread has ended."""
        alive = {thread.address for thread in Threads(self.machine).all()}
        return Counter(self._inside(lambda thread: thread in alive)) + self.gone


@pytest.fixture(params=ARCHES, scope="module")
def followed(request):
    return Followed(request.param)


def test_every_entered_copy_is_left_unless_a_thread_is_inside_or_ended_there(followed):
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


def test_a_copy_with_an_end_that_has_no_probe_is_reported(followed):
    assert followed.alone
    for name in set(followed.alone):
        assert any(f":{name}:return: " in report for report in followed.reports), name


def test_copies_have_many_entry_and_return_probes(followed):
    """The other tests of inline copies are meaningful only with many probes."""
    kinds = Counter(followed.dispatcher.probe(number)[3] for number in followed.probes["entry"])
    assert ProbeKind.ENTRY not in kinds
    assert len(followed.probes["return"]) > len(followed.probes["entry"]) > 10_000
