"""The machine on Unicorn: memory, time, the run loop.  Architectures are in ``Board``."""

import contextlib
import ctypes
import hashlib
import signal
import threading
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import unicorn
from unicorn.unicorn_py3 import unicorn as unicorn_binding

from emu.elf import Image
from emu.errors import MachineError, MemoryAccessError
from emu.events import NEVER, EventQueue, Timer
from emu.machine import ConsoleLog, Machine, Stop, StopReason, Until
from emu.unicorn._engine import Engine, EngineStop, StopLimit
from emu.unicorn.guest_memory import PAGE, GuestMemory, MemoryImage

# Where a kernel's panic begins, what it says at its end, and how long that may take.
PANIC = "vpanic"
PANIC_ENDS = (b"Uptime: ", b"KDB: enter: ", b"db> ")
PANIC_INSTRUCTIONS = 100_000_000
MAX_EXCEPTIONS = 64
# What the guest has asked for itself, and not who looks at it: part of its state.
GUESTS = {StopReason.PANIC, StopReason.POWER_OFF, StopReason.RESET, StopReason.UNHANDLED}
MAX_STOPS = StopLimit.MAX_STOPS - 1  # one is the machine's own, to end within a block
LARGE = 1 << 16  # bytes: more are not read at once
NO_BREAKPOINTS: Container[int] = frozenset()
MIN_MEMORY, MAX_MEMORY = 64 << 20, 64 << 30


def library_symbols() -> dict[str, int]:
    """Addresses of libunicorn's functions, in the library that the Python package has loaded."""
    library = unicorn_binding.uclib
    return {
        name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        for name in Engine.FUNCTIONS
    }


@dataclass(frozen=True)
class MachineState:
    """Everything of a machine but its memory; JSON-able but for the console's bytes.

    :param arrived: what is due at the present instruction was done (``Engine.arrive``).
    :param waiting: the CPU has executed a wait instruction, and nothing has woken it.
    :param stop: why the run is to end at the next canonical block start: (name of a StopReason,
        detail); None: it is not.
    :param panic: (bytes the console had said, instructions at which patience ends) of a panic that
        has begun; None: there is none.
    """

    cpu: dict[str, Any]
    devices: dict[str, Any]
    timers: dict[str, int]
    instructions: int
    canonical: int
    skew: int
    arrived: bool
    waiting: bool
    stop: tuple[str, str] | None
    panic: tuple[int, int] | None
    console: bytes


@dataclass(frozen=True)
class Snapshot:
    """A state kept in memory."""

    state: MachineState
    memory: MemoryImage
    patches: int = 0  # which set of breakpoints was in memory; 0: none


@dataclass(frozen=True)
class Alarm:
    """Somebody wants to look at a virtual time, between two instructions.

    :param ring: is called then; gives the next time, None for no more.
    """

    time: int
    ring: Callable[[], int | None]


Go = Callable[[Until], Stop]


class Runner(Protocol):
    """Somebody who records a machine: is told what comes in from outside, and runs it."""

    def entered(self, kind: str, name: str, value: bytes) -> None:
        """Keys are typed (``type``); a ``register``, a ``vector`` register or, at the physical
        address that ``name`` says, ``memory`` is written."""

    def run(self, until: Until, go: Go) -> Stop:
        """Run the machine, in as many pieces as it likes."""


