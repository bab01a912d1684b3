"""Run commands in the guest's shell: the workload, and the commands of ``system()``."""

from collections.abc import Callable

from dtrace.d.language.options import Options
from emu.host.errors import KinstError
from emu.machine.machine import Machine
from emu.unicorn.machine import UnicornMachine
from images.shell import (
    CommandError,
    check_command,
    give_command,
    is_begun,
    run_command,
    shown_output,
)
from kinst_emu.terminal.json_lines import JsonLines
from kinst_emu.terminal.terminal import show_byte

MOST_COMMANDS = 1000  # maximum number of system() calls
UNFINISHED = "tracing ended before the workload"


class ShellCommands:
    """Commands for the guest's shell: the workload and the commands of ``system()``.

    :param machine: machine whose shell runs the commands; None when there is no shell.
    :param limit: instructions after which a command is stopped.
    :param idle: idle virtual time in ns after which a command is stopped.
    :param options: D options.
    :param say: prints a message on standard error.
    :ivar over: returns whether tracing has ended.
    :ivar began: whether the workload has begun.
    :ivar rehearses: whether the trace is only a run in advance, in which END runs no commands.
    :ivar waits: whether the guest has been waiting at the shell's prompt, not just reached it.
    :ivar running: whether a command that ``system()`` queued is running.
    :ivar ended: whether the workload has ended.
    :ivar typed: the commands of ``system()`` that were run while tracing, with the virtual time in
        ns at which each was typed.
    """

    def __init__(self, machine: Machine | None, limit: int, idle: int, options: Options,
                 say: Callable[[str], None]) -> None:
        self._machine = machine if isinstance(machine, UnicornMachine) else None
        self._limit, self._idle, self._options, self.say = limit, idle, options, say
        self._waiting: list[str] = []
        self._left, self.ended, self._done = MOST_COMMANDS, False, False
        self.waits = self.running = self.began = self.rehearses = False
        self.over: Callable[[], bool] = lambda: False
        self.typed: list[tuple[int, str]] = []

    @property
    def available(self) -> bool:
        """Whether there is a shell that runs commands."""
        return self._machine is not None

    def run_all(self, workload: str) -> None:
        """Run the workload, then the commands that ``system()`` queued meanwhile.

        :raises CommandError: when a command cannot be run.
        """
        self._run(workload)
        self.run_rest()

    def run_rest(self) -> None:
        """Run the commands that ``system()`` has queued; later ones run at once.

        :raises CommandError: when a command cannot be run.
        """
        while self.run_next():
            pass
        self._done = True

    def run_next(self) -> bool:
        """Run the next command that ``system()`` queued; return whether there was one.

        :raises CommandError: when it cannot be run.
        """
        if not self._waiting:
            return False
        assert self._machine is not None
        self.typed.append((self._machine.now, self._waiting[0]))
        command = self._waiting.pop(0)
        self.running = True
        try:
            self._run(command)
        except CommandError as error:
            if not self.over() and not self._at_prompt:
                raise
            self._not_run(command, str(error), "")
            return self._at_prompt
        finally:
            self.running = False
        return True

    @property
    def _at_prompt(self) -> bool:
        machine = self._machine
        return machine is not None and machine.console.text.endswith(
            machine.guest.boot.shell_prompt.encode())

    def system(self, command: str, rows: JsonLines | None) -> None:
        """Carry out ``system()``: queue the command until the workload ends; run it at once in END.

        A command that cannot be run is reported, and tracing continues.

        :param rows: writer for JSON output; None for text.
        :raises KinstError: when a program issues too many commands.
        """
        machine = self._machine
        if machine is None:
            self._not_run(command, "system() needs the guest's shell: give -c '$ COMMAND' or "
                          "--base, and no recording")
            return
        if self.rehearses and (self.ended or self.over()):
            return
        self._left -= 1
        if self._left < 0:
            raise KinstError(f"system(): called more than {MOST_COMMANDS} times")
        try:
            check_command(command)
        except CommandError as error:
            self._not_run(command, str(error))
            return
        if self.ended and not self._done:
            self._not_run(command, UNFINISHED)
            return
        if not self.ended and (self.began or not self.over()):
            self._waiting.append(command)
            return
        show: Callable[[int], None] = show_byte if rows is None else rows.byte
        stream = machine.console.stream
        machine.console.stream = shown_output(show, is_begun(machine))
        try:
            self._run(command)
        except CommandError as error:
            self._not_run(command, str(error))
        finally:
            machine.console.stream = stream
            if rows is not None:
                rows.end_line()

    def forget(self) -> None:
        """Report the queued commands of ``system()`` that were not run before tracing ended."""
        while self._waiting:
            self._not_run(self._waiting.pop(0), UNFINISHED)

    def _run(self, command: str) -> None:
        """Run a command and, like dtrace(1), report a nonzero exit status."""
        assert self._machine is not None
        run = give_command if self.waits else run_command
        ran = run(self._machine, command, self._limit, self._idle)
        if ran.status and not self._options.given("quiet"):
            self.say(f"'{command}' exited with status {ran.status}")

    def _not_run(self, command: str, why: str, what: str = "not run: ") -> None:
        shown = command.encode("utf-8", "backslashreplace").decode()[:60]
        self.say(f"system('{shown}'): {what}{why}")
