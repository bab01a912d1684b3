"""A machine as it is wired: engine, CPUs, board, memory, registers; without what makes it run."""

import contextlib
import ctypes
from collections.abc import Callable, Container, Iterator
from typing import Protocol

import unicorn
from unicorn.unicorn_py3 import unicorn as unicorn_binding

from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.guests.registry import guest_of
from emu.host.errors import MachineError
from emu.machine.events import EventQueue, Timer
from emu.machine.machine import ConsoleLog, Machine, Stop, Until, nothing_displaced
from emu.unicorn._engine import Engine, EngineError
from emu.unicorn.board import BOARDS, Board
from emu.unicorn.cpu import Cpu, CpuModel
from emu.unicorn.guest_memory import GuestMemory
from emu.unicorn.new_engine import new_engine
from emu.unicorn.physical_memory import PhysicalMemory
from emu.unicorn.run_loop import RunLoop
from emu.unicorn.schedule import Schedule

LARGE = 1 << 16  # bytes: more are not read at once
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


class WiredMachine(Machine):
    """The parts of a machine.

    :param image: the kernel; its architecture chooses the board.
    :param memory: bytes of RAM, a multiple of 2 MiB.
    :raises MachineError: for an impossible memory size.
    """

    breakpoints: Container[int] = NO_BREAKPOINTS  # patched addresses: time stands still from there
    runner: Runner | None = None  # somebody who looks: no part of the machine's state
    schedule: Schedule
    _loop: RunLoop

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
        self._counts: dict[bytes, int] = {}
        self.displaced: Callable[[int], bytes] = nothing_displaced
        self.original = nothing_displaced
        self.board: Board = BOARDS[self.arch.name](self)
        self._physical = PhysicalMemory(
            self.engine, self.memory_part, self.board.ram_base, self.board.hidden_base)
        self.console_sink = self.console.output

    def make_engine(self, model: CpuModel, pc: int) -> None:
        """Make the Unicorn engine.

        :param pc: Unicorn's number of the program counter.
        :raises MachineError: when the host has no address space for it.
        """
        self._uc = new_engine(model.arch, model.mode)
        self._uc.ctl_set_cpu_model(model.cpu_model)
        self.engine = Engine(self._uc, library_symbols(), pc, model.fixed_length)

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

    def firmware(self) -> bytes:
        """See ``emu.guest.guest.BareMachine``."""
        return self.board.firmware()

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

    @property
    def instructions(self) -> int:
        return self.engine.instructions
