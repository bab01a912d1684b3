"""The machine interface that all higher layers use, independent of the CPU model."""

import enum
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from emu.arch.arch import Arch
from emu.elf.image import Image
from emu.elf.symbols import Symbol
from emu.guest.guest import Guest
from emu.host.errors import MachineError
from emu.machine.paged_memory import PagedMemory

MAX_CONSOLE = 64 << 20  # maximum number of bytes of console output in one run


class StopReason(enum.Enum):
    """Reason why a run ended."""

    CONSOLE = "console text seen"
    ADDRESS = "address reached"
    INSTRUCTIONS = "instruction count reached"
    TIME = "virtual time reached"
    PANIC = "guest panic"
    HALT = "halted with nothing to wake it"
    POWER_OFF = "powered off"
    RESET = "reset by the guest"
    UNHANDLED = "unhandled exception"
    INTERRUPTED = "interrupted"
    PATIENCE = "not finished in the time allowed"
    INTERRUPT = "interrupt about to be taken"
    OUTPUT = "too much console output"
    IDLE = "idle for too long"


@dataclass(frozen=True)
class Stop:
    """The end of a run: its reason, the program counter and an optional detail."""

    reason: StopReason
    pc: int
    detail: str = ""

    def __str__(self) -> str:
        text = f"{self.reason.value} at {self.pc:#x}"
        return f"{text}: {self.detail}" if self.detail else text


CONSOLE_FULL = f"the guest has written {MAX_CONSOLE >> 20} MiB to its console in this run"


@dataclass(frozen=True)
class Until:
    """Conditions that end a run; a panic, reset or power-off of the guest always ends it.

    :param addresses: virtual addresses to stop before.
    :param console: stop when the console output since the start of the run ends with this text, or
        with one of these texts.
    :param instructions: stop when the machine has executed this many instructions in total.
    :param time: stop at this virtual time in nanoseconds.
    :param interrupts: stop before a CPU that executes code (rather than waits) takes an interrupt;
        the next run begins with that interrupt.
    :param idle: stop when all CPUs have waited for interrupts for this many nanoseconds of virtual
        time in total since the last console output of the run.  Ignored by machines that do not
        control time.
    """

    addresses: Sequence[int] = ()
    console: str | tuple[str, ...] = ()
    instructions: int | None = None
    time: int | None = None
    interrupts: bool = False
    idle: int | None = None


def nothing_displaced(address: int) -> bytes:
    """Return no displaced code, because the machine has no breakpoints."""
    return b""


@dataclass
class ConsoleLog:
    """The guest's console output.

    ``text`` is all output since the machine was created or restored; ``stream`` receives every
    byte.  A run that writes ``MAX_CONSOLE`` bytes ends with ``StopReason.OUTPUT``.
    """

    text: bytearray = field(default_factory=bytearray)
    stream: Callable[[int], None] | None = None

    def full(self, start: int = 0) -> bool:
        """Return whether the output of a run has reached ``MAX_CONSOLE`` bytes.

        :param start: offset in ``text`` at which the output of the run begins.
        """
        return len(self.text) - start >= MAX_CONSOLE

    def output(self, data: int) -> None:
        """Append one byte to the log and pass it to ``stream``."""
        self.text.append(data)
        if self.stream is not None:
            self.stream(data)


class Board(Protocol):
    """The part of a computer's hardware that the machine interface needs."""

    @property
    def ram_base(self) -> int:
        """Physical address of the first byte of RAM."""


