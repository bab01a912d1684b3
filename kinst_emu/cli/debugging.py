"""A debugger on a recording, or on a machine that boots: gdb's remote protocol, with the threads of
the guest's kernel and commands for positions."""

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
    """The threads of the guest's kernel, as gdb is told of them."""

    def __init__(self, machine: UnicornMachine) -> None:
        self._machine, self._threads = machine, Threads(machine)

    def now(self) -> list[GuestThread]:
        machine, found = self._machine, list[GuestThread]()
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
                found.insert(0 if registers is None else len(found), GuestThread(
                    thread.tid, f"{text}, running on CPU {number}", registers))
            else:
                found.append(GuestThread(thread.tid, text, self._threads.saved(thread)))
        # The running one is not on the kernel's lists early in a boot.
        return found if found and found[0].registers is None else []


def serve_recording(player: Player, place: str) -> None:
    """Let a debugger drive a recording."""
    machine = player.machine

    def position(_rest: str) -> Iterator[str]:
        yield f"{player.position} of {player.recording.last.instructions}"
        if player.at_end:
            wrong = player.difference()
            yield (f"the run ended in another state: {wrong}" if wrong
                   else "this is the end; the state is the recorded one")

    def move(rest: str) -> Iterator[str]:
        if not rest:
            raise KinstError("monitor go POSITION: give a position")
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
        "position": ("position: where the recording stands", position),
        "go": ("go POSITION: go there (as kinst replay --to takes it)", move)}
    _serve(PlayedTarget(player), place, commands)


def serve_machine(machine: UnicornMachine, place: str) -> None:
    """Let a debugger drive a machine that is run for the first time."""
    def position(_rest: str) -> Iterator[str]:
        yield str(position_of(machine))

    _serve(LiveTarget(machine), place,
           {"position": ("position: how far the machine has come", position)})


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
            yield ("addresses of programs are the running process's" if target.space is None
                   else "addresses of programs are the chosen process's; process 0 ends that")
            return
        if not rest.isdecimal() or len(rest) > 9:
            raise KinstError("monitor process PID: give the number of a process, 0 for the running "
                             "one")
        if int(rest) == 0:
            target.space = None
            yield "addresses of programs are the running process's"
            return
        threads, pid = Threads(machine), int(rest)
        name = threads.space(pid)[0]
        target.space = lambda: threads.space(pid)[1]  # another one's, perhaps, when the run moves
        yield f"addresses of programs are those of {name} (pid {rest}) from now on"

    commands |= {"process": (
        "process [PID]: whose memory a program's addresses are in; 0: the running process's",
        process)}
    if place == STANDARD:
        machine.console.stream = None
    serve(target, place, ready, KernelThreads(machine), commands)
