"""The machine as everything above it sees it: one interface, independent of the CPU model."""

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

MAX_CONSOLE = 64 << 20  # bytes that a guest may write to its console in one run


class StopReason(enum.Enum):
    """Why a run ended; there are no others."""

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
    PATIENCE = "not done in the time given"
    INTERRUPT = "interrupt about to be taken"
    OUTPUT = "too much console output"


@dataclass(frozen=True)
class Stop:
    """How a run ended: the reason, the program counter, and what there is to say about it."""

    reason: StopReason
    pc: int
    detail: str = ""

    def __str__(self) -> str:
        text = f"{self.reason.value} at {self.pc:#x}"
        return f"{text}: {self.detail}" if self.detail else text


CONSOLE_FULL = f"the guest has written {MAX_CONSOLE >> 20} MiB to its console in this run"


@dataclass(frozen=True)
class Until:
    """When a run is to end, beside what the guest does by itself.

    :param addresses: virtual addresses to stop before.
    :param console: stop when the console's output since the start of the run ends with this text,
        or with one of these.
    :param instructions: stop when the machine has executed this many instructions in all.
    :param time: stop at this virtual time in nanoseconds.
    :param interrupts: stop before the CPU takes an interrupt where it executes something; the next
        run begins with that.
    """

    addresses: Sequence[int] = ()
    console: str | tuple[str, ...] = ()
    instructions: int | None = None
    time: int | None = None
    interrupts: bool = False


def nothing_displaced(address: int) -> bytes:
    """The bytes under a breakpoint where there are no breakpoints."""
    return b""


@dataclass
class ConsoleLog:
    """What the guest wrote to its console.

    ``text`` is everything since the machine was made or restored; ``stream`` sees every byte.
    A run in which ``MAX_CONSOLE`` bytes come ends (``StopReason.OUTPUT``).
    """

    text: bytearray = field(default_factory=bytearray)
    stream: Callable[[int], None] | None = None

    def full(self, start: int = 0) -> bool:
        """Whether too much has come.

        :param start: where the text of the run begins.
        """
        return len(self.text) - start >= MAX_CONSOLE

    def output(self, data: int) -> None:
        self.text.append(data)
        if self.stream is not None:
            self.stream(data)


class Board(Protocol):
    """What is around a CPU."""

    @property
    def ram_base(self) -> int: ...


class Machine(PagedMemory):
    """A computer with one CPU that runs a kernel image.

    Registers go by the names of the architecture manuals.  Memory is physical or, through the
    guest's present page tables, virtual.  A machine delivers nothing that its CPU would not.
    """

    arch: Arch
    guest: Guest
    image: Image
    console: ConsoleLog
    memory: int  # bytes of RAM that the guest is told of
    board: Board
    counts: ClassVar[bool] = True  # whether it counts the instructions it executes
    original: Callable[[int], bytes]  # the bytes under a breakpoint, if there is one

    @property
    def ram_base(self) -> int:
        """The physical address of the first byte of RAM."""
        return self.board.ram_base

    @abstractmethod
    def read_register(self, name: str) -> int:
        """:raises MachineError: when the architecture has no such register."""

    @abstractmethod
    def write_register(self, name: str, value: int) -> None:
        """:raises MachineError: when the architecture has no such register."""

    @abstractmethod
    def write_vector(self, name: str, value: int) -> None:
        """Set a vector register of 128 bits.

        :raises MachineError: when the architecture has no such register.
        """

    @abstractmethod
    def read_physical(self, address: int, size: int) -> bytes:
        """:raises MemoryAccessError: when the range is not RAM."""

    @abstractmethod
    def write_physical(self, address: int, data: bytes) -> None:
        """Write RAM; code there is what it is now, and so are page tables.

        :raises MemoryAccessError: when the range is not RAM."""

    @abstractmethod
    def run(self, until: Until) -> Stop:
        """Run until ``until`` or the guest ends the run."""

    @abstractmethod
    def handle(self, address: int, handler: Callable[[], None] | None) -> None:
        """Call ``handler`` before the guest executes ``address``, in every run; None: no more."""

    @abstractmethod
    def step(self) -> None:
        """Execute one instruction."""

    @abstractmethod
    def write_code(self, address: int, data: bytes) -> None:
        """Write virtual memory; it is no input: a breakpoint, which is put back."""

    @abstractmethod
    def hidden_memory(self, size: int) -> int:
        """Memory the guest knows nothing of, for trampolines.

        :return: its physical address; the same at every call.
        """

    @abstractmethod
    def release_hidden(self) -> None:
        """The hidden memory is not needed any more."""

    @abstractmethod
    def forget_translations(self) -> None:
        """Page tables or code were changed behind the CPU's back."""

    @abstractmethod
    def type(self, data: bytes) -> None:
        """Type at the console."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether it runs: the caller is a handler, or a probe's function."""

    @property
    @abstractmethod
    def instructions(self) -> int:
        """Guest instructions executed since the start of the boot.

        :raises MachineError: when the machine does not count.
        """

    @property
    @abstractmethod
    def now(self) -> int:
        """Virtual nanoseconds since the start of the boot."""

    # -- what follows from the above ----------------------------------------------------------

    @property
    def pc(self) -> int:
        return self.read_register(self.arch.pc)

    @pc.setter
    def pc(self, value: int) -> None:
        self.write_register(self.arch.pc, value)

    @property
    def sp(self) -> int:
        return self.read_register(self.arch.sp)

    def read_u64(self, address: int) -> int:
        return int.from_bytes(self.read(address, 8), "little")

    def read_string(self, address: int, limit: int = 4096) -> bytes:
        """A NUL-terminated string, without the NUL; at most ``limit`` bytes."""
        out = bytearray()
        while len(out) < limit:
            chunk = self.read(address + len(out), min(64, limit - len(out), 64 - address % 64))
            end = chunk.find(b"\0")
            if end >= 0:
                return bytes(out + chunk[:end])
            out += chunk
        return bytes(out)

    def symbol(self, name: str) -> Symbol:
        """:raises MachineError: when the kernel has no such symbol."""
        symbol = self.image.symbols.find(name)
        if symbol is None:
            raise MachineError(f"{self.image.path.name} has no symbol '{name}'")
        return symbol

    def registers(self) -> dict[str, int]:
        """All general registers, in the architecture's order."""
        return {name: self.read_register(name) for name in self.arch.registers}
