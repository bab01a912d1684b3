"""Search for failing schedules of a few runs."""

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
from kinst_emu.explore.races import MAX_RACES, DataRace, data_races
from kinst_emu.explore.schedule import Schedule, ScheduleTurn, schedule_text
from kinst_emu.explore.stage import Played, Stage
from kinst_emu.explore.strategies import (
    ALL,
    EVERY,
    PCT,
    RANDOM,
    STRATEGIES,
    EveryPlace,
    Preemptions,
    priority_schedules,
    random_schedules,
    serial_schedules,
)
from kinst_emu.explore.threads import StartedRun
from kinst_emu.explore.waiting import all_wait, nobody_goes_on, waits

PANIC, FAULT, DEADLOCK, LIVELOCK, RESULT, CHECK, RACE = (
    "panic", "fault", "deadlock", "livelock", "result", "check", "data race")
NOTHING = "-"  # printed in place of the result of a void function
KINDS = (PANIC, FAULT, DEADLOCK, LIVELOCK, RESULT, CHECK, RACE)
# kind of finding, keyed by the reason why a run does not finish
ENDS = {
    StopReason.PANIC: PANIC, StopReason.UNHANDLED: FAULT, StopReason.RESET: FAULT,
    StopReason.POWER_OFF: FAULT, StopReason.TIME: DEADLOCK, StopReason.HALT: DEADLOCK,
    StopReason.INSTRUCTIONS: LIVELOCK, StopReason.PATIENCE: LIVELOCK,
    StopReason.OUTPUT: LIVELOCK,
}

MOST_PREEMPTIONS, MOST_SCHEDULES, MOST_JOBS = 8, 100_000_000, 64
# instruction budget of a schedule: FACTOR times the longest serial schedule, at least LEAST_LIMIT
FACTOR, LEAST_LIMIT = 40, 20_000_000

Judge = Callable[[Played], str | None]
Wrong = list[tuple[str, str]]  # (kind, message) for each failure of a schedule
Judged = tuple[Schedule, Wrong]
CHUNK = 32  # maximum number of schedules sent to a worker at once


@dataclass(frozen=True)
class Finding:
    """A failure or a data race, with a schedule that exposes it.

    :param kind: one of KINDS.
    :param message: description in one line.
    :param turns: the schedule.
    :param preemptions: number of preemptions in the schedule.
    :param race: the data race, or None for another kind of finding.
    """

    kind: str
    message: str
    turns: Schedule
    preemptions: int
    race: DataRace | None = None

    @property
    def schedule(self) -> str:
        """Text of the schedule, e.g. ``A120 B A``."""
        return schedule_text(self.turns)


@dataclass(frozen=True)
class Search:
    """Parameters of a search.

    :param strategy: one of STRATEGIES.
    :param preemptions: maximum number of preemptions in a schedule.
    :param limit: maximum number of schedules to execute.
    :param seed: random seed.
    :param races: whether to search for data races.
    :param all_findings: whether to continue after the first failure.
    :param jobs: number of processes that execute schedules.
    :raises KinstError: a value is out of range.
    """

    strategy: str = ALL
    preemptions: int = 2
    limit: int = 100_000
    seed: int = 1
    races: bool = True
    all_findings: bool = False
    jobs: int = 1

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise KinstError(f"strategy '{self.strategy}': must be one of {', '.join(STRATEGIES)}")
        for name, value, most in (("preemptions", self.preemptions, MOST_PREEMPTIONS),
                                  ("limit", self.limit, MOST_SCHEDULES),
                                  ("jobs", self.jobs, MOST_JOBS)):
            if type(value) is not int or not 1 <= value <= most:
                raise KinstError(f"{name} {value!r}: must be 1 to {most}")


