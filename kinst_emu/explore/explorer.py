"""Tries the orders of a few runs, and says which of them go wrong."""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dtrace.calls.prototypes import plain
from dtrace.debug.debug_index import debug_index
from dwarf.debug_file import DebugDataError
from dwarf.types import Pointer, Void, strip
from emu.host.errors import KinstError
from emu.machine.machine import StopReason
from emu.unicorn.machine import UnicornMachine
from kinst.verify.sweep.task import Task, hold
from kinst.verify.sweep.workers import Workers, workers
from kinst_emu.explore.accesses import RunAccesses, of_serial
from kinst_emu.explore.order import Order, OrderTurn, order_text
from kinst_emu.explore.races import MAX_RACES, DataRace, data_races
from kinst_emu.explore.stage import Played, Stage
from kinst_emu.explore.strategies import (
    STRATEGIES,
    Preemptions,
    priority_orders,
    random_orders,
    serial_orders,
)
from kinst_emu.explore.threads import StartedRun
from kinst_emu.explore.waiting import all_wait, nobody_goes_on, waits

PANIC, FAULT, DEADLOCK, LIVELOCK, RESULT, CHECK, RACE = (
    "panic", "fault", "deadlock", "livelock", "result", "check", "data race")
NOTHING = "-"  # in place of what is given by a function that gives nothing
KINDS = (PANIC, FAULT, DEADLOCK, LIVELOCK, RESULT, CHECK, RACE)
# Where a run did not come to its end: what that is taken for.
ENDS = {
    StopReason.PANIC: PANIC, StopReason.UNHANDLED: FAULT, StopReason.RESET: FAULT,
    StopReason.POWER_OFF: FAULT, StopReason.TIME: DEADLOCK, StopReason.HALT: DEADLOCK,
    StopReason.INSTRUCTIONS: LIVELOCK, StopReason.PATIENCE: LIVELOCK,
    StopReason.OUTPUT: LIVELOCK,
}

MOST_PREEMPTIONS, MOST_ORDERS, MOST_JOBS = 8, 100_000_000, 64
FACTOR, LEAST_LIMIT = 40, 20_000_000  # how much longer than a serial order one may take

Judge = Callable[[Played], str | None]
Wrong = list[tuple[str, str]]  # of an order: what kinds of wrong it is, and what is said of each
Judged = tuple[Order, Wrong]
CHUNK = 32  # orders that a worker is asked at once


@dataclass(frozen=True)
class Finding:
    """:param kind: one of KINDS.
    :param said: what is wrong, in a line.
    :param preemptions: that the order needs.
    """

    kind: str
    said: str
    order: Order
    preemptions: int
    race: DataRace | None = None

    @property
    def schedule(self) -> str:
        return order_text(self.order)


@dataclass(frozen=True)
class Search:
    """:param strategy: one of STRATEGIES.
    :param limit: orders that are tried at the most.
    :param races: whether data races are looked for.
    :param all_findings: go on behind the first.
    :param jobs: processes that try orders.
    :raises KinstError: for what cannot be asked.
    """

    strategy: str = "all"
    preemptions: int = 2
    limit: int = 100_000
    seed: int = 1
    races: bool = True
    all_findings: bool = False
    jobs: int = 1

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise KinstError(f"strategy '{self.strategy}': give one of {', '.join(STRATEGIES)}")
        for name, value, most in (("preemptions", self.preemptions, MOST_PREEMPTIONS),
                                  ("limit", self.limit, MOST_ORDERS),
                                  ("jobs", self.jobs, MOST_JOBS)):
            if type(value) is not int or not 1 <= value <= most:
                raise KinstError(f"{name} {value!r}: 1 to {most} are possible")


