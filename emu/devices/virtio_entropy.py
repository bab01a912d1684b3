"""Virtio entropy device (Virtio 1.2, 5.4), whose bytes follow from a seed.

The device fills a buffer LATENCY ns after the driver's notification.
"""

import hashlib
from typing import Any

from emu.devices.device import Bus, Line, number
from emu.devices.virtio_device import VirtioDevice
from emu.devices.virtio_queue import MAX_SIZE, QueueError
from emu.host.errors import MemoryAccessError

LATENCY = 5_000
MOST = 4096  # maximum number of bytes in a buffer; a larger buffer is filled partly


class VirtioEntropy(VirtioDevice):
    """Virtio entropy device.

    :param seed: the bytes are SHAKE-256 of the seed and the number of the buffer.
    """

    TYPE, QUEUES, FEATURES, LATENCY = 4, 1, 0, LATENCY
    STATE = (*VirtioDevice.STATE, "filled")

    def __init__(self, bus: Bus, name: str, seed: bytes, line: Line) -> None:
        super().__init__(bus, name, line, b"")
        self._seed = seed
        self.filled = 0  # number of buffers that were filled

    def work(self) -> None:
        queue, interrupt = self.queues[0], False
        try:
            for _ in range(MAX_SIZE):
                chain = queue.take()
                if chain is None:
                    break
                size = min(sum(length for _address, length in chain.writable), MOST)
                source = self._seed + self.filled.to_bytes(8, "little")
                self.fill(chain.writable, hashlib.shake_256(source).digest(size))
                self.filled += 1
                interrupt |= queue.give(chain.head, size)
        except (QueueError, MemoryAccessError) as error:
            self.fail(error)
            return
        if interrupt:
            self.interrupt()

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        number(state["filled"])
