"""Targets for a debugger: a live machine that runs forward, and a recording that runs both ways."""

import enum
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from emu.gdb.packets import GdbError
from emu.machine.address_space import AddressSpace
from emu.machine.machine import Stop, StopReason, Until
from emu.replay.inputs import Position
from emu.replay.player import Player
from emu.replay.writes import last_write
from emu.unicorn._watch import WatchLimit, WriteWatch
from emu.unicorn.guest_memory import PAGE
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.run_loop import MAX_STOPS
from emu.unicorn.state import Snapshot

# Initial and maximum number of instructions between two checks for an interrupt by the debugger.
FIRST_CHUNK, CHUNK = 20_000, 4_000_000
SOON = 0.1  # target duration of a chunk in seconds; the length of chunks adapts to it
# Maximum virtual time of a chunk in ns; needed because a waiting CPU executes no instructions.
IDLE = 10**10
NEAR, WIDER = 20_000, 8  # initial length of a backward search in instructions, and growth factor
MAX_WATCHES = 8
MAX_BLOCK = 1024  # maximum number of instructions in a block of the CPU model
MAX_WATCHED = int(WatchLimit.MAX_WATCHED)


class Why(enum.Enum):
    """Reason why a target stopped."""

    STEP = "stepped"
    BREAKPOINT = "breakpoint"
    WATCH = "watchpoint"
    BEGIN = "the recording begins here"
    END = "the recording ends here"
    INTERRUPTED = "interrupted"
    OVER = "the guest has ended the run"


@dataclass(frozen=True)
class Watched:
    """A watchpoint.

    :param kind: gdb's number: 2 for stores, 3 for loads, 4 for both.
    :param physical: physical address of the watched bytes.
    """

    address: int
    size: int
    kind: int
    physical: int


@dataclass(frozen=True)
class StopEvent:
    """A stop of the target, and the reason for it.

    :param watched: the watchpoint that was hit, if any.
    :param detail: description of the stop if the guest has ended the run.
    """

    why: Why
    watched: Watched | None = None
    detail: str = ""


class Interrupted(Exception):
    """Exception raised when the user interrupts a run with Ctrl-C."""


Poll = Callable[[], bool]  # returns whether the debugger wants the target to stop


