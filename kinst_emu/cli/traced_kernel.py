"""The kernel that D programs trace, and the workload of the trace."""

import contextlib
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from dtrace.calls.c_file import c_file_words
from dtrace.calls.calls import Evaluation, Statement, check
from dtrace.calls.calls import parse as parse_calls
from dtrace.calls.prototypes import Prototypes, plain, result_line
from dtrace.calls.strings import CallSyntaxError
from dtrace.run.destructive import ActionEnded
from dtrace.run.session import WAKES, Session
from dtrace.run.target import new_target
from dtrace.stacks.stack import failure
from dtrace.stacks.user_programs import UserPrograms
from dwarf.types import Type, declare
from emu.elf.program import ProgramFile
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from emu.machine.call import DEFAULT_LIMIT, Caller, CallError
from emu.machine.machine import Machine, StopReason, Until
from emu.qemu.machine import QemuMachine
from emu.replay.inputs import TYPE
from emu.replay.player import Player
from emu.unicorn.machine import UnicornMachine
from images import catalog
from images.boots import LIMIT, BootError, at_start, boot_to_prompt, booted
from images.guest_files import guest_files
from images.recordings import from_start, played
from images.shell import (
    CommandError,
    compile_program,
    give_command,
    program_files,
    run_command,
    shown_output,
    with_folder,
    with_userland,
    without_marks,
)
from images.systems import with_disks
from kinst.probes.breakpoints import DIRECT, PER_PROBE, Breakpoints
from kinst.probes.seam_breakpoints import SeamBreakpoints
from kinst_emu.cli.boot_words import with_cpus
from kinst_emu.cli.command_line import BOOT, COMMAND, QEMU, CommandLine
from kinst_emu.cli.device_words import connected, with_devices
from kinst_emu.cli.say import say
from kinst_emu.cli.shell_commands import ShellCommands
from kinst_emu.explore.exploration import Runs, record_schedule
from kinst_emu.explore.schedule import read_schedule, schedule_title
from kinst_emu.terminal.json_lines import JsonLines
from kinst_emu.terminal.terminal import parse_size, show_byte
from kinst_emu.trace_page.collected import Collected

# Words before the name of a program in a shell command: operators, keywords and variables
BEFORE_PROGRAM = re.compile(
    r"[();|&{}!]+|if|then|elif|else|while|until|do|exec|command|"
    r"[A-Za-z_][A-Za-z_0-9]*=.*", re.DOTALL)
# Commands that shells carry out themselves, because a process of their own would have no effect
BUILTINS = frozenset("cd chdir export readonly set unset setvar local alias unalias umask ulimit "
                     "trap shift wait read getopts hash times type jobs bg fg : .".split())
SEPARATOR = re.compile(r"[;|&()]+")
REDIRECTION = re.compile(r"[<>]&?$|[<>][<>]$")
IDLE = ("nothing to run; give a call, like: -c 'strlen(\"hello\")', a command, like: -c '$ ls', or "
        "-c boot; without -c, the guest waits only for probes that fire at intervals, like "
        "tick-1s, or for commands of system()")
NO_PROCESS = (1 << 31) - 1  # ID that no process of a guest has
ADVANCE_LIMIT = 2_000_000_000  # maximum number of instructions of a run in advance
PERIOD = 0.25  # seconds between checks for new firings
NEWLINE = 0x0A


