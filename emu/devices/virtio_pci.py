"""Legacy PCI transport of a virtio device (Virtio 1.2, 4.1.4.10)."""

from typing import Any

from emu.devices.device import Bus, number
from emu.devices.pci_configuration import PciFunction
from emu.devices.virtio_device import VirtioDevice
from emu.devices.virtio_queue import DESCRIPTOR, MAX_SIZE, VirtQueue

VENDOR = 0x1AF4
# Device type -> transitional PCI device ID (4.1.2.1), class code: Ethernet, SCSI storage (as for
# every legacy block device), other system peripheral
IDENTITIES = {1: (0x1000, 0x020000), 2: (0x1001, 0x010000), 4: (0x1005, 0x088000)}
CONFIGURATION = 0x14  # offset of the device configuration, after the transport registers
PAGE = 4096
ACCESS_COST = 500  # cost of a register access in ns


class VirtioPci(PciFunction):
    """PCI function that gives access to a virtio device through I/O ports.

    :param kind: name of the device in snapshots.
    :param base: address of the ports, as set by firmware.
    :param interrupt: interrupt line, as set by firmware.
    """

    STATE = (*PciFunction.STATE, "selected")
    ports = 64

    def __init__(self, bus: Bus, virtio: VirtioDevice, base: int, interrupt: int,
                 kind: str = "block") -> None:
        identity, class_code = IDENTITIES[virtio.TYPE]
        super().__init__(VENDOR, identity, class_code, subsystem=(VENDOR, virtio.TYPE),
                         base=base, interrupt=interrupt)
        self._bus, self.virtio, self._kind = bus, virtio, kind
        self.selected = 0

    def read_port(self, offset: int, size: int) -> int:
        virtio, queue = self.virtio, self.virtio.queue(self.selected)
        self._bus.spend(ACCESS_COST)
        if offset >= CONFIGURATION:
            return virtio.read(offset - CONFIGURATION, size)
        if offset == 0x13:  # ISR status: a read acknowledges the interrupts
            causes = virtio.interrupts
            virtio.acknowledge(~0)
            return causes
        return {0x00: virtio.FEATURES, 0x04: virtio.features,
                0x08: queue.descriptors // PAGE if queue else 0,
                0x0C: MAX_SIZE if queue else 0, 0x0E: self.selected, 0x12: virtio.status,
                }.get(offset, 0)

    def write_port(self, offset: int, size: int, value: int) -> None:
        virtio, queue = self.virtio, self.virtio.queue(self.selected)
        self._bus.spend(ACCESS_COST)
        match offset:
            case 0x04:
                virtio.features = value
            case 0x08 if queue is not None:
                _place(queue, value)
            case 0x0E:
                self.selected = value & 0xFFFF
            case 0x10:
                virtio.notify(value & 0xFFFF)
            case 0x12:
                if value & 0xFF:
                    virtio.status = value & 0xFF
                else:
                    virtio.reset()
                    self.selected = 0

    def state(self) -> dict[str, Any]:
        return super().state() | {self._kind: self.virtio.state()}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        number(state["selected"], 1 << 16)
        self.virtio.restore(state[self._kind])


def _place(queue: VirtQueue, frame: int) -> None:
    """Set the addresses of a queue's parts from the queue's page frame number (2.7.2)."""
    queue.size, queue.ready, queue.taken = MAX_SIZE, frame != 0, 0
    queue.descriptors = frame * PAGE
    queue.available = queue.descriptors + DESCRIPTOR.size * MAX_SIZE
    queue.used = queue.available + 6 + 2 * MAX_SIZE + PAGE - 1 & -PAGE
