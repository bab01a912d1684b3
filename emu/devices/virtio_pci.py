"""Legacy PCI transport of a virtio block device (Virtio 1.2, 4.1.4.10)."""

from typing import Any

from emu.devices.device import Bus, number
from emu.devices.pci_configuration import PciFunction
from emu.devices.virtio_block import DEVICE_TYPE, VirtioBlock
from emu.devices.virtio_queue import DESCRIPTOR, MAX_SIZE

VENDOR, LEGACY_BLOCK = 0x1AF4, 0x1001
STORAGE = 0x010000  # class code: SCSI storage, as for every legacy block device
CONFIGURATION = 0x14  # offset of the device configuration, after the transport registers
PAGE = 4096
ACCESS_COST = 500  # cost of a register access in ns


class VirtioPci(PciFunction):
    """PCI function that gives access to a block device through I/O ports.

    :param base: address of the ports, as set by firmware.
    :param interrupt: interrupt line, as set by firmware.
    """

    STATE = (*PciFunction.STATE, "selected")
    ports = 64

    def __init__(self, bus: Bus, block: VirtioBlock, base: int, interrupt: int) -> None:
        super().__init__(VENDOR, LEGACY_BLOCK, STORAGE, subsystem=(VENDOR, DEVICE_TYPE),
                         base=base, interrupt=interrupt)
        self._bus, self.block = bus, block
        self.selected = 0

    def read_port(self, offset: int, size: int) -> int:
        block, queue = self.block, self.selected == 0
        self._bus.spend(ACCESS_COST)
        if offset >= CONFIGURATION:
            return block.read(offset - CONFIGURATION, size)
        if offset == 0x13:  # ISR status: a read acknowledges the interrupts
            causes = block.interrupts
            block.acknowledge(~0)
            return causes
        return {0x00: block.FEATURES, 0x04: block.features,
                0x08: block.queue.descriptors // PAGE if queue else 0,
                0x0C: MAX_SIZE if queue else 0, 0x0E: self.selected, 0x12: block.status,
                }.get(offset, 0)

    def write_port(self, offset: int, size: int, value: int) -> None:
        block = self.block
        self._bus.spend(ACCESS_COST)
        match offset:
            case 0x04:
                block.features = value
            case 0x08 if self.selected == 0:
                self._place(value)
            case 0x0E:
                self.selected = value & 0xFFFF
            case 0x10 if value == 0:
                block.notify()
            case 0x12:
                if value & 0xFF:
                    block.status = value & 0xFF
                else:
                    block.reset()
                    self.selected = 0

    def _place(self, frame: int) -> None:
        """Set the addresses of the queue's parts from the queue's page frame number (2.7.2)."""
        queue = self.block.queue
        queue.size, queue.ready, queue.taken = MAX_SIZE, frame != 0, 0
        queue.descriptors = frame * PAGE
        queue.available = queue.descriptors + DESCRIPTOR.size * MAX_SIZE
        queue.used = queue.available + 6 + 2 * MAX_SIZE + PAGE - 1 & -PAGE

    def state(self) -> dict[str, Any]:
        return super().state() | {"block": self.block.state()}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        number(state["selected"], 1 << 16)
        self.block.restore(state["block"])
