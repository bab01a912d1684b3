"""MMIO transport of a virtio block device (Virtio 1.2, 4.2)."""

from typing import Any

from emu.devices.device import Device, number
from emu.devices.virtio_block import DEVICE_TYPE, NEEDS_RESET, VirtioBlock
from emu.devices.virtio_queue import MAX_SIZE

MAGIC, VERSION, VENDOR = 0x74726976, 2, int.from_bytes(b"KNST", "little")
VERSION_1 = 1 << 32  # feature bit
FEATURES_OK = 8  # bit of the device status
CONFIGURATION = 0x100
# Register offset of the low half of a queue address -> attribute of VirtQueue
ADDRESSES = {0x80: "descriptors", 0x90: "available", 0xA0: "used"}


class VirtioMmio(Device):
    """MMIO transport registers of a block device."""
    STATE = ("device_half", "driver_half", "selected")
    size = 0x200

    def __init__(self, block: VirtioBlock) -> None:
        self.block = block
        self.device_half = self.driver_half = self.selected = 0

    @property
    def _offered(self) -> int:
        return self.block.FEATURES | VERSION_1

    def read(self, offset: int, size: int) -> int:
        block = self.block
        if offset >= CONFIGURATION:
            return block.read(offset - CONFIGURATION, size)
        queue = self.selected == 0
        return {
            0x00: MAGIC, 0x04: VERSION, 0x08: DEVICE_TYPE, 0x0C: VENDOR,
            0x10: self._offered >> 32 * min(self.device_half, 2) & 0xFFFFFFFF,
            0x34: MAX_SIZE if queue else 0, 0x44: int(block.queue.ready and queue),
            0x60: block.interrupts, 0x70: block.status,
        }.get(offset, 0) if size == 4 else 0

    def write(self, offset: int, size: int, value: int) -> None:
        block = self.block
        if size != 4:
            return
        match offset:
            case 0x14:
                self.device_half = value
            case 0x20:
                if self.driver_half < 2:
                    shift = 32 * self.driver_half
                    block.features = (block.features & ~(0xFFFFFFFF << shift) | value << shift)
            case 0x24:
                self.driver_half = value
            case 0x30:
                self.selected = value
            case 0x38 if self.selected == 0:
                block.queue.size = value
            case 0x44 if self.selected == 0:
                block.queue.ready = bool(value & 1)
            case 0x50 if value == 0:
                block.notify()
            case 0x64:
                block.acknowledge(value)
            case 0x70:
                self._set_status(value & 0xFF)
            case _ if self.selected == 0 and offset & ~4 in ADDRESSES:
                name, shift = ADDRESSES[offset & ~4], 8 * (offset & 4)
                before = getattr(block.queue, name)
                setattr(block.queue, name, before & ~(0xFFFFFFFF << shift) | value << shift)

    def _set_status(self, value: int) -> None:
        block = self.block
        if value == 0:
            block.reset()
            self.device_half = self.driver_half = self.selected = 0
            return
        if block.features & ~self._offered or not block.features & VERSION_1:
            value &= ~FEATURES_OK
        block.status = value | block.status & NEEDS_RESET

    def state(self) -> dict[str, Any]:
        return super().state() | {"block": self.block.state()}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        for name in self.STATE:
            number(state[name], 1 << 32)
        self.block.restore(state["block"])
