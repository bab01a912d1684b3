"""Split virtqueue (Virtio 1.2, 2.7), as seen by the device.

The queue is in guest memory and may contain anything.  Invalid content raises a ``QueueError``; a
chain is limited to ``MAX_SIZE`` descriptors and ``MAX_BYTES`` bytes.
"""

import struct
from dataclasses import dataclass

from emu.devices.device import Bus
from emu.host.errors import MemoryAccessError

MAX_SIZE = 128  # maximum size of a queue in descriptors
MAX_BYTES = 4 << 20  # maximum total size in bytes of the buffers in a chain
DESCRIPTOR = struct.Struct("<QIHH")  # address, length, flags, index of the next descriptor
NEXT, WRITE, INDIRECT = 1, 2, 4
NO_INTERRUPT = 1  # flag of the available ring: the driver needs no interrupts


class QueueError(Exception):
    """Error raised if the driver violates the specification; the device must then be reset."""


@dataclass(frozen=True)
class Chain:
    """A request as a chain of descriptors.

    :param head: index of the first descriptor.
    :param readable: content of the buffers that the device reads.
    :param writable: (physical address, bytes) of the buffers that the device writes.
    """

    head: int
    readable: bytes
    writable: tuple[tuple[int, int], ...]


@dataclass
class VirtQueue:
    """A virtqueue: its addresses, and the device's position in the available ring."""

    bus: Bus
    size: int = MAX_SIZE
    ready: bool = False
    descriptors: int = 0  # physical addresses of the descriptor table and the two rings
    available: int = 0
    used: int = 0
    taken: int = 0  # number of entries taken from the available ring, modulo 2^16

    def reset(self) -> None:
        """Clear the addresses, and disable the queue."""
        self.size, self.ready = MAX_SIZE, False
        self.descriptors = self.available = self.used = self.taken = 0

    def waiting(self) -> bool:
        """Return whether a request is waiting.

        :raises QueueError: if the queue is invalid.
        """
        if not self.ready:
            return False
        if not 0 < self.size <= MAX_SIZE or self.size & self.size - 1:
            raise QueueError(f"invalid queue size {self.size}")
        behind = self._number(self.available + 2) - self.taken & 0xFFFF
        if behind > self.size:
            raise QueueError(f"too many requests: {behind} in a queue of {self.size} descriptors")
        return behind > 0

    def take(self) -> Chain | None:
        """Take the next request from the available ring, or return None.

        :raises QueueError: if the queue or the request is invalid.
        """
        if not self.waiting():
            return None
        head = self._number(self.available + 4 + 2 * (self.taken % self.size))
        readable, writable = bytearray(), []
        total, at = 0, head
        for _ in range(self.size):
            if at >= self.size:
                raise QueueError(f"descriptor {at} is outside the queue of {self.size} descriptors")
            address, length, flags, following = DESCRIPTOR.unpack(
                self._bytes(self.descriptors + DESCRIPTOR.size * at, DESCRIPTOR.size))
            total += length
            if flags & INDIRECT or not length or total > MAX_BYTES:
                raise QueueError(f"descriptor {at} is invalid: {length} bytes, flags {flags:#x}")
            if flags & WRITE:
                try:
                    self.bus.check_memory(address, length)
                except MemoryAccessError as error:
                    raise QueueError(str(error)) from None
                writable.append((address, length))
            elif writable:
                raise QueueError("a readable descriptor follows a writable one")
            else:
                readable += self._bytes(address, length)
            if not flags & NEXT:
                break
            at = following
        else:
            raise QueueError("the chain of descriptors has a loop")
        self.taken = self.taken + 1 & 0xFFFF
        return Chain(head, bytes(readable), tuple(writable))

    def give(self, head: int, written: int) -> bool:
        """Mark a request as completed in the used ring.

        :param head: index of the request's first descriptor.
        :param written: number of bytes written to the request.
        :return: whether the driver requests an interrupt.
        :raises QueueError: if the used ring is not in RAM.
        """
        try:
            done = self._number(self.used + 2)
            self.bus.write_memory(self.used + 4 + 8 * (done % self.size),
                                  struct.pack("<II", head, written))
            self.bus.write_memory(self.used + 2, struct.pack("<H", done + 1 & 0xFFFF))
        except MemoryAccessError as error:
            raise QueueError(str(error)) from None
        return not self._number(self.available) & NO_INTERRUPT

    def _bytes(self, address: int, size: int) -> bytes:
        try:
            return self.bus.read_memory(address, size)
        except MemoryAccessError as error:
            raise QueueError(str(error)) from None

    def _number(self, address: int) -> int:
        return int.from_bytes(self._bytes(address, 2), "little")

    # -- snapshots --------------------------------------------------------------------------------

    def state(self) -> list[int]:
        """Return the state as a list of numbers."""
        return [self.size, int(self.ready), self.descriptors, self.available, self.used,
                self.taken]

    def restore(self, state: list[int]) -> None:
        """Restore a state returned by ``state``."""
        self.size, ready, self.descriptors, self.available, self.used, taken = state
        self.ready, self.taken = bool(ready), taken & 0xFFFF
