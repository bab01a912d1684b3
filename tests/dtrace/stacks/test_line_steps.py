"""Tests of steps by lines and functions, held to a search through every single instruction."""

import random

import pytest

import kinst_emu
from dtrace.stacks.line_steps import UNKNOWN, LineSteps, _leaves
from dtrace.stacks.source_frames import SourceFrames
from emu.gdb.target import LiveTarget, PlayedTarget, Why
from emu.host.errors import KinstError

CALLS = (("classify", 3, 7), ("classify", 6, 7), ("classify", 6, 8), ("classify", 4, 6),
         ("refund", 999_999), ("collatz", 6))
TEACHING = ("amd64", "arm64", "riscv64")
NEVER = lambda: False  # noqa: E731


class Trace:
    """Every position of a recording, with its activation and its place in the source."""

    def __init__(self, path):
        self.recording = kinst_emu.Recording(path)
        machine = self.recording.machine.emulated
        self.frames = SourceFrames(machine)
        self.steps = LineSteps(PlayedTarget(self.recording.player), self.frames)
        self.first = self.recording.start.instructions
        self.rows = []
        self.recording.go(self.first)  # the recorded call is applied there
        while self.recording.position.instructions < self.recording.end.instructions:
            self.rows.append((self.steps.mark(machine.pc), self.steps._activation(), machine.pc,
                              machine.sp))
            self.recording.step()
        self.last = len(self.rows)

    def go(self, index):
        self.recording.go(self.first + index)

    @property
    def index(self):
        return self.recording.position.instructions - self.first

    def next(self, index):
        """Return where the next line of the function begins."""
        here, activation, _pc, _sp = self.rows[index]
        for at in range(index + 1, self.last):
            mark, active, pc, sp = self.rows[at]
            if (pc, sp) == (activation.back, activation.sp) or (
                    active == activation and _leaves(mark, here)):
                return at
        return self.last

    def step(self, index):
        """Return where the next line begins, in any function."""
        return next((at for at in range(index + 1, self.last) if self.rows[at][0].line != UNKNOWN
                     and self.rows[at][0] != self.rows[index][0]), self.last)

    def back_next(self, index):
        """Return where the current or previous line of the function begins."""
        here, activation, pc, _sp = self.rows[index]
        entry = self.steps._entry(pc)
        if pc == entry:
            return max(0, index - 1)
        visit = None
        for at in range(index - 1, -1, -1):
            mark, active, pc, _sp = self.rows[at]
            own = mark.line != UNKNOWN and (mark.copies == here.copies or _leaves(mark, here))
            if active == activation and (own or pc == entry):
                if visit is not None and mark != self.rows[visit][0]:
                    return visit
                visit = at
            if active == activation and pc == entry:
                return visit
        return 0 if visit is None else visit

    def back_step(self, index):
        """Return where the current or previous line begins, in any function."""
        before = [at for at in range(index) if self.rows[at][0].line != UNKNOWN]
        if not before:
            return 0
        at = before[-1]
        while at and self.rows[at - 1][0] == self.rows[before[-1]][0]:
            at -= 1
        return at


@pytest.fixture(scope="module", params=[(arch, *call) for arch in TEACHING for call in CALLS],
                ids=lambda given: f"{given[0]}-{given[1]}-{given[2]}")
def trace(request, tmp_path_factory):
    arch, *call = request.param
    path = tmp_path_factory.mktemp("steps") / "call.rec"
    machine = kinst_emu.open(f"teaching/{arch}").boot("64M")
    with machine.record(path):
        machine.call(*call)
    return Trace(path)


@pytest.mark.parametrize("verb", ["next", "step", "back_next", "back_step"])
def test_a_step_goes_where_a_search_through_every_instruction_goes(trace, verb):
    rng = random.Random(5)
    wanted = getattr(trace, verb)
    counted = 0
    for index in rng.sample(range(trace.last), min(40, trace.last)):
        trace.go(index)
        if trace.rows[index][1] is None:  # the kernel's entry: its caller is unknown
            continue
        getattr(trace.steps, verb)(NEVER)
        assert trace.index == wanted(index), (verb, index, trace.rows[index])
        counted += 1
    assert counted > 5


def test_finish_goes_to_the_caller_and_back_to_the_call(trace):
    rng = random.Random(6)
    for index in rng.sample(range(trace.last), min(25, trace.last)):
        trace.go(index)
        stack = trace.frames.physical(trace.recording.machine.emulated.read_register)
        frame = trace.frames.all(stack)[0]
        _mark, activation, _pc, _sp = trace.rows[index]
        if activation is None:
            continue
        trace.steps.finish(frame, NEVER)
        if frame.inlined:
            number = frame.copy.number
            left = next((at for at in range(index + 1, trace.last)
                         if (trace.rows[at][1] == activation
                         and trace.rows[at][0].copies[-1] == trace.rows[index][0].copies[-1]
                         and number not in trace.rows[at][0].copies)
                         or trace.rows[at][2:] == (activation.back, activation.sp)), trace.last)
        else:
            left = next((at for at in range(index + 1, trace.last)
                         if trace.rows[at][2:] == (activation.back, activation.sp)), trace.last)
        assert trace.index == left
        trace.go(index)
        trace.steps.back_finish(frame, NEVER)
        if not frame.inlined:
            entry = trace.steps._entry(trace.rows[index][2])
            begin = max((at for at in range(index + 1) if trace.rows[at][2] == entry
                        and trace.rows[at][1] == activation), default=None)
            assert begin is not None, (index, trace.rows[index], entry)
            assert trace.index == max(0, begin - 1)
        else:
            assert frame.copy.number not in trace.rows[trace.index][0].copies
            assert all(frame.copy.number in trace.rows[at][0].copies
                       for at in range(trace.index + 1, index + 1)
                       if trace.rows[at][1] == activation)


def test_a_live_machine_goes_forward_but_not_back(arch):
    machine = kinst_emu.open(f"teaching/{arch}").boot("64M").emulated
    steps = LineSteps(LiveTarget(machine), SourceFrames(machine))
    before = machine.instructions
    assert steps.next(NEVER).why is Why.BREAKPOINT and machine.instructions > before
    assert steps.step(NEVER).why is Why.STEP
    for back in (steps.back_next, steps.back_step):
        with pytest.raises(KinstError, match="only a recording can be walked backward"):
            back(NEVER)


def test_a_step_ends_when_poll_asks_it_to(arch):
    machine = kinst_emu.open(f"teaching/{arch}").boot("64M").emulated
    frames = SourceFrames(machine)
    steps = LineSteps(LiveTarget(machine), frames)
    frame = frames.all(frames.physical(machine.read_register))[0]
    before = machine.instructions
    # The kernel waits for input, so its function never returns.
    assert steps.finish(frame, lambda: True).why is Why.INTERRUPTED
    assert machine.instructions < before + 10_000_000
