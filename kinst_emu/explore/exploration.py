"""A kernel, a few runs, and all orders of them: what the command and the Python interface share."""

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
from emu.host.errors import KinstError
from emu.machine.call import Caller, CallError
from emu.unicorn.machine import UnicornMachine
from images import boots, catalog
from images.shell import CommandError, give_command, run_command, with_userland
from kinst.probes.rewritten_trampolines import PER_THREAD
from kinst_emu.explore.d_check import VARIABLE, DCheck, is_d
from kinst_emu.explore.explorer import Judge
from kinst_emu.explore.one_cpu import OneCpuStage
from kinst_emu.explore.order import LETTERS, order_title, read_order
from kinst_emu.explore.programs import COMMAND, begin_programs, command_of, is_command, with_c_files
from kinst_emu.explore.stage import Played, Stage
from kinst_emu.explore.threads import CURRENT, StartedRun, begin_runs, caller_of, make_threads
from kinst_emu.explore.trampolines import ProbedRuns

MIN_RUNS, MAX_RUNS = 2, 4  # all serial orders are tried: of four, 24
COMPARED = re.compile(r"(?P<call>.+?)\s*(?P<how>==|!=|<=|>=|<|>)\s*"
                      r"(?P<value>-?(?:0[xX][0-9a-fA-F]{1,16}|\d{1,20}))\s*", re.DOTALL)
