"""A split virtqueue (Virtio 1.2, 2.7), as the device sees it.

All of it lies in the guest's memory and can be anything: what cannot be followed is a
``QueueError``, and one chain has at most ``MAX_SIZE`` pieces and ``MAX_BYTES``.
"""

import struct
from dataclasses import dataclass

from emu.devices.device import Bus
from emu.host.errors import MemoryAccessError

MAX_SIZE = 128  # descriptors
MAX_BYTES = 4 << 20  # of one chain
DESCRIPTOR = struct.Struct("<QIHH")  # address, length, flags, next
NEXT, WRITE, INDIRECT = 1, 2, 4
NO_INTERRUPT = 1  # of the available ring's flags


class QueueError(Exception):
    """The driver has broken the rules: the device must be reset."""


@dataclass(frozen=True)
class Chain:
    """A request.

    :param head: its first descriptor.
    :param readable: what the driver has put into it.
    :param writable: (address, bytes) of the pieces that the device fills.
    """

    head: int
    readable: bytes
    writable: tuple[tuple[int, int], ...]


@dataclass
class VirtQueue:
    """Where the driver has put the queue, and how far it was read."""

    bus: Bus
    size: int = MAX_SIZE
    ready: bool = False
    descriptors: int = 0  # physical addresses
    available: int = 0
    used: int = 0
    taken: int = 0  # of the available ring, modulo 2^16

    def reset(self) -> None:
        self.size, self.ready = MAX_SIZE, False
        self.descriptors = self.available = self.used = self.taken = 0

    def waiting(self) -> bool:
        """Whether there is a request.

        :raises QueueError:
        """
        if not self.ready:
            return False
        if not 0 < self.size <= MAX_SIZE or self.size & self.size - 1:
            raise QueueError(f"a queue of {self.size} descriptors")
        behind = self._number(self.available + 2) - self.taken & 0xFFFF
        if behind > self.size:
            raise QueueError(f"{behind} requests in a queue of {self.size}")
        return behind > 0

    def take(self) -> Chain | None:
        """The next request.

        :raises QueueError:
        """
        if not self.waiting():
            return None
        head = self._number(self.available + 4 + 2 * (self.taken % self.size))
        readable, writable = bytearray(), []
        total, at = 0, head
        for _ in range(self.size):
            if at >= self.size:
                raise QueueError(f"descriptor {at} of {self.size}")
            address, length, flags, following = DESCRIPTOR.unpack(
                self._bytes(self.descriptors + DESCRIPTOR.size * at, DESCRIPTOR.size))
            total += length
            if flags & INDIRECT or not length or total > MAX_BYTES:
                raise QueueError(f"descriptor {at} has {length} bytes, and flags {flags:#x}")
            if flags & WRITE:
                self._bytes(address, length)  # or it is no RAM
                writable.append((address, length))
            elif writable:
                raise QueueError("a piece to read behind one to write")
            else:
                readable += self._bytes(address, length)
            if not flags & NEXT:
                break
            at = following
        else:
            raise QueueError("descriptors in a circle")
        self.taken = self.taken + 1 & 0xFFFF
        return Chain(head, bytes(readable), tuple(writable))

    def give(self, head: int, written: int) -> bool:
        """A request is done.

        :param written: bytes that were written to it.
        :return: whether the driver wants to be told.
        :raises QueueError:
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
        return [self.size, int(self.ready), self.descriptors, self.available, self.used,
                self.taken]

    def restore(self, state: list[int]) -> None:
        self.size, ready, self.descriptors, self.available, self.used, taken = state
        self.ready, self.taken = bool(ready), taken & 0xFFFF
