"""Setup of an exploration: the kernel, the runs and the check, from options or from Python."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dtrace.bpf.interpreter import signed
from dtrace.calls.c_file import c_file_words
from dtrace.calls.calls import Evaluation, Invocation, Statement, check, parse
from dtrace.calls.prototypes import Prototypes
from dtrace.calls.strings import CallSyntaxError
from dtrace.debug.symbols import find_function
from dwarf.types import Integer, Void, strip
from emu.elf.image import Image
from emu.guests.registry import check_cpus
from emu.host.errors import KinstError
from emu.machine.call import Caller, CallError
from emu.unicorn.machine import UnicornMachine
from images import boots, catalog
from images.shell import CommandError, give_command, run_command, with_userland
from kinst.probes.rewritten_trampolines import PER_THREAD
from kinst_emu.explore.d_check import VARIABLE, DCheck, is_d
from kinst_emu.explore.explorer import Judge
from kinst_emu.explore.one_cpu import OneCpuStage
from kinst_emu.explore.programs import COMMAND, begin_programs, command_of, is_command, with_c_files
from kinst_emu.explore.schedule import LETTERS, read_schedule, schedule_title
from kinst_emu.explore.stage import Played, Stage
from kinst_emu.explore.threads import CURRENT, StartedRun, begin_runs, caller_of, make_threads
from kinst_emu.explore.trampolines import ProbedRuns

# minimum and maximum number of runs; the search executes all 24 serial schedules of four runs
MIN_RUNS, MAX_RUNS = 2, 4
COMPARED = re.compile(r"(?P<call>.+?)\s*(?P<how>==|!=|<=|>=|<|>)\s*"
                      r"(?P<value>-?(?:0[xX][0-9a-fA-F]{1,16}|\d{1,20}))\s*", re.DOTALL)
COMPARE: dict[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    ">": lambda a, b: a > b, "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b}
CHECK_LIMIT = 5_000_000  # instruction budget of a check that calls a function
COMMAND_LIMIT = 100_000_000  # instruction budget of a check that is a shell command
RUNS_LIMIT = 200_000_000  # instruction budget of a serial schedule


@dataclass(frozen=True)
class Check:
    """A function call and the comparison that its value must satisfy.

    :param text: the check as the user wrote it.
    :param how: operator of the comparison, a key of COMPARE.
    :param value: number to compare with.
    """

    text: str
    program: list[Statement]
    how: str
    value: int


def read_check(text: str) -> Check:
    """Parse a check: a function call, optionally compared with a number.

    :raises KinstError: the text is not a check.
    """
    match = COMPARED.fullmatch(text)
    try:
        if match is None:
            return Check(text, parse(text), "!=", 0)
        return Check(text, parse(match["call"]), match["how"], int(match["value"], 0))
    except CallSyntaxError as error:
        raise KinstError(f"--check: {error}; give a call, a comparison such as 'CALL == NUMBER' or "
                         "a D expression, in which kernel variables are written as "
                         f"{VARIABLE}NAME") from None


def _hold_typed(image: Image, asked: Check, prototypes: Prototypes | None) -> None:
    """Check that the debug data contains the result type of the function that a check calls.

    The type determines the width of the value and whether it is signed.

    :raises KinstError: the type is unknown.
    """
    last = asked.program[-1].value
    if prototypes is None or not isinstance(last, Invocation):
        return
    function = find_function(image, last.function)
    if prototypes.result(function.name, function.address) is None:
        raise KinstError(f"--check: the result type of {last.function} is unknown; put "
                         f"{image.path.name}.debug (for a module, its .ko.debug) next to the "
                         "file, or use --unchecked to compare the whole register as an unsigned "
                         "number")


@dataclass(frozen=True)
class Runs:
    """The runs to explore, with their setup, check and breakpoints.

    :param texts: a call, shell command or C file with arguments for each run.
    :param setup: calls to make before the runs.
    :param check: check to evaluate after all runs; empty: no check.
    :param probes: breakpoints in the code of the runs, each ``function:offset``.
    :param trampolines: kind of trampoline of the breakpoints: PER_THREAD or SHARED.
    """

    texts: tuple[str, ...]
    setup: str = ""
    check: str = ""
    probes: tuple[str, ...] = ()
    trampolines: str = PER_THREAD

    @property
    def are_programs(self) -> bool:
        """Whether the runs are programs rather than calls.

        :raises KinstError: some runs are programs and some are calls.
        """
        found = {is_command(text) or bool(c_file_words(text)) for text in self.texts}
        if len(found) > 1:
            raise KinstError("--run: programs and calls cannot be mixed; give only one kind")
        return found == {True}

    def parsed(self) -> list[tuple[str, list[Statement]]]:
        """Return the text and the statements of each run; a program has no statements.

        :raises KinstError: wrong number of runs, or a run that cannot be parsed.
        """
        if not MIN_RUNS <= len(self.texts) <= MAX_RUNS:
            raise KinstError(f"--run: {len(self.texts)} given; give {MIN_RUNS} to {MAX_RUNS}, "
                             "each a call, e.g. --run 'strlen(\"a\")'")
        return [(text, [] if c_file_words(text) or (is_command(text) and command_of(text))
                 else parse(text)) for text in self.texts]


def for_runs(image: Image, count: int, cpus: int | None = None) -> Image:
    """Return the image, configured with one CPU for each run or with one CPU for all runs.

    :param count: number of runs.
    :param cpus: number of CPUs, 1 or ``count``; None: ``count``.
    :raises KinstError: another number of CPUs, or a kernel that runs on one CPU.
    """
    if cpus not in (None, 1, count):
        raise KinstError(f"--cpus {cpus}: must be 1 (the runs share one CPU) or {count} (each has "
                         "its own)")
    if (cpus or count) > 1:
        check_cpus(image)
    options = replace(image.options, cpus=cpus or count)
    configured = replace(image, options=options)
    return configured if catalog.is_teaching(image) else with_userland(configured)


def stage_of(image: Image, runs: Runs, memory: int, limit: int = RUNS_LIMIT,
             unchecked: bool = False) -> tuple[Stage, Judge | None]:
    """Boot the kernel and start the runs.

    :param image: result of ``for_runs``.
    :param limit: instruction budget of a serial schedule.
    :param unchecked: whether arguments are passed without checking their types.
    :return: the stage, and the judge that evaluates the check, or None without a check.
    :raises KinstError: invalid runs, or runs that cannot be started.
    """
    if runs.are_programs:
        return _stage_of_programs(image, runs, memory, limit, unchecked)
    parsed = runs.parsed()
    command = is_command(runs.setup)
    if command and not image.options.programs:
        raise KinstError("--setup: a command needs a system in which it runs; give --base")
    setup = parse(runs.setup) if runs.setup and not command else []
    in_d = is_d(runs.check)
    asked = read_check(runs.check) if runs.check and not in_d else None
    results = Prototypes(image)
    prototypes = None if unchecked else results
    names = {one.target for one in setup if one.target}
    for _text, program in parsed:
        check(image, [*setup, *program], prototypes, [CURRENT])
    if asked is not None:
        check(image, [*setup, *asked.program], prototypes)
        _hold_typed(image, asked, prototypes)
    machine = boots.booted(image, memory)
    if command:
        _run_setup(machine, runs.setup)
    caller = caller_of(machine)
    threads = make_threads(machine, len(parsed), caller)
    evaluation = Evaluation(caller, prototypes)
    if setup:
        evaluation.run(setup)
    started = begin_runs(machine, threads, parsed, evaluation, prototypes, results)
    if in_d:
        DCheck(machine, image, runs.check)  # report compile errors before executing any schedule
    probed = None
    if runs.probes:
        probed = ProbedRuns(machine, started, runs.probes, runs.trampolines)
    stage = made_stage(machine, started, limit)
    stage.probed = probed
    if in_d:
        return stage, _judge_in_d(machine, image, runs.check)
    known = {name: evaluation.names[name] for name in names if name in evaluation.names}
    return stage, None if asked is None else _judge(machine, asked, prototypes, known)


def _stage_of_programs(image: Image, runs: Runs, memory: int, limit: int, unchecked: bool
                       ) -> tuple[Stage, Judge | None]:
    """Boot the kernel and start programs as runs; for the result, see ``stage_of``."""
    runs.parsed()
    if runs.probes:
        raise KinstError("--probe: works only with runs that are calls")
    command = command_of(runs.check) if is_command(runs.check) else ""
    in_d = is_d(runs.check) and not command
    asked = read_check(runs.check) if runs.check and not command and not in_d else None
    prototypes = None if unchecked else Prototypes(image)
    if asked is not None:
        check(image, asked.program, prototypes)
        _hold_typed(image, asked, prototypes)
    if runs.setup and not is_command(runs.setup):
        raise KinstError("--setup: must be a shell command if the runs are programs, e.g. "
                         "'$ mkdir /tmp/a'")
    image, commands = with_c_files(image, runs.texts)
    machine = boots.booted(image, memory)
    if runs.setup:
        _run_setup(machine, runs.setup)
    if in_d:
        DCheck(machine, image, runs.check)
    begun = [replace(one, text=text) for one, text in zip(
        begin_programs(machine, commands), runs.texts, strict=True)]
    stage = made_stage(machine, begun, limit)
    if in_d:
        return stage, _judge_in_d(machine, image, runs.check)
    if command:
        return stage, _judge_by_command(machine, command)
    return stage, None if asked is None else _judge(machine, asked, prototypes, {})


def _run_setup(machine: UnicornMachine, setup: str) -> None:
    """Run the setup's shell command.

    :raises KinstError: if it fails.
    """
    ran = run_command(machine, setup.removeprefix(COMMAND), boots.LIMIT)
    if ran.status:
        said = ran.output.decode("utf-8", "replace").strip()
        raise KinstError(f"--setup: '{setup}' failed (status {ran.status}): {said}")


def _judge_in_d(machine: UnicornMachine, image: Image, text: str) -> Judge:
    def judge(played: Played) -> str | None:
        machine.give_turn(machine.cpu.number)  # give_turn() also releases the held CPUs
        return DCheck(machine, image, text).wrong()
    return judge


def _judge_by_command(machine: UnicornMachine, command: str) -> Judge:
    def judge(played: Played) -> str | None:
        machine.give_turn(machine.cpu.number)  # give_turn() also releases the held CPUs
        machine.schedule.length = machine.image.options.turn
        try:
            ran = give_command(machine, command, COMMAND_LIMIT)
        except CommandError as error:
            return f"$ {command}: {error}"
        if ran.status == 0:
            return None
        said = ran.output.decode("utf-8", "replace").strip()
        return f"$ {command}: exit status {ran.status}" + (f", {said}" if said else "")
    return judge


def made_stage(machine: UnicornMachine, started: Sequence[StartedRun], limit: int) -> Stage:
    """Return a stage for the started runs; its type depends on whether they share one CPU."""
    return (Stage if machine.schedule.several else OneCpuStage)(machine, started, limit)


def _judge(machine: UnicornMachine, asked: Check, prototypes: Prototypes | None,
           names: dict[str, int]) -> Judge:
    def judge(played: Played) -> str | None:
        machine.give_turn(machine.cpu.number)  # give_turn() also releases the held CPUs
        evaluation = Evaluation(Caller(machine, CHECK_LIMIT), prototypes, dict(names))
        try:
            value = evaluation.run(asked.program)
        except CallError as error:
            return f"{asked.text}: {error}"
        if evaluation.kind is not None and isinstance(strip(evaluation.kind), Void):
            raise KinstError(f"--check: {asked.text}: its function is void; give a call that "
                             "returns a value")
        kind = None if evaluation.kind is None else strip(evaluation.kind)
        signs = asked.value < 0 or (isinstance(kind, Integer) and kind.signed)
        number = signed(value) if signs else value
        if COMPARE[asked.how](number, asked.value):
            return None
        return f"{asked.text} does not hold: the value is {number}"
    return judge


def record_schedule(image: Image, runs: Runs, schedule: str, memory: int, path: Path,
                 unchecked: bool = False, cpus: int | None = None) -> None:
    """Boot the kernel, start the runs, and record one schedule of the runs.

    :param schedule: text of the schedule, e.g. ``A120 B A``.
    :raises KinstError: invalid schedule or runs, or runs that cannot be started.
    """
    runs.parsed()  # check the runs before parsing a schedule that refers to them
    turns = read_schedule(schedule, len(runs.texts))
    image = for_runs(image, len(runs.texts), cpus)
    stage, _judge = stage_of(image, runs, memory, unchecked=unchecked)
    stage.record(turns, path, schedule_title(runs.texts, turns))


def names_of(runs: Sequence[str]) -> str:
    """List the runs, one per line, each preceded by its letter."""
    return "\n".join(f"  {LETTERS[n]}  {text}" for n, text in enumerate(runs))
