"""Run loop of the Unicorn machine; it ends runs and handles events between instructions."""

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

PANIC_INSTRUCTIONS = 100_000_000  # instruction budget for printing the panic message
MAX_RUNG = 1 << 16  # maximum number of timer expirations while a CPU waits without an interrupt
# Reasons of stops that the guest itself causes; such a stop is part of the machine's state.
GUESTS = {StopReason.PANIC, StopReason.POWER_OFF, StopReason.RESET, StopReason.UNHANDLED}
GONE = "the CPU executes code through a mapping that was removed from the page tables"
# Maximum number of stop addresses; one more is reserved for ending a run within a block.
MAX_STOPS = StopLimit.MAX_STOPS - 1


class CodeGoneError(MachineError):
    """Error raised if the CPU executes code that the guest's page tables do not map.

    A page table or a control register was changed, and the CPU model still uses the old mapping.
    The number of executed instructions is unknown, so the run is abandoned: restore an earlier
    state.
    """


def _gone(error: MemoryAccessError) -> str:
    """Return the message of a ``CodeGoneError``, with its cause."""
    return f"{GONE} ({error}); the run was abandoned, so restore an earlier state"


@dataclass(frozen=True)
class Alarm:
    """An observer's callback at a virtual time, between two instructions.

    :param time: virtual time in nanoseconds.
    :param ring: the callback; it returns the next time, or None to end the alarm.
    """

    time: int
    ring: Callable[[], int | None]


