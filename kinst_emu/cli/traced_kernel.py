"""The kernel that a D program traces, and what it is to do meanwhile."""

import contextlib
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from dtrace.calls.c_file import c_file_words
from dtrace.calls.calls import Evaluation, Statement, check
from dtrace.calls.calls import parse as parse_calls
from dtrace.calls.prototypes import Prototypes, plain, result_line
from dtrace.calls.strings import CallSyntaxError
from dtrace.run.destructive import ActionEnded
from dtrace.run.session import Session
from dtrace.run.target import new_target
from dtrace.stacks.stack import failure
from dtrace.stacks.user_programs import UserPrograms
from dwarf.types import Type, declare
from emu.elf.program import ProgramFile
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from emu.machine.call import DEFAULT_LIMIT, Caller, CallError
from emu.machine.machine import Machine
from emu.qemu.machine import QemuMachine
from emu.replay.inputs import TYPE
from emu.replay.player import Player
from emu.unicorn.machine import UnicornMachine
from images import catalog
from images.boots import LIMIT, BootError, at_start, boot_to_prompt, booted
from images.recordings import from_start, played
from images.shell import (
    CommandError,
    compile_program,
    program_files,
    shown_output,
    with_folder,
    with_userland,
    without_marks,
)
from kinst.probes.breakpoints import DIRECT, PER_PROBE, Breakpoints
from kinst.probes.seam_breakpoints import SeamBreakpoints
from kinst_emu.cli.boot_words import with_cpus, with_disks
from kinst_emu.cli.command_line import BOOT, COMMAND, QEMU, CommandLine
from kinst_emu.cli.shell_commands import ShellCommands
from kinst_emu.explore.exploration import Runs, record_order
from kinst_emu.explore.order import order_title, read_order
from kinst_emu.terminal.json_lines import JsonLines
from kinst_emu.terminal.terminal import parse_size, show_byte
from kinst_emu.trace_page.collected import Collected

IDLE = ("nothing to run; give a call, like: -c 'strlen(\"hello\")', a command, like: -c '$ ls', or "
        "-c boot")
PERIOD = 0.25  # seconds between looks at what has fired
NEWLINE = 0x0A


class TracedKernel:
    """A context manager, which ends QEMU.

    :raises KinstError: for what cannot be.
    """

    def __init__(self, line: CommandLine) -> None:
        self.line, self.workload = line, line.work.workload
        self.player: Player | None = None
        self._resources = contextlib.ExitStack()
        if line.system.machine == QEMU:
            _check_qemu(line)
        if line.work.schedule is not None:
            folder = Path(self._resources.enter_context(tempfile.TemporaryDirectory()))
            line = self.line = _with_order(line, line.work.schedule, folder / "order")
        if line.work.replay is not None:
            self.player = played(line.work.replay, line.system.kernel, line.work.limit or LIMIT,
                                 line.system.module)
            self.image = self.player.machine.image
        else:
            system = line.system
            assert system.kernel is not None
            self.image = with_cpus(
                with_disks(catalog.find(system.kernel, system.module), system.disks), system.cpus)
        self.limit = line.work.limit or DEFAULT_LIMIT
        self.prototypes = Prototypes(self.image)
        self.types = self.prototypes.types()
        runs = not line.shown.listing and not line.shown.compile_only
        self.idle = runs and self.workload is None and self.player is None
        self._calls = None
        self._changed: list[str] = []
        self._command, source = _command_of(line)
        for option in ("setenv", "unsetenv"):
            if self._command is not None and line.texts.options.given(option):
                raise KinstError(f"-x {option}: the guest's shell gives its own variables to all "
                                 "commands")
        files = line.work.files
        if line.system.disks and (source is not None or files is not None):
            raise KinstError("--disk: has the programs that it has; leave out --files, or compile "
                             "the program into it")
        if source is not None and self.player is None:
            files = Path(self._resources.enter_context(tempfile.TemporaryDirectory()))
            compile_program(self.image, source, files)
        if self._command is not None and self.player is None:
            self.image = with_folder(with_userland(self.image), files)
        self._checked = None if line.work.unchecked else self.prototypes
        if self._command is None and self.workload not in (None, BOOT):
            self._calls = _parsed(self.workload)
            check(self.image, self._calls, self._checked)
        memory = parse_size(line.system.memory or "512M")
        with contextlib.ExitStack() as undo:
            undo.callback(self._resources.close)
            breakpoints: Breakpoints | SeamBreakpoints = (
                self._on_qemu(booted(self.image, memory)) if line.system.machine == QEMU else
                self._on_unicorn(self._emulated(memory, runs)))
            for path in line.work.user_programs:
                ProgramFile(path)  # what cannot be read is said at once
            named = {path.name: path for path in line.work.user_programs}
            self.target = new_target(
                breakpoints, self.types, line.system.unsafe,
                UserPrograms(program_files(self.image, files), named), self._first_word)
            self.commands = ShellCommands(
                self.machine if self._command is not None and self.player is None else None,
                line.work.limit or LIMIT, line.texts.options)
            if line.work.process is not None:
                self.target.processes.check(line.work.process)
            undo.pop_all()

    def _emulated(self, memory: int, runs: bool) -> UnicornMachine:
        if self.player is not None:
            from_start(self.player)
            return self.player.machine
        if self.workload == BOOT and runs:
            machine = UnicornMachine(self.image, memory)
            machine.boot()
            at_start(machine)
            return machine
        machine = booted(self.image, memory)
        if self._command is None:  # a command begins at the prompt that is there
            machine.console.text.clear()
        return machine

    @property
    def target_process(self) -> int:
        """``$target``: the process of -p, or the one that our shell makes first for the command; 0:
        there is none.

        :raises KinstError: when the kernel does not say which it made last.
        """
        if self.line.work.process is not None:
            return self.line.work.process
        if self._command is None and self.player is None:
            return 0
        return self.target.processes.made_next

    def _first_word(self) -> str:
        """The name of the program that the command begins with, or the first line that is typed in
        a recording."""
        command = self._command or ""
        if self.player is not None:
            typed = b"".join(one.value for one in self.player.recording.inputs
                             if one.kind == TYPE)
            command = (typed.splitlines() or [b""])[0].decode("utf-8", "replace")
        words = command.split()
        return Path(words[0]).name if words else ""

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
        """Take the dispatcher's records, for a page."""
        if self.breakpoints is not None:
            self.collected.take(self.breakpoints)

    def run(self, session: Session, rows: JsonLines | None) -> None:
        """Do what was asked for, while a session traces.

        :param rows: are given what the guest writes, and the result; None: they are printed.
        :raises KinstError: when it fails; how it came there has been printed.
        """
        machine = self.machine
        show: Callable[[int], None] = show_byte if rows is None else rows.byte
        console = _Console(session, show)
        # Of a line, the first byte that is shown: the shell's marks come before a command.
        if self._command is not None:
            machine.console.stream = shown_output(console.byte)
        elif self.player is not None:
            machine.console.stream = without_marks(console.byte)
        else:
            for byte in bytes(machine.console.text):
                show(byte)  # what was said before there were probes
            machine.console.stream = console.byte
        try:
            with PROGRESS.working("running, traced"), console.streaming():
                shown = self._work()
        except (ActionEnded, CallError, BootError, CommandError) as error:
            session.look()
            stack = [] if self.breakpoints is None else failure(machine)  # QEMU may have ended
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
                rows.end_line()  # a prompt has no newline
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

    def _work(self) -> tuple[Type | None, int] | None:
        """What a call gives, and its type where that is known."""
        if self.player is not None:
            self.player.advance_to_end()
            return None
        if self.idle:  # what begins has not ended it
            raise KinstError(IDLE)
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


