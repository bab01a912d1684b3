"""Runs that are programs, started by the guest's shell and stopped at their first instructions."""

import re
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dtrace.calls.c_file import c_file_words
from dtrace.debug.kernel_types import kernel_types
from dtrace.stacks.threads import structure
from dwarf.values import CStruct
from emu.elf.image import Image
from emu.machine.call import Caller
from emu.machine.machine import Stop, StopReason, Until
from emu.machine.running_thread import thread_of
from emu.unicorn.machine import UnicornMachine
from images.shell import (
    at_shell,
    check_command,
    compile_program,
    has_our_shell,
    with_folder,
)
from kinst.relocation.trap import TRAPS
from kinst_emu.explore.threads import PATIENCE, StartedRun, StartError, stand_in_thread

COMMAND = "$ "
NOT_PLAIN = frozenset("|&;<>")  # shell operators that combine or redirect commands
SELF = (1 << 64) - 1
# maximum number of instructions between the shell's reading of a command and the program's start
SOON = 5_000_000
NOT_FOUND = ": not found\r\n"  # text that the shell prints after the name of a missing program


def with_c_files(image: Image, texts: Sequence[str]) -> tuple[Image, list[str]]:
    """Compile the runs that are C files, and replace these runs with shell commands.

    :return: the image with the programs in /files, and the new texts of the runs.
    :raises KinstError: a file cannot be read or compiled.
    """
    files = {text: words for text in texts if not is_command(text)
             and (words := c_file_words(text))}
    if not files:
        return image, list(texts)
    sources = {Path(words[0]).resolve() for words in files.values()}
    if len({source.stem for source in sources}) < len(sources):
        raise StartError("--run: two C files have the same name; rename one of them")
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted(sources):
            compile_program(image, source, Path(folder))
        image = with_folder(image, Path(folder))
    lines = {text: shlex.join([f"/files/{Path(words[0]).stem}", *words[1:]])
             for text, words in files.items()}
    return image, [COMMAND + lines[text] if text in files else text for text in texts]


def is_command(text: str) -> bool:
    """Return whether a run is a shell command rather than a call."""
    return text.startswith(COMMAND)


def command_of(text: str) -> str:
    """Return the shell command of a run.

    :raises KinstError: the run is not a single command.
    """
    command = check_command(text.removeprefix(COMMAND).strip())
    if NOT_PLAIN & set(command):
        raise StartError(f"--run '{text}': must be one program with its arguments, without any of "
                         + " ".join(sorted(NOT_PLAIN)))
    return command


def begin_programs(machine: UnicornMachine, texts: Sequence[str]) -> list[StartedRun]:
    """Start programs from the shell, and stop each program at its first instruction.

    With several CPUs, each program is on its own CPU, it is the first program's turn, and the other
    CPUs are held.  On one CPU, the first program is running, and the others are queued.

    :raises StartError: a program does not begin.
    """
    at_shell(machine)
    starting = _Starting(machine, texts)
    if machine.schedule.several:
        stand_in_thread(machine)
        starting.bind(len(texts) - 1)
    starting.type("".join(f"{command_of(text)} & " for text in texts) + "\r")
    while len(starting.standing) < len(texts) or not starting.shell_waits:
        starting.go_on()
    starting.all_stand()
    machine.schedule.held.clear()
    machine.give_turn(0, range(1, len(texts)) if machine.schedule.several else ())
    return [run for _number, run in sorted(starting.runs.items())]