@dataclass
class Explored:
    """:param tried: orders that were executed, the serial ones among them.
    :param whole: whether all orders with so few preemptions, at the places that serial orders use,
        were tried, or left out.
    :param cut: accesses of loops that were not told apart from earlier ones.
    :param left_out: that cannot differ from one that was tried.
    :param space: about how many there are, by preemptions; empty: it is not counted.
    :param results: what the serial orders gave.
    :param not_compared: the runs whose results were not: what their functions give is not known.
    :param no_truth: a serial order goes wrong: no results are the truth.
    :param waited: the serial orders in which a run waited, so that another one went on in its
        midst.
    :param more_races: data races that were not told, of an order with too many.
    :param unmet: the check holds in no serial order.
    :param ended: the search ended with the first order that does harm.
    """

    tried: int = 0
    left_out: int = 0
    whole: bool = False
    interrupted: bool = False
    cut: int = 0
    space: dict[int, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    results: set[tuple[int, ...]] = field(default_factory=set)
    shared: int = 0
    not_compared: list[str] = field(default_factory=list)
    no_truth: bool = False
    waited: list[str] = field(default_factory=list)
    more_races: bool = False
    unmet: bool = False
    ended: bool = False
    seconds: float = 0.0


def preemptions_of(order: Sequence[OrderTurn]) -> int:
    """How often a run is taken its turn before its end."""
    return sum(turn.count is not None for turn in order)


class Explorer:
    """:param judge: what is wrong with an order in which all runs were done; None: nothing.  The
    machine is where they ended.
    :param others: who tries the orders, and the task that they are given; None: this process and
        its ``jobs``.
    :param progress: is told how many orders were tried, and of about how many (0: not known).
    """

    def __init__(self, stage: Stage, asked: Search, judge: Judge | None = None,
                 progress: Callable[[int, int], None] = lambda tried, of: None,
                 others: "tuple[Workers, JudgeTask] | None" = None) -> None:
        self._others = others
        self.stage, self.asked, self._judge, self._progress = stage, asked, judge, progress
        self.explored = Explored()
        self._atomic: dict[int, bool] = {}
        self._asked = set[int]()  # of these the debug data was asked
        self._known = set[tuple[object, ...]]()
        self._listed = True  # all orders were

    def run(self) -> Explored:
        """Try the orders."""
        began, explored = time.monotonic(), self.explored
        try:
            runs = self._serial()
            explored.no_truth = runs is None
            if runs is not None:
                left = max(0, self.asked.limit - explored.tried)
                for judged in self._all_judged(itertools.islice(self._orders(runs), left)):
                    self._take(judged)
                    if not self.asked.all_findings and any(
                            one.race is None for one in explored.findings):
                        explored.ended = True
                        break  # a data race may do no harm; what does is looked for
                else:
                    explored.whole = self.asked.strategy == "all" and (
                        self._listed and explored.tried < self.asked.limit)
        except KeyboardInterrupt:
            explored.interrupted = True
        finally:
            explored.seconds = time.monotonic() - began
        return explored

    def learn(self) -> None:
        """Execute the serial orders alone: what is to be known before ``answer``."""
        self.explored.no_truth = self._serial() is None

    def only(self, order: Order) -> Explored:
        """Try one order, behind the serial ones; what is told is of it alone."""
        began = time.monotonic()
        self.learn()
        self.explored.findings.clear()
        self._known.clear()
        if self.asked.races:
            self._races(self.stage.play(order, look=True))
        self._take(self.judged(order))
        self.explored.seconds = time.monotonic() - began
        return self.explored

    # -- what there is to try ---------------------------------------------------------------------

    def _serial(self) -> list[RunAccesses] | None:
        """The serial orders: their results are the truth; what each run did where it was first.

        :return: None where one of them goes wrong already.
        """
        stage, explored, count = self.stage, self.explored, len(self.stage.runs)
        explored.not_compared = [
            run.text for run in stage.runs if not run.program and run.result is None]
        found: dict[int, RunAccesses] = {}
        longest, wrong, held = 0, False, 0
        for order in serial_orders(count):
            played = stage.play(order, look=True)
            explored.tried += 1
            self._progress(explored.tried, 0)
            if played.end is not None:
                self._add(*self._ended(played), order)
                wrong = True
                continue
            if played.waited:
                explored.waited.append(order_text(order))
            explored.results.add(self._result(played))
            held += self._judged(played)
            longest = max(longest, played.instructions)
            for run, one in enumerate(of_serial(played.accesses, played.stretches, count)):
                found[run] = one if run not in found else found[run].together(one)
            if self.asked.races:
                self._races(played)
        stage.limit = min(stage.limit, max(LEAST_LIMIT, FACTOR * longest))
        stage.longest = longest
        explored.unmet = not wrong and not held
        return None if wrong else [found[run] for run in range(count)]

    def _orders(self, runs: list[RunAccesses]) -> Iterator[Order]:
        asked, explored = self.asked, self.explored
        if asked.strategy == "pct":
            yield from priority_orders(runs, asked.preemptions + 1, asked.seed)
        elif asked.strategy == "random":
            yield from random_orders(runs, max(1, asked.preemptions), asked.seed)
        else:
            tree = Preemptions(runs, asked.preemptions)
            explored.shared = len(tree.shared)
            explored.cut = sum(run.cut for run in runs)
            for preemptions in range(1, asked.preemptions + 1):
                explored.space[preemptions] = tree.estimate(preemptions)
            for preemptions in range(1, asked.preemptions + 1):
                for order in tree.orders(preemptions, asked.seed):
                    explored.left_out, self._listed = tree.left_out, tree.listed
                    yield order
                explored.left_out, self._listed = tree.left_out, tree.listed

    # -- one order --------------------------------------------------------------------------------

    def _all_judged(self, orders: Iterable[Order]) -> Iterator[Judged]:
        """Each order, and what is wrong with it, in their order."""
        if self.asked.jobs == 1 and self._others is None:
            yield from map(self.judged, orders)
            return
        explored, left_out = self.explored, deque[int]()

        def listed() -> Iterator[Order]:
            for order in orders:  # some are listed before they are wanted
                left_out.append(explored.left_out)
                yield order
            left_out.append(explored.left_out)

        def parts() -> Iterator[list[Order]]:
            left = listed()
            while part := list(itertools.islice(left, CHUNK)):
                yield part

        others, task = self._others or (
            workers(self.asked.jobs, None, losses=0), JudgeTask(id(self)))
        if self._others is None:
            hold(task, self)
        try:
            for done in others.done(task, parts(), ordered=True):
                for order, wrong in zip(done.items, done.results, strict=True):
                    explored.left_out = left_out.popleft()
                    yield order, wrong
            explored.left_out = left_out.popleft()
        finally:
            if self._others is None:
                hold(None, None)

    def judged(self, order: Order) -> Judged:
        """Execute an order: it, and (what kind of wrong it is, what is said of it) for all that
        is."""
        played, wrong = self.stage.play(order), []
        if played.end is not None:
            return order, [self._ended(played)]
        if not self.explored.no_truth and self._result(played) not in self.explored.results:
            wrong.append((RESULT, self._said_result(played)))
        said = None if self._judge is None else self._judge(played)
        if said is not None:
            wrong.append((CHECK, said))
        return order, wrong

    def _take(self, judged: Judged) -> None:
        explored = self.explored
        order, wrong = judged
        explored.tried += 1
        self._progress(explored.tried, min(sum(explored.space.values()), self.asked.limit))
        for kind, said in wrong:
            self._add(kind, said, order)

    def _result(self, played: Played) -> tuple[int, ...]:
        """What the runs gave, as far as it is the same in every order that goes well: of
        addresses, whether they are none, and which are the same; 0 for what gives nothing, or is
        not known to give something."""
        memory, found, addresses = self.stage.machine, [], {0: 0}
        for number, run in enumerate(self.stage.runs):
            if run.program:
                found.append(played.results[number])
                continue
            # Without a type it may be of a void function: what is in the register is nobody's.
            value = None if run.result is None else plain(
                memory, run.result, played.results[number])
            if run.result is not None and isinstance(strip(run.result), Pointer):
                value = addresses.setdefault(value or 0, len(addresses))
            found.append(0 if value is None else value)
        return tuple(found)

    def _judged(self, played: Played) -> bool:
        """Whether the check holds, behind a serial order."""
        said = None if self._judge is None else self._judge(played)
        if said is not None:
            self._add(CHECK, said, played.order)
        return said is None

    def _ended(self, played: Played) -> tuple[str, str]:
        """What kind of end it is, and what is said of it."""
        assert played.end is not None
        kind = ENDS.get(played.end.reason, FAULT)
        if kind not in (DEADLOCK, LIVELOCK):
            return kind, f"{played.end.detail or played.end.reason.value} at " + (
                self.stage.machine.image.symbols.where(played.end.pc))
        said = "; ".join(waits(self.stage, played))
        if kind == LIVELOCK and (all_wait(self.stage, played) or nobody_goes_on(self.stage)):
            kind = DEADLOCK
        return kind, said

    def _said_result(self, played: Played) -> str:
        runs = self.stage.runs

        def told(values: tuple[int, ...]) -> list[str]:
            return [_number(value) if _gives(run) else NOTHING
                    for run, value in zip(runs, values, strict=True)]

        given = ", ".join(f"{run.text} = {value}" for run, value
                          in zip(runs, told(self._result(played)), strict=True))
        serial = " or ".join(
            "(" + ", ".join(told(one)) + ")" for one in sorted(self.explored.results))
        return f"{given}; no serial order gives that, they give {serial}"

    def _add(self, kind: str, said: str, order: Order, race: DataRace | None = None) -> None:
        key: tuple[object, ...] = (kind, said) if race is None else (kind, *race.places)
        if key not in self._known:
            self._known.add(key)
            self.explored.findings.append(
                Finding(kind, said, order, preemptions_of(order), race))

    # -- data races -------------------------------------------------------------------------------

    def is_atomic(self, pc: int) -> bool:
        known = self._atomic.get(pc)
        machine: UnicornMachine = self.stage.machine
        if known is None and machine.translate(pc) is None:
            known = self._atomic[pc] = False  # of a program that is gone
        if known is None:
            arch = machine.arch
            code = machine.read(pc, 15 if machine.translate(pc + 15) is not None else 4)
            length = arch.executed_length(code) or 1
            before = machine.read(pc - 4, 4) if machine.translate(pc - 4) is not None else b""
            known = self._atomic[pc] = arch.is_atomic(
                code[:length], before, code[length : length + 4])
        return known

    def _is_said_atomic(self, pc: int) -> bool:
        """Whether the instruction is of a function that the kernel has for atomic accesses, by the
        debug data; it takes long to ask."""
        machine = self.stage.machine
        atomics = machine.guest.threads.atomics
        if not atomics or pc in self._asked:
            return False
        self._asked.add(pc)
        try:
            stack = debug_index(machine.image).stack(pc)
        except DebugDataError:
            return False
        self._atomic[pc] = any(one.name.startswith(atomics) for one in stack)
        return self._atomic[pc]

    def _races(self, played: Played) -> None:
        symbols = self.stage.machine.image.symbols
        count, one_cpu = len(self.stage.runs), not self.stage.machine.schedule.several
        found = data_races(played.accesses, count, self.is_atomic, one_cpu)
        while any([self._is_said_atomic(pc) for race in found for pc in race.places]):
            found = data_races(played.accesses, count, self.is_atomic, one_cpu)
        self.explored.more_races |= len(found) >= MAX_RACES
        for race in found:
            one, other = (f"{'store' if a.stores else 'load'} at {symbols.where(a.pc)}"
                          for a in (race.first, race.second))
            self._add(RACE, f"{one}, {other}: {race.first.size} bytes at physical "
                      f"{race.first.physical:#x}, with no order between them", played.order, race)


def _gives(run: StartedRun) -> bool:
    """Whether what it gives is known, and compared."""
    return run.program or not (run.result is None or isinstance(strip(run.result), Void))


def _number(value: int) -> str:
    return str(value) if value < 1 << 32 else f"{value:#x}"


@dataclass(frozen=True)
class JudgeTask(Task[Order, Wrong, Explorer]):
    """What is wrong with orders, by an explorer that this process holds, and its copies.

    :param explorer: its number.
    """

    explorer: int
    copied = True

    def prepare(self) -> Explorer:
        raise LookupError("this process holds no such explorer")

    def results(self, prepared: Explorer, items: Sequence[Order]) -> list[Wrong]:
        return [prepared.judged(order)[1] for order in items]
