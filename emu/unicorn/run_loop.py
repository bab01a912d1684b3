"""The run loop of the machine on Unicorn: where a run ends, what comes between two instructions."""

import contextlib
import signal
import threading
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from emu.arch.arch import Arch
from emu.guest.guest import Guest
from emu.host.errors import MachineError, MemoryAccessError
from emu.machine.events import NEVER, EventQueue
from emu.machine.machine import CONSOLE_FULL, ConsoleLog, Stop, StopReason, Until
from emu.unicorn._engine import Engine, EngineStop, ExceptionLimit, StopLimit
from emu.unicorn.cpu import Cpu
from emu.unicorn.schedule import Schedule
from emu.unicorn.state import MachineState

PANIC_INSTRUCTIONS = 100_000_000  # that a kernel may take to say why
MAX_RUNG = 1 << 16  # times that timers ring while the CPU waits, and no interrupt is pending
# What the guest has asked for itself, and not who looks at it: part of its state.
GUESTS = {StopReason.PANIC, StopReason.POWER_OFF, StopReason.RESET, StopReason.UNHANDLED}
GONE = ("the CPU executes code by a mapping that the page tables do not have any more; the run is "
        "left in its middle")
MAX_STOPS = StopLimit.MAX_STOPS - 1  # one is the machine's own, to end within a block


class CodeGoneError(MachineError):
    """The CPU executes code that the guest's page tables do not map.

    A page table or a control register was changed, and the CPU model still uses the old mapping.
    How much was executed is not known, so the run is left in its middle: go back to a state.
    """


@dataclass(frozen=True)
class Alarm:
    """Somebody wants to look at a virtual time, between two instructions.

    :param ring: is called then; gives the next time, None for no more.
    """

    time: int
    ring: Callable[[], int | None]


class RunnableMachine(Protocol):
    """What the loop runs: a machine, as far as it needs to know one."""

    arch: Arch
    guest: Guest
    console: ConsoleLog
    engine: Engine
    events: EventQueue
    schedule: Schedule
    alarm: Alarm | None
    patches: int  # not 0: breakpoints are in memory,
    breakpoints: Container[int]  # at these addresses,
    displaced: Callable[[int], bytes]  # over these bytes
    pc: int

    @property
    def cpu(self) -> Cpu: ...

    def read(self, address: int, size: int) -> bytes: ...

    def translate(self, address: int) -> int | None: ...

    def write_code(self, address: int, data: bytes) -> None: ...

    def interrupts_changed(self) -> None: ...

    def left_at(self, pc: int) -> int: ...

    def settle(self, pc: int) -> None: ...


