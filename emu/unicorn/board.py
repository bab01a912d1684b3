"""Board interface: the computer around Unicorn's CPUs, implemented for each architecture."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from emu.arch.parts import Parts
from emu.devices.device import Device
from emu.devices.late_disk import LateDisk
from emu.devices.serial_port import SerialPort
from emu.devices.virtio_block import VirtioBlock
from emu.devices.virtio_net import VirtioNet
from emu.unicorn.cpu import Cpu


class Board(ABC):
    """Memory map, devices, firmware and CPUs of one architecture's computer."""

    ram_base: ClassVar[int]
    hidden_base: ClassVar[int]  # physical address at which the guest expects no RAM or device
    devices: dict[str, Device]
    disks: tuple[VirtioBlock, ...] = ()
    network: VirtioNet | None = None
    files: LateDisk | None = None
    uart: SerialPort  # the console
    second: SerialPort | None = None  # the second serial port
    cpus: tuple[Cpu, ...]

    @abstractmethod
    def firmware(self) -> bytes:
        """Set up memory and the CPUs as firmware does before it starts a boot loader.

        :return: the flattened device tree, or no bytes if the firmware puts tables into memory.
        """

    def type(self, data: bytes) -> None:
        """Type bytes at the console."""
        self.uart.type(data)

    @property
    def keys_left(self) -> bool:
        """Whether the guest has not yet read all bytes typed at the console."""
        return self.uart.keys_left

    def state(self) -> dict[str, Any]:
        """Return the states of all devices, keyed by device name."""
        return {name: device.state() for name, device in sorted(self.devices.items())}

    def restore(self, state: dict[str, Any]) -> None:
        """Set all devices to a state returned by ``state``."""
        for name, device in self.devices.items():
            device.restore(state[name])


# Architecture -> board class, which is called with the machine.
BOARDS: Parts[Callable[[Any], Board]] = Parts("emu.unicorn.{}.board", "BOARD")
