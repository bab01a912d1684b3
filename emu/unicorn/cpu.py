"""A CPU of Unicorn's: registers, exceptions, interrupts, what is kept of it; per architecture."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from emu.elf.image import Image
from emu.host.errors import MachineError


@dataclass(frozen=True)
class CpuModel:
    """The CPU model of an architecture, as Unicorn is told of it (constants of unicorn.h)."""

    arch: int
    mode: int
    cpu_model: int
    fixed_length: int  # bytes of every instruction, or 0
    registers: Mapping[str, int]  # our names -> Unicorn's numbers


class Cpu(ABC):
    """One CPU.  Those of a machine share its engine, and take turns.

    Large because it is all that a machine and its schedule ask of a CPU, in one place.

    :param number: among them, from 0.
    """

    model: ClassVar[CpuModel]
    vectors: ClassVar[Mapping[str, int]] = {}  # vector registers -> Unicorn's numbers
    # Of the model's, those that Unicorn shows to who may see them alone: by ``read_system``.
    guarded: ClassVar[frozenset[str]] = frozenset()
    wakes_masked: ClassVar[bool]  # a masked interrupt ends the wait instruction
    # Instructions with which it lets another CPU run, that it waits for; each ends its block.
    yields: ClassVar[tuple[bytes, ...]]
    spins_aloud: ClassVar[bool] = True  # kernels that wait for another CPU say so by these

    def __init__(self, number: int) -> None:
        self.number = number
        self.on = number == 0
        self.masked = False  # it waits for an interrupt, and would take none that can be masked
        # Where another CPU has told it to start, and with which argument, when its turn comes;
        # empty: it was not told.
        self.posted: list[int] = []

    @abstractmethod
    def reset(self) -> None:
        """Put the CPU into the mode that firmware enters a boot loader in."""

    def watch(self, image: Image) -> None:  # noqa: B027  most have nothing to do
        """An image was put into memory: stop at what the CPU model cannot do by itself."""

    def entry_described(self, vector: int, left: int, reached: int) -> str:
        """How the CPU comes to an exception's vector, in sentences; empty where no table of the
        architecture decides that.

        :param left: the stack pointer before, and ``reached`` at the vector.
        """
        return ""

    def monitor_place(self) -> int:
        """Where a context holds the address that an exclusive access has reserved, eight bytes; 0:
        it is no such CPU."""
        return 0

    @abstractmethod
    def start(self, address: int, argument: int) -> None:
        """It is switched on by another CPU; it has its turn."""

    def post(self, address: int, argument: int) -> None:
        """Another CPU switches it on."""
        self.on, self.posted = True, [address, argument]

    def masks_interrupts(self) -> bool:
        """Whether a wait that begins now ends with none that can be masked."""
        return False

    def wakes(self) -> bool:
        """Whether an interrupt waits that ends the CPU's wait."""
        return self.interrupt_pending() and not self.masked

    def goes_out(self) -> None:  # noqa: B027  most have nothing to do
        """Its turn is over; its registers are still in the engine."""

    def came_in(self) -> bool:
        """Its turn has come: do what other CPUs have asked for; whether it is started."""
        if not self.posted:
            return False
        address, argument = self.posted
        self.posted = []
        self.start(address, argument)
        return True

    @abstractmethod
    def exception(self, vector: int) -> str | None:
        """Deliver what the CPU raised, or answer it (hypervisor and firmware calls).

        :return: None when the guest goes on, else why it cannot.
        """

    @abstractmethod
    def invalid(self) -> str | None:
        """The same, for an instruction that Unicorn gives up on."""

    @abstractmethod
    def bus_error(self, code: int) -> str | None:
        """The same, for a physical address where nothing is."""

    def trapped(self, pc: int, code: bytes) -> int:
        """A program's block has an instruction that is to be trapped, and the model lets pass
        (``Engine.trap_in_programs``).  Where it is the first, its exception is delivered, or it is
        carried out.

        :param code: the block's.
        :return: how many instructions come before it.
        """
        raise MachineError(f"nothing is trapped at {pc:#x}")

    def stuck(self) -> str:
        """Why the model does not execute what is there, though it said that it can."""
        return "the CPU model executes nothing there"

    @abstractmethod
    def is_wait(self, code: bytes) -> bool:
        """Whether the instruction waits for an interrupt."""

    @abstractmethod
    def ends_block(self, code: bytes) -> bool:
        """Whether the instruction ends the CPU model's translated block by itself, wherever it
        stands."""

    @abstractmethod
    def interrupt_pending(self) -> bool:
        """Whether some interrupt waits for the CPU, masked or not."""

    @abstractmethod
    def ring_timer(self) -> None:
        """Its timer, as far as the guest uses one, rings now."""

    def unmaskable(self) -> bool:
        """Whether one waits that no mask of the guest's keeps away."""
        return False

    @abstractmethod
    def deliver_interrupt(self) -> bool:
        """Enter the guest's handler of the pending interrupt if the CPU would now.

        :return: whether it did.
        """

    def read_system(self, name: str) -> int:
        """A register that is no plain one of Unicorn's, or guarded.

        :raises MachineError: when there is none of that name.
        """
        raise MachineError(f"there is no register '{name}'")

    def write_system(self, name: str, value: int) -> None:
        """:raises MachineError: when there is none of that name."""
        raise MachineError(f"there is no register '{name}'")

    def keep(self) -> Any:
        """What of it is not in the engine's registers, for ``put_back``."""
        return self.on, self.masked, list(self.posted)

    def put_back(self, kept: Any) -> None:
        self.on, self.masked, posted = kept
        self.posted = list(posted)

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """All of the CPU a snapshot must hold, JSON-able."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Set the CPU to what ``state`` gave."""
