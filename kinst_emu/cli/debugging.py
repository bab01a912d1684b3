"""gdb remote debugging of a recording or a booting machine, with kernel threads and positions."""

import shlex
import sys
from collections.abc import Iterator

from dtrace.calls.positions import go
from dtrace.stacks.threads import Threads
from emu.arch.target_description import DESCRIPTIONS
from emu.gdb.server import LOOPBACK, STANDARD, serve
from emu.gdb.session import Command, GuestThread
from emu.gdb.target import LiveTarget, PlayedTarget, Target
from emu.host.errors import KinstError
from emu.machine.running_thread import thread_of
from emu.replay.inputs import position_of
from emu.replay.player import Player
from emu.unicorn.machine import UnicornMachine


class KernelThreads:
    """The threads of the guest's kernel, as reported to gdb."""

    def __init__(self, machine: UnicornMachine) -> None:
        self._machine, self._threads = machine, Threads(machine)

    def now(self) -> list[GuestThread]:
        """Return the kernel threads, running threads first; empty if no running thread is known."""
        machine, threads = self._machine, list[GuestThread]()
        present, running = machine.cpu, dict[int, tuple[int, dict[str, int] | None]]()
        for cpu in machine.schedule.each():
            if cpu.on:
                running[thread_of(machine)] = (
                    cpu.number, None if cpu is present else machine.registers())
        for thread in self._threads.all():
            text = f"{thread.process}/{thread.name} (pid {thread.pid})"
            if thread.tid <= 0:
                continue
            if thread.address in running:
                number, registers = running[thread.address]
                threads.insert(0 if registers is None else len(threads), GuestThread(
                    thread.tid, f"{text}, running on CPU {number}", registers))
            else:
                threads.append(GuestThread(thread.tid, text, self._threads.saved(thread)))
        # Early in a boot, the running thread is not yet on the kernel's lists.
        return threads if threads and threads[0].registers is None else []


def serve_recording(player: Player, place: str) -> None:
    """Let a debugger drive a recording.

    :param place: TCP port, or ``-`` for standard input and output.
    """
    machine = player.machine

    def position(_rest: str) -> Iterator[str]:
        yield f"{player.position} of {player.recording.last.instructions}"
        if player.at_end:
            wrong = player.difference()
            yield (f"the run ended in a different state than the recording: {wrong}" if wrong
                   else "end of the recording; the state matches the recorded one")

    def move(rest: str) -> Iterator[str]:
        if not rest:
            raise KinstError("monitor go: POSITION is missing")
        before = player.position
        try:
            stopped = go(player, rest)
        except KinstError:
            player.seek(before)
            raise
        if stopped is not None:
            raise KinstError("interrupted")
        yield f"at {player.position}: {machine.image.symbols.where(machine.pc)}"

    commands: dict[str, tuple[str, Command]] = {
        "position": ("position: print the current position in the recording", position),
        "go": ("go POSITION: move to a position (same syntax as kinst replay --to)", move)}
    _serve(PlayedTarget(player), place, commands)


def serve_machine(machine: UnicornMachine, place: str) -> None:
    """Let a debugger drive a running machine instead of a recording.

    :param place: TCP port, or ``-`` for standard input and output.
    """
    def position(_rest: str) -> Iterator[str]:
        yield str(position_of(machine))

    _serve(LiveTarget(machine), place,
           {"position": ("position: print the machine's current position", position)})


def _serve(target: Target, place: str, commands: dict[str, tuple[str, Command]]) -> None:
    machine = target.machine

    advice = DESCRIPTIONS[machine.arch.name].advice

    def ready(port: int) -> None:
        first = "".join(f"-iex {shlex.quote(line)} " for line in advice)
        print(f"waiting for a debugger: gdb-multiarch {first}"
              f"{shlex.quote(str(machine.image.path))} -ex 'target remote {LOOPBACK}:{port}'",
              file=sys.stderr, flush=True)

    def process(rest: str) -> Iterator[str]:
        if not rest:
            yield ("program addresses refer to the running process" if target.space is None
                   else "program addresses refer to the chosen process; use process 0 to undo this")
            return
        if not rest.isdecimal() or len(rest) > 9:
            raise KinstError("monitor process: PID must be the number of a process, or 0 for the "
                             "running process")
        if int(rest) == 0:
            target.space = None
            yield "program addresses refer to the running process"
            return
        threads, pid = Threads(machine), int(rest)
        name = threads.space(pid)[0]
        # Look up the address space at each access, since it may change as the machine runs.
        target.space = lambda: threads.space(pid)[1]
        yield f"program addresses now refer to {name} (pid {rest})"

    commands |= {"process": (
        "process [PID]: use the memory of this process for program addresses; 0: running process",
        process)}
    if place == STANDARD:
        machine.console.stream = None
    serve(target, place, ready, KernelThreads(machine), commands)
