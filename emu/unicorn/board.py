"""The computer around Unicorn's CPUs: what Unicorn leaves to its host, per architecture."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from emu.arch.parts import Parts
from emu.devices.device import Device
from emu.devices.virtio_block import VirtioBlock
from emu.unicorn.cpu import Cpu


class Board(ABC):
    """Memory map, devices and firmware of one architecture's computer, and the CPUs in it."""

    ram_base: ClassVar[int]
    hidden_base: ClassVar[int]  # physical address where the guest expects nothing
    devices: dict[str, Device]
    disks: tuple[VirtioBlock, ...] = ()
    cpus: tuple[Cpu, ...]

    @abstractmethod
    def firmware(self) -> bytes:
        """Leave memory and the CPUs as firmware does before it enters a boot loader.

        :return: the flattened device tree; nothing where firmware leaves tables in memory.
        """

    @abstractmethod
    def type(self, data: bytes) -> None:
        """Bytes typed at the console."""

    @property
    @abstractmethod
    def keys_left(self) -> bool:
        """Whether the guest has not read all that was typed."""

    def state(self) -> dict[str, Any]:
        return {name: device.state() for name, device in sorted(self.devices.items())}

    def restore(self, state: dict[str, Any]) -> None:
        for name, device in self.devices.items():
            device.restore(state[name])


# By architecture; each is made for a machine.
BOARDS: Parts[Callable[[Any], Board]] = Parts("emu.unicorn.{}.board", "BOARD")