COMPARE: dict[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    ">": lambda a, b: a > b, "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b}
CHECK_LIMIT = 5_000_000  # instructions of a check
COMMAND_LIMIT = 100_000_000  # and of one that is a command
RUNS_LIMIT = 200_000_000  # of a serial order


@dataclass(frozen=True)
class Check:
    """:param text: as it was given: a call, which is to give something but 0, or how it
    compares."""

    text: str
    program: list[Statement]
    how: str
    value: int


def read_check(text: str) -> Check:
    """:raises KinstError: when it is none."""
    match = COMPARED.fullmatch(text)
    try:
        if match is None:
            return Check(text, parse(text), "!=", 0)
        return Check(text, parse(match["call"]), match["how"], int(match["value"], 0))
    except CallSyntaxError as error:
        raise KinstError(f"--check: {error}; a check is a call, 'CALL == NUMBER' or the like, or "
                         f"D, in which a variable is written {VARIABLE}NAME") from None


def _hold_typed(image: Image, asked: Check, prototypes: Prototypes | None) -> None:
    """:raises KinstError: when it is not known what a check's function gives: whether an int is
        negative, and where it ends in its register."""
    last = asked.program[-1].value
    if prototypes is None or not isinstance(last, Invocation):
        return
    function = find_function(image, last.function)
    if prototypes.result(function.name, function.address) is None:
        raise KinstError(f"--check: the debug data does not tell what {last.function} gives; put "
                         f"{image.path.name}.debug (of a module, its .ko.debug) beside the file, "
                         "or take its register as it is, unsigned: --unchecked")


@dataclass(frozen=True)
class Runs:
    """:param texts: of the runs; ``setup``: calls that are done before; ``check``: and behind
        them.
    :param probes: breakpoints in their way, ``function:offset``, with such ``trampolines``.
    """

    texts: tuple[str, ...]
    setup: str = ""
    check: str = ""
    probes: tuple[str, ...] = ()
    trampolines: str = PER_THREAD

    @property
    def are_programs(self) -> bool:
        """Whether they are, and no calls.

        :raises KinstError: when some are.
        """
        found = {is_command(text) or bool(c_file_words(text)) for text in self.texts}
        if len(found) > 1:
            raise KinstError("--run: some are programs, and some calls: give one kind")
        return found == {True}

    def parsed(self) -> list[tuple[str, list[Statement]]]:
        """:raises KinstError: for what is none."""
        if not MIN_RUNS <= len(self.texts) <= MAX_RUNS:
            raise KinstError(f"--run: {len(self.texts)} given; {MIN_RUNS} to {MAX_RUNS} are "
                             "possible, each a call, like --run 'strlen(\"a\")'")
        return [(text, [] if c_file_words(text) or (is_command(text) and command_of(text))
                 else parse(text)) for text in self.texts]


def for_runs(image: Image, count: int, cpus: int | None = None) -> Image:
    """The kernel, on a computer that has a CPU for each run, or one for all.

    :param cpus: how many; None: one for each.
    :raises KinstError: for another number.
    """
    if cpus not in (None, 1, count):
        raise KinstError(f"--cpus {cpus}: the runs share one CPU (1), or have one each ({count})")
    options = replace(image.options, cpus=cpus or count)
    told = replace(image, options=options)
    return told if catalog.is_teaching(image) else with_userland(told)


def stage_of(image: Image, runs: Runs, memory: int, limit: int = RUNS_LIMIT,
             unchecked: bool = False) -> tuple[Stage, Judge | None]:
    """Boot the kernel and have the runs begin.

    :param image: of ``for_runs``.
    :raises KinstError: for runs that are none, or that cannot be started.
    """
    if runs.are_programs:
        return _stage_of_programs(image, runs, memory, limit, unchecked)
    parsed = runs.parsed()
    setup = parse(runs.setup) if runs.setup else []
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
    caller = caller_of(machine)
    threads = make_threads(machine, len(parsed), caller)
    evaluation = Evaluation(caller, prototypes)
    if setup:
        evaluation.run(setup)
    started = begin_runs(machine, threads, parsed, evaluation, prototypes, results)
    if in_d:
        DCheck(machine, image, runs.check)  # that it compiles is known before the orders begin
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
    """The same, of programs."""
    runs.parsed()
    if runs.probes:
        raise KinstError("--probe: is for runs that are calls")
    command = command_of(runs.check) if is_command(runs.check) else ""
    in_d = is_d(runs.check) and not command
    asked = read_check(runs.check) if runs.check and not command and not in_d else None
    prototypes = None if unchecked else Prototypes(image)
    if asked is not None:
        check(image, asked.program, prototypes)
        _hold_typed(image, asked, prototypes)
    if runs.setup and not is_command(runs.setup):
        raise KinstError("--setup: of programs it is a line for the shell, like '$ mkdir /tmp/a'")
    image, commands = with_c_files(image, runs.texts)
    machine = boots.booted(image, memory)
    if runs.setup:
        ran = run_command(machine, runs.setup.removeprefix(COMMAND), limit)
        if ran.status:
            said = ran.output.decode("utf-8", "replace").strip()
            raise KinstError(f"--setup: '{runs.setup}' has failed ({ran.status}): {said}")
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


def _judge_in_d(machine: UnicornMachine, image: Image, text: str) -> Judge:
    def judge(played: Played) -> str | None:
        machine.give_turn(machine.cpu.number)  # and nobody is held
        return DCheck(machine, image, text).wrong()
    return judge


def _judge_by_command(machine: UnicornMachine, command: str) -> Judge:
    def judge(played: Played) -> str | None:
        machine.give_turn(machine.cpu.number)  # and nobody is held
        machine.schedule.length = machine.image.options.turn
        try:
            ran = give_command(machine, command, COMMAND_LIMIT)
        except CommandError as error:
            return f"$ {command}: {error}"
        if ran.status == 0:
            return None
        said = ran.output.decode("utf-8", "replace").strip()
        return f"$ {command}: gives {ran.status}" + (f", {said}" if said else "")
    return judge


def made_stage(machine: UnicornMachine, started: Sequence[StartedRun], limit: int) -> Stage:
    """Where orders of the runs are executed."""
    return (Stage if machine.schedule.several else OneCpuStage)(machine, started, limit)


def _judge(machine: UnicornMachine, asked: Check, prototypes: Prototypes | None,
           names: dict[str, int]) -> Judge:
    def judge(played: Played) -> str | None:
        machine.give_turn(machine.cpu.number)  # and nobody is held
        evaluation = Evaluation(Caller(machine, CHECK_LIMIT), prototypes, dict(names))
        try:
            value = evaluation.run(asked.program)
        except CallError as error:
            return f"{asked.text}: {error}"
        if evaluation.kind is not None and isinstance(strip(evaluation.kind), Void):
            raise KinstError(f"--check: {asked.text}: its function is void; a check is a call that "
                             "gives something")
        kind = None if evaluation.kind is None else strip(evaluation.kind)
        signs = asked.value < 0 or (isinstance(kind, Integer) and kind.signed)
        number = signed(value) if signs else value
        if COMPARE[asked.how](number, asked.value):
            return None
        return f"{asked.text} does not hold: it is {number}"
    return judge


def record_order(image: Image, runs: Runs, schedule: str, memory: int, path: Path,
                 unchecked: bool = False, cpus: int | None = None) -> None:
    """Record the runs in an order, which is read as it is given on a command line.

    :raises KinstError: for no such order, and as ``stage_of`` does.
    """
    runs.parsed()  # their number is checked before what refers to it
    order = read_order(schedule, len(runs.texts))
    image = for_runs(image, len(runs.texts), cpus)
    stage, _judge = stage_of(image, runs, memory, unchecked=unchecked)
    stage.record(order, path, order_title(runs.texts, order))


def names_of(runs: Sequence[str]) -> str:
    """The runs, each behind its letter."""
    return "\n".join(f"  {LETTERS[n]}  {text}" for n, text in enumerate(runs))
