"""What a debugger drives: a run that goes forwards, and of a recording also back."""

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

# Instructions between two looks at the debugger: as many as take about so many seconds.
FIRST_CHUNK, CHUNK = 20_000, 4_000_000
SOON = 0.1
IDLE = 10**10  # ns: a CPU that waits executes none
NEAR, WIDER = 20_000, 8  # instructions that a search backwards begins with, and its growth
MAX_WATCHES = 8
MAX_BLOCK = 1024  # instructions of a block of the CPU model, and more
MAX_WATCHED = int(WatchLimit.MAX_WATCHED)


class Why(enum.Enum):
    STEP = "stepped"
    BREAKPOINT = "breakpoint"
    WATCH = "watchpoint"
    BEGIN = "the recording begins here"
    END = "the recording ends here"
    INTERRUPTED = "interrupted"
    OVER = "the guest has ended the run"


@dataclass(frozen=True)
class Watched:
    """:param kind: gdb's number: 2 stores, 3 loads, 4 both."""

    address: int
    size: int
    kind: int
    physical: int


@dataclass(frozen=True)
class StopEvent:
    """Why the target stopped.

    :param watched: of a watchpoint.
    """

    why: Why
    watched: Watched | None = None
    detail: str = ""


class Interrupted(Exception):
    """The user has ended a run with Ctrl-C."""


Poll = Callable[[], bool]  # whether the debugger wants the target to stop


class Target(ABC):
    """:ivar breakpoints: addresses to stop before.
    :ivar reverses: whether it goes back.
    """

    reverses: bool

    def __init__(self, machine: UnicornMachine) -> None:
        self.machine = machine
        # Gives whose memory a program's addresses are in, where the run stands; None: who runs.
        self.space: Callable[[], AddressSpace] | None = None
        self.breakpoints: set[int] = set()
        self.watched: list[Watched] = []

    @property
    @abstractmethod
    def count(self) -> int:
        """Instructions executed."""

    @abstractmethod
    def _run(self, until: Until) -> Stop | None:
        """Go on; None: this is the end."""

    @abstractmethod
    def _mark(self) -> Callable[[], None]:
        """What brings the run back to where it is now."""

    @abstractmethod
    def write(self, address: int, data: bytes) -> None:
        """:raises KinstError: when it cannot be written."""

    @abstractmethod
    def write_register(self, name: str, value: int) -> None:
        """:raises KinstError: when it cannot be written."""

    def _memory(self, address: int) -> AddressSpace | UnicornMachine:
        """Who has an address: a program's are the chosen process's.

        :raises KinstError: when there is no such process now.
        """
        return self.machine if self.space is None or address >> 63 else self.space()

    def read(self, address: int, size: int) -> bytes:
        """:raises MemoryAccessError: when a page is not mapped."""
        return self._memory(address).read(address, size)

    def break_at(self, address: int) -> None:
        if not 0 <= address < 1 << 64:
            raise GdbError(f"{address:#x} is no address")
        if len(self.breakpoints) >= MAX_STOPS:
            raise GdbError(f"{MAX_STOPS} breakpoints are possible")
        self.breakpoints.add(address)

    def watch(self, address: int, size: int, kind: int) -> None:
        """:raises GdbError: when that cannot be watched."""
        physical = (self._memory(address).translate(address) if 0 <= address < 1 << 64
                    else None)
        if physical is None or not 0 < size <= MAX_WATCHED or address % PAGE + size > PAGE:
            raise GdbError("1 to 64 bytes within a mapped page can be watched")
        if len(self.watched) >= MAX_WATCHES:
            raise GdbError(f"{MAX_WATCHES} watchpoints are possible")
        self.watched.append(Watched(address, size, kind, physical))

    def unwatch(self, address: int, size: int, kind: int) -> None:
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
                    raise GdbError(f"{w.address:#x} is not RAM: it cannot be watched") from None
            yield made
        finally:
            for watch in made:
                watch.close()

    def step(self) -> StopEvent:
        """Execute one instruction; of a watched access, as far as the architecture does."""
        back = self._mark() if self.watched and self._before else None
        with self._watching() as watches:
            event = self._once()
            hit = self._hit(watches)
        if hit is not None and back is not None:
            back()
        return hit or event

    @property
    def _before(self) -> bool:
        """Whether a debugger expects to be stopped before a watched access, and steps over it."""
        return self.machine.arch.watches_before

    def _once(self) -> StopEvent:
        stop = self._run(Until(instructions=self.count + 1))
        return self._event(stop) or StopEvent(Why.STEP)

    def _event(self, stop: Stop | None) -> StopEvent | None:
        """Of a run that ended; None: because of its count of instructions."""
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
        """Forwards, until something happens."""
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
        """Go to the first access that is watched; it is not before a count of instructions."""
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
        """Step until the program counter is outside of [begin, end)."""
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
        raise GdbError("this run is not a recording: it does not go back")

    def back(self, poll: Poll) -> StopEvent:
        raise GdbError("this run is not a recording: it does not go back")


