"""The machine on Unicorn.  Architectures are in ``Board``, its runs in ``RunLoop``."""

import contextlib
import ctypes
import hashlib
from collections.abc import Callable, Collection, Container, Iterator
from typing import Protocol

import unicorn
from unicorn.unicorn_py3 import unicorn as unicorn_binding

from emu.arch.architectures import arch_of
from emu.devices.device import Device
from emu.elf.image import Image
from emu.guests.registry import guest_of
from emu.host.errors import MachineError, MemoryAccessError
from emu.machine.events import EventQueue, Timer
from emu.machine.machine import ConsoleLog, Machine, Stop, Until, nothing_displaced
from emu.unicorn import mark
from emu.unicorn._engine import Engine, EngineError
from emu.unicorn.board import BOARDS
from emu.unicorn.cpu import Cpu, CpuModel
from emu.unicorn.guest_memory import PAGE, GuestMemory
from emu.unicorn.mark import StateMark
from emu.unicorn.new_engine import new_engine
from emu.unicorn.physical_memory import PhysicalMemory
from emu.unicorn.run_loop import Alarm, RunLoop
from emu.unicorn.schedule import Schedule
from emu.unicorn.state import MachineState, Snapshot

LARGE = 1 << 16  # bytes: more are not read at once
MAX_COUNTS = 1 << 16  # pieces of code of which the instructions are known
MIN_MEMORY, MAX_MEMORY = 64 << 20, 64 << 30
NO_BREAKPOINTS: Container[int] = frozenset()


def library_symbols() -> dict[str, int]:
    """Addresses of libunicorn's functions, in the library that the Python package has loaded."""
    library = unicorn_binding.uclib
    return {
        name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        for name in Engine.FUNCTIONS
    }


Go = Callable[[Until], Stop]


class Runner(Protocol):
    """Somebody who records a machine: is told what comes in from outside, and runs it."""

    def entered(self, kind: str, name: str, value: bytes) -> None:
        """Keys are typed (``type``); a ``register``, a ``vector`` register or, at the physical
        address that ``name`` says, ``memory`` is written."""

    def run(self, until: Until, go: Go) -> Stop:
        """Run the machine, in as many pieces as it likes."""


@contextlib.contextmanager
def _keeping() -> Iterator[None]:
    """Keep a state in the host's memory.

    :raises MachineError: when there is no room for it.
    """
    try:
        yield
    except OSError as error:
        raise MachineError(f"this state cannot be kept in memory: {error.strerror}") from None


