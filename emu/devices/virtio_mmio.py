"""MMIO transport of a virtio device (Virtio 1.2, 4.2)."""

from typing import Any

from emu.devices.device import Device, number
from emu.devices.virtio_device import NEEDS_RESET, VERSION_1, VirtioDevice
from emu.devices.virtio_queue import MAX_SIZE

MAGIC, VERSION, VENDOR = 0x74726976, 2, int.from_bytes(b"KNST", "little")
FEATURES_OK = 8  # bit of the device status
CONFIGURATION = 0x100
# Register offset of the low half of a queue address -> attribute of VirtQueue
ADDRESSES = {0x80: "descriptors", 0x90: "available", 0xA0: "used"}


class VirtioMmio(Device):
    """MMIO transport registers of a virtio device.

    :param kind: name of the device in snapshots.
    """

    STATE = ("device_half", "driver_half", "selected")
    size = 0x200

    def __init__(self, virtio: VirtioDevice, kind: str = "block") -> None:
        self.virtio, self._kind = virtio, kind
        self.device_half = self.driver_half = self.selected = 0

    @property
    def _offered(self) -> int:
        return self.virtio.FEATURES | VERSION_1

    def read(self, offset: int, size: int) -> int:
        virtio, queue = self.virtio, self.virtio.queue(self.selected)
        if offset >= CONFIGURATION:
            return virtio.read(offset - CONFIGURATION, size)
        return {
            0x00: MAGIC, 0x04: VERSION, 0x08: virtio.TYPE, 0x0C: VENDOR,
            0x10: self._offered >> 32 * min(self.device_half, 2) & 0xFFFFFFFF,
            0x34: MAX_SIZE if queue else 0, 0x44: int(queue is not None and queue.ready),
            0x60: virtio.interrupts, 0x70: virtio.status,
        }.get(offset, 0) if size == 4 else 0

    def write(self, offset: int, size: int, value: int) -> None:
        virtio, queue = self.virtio, self.virtio.queue(self.selected)
        if size != 4:
            return
        match offset:
            case 0x14:
                self.device_half = value
            case 0x20:
                if self.driver_half < 2:
                    shift = 32 * self.driver_half
                    virtio.features = (virtio.features & ~(0xFFFFFFFF << shift) | value << shift)
            case 0x24:
                self.driver_half = value
            case 0x30:
                self.selected = value
            case 0x38 if queue is not None:
                queue.size = value
            case 0x44 if queue is not None:
                queue.ready = bool(value & 1)
            case 0x50:
                virtio.notify(value)
            case 0x64:
                virtio.acknowledge(value)
            case 0x70:
                self._set_status(value & 0xFF)
            case _ if queue is not None and offset & ~4 in ADDRESSES:
                name, shift = ADDRESSES[offset & ~4], 8 * (offset & 4)
                before = getattr(queue, name)
                setattr(queue, name, before & ~(0xFFFFFFFF << shift) | value << shift)

    def _set_status(self, value: int) -> None:
        virtio = self.virtio
        if value == 0:
            virtio.reset()
            self.device_half = self.driver_half = self.selected = 0
            return
        if virtio.features & ~self._offered or not virtio.features & VERSION_1:
            value &= ~FEATURES_OK
        virtio.status = value | virtio.status & NEEDS_RESET

    def state(self) -> dict[str, Any]:
        return super().state() | {self._kind: self.virtio.state()}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        for name in self.STATE:
            number(state[name], 1 << 32)
        self.virtio.restore(state[self._kind])