def _parsed(workload: str) -> list[Statement]:
    """:raises CallSyntaxError: with the way to give a command, where it looks like one."""
    try:
        return parse_calls(workload)
    except CallSyntaxError as error:
        if "(" in workload:
            raise
        raise CallSyntaxError(f"{error}; a command for the guest's shell begins with a dollar: "
                              f"-c '$ {workload}'") from None


OVERWRITTEN = (
    "--trampolines=thread: a probe that fires in an interrupt or a page fault overwrites the "
    "trampoline of the thread that it interrupts, which may be why this run failed "
    "(docs/per-thread.md); --trampolines=probe gives each probe its own")


class _Console:
    """The guest's console, with what has fired before each of its lines; what has fired also
    appears soon where the guest says nothing.

    :param show: writes a byte.
    """

    def __init__(self, session: Session, show: Callable[[int], None]) -> None:
        self._session, self._show = session, show
        self._begins, self._busy = True, False

    def byte(self, value: int) -> None:
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
        """Look at what has fired four times a second."""
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
    """What is behind the ``$`` of a workload; or a file of C, and the command that runs it.

    :raises KinstError: when files are given for no command.
    """
    workload = line.work.workload or ""
    if workload.startswith(COMMAND):
        return workload.removeprefix(COMMAND).strip(), None
    words = c_file_words(workload)
    if words and line.work.files is None:
        source = Path(words[0])
        return shlex.join((f"/files/{source.stem}", *words[1:])), source
    if line.work.files is not None:
        raise KinstError("--files: goes with a command, as in -c '$ ls /files'")
    return None, None


def _played_words(line: CommandLine) -> str:
    if line.work.schedule is None:
        return f"--replay {line.work.replay}"
    return order_title(line.work.runs, read_order(line.work.schedule, len(line.work.runs)))


def _with_order(line: CommandLine, schedule: str, path: Path) -> CommandLine:
    """The line with a recording of the order, in the file."""
    system, work = line.system, line.work
    assert system.kernel is not None
    with PROGRESS.working("recording the order"):
        record_order(catalog.find(system.kernel, system.module), Runs(work.runs, work.setup),
                     schedule, parse_size(system.memory or "512M"), path, work.unchecked,
                     system.cpus)
    return replace(line, work=replace(work, replay=path),
                   system=replace(system, memory=None, cpus=None))


def _check_qemu(line: CommandLine) -> None:
    """:raises KinstError: for what needs our own machine."""
    system, work = line.system, line.work
    if (work.workload or "").startswith(COMMAND):
        raise KinstError("--machine qemu runs calls: its devices are not those that a command is "
                         "typed at")
    if work.workload == BOOT or system.trap_path == DIRECT or system.trampolines != PER_PROBE:
        raise KinstError("--machine qemu runs calls on a booted kernel, by the guest's trap path, "
                         "with a trampoline for each probe: not -c boot, --trap-path=direct, "
                         "--trampolines=thread")
    if (system.cpus or 1) > 1:
        raise KinstError("--machine qemu: has one CPU; leave out --cpus")