class RunnableMachine(Protocol):
    """The part of a machine that the run loop needs."""

    arch: Arch
    guest: Guest
    console: ConsoleLog
    engine: Engine
    events: EventQueue
    schedule: Schedule
    alarm: Alarm | None
    patches: int  # nonzero while breakpoints are in memory
    breakpoints: Container[int]  # addresses of the breakpoints
    displaced: Callable[[int], bytes]  # returns the original bytes under a breakpoint
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
    """Loop that runs a machine and decides what ends each run.

    :param machine: the machine, whose engine already exists.
    """

    def __init__(self, machine: RunnableMachine) -> None:
        self.machine = machine
        self.engine, self.events = machine.engine, machine.events
        self.running = False
        self.handlers: dict[int, Callable[[], None]] = {}
        self.handling = False  # whether a handler is being called between two instructions
        self.panicking: tuple[int, int] | None = None
        self._stop: Stop | None = None  # stop that was requested but not yet reported
        self._ending = False  # whether the stop is due and all earlier events were handled
        self._interrupts = False  # whether the run ends before an interrupt is taken
        self._stops: set[int] = set()
        self._limit = NEVER  # instruction count at which the run ends
        self._time_limit = NEVER
        self._idle_limit, self._idled = NEVER, 0  # ns; _idled counts from the last console output
        self._console_wanted: tuple[bytes, ...] = ()
        self._console_start = 0

    # -- requests -----------------------------------------------------------------------------

    def request_stop(self, stop: Stop) -> None:
        """End the run before the next block, on behalf of a device or an observer."""
        if self._stop is None or (stop.reason in GUESTS and self._stop.reason not in GUESTS):
            self._stop = stop
        self.deadline_changed()

    def deadline_changed(self) -> None:
        """Update the engine's deadline after a timer, a stop or the time limit changed."""
        # A device's stop takes effect at the same points as an event: at canonical block starts.
        if self._ending:
            self.engine.deadline = self.events.next()
        elif self._stop is not None:
            self.engine.deadline = 0
        else:
            self.engine.deadline = min(self.events.next(), self._time_limit)

    def handle(self, address: int, handler: Callable[[], None] | None) -> None:
        """Call ``handler`` each time before the guest executes ``address``; None removes a handler.

        :raises MachineError: for too many stop addresses; the handler is not installed then.
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
        """Return whether the run in progress ends before it executes ``address``."""
        return address in self._stops

    def _set_stops(self, addresses: set[int]) -> None:
        wanted = len(addresses | self.handlers.keys())
        if wanted > MAX_STOPS:
            raise MachineError(f"{wanted} stop addresses and handlers exceed the limit of "
                               f"{MAX_STOPS}")
        self._stops = addresses
        self._install(addresses | self.handlers.keys())

    def _install(self, addresses: set[int]) -> None:
        """Make the engine stop before exactly these addresses."""
        self.engine.set_stops(addresses)

    def panicked(self) -> None:
        """Record that the guest panics; the run continues until the panic message is printed."""
        if self.panicking is None:
            end = self.engine.instructions + PANIC_INSTRUCTIONS
            self.panicking = len(self.machine.console.text), end
            self._limit = self.engine.limit = min(self._limit, end)

    def heard(self, data: int) -> None:
        """Check the console for text that ends the run, after the guest has written a byte."""
        console = self.machine.console
        text = console.text
        self._idled = 0
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

    # -- the run loop's part of the machine's state -------------------------------------------

    @property
    def asked(self) -> tuple[str, str] | None:
        """The stop that the guest itself requested, as (reason name, detail), or None."""
        if self._stop is None or self._stop.reason not in GUESTS:
            return None
        return self._stop.reason.name, self._stop.detail

    def keep(self) -> tuple[Stop | None, tuple[int, int] | None]:
        """Return the run loop's part of the state, for ``put_back``."""
        return self._stop, self.panicking

    def put_back(self, kept: tuple[Stop | None, tuple[int, int] | None]) -> None:
        """Restore the state returned by ``keep``."""
        self.engine.forget_exceptions()
        self._stop, self.panicking = kept

    def restore(self, state: MachineState, pc: int) -> None:
        """Restore the run loop's part of a machine state whose program counter is ``pc``."""
        self.engine.forget_exceptions()
        self._stop = None
        if state.stop is not None:
            self._stop = Stop(StopReason[state.stop[0]], pc, state.stop[1])
        self.panicking = state.panic

    # -- a run --------------------------------------------------------------------------------

    def begins(self) -> None:
        """Prepare for a run, which may consist of several calls of ``run``."""
        self._idled = 0

    def run(self, until: Until, console_start: int) -> Stop:
        """Run until a condition of ``until`` holds or the guest ends the run, and call due alarms.

        :param console_start: offset in the console's text from which to search for ``until``'s.
        """
        machine = self.machine
        self._idle_limit = NEVER if until.idle is None else until.idle
        while machine.alarm is not None and (until.time is None or machine.alarm.time < until.time):
            alarm = machine.alarm
            stop = self._run(replace(until, time=alarm.time), console_start)
            if stop.reason is not StopReason.TIME:
                return stop
            following = alarm.ring()
            machine.alarm = None if following is None else Alarm(following, alarm.ring)
            # Report this stop now, because a run ignores a stop address at its start.
            if stop.pc in until.addresses:
                return replace(stop, reason=StopReason.ADDRESS)
        return self._run(until, console_start)

    def _run(self, until: Until, console_start: int) -> Stop:
        engine = self.engine
        if self.running:
            raise MachineError("the machine is already running: a handler cannot run it again")
        self._time_limit = until.time if until.time is not None else NEVER
        wanted = (until.console,) if isinstance(until.console, str) else until.console
        self._console_wanted = tuple(text.encode("utf-8", "surrogateescape") for text in wanted)
        self._console_start = console_start
        if self._reason() in (StopReason.TIME, StopReason.OUTPUT) or (
                self._stop is not None and self._stop.reason is StopReason.CONSOLE
                and self._stop.detail not in wanted):
            self._stop = None  # this stop is left over from an earlier run
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
        """Let Ctrl-C end a run between two instructions, as a stop requested by a device does.

        A second Ctrl-C raises KeyboardInterrupt as usual.
        """
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
        """Run the guest until something ends the run, and return the stop.

        A stop lies between two instructions, after everything due before the next one was done, so
        the state does not depend on the purpose of the stop.  While a probe fires, time stands
        still and no address ends the run, because the guest then executes the probe's code.

        A stop address takes precedence over the caller's limits, because the next run would no
        longer stop at it.
        """
        engine, machine = self.engine, self.machine
        first, began = True, machine.pc  # a stop address at the start does not end the run
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
        """Run until the engine stops; a stop address or handler at ``pc`` itself is ignored."""
        before = self.engine.instructions
        why, detail = self._counted(pc, False)
        left = self._limit - self.engine.instructions
        if why == EngineStop.STOP_LIMIT and left > 0 and self._still_at(pc, before):
            # The limit is within the block at pc.  Before any other block, _loop must check for
            # stops and handlers.
            return self._execute(pc, left)
        if why == EngineStop.STOP_TRAPPED and self._still_at(pc, before):
            return self._trapped(pc)
        return self._dispatch(why, detail)

    def _still_at(self, pc: int, before: int) -> bool:
        """Return whether the machine is still at ``pc``, with the instruction count ``before``."""
        return self.engine.instructions == before and self.machine.pc == pc

    def _counted(self, pc: int, piece: bool) -> tuple[int, int]:
        """Call ``Engine.run`` from ``pc`` after counting the instructions of the block there."""
        engine, before = self.engine, self.engine.instructions
        why, detail = engine.run(pc, piece)
        while why == EngineStop.STOP_UNCOUNTED and self._still_at(pc, before):
            self._dispatch(why, detail)  # _dispatch counts the instructions of the block at pc
            why, detail = engine.run(pc, piece)
        return why, detail

    def _execute(self, pc: int, count: int) -> Stop | None:
        """Execute ``count`` instructions of the straight-line code at ``pc``; stop after the last.

        Another event may end the execution earlier.  Every stop within a block uses this method.
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
        """Return the byte length of the instruction at ``pc``, or 1 if it is invalid.

        Under a breakpoint, that is the displaced instruction.
        """
        if self.machine.patches and pc in self.machine.breakpoints:
            return len(self.machine.displaced(pc)) or 1
        return self.machine.arch.executed_length(self._code(pc)) or 1

    def _code(self, pc: int) -> bytes:
        """Return 15 bytes of code at ``pc``, or fewer if the next page is not mapped."""
        room = 4096 - pc % 4096
        if room < 15 and self.machine.translate(pc + room) is None:
            return self._read_code(pc, room)
        return self._read_code(pc, 15)

    def _read_code(self, address: int, size: int) -> bytes:
        """Read code that the CPU is about to execute.

        :raises CodeGoneError: if the code is no longer mapped.
        """
        try:
            return self.machine.read(address, size)
        except MemoryAccessError as error:
            raise CodeGoneError(_gone(error)) from None

    def _settle(self, pc: int) -> None:
        """Correct the instruction count after the CPU has left the current block before ``pc``.

        :raises CodeGoneError: if its code is no longer mapped.
        """
        try:
            self.machine.settle(pc)
        except MemoryAccessError as error:
            raise CodeGoneError(_gone(error)) from None

    def _reason(self) -> StopReason | None:
        return None if self._stop is None else self._stop.reason

    def _panic(self, stop: Stop) -> Stop:
        """Return a panic stop if the guest panicked, unless the caller's limits ended the run."""
        if self.panicking is None or stop.reason in (StopReason.ADDRESS, StopReason.TIME) or (
                stop.reason is StopReason.INSTRUCTIONS
                and self.engine.instructions < self.panicking[1]):
            return stop
        text = self.machine.console.text[self.panicking[0] :].decode("utf-8", "replace")
        self.panicking = None
        panic_lines = [line for line in text.splitlines() if line.startswith("panic: ")]
        detail = panic_lines[0].removeprefix("panic: ").strip() if panic_lines else ""
        return Stop(StopReason.PANIC, stop.pc, detail)

    # -- why the engine stopped ---------------------------------------------------------------

    def _dispatch(self, why: int, detail: int) -> Stop | None:
        """Handle a stop of the engine; return the stop that ends the run, or None to continue."""
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
            # Invalid bytes count as one instruction, which raises an exception.
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
                raise CodeGoneError(_gone(error)) from None
            trouble = cpu.bus_error(detail)
            engine.synchronize()
        if trouble is not None:
            return Stop(StopReason.UNHANDLED, machine.pc, trouble)
        return None

    def _ended_by_itself(self, pc: int, answered: bool) -> Stop | None:
        """Handle a stop that nothing requested, as when the CPU waits for an interrupt.

        :param answered: whether a breakpoint was answered as well, which may hide an error; the
            next run reveals it.
        """
        engine = self.engine
        if engine.frozen:
            return None
        begin, size, count = engine.block
        last = self._instructions(begin, pc)[-1:] if count and begin < pc <= begin + size else []
        if last and self.machine.cpu.is_wait(last[0]):
            self._settle(pc)  # on riscv64 the block may continue after the wait instruction
            engine.synchronize()
            self.machine.schedule.begins_to_wait(pc)
        elif answered:
            self._settle(pc)
            if count and begin <= pc < begin + size:
                engine.resume(pc)  # the block had begun, so nothing becomes due here
        else:
            return Stop(StopReason.HALT, pc, "the CPU stopped for no known reason")
        return None

    def _instructions(self, begin: int, end: int) -> list[bytes]:
        """Return the instructions in [begin, end), or only the last one if lengths are fixed."""
        fixed = self.machine.cpu.model.fixed_length
        if fixed:
            return [self._read_code(end - fixed, fixed)]
        return self.machine.arch.split(self._read_code(begin, end - begin))

    def _trapped(self, pc: int) -> Stop | None:
        """Handle entry into a user-mode block that contains a trapped instruction.

        Everything before the block was executed.
        """
        _begin, size, _count = self.engine.block
        before = self.machine.cpu.trapped(pc, self._read_code(pc, size))
        if before:
            return self._execute(pc, min(before, self._limit - self.engine.instructions))
        self._delivered()
        return None

    def _taken(self, deliver: Callable[[], str | None]) -> str | None:
        """Deliver an exception and update the engine; detect endless exceptions.

        :return: None, or why the guest cannot continue.
        """
        try:
            trouble = deliver()
        except MemoryAccessError as error:
            self.engine.settle()
            trouble = f"an exception in code that is no longer mapped: {error}"
        trouble = trouble or self._endless()
        self._delivered()
        return trouble

    def _delivered(self) -> None:
        """Update the engine after an exception was delivered or a firmware call was answered."""
        if not self.engine.frozen:
            self.engine.taken()
            self.engine.synchronize()

    def _endless(self) -> str | None:
        """Count an exception; return an error if too many occur without an executed instruction."""
        if self.engine.endless():
            return (f"{ExceptionLimit.MAX_EXCEPTIONS.value} exceptions in a row without an "
                    "executed instruction")
        return None

    def _in_place(self, pc: int) -> Stop | None:
        """Execute the instruction that a provider's breakpoint replaced, at its own address."""
        code = self.machine.displaced(pc)
        patch = self._read_code(pc, len(code))
        self.machine.write_code(pc, code)
        try:
            return self._execute(pc, 1)
        finally:
            self.machine.write_code(pc, patch)

    def _due(self) -> None:
        """Handle the events that are due once the clock has reached the deadline."""
        self.events.run(self.engine.now)
        if self.engine.now >= self._time_limit and self._stop is None:
            self._stop = Stop(StopReason.TIME, self.machine.pc)
        self._ending = self._stop is not None
        self.deadline_changed()
        self.machine.interrupts_changed()

    def _wait(self, pc: int) -> Stop | None:
        """Handle a CPU that waits for an interrupt: give another CPU the turn, or advance time.

        If all CPUs wait, time skips to the event that wakes one.
        """
        engine, schedule, rung = self.engine, self.machine.schedule, 0
        cpu = self.machine.cpu
        if schedule.several and not (cpu.on and cpu.wakes()):
            if schedule.over():
                return None
            if schedule.nobody:
                return Stop(StopReason.HALT, pc, "all CPUs are off or have interrupts masked")
            schedule.new_round()
        while not schedule.anybody():
            rung += 1
            if rung > MAX_RUNG:
                return Stop(StopReason.HALT, pc,
                            f"timers expired {MAX_RUNG} times without waking a CPU")
            if self._stop is not None:
                return Stop(self._stop.reason, pc, self._stop.detail)
            when = min(self.events.next(), self._time_limit)
            if when == NEVER:
                return Stop(StopReason.HALT, pc)
            if when > engine.now:
                if self._idled >= self._idle_limit:
                    return Stop(StopReason.IDLE, pc)
                self._idled += when - engine.now
                engine.skew += when - engine.now
            self.events.run(engine.now)
            self.deadline_changed()
            if engine.now >= self._time_limit:
                return Stop(StopReason.TIME, pc)
        if rung and schedule.several:
            return None  # the schedule decides which CPU takes the interrupt
        delivered = cpu.deliver_interrupt()
        self.machine.interrupts_changed()
        if not delivered and not cpu.wakes_masked:
            return Stop(StopReason.HALT, pc, "interrupts are masked")
        schedule.waiting = None
        schedule.woke()
        engine.taken()
        engine.synchronize()
        return None