class UnicornMachine(Machine):
    """A deterministic machine: its run is a function of the image and its input.

    :param image: the kernel; its architecture chooses the board.
    :param memory: bytes of RAM, a multiple of 2 MiB.
    :raises MachineError: for an impossible memory size.
    """

    def __init__(self, image: Image, memory: int = 512 << 20) -> None:
        from emu.architectures import arch_of

        if memory % (2 << 20) or not MIN_MEMORY <= memory <= MAX_MEMORY:
            raise MachineError(
                f"memory of {memory} bytes: give a multiple of 2 MiB between 64M and 64G"
            )
        self.image = image
        self.arch = arch_of(image)
        self.memory = memory
        self.console = ConsoleLog()
        self.events = EventQueue()
        self.events.notify = self._deadline_changed
        try:
            self.memory_part = GuestMemory(memory)
        except OSError as error:
            raise MachineError(f"no {memory >> 20} MiB of memory: {error.strerror}") from None
        self.engine: Engine
        self._uc: unicorn.Uc
        self._stop: Stop | None = None  # asked for, and not reported yet
        self._ending = False  # what was due first was done
        self._counts: dict[tuple[int, int], int] = {}
        self._stops: set[int] = set()
        self._limit = NEVER  # instructions at which the run ends
        self._running = False
        self._waiting: int | None = None  # where the CPU waits for an interrupt
        self._hidden: tuple[int, GuestMemory] | None = None
        self._handlers: dict[int, Callable[[], None]] = {}
        self.breakpoints = NO_BREAKPOINTS  # patched addresses: time stands still from there
        self.displaced: Callable[[int], bytes] = lambda address: b""  # what a breakpoint is over
        self.patches = self._patch_serial = 0
        self._exception_at = self._exceptions = 0
        self._panicking: tuple[int, int] | None = None
        self._time_limit = NEVER
        self._console_wanted: tuple[bytes, ...] = ()
        self._console_start = 0
        self.alarm: Alarm | None = None  # somebody who looks: no part of the machine's state
        self.runner: Runner | None = None  # so here
        self.board = self.arch.board(self)
        self.engine.map_ram(self.board.ram_base, self.memory_part.view)
        self.console_sink = self.console.output

    # -- set-up, called by the board ----------------------------------------------------------

    def make_engine(self, arch: int, mode: int, model: int, pc: int, fixed: int) -> None:
        """Make the Unicorn engine (constants of unicorn.h)."""
        self._uc = unicorn.Uc(arch, mode)
        self._uc.ctl_set_cpu_model(model)
        self.engine = Engine(self._uc, library_symbols(), pc, fixed)

    @property
    def uc(self) -> unicorn.Uc:
        """Unicorn's own object, for what the native engine does not wrap."""
        return self._uc

    # -- Bus: what devices ask ----------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.engine.now

    def spend(self, nanoseconds: int) -> None:
        self.engine.skew += nanoseconds

    def timer(self, name: str, callback: Callable[[], None]) -> Timer:
        return self.events.timer(name, callback)

    def interrupts_changed(self) -> None:
        self.engine.pending = self.board.interrupt_pending()

    def _deadline_changed(self) -> None:
        # A stop asked for by a device takes effect where an event would: at a canonical start.
        if self._ending:
            self.engine.deadline = self.events.next()
        elif self._stop is not None:
            self.engine.deadline = 0
        else:
            self.engine.deadline = min(self.events.next(), self._time_limit)

    # -- registers and memory -----------------------------------------------------------------

    def read_register(self, name: str) -> int:
        number = self.board.cpu.registers.get(name)
        if number is None:
            return self.board.read_system(name)
        return self.engine.read(number)

    def write_register(self, name: str, value: int) -> None:
        number = self.board.cpu.registers.get(name)
        value &= (1 << 64) - 1
        self._entered("register", name, value.to_bytes(8, "little"))
        if number is None:
            self.board.write_system(name, value)
        else:
            self.engine.write(number, value)

    def write_vector(self, name: str, value: int) -> None:
        number = self.board.vectors.get(name)
        if number is None:
            raise MachineError(f"{self.arch.name} has no vector register '{name}'")
        self._entered("vector", name, value.to_bytes(16, "little"))
        self.engine.write_bytes(number, value.to_bytes(16, "little"))

    def hidden_memory(self, size: int) -> int:
        """Memory the guest knows nothing of, for trampolines; not part of digests or snapshots.

        :return: its physical address; the same at every call.
        """
        if self._hidden is None:
            base = self.board.hidden_base
            area = GuestMemory(size)
            self.engine.map_ram(base, area.view)
            self._hidden = base, area
        return self._hidden[0]

    def forget_translations(self) -> None:
        self.engine.flush_tlb()
        self.engine.flush_translations()

    def release_hidden(self) -> None:
        """Give the host back what the hidden memory holds; it reads as zeros again."""
        if self._hidden is not None:
            self._hidden[1].clear()

    def handle(self, address: int, handler: Callable[[], None] | None) -> None:
        """Call ``handler`` before the guest executes ``address``, in every run; None: no more.

        :raises MachineError: for too many; then it is not called.
        """
        before = dict(self._handlers)
        if handler is None:
            self._handlers.pop(address, None)
        else:
            self._handlers[address] = handler
        try:
            self._set_stops(self._stops)
        except MachineError:
            self._handlers = before
            raise

    def _area(self, address: int, size: int) -> memoryview:
        at = address - self.board.ram_base
        if self._hidden is not None:
            base, area = self._hidden
            if base <= address and address + size <= base + area.size:
                return area.view[address - base : address - base + size]
        if at < 0 or at + size > self.memory:
            raise MemoryAccessError(f"physical {address:#x}..{address + size:#x} is not RAM")
        return self.memory_part.view[at : at + size]

    def read(self, address: int, size: int) -> bytes:
        known = 0 <= size <= LARGE and 0 <= address < 1 << 64
        data = self.engine.read_memory(address, size) if known else None
        return super().read(address, size) if data is None else data

    def read_physical(self, address: int, size: int) -> bytes:
        return bytes(self._area(address, size))

    def write_physical(self, address: int, data: bytes) -> None:
        area = self._area(address, len(data))
        if self._hidden is None or not self._hidden[0] <= address < (
                self._hidden[0] + self._hidden[1].size):
            self._entered("memory", f"{address:x}", bytes(data))
        area[:] = data

    def _entered(self, kind: str, name: str, value: bytes) -> None:
        if self.runner is not None and not self.running:
            self.runner.entered(kind, name, value)

    @contextlib.contextmanager
    def unrecorded(self) -> Iterator[None]:
        """What is written is no input: a look at the machine, or a breakpoint."""
        runner, self.runner = self.runner, None
        try:
            yield
        finally:
            self.runner = runner

    def write_code(self, address: int, data: bytes) -> None:
        """Write virtual memory that may have been executed: its translations are dropped."""
        with self.unrecorded():
            self.write(address, data)
        self.engine.remove_translations(address, address + len(data))
        self._counts.clear()

    # -- running ------------------------------------------------------------------------------

    @property
    def instructions(self) -> int:
        return self.engine.instructions

    def boot(self) -> None:
        """Play the boot loader: the machine is then about to execute the kernel's first
        instruction."""
        self.board.load(self.image)
        self._watch_panic()

    def place_image(self) -> None:
        """Put the image into memory and map it where it was linked, without starting it: its leaf
        functions can be called then."""
        self.board.place(self.image)
        for module in self.image.modules:
            self.write(module.address, module.memory)
        self._watch_panic()

    def _watch_panic(self) -> None:
        panic = self.image.symbols.find(PANIC)
        if panic is not None:
            self.handle(panic.address, self._panicked)

    def _panicked(self) -> None:
        """The guest panics: the run goes on until it has said why."""
        if self._panicking is None:
            end = self.instructions + PANIC_INSTRUCTIONS
            self._panicking = len(self.console.text), end
            self._limit = self.engine.limit = min(self._limit, end)

    def type(self, data: bytes) -> None:
        if self.runner is not None and self.running:
            raise MachineError("the machine is recorded: keys are not typed while it runs")
        self._entered("type", "", data)
        self.board.type(data)

    def step(self) -> None:
        self.run(Until(instructions=self.instructions + 1))

    def request_stop(self, stop: Stop) -> None:
        """End the run before the next block; for devices and observers."""
        if self._stop is None or (stop.reason in GUESTS and self._stop.reason not in GUESTS):
            self._stop = stop
        self._deadline_changed()

    def output(self, data: int) -> None:
        """Console: one byte from the serial port."""
        self.console_sink(data)
        if self._panicking is not None and data == 0x0A:
            line = self.console.text[self._panicking[0] :].rstrip().rsplit(b"\n", 1)[-1]
            if line.startswith(PANIC_ENDS):
                self.request_stop(Stop(StopReason.PANIC, 0))
        for wanted in self._console_wanted:
            if data == wanted[-1] and self.console.text.endswith(wanted, self._console_start):
                self._console_wanted = ()
                text = wanted.decode("utf-8", "replace")
                self.request_stop(Stop(StopReason.CONSOLE, 0, text))
                return

    def count(self, begin: int, end: int) -> int:
        """Guest instructions in the code at virtual [begin, end)."""
        if begin >= end:
            return 0
        known = self._counts.get((begin, end))
        if known is None:
            known = len(self.arch.split(self.read(begin, end - begin)))
            self._counts[begin, end] = known
        return known

    def left_at(self, pc: int) -> int:
        """An exception that is no probe's left the block in progress before ``pc``; for boards.

        :return: where it happened for the guest: not in a trampoline, but at what that displaces.
        """
        if self.engine.frozen:
            return self.engine.detour.abandon(pc)
        self.settle(pc)
        return pc

    def settle(self, pc: int) -> None:
        """The block in progress was left before ``pc``, which was not executed."""
        begin, size, count = self.engine.block
        if count and begin <= pc <= begin + size:
            self.engine.settle(self.count(begin, pc))
        else:
            self.engine.settle()

    def run(self, until: Until) -> Stop:
        """Run until ``until`` or the guest ends the run; an ``alarm`` rings in between.

        :raises MachineError: when called while the machine runs, or for too many addresses.
        """
        start = len(self.console.text)
        if self.runner is None:
            return self._run_with_alarm(until, start)
        return self.runner.run(until, lambda part: self._run_with_alarm(part, start))

    def _run_with_alarm(self, until: Until, start: int) -> Stop:
        while self.alarm is not None and (until.time is None or self.alarm.time < until.time):
            alarm = self.alarm
            stop = self._run(replace(until, time=alarm.time), start)
            if stop.reason is not StopReason.TIME:
                return stop
            following = alarm.ring()
            self.alarm = None if following is None else Alarm(following, alarm.ring)
            if stop.pc in until.addresses:  # going on would step over it
                return replace(stop, reason=StopReason.ADDRESS)
        return self._run(until, start)

    def _run(self, until: Until, console_start: int) -> Stop:
        engine = self.engine
        if self._running:
            raise MachineError("the machine is running: it cannot be run from inside its own run")
        self._time_limit = until.time if until.time is not None else NEVER
        wanted = (until.console,) if isinstance(until.console, str) else until.console
        self._console_wanted = tuple(text.encode("utf-8", "surrogateescape") for text in wanted)
        self._console_start = console_start
        if self._reason() is StopReason.TIME or (
                self._stop is not None and self._stop.reason is StopReason.CONSOLE
                and self._stop.detail not in wanted):
            self._stop = None  # what an earlier run was to end with
        self._ending = False
        self._limit = engine.limit = min(
            NEVER if until.instructions is None else until.instructions,
            NEVER if self._panicking is None else self._panicking[1],
        )
        self._set_stops(set(until.addresses))
        self._deadline_changed()
        self.interrupts_changed()
        self._running = True
        try:
            with self._interruptible():
                stop = self._loop()
            if stop.reason is self._reason():
                self._stop = None
            return self._panic(stop)
        finally:
            self._running = False
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
        engine = self.engine
        first, began = True, self.pc  # a stop address where the run begins does not end it
        while True:
            if engine.frozen:
                engine.detour.thaw_if_at(self.pc)
            pc = self.pc
            if self._waiting == pc:
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
                if pc in self._handlers:
                    self._handlers[pc]()
                    if self.pc != pc:
                        continue
                stop = self._go(pc)
            if stop is not None:
                return stop

    def _go(self, pc: int) -> Stop | None:
        """Run until something ends it; a stop or a handler at ``pc`` itself is passed by."""
        before = self.engine.instructions
        why, detail = self._counted(pc, False)
        left = self._limit - self.engine.instructions
        if why == EngineStop.STOP_LIMIT and left > 0 and self.engine.instructions == before:
            return self._execute(pc, left)  # of another block, the loop sees what is at its start
        return self._dispatch(why, detail)

    def _counted(self, pc: int, piece: bool) -> tuple[int, int]:
        """``Engine.run`` from ``pc``, when the instructions of the block there are known."""
        engine, before = self.engine, self.engine.instructions
        why, detail = engine.run(pc, piece)
        while why == EngineStop.STOP_UNCOUNTED and engine.instructions == before:
            self._dispatch(why, detail)  # it is the block at pc: nothing was executed yet
            why, detail = engine.run(pc, piece)
        return why, detail

    def _execute(self, pc: int, count: int) -> Stop | None:
        """Execute ``count`` instructions of the straight code at ``pc`` and end exactly there, or
        where something else ends them first: all that stops within a block rests on this.
        """
        engine = self.engine
        end, before = pc, engine.instructions
        for _ in range(count):
            end += self._length(end)
        try:
            engine.limit = before + count
            self._install(self._stops | self._handlers.keys() | {end})
            return self._dispatch(*self._counted(pc, True))
        finally:
            engine.limit = self._limit
            self._install(self._stops | self._handlers.keys())

    def _length(self, pc: int) -> int:
        """Bytes of the instruction at ``pc``, also under a breakpoint; 1 when it is none."""
        if self.patches and pc in self.breakpoints:
            return len(self.displaced(pc)) or 1
        return self.arch.instruction_length(self._code(pc)) or 1

    def _reason(self) -> StopReason | None:
        return None if self._stop is None else self._stop.reason

    def _panic(self, stop: Stop) -> Stop:
        """What the run ended with, after a panic began: unless the caller's own limits did."""
        if self._panicking is None or stop.reason in (StopReason.ADDRESS, StopReason.TIME) or (
                stop.reason is StopReason.INSTRUCTIONS
                and self.instructions < self._panicking[1]):
            return stop
        text = self.console.text[self._panicking[0] :].decode("utf-8", "replace")
        self._panicking = None
        said = [line for line in text.splitlines() if line.startswith("panic: ")]
        detail = said[0].removeprefix("panic: ").strip() if said else ""
        return Stop(StopReason.PANIC, stop.pc, detail)

    def _set_stops(self, addresses: set[int]) -> None:
        wanted = len(addresses | self._handlers.keys())
        if wanted > MAX_STOPS:
            raise MachineError(f"{wanted} stop addresses and handlers: {MAX_STOPS} are possible")
        self._stops = addresses
        self._install(addresses | self._handlers.keys())

    def is_stop(self, address: int) -> bool:
        """Whether the run in progress ends before it executes ``address``."""
        return address in self._stops

    def _install(self, addresses: set[int]) -> None:
        """Make the engine stop before these addresses, and before no others."""
        self.engine.set_stops(addresses)

    def _dispatch(self, why: int, detail: int) -> Stop | None:
        """Deal with why the engine came back."""
        engine, board = self.engine, self.board
        trouble: str | None = None
        if why == EngineStop.STOP_EXCEPTION:
            trouble = board.exception(detail) or self._endless()
            self._delivered()
        elif why == EngineStop.STOP_DEADLINE:
            self._due()
        elif why == EngineStop.STOP_INTERRUPT:
            board.deliver_interrupt()
            engine.taken()
            self.interrupts_changed()
            if self._stop is not None and self._stop.reason is StopReason.UNHANDLED:
                return self._stop
        elif why == EngineStop.STOP_NONE:
            return self._ended_by_itself(self.pc, bool(detail))
        elif why == EngineStop.STOP_ADDRESS:
            pc = self.pc
            if not engine.frozen:
                self.settle(pc)
                engine.resume(pc)
        elif why == EngineStop.STOP_INVALID:
            trouble = board.invalid() or self._endless()
            self._delivered()
        elif why == EngineStop.STOP_UNCOUNTED:
            begin, size = engine.unknown_block
            # What is no instruction counts as one: it is left by an exception.
            engine.learn(begin, size, max(len(self.arch.split(self.read(begin, size))), 1))
        elif why == EngineStop.STOP_UNSURE:
            begin, size = engine.before
            code, length = self._instructions(begin, begin + size), board.cpu.fixed_length
            cut = not board.ends_block(code[-1])
            engine.learn_end(begin, size, size // length if length else len(code), cut)
            if cut:
                engine.resume(self.pc)
        elif why == EngineStop.STOP_IN_PLACE:
            return self._in_place(self.pc)
        elif why == EngineStop.STOP_ERROR:
            self.pc = self.left_at(self.pc)
            trouble = board.bus_error(detail)
            engine.synchronize()
        if trouble is not None:
            return Stop(StopReason.UNHANDLED, self.pc, trouble)
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
        if last and self.board.is_wait(last[0]):
            self.settle(pc)  # on riscv64 the block may go on behind the wait
            engine.synchronize()
            self._waiting = pc
        elif answered:
            self.settle(pc)
        else:
            return Stop(StopReason.HALT, pc, "the CPU stopped where nothing is to stop it")
        return None

    def _instructions(self, begin: int, end: int) -> list[bytes]:
        """The instructions of the code at virtual [begin, end); where all are of one length, the
        last."""
        fixed = self.board.cpu.fixed_length
        if fixed:
            return [self.read(end - fixed, fixed)]
        return self.arch.split(self.read(begin, end - begin))

    def at_breakpoint(self, address: int) -> bool:
        """A breakpoint instruction was executed; for boards.

        :return: whether it is one of the provider's: the clock is frozen then.
        """
        ours = address in self.breakpoints
        if ours:
            self.engine.detour.freeze(self.sp)
        return ours

    def _delivered(self) -> None:
        """An exception was delivered, or answered."""
        if not self.engine.frozen:
            self.engine.taken()
            self.engine.synchronize()

    def _endless(self) -> str | None:
        """Exceptions upon exceptions, with no instruction executed between them."""
        if self.instructions != self._exception_at:
            self._exception_at, self._exceptions = self.instructions, 0
        self._exceptions += 1
        if self._exceptions > MAX_EXCEPTIONS:
            return f"{MAX_EXCEPTIONS} exceptions and no instruction between them"
        return None

    def _in_place(self, pc: int) -> Stop | None:
        """Execute the one instruction under a breakpoint of the provider's."""
        code = self.displaced(pc)
        patch = self.read(pc, len(code))
        self.write_code(pc, code)
        try:
            return self._execute(pc, 1)
        finally:
            self.write_code(pc, patch)

    def _code(self, pc: int) -> bytes:
        """The bytes of the instruction at ``pc``, and some more where the next page is mapped."""
        room = 4096 - pc % 4096
        if room < 15 and self.translate(pc + room) is None:
            return self.read(pc, room)
        return self.read(pc, 15)

    def _due(self) -> None:
        """The clock reached the deadline."""
        self.events.run(self.engine.now)
        if self.engine.now >= self._time_limit and self._stop is None:
            self._stop = Stop(StopReason.TIME, self.pc)
        self._ending = self._stop is not None
        self._deadline_changed()
        self.interrupts_changed()

    def _wait(self, pc: int) -> Stop | None:
        """The CPU waits for an interrupt: skip to what wakes it."""
        engine, board = self.engine, self.board
        while not board.interrupt_pending():
            if self._stop is not None:
                return Stop(self._stop.reason, pc, self._stop.detail)
            when = min(self.events.next(), self._time_limit)
            if when == NEVER:
                return Stop(StopReason.HALT, pc)
            if when > engine.now:
                engine.skew += when - engine.now
            self.events.run(engine.now)
            self._deadline_changed()
            if engine.now >= self._time_limit:
                return Stop(StopReason.TIME, pc)
        delivered = board.deliver_interrupt()
        self.interrupts_changed()
        if not delivered and not board.wakes_masked:
            return Stop(StopReason.HALT, pc, "interrupts are masked")
        self._waiting = None
        engine.taken()
        engine.synchronize()
        return None

    # -- snapshots ----------------------------------------------------------------------------

    def state(self) -> MachineState:
        """Everything but memory.

        :raises MachineError: in the middle of a firing.
        """
        self._between_instructions("its state is not the guest's")
        with self.unrecorded():
            cpu = self.board.cpu_state()
        return MachineState(
            cpu, self.board.state(), self.events.state(), self.instructions,
            self.engine.canonical, self.engine.skew, self.engine.stands_at(self.pc),
            self._waiting == self.pc,
            None if self._stop is None or self._stop.reason not in GUESTS
            else (self._stop.reason.name, self._stop.detail),
            self._panicking, bytes(self.console.text),
        )

    def _between_instructions(self, why: str) -> None:
        if self.engine.frozen or self.engine.running:
            raise MachineError(f"the machine is in the middle of an instruction: {why}")

    def restore_state(self, state: MachineState) -> None:
        """Everything but memory, which must be in place already."""
        self.engine.flush_tlb()
        self.engine.flush_translations()
        self.engine.detour.thaw()
        self.engine.instructions = state.instructions
        self.engine.canonical = state.canonical
        self.engine.skew = state.skew
        self.board.restore_cpu(state.cpu)
        self.board.restore(state.devices)
        self.events.restore(state.timers)
        pc = self.pc
        if state.arrived:
            self.engine.resume(pc)
        self._exception_at = self._exceptions = 0
        self._waiting = pc if state.waiting else None
        self._stop = None
        if state.stop is not None:
            self._stop = Stop(StopReason[state.stop[0]], pc, state.stop[1])
        self._panicking = state.panic
        self.console.text[:] = state.console
        self._counts.clear()
        self._watch_panic()
        self.interrupts_changed()

    @property
    def waiting(self) -> bool:
        """Whether the CPU waits for an interrupt."""
        return self._waiting is not None and self._waiting == self.pc

    @property
    def running(self) -> bool:
        return self._running or self.engine.running

    def snapshot(self) -> Snapshot:
        """Keep the present state, in memory, copy-on-write."""
        return Snapshot(self.state(), self.memory_part.snapshot(), self.patches)

    def patch(self, breakpoints: Container[int], displaced: Callable[[int], bytes]) -> None:
        """Breakpoints are in memory from now on, at the addresses the container holds.

        :param displaced: the bytes under one of them.
        :raises MachineError: when there are others already.
        """
        if self.patches:
            raise MachineError("other probes are enabled on this machine")
        self._patch_serial += 1
        self.patches = self._patch_serial
        self.breakpoints, self.displaced = breakpoints, displaced

    def unpatch(self) -> None:
        """They are gone."""
        self.patches = 0
        self.breakpoints, self.displaced = NO_BREAKPOINTS, lambda address: b""

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a state kept by ``snapshot``.

        :raises MachineError: when probes were enabled or disabled since: their breakpoints are part
            of memory.
        """
        if self.engine.running:
            raise MachineError("the machine is running: a snapshot cannot be restored here")
        if self.runner is not None:
            raise MachineError("the machine is recorded: it cannot go back")
        if snapshot.patches != self.patches:
            raise MachineError("probes were enabled or disabled since the snapshot was taken")
        self.memory_part.restore(snapshot.memory)
        self.restore_state(snapshot.state)

    def digest(self) -> str:
        """SHA-256 over memory, CPU, devices, clock and console output."""
        h = hashlib.sha256()
        memory, zero = self.memory_part, bytes(PAGE)
        for first, count in memory.used():
            for page in range(first, first + count):
                data = memory.page(page)
                if data != zero:
                    h.update(page.to_bytes(8, "little"))
                    h.update(data)
        h.update(repr(self.state()).encode())
        return h.hexdigest()