class Machine(PagedMemory):
    """A computer that runs a kernel image.

    Registers have the names of the architecture manuals.  Memory is addressed physically, or
    virtually through the guest's current page tables.  A machine delivers only the exceptions and
    interrupts that its CPU would deliver.
    """

    arch: Arch
    guest: Guest
    image: Image
    console: ConsoleLog
    memory: int  # size in bytes of the RAM that is reported to the guest
    board: Board
    counts: ClassVar[bool] = True  # whether the machine counts executed instructions
    original: Callable[[int], bytes]  # returns the original bytes under a breakpoint

    @property
    def ram_base(self) -> int:
        """Physical address of the first byte of RAM."""
        return self.board.ram_base

    @abstractmethod
    def read_register(self, name: str) -> int:
        """Return the value of a register.

        :raises MachineError: if the architecture has no such register.
        """

    @abstractmethod
    def write_register(self, name: str, value: int) -> None:
        """Set a register.

        :raises MachineError: if the architecture has no such register.
        """

    @abstractmethod
    def write_vector(self, name: str, value: int) -> None:
        """Set a 128-bit vector register.

        :raises MachineError: if the architecture has no such register.
        """

    @abstractmethod
    def read_physical(self, address: int, size: int) -> bytes:
        """Read RAM.

        :raises MemoryAccessError: if the range is not in RAM.
        """

    @abstractmethod
    def write_physical(self, address: int, data: bytes) -> None:
        """Write RAM; changes to code and page tables take effect at once.

        :raises MemoryAccessError: if the range is not in RAM.
        """

    @abstractmethod
    def run(self, until: Until) -> Stop:
        """Run the guest until a condition of ``until`` holds or the guest ends the run."""

    @abstractmethod
    def handle(self, address: int, handler: Callable[[], None] | None) -> None:
        """Call ``handler`` whenever execution reaches ``address``; None removes the handler."""

    @abstractmethod
    def step(self) -> None:
        """Execute one instruction."""

    @abstractmethod
    def write_code(self, address: int, data: bytes) -> None:
        """Write code to virtual memory, such as a breakpoint, without recording it as an input."""

    @abstractmethod
    def hidden_memory(self, size: int) -> int:
        """Allocate memory for trampolines that is invisible to the guest.

        :return: its physical address, the same on every call.
        """

    @abstractmethod
    def release_hidden(self) -> None:
        """Release the memory that ``hidden_memory`` allocated."""

    @abstractmethod
    def forget_translations(self) -> None:
        """Discard the CPU's cached translations after page tables or code changed externally."""

    @abstractmethod
    def type(self, data: bytes) -> None:
        """Type bytes at the console."""

    @property
    @abstractmethod
    def keys_left(self) -> bool:
        """Whether the guest has not yet read all typed bytes."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether the machine is running, which is true in handlers and probe callbacks."""

    @property
    @abstractmethod
    def instructions(self) -> int:
        """Number of guest instructions executed since the start of the boot.

        :raises MachineError: if the machine does not count instructions.
        """

    @property
    @abstractmethod
    def now(self) -> int:
        """Virtual time in nanoseconds since the start of the boot."""

    # -- derived operations -------------------------------------------------------------------

    @property
    def pc(self) -> int:
        """Program counter."""
        return self.read_register(self.arch.pc)

    @pc.setter
    def pc(self, value: int) -> None:
        self.write_register(self.arch.pc, value)

    @property
    def sp(self) -> int:
        """Stack pointer."""
        return self.read_register(self.arch.sp)

    def read_u64(self, address: int) -> int:
        """Read a 64-bit little-endian word of virtual memory."""
        return int.from_bytes(self.read(address, 8), "little")

    def read_string(self, address: int, limit: int = 4096) -> bytes:
        """Read a NUL-terminated string of at most ``limit`` bytes, without the NUL."""
        out = bytearray()
        while len(out) < limit:
            chunk = self.read(address + len(out), min(64, limit - len(out), 64 - address % 64))
            end = chunk.find(b"\0")
            if end >= 0:
                return bytes(out + chunk[:end])
            out += chunk
        return bytes(out)

    def symbol(self, name: str) -> Symbol:
        """Return a symbol of the kernel.

        :raises MachineError: if the kernel has no such symbol.
        """
        symbol = self.image.symbols.find(name)
        if symbol is None:
            raise MachineError(f"{self.image.path.name} has no symbol '{name}'")
        return symbol

    def registers(self) -> dict[str, int]:
        """Return all general registers in the architecture's order."""
        return {name: self.read_register(name) for name in self.arch.registers}