class RunLoop:
    """Runs a machine, and knows what its runs are to end with.

    :param machine: whose engine was made.
    """

    def __init__(self, machine: RunnableMachine) -> None:
        self.machine = machine
        self.engine, self.events = machine.engine, machine.events
        self.running = False
        self.handlers: dict[int, Callable[[], None]] = {}
        self.handling = False  # between two instructions, somebody else than the guest
        self.panicking: tuple[int, int] | None = None
        self._stop: Stop | None = None  # asked for, and not reported yet
        self._ending = False  # what was due first was done
        self._interrupts = False  # whether one that is to be taken ends the run
        self._stops: set[int] = set()
        self._limit = NEVER  # instructions at which the run ends
        self._time_limit = NEVER
        self._console_wanted: tuple[bytes, ...] = ()
        self._console_start = 0

    # -- what is asked for --------------------------------------------------------------------

    def request_stop(self, stop: Stop) -> None:
        """End the run before the next block; for devices and observers."""
        if self._stop is None or (stop.reason in GUESTS and self._stop.reason not in GUESTS):
            self._stop = stop
        self.deadline_changed()

    def deadline_changed(self) -> None:
        # A stop asked for by a device takes effect where an event would: at a canonical start.
        if self._ending:
            self.engine.deadline = self.events.next()
        elif self._stop is not None:
            self.engine.deadline = 0
        else:
            self.engine.deadline = min(self.events.next(), self._time_limit)

    def handle(self, address: int, handler: Callable[[], None] | None) -> None:
        """Call ``handler`` before the guest executes ``address``, in every run; None: no more.

        :raises MachineError: for too many; then it is not called.
        """
        before = dict(self.handlers)
        if handler is None:
            self.handlers.pop(address, None)
        else:
            self.handlers[address] = handler
        try:
            self._set_stops(self._stops)
        except MachineError:
            self.handlers = before
            raise

    def is_stop(self, address: int) -> bool:
        """Whether the run in progress ends before it executes ``address``."""
        return address in self._stops

    def _set_stops(self, addresses: set[int]) -> None:
        wanted = len(addresses | self.handlers.keys())
        if wanted > MAX_STOPS:
            raise MachineError(f"{wanted} stop addresses and handlers: {MAX_STOPS} are possible")
        self._stops = addresses
        self._install(addresses | self.handlers.keys())

    def _install(self, addresses: set[int]) -> None:
        """Make the engine stop before these addresses, and before no others."""
        self.engine.set_stops(addresses)

    def panicked(self) -> None:
        """The guest panics: the run goes on until it has said why."""
        if self.panicking is None:
            end = self.engine.instructions + PANIC_INSTRUCTIONS
            self.panicking = len(self.machine.console.text), end
            self._limit = self.engine.limit = min(self._limit, end)

    def heard(self, data: int) -> None:
        """The guest has written a byte to its console."""
        console = self.machine.console
        text = console.text
        if console.full(self._console_start):
            self.request_stop(Stop(StopReason.OUTPUT, 0, CONSOLE_FULL))
        if self.panicking is not None and data == 0x0A:
            begin = self.panicking[0]
            line = text[max(begin, text.rfind(b"\n", begin, len(text) - 1) + 1) :]
            if line.startswith(self.machine.guest.boot.panic_ends):
                self.request_stop(Stop(StopReason.PANIC, 0))
        for wanted in self._console_wanted:
            if data == wanted[-1] and text.endswith(wanted, self._console_start):
                self._console_wanted = ()
                detail = wanted.decode("utf-8", "replace")
                self.request_stop(Stop(StopReason.CONSOLE, 0, detail))
                return

    # -- its part of the machine's state ------------------------------------------------------

    @property
    def asked(self) -> tuple[str, str] | None:
        """The stop that the guest itself has asked for (``MachineState.stop``)."""
        if self._stop is None or self._stop.reason not in GUESTS:
            return None
        return self._stop.reason.name, self._stop.detail

    def keep(self) -> tuple[Stop | None, tuple[int, int] | None]:
        """What ``put_back`` takes."""
        return self._stop, self.panicking

    def put_back(self, kept: tuple[Stop | None, tuple[int, int] | None]) -> None:
        self.engine.forget_exceptions()
        self._stop, self.panicking = kept

    def restore(self, state: MachineState, pc: int) -> None:
        self.engine.forget_exceptions()
        self._stop = None
        if state.stop is not None:
            self._stop = Stop(StopReason[state.stop[0]], pc, state.stop[1])
        self.panicking = state.panic

    # -- a run --------------------------------------------------------------------------------

    def run(self, until: Until, console_start: int) -> Stop:
        """Run until ``until`` or the guest ends the run; an alarm rings in between.

        :param console_start: where the console's text begins in which to look for ``until``'s.
        """
        machine = self.machine
        while machine.alarm is not None and (until.time is None or machine.alarm.time < until.time):
            alarm = machine.alarm
            stop = self._run(replace(until, time=alarm.time), console_start)
            if stop.reason is not StopReason.TIME:
                return stop
            following = alarm.ring()
            machine.alarm = None if following is None else Alarm(following, alarm.ring)
            if stop.pc in until.addresses:  # going on would step over it
                return replace(stop, reason=StopReason.ADDRESS)
        return self._run(until, console_start)

    def _run(self, until: Until, console_start: int) -> Stop:
        engine = self.engine
        if self.running:
            raise MachineError("the machine is running: it cannot be run from inside its own run")
        self._time_limit = until.time if until.time is not None else NEVER
        wanted = (until.console,) if isinstance(until.console, str) else until.console
        self._console_wanted = tuple(text.encode("utf-8", "surrogateescape") for text in wanted)
        self._console_start = console_start
        if self._reason() in (StopReason.TIME, StopReason.OUTPUT) or (
                self._stop is not None and self._stop.reason is StopReason.CONSOLE
                and self._stop.detail not in wanted):
            self._stop = None  # what an earlier run was to end with
        self._ending, self._interrupts = False, until.interrupts
        self._limit = engine.limit = min(
            NEVER if until.instructions is None else until.instructions,
            NEVER if self.panicking is None else self.panicking[1],
        )
        self._set_stops(set(until.addresses))
        self.deadline_changed()
        self.machine.interrupts_changed()
        self.engine.forget_exceptions()
        self.running = True
        try:
            with self._interruptible():
                stop = self._loop()
            if stop.reason is self._reason():
                self._stop = None
            return self._panic(stop)
        finally:
            self.running = False
            self._time_limit = self._limit = engine.limit = NEVER
            self._console_wanted = ()

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C ends a run where a device's request would, and nothing is cut in two; another one
        is an exception as ever."""
        if (threading.current_thread() is not threading.main_thread()
                or signal.getsignal(signal.SIGINT) is not signal.default_int_handler):
            yield
            return

        def interrupted(_number: int, _frame: object) -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.request_stop(Stop(StopReason.INTERRUPTED, 0))

        signal.signal(signal.SIGINT, interrupted)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _loop(self) -> Stop:
        """Every stop is between two instructions, when what is due before the next one was done:
        the state there does not depend on what the stop is for.  While a probe fires, no time
        passes and no address is a stop: what the guest executes then is the probe's.

        An address comes before the caller's limits: the next run would not stop at it any more."""
        engine, machine = self.engine, self.machine
        first, began = True, machine.pc  # a stop address where the run begins does not end it
        while True:
            if engine.frozen:
                engine.detour.thaw_if_at(machine.pc)
            pc = machine.pc
            if machine.schedule.waiting == pc or not machine.cpu.on:
                first = False
                stop = self._wait(pc)
            elif why := engine.arrive(pc):
                stop = self._dispatch(why, 0)
            elif (pc in self._stops and not (first and pc == began) and not engine.frozen
                    and self._reason() not in GUESTS):
                return Stop(StopReason.ADDRESS, pc)
            elif self._ending and self._stop is not None:
                return Stop(self._stop.reason, pc, self._stop.detail)
            elif engine.instructions >= self._limit:
                return Stop(StopReason.INSTRUCTIONS, pc)
            else:
                first = False
                if pc in self.handlers:
                    self._handle(self.handlers[pc])
                    if machine.pc != pc:
                        continue
                stop = self._go(pc)
            if stop is not None:
                return stop

    def _handle(self, handler: Callable[[], None]) -> None:
        self.handling = not self.engine.frozen
        try:
            handler()
        finally:
            self.handling = False

    def _go(self, pc: int) -> Stop | None:
        """Run until something ends it; a stop or a handler at ``pc`` itself is passed by."""
        before = self.engine.instructions
        why, detail = self._counted(pc, False)
        left = self._limit - self.engine.instructions
        if why == EngineStop.STOP_LIMIT and left > 0 and self._still_at(pc, before):
            return self._execute(pc, left)  # of another block, the loop sees what is at its start
        if why == EngineStop.STOP_TRAPPED and self._still_at(pc, before):
            return self._trapped(pc)
        return self._dispatch(why, detail)

    def _still_at(self, pc: int, before: int) -> bool:
        """Whether nothing was executed behind ``before`` instructions, and no exception taken."""
        return self.engine.instructions == before and self.machine.pc == pc

    def _counted(self, pc: int, piece: bool) -> tuple[int, int]:
        """``Engine.run`` from ``pc``, when the instructions of the block there are known."""
        engine, before = self.engine, self.engine.instructions
        why, detail = engine.run(pc, piece)
        while why == EngineStop.STOP_UNCOUNTED and self._still_at(pc, before):
            self._dispatch(why, detail)  # it is the block at pc
            why, detail = engine.run(pc, piece)
        return why, detail

    def _execute(self, pc: int, count: int) -> Stop | None:
        """Execute ``count`` instructions of the straight code at ``pc`` and end exactly there, or
        where something else ends them first: all that stops within a block rests on this.
        """
        assert count > 0
        engine = self.engine
        end, before = pc, engine.instructions
        for _ in range(count):
            end += self._length(end)
        try:
            engine.limit = before + count
            self._install(self._stops | self.handlers.keys() | {end})
            why, detail = self._counted(pc, True)
            if why == EngineStop.STOP_LIMIT and self._still_at(pc, before):
                return Stop(StopReason.UNHANDLED, pc, self.machine.cpu.stuck())
            return self._dispatch(why, detail)
        finally:
            engine.limit = self._limit
            self._install(self._stops | self.handlers.keys())

    def _length(self, pc: int) -> int:
        """Bytes of the instruction at ``pc``, also under a breakpoint; 1 when it is none."""
        if self.machine.patches and pc in self.machine.breakpoints:
            return len(self.machine.displaced(pc)) or 1
        return self.machine.arch.executed_length(self._code(pc)) or 1

    def _code(self, pc: int) -> bytes:
        """The bytes of the instruction at ``pc``, and some more where the next page is mapped."""
        room = 4096 - pc % 4096
        if room < 15 and self.machine.translate(pc + room) is None:
            return self._read_code(pc, room)
        return self._read_code(pc, 15)

    def _read_code(self, address: int, size: int) -> bytes:
        """Code that the CPU has come to.

        :raises CodeGoneError: when its mapping has gone meanwhile.
        """
        try:
            return self.machine.read(address, size)
        except MemoryAccessError as error:
            raise CodeGoneError(f"{GONE}: {error}") from None

    def _settle(self, pc: int) -> None:
        """Account for the block that was left before ``pc``.

        :raises CodeGoneError: as ``_read_code``.
        """
        try:
            self.machine.settle(pc)
        except MemoryAccessError as error:
            raise CodeGoneError(f"{GONE}: {error}") from None

    def _reason(self) -> StopReason | None:
        return None if self._stop is None else self._stop.reason

    def _panic(self, stop: Stop) -> Stop:
        """What the run ended with, after a panic began: unless the caller's own limits did."""
        if self.panicking is None or stop.reason in (StopReason.ADDRESS, StopReason.TIME) or (
                stop.reason is StopReason.INSTRUCTIONS
                and self.engine.instructions < self.panicking[1]):
            return stop
        text = self.machine.console.text[self.panicking[0] :].decode("utf-8", "replace")
        self.panicking = None
        said = [line for line in text.splitlines() if line.startswith("panic: ")]
        detail = said[0].removeprefix("panic: ").strip() if said else ""
        return Stop(StopReason.PANIC, stop.pc, detail)

    # -- why the engine came back -------------------------------------------------------------

    def _dispatch(self, why: int, detail: int) -> Stop | None:
        """Deal with why the engine came back."""
        engine, machine = self.engine, self.machine
        cpu = machine.cpu
        trouble: str | None = None
        if why == EngineStop.STOP_EXCEPTION:
            trouble = self._taken(lambda: cpu.exception(detail))
        elif why == EngineStop.STOP_DEADLINE:
            self._due()
        elif why == EngineStop.STOP_TURN:
            if not machine.schedule.over():
                return self._wait(machine.pc)
        elif why == EngineStop.STOP_INTERRUPT:
            if self._interrupts:
                return Stop(StopReason.INTERRUPT, machine.pc)
            cpu.deliver_interrupt()
            engine.taken()
            machine.interrupts_changed()
            if self._stop is not None and self._stop.reason is StopReason.UNHANDLED:
                return self._stop
        elif why == EngineStop.STOP_NONE:
            return self._ended_by_itself(machine.pc, bool(detail))
        elif why == EngineStop.STOP_ADDRESS:
            pc = machine.pc
            if not engine.frozen:
                self._settle(pc)
                engine.resume(pc)
        elif why == EngineStop.STOP_INVALID:
            trouble = self._taken(cpu.invalid)
        elif why == EngineStop.STOP_UNCOUNTED:
            begin, size = engine.unknown_block
            # What is no instruction counts as one: it is left by an exception.
            code = self._read_code(begin, size)
            engine.learn(begin, size, max(len(machine.arch.split(code)), 1))
        elif why == EngineStop.STOP_UNSURE:
            begin, size = engine.before
            split, length = self._instructions(begin, begin + size), cpu.model.fixed_length
            cut = not cpu.ends_block(split[-1])
            engine.learn_end(begin, size, size // length if length else len(split), cut)
            if cut:
                engine.resume(machine.pc)
        elif why == EngineStop.STOP_IN_PLACE:
            return self._in_place(machine.pc)
        elif why == EngineStop.STOP_ERROR:
            try:
                machine.pc = machine.left_at(machine.pc)
            except MemoryAccessError as error:
                raise CodeGoneError(f"{GONE}: {error}") from None
            trouble = cpu.bus_error(detail)
            engine.synchronize()
        if trouble is not None:
            return Stop(StopReason.UNHANDLED, machine.pc, trouble)
        return None

    def _ended_by_itself(self, pc: int, answered: bool) -> Stop | None:
        """The CPU model stopped without a request: it waits for an interrupt.

        :param answered: or a breakpoint was answered, which may hide something: the next run tells.
        """
        engine = self.engine
        if engine.frozen:
            return None
        begin, size, count = engine.block
        last = self._instructions(begin, pc)[-1:] if count and begin < pc <= begin + size else []
        if last and self.machine.cpu.is_wait(last[0]):
            self._settle(pc)  # on riscv64 the block may go on behind the wait
            engine.synchronize()
            self.machine.schedule.begins_to_wait(pc)
        elif answered:
            self._settle(pc)
        else:
            return Stop(StopReason.HALT, pc, "the CPU stopped where nothing is to stop it")
        return None

    def _instructions(self, begin: int, end: int) -> list[bytes]:
        """The instructions of the code at virtual [begin, end); where all are of one length, the
        last."""
        fixed = self.machine.cpu.model.fixed_length
        if fixed:
            return [self._read_code(end - fixed, fixed)]
        return self.machine.arch.split(self._read_code(begin, end - begin))

    def _trapped(self, pc: int) -> Stop | None:
        """A program's block begins that has an instruction which is trapped; what comes before the
        block was done."""
        _begin, size, _count = self.engine.block
        before = self.machine.cpu.trapped(pc, self._read_code(pc, size))
        if before:
            return self._execute(pc, min(before, self._limit - self.engine.instructions))
        self._delivered()
        return None

    def _taken(self, deliver: Callable[[], str | None]) -> str | None:
        """:return: why the guest cannot go on."""
        try:
            trouble = deliver()
        except MemoryAccessError as error:
            self.engine.settle()
            trouble = f"an exception in code that is not there any more: {error}"
        trouble = trouble or self._endless()
        self._delivered()
        return trouble

    def _delivered(self) -> None:
        """An exception was delivered, or answered."""
        if not self.engine.frozen:
            self.engine.taken()
            self.engine.synchronize()

    def _endless(self) -> str | None:
        """Exceptions upon exceptions, with no instruction executed between them."""
        if self.engine.endless():
            return (f"{ExceptionLimit.MAX_EXCEPTIONS.value} exceptions and no instruction between "
                    "them")
        return None

    def _in_place(self, pc: int) -> Stop | None:
        """Execute the one instruction under a breakpoint of the provider's."""
        code = self.machine.displaced(pc)
        patch = self._read_code(pc, len(code))
        self.machine.write_code(pc, code)
        try:
            return self._execute(pc, 1)
        finally:
            self.machine.write_code(pc, patch)

    def _due(self) -> None:
        """The clock reached the deadline."""
        self.events.run(self.engine.now)
        if self.engine.now >= self._time_limit and self._stop is None:
            self._stop = Stop(StopReason.TIME, self.machine.pc)
        self._ending = self._stop is not None
        self.deadline_changed()
        self.machine.interrupts_changed()

    def _wait(self, pc: int) -> Stop | None:
        """The CPU waits for an interrupt: another one has its turn, or, where all wait, skip to
        what wakes one."""
        engine, schedule, rung = self.engine, self.machine.schedule, 0
        cpu = self.machine.cpu
        if schedule.several and not (cpu.on and cpu.wakes()):
            if schedule.over():
                return None
            if schedule.nobody:
                return Stop(StopReason.HALT, pc, "all CPUs are off, or mask interrupts")
            schedule.new_round()
        while not schedule.anybody():
            rung += 1
            if rung > MAX_RUNG:
                return Stop(StopReason.HALT, pc,
                            f"timers have rung {MAX_RUNG} times, and wake nobody")
            if self._stop is not None:
                return Stop(self._stop.reason, pc, self._stop.detail)
            when = min(self.events.next(), self._time_limit)
            if when == NEVER:
                return Stop(StopReason.HALT, pc)
            if when > engine.now:
                engine.skew += when - engine.now
            self.events.run(engine.now)
            self.deadline_changed()
            if engine.now >= self._time_limit:
                return Stop(StopReason.TIME, pc)
        if rung and schedule.several:
            return None  # whose interrupt it is says the schedule
        delivered = cpu.deliver_interrupt()
        self.machine.interrupts_changed()
        if not delivered and not cpu.wakes_masked:
            return Stop(StopReason.HALT, pc, "interrupts are masked")
        schedule.waiting = None
        schedule.woke()
        engine.taken()
        engine.synchronize()
        return None
