"""The machine on Unicorn: memory, time, the run loop.  Architectures are in ``Board``."""

import ctypes
import hashlib
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import unicorn
from unicorn.unicorn_py3 import unicorn as unicorn_binding

from emu import _engine
from emu._engine import Engine
from emu.elf import Image
from emu.errors import MachineError, MemoryAccessError
from emu.events import NEVER, EventQueue, Timer
from emu.guest_memory import PAGE, GuestMemory, MemoryImage
from emu.machine import ConsoleLog, Machine, Stop, StopReason, Until

# Where a kernel's panic begins, what it says at its end, and how long that may take.
PANIC = "vpanic"
PANIC_ENDS = (b"Uptime: ", b"KDB: enter: ", b"db> ")
PANIC_INSTRUCTIONS = 100_000_000
MAX_EXCEPTIONS = 64
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
    """Everything of a machine but its memory; JSON-able but for the console's bytes."""

    cpu: dict[str, Any]
    devices: dict[str, Any]
    timers: dict[str, int]
    instructions: int
    canonical: int
    skew: int
    console: bytes


@dataclass(frozen=True)
class Snapshot:
    """A state kept in memory."""

    state: MachineState
    memory: MemoryImage
    patches: int = 0  # which set of breakpoints was in memory; 0: none


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
        self._stop: Stop | None = None
        self._counts: dict[tuple[int, int], int] = {}
        self._stops: set[int] = set()
        self._exits: set[int] = set()
        self._translated = False  # code was run: there may be translations to drop
        self._hidden: tuple[int, GuestMemory] | None = None
        self._handlers: dict[int, Callable[[], None]] = {}
        self.breakpoints = NO_BREAKPOINTS  # patched addresses: time stands still from there
        self.displaced: Callable[[int], bytes] = lambda address: b""  # what a breakpoint is over
        self.patches = self._patch_serial = 0
        self._exception_at = self._exceptions = 0
        self._panic_text: int | None = None  # length of the console's text when a panic began
        self._time_limit = NEVER
        self._console_wanted: tuple[bytes, ...] = ()
        self._console_start = 0
        self.board = self.arch.board(self)
        self.engine.map_ram(self.board.ram_base, memory, self.memory_part.address)
        self.console_sink = self.console.output

    # -- set-up, called by the board ----------------------------------------------------------

    def make_engine(self, arch: int, mode: int, model: int, pc: int, fixed: int) -> None:
        """Make the Unicorn engine (constants of unicorn.h)."""
        self._uc = unicorn.Uc(arch, mode)
        self._uc.ctl_set_cpu_model(model)
        self.engine = Engine(self._uc._uch.value, library_symbols(), pc, fixed)

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
        # A stop asked for by a device takes effect where an event would: at a block's start.
        now = self._stop is not None
        self.engine.deadline = 0 if now else min(self.events.next(), self._time_limit)

    # -- registers and memory -----------------------------------------------------------------

    def read_register(self, name: str) -> int:
        number = self.board.engine.registers.get(name)
        if number is None:
            return self.board.read_system(name)
        return self.engine.read(number)

    def write_register(self, name: str, value: int) -> None:
        number = self.board.engine.registers.get(name)
        value &= (1 << 64) - 1
        if number is None:
            self.board.write_system(name, value)
        else:
            self.engine.write(number, value)

    def write_vector(self, name: str, value: int) -> None:
        number = self.board.vectors.get(name)
        if number is None:
            raise MachineError(f"{self.arch.name} has no vector register '{name}'")
        self.engine.write_bytes(number, value.to_bytes(16, "little"))

    def hidden_memory(self, size: int) -> int:
        """Memory the guest knows nothing of, for trampolines; not part of digests or snapshots.

        :return: its physical address; the same at every call.
        """
        if self._hidden is None:
            base = self.board.hidden_base
            area = GuestMemory(size)
            self.engine.map_ram(base, size, area.address)
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
        """Call ``handler`` before the guest executes ``address``, in every run; None: no more."""
        if handler is None:
            self._handlers.pop(address, None)
        else:
            self._handlers[address] = handler
        self._set_stops(self._stops)

    def _area(self, address: int, size: int) -> memoryview:
        at = address - self.board.ram_base
        if self._hidden is not None:
            base, area = self._hidden
            if base <= address and address + size <= base + area.size:
                return area.view[address - base : address - base + size]
        if at < 0 or at + size > self.memory:
            raise MemoryAccessError(f"physical {address:#x}..{address + size:#x} is not RAM")
        return self.memory_part.view[at : at + size]

    def read_physical(self, address: int, size: int) -> bytes:
        return bytes(self._area(address, size))

    def write_physical(self, address: int, data: bytes) -> None:
        self._area(address, len(data))[:] = data

    def write_code(self, address: int, data: bytes) -> None:
        """Write virtual memory that may have been executed: its translations are dropped."""
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
        self._watch_panic()

    def _watch_panic(self) -> None:
        panic = self.image.symbols.find(PANIC)
        if panic is not None:
            self.handle(panic.address, self._panicked)

    def _panicked(self) -> None:
        """The guest panics: the run goes on until it has said why."""
        if self._panic_text is None:
            self._panic_text = len(self.console.text)
            self.engine.limit = min(self.engine.limit, self.instructions + PANIC_INSTRUCTIONS)

    def type(self, data: bytes) -> None:
        self.board.type(data)

    def step(self) -> None:
        self.run(Until(instructions=self.instructions + 1))

    def request_stop(self, stop: Stop) -> None:
        """End the run before the next block; for devices and observers."""
        if self._stop is None:
            self._stop = stop
        self._deadline_changed()

    def output(self, data: int) -> None:
        """Console: one byte from the serial port."""
        self.console_sink(data)
        if self._panic_text is not None and data == 0x0A:
            line = self.console.text[self._panic_text :].rstrip().rsplit(b"\n", 1)[-1]
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
            known = self.arch.count_instructions(self.read(begin, end - begin))
            self._counts[begin, end] = known
        return known

    def left_at(self, pc: int) -> int:
        """An exception that is no probe's left the block in progress before ``pc``; for boards.

        :return: where it happened for the guest: not in a trampoline, but at what that displaces.
        """
        if self.engine.frozen:
            return self.engine.abandon(pc)
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
        engine = self.engine
        self._stop = None
        self._panic_text = None
        self._time_limit = until.time if until.time is not None else NEVER
        wanted = (until.console,) if isinstance(until.console, str) else until.console
        self._console_wanted = tuple(text.encode("utf-8", "surrogateescape") for text in wanted)
        self._console_start = len(self.console.text)
        engine.limit = NEVER if until.instructions is None else min(until.instructions, NEVER)
        self._set_stops(set(until.addresses))
        self._deadline_changed()
        self.interrupts_changed()
        first = True
        try:
            while True:
                stop = self._step(first)
                first = False
                if stop is not None:
                    return stop if self._panic_text is None else self._panic(stop.pc)
        except KeyboardInterrupt:
            engine.settle(0)
            return Stop(StopReason.INTERRUPTED, self.pc)
        finally:
            self._time_limit = NEVER
            engine.limit = NEVER
            self._console_wanted = ()

    def _panic(self, pc: int) -> Stop:
        text = self.console.text[self._panic_text :].decode("utf-8", "replace")
        said = [line for line in text.splitlines() if line.startswith("panic: ")]
        return Stop(StopReason.PANIC, pc, said[0].removeprefix("panic: ").strip() if said else "")

    def _set_stops(self, addresses: set[int]) -> None:
        self._stops = addresses
        self._install(addresses | self._handlers.keys())

    def _install(self, exits: set[int]) -> None:
        """Make Unicorn stop before these addresses, and before no others."""
        for address in exits ^ self._exits:
            if self._translated and self.translate(address) is not None:
                self.engine.remove_translations(address, address + 1)
        self._exits = exits
        self.engine.set_exits(sorted(exits))

    def _step(self, first: bool) -> Stop | None:
        """Run once and deal with what stopped the CPU."""
        pc = self.pc
        if self.engine.frozen:
            self.engine.thaw_if_at(pc)
        if pc in self._handlers:
            self._handlers[pc]()
            return self._over(pc) if self.pc == pc else None
        if pc in self._stops:
            return self._over(pc) if first else Stop(StopReason.ADDRESS, pc)
        return self._dispatch(*self.engine.run(pc))

    def _dispatch(self, why: int, detail: int) -> Stop | None:
        """Deal with why the engine came back."""
        engine, board = self.engine, self.board
        self._translated = True
        trouble: str | None = None
        if why == _engine.STOP_EXCEPTION:
            trouble = board.exception(detail) or self._endless()
            self._delivered()
        elif why == _engine.STOP_DEADLINE:
            self._due()
        elif why == _engine.STOP_INTERRUPT:
            board.deliver_interrupt()
            self.interrupts_changed()
        elif why == _engine.STOP_NONE:
            pc = self.pc
            if pc in self._exits:
                self.settle(pc)
            elif not detail or board.waits(pc):
                return self._halted()
            elif not engine.frozen:
                self.settle(pc)
        elif why == _engine.STOP_INVALID:
            trouble = board.invalid() or self._endless()
            self._delivered()
        elif why == _engine.STOP_UNCOUNTED:
            begin, size = engine.unknown_block
            engine.learn(begin, size, self.arch.count_instructions(self.read(begin, size)))
        elif why == _engine.STOP_LIMIT:
            return self._limit()
        elif why == _engine.STOP_IN_PLACE:
            return self._in_place(self.pc)
        elif why == _engine.STOP_ERROR:
            self.pc = self.left_at(self.pc)
            trouble = board.bus_error(detail)
            engine.synchronize()
        if trouble is not None:
            return Stop(StopReason.UNHANDLED, self.pc, trouble)
        if self._stop is not None:
            return Stop(self._stop.reason, self.pc, self._stop.detail)
        return None

    def at_breakpoint(self, address: int) -> bool:
        """A breakpoint instruction was executed; for boards.

        :return: whether it is one of the provider's: the clock is frozen then.
        """
        ours = address in self.breakpoints
        if ours:
            self.engine.freeze(self.sp)
        return ours

    def _delivered(self) -> None:
        """An exception was delivered, or answered."""
        if not self.engine.frozen:
            self.engine.synchronize()

    def _endless(self) -> str | None:
        """Exceptions upon exceptions, with no instruction executed between them."""
        if self.instructions != self._exception_at:
            self._exception_at, self._exceptions = self.instructions, 0
        self._exceptions += 1
        if self._exceptions > MAX_EXCEPTIONS:
            return f"{MAX_EXCEPTIONS} exceptions and no instruction between them"
        return None

    def _over(self, pc: int) -> Stop | None:
        """Execute the one instruction at a stop address, to go on from there."""
        engine = self.engine
        start, limit, exits = engine.instructions, engine.limit, self._exits
        if start >= limit:
            return Stop(StopReason.INSTRUCTIONS, pc)
        after = pc + self.arch.instruction_length(self._code(pc))
        # One instruction: the block is cut behind it, and no second block is begun.
        self._install((exits - {pc}) | {after})
        engine.limit = start + 1
        try:
            while engine.instructions == start and self.pc == pc:
                why, detail = engine.run(pc)
                if why == _engine.STOP_LIMIT:
                    break
                stop = self._dispatch(why, detail)
                if stop is not None:
                    return stop
        finally:
            self._install(exits)
            engine.limit = limit
        return None

    def _in_place(self, pc: int) -> Stop | None:
        """Execute the one instruction under a breakpoint of the provider's."""
        code = self.displaced(pc)
        patch = self.read(pc, len(code))
        self.write_code(pc, code)
        try:
            return self._over(pc)
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
        if self.engine.now >= self._time_limit:
            self._stop = Stop(StopReason.TIME, self.pc)
        self._deadline_changed()
        self.interrupts_changed()
        if self.engine.pending and self.board.deliver_interrupt():
            self.interrupts_changed()

    def _halted(self) -> Stop | None:
        """The CPU waits for an interrupt: skip to what wakes it."""
        engine, board = self.engine, self.board
        self.settle(self.pc)  # on riscv64 the block may go on behind the wait
        engine.synchronize()
        while not board.interrupt_pending():
            when = min(self.events.next(), self._time_limit)
            if when == NEVER:
                return Stop(StopReason.HALT, self.pc)
            if when > engine.now:
                engine.skew += when - engine.now
            self.events.run(engine.now)
            self._deadline_changed()
            if engine.now >= self._time_limit:
                return Stop(StopReason.TIME, self.pc)
            if self._stop is not None:
                return Stop(self._stop.reason, self.pc, self._stop.detail)
        delivered = board.deliver_interrupt()
        self.interrupts_changed()
        if not delivered and not board.wakes_masked:
            return Stop(StopReason.HALT, self.pc, "interrupts are masked")
        return None

    def _limit(self) -> Stop | None:
        """Fewer instructions are left than the next block has: execute just these."""
        engine = self.engine
        limit, exits = engine.limit, self._exits
        left = limit - engine.instructions
        pc = self.pc
        if left <= 0:
            engine.synchronize()  # whatever comes next begins a block here
            return Stop(StopReason.INSTRUCTIONS, pc)
        at = pc
        for _ in range(left):
            at += self.arch.instruction_length(self._code(at)) or 1
        engine.limit = NEVER
        self._install(exits | {at})
        try:
            return self._dispatch(*engine.run(pc))
        finally:
            self._install(exits)
            engine.limit = limit

    # -- snapshots ----------------------------------------------------------------------------

    def state(self) -> MachineState:
        """Everything but memory."""
        return MachineState(
            self.board.cpu_state(), self.board.state(), self.events.state(), self.instructions,
            self.engine.canonical, self.engine.skew, bytes(self.console.text),
        )

    def restore_state(self, state: MachineState) -> None:
        """Everything but memory, which must be in place already."""
        self.engine.flush_tlb()
        self.engine.flush_translations()
        self.engine.thaw()
        self.engine.instructions = state.instructions
        self.engine.canonical = state.canonical
        self.engine.skew = state.skew
        self.board.restore_cpu(state.cpu)
        self.board.restore(state.devices)
        self.events.restore(state.timers)
        self.console.text[:] = state.console
        self._counts.clear()
        self._watch_panic()
        self.interrupts_changed()

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
        if snapshot.patches != self.patches:
            raise MachineError("probes were enabled or disabled since the snapshot was taken")
        self.memory_part.restore(snapshot.memory)
        self.restore_state(snapshot.state)

    def digest(self) -> str:
        """SHA-256 over memory, CPU, devices, clock and console output."""
        h = hashlib.sha256()
        view, zero = self.memory_part.view, bytes(PAGE)
        for first, count in self.memory_part.used():
            for page in range(first, first + count):
                data = view[page * PAGE : (page + 1) * PAGE]
                if data != zero:
                    h.update(page.to_bytes(8, "little"))
                    h.update(data)
        h.update(repr(self.state()).encode())
        return h.hexdigest()