class UnicornMachine(Machine):
    """A deterministic machine: its run is a function of the image and its input.

    :param image: the kernel; its architecture chooses the board.
    :param memory: bytes of RAM, a multiple of 2 MiB.
    :raises MachineError: for an impossible memory size.
    """

    def __init__(self, image: Image, memory: int = 512 << 20) -> None:
        if memory % (2 << 20) or not MIN_MEMORY <= memory <= MAX_MEMORY:
            raise MachineError(
                f"memory of {memory} bytes: give a multiple of 2 MiB between 64M and 64G"
            )
        self.image = image
        self.arch = arch_of(image)
        self.guest = guest_of(image, self.arch.name)
        self.memory = memory
        self.console = ConsoleLog()
        self.events = EventQueue()
        try:
            self.memory_part = GuestMemory(memory)
        except OSError as error:
            raise MachineError(f"no {memory >> 20} MiB of memory: {error.strerror}") from None
        self.engine: Engine
        self._uc: unicorn.Uc
        self._loop: RunLoop
        self._counts: dict[bytes, int] = {}
        self.breakpoints = NO_BREAKPOINTS  # patched addresses: time stands still from there
        self.displaced: Callable[[int], bytes] = nothing_displaced
        self.original = nothing_displaced
        self.patches = self._patch_serial = 0
        self.alarm: Alarm | None = None  # somebody who looks: no part of the machine's state
        self.runner: Runner | None = None  # so here
        self.board = BOARDS[self.arch.name](self)
        self.schedule = Schedule(self)
        self._physical = PhysicalMemory(
            self.engine, self.memory_part, self.board.ram_base, self.board.hidden_base)
        self.console_sink = self.console.output

    # -- set-up, called by the board ----------------------------------------------------------

    def make_engine(self, model: CpuModel, pc: int) -> None:
        """Make the Unicorn engine.

        :param pc: Unicorn's number of the program counter.
        :raises MachineError: when the host has no address space for it.
        """
        self._uc = new_engine(model.arch, model.mode)
        self._uc.ctl_set_cpu_model(model.cpu_model)
        self.engine = Engine(self._uc, library_symbols(), pc, model.fixed_length)
        self._loop = RunLoop(self)
        self.events.notify = self._loop.deadline_changed

    @property
    def cpus(self) -> tuple[Cpu, ...]:
        """They take turns: registers, here and in the engine, are those of the one that runs."""
        return self.board.cpus

    @property
    def cpu(self) -> Cpu:
        """The one whose turn it is."""
        return self.board.cpus[self.engine.cpu]

    @property
    def uc(self) -> unicorn.Uc:
        """Unicorn's own object, for what the native engine does not wrap."""
        return self._uc

    @property
    def ram_base(self) -> int:
        """Physical address of the first byte of RAM."""
        return self.board.ram_base

    def firmware(self) -> bytes:
        """See ``emu.guest.guest.BareMachine``."""
        return self.board.firmware()

    # -- Bus: what devices ask ----------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.engine.now

    def spend(self, nanoseconds: int) -> None:
        self.engine.skew += nanoseconds

    def timer(self, name: str, callback: Callable[[], None]) -> Timer:
        return self.events.timer(name, callback)

    def interrupts_changed(self) -> None:
        cpu = self.cpu
        self.engine.pending = cpu.on and cpu.interrupt_pending()
        self.engine.urgent = self.engine.pending and cpu.unmaskable()
        self.schedule.changed()

    # -- registers and memory -----------------------------------------------------------------

    def read_register(self, name: str) -> int:
        number = self.cpu.model.registers.get(name)
        if number is None or name in self.cpu.guarded:
            return self.cpu.read_system(name)
        return self.engine.read(number)

    def write_register(self, name: str, value: int) -> None:
        number = self.cpu.model.registers.get(name)
        value &= (1 << 64) - 1
        self._entered("register", name, value.to_bytes(8, "little"))
        try:
            if number is None or name in self.cpu.guarded:
                self.cpu.write_system(name, value)
            else:
                self.engine.write(number, value)
        except EngineError:
            raise MachineError(f"{name} cannot be {value:#x}") from None

    def write_vector(self, name: str, value: int) -> None:
        number = self.cpu.vectors.get(name)
        if number is None:
            raise MachineError(f"{self.arch.name} has no vector register '{name}'")
        self._entered("vector", name, value.to_bytes(16, "little"))
        self.engine.write_bytes(number, value.to_bytes(16, "little"))

    def hidden_memory(self, size: int) -> int:
        """Memory the guest knows nothing of, for trampolines; not part of digests or snapshots.

        :return: its physical address; the same at every call.
        """
        return self._physical.hidden(size)

    def forget_translations(self) -> None:
        self.engine.flush_tlb()
        self.engine.flush_translations()

    def release_hidden(self) -> None:
        """Give the host back what the hidden memory holds; it reads as zeros again."""
        self._physical.release_hidden()

    @property
    def handlers(self) -> dict[int, Callable[[], None]]:
        """What ``handle`` was told: the CPU's own instructions that the model does not carry out as
        they are, among others."""
        return dict(self._loop.handlers)

    def handle(self, address: int, handler: Callable[[], None] | None) -> None:
        """Call ``handler`` before the guest executes ``address``, in every run; None: no more.

        :raises MachineError: for too many; then it is not called.
        """
        self._loop.handle(address, handler)

    def read(self, address: int, size: int) -> bytes:
        known = 0 <= size <= LARGE and 0 <= address < 1 << 64
        data = self.engine.read_memory(address, size) if known else None
        return super().read(address, size) if data is None else data

    def read_physical(self, address: int, size: int) -> bytes:
        return bytes(self._physical.area(address, size))

    def write_physical(self, address: int, data: bytes) -> None:
        self._physical.area(address, len(data))
        if not self._physical.is_hidden(address):
            self._entered("memory", f"{address:x}", bytes(data))
        self._physical.store(address, data, outside=True)

    def store(self, address: int, data: bytes) -> None:
        """Virtual memory, as the CPU itself writes it: an exception's frame.  It is no input.

        :raises MemoryAccessError: when a page is not mapped.
        """
        at = 0
        for physical, length in self._pieces(address, len(data)):
            self._physical.store(physical, data[at : at + length])
            at += length

    def read_memory(self, address: int, size: int) -> bytes:
        """Bus: a device reads physical memory, when its time has come.

        :raises MemoryAccessError: when the range is not RAM.
        """
        return bytes(self._physical.in_ram(address, size))

    def write_memory(self, address: int, data: bytes) -> None:
        """Bus: a device writes to physical memory.  It does so when its time has come (``timer``),
        not in the middle of the block whose instruction has asked for it, which the CPU model may
        have cut or not.

        :raises MemoryAccessError: when the range is not RAM.
        :raises MachineError: while the CPU runs.
        """
        if self.engine.running:
            raise MachineError("a device writes to memory when a timer of its has run out")
        self._physical.in_ram(address, len(data))
        self._physical.store(address, data)

    def _entered(self, kind: str, name: str, value: bytes) -> None:
        """What the machine itself does while it runs is none of the inputs, but what a handler
        does is."""
        if self.runner is not None and (self._loop.handling or not self.running):
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
        # Its translations are dropped here, as by somebody who only looks.
        self._physical.quiet = True
        try:
            with self.unrecorded():
                self.write(address, data)
        finally:
            self._physical.quiet = False
        self.engine.remove_translations(address, address + len(data))

    # -- running ------------------------------------------------------------------------------

    @property
    def instructions(self) -> int:
        return self.engine.instructions

    def boot(self) -> None:
        """Play the boot loader: the machine is then about to execute the kernel's first
        instruction."""
        self.guest.boot.load(self, self.image)
        self._loaded()

    def place_image(self) -> None:
        """Put the image into memory and map it where it was linked, without starting it: its leaf
        functions can be called then."""
        self.guest.boot.place(self, self.image)
        for module in self.image.modules:
            self.write(module.address, module.memory)
        self._loaded()

    def _loaded(self) -> None:
        self.cpu.watch(self.image)
        self._watch_panic()

    def _watch_panic(self) -> None:
        panic = self.image.symbols.find(self.guest.boot.panic)
        if panic is not None:
            self.handle(panic.address, self._loop.panicked)

    def type(self, data: bytes) -> None:
        if self.runner is not None and self.running:
            raise MachineError("the machine is recorded: keys are not typed while it runs")
        self._entered("type", "", data)
        self.board.type(data)

    @property
    def keys_left(self) -> bool:
        """Whether the guest has not read all that was typed."""
        return self.board.keys_left

    def give_turn(self, cpu: int, held: Collection[int] = (), patience: int = 0) -> None:
        """It is a CPU's turn from here on, and a new round.

        :param held: CPUs that have no turn before the next one is given from outside.
        :param patience: so often the CPU may say that it waits for another one (PAUSE), and its
            turn goes on; less than 2^32.
        :raises MachineError: while it runs, or when there is no such CPU.
        """
        if self.running:
            raise MachineError("the machine is running: it gives the turns itself")
        if not 0 <= cpu < len(self.cpus):
            raise MachineError(f"there is no CPU {cpu}")
        if not self.cpus[cpu].on:
            raise MachineError(f"CPU {cpu} is off")
        mask = sum(1 << one for one in set(held))
        if cpu in held or mask >> len(self.cpus):
            raise MachineError("a turn of a CPU that is held, or of which there is none")
        self._entered("turn", str(cpu), mask.to_bytes(1, "little") + patience.to_bytes(4, "little"))
        if self.schedule.several:
            self.schedule.held = set(held)
            self.schedule.give(cpu)
            self.schedule.bear(patience)

    def ring_timer(self) -> None:
        """The timer of the CPU whose turn it is rings now, whenever it was to: its interrupt is
        taken before the next instruction, or as soon as the guest lets it.

        :raises MachineError: while it runs.
        """
        if self.running:
            raise MachineError("the machine is running: its timers ring when they are to")
        self._entered("timer", str(self.cpu.number), b"")
        self.engine.synchronize()
        self.cpu.ring_timer()
        self.interrupts_changed()

    def switch_off(self) -> None:
        """The CPU whose turn it is executes nothing more.

        :raises MachineError: while it runs, or when it is the only one.
        """
        if self.running or not self.schedule.several:
            raise MachineError("the CPU cannot be switched off here")
        self._entered("off", str(self.cpu.number), b"")
        self.schedule.off()

    def step(self) -> None:
        self.run(Until(instructions=self.instructions + 1))

    @property
    def panics(self) -> bool:
        """Whether the guest has begun to panic, and is not done with it."""
        return self._loop.panicking is not None

    def request_stop(self, stop: Stop) -> None:
        """End the run before the next block; for devices and observers."""
        self._loop.request_stop(stop)

    def is_stop(self, address: int) -> bool:
        """Whether the run in progress ends before it executes ``address``."""
        return self._loop.is_stop(address)

    def output(self, data: int) -> None:
        """Console: one byte from the serial port."""
        self.console_sink(data)
        self._loop.heard(data)

    def _count(self, code: bytes) -> int:
        """Guest instructions in a piece of code."""
        known = self._counts.get(code)
        if known is None:
            if len(self._counts) >= MAX_COUNTS:
                self._counts.clear()
            known = self._counts[code] = len(self.arch.split(code))
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
        if count and begin < pc <= begin + size:
            try:
                code = self.read(begin, pc - begin)
            except MemoryAccessError:
                if pc != begin + size:
                    raise
                self.engine.settle()  # its last instruction has taken the mapping away
                return
            # The model may take for one what the decoder takes for several; and it counts what is
            # no instruction, at a block's end, but with no bytes.
            executed = min(self._count(code), count)
            if executed:
                self.engine.learn_prefix(code, executed)
            self.engine.settle(executed)
        elif count and pc == begin:
            self.engine.settle(0)
        else:
            self.engine.settle()

    def run(self, until: Until) -> Stop:
        """Run until ``until`` or the guest ends the run; an ``alarm`` rings in between.

        :raises MachineError: when called while the machine runs, or for too many addresses.
        """
        start = len(self.console.text)
        if self.runner is None:
            return self._loop.run(until, start)
        return self.runner.run(until, lambda part: self._loop.run(part, start))

    @property
    def trap_stack(self) -> int:
        """The top of the stack that breakpoints come on; 0: on the interrupted one."""
        name = self.guest.traps.trap_stack
        return self.symbol(name).address if name else 0

    def at_breakpoint(self, address: int) -> bool:
        """A breakpoint instruction was executed; for boards.

        :return: whether it is one of the provider's: the clock is frozen then.
        """
        ours = address in self.breakpoints
        if ours:
            self.engine.detour.freeze(self.trap_stack or self.sp)
        return ours

    # -- snapshots ----------------------------------------------------------------------------

    def state(self) -> MachineState:
        """Everything but memory.

        :raises MachineError: in the middle of a firing.
        """
        self._between_instructions("its state is not the guest's")
        with self.unrecorded():
            cpu = self.cpu.state()
            turns = self.schedule.state()
        return MachineState(
            cpu, self.board.state(), self.events.state(), self.instructions,
            self.engine.canonical, self.engine.skew, self.engine.stands_at(self.pc),
            self.waiting, self._loop.asked, self._loop.panicking, bytes(self.console.text), turns,
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
        self.schedule.restore(state.turns, state.cpu, state.waiting)
        self.board.restore(state.devices)
        self.events.restore(state.timers)
        pc = self.pc
        if state.arrived:
            self.engine.resume(pc)
        self._loop.restore(state, pc)
        self.console.text[:] = state.console
        self._watch_panic()
        self.interrupts_changed()

    @property
    def waiting(self) -> bool:
        """Whether the CPU waits for an interrupt."""
        return self.schedule.waiting is not None and self.schedule.waiting == self.pc

    @property
    def running(self) -> bool:
        return self._loop.running or self.engine.running

    def snapshot(self) -> Snapshot:
        """Keep the present state, in memory, copy-on-write.

        :raises MachineError: when the host has no memory for it.
        """
        state = self.state()
        with _keeping():
            return Snapshot(state, self.memory_part.snapshot(), self.patches)

    def patch(self, breakpoints: Container[int], displaced: Callable[[int], bytes]) -> None:
        """Breakpoints are in memory from now on, at the addresses the container holds.

        :param displaced: the bytes under one of them.
        :raises MachineError: when there are others already.
        """
        if self.patches:
            raise MachineError("other probes are enabled on this machine")
        self._patch_serial += 1
        self.patches = self._patch_serial
        self.breakpoints, self.displaced, self.original = breakpoints, displaced, displaced

    def unpatch(self) -> None:
        """They are gone."""
        self.patches = 0
        self.breakpoints = NO_BREAKPOINTS
        self.displaced = self.original = nothing_displaced

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a state kept by ``snapshot``.

        :raises MachineError: when probes were enabled or disabled since: their breakpoints are part
            of memory.
        """
        self._may_go_back(snapshot.patches)
        self.memory_part.restore(snapshot.memory)
        self.restore_state(snapshot.state)

    def _may_go_back(self, patches: int) -> None:
        if self.engine.running:
            raise MachineError("the machine is running: a snapshot cannot be restored here")
        if self.runner is not None:
            raise MachineError("the machine is recorded: it cannot go back")
        if patches != self.patches:
            raise MachineError("probes were enabled or disabled since the snapshot was taken")

    def mark(self) -> StateMark:
        """Keep the present state, to go back to it quickly (``back_to``).

        :raises MachineError: in the middle of an instruction; when the host has no memory for it.
        """
        self._between_instructions("it is not marked here")
        with _keeping():
            return mark.keep(self)

    def back_to(self, kept: StateMark) -> None:
        """Go back to a state kept by ``mark``.

        :raises MachineError: as ``restore`` does.
        """
        self._may_go_back(kept.patches)
        self.engine.detour.thaw()
        mark.go_back(self, kept)

    @property
    def devices(self) -> dict[str, Device]:
        """The board's, by their names."""
        return self.board.devices

    def keep_loop(self) -> tuple[Stop | None, tuple[int, int] | None]:
        """What the run loop remembers of the guest, for a ``StateMark``."""
        return self._loop.keep()

    def put_loop_back(self, kept: tuple[Stop | None, tuple[int, int] | None]) -> None:
        self._loop.put_back(kept)

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
        state = self.state()
        h.update(repr(state).encode())
        if state.turns is not None:
            h.update(repr(state.turns).encode())
        return h.hexdigest()