class _Starting:
    """Programs that the shell is starting, up to their first instructions.

    On several CPUs, programs may reach their first instructions in any order.  The process numbers,
    which follow the order of the command line, tell the programs apart.

    :ivar runs: programs that have begun, by number.
    :ivar standing: numbers of the programs that have reached their first instruction.
    """

    def __init__(self, machine: UnicornMachine, texts: Sequence[str]) -> None:
        guest = machine.guest
        kind = structure(kernel_types(machine.image), guest.threads.lists.thread)
        if (guest.programs.start is None or guest.threads.start is None or kind is None
                or guest.threads.switch is None):
            raise StartError("the kernel cannot run programs, or its debug data has no thread type")
        self.machine, self._texts, self._kind = machine, texts, kind
        self._start, self._switch = guest.programs.start, guest.threads.switch
        self._executed = machine.symbol(guest.programs.start.executed).address
        self._reads = machine.symbol(guest.threads.start.stands).address
        self._limit = machine.instructions + PATIENCE
        self.runs: dict[int, StartedRun] = {}
        self._first = 0  # process ID of the first program
        self.standing: set[int] = set()
        # the shell's thread, and how often the shell has to read until it waits for a new line
        self._shell = self._unread = 0

    def _here(self) -> int | None:
        """Return the number of the program whose first instruction is next on this CPU, or None."""
        return next((n for n, run in self.runs.items() if self.machine.pc == run.address
                     and thread_of(self.machine) == run.thread), None)

    def type(self, line: str) -> None:
        """Type a line; the shell must be waiting for a new line."""
        # The kinst-emu shell reads characters; a shell that edits no lines reads the whole line.
        self._unread = len(line) if has_our_shell(self.machine.image) else 1
        last = self.machine.symbol(self.machine.guest.programs.last_process).address
        self._first = int.from_bytes(self.machine.read(last, 4), "little") + 1
        self.machine.type(line.encode())

    @property
    def shell_waits(self) -> bool:
        """Whether the shell has read the whole line and is waiting for the next one."""
        return self._unread <= 0

    def bind(self, cpu: int) -> None:
        """Bind the running thread, and the threads that it creates, to a CPU."""
        error = Caller(self.machine, PATIENCE, on_stack=False).call(
            self.machine.symbol(self._start.bind).address, [SELF, cpu], self._start.bind)
        if error & 0xFFFFFFFF:
            raise StartError(f"cannot bind the thread to CPU {cpu}: {self._start.bind} returned "
                             f"error {error & 0xFFFFFFFF}")

    def _run(self) -> Stop:
        """Run until a program is executed or about to begin, or the shell reads input."""
        stop = self.machine.run(Until(
            addresses=[self._reads, self._executed, *(run.address for run in self.runs.values())],
            console=NOT_FOUND, instructions=self._limit))
        if stop.reason is StopReason.ADDRESS:
            return stop
        if stop.reason is StopReason.CONSOLE:
            line = self.machine.console.text.removesuffix(NOT_FOUND.encode())
            name = re.split(rb"[\s\007]", line)[-1].decode(errors="replace")
            raise StartError(f"--run '{COMMAND}{name}': program {name} not found; list the shell's "
                             "programs with: kinst run -k KERNEL 'ls /bin'")
        raise StartError(f"--run: only {len(self.runs)} of {len(self._texts)} programs started "
                         f"({stop}); check that all exist (the shell's programs are in /bin)")

    def go_on(self) -> None:
        """Let a program at its first instruction give up the CPU, then run to the next event.

        The kernel's own threads may need the CPU.
        """
        machine, several = self.machine, self.machine.schedule.several
        here = self._here()
        if here is not None:
            machine.ring_timer()
            thread = CStruct(self._kind, self.runs[here].thread, machine)
            thread[self._switch.owes] = 1
            thread[self._switch.flags] = int(thread[self._switch.flags]) | self._switch.ended
            if several:
                machine.schedule.over()
        stop = self._run()
        if stop.pc == self._reads:
            self._shell = self._shell or thread_of(machine)
            self._unread -= thread_of(machine) == self._shell
            if self.shell_waits:  # a program that exists starts within SOON instructions
                self._limit = min(self._limit, machine.instructions + SOON)
        elif stop.pc == self._executed and len(self.runs) < len(self._texts):
            self._begins()
        elif (here := self._here()) is not None:
            self.standing.add(here)

    def _begins(self) -> None:
        """Run a thread until the first instruction of the thread's program is known.

        The other CPUs are held meanwhile.
        """
        machine = self.machine
        thread = machine.read_register(machine.arch.arguments[0])
        number = self._number_of(thread)
        text = self._texts[number]
        held = set(machine.schedule.held)
        if machine.schedule.several:
            machine.schedule.held |= {cpu.number for cpu in machine.cpus} - {machine.cpu.number}
            self.bind(number)
        back = machine.arch.return_address(machine)
        stop = machine.run(Until(addresses=[back], instructions=self._limit))
        if stop.reason is not StopReason.ADDRESS:
            raise StartError(f"--run '{text}': the program did not start: {stop}")
        machine.schedule.held = held
        members = CStruct(self._kind, thread, machine)
        for name, value in self._start.levels:
            members[name] = value
        trap = TRAPS[machine.arch.name]
        entry = machine.guest.traps.trap_frame.read(
            machine, int(members[self._start.frame]),
            trap.frame.field(machine.arch.pc))
        self.runs[number] = StartedRun(text, text, thread, None, entry, (), program=True)

    def _number_of(self, thread: int) -> int:
        """Return the number of the program that a thread starts, based on the process number.

        :raises StartError: the process is not a program of the runs.
        """
        members = self.machine.guest.programs.members
        assert members is not None
        process = CStruct(self._kind, thread, self.machine)[members.process]
        number = int(process[members.number]) - self._first
        if not 0 <= number < len(self._texts) or number in self.runs:
            raise StartError("the shell started a process that is not one of the programs given "
                             "with --run")
        return number

    def all_stand(self) -> None:
        """Run until all programs are at their first instructions, and hold the programs there.

        On one CPU, only the first program runs to its first instruction.
        """
        machine = self.machine
        if not machine.schedule.several:
            while self._here() != 0:
                self.go_on()
            return
        held = machine.schedule.held
        while len(held) < len(self.runs):
            here = self._here()
            if here is not None:
                if machine.cpu.number != here:
                    raise StartError(f"--run '{self._texts[here]}': the program started on CPU "
                                     f"{machine.cpu.number} instead of CPU {here}")
                held.add(here)
                if len(held) == len(self.runs):
                    break
                if not machine.schedule.over():
                    raise StartError("the programs did not start: no CPU can run")
            self._run()
