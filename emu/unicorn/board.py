"""Board interface: the computer around Unicorn's CPUs, implemented for each architecture."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from emu.arch.parts import Parts
from emu.devices.device import Device
from emu.devices.virtio_block import VirtioBlock
from emu.unicorn.cpu import Cpu


class Board(ABC):
    """Memory map, devices, firmware and CPUs of one architecture's computer."""

    ram_base: ClassVar[int]
    hidden_base: ClassVar[int]  # physical address at which the guest expects no RAM or device
    devices: dict[str, Device]
    disks: tuple[VirtioBlock, ...] = ()
    cpus: tuple[Cpu, ...]

    @abstractmethod
    def firmware(self) -> bytes:
        """Set up memory and the CPUs the way firmware does before it enters a boot loader.

        :return: the flattened device tree; empty if the firmware puts tables into memory instead.
        """

    @abstractmethod
    def type(self, data: bytes) -> None:
        """Type bytes at the console."""

    @property
    @abstractmethod
    def keys_left(self) -> bool:
        """Whether typed bytes remain that the guest has not read."""

    def state(self) -> dict[str, Any]:
        """Return the state of all devices by name."""
        return {name: device.state() for name, device in sorted(self.devices.items())}

    def restore(self, state: dict[str, Any]) -> None:
        """Set all devices to a state returned by ``state``."""
        for name, device in self.devices.items():
            device.restore(state[name])


# The board class of each architecture; its argument is the machine.
BOARDS: Parts[Callable[[Any], Board]] = Parts("emu.unicorn.{}.board", "BOARD")
