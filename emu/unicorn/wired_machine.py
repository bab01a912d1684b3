"""The hardware of a machine: engine, CPUs, board, memory and registers, without the run loop."""

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

LARGE = 1 << 16  # maximum size in bytes of a read that the engine performs
MIN_MEMORY, MAX_MEMORY = 64 << 20, 64 << 30
NO_BREAKPOINTS: Container[int] = frozenset()


def library_symbols() -> dict[str, int]:
    """Return the addresses of functions in the libunicorn that the Python package has loaded."""
    library = unicorn_binding.uclib
    return {
        name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        for name in Engine.FUNCTIONS
    }


Go = Callable[[Until], Stop]


class Runner(Protocol):
    """Recorder that runs the machine and is notified of the machine's inputs."""

    def entered(self, kind: str, name: str, value: bytes) -> None:
        """Record an input that enters the machine from outside.

        :param kind: ``type`` for typed keys; ``frame`` for a network frame; ``register``,
            ``vector`` or ``memory`` for a write; ``turn``, ``timer`` or ``off`` for a CPU.
        :param name: name of the register, hexadecimal physical address, or number of the CPU.
        """

    def run(self, until: Until, go: Go) -> Stop:
        """Run the machine by calling ``go`` one or more times."""


class WiredMachine(Machine):
    """The hardware of a machine, without the run loop.

    :param image: the kernel; its architecture chooses the board.
    :param memory: bytes of RAM, a multiple of 2 MiB.
    :raises MachineError: if the memory size is not possible.
    """

    breakpoints: Container[int] = NO_BREAKPOINTS  # addresses at which the virtual clock freezes
    runner: Runner | None = None  # a recorder, which is not part of the machine's state
    schedule: Schedule
    _loop: RunLoop

    def __init__(self, image: Image, memory: int = 512 << 20) -> None:
        if memory % (2 << 20) or not MIN_MEMORY <= memory <= MAX_MEMORY:
            raise MachineError(
                f"a machine cannot have {memory} bytes of memory; use a multiple of 2 MiB from 64 "
                "MiB to 64 GiB"
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
            raise MachineError(f"cannot allocate {memory >> 20} MiB of guest RAM: "
                               f"{error.strerror}") from None
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
        """Create the Unicorn engine.

        :param pc: Unicorn's number of the program counter.
        :raises MachineError: if the host lacks address space for it.
        """
        self._uc = new_engine(model.arch, model.mode)
        self._uc.ctl_set_cpu_model(model.cpu_model)
        self.engine = Engine(self._uc, library_symbols(), pc, model.fixed_length)
        self.engine.set_image_code(self.image.code_ranges)

    @property
    def cpus(self) -> tuple[Cpu, ...]:
        """CPUs of the machine, in turn order; the engine holds the current CPU's registers."""
        return self.board.cpus

    @property
    def cpu(self) -> Cpu:
        """The CPU whose turn it is."""
        return self.board.cpus[self.engine.cpu]

    @property
    def uc(self) -> unicorn.Uc:
        """Unicorn's own engine object, for functions that the native engine does not wrap."""
        return self._uc

    def firmware(self) -> bytes:
        """Set up memory and the CPUs as firmware does (see ``emu.guest.guest.BareMachine``)."""
        return self.board.firmware()

    @property
    def now(self) -> int:
        """Virtual time in nanoseconds, as devices see it."""
        return self.engine.now

    def spend(self, nanoseconds: int) -> None:
        """Advance virtual time by the cost of a slow access."""
        self.engine.skew += nanoseconds

    def timer(self, name: str, callback: Callable[[], None]) -> Timer:
        """Create a device timer."""
        return self.events.timer(name, callback)

    def interrupts_changed(self) -> None:
        """Recompute the pending interrupts after an interrupt line may have changed."""
        cpu = self.cpu
        self.engine.pending = cpu.on and cpu.interrupt_pending()
        self.engine.urgent = self.engine.pending and cpu.unmaskable()
        self.schedule.changed()

    def read_register(self, name: str) -> int:
        """Return the value of a register of the current CPU."""
        number = self.cpu.model.registers.get(name)
        if number is None or name in self.cpu.guarded:
            return self.cpu.read_system(name)
        return self.engine.read(number)

    def write_register(self, name: str, value: int) -> None:
        """Set a register of the current CPU.

        :raises MachineError: if there is no such register, or it cannot hold the value.
        """
        number = self.cpu.model.registers.get(name)
        value &= (1 << 64) - 1
        self._entered("register", name, value.to_bytes(8, "little"))
        try:
            if number is None or name in self.cpu.guarded:
                self.cpu.write_system(name, value)
            else:
                self.engine.write(number, value)
        except EngineError:
            raise MachineError(f"register {name} cannot be set to {value:#x}") from None

    def write_vector(self, name: str, value: int) -> None:
        """Set a 128-bit vector register of the current CPU."""
        number = self.cpu.vectors.get(name)
        if number is None:
            raise MachineError(f"{self.arch.name} has no vector register '{name}'")
        self._entered("vector", name, value.to_bytes(16, "little"))
        self.engine.write_bytes(number, value.to_bytes(16, "little"))

    def hidden_memory(self, size: int) -> int:
        """Allocate memory for trampolines that is invisible to the guest, digests and snapshots.

        :return: its physical address, the same on every call.
        """
        return self._physical.hidden(size)

    def forget_translations(self) -> None:
        """Discard the CPU model's cached translations of addresses and code."""
        self.engine.flush_tlb()
        self.engine.flush_translations()

    def release_hidden(self) -> None:
        """Free the host memory that backs hidden memory; hidden memory then reads as zeros."""
        self._physical.release_hidden()

    def read(self, address: int, size: int) -> bytes:
        """Read virtual memory.

        :raises MemoryAccessError: if a page is not mapped, or for more than 1 GiB.
        """
        is_small = 0 <= size <= LARGE and 0 <= address < 1 << 64
        data = self.engine.read_memory(address, size) if is_small else None
        return super().read(address, size) if data is None else data

    def read_physical(self, address: int, size: int) -> bytes:
        """Read RAM or hidden memory."""
        return bytes(self._physical.area(address, size))

    def write_physical(self, address: int, data: bytes) -> None:
        """Write RAM or hidden memory; a write to RAM is an input."""
        self._physical.area(address, len(data))
        if not self._physical.is_hidden(address):
            self._entered("memory", f"{address:x}", bytes(data))
        self._physical.store(address, data, outside=True)

    def store(self, address: int, data: bytes) -> None:
        """Write virtual memory as the CPU writes an exception frame; the write is not an input.

        :raises MemoryAccessError: if a page is not mapped.
        """
        at = 0
        for physical, length in self._pieces(address, len(data)):
            self._physical.store(physical, data[at : at + length])
            at += length

    def check_memory(self, address: int, size: int) -> None:
        """Raise MemoryAccessError if a range of physical memory is not RAM."""
        self._physical.in_ram(address, size)

    def read_memory(self, address: int, size: int) -> bytes:
        """Read RAM for a device; called only in the device's timer callbacks.

        :raises MemoryAccessError: if the range is not in RAM.
        """
        return bytes(self._physical.in_ram(address, size))

    def write_memory(self, address: int, data: bytes) -> None:
        """Write RAM for a device; allowed only in the device's timer callbacks.

        A device does not write in the middle of the block whose instruction requested the write,
        because the CPU model may or may not have cut that block.

        :raises MemoryAccessError: if the range is not in RAM.
        :raises MachineError: while the CPU is running.
        """
        if self.engine.running:
            raise MachineError("a device can write to memory only when one of its timers expires")
        self._physical.in_ram(address, len(data))
        self._physical.store(address, data)

    def _entered(self, kind: str, name: str, value: bytes) -> None:
        """Report an input to the recorder, if the machine is being recorded.

        What the machine itself does while it runs is not an input, but what a handler does is.
        """
        if self.runner is not None and (self._loop.handling or not self.running):
            self.runner.entered(kind, name, value)

    @contextlib.contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Suspend recording for writes that are not inputs, such as those of breakpoints."""
        runner, self.runner = self.runner, None
        try:
            yield
        finally:
            self.runner = runner

    def write_code(self, address: int, data: bytes) -> None:
        """Write code to virtual memory, such as a breakpoint, without recording it as an input."""
        # The write need not drop translations, because remove_translations does so below.
        self._physical.quiet = True
        try:
            with self.unrecorded():
                self.write(address, data)
        finally:
            self._physical.quiet = False
        self.engine.remove_translations(address, address + len(data))

    @property
    def instructions(self) -> int:
        """Number of guest instructions executed since the start of the boot."""
        return self.engine.instructions