@dataclass
class Explored:
    """Results of a search.

    :param tried: schedules that were executed, the serial ones included.
    :param skipped: schedules skipped as equivalent to executed ones.
    :param complete: whether all schedules with at most the given number of preemptions, at the
        places that serial schedules use, were executed or skipped as equivalent.
    :param everywhere: whether preemptions were placed before any instruction.
    :param cut: accesses of loops that were not distinguished from earlier ones.
    :param space: estimated number of schedules, by number of preemptions; empty: not estimated.
    :param results: results of the runs in the serial schedules, which count as correct.
    :param shared: number of granules that the runs share.
    :param not_compared: runs whose results were not compared, because their types are unknown.
    :param serial_failed: whether a serial schedule fails, so that results cannot be compared.
    :param waited: serial schedules in which a run waited and another one continued meanwhile.
    :param more_races: whether a schedule has more data races than were reported.
    :param check_never_holds: whether the check fails in every serial schedule.
    :param stopped_early: whether the search stopped at the first failure.
    """

    tried: int = 0
    skipped: int = 0
    complete: bool = False
    interrupted: bool = False
    everywhere: bool = False
    cut: int = 0
    space: dict[int, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    results: set[tuple[int, ...]] = field(default_factory=set)
    shared: int = 0
    not_compared: list[str] = field(default_factory=list)
    serial_failed: bool = False
    waited: list[str] = field(default_factory=list)
    more_races: bool = False
    check_never_holds: bool = False
    stopped_early: bool = False
    seconds: float = 0.0


def preemptions_of(schedule: Sequence[ScheduleTurn]) -> int:
    """Return the number of preemptions in a schedule: turns that end before their run ends."""
    return sum(turn.count is not None for turn in schedule)


class Explorer:
    """Engine that searches for failing schedules on a stage.

    :param judge: called after a schedule in which all runs finished, while the machine is in its
        final state; it returns a description of the failure, or None. None: no check.
    :param progress: called with the number of schedules executed and their estimated total (0:
        unknown).
    :param others: workers that execute the schedules, and their task; None: this process and its
        ``jobs``.
    """

    def __init__(self, stage: Stage, asked: Search, judge: Judge | None = None,
                 progress: Callable[[int, int], None] = lambda tried, of: None,
                 others: "tuple[Workers, JudgeTask] | None" = None) -> None:
        self._others = others
        self.stage, self.asked, self._judge, self._progress = stage, asked, judge, progress
        self.explored = Explored()
        self._atomic: dict[int, bool] = {}
        self._asked = set[int]()  # addresses already looked up in the debug data
        self._known = set[tuple[object, ...]]()
        self._listed = True  # whether all schedules were enumerated

    def run(self) -> Explored:
        """Execute the schedules of the search, and return the results of the search."""
        began, explored = time.monotonic(), self.explored
        try:
            runs = self._serial()
            explored.serial_failed = runs is None
            if runs is not None:
                left = max(0, self.asked.limit - explored.tried)
                for judged in self._all_judged(itertools.islice(self._schedules(runs), left)):
                    self._take(judged)
                    if not self.asked.all_findings and any(
                            one.race is None for one in explored.findings):
                        explored.stopped_early = True
                        break  # data races, which may be harmless, do not stop the search
                else:
                    explored.complete = self.asked.strategy in (ALL, EVERY) and (
                        self._listed and explored.tried < self.asked.limit)
        except KeyboardInterrupt:
            explored.interrupted = True
        finally:
            explored.seconds = time.monotonic() - began
        return explored

    def learn(self) -> None:
        """Execute only the serial schedules, whose results ``judged`` needs for comparison."""
        self.explored.serial_failed = self._serial() is None

    def only(self, schedule: Schedule) -> Explored:
        """Execute the serial schedules and a given one; report findings of the given one only."""
        began = time.monotonic()
        self.learn()
        self.explored.findings.clear()
        self._known.clear()
        if self.asked.races:
            self._races(self.stage.play(schedule, look=True))
        self._take(self.judged(schedule))
        self.explored.seconds = time.monotonic() - began
        return self.explored

    # -- schedules to execute ---------------------------------------------------------------------

    def _serial(self) -> list[RunAccesses] | None:
        """Execute the serial schedules, whose results count as correct.

        :return: the accesses of each run; None: a serial schedule fails.
        """
        stage, explored, count = self.stage, self.explored, len(self.stage.runs)
        explored.not_compared = [
            run.text for run in stage.runs if not run.program and run.result is None]
        by_run: dict[int, RunAccesses] = {}
        longest, wrong, held = 0, False, 0
        for schedule in serial_schedules(count):
            played = stage.play(schedule, look=True)
            explored.tried += 1
            self._progress(explored.tried, 0)
            if played.end is not None:
                self._add(*self._ended(played), schedule)
                wrong = True
                continue
            if played.waited:
                explored.waited.append(schedule_text(schedule))
            explored.results.add(self._result(played))
            held += self._judged(played)
            longest = max(longest, played.instructions)
            for run, one in enumerate(of_serial(played.accesses, played.stretches, count)):
                by_run[run] = one if run not in by_run else by_run[run].together(one)
            if self.asked.races:
                self._races(played)
        stage.limit = min(stage.limit, max(LEAST_LIMIT, FACTOR * longest))
        stage.longest = longest
        explored.check_never_holds = not wrong and not held
        return None if wrong else [by_run[run] for run in range(count)]

    def _schedules(self, runs: list[RunAccesses]) -> Iterator[Schedule]:
        asked, explored = self.asked, self.explored
        if asked.strategy == PCT:
            yield from priority_schedules(runs, asked.preemptions + 1, asked.seed)
        elif asked.strategy == RANDOM:
            yield from random_schedules(runs, max(1, asked.preemptions), asked.seed)
        else:
            explored.everywhere = asked.strategy == EVERY
            tree = (EveryPlace if explored.everywhere else Preemptions)(runs, asked.preemptions)
            explored.shared = len(tree.shared)
            explored.cut = sum(run.cut for run in runs)
            for preemptions in range(1, asked.preemptions + 1):
                explored.space[preemptions] = tree.estimate(preemptions)
            for preemptions in range(1, asked.preemptions + 1):
                for schedule in tree.schedules(preemptions, asked.seed):
                    explored.skipped, self._listed = tree.skipped, tree.listed
                    yield schedule
                explored.skipped, self._listed = tree.skipped, tree.listed

    # -- execution of a schedule ------------------------------------------------------------------

    def _all_judged(self, schedules: Iterable[Schedule]) -> Iterator[Judged]:
        """Execute schedules in the given order, and yield each schedule with its failures."""
        if self.asked.jobs == 1 and self._others is None:
            yield from map(self.judged, schedules)
            return
        explored, left_out = self.explored, deque[int]()

        def listed() -> Iterator[Schedule]:
            for schedule in schedules:  # queue the count: workers fetch schedules in advance
                left_out.append(explored.skipped)
                yield schedule
            left_out.append(explored.skipped)

        def parts() -> Iterator[list[Schedule]]:
            left = listed()
            while part := list(itertools.islice(left, CHUNK)):
                yield part

        others, task = self._others or (
            workers(self.asked.jobs, None, losses=0), JudgeTask(id(self)))
        if self._others is None:
            hold(task, self)
        try:
            for done in others.done(task, parts(), ordered=True):
                for schedule, wrong in zip(done.items, done.results, strict=True):
                    explored.skipped = left_out.popleft()
                    yield schedule, wrong
            explored.skipped = left_out.popleft()
        finally:
            if self._others is None:
                hold(None, None)

    def judged(self, schedule: Schedule) -> Judged:
        """Execute a schedule, and return the schedule with its failures."""
        played, wrong = self.stage.play(schedule), []
        if played.end is not None:
            return schedule, [self._ended(played)]
        if not self.explored.serial_failed and self._result(played) not in self.explored.results:
            wrong.append((RESULT, self._result_message(played)))
        failure = None if self._judge is None else self._judge(played)
        if failure is not None:
            wrong.append((CHECK, failure))
        return schedule, wrong

    def _take(self, judged: Judged) -> None:
        explored = self.explored
        schedule, wrong = judged
        explored.tried += 1
        self._progress(explored.tried, min(sum(explored.space.values()), self.asked.limit))
        for kind, said in wrong:
            self._add(kind, said, schedule)

    def _result(self, played: Played) -> tuple[int, ...]:
        """Return the runs' results in a comparable form: addresses are replaced by numbers.

        An address is replaced by the number of its first occurrence, null by 0.  A result that is
        void or of unknown type is 0.
        """
        memory, values, addresses = self.stage.machine, [], {0: 0}
        for number, run in enumerate(self.stage.runs):
            if run.program:
                values.append(played.results[number])
                continue
            # Without a type, the function may be void, and the register may hold any value.
            value = None if run.result is None else plain(
                memory, run.result, played.results[number])
            if run.result is not None and isinstance(strip(run.result), Pointer):
                value = addresses.setdefault(value or 0, len(addresses))
            values.append(0 if value is None else value)
        return tuple(values)

    def _judged(self, played: Played) -> bool:
        """Return whether the check holds after a serial schedule; if not, add a finding."""
        failure = None if self._judge is None else self._judge(played)
        if failure is not None:
            self._add(CHECK, failure, played.schedule)
        return failure is None

    def _ended(self, played: Played) -> tuple[str, str]:
        """Return the kind of finding and the message for a schedule with an unfinished run."""
        assert played.end is not None
        kind = ENDS.get(played.end.reason, FAULT)
        if kind not in (DEADLOCK, LIVELOCK):
            return kind, f"{played.end.detail or played.end.reason.value} at " + (
                self.stage.machine.image.symbols.where(played.end.pc))
        said = "; ".join(waits(self.stage, played))
        if kind == LIVELOCK and (all_wait(self.stage, played) or nobody_goes_on(self.stage)):
            kind = DEADLOCK
        return kind, said

    def _result_message(self, played: Played) -> str:
        runs = self.stage.runs

        def printed(values: tuple[int, ...]) -> list[str]:
            return [_number(value) if _gives(run) else NOTHING
                    for run, value in zip(runs, values, strict=True)]

        given = ", ".join(f"{run.text} = {value}" for run, value
                          in zip(runs, printed(self._result(played)), strict=True))
        serial = " or ".join(
            "(" + ", ".join(printed(one)) + ")" for one in sorted(self.explored.results))
        return f"{given}; the serial schedules give only {serial}"

    def _add(self, kind: str, said: str, schedule: Schedule, race: DataRace | None = None) -> None:
        key: tuple[object, ...] = (kind, said) if race is None else (kind, *race.places)
        if key not in self._known:
            self._known.add(key)
            self.explored.findings.append(
                Finding(kind, said, schedule, preemptions_of(schedule), race))

    # -- data races -------------------------------------------------------------------------------

    def is_atomic(self, pc: int) -> bool:
        """Return whether the instruction at an address accesses memory atomically."""
        known = self._atomic.get(pc)
        machine: UnicornMachine = self.stage.machine
        if known is None and machine.translate(pc) is None:
            known = self._atomic[pc] = False  # the program that contains the instruction has exited
        if known is None:
            arch = machine.arch
            code = machine.read(pc, 15 if machine.translate(pc + 15) is not None else 4)
            length = arch.executed_length(code) or 1
            before = machine.read(pc - 4, 4) if machine.translate(pc - 4) is not None else b""
            known = self._atomic[pc] = arch.is_atomic(
                code[:length], before, code[length : length + 4])
        return known

    def _is_declared_atomic(self, pc: int) -> bool:
        """Return whether debug data places an instruction in an atomic_*() function of the kernel.

        The lookup is slow, so each address is looked up only once.
        """
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
        races = data_races(played.accesses, count, self.is_atomic, one_cpu)
        while any([self._is_declared_atomic(pc) for race in races for pc in race.places]):
            races = data_races(played.accesses, count, self.is_atomic, one_cpu)
        self.explored.more_races |= len(races) >= MAX_RACES
        for race in races:
            one, other = (f"{'store' if a.stores else 'load'} at {symbols.where(a.pc)}"
                          for a in (race.first, race.second))
            self._add(RACE, f"{one}, {other}: {race.first.size} bytes at physical "
                      f"{race.first.physical:#x}, without synchronization", played.schedule,
                      race)


def _gives(run: StartedRun) -> bool:
    """Return whether a run has a result of known type, so that results can be compared."""
    return run.program or not (run.result is None or isinstance(strip(run.result), Void))


def _number(value: int) -> str:
    return str(value) if value < 1 << 32 else f"{value:#x}"


@dataclass(frozen=True)
class JudgeTask(Task[Schedule, Wrong, Explorer]):
    """Task that judges schedules with an explorer in this process or in forks of this process.

    :param explorer: ``id`` of the explorer.
    """

    explorer: int
    copied = True

    def prepare(self) -> Explorer:
        """Raise LookupError, since an explorer exists only in its creator process and its forks."""
        raise LookupError("the explorer exists only in the process that created it and in "
                          "forks of that process")

    def results(self, prepared: Explorer, items: Sequence[Schedule]) -> list[Wrong]:
        """Execute schedules and return the failures of each."""
        return [prepared.judged(schedule)[1] for schedule in items]