def first_program(command: str) -> str:
    """Return the name of the first program that a shell command runs, or "" if there is none."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:  # a quotation mark is missing
        return ""
    redirected = ""
    inside = False  # whether the words are the arguments of a command of the shell itself
    for word, following in pairwise([*words, ""]):
        if inside:
            inside = not SEPARATOR.fullmatch(word)
        elif redirected or (len(word) == 1 and word.isdecimal() and REDIRECTION.match(following)):
            redirected = ""
        elif REDIRECTION.search(word):
            redirected = word
        elif word in BUILTINS:
            inside = True
        elif not BEFORE_PROGRAM.fullmatch(word):
            return Path(word).name
    return ""


class TracedKernel:
    """Kernel prepared for tracing, with its workload; a context manager that also ends QEMU.

    :param typed: the commands that ``system()`` typed in a run in advance, as in
        ``ShellCommands.typed``.
    :raises KinstError: when the options contradict each other, or the kernel cannot be prepared.
    """

    def __init__(self, line: CommandLine, typed: Sequence[tuple[int, str]] = ()) -> None:
        self.line, self.workload, self._typed = line, line.work.workload, typed
        self.player: Player | None = None
        self._resources = contextlib.ExitStack()
        if line.system.machine == QEMU:
            _check_qemu(line)
        if line.work.schedule is not None:
            folder = Path(self._resources.enter_context(tempfile.TemporaryDirectory()))
            line = self.line = _with_schedule(line, line.work.schedule, folder / "order")
        if line.work.replay is not None:
            self.player = played(line.work.replay, line.system.kernel, line.work.limit or LIMIT,
                                 line.system.module)
            self.image = self.player.machine.image
        else:
            system = line.system
            assert system.kernel is not None
            disks = with_disks(catalog.find(system.kernel, system.module), system.disks,
                               system.base, system.single, system.date)
            self.image = with_cpus(with_devices(disks, system.devices), system.cpus)
        self.limit = line.work.limit or (LIMIT if self.workload == BOOT else DEFAULT_LIMIT)
        self.prototypes = Prototypes(self.image)
        self.types = self.prototypes.types()
        self._calls = None
        self._changed: list[str] = []
        self.said: list[str] = []  # what to report before the traced run
        self._command, source = _command_of(line)
        for option in ("setenv", "unsetenv"):
            if self._command is not None and line.texts.options.given(option):
                raise KinstError(f"-x {option}: cannot be used with '$ COMMAND', since the guest's "
                                 "shell sets the variables of all commands")
        files = line.work.files
        if source is not None and self.player is None:
            files = Path(self._resources.enter_context(tempfile.TemporaryDirectory()))
            compile_program(self.image, source, files)
        if self._command is not None and self.player is None:
            self.image = with_userland(self.image)
        if self.player is None:
            self.image = with_folder(self.image, files)
        self._checked = None if line.work.unchecked else self.prototypes
        if self._command is None and self.workload not in (None, BOOT):
            self._calls = _parsed(self.workload)
            check(self.image, self._calls, self._checked)
        memory = parse_size(line.system.memory or "512M")
        with contextlib.ExitStack() as undo:
            undo.callback(self._resources.close)
            breakpoints: Breakpoints | SeamBreakpoints = (
                self._on_qemu(booted(self.image, memory)) if line.system.machine == QEMU else
                self._on_unicorn(self._emulated(memory)))
            for path in line.work.user_programs:
                ProgramFile(path)  # report an unreadable file before the trace starts
            named = {path.name: path for path in line.work.user_programs}
            self.target = new_target(
                breakpoints, self.types, line.system.unsafe,
                UserPrograms(
                    program_files(self.image, files), named,
                    guest_files(self.image, line.work.sysroot),
                    breakpoints.machine.guest.programs.debug_file), self._first_word,
                command=self._in_advance if self.player is None and (
                    self._command is not None or typed) else None)
            self.commands = ShellCommands(
                self.machine if self.player is None and (
                    self._command is not None or self._may_wait(self.machine)) else None,
                line.work.limit or LIMIT, line.work.idle, line.texts.options, say)
            if line.work.process is not None:
                self.target.processes.check(line.work.process)
            undo.pop_all()

    @property
    def runs(self) -> bool:
        """Whether the programs are run, not only listed or compiled."""
        return not self.line.shown.listing and not self.line.shown.compile_only

    @property
    def idle(self) -> bool:
        """Whether the programs are run without a workload."""
        return self.runs and self.workload is None and self.player is None

    def _emulated(self, memory: int) -> UnicornMachine:
        if self.player is not None:
            from_start(self.player)
            return self.player.machine
        if self.workload == BOOT and self.runs:
            machine = UnicornMachine(self.image, memory)
            machine.boot()
            at_start(machine)
            return machine
        machine = booted(self.image, memory)
        if self._command is None and not self._may_wait(machine):
            machine.console.text.clear()  # a shell needs the prompt that is already on the console
        return machine

    def _may_wait(self, machine: Machine) -> bool:
        """Return whether a guest without a workload is at the prompt of a shell."""
        prompt = machine.guest.boot.shell_prompt
        return self.idle and bool(prompt) and machine.console.text.endswith(prompt.encode())

    @property
    def shell(self) -> dict[str, int]:
        """Values of ``$pid``, ``$ppid`` and so on: those of the guest's shell.

        Without a shell, no process has these IDs.
        """
        return self.target.processes.shell() or dict.fromkeys(
            ("pid", "ppid", "pgid", "sid"), NO_PROCESS)

    @property
    def target_process(self) -> int:
        """Value of ``$target``: a process ID, or 0 if there is no target process.

        It is the process of -p, or the first one that the guest's shell creates for the command.

        :raises KinstError: when the kernel does not record the last process it created.
        """
        if self.line.work.process is not None:
            return self.line.work.process
        if self._command is None and self.player is None:
            return 0
        return self.target.processes.made_next

    def _first_word(self) -> str:
        """Return the program name in the command, or in the first line typed in a recording."""
        command = self._command or ""
        if self.player is not None:
            typed = b"".join(event.value for event in self.player.recording.inputs
                             if event.kind == TYPE and not event.name)
            command = (typed.splitlines() or [b""])[0].decode("utf-8", "replace")
        return first_program(command)

    def _in_advance(self) -> None:
        """Run the command, and the commands of ``system()``, but not for long.

        Their output is not shown.
        """
        machine = self.machine
        assert isinstance(machine, UnicornMachine)
        limit = machine.instructions + min(self.line.work.limit or LIMIT, ADVANCE_LIMIT)
        given = [] if self._command is None else [(0, self._command)]
        with PROGRESS.working("running the command in advance to see which files it maps"), \
                self._devices():
            for time, command in [*given, *self._typed]:
                try:
                    run = run_command
                    while machine.now < time:
                        run = give_command  # the guest does not stop just at the prompt
                        stop = machine.run(Until(instructions=limit, time=time))
                        if stop.reason is StopReason.INTERRUPTED:
                            raise KeyboardInterrupt
                        if stop.reason is not StopReason.TIME:
                            raise CommandError(f"the guest did not wait: {stop}", stop)
                    run(machine, command, limit - machine.instructions, self.line.work.idle)
                except CommandError as error:
                    if error.stop is None:
                        raise
                    self.said.append(f"run in advance: {error}; files that are mapped later have "
                                     "no probes")
                    return

    def _on_unicorn(self, machine: UnicornMachine) -> Breakpoints:
        line = self.line
        self.machine: Machine = machine
        self.breakpoints: Breakpoints | None
        self.breakpoints = breakpoints = Breakpoints(
            machine, path=line.system.trap_path, trampolines=line.system.trampolines,
            records=line.shown.report is not None)
        self.collected = Collected(
            catalog.described(self.image), self.workload or _played_words(line),
            tuple(line.shown.sources))
        breakpoints.dispatcher.sink = self.collect
        breakpoints.answers = self.player is None
        return breakpoints

    def _on_qemu(self, source: UnicornMachine) -> SeamBreakpoints:
        machine = self._resources.enter_context(QemuMachine.carry(source))
        machine.console.text.clear()
        self.machine, self.breakpoints = machine, None
        return SeamBreakpoints(machine)

    def __enter__(self) -> "TracedKernel":
        return self

    def __exit__(self, *_error: object) -> None:
        self._resources.close()

    def collect(self) -> None:
        """Collect the dispatcher's firing records for the --report page."""
        if self.breakpoints is not None:
            self.collected.take(self.breakpoints)

    def run(self, session: Session, rows: JsonLines | None) -> None:
        """Run the workload while a session traces.

        :param rows: writer for JSON output; None prints the console output and the result as text.
        :raises KinstError: when the workload fails; the guest's stack has then been printed.
        """
        machine = self.machine
        show: Callable[[int], None] = show_byte if rows is None else rows.byte
        console = _Console(session, show)
        # Remove the shell's invisible marks first; otherwise a mark would count as the start of a
        # line.
        if self.commands.available:
            machine.console.stream = shown_output(console.byte)
        elif self.player is not None:
            machine.console.stream = without_marks(console.byte)
        else:
            for byte in bytes(machine.console.text):
                show(byte)  # the guest printed this before the probes were enabled
            machine.console.stream = console.byte
        try:
            with PROGRESS.working("running the traced workload"), console.streaming(), \
                    self._devices():
                shown = self._work(session)
        except (ActionEnded, CallError, BootError, CommandError) as error:
            session.look()
            # A machine on QEMU has no failure report.
            stack = [] if self.breakpoints is None else failure(machine)
            if rows is not None:
                rows.row({"error": str(error), "stack": [line.strip() for line in stack]})
            else:
                print("".join(f"{line}\n" for line in stack), end="")
            if self.breakpoints is not None and self.breakpoints.threads:
                print(f"dtrace: {OVERWRITTEN}", file=sys.stderr)
            raise
        finally:
            self.commands.ended = True
            if rows is not None:
                rows.end_line()  # complete the last line: a prompt does not end with a newline
        if shown is not None:
            session.look()
            kind, value = shown
            if rows is None and not self.line.texts.options.given("quiet"):
                print("".join(f"{line}\n" for line in self._changed), end="")
                print(result_line(str(self.workload), machine, kind, value))
            elif rows is not None:
                rows.row({"call": self.workload, "value": plain(machine, kind, value)}
                         | ({} if kind is None else {"type": declare(kind)})
                         | ({"changed": self._changed} if self._changed else {}))

    def _devices(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which the guest's devices are connected to files."""
        if self.player is None and isinstance(self.machine, UnicornMachine):
            return connected(self.machine, self.line.system.devices)
        return contextlib.nullcontext()

    def command_by(self, session: Session, rows: JsonLines | None) -> None:
        """Let the guest's shell run the commands of a session's ``system()``."""
        session.consumer.shell = lambda command: self.commands.system(command, rows)
        session.held = lambda: self.commands.running
        self.commands.over = lambda: session.stopped

    def rehearse(self, session: Session) -> list[tuple[int, str]]:
        """Run the workload while a session traces, without output or an error of the workload.

        :return: the commands that ``system()`` typed, as in ``ShellCommands.typed``.
        :raises KeyboardInterrupt: if Ctrl-C has ended it.
        """
        self.commands.say = lambda _text: None
        self.commands.rehearses = session.consumer.rehearses = True
        self.command_by(session, None)

        def work() -> None:
            with self._devices():
                self._work(session)
            self.commands.ended = True

        with PROGRESS.working("running the command in advance to see what system() starts"), \
                contextlib.suppress(KinstError):
            session.run(work)
        if session.interrupted and not session.ended_itself:
            raise KeyboardInterrupt
        return self.commands.typed

    def _work(self, session: Session) -> tuple[Type | None, int] | None:
        """Run the workload; if it is a call, return the type and value of the result, else None."""
        self.commands.began = True
        if self.player is not None:
            self.player.advance_to_end()
            return None
        if self.idle:
            self._wait(session)
            return None
        if self._command is not None:
            assert isinstance(self.machine, UnicornMachine)
            self.commands.run_all(self._command)
            return None
        if self._calls is None:
            assert isinstance(self.machine, UnicornMachine)
            boot_to_prompt(self.machine, self.limit)
            return None
        evaluation = Evaluation(Caller(self.machine, self.limit), self._checked)
        value = evaluation.run(self._calls)
        self._changed = evaluation.changed
        return evaluation.kind, value


    def _wait(self, session: Session) -> None:
        """Let a guest without a workload wait until tracing ends, and run commands of ``system()``.

        It does not wait if no probe fires at intervals and no command is left.

        :raises KinstError: if it has nothing to wait for, or does not wait.
        """
        machine = self.machine
        if not isinstance(machine, UnicornMachine):
            raise KinstError(IDLE)
        most = self.line.work.limit or LIMIT
        limit, idle, idled = machine.instructions + most, self.line.work.idle, 0
        ran, later = False, WAKES
        while not session.stopped:
            if self.commands.run_next():
                ran, idled = True, 0
            elif session.has_timers:
                if idled >= idle:
                    self.commands.say(
                        f"the guest has been idle for {idle / 1e9:g} virtual seconds: ending the "
                        "trace; --idle sets another limit")
                    break
                self.commands.waits = True
                shown, busy = len(machine.console.text), machine.instructions
                begin = machine.now
                stop = machine.run(Until(
                    instructions=limit,
                    time=begin + min(session.period, idle - idled) + later))
                later = 0
                idled += max(0, machine.now - begin - (machine.instructions - busy))
                if len(machine.console.text) != shown:
                    idled = 0
                if stop.reason is StopReason.INTERRUPTED and not session.stopped:
                    raise KeyboardInterrupt
                if stop.reason is StopReason.INSTRUCTIONS:
                    raise CommandError(f"tracing has not ended after {most:,} instructions; "
                                       "--limit sets another limit", stop)
                if stop.reason not in (StopReason.TIME, StopReason.INTERRUPTED):
                    raise CommandError(f"the guest did not wait: {stop}", stop)
            elif ran:
                break
            else:
                raise KinstError(IDLE)
            session.look(force=False)
        self.commands.run_rest()


def _parsed(workload: str) -> list[Statement]:
    """Parse the calls of a workload.

    :raises CallSyntaxError: when they cannot be parsed, with a hint if they look like a command.
    """
    try:
        return parse_calls(workload)
    except CallSyntaxError as error:
        if "(" in workload:
            raise
        raise CallSyntaxError(f"{error}; to run a command in the guest's shell, begin with a "
                              f"dollar: -c '$ {workload}'") from None


OVERWRITTEN = (
    "--trampolines=thread: a probe that fires in an interrupt or a page fault overwrites the "
    "trampoline of the thread that it interrupts, which may be why this run failed "
    "(docs/per-thread.md); --trampolines=probe gives each probe its own")


class _Console:
    """The guest's console; new firings are printed before each new line of console output.

    While the guest writes nothing, firings are printed four times a second.

    :param show: writes one byte of console output.
    """

    def __init__(self, session: Session, show: Callable[[int], None]) -> None:
        self._session, self._show = session, show
        self._begins, self._busy = True, False

    def byte(self, value: int) -> None:
        """Print one byte of console output; at the start of a line, print new firings first."""
        self._busy = True
        try:
            if self._begins:
                self._session.hurry()
            self._begins = value == NEWLINE
            self._show(value)
        finally:
            self._busy = False

    @contextlib.contextmanager
    def streaming(self) -> Iterator[None]:
        """Print new firings four times a second during a ``with`` block."""
        before = signal.signal(signal.SIGALRM, self._tick)
        signal.setitimer(signal.ITIMER_REAL, PERIOD, PERIOD)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _tick(self, _signal: int, _frame: object) -> None:
        if not self._busy:
            self._session.hurry()


def _command_of(line: CommandLine) -> tuple[str | None, Path | None]:
    """Return a workload's shell command, and the C file to compile for it; both may be None.

    :raises KinstError: when --files is given without a command.
    """
    workload = line.work.workload or ""
    if workload.startswith(COMMAND):
        return workload.removeprefix(COMMAND).strip(), None
    words = c_file_words(workload)
    if words and line.work.files is None:
        source = Path(words[0])
        return shlex.join((f"/files/{source.stem}", *words[1:])), source
    system = line.system
    if line.work.files is not None and (workload or not (system.base or system.disks)):
        raise KinstError("--files: works only with a command, as in -c '$ ls /files', or with a "
                         "base system that runs commands of system()")
    return None, None


def _played_words(line: CommandLine) -> str:
    if line.work.schedule is None:
        return f"--replay {line.work.replay}"
    return schedule_title(line.work.runs, read_schedule(line.work.schedule, len(line.work.runs)))


def _with_schedule(line: CommandLine, schedule: str, path: Path) -> CommandLine:
    """Record the run of a schedule in a file, and return a command line that replays this file."""
    system, work = line.system, line.work
    assert system.kernel is not None
    with PROGRESS.working("recording the schedule"):
        record_schedule(catalog.find(system.kernel, system.module), Runs(work.runs, work.setup),
                     schedule, parse_size(system.memory or "512M"), path, work.unchecked,
                     system.cpus)
    return replace(line, work=replace(work, replay=path),
                   system=replace(system, memory=None, cpus=None))


def _check_qemu(line: CommandLine) -> None:
    """Check that QEMU supports the options.

    :raises KinstError: when an option needs the Unicorn machine.
    """
    system, work = line.system, line.work
    if (work.workload or "").startswith(COMMAND):
        raise KinstError("--machine qemu: cannot run shell commands, which need the devices of "
                         "the default machine; give a call")
    if work.workload == BOOT or system.trap_path == DIRECT or system.trampolines != PER_PROBE:
        raise KinstError("--machine qemu: runs only calls on a booted kernel; leave out -c boot, "
                         "--trap-path=direct and --trampolines=thread")
    if (system.cpus or 1) > 1:
        raise KinstError("--machine qemu: emulates one CPU; leave out --cpus")