class Target(ABC):
    """Interface of a machine or recording that a debugger controls.

    :ivar breakpoints: addresses at which the target stops.
    :ivar reverses: whether the target can run backward.
    """

    reverses: bool

    def __init__(self, machine: UnicornMachine) -> None:
        self.machine = machine
        # Callback that returns the space of user addresses; None means that of the running process.
        self.space: Callable[[], AddressSpace] | None = None
        self.breakpoints: set[int] = set()
        self.watched: list[Watched] = []

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of executed instructions."""

    @abstractmethod
    def _run(self, until: Until) -> Stop | None:
        """Run until a condition holds, and return the stop, or None if the recording ended."""

    @abstractmethod
    def _mark(self) -> Callable[[], None]:
        """Return a callback that moves the target back to its current position."""

    @abstractmethod
    def write(self, address: int, data: bytes) -> None:
        """Write guest memory.

        :raises KinstError: if the memory cannot be written.
        """

    @abstractmethod
    def write_register(self, name: str, value: int) -> None:
        """Write a register.

        :raises KinstError: if the register cannot be written.
        """

    def _memory(self, address: int) -> AddressSpace | UnicornMachine:
        """Return the memory for an address: the chosen process's memory, or the machine's.

        :raises KinstError: if that process does not exist now.
        """
        return self.machine if self.space is None or address >> 63 else self.space()

    def read(self, address: int, size: int) -> bytes:
        """Read guest memory.

        :raises MemoryAccessError: if a page is not mapped.
        """
        return self._memory(address).read(address, size)

    def break_at(self, address: int) -> None:
        """Set a breakpoint.

        :raises GdbError: if the address is invalid, or there are too many breakpoints.
        """
        if not 0 <= address < 1 << 64:
            raise GdbError(f"cannot set a breakpoint at {address:#x}: not a 64-bit address")
        if len(self.breakpoints) >= MAX_STOPS:
            raise GdbError(f"at most {MAX_STOPS} breakpoints are allowed")
        self.breakpoints.add(address)

    def watch(self, address: int, size: int, kind: int) -> None:
        """Set a watchpoint.

        :raises GdbError: if the range cannot be watched, or there are too many watchpoints.
        """
        physical = (self._memory(address).translate(address) if 0 <= address < 1 << 64
                    else None)
        if physical is None or not 0 < size <= MAX_WATCHED or address % PAGE + size > PAGE:
            raise GdbError("a watchpoint must cover 1 to 64 bytes within one mapped page")
        if len(self.watched) >= MAX_WATCHES:
            raise GdbError(f"at most {MAX_WATCHES} watchpoints are allowed")
        self.watched.append(Watched(address, size, kind, physical))

    def unwatch(self, address: int, size: int, kind: int) -> None:
        """Remove a watchpoint."""
        self.watched = [w for w in self.watched
                        if (w.address, w.size, w.kind) != (address, size, kind)]

    @contextmanager
    def _watching(self) -> Iterator[list[WriteWatch]]:
        made: list[WriteWatch] = []
        try:
            for w in self.watched:
                try:
                    made.append(WriteWatch(self.machine.engine, w.physical, w.size,
                                           w.kind != 3, w.kind != 2))
                except ValueError:
                    raise GdbError(f"cannot watch address {w.address:#x}: it is not RAM") from None
            yield made
        finally:
            for watch in made:
                watch.close()

    def step(self) -> StopEvent:
        """Execute one instruction.

        At a watched access, stop before or after it, whichever the architecture does.
        """
        back = self._mark() if self.watched and self._before else None
        with self._watching() as watches:
            event = self._once()
            hit = self._hit(watches)
        if hit is not None and back is not None:
            back()
        return hit or event

    @property
    def _before(self) -> bool:
        """Whether a watchpoint must stop before the access, so that gdb can single-step past it."""
        return self.machine.arch.watches_before

    def _once(self) -> StopEvent:
        stop = self._run(Until(instructions=self.count + 1))
        return self._event(stop) or StopEvent(Why.STEP)

    def _event(self, stop: Stop | None) -> StopEvent | None:
        """Return the event for a stop, or None if the run reached an instruction or time limit."""
        if stop is None:
            return StopEvent(Why.END)
        if stop.reason in (StopReason.INSTRUCTIONS, StopReason.TIME):
            return None
        if stop.reason is StopReason.ADDRESS:
            return StopEvent(Why.BREAKPOINT)
        if stop.reason is StopReason.INTERRUPTED:
            return StopEvent(Why.INTERRUPTED)
        return StopEvent(Why.OVER, detail=str(stop))

    def _hit(self, watches: Sequence[WriteWatch]) -> StopEvent | None:
        for watch, watched in zip(watches, self.watched, strict=True):
            watch.look()
            if watch.writes:
                return StopEvent(Why.WATCH, watched)
        return None

    def go(self, poll: Poll) -> StopEvent:
        """Run forward until an event occurs."""
        try:
            return self._go(poll)
        except Interrupted:
            return StopEvent(Why.INTERRUPTED)

    def _go(self, poll: Poll) -> StopEvent:
        chunk = FIRST_CHUNK
        while True:
            back, began = self._mark() if self.watched else None, time.monotonic()
            with self._watching() as watches:
                event = self._event(self._run(Until(
                    addresses=sorted(self.breakpoints), instructions=self.count + chunk,
                    time=self.machine.now + IDLE)))
                for watch in watches:
                    watch.look()
                lows = [watch.first[0] for watch in watches if watch.writes]
            if lows and back is not None:
                back()
                event = self._to_watch(min(lows))
                if event.why is Why.WATCH and self._before:
                    access = self.count - 1
                    back()
                    if self.count < access:
                        self._run(Until(instructions=access))
                return event
            if event is not None:
                return event
            if poll():
                return StopEvent(Why.INTERRUPTED)
            chunk = (min(2 * chunk, CHUNK) if time.monotonic() < began + SOON
                     else max(chunk // 2, FIRST_CHUNK // 16))

    def _to_watch(self, low: int) -> StopEvent:
        """Run to the first watched access, known to be at instruction count ``low`` or later."""
        if self.count < low:
            event = self._event(self._run(Until(instructions=low)))
            if event is not None:
                return event
        with self._watching() as watches:
            while True:
                event = self._once()
                hit = self._hit(watches)
                if hit is not None or event.why is not Why.STEP:
                    return hit or event

    def range_step(self, begin: int, end: int, poll: Poll) -> StopEvent:
        """Step until the program counter is outside [begin, end) or another event occurs."""
        for number in range(1 << 20):
            event = self.step()
            pc = self.machine.pc
            if event.why is not Why.STEP or not begin <= pc < end:
                return event
            if pc in self.breakpoints:
                return StopEvent(Why.BREAKPOINT)
            if number % 100 == 99 and poll():
                return StopEvent(Why.INTERRUPTED)
        return StopEvent(Why.STEP)

    def back_step(self) -> StopEvent:
        """Step back by one instruction.

        :raises GdbError: the target is not a recording.
        """
        raise GdbError("cannot run backward: this machine runs live, not from a recording")

    def back(self, poll: Poll) -> StopEvent:
        """Run backward until an event occurs.

        :raises GdbError: the target is not a recording.
        """
        raise GdbError("cannot run backward: this machine runs live, not from a recording")


class LiveTarget(Target):
    """Debugger target that controls a live machine and cannot run backward."""

    reverses = False

    @property
    def count(self) -> int:
        """Number of executed instructions."""
        return self.machine.instructions

    def _run(self, until: Until) -> Stop | None:
        return self.machine.run(until)

    def _mark(self) -> Callable[[], None]:
        kept: Snapshot = self.machine.snapshot()
        return lambda: self.machine.restore(kept)

    @contextmanager
    def _shown_once(self) -> Iterator[Callable[[], None]]:
        """Delay console output while parts of the run may be repeated for watchpoints.

        The output is printed at the end, or when the yielded function is called.
        """
        console = self.machine.console
        stream, shown = console.stream, len(console.text)
        if not self.watched or stream is None:
            yield lambda: None
            return

        def show() -> None:
            nonlocal shown
            for byte in console.text[shown:]:
                stream(byte)
            shown = len(console.text)

        console.stream = None
        try:
            yield show
        finally:
            show()
            console.stream = stream

    def step(self) -> StopEvent:
        """Execute one instruction, and print its console output only once."""
        with self._shown_once():
            return super().step()

    def _go(self, poll: Poll) -> StopEvent:
        with self._shown_once() as show:
            def polled() -> bool:
                show()
                return poll()

            return super()._go(polled)

    def write(self, address: int, data: bytes) -> None:
        """Write guest memory."""
        self._memory(address).write(address, data)

    def write_register(self, name: str, value: int) -> None:
        """Write a register."""
        self.machine.write_register(name, value)


class PlayedTarget(Target):
    """Target that replays a recording, forward and backward."""

    reverses = True

    def __init__(self, player: Player) -> None:
        super().__init__(player.machine)
        self.player = player

    @property
    def count(self) -> int:
        """Number of executed instructions at the current position."""
        return self.player.position.instructions

    def _run(self, until: Until) -> Stop | None:
        return self.player.run(until)

    def _mark(self) -> Callable[[], None]:
        here = self.player.position

        def back() -> None:
            if self.player.seek(here) is not None:
                raise Interrupted
        return back

    def write(self, address: int, data: bytes) -> None:
        """Refuse to write guest memory.

        :raises GdbError: always.
        """
        raise GdbError("memory of a recording cannot be changed")

    def write_register(self, name: str, value: int) -> None:
        """Refuse to write a register.

        :raises GdbError: always.
        """
        raise GdbError("registers of a recording cannot be changed")

    # -- running backward -------------------------------------------------------------------------

    @property
    def _first(self) -> int:
        return self.player.recording.start.position.instructions

    def back_step(self) -> StopEvent:
        """Step back by one instruction."""
        if self.count <= self._first:
            return StopEvent(Why.BEGIN)
        try:
            return self._stepped_back(self.count - 1)
        except Interrupted:
            return StopEvent(Why.INTERRUPTED)

    def _stepped_back(self, count: int) -> StopEvent:
        """Step back to an instruction count, and report a watched access there.

        As in the forward direction, the architecture decides whether the debugger expects to stop
        before or after the access.
        """
        self.seek(count)
        if not self.watched:
            return StopEvent(Why.STEP)
        here = self.player.position
        with self._watching() as watches:
            self._once()
            hit = self._hit(watches)
        if hit is None or not self._before:
            self.seek(here)
        return hit or StopEvent(Why.STEP)

    def seek(self, position: Position | int) -> None:
        """Move to a position, and give the machine the inputs recorded at this position."""
        if self.player.seek(position) is not None:
            raise Interrupted
        self.player.give()

    def back(self, poll: Poll) -> StopEvent:
        """Run backward to the nearest breakpoint or watched access before the current position."""
        try:
            return self._back(poll)
        except Interrupted:
            return StopEvent(Why.INTERRUPTED)

    def _back(self, poll: Poll) -> StopEvent:
        end, size = self.player.position, NEAR
        high = end.instructions
        while high > self._first:
            low = max(self._first, high - size)
            self.seek(low)
            last = self._last_in(end if high == end.instructions else high)
            if last is not None:
                position, event = last
                if event.why is Why.WATCH and self._before:
                    # Stop after the access, because the debugger itself steps back over it.
                    self.seek(position.instructions + 1)
                else:
                    self.seek(position)
                return event
            if poll():
                return StopEvent(Why.INTERRUPTED)
            high, size = low, size * WIDER
        if self.player.seek(self.player.recording.start.position) is not None:
            raise Interrupted
        return StopEvent(Why.BEGIN)

    def _last_in(self, end: Position | int) -> tuple[Position, StopEvent] | None:
        """Return the last event between the current position and ``end``, as (position, event)."""
        high = end.instructions if isinstance(end, Position) else end
        latest: tuple[Position, StopEvent] | None = None
        first = self.player.position
        with self._watching() as watches:
            if self.machine.pc in self.breakpoints:
                latest = first, StopEvent(Why.BREAKPOINT)
            while self.count < high:
                event = self._event(self._run(Until(
                    addresses=sorted(self.breakpoints), instructions=high)))
                if event is not None and event.why is Why.INTERRUPTED:
                    raise Interrupted
                if event is None or event.why is not Why.BREAKPOINT or self.count >= high:
                    break
                latest = self.player.position, event
            for watch in watches:
                watch.look()
            hits = [(min(watch.last[1], high), watched)
                    for watch, watched in zip(watches, self.watched, strict=True) if watch.writes]
        for last, watched in hits:
            position = self._access_before(first, last, watched)
            if position is not None and (latest is None or position > latest[0]):
                latest = position, StopEvent(Why.WATCH, watched)
        return latest

    def _access_before(self, first: Position, last: int, watched: Watched) -> Position | None:
        """Return the position just before the last watched access in a range, or None.

        :param first: first position of the range.
        :param last: instruction count at the end of the range.
        """
        if watched.kind == 2:
            self.seek(last)
            try:
                write = last_write(self.player, watched.physical, watched.size,
                                   self.player.position)
            except KeyboardInterrupt:
                raise Interrupted from None
            return None if write is None or write.position < first else write.position
        low = max(first.instructions, last - MAX_BLOCK)
        self.seek(low)
        latest = None
        with self._watching() as watches:
            watch = watches[self.watched.index(watched)]
            while self.count < last:
                position, before = self.player.position, watch.writes
                if self._once().why is Why.INTERRUPTED:
                    raise Interrupted
                watch.look()
                if watch.writes > before:
                    latest = position
        return latest

