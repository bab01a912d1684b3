"""Sleeps of threads in a recorded run: when a thread stopped running, why, and who woke it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dtrace.debug.kernel_types import kernel_types
from dtrace.stacks.stack import Stacks
from dtrace.stacks.threads import UNREADABLE, Thread, Threads, structure
from dwarf.values import CStruct
from emu.host.errors import KinstError
from emu.machine.machine import StopReason, Until
from emu.machine.running_thread import thread_of
from emu.replay.inputs import Position
from emu.replay.player import Player

MAX_SLEEPS = 200_000  # maximum number of sleeps in a recording
MAX_STOPS = 2_000_000  # maximum number of times that threads sleep, wake others and go on
MAX_FRAMES = 24  # maximum number of frames of a stack
MAX_TEXT = 64
Frames = tuple[tuple[int, bool], ...]


@dataclass(frozen=True)
class Wake:
    """The moment at which a sleeping thread was made ready to run.

    :param thread: name of the thread that ran; empty if unknown.
    :param frames: its stack: addresses, and whether each is a return address.
    """

    position: Position
    thread: str
    frames: Frames


@dataclass(frozen=True)
class Sleep:
    """A time in which a thread did not run.

    :param begin: position at which it stopped running.
    :param end: position at which it ran again; None if it did not.
    :param frames: its stack, as in ``Wake``.
    :param reason: why it did not run, as text.
    :param channel: address that it slept on; 0 if it did not sleep.
    :param message: the kernel's word for the reason of a sleep, or the name of a lock.
    :param asleep: whether it slept or waited for a lock, and another thread had to wake it.
    :param wake: who made it ready; None if nobody did.
    """

    thread: Thread
    begin: Position
    end: Position | None
    frames: Frames
    reason: str
    channel: int
    message: str
    asleep: bool
    wake: Wake | None


class Sleeps:
    """Finder of the sleeps in a recording.

    :raises KinstError: if it is not known how the kernel's threads sleep, or its types are unknown.
    """

    def __init__(self, player: Player) -> None:
        self._player, machine = player, player.machine
        self._machine = machine
        guest = machine.guest.threads
        if guest.sleeps is None or guest.waits is None or not machine.guest.boot.shell_prompt:
            raise KinstError(f"{machine.image.path}: the threads of this kernel do not sleep")
        self._sleeps, self._waits = guest.sleeps, guest.waits
        self._threads, self._stacks = Threads(machine), Stacks(machine)
        kind = structure(kernel_types(machine.image), guest.lists.thread)
        if kind is None:
            raise KinstError(f"{machine.image.path}: the type of its threads is unknown")
        self._kind = kind
        leaves = machine.image.symbols.find(self._sleeps.leaves)
        if leaves is None:
            raise KinstError(f"{machine.image.path}: has no function {self._sleeps.leaves}()")
        self._leaves = leaves.address
        self._ready = {symbol.address for name in self._sleeps.ready
                       for symbol in machine.image.symbols.named(name)}
        # thread -> its sleep, the address at which it runs again, and its stack pointer there
        self._open: dict[int, tuple[Sleep, int, int]] = {}

    def all(self) -> Iterator[Sleep]:
        """Yield the sleeps from the player's position on, in the order in which they end."""
        player, machine = self._player, self._machine
        begun = 0
        for _ in range(MAX_STOPS):
            backs = {back for _sleep, back, _sp in self._open.values()}
            stop = player.run(Until(addresses=sorted({self._leaves, *self._ready, *backs})))
            if stop is None:
                yield from (sleep for sleep, _back, _sp in self._open.values())
                return
            if stop.reason is StopReason.INTERRUPTED:
                raise KeyboardInterrupt
            pc = machine.pc
            if pc == self._leaves:
                begun += 1
                if begun > MAX_SLEEPS:
                    break
                self._begin()
            elif pc in self._ready:
                self._made_ready()
            else:
                ended = self._end(pc)
                if ended is not None:
                    yield ended
        raise KinstError(f"{player.recording.path}: threads stop running more than {MAX_SLEEPS} "
                         f"times, or wake others more than {MAX_STOPS} times; choose a shorter "
                         "recording")

    def _frames(self) -> Frames:
        return tuple(self._stacks.addresses(self._machine.read_register, MAX_FRAMES))

    def _begin(self) -> None:
        machine, arch = self._machine, self._machine.arch
        address = thread_of(machine)
        thread = self._threads.at(address)
        number = machine.read_register(arch.arguments[0]) & self._sleeps.mask
        reason = self._sleeps.reasons.get(number)
        known, reason = reason is not None, reason or f"stopped running (reason {number})"
        channel, message, asleep = 0, "", False
        structure_ = CStruct(self._kind, address, machine)
        try:
            channel = int(structure_[self._sleeps.channel])
            blocked = int(structure_[self._waits.blocked])
            if known:  # it was about to sleep, perhaps, but stopped running for another reason
                channel = 0
            elif channel:
                message, asleep = self._text(int(structure_[self._waits.message])), True
                reason = f"slept ({message})" if message else "slept"
            elif blocked:
                message, asleep = self._text(int(structure_[self._waits.lock])), True
                reason = f"waited for a lock ({message})" if message else "waited for a lock"
        except UNREADABLE:
            reason += "; its structure cannot be read"
        sleep = Sleep(thread, self._player.position, None, self._frames(), reason, channel, message,
                      asleep, None)
        self._open[address] = (sleep, arch.return_address(machine),
                               arch.stack_after_return(machine))

    def _text(self, address: int) -> str:
        if not address:
            return ""
        return self._machine.read_string(address, MAX_TEXT).decode("utf-8", "backslashreplace")

    def _made_ready(self) -> None:
        machine = self._machine
        woken = machine.read_register(machine.arch.arguments[0])
        if woken not in self._open:
            return
        sleep, back, sp = self._open[woken]
        if sleep.wake is None:
            wake = Wake(self._player.position, self._threads.name(thread_of(machine)),
                        self._frames())
            self._open[woken] = replace(sleep, wake=wake), back, sp

    def _end(self, pc: int) -> Sleep | None:
        address = thread_of(self._machine)
        found = self._open.get(address)
        if found is None or found[1:] != (pc, self._machine.sp):
            return None
        del self._open[address]
        return replace(found[0], end=self._player.position)