class LiveTarget(Target):
    """A machine that is run for the first time."""

    reverses = False

    @property
    def count(self) -> int:
        return self.machine.instructions

    def _run(self, until: Until) -> Stop | None:
        return self.machine.run(until)

    def _mark(self) -> Callable[[], None]:
        kept: Snapshot = self.machine.snapshot()
        return lambda: self.machine.restore(kept)

    @contextmanager
    def _shown_once(self) -> Iterator[Callable[[], None]]:
        """With watchpoints a part may be run twice: what the guest writes is shown when that is
        over, or when what this gives is called."""
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
        with self._shown_once():
            return super().step()

    def _go(self, poll: Poll) -> StopEvent:
        with self._shown_once() as show:
            def polled() -> bool:
                show()
                return poll()

            return super()._go(polled)

    def write(self, address: int, data: bytes) -> None:
        self._memory(address).write(address, data)

    def write_register(self, name: str, value: int) -> None:
        self.machine.write_register(name, value)


class PlayedTarget(Target):
    """A recording."""

    reverses = True

    def __init__(self, player: Player) -> None:
        super().__init__(player.machine)
        self.player = player

    @property
    def count(self) -> int:
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
        raise GdbError("this is a recording: nothing of it can be changed")

    def write_register(self, name: str, value: int) -> None:
        raise GdbError("this is a recording: nothing of it can be changed")

    # -- backwards --------------------------------------------------------------------------------

    @property
    def _first(self) -> int:
        return self.player.recording.start.position.instructions

    def back_step(self) -> StopEvent:
        if self.count <= self._first:
            return StopEvent(Why.BEGIN)
        try:
            return self._stepped_back(self.count - 1)
        except Interrupted:
            return StopEvent(Why.INTERRUPTED)

    def _stepped_back(self, count: int) -> StopEvent:
        """Go back by one instruction; of a watched access it depends on the architecture whether a
        debugger expects to be stopped before or behind it, as it goes."""
        self._seek(count)
        if not self.watched:
            return StopEvent(Why.STEP)
        here = self.player.position
        with self._watching() as watches:
            self._once()
            hit = self._hit(watches)
        if hit is None or not self._before:
            self._seek(here)
        return hit or StopEvent(Why.STEP)

    def _seek(self, position: Position | int) -> None:
        """Go there, what is given from outside there given."""
        if self.player.seek(position) is not None:
            raise Interrupted
        self.player.give()

    def back(self, poll: Poll) -> StopEvent:
        """To the last moment before this one when a breakpoint is reached, or what is watched is
        accessed."""
        try:
            return self._back(poll)
        except Interrupted:
            return StopEvent(Why.INTERRUPTED)

    def _back(self, poll: Poll) -> StopEvent:
        end, size = self.player.position, NEAR
        high = end.instructions
        while high > self._first:
            low = max(self._first, high - size)
            self._seek(low)
            found = self._last_in(end if high == end.instructions else high)
            if found is not None:
                position, event = found
                if event.why is Why.WATCH and self._before:
                    self._seek(position.instructions + 1)  # the debugger goes back over it itself
                else:
                    self._seek(position)
                return event
            if poll():
                return StopEvent(Why.INTERRUPTED)
            high, size = low, size * WIDER
        if self.player.seek(self.player.recording.start.position) is not None:
            raise Interrupted
        return StopEvent(Why.BEGIN)

    def _last_in(self, end: Position | int) -> tuple[Position, StopEvent] | None:
        """The last event from here up to a position."""
        high = end.instructions if isinstance(end, Position) else end
        found: tuple[Position, StopEvent] | None = None
        first = self.player.position
        with self._watching() as watches:
            if self.machine.pc in self.breakpoints:
                found = first, StopEvent(Why.BREAKPOINT)
            while self.count < high:
                event = self._event(self._run(Until(
                    addresses=sorted(self.breakpoints), instructions=high)))
                if event is not None and event.why is Why.INTERRUPTED:
                    raise Interrupted
                if event is None or event.why is not Why.BREAKPOINT or self.count >= high:
                    break
                found = self.player.position, event
            for watch in watches:
                watch.look()
            hits = [(min(watch.last[1], high), watched)
                    for watch, watched in zip(watches, self.watched, strict=True) if watch.writes]
        for last, watched in hits:
            position = self._access_before(first, last, watched)
            if position is not None and (found is None or position > found[0]):
                found = position, StopEvent(Why.WATCH, watched)
        return found

    def _access_before(self, first: Position, last: int, watched: Watched) -> Position | None:
        """Where the last watched access is to be made, from a position up to a count."""
        if watched.kind == 2:
            self._seek(last)
            try:
                write = last_write(self.player, watched.physical, watched.size,
                                   self.player.position)
            except KeyboardInterrupt:
                raise Interrupted from None
            return None if write is None or write.position < first else write.position
        low = max(first.instructions, last - MAX_BLOCK)
        self._seek(low)
        found = None
        with self._watching() as watches:
            watch = watches[self.watched.index(watched)]
            while self.count < last:
                position, before = self.player.position, watch.writes
                if self._once().why is Why.INTERRUPTED:
                    raise Interrupted
                watch.look()
                if watch.writes > before:
                    found = position
        return found

