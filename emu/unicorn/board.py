"""The computer around Unicorn's CPU: what Unicorn leaves to its host, per architecture."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from emu.device import Device
from emu.elf import Image
from emu.errors import MachineError


@dataclass(frozen=True)
class CpuModel:
    """The CPU model of an architecture, as Unicorn is told of it (constants of unicorn.h)."""

    arch: int
    mode: int
    cpu_model: int
    fixed_length: int  # bytes of every instruction, or 0
    registers: Mapping[str, int]  # our names -> Unicorn's numbers


class Board(ABC):
    """Devices, exceptions, interrupts and boot protocol of one architecture."""

    cpu: ClassVar[CpuModel]
    ram_base: ClassVar[int]
    hidden_base: ClassVar[int]  # physical address where the guest expects nothing
    vectors: ClassVar[Mapping[str, int]] = {}  # vector registers -> Unicorn's numbers
    wakes_masked: ClassVar[bool]  # a masked interrupt ends the wait instruction
    devices: dict[str, Device]

    @abstractmethod
    def load(self, image: Image) -> None:
        """Play the boot loader: memory, registers, entry point.

        :raises ImageError: when the image does not fit this machine.
        """

    @abstractmethod
    def place(self, image: Image) -> None:
        """Load the image, map it and RAM by page tables of ours, give the CPU a stack.

        :raises ImageError: when the image does not fit this machine.
        """

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
    def deliver_interrupt(self) -> bool:
        """Enter the guest's handler of the pending interrupt if the CPU would now.

        :return: whether it did.
        """

    @abstractmethod
    def type(self, data: bytes) -> None:
        """Bytes typed at the console."""

    def read_system(self, name: str) -> int:
        """A register that is no plain one of Unicorn's.

        :raises MachineError: when there is none of that name.
        """
        raise MachineError(f"there is no register '{name}'")

    def write_system(self, name: str, value: int) -> None:
        """:raises MachineError: when there is none of that name."""
        raise MachineError(f"there is no register '{name}'")

    @abstractmethod
    def cpu_state(self) -> dict[str, Any]:
        """All of the CPU a snapshot must hold, JSON-able."""

    @abstractmethod
    def restore_cpu(self, state: dict[str, Any]) -> None:
        """Set the CPU to what ``cpu_state`` gave."""

    def state(self) -> dict[str, Any]:
        return {name: device.state() for name, device in sorted(self.devices.items())}

    def restore(self, state: dict[str, Any]) -> None:
        for name, device in self.devices.items():
            device.restore(state[name])
