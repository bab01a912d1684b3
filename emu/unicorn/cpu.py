"""CPU interface of the Unicorn machine, implemented for each architecture."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from emu.elf.image import Image
from emu.host.errors import MachineError


@dataclass(frozen=True)
class CpuModel:
    """Unicorn's parameters for the CPU model of an architecture (constants of unicorn.h)."""

    arch: int
    mode: int
    cpu_model: int
    fixed_length: int  # length of every instruction in bytes, or 0 if lengths vary
    registers: Mapping[str, int]  # architecture register names -> Unicorn's register numbers


class Cpu(ABC):
    """One CPU of a machine; all CPUs of a machine share its engine and take turns.

    Large because it is the only interface of a machine and its schedule to a CPU.

    :param number: index of the CPU in the machine, from 0.
    """

    model: ClassVar[CpuModel]
    vectors: ClassVar[Mapping[str, int]] = {}  # vector registers -> Unicorn's numbers
    # Registers that Unicorn exposes only in privileged modes; use ``read_system`` for them.
    guarded: ClassVar[frozenset[str]] = frozenset()
    wakes_masked: ClassVar[bool]  # whether a masked interrupt ends the wait instruction
    # Instructions that a CPU executes in loops that wait for another CPU; each ends its block.
    yields: ClassVar[tuple[bytes, ...]]
    spins_aloud: ClassVar[bool] = True  # whether kernels use ``yields`` in their spin loops

    def __init__(self, number: int) -> None:
        self.number = number
        self.on = number == 0
        self.masked = False  # whether the CPU waits with all maskable interrupts disabled
        # Start address and argument that another CPU has posted for this CPU's next turn, or empty.
        self.posted: list[int] = []

    @abstractmethod
    def reset(self) -> None:
        """Put the CPU into the mode in which firmware enters a boot loader."""

    def watch(self, image: Image) -> None:  # noqa: B027  most CPUs need no handlers
        """Install handlers for an image's instructions that the CPU model cannot execute.

        Called after the image was put into memory.
        """

    def entry_described(self, vector: int, left: int, reached: int) -> str:
        """Return sentences that describe how the CPU enters an exception vector.

        :param left: stack pointer before the exception.
        :param reached: stack pointer at the vector.
        :return: empty if no table of the architecture determines the entry.
        """
        return ""

    def monitor_place(self) -> int:
        """Return the offset of the exclusive monitor's 8-byte address in a saved Unicorn context.

        :return: 0 if the CPU has no exclusive monitor.
        """
        return 0

    @abstractmethod
    def start(self, address: int, argument: int) -> None:
        """Start the CPU at ``address`` when its turn begins, as another CPU requested."""

    def post(self, address: int, argument: int) -> None:
        """Switch the CPU on and record the address at which it starts in its next turn."""
        self.on, self.posted = True, [address, argument]

    def masks_interrupts(self) -> bool:
        """Return whether all maskable interrupts are masked, so that none can end a wait."""
        return False

    def wakes(self) -> bool:
        """Return whether a pending interrupt ends the CPU's wait."""
        return self.interrupt_pending() and not self.masked

    def goes_out(self) -> None:  # noqa: B027  most CPUs have nothing to save
        """Save state at the end of the CPU's turn, while its registers are still in the engine."""

    def came_in(self) -> bool:
        """Apply other CPUs' requests at the start of this CPU's turn.

        :return: whether the CPU was started.
        """
        if not self.posted:
            return False
        address, argument = self.posted
        self.posted = []
        self.start(address, argument)
        return True

    @abstractmethod
    def exception(self, vector: int) -> str | None:
        """Deliver an exception that the CPU raised, or answer a hypervisor or firmware call.

        :return: None if the guest can continue, else the reason why it cannot.
        """

    @abstractmethod
    def invalid(self) -> str | None:
        """Handle an instruction that Unicorn cannot execute; for the result, see ``exception``."""

    @abstractmethod
    def bus_error(self, code: int) -> str | None:
        """Handle an access to an unmapped physical address; for the result, see ``exception``."""

    def trapped(self, pc: int, code: bytes) -> int:
        """Handle a program's instruction that must trap but that the CPU model would execute.

        If it is the first instruction of the block, its exception is delivered or it is emulated
        (``Engine.trap_in_programs``).

        :param code: bytes of the block.
        :return: the number of instructions before it.
        """
        raise MachineError(f"unexpected trap at {pc:#x}: this CPU never traps program instructions")

    def stuck(self) -> str:
        """Explain why the CPU model does not execute the current instruction."""
        return "the CPU model does not execute the instruction at this address"

    @abstractmethod
    def is_wait(self, code: bytes) -> bool:
        """Return whether an instruction waits for an interrupt."""

    @abstractmethod
    def ends_block(self, code: bytes) -> bool:
        """Return whether an instruction always ends the CPU model's translated block."""

    @abstractmethod
    def interrupt_pending(self) -> bool:
        """Return whether an interrupt, masked or not, is pending for the CPU."""

    @abstractmethod
    def ring_timer(self) -> None:
        """Make the CPU's timer expire now, if the guest uses it."""

    def unmaskable(self) -> bool:
        """Return whether a non-maskable interrupt is pending."""
        return False

    @abstractmethod
    def deliver_interrupt(self) -> bool:
        """Enter the guest's handler for the pending interrupt if the CPU would take it now.

        :return: whether the interrupt was taken.
        """

    def read_system(self, name: str) -> int:
        """Read a register that is in ``guarded`` or that has no Unicorn register number.

        :raises MachineError: if the CPU has no register of that name.
        """
        raise MachineError(f"the CPU has no register '{name}'")

    def write_system(self, name: str, value: int) -> None:
        """Write a register that is in ``guarded`` or that has no Unicorn register number.

        :raises MachineError: if the CPU has no register of that name.
        """
        raise MachineError(f"the CPU has no register '{name}'")

    def keep(self) -> Any:
        """Return the CPU state that the engine's registers do not hold, for ``put_back``."""
        return self.on, self.masked, list(self.posted)

    def put_back(self, kept: Any) -> None:
        """Restore the state returned by ``keep``."""
        self.on, self.masked, posted = kept
        self.posted = list(posted)

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return all CPU state that a snapshot stores, as JSON-compatible values."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Set the CPU to a state returned by ``state``."""
