"""Virtio block device (Virtio 1.2, 5.2), independent of its transport.

The device keeps what the guest writes in memory; the disk image does not change.  It carries out
one request at a time, LATENCY ns after the driver's notification.  Before the next request, it
takes that time again and 1 ns for each transferred byte.
"""

import struct
from collections.abc import Callable
from typing import Any

from emu.devices.device import Bus, Device, Line, number
from emu.devices.virtio_queue import Chain, QueueError, VirtQueue
from emu.host.errors import MemoryAccessError
from emu.host.input_file import Content

SECTOR = 512
BLOCK = 4096  # size in bytes of the blocks in which written data is stored
LATENCY = 20_000  # delay in ns before the device handles a request
MAX_SEGMENTS = 126  # maximum number of data segments of a request, in a queue of 128 descriptors
DEVICE_TYPE = 2
SEG_MAX, BLK_SIZE, FLUSH = 1 << 2, 1 << 6, 1 << 9  # feature bits
IN, OUT, SYNC, GET_ID = 0, 1, 4, 8  # request types
OK, IO_ERROR, UNSUPPORTED = 0, 1, 2
DRIVER_OK, NEEDS_RESET = 4, 0x40  # bits of the device status
QUEUE_INTERRUPT, CONFIGURATION_INTERRUPT = 1, 2
CONFIGURATION = struct.Struct("<QIIHBBI")  # virtio_blk_config, up to and including blk_size
NAME = b"kinst".ljust(20, b"\0")


class VirtioBlock(Device):
    """Virtio block device; its registers form the device's configuration space.

    A transport also uses its queue and its attributes ``status``, ``features`` and ``interrupts``.

    :param name: unique name of the device's timer.
    :param content: the disk image, a whole number of sectors.
    """

    STATE = ("status", "features", "interrupts")
    FEATURES = SEG_MAX | BLK_SIZE | FLUSH

    def __init__(self, bus: Bus, name: str, content: Content, line: Line) -> None:
        self._bus, self._line, self._content = bus, line, content
        self.status = self.features = self.interrupts = 0
        self.trouble = ""  # how the driver has violated the specification, or an empty string
        self.queue = VirtQueue(bus)
        self._written: dict[int, bytes] = {}  # changed blocks, keyed by block number
        self._shown: dict[str, str] = {}  # the changed blocks, as saved in snapshots
        self._timer = bus.timer(name, self._ring)
        self._configuration = CONFIGURATION.pack(
            len(content) // SECTOR, 0, MAX_SEGMENTS, 0, 0, 0, SECTOR)
        self.size = len(self._configuration)

    # -- interface for transports -----------------------------------------------------------------

    def reset(self) -> None:
        """Reset the device at the driver's request, without changing the content of the disk."""
        self.status = self.features = 0
        self.trouble = ""
        self.queue.reset()
        self._timer.cancel()
        self.acknowledge(~0)

    def notify(self) -> None:
        """Handle the driver's notification that requests are available."""
        if self.status & DRIVER_OK and not self.trouble:
            self._timer.set(min(self._timer.when, self._bus.now + LATENCY))

    def acknowledge(self, interrupts: int) -> None:
        """Clear interrupt causes, and lower the interrupt line if no cause remains."""
        self.interrupts &= ~interrupts
        self._line.set(self.interrupts != 0)

    def read(self, offset: int, size: int) -> int:
        return int.from_bytes(self._configuration[offset : offset + size], "little")

    def write(self, offset: int, size: int, value: int) -> None:
        """Ignore a write: the configuration space is read-only."""

    # -- requests ---------------------------------------------------------------------------------

    def _interrupt(self, why: int) -> None:
        self.interrupts |= why
        self._line.set(True)

    def _ring(self) -> None:
        try:
            chain = self.queue.take()
            if chain is None:
                return
            written = self._carry_out(chain)
            if self.queue.give(chain.head, written):
                self._interrupt(QUEUE_INTERRUPT)
            if self.queue.waiting():
                self._timer.set(self._bus.now + LATENCY + len(chain.readable) + written)
        except (QueueError, MemoryAccessError) as error:
            self.trouble = str(error)
            self.status |= NEEDS_RESET
            self._interrupt(CONFIGURATION_INTERRUPT)

    def _carry_out(self, chain: Chain) -> int:
        """Carry out a request, and return the number of bytes written to the request's chain."""
        room = sum(length for _address, length in chain.writable)
        if len(chain.readable) < 16 or not room:
            raise QueueError("a disk request has an incomplete header, or no room for the status")
        kind, _reserved, sector = struct.unpack("<IIQ", chain.readable[:16])
        data, out, status = b"", chain.readable[16:], OK
        if kind == IN:
            data, status = self._inside(sector, room - 1, lambda at, n: self.content(at, n))
        elif kind == OUT:
            _none, status = self._inside(sector, len(out), lambda at, _n: self._store(at, out))
        elif kind == GET_ID:
            data = NAME[: room - 1]
        elif kind != SYNC:
            status = UNSUPPORTED
        return self._fill(chain, data, status)

    def _inside(self, sector: int, size: int,
                act: Callable[[int, int], bytes]) -> tuple[bytes, int]:
        if size % SECTOR or sector * SECTOR + size > len(self._content):
            return b"", IO_ERROR
        return act(sector * SECTOR, size), OK

    def _fill(self, chain: Chain, data: bytes, status: int) -> int:
        """Write a request's data, zero-padded, followed by the status in the last writable byte.

        :return: number of bytes written to the chain.
        """
        room = sum(length for _address, length in chain.writable)
        padded = data.ljust(room - 1, b"\0") if data else b""
        at = 0
        for address, length in chain.writable:
            piece = padded[at : at + length]
            if piece:
                self._bus.write_memory(address, piece)
            at += length
        address, length = chain.writable[-1]
        self._bus.write_memory(address + length - 1, bytes((status,)))
        return len(padded) + 1

    def content(self, at: int, size: int) -> bytes:
        """Return bytes of the disk, including changes by the guest."""
        content = bytearray(self._content[at : at + size])
        for block_number in range(at // BLOCK, (at + size + BLOCK - 1) // BLOCK):
            block, base = self._written.get(block_number), block_number * BLOCK
            if block is not None:
                begin, end = max(base, at), min(base + len(block), at + size)
                content[begin - at : end - at] = block[begin - base : end - base]
        return bytes(content)

    def _store(self, at: int, data: bytes) -> bytes:
        end = at + len(data)
        for block_number in range(at // BLOCK, (end + BLOCK - 1) // BLOCK):
            base = block_number * BLOCK
            size = min(BLOCK, len(self._content) - base)
            block = bytearray(self.content(base, size))
            begin, last = max(base, at), min(base + size, end)
            block[begin - base : last - base] = data[begin - at : last - at]
            self._keep(block_number, bytes(block))
        return b""

    def _keep(self, block_number: int, block: bytes) -> None:
        self._written[block_number] = block
        self._shown[str(block_number)] = block.hex()

    @property
    def written(self) -> dict[int, bytes]:
        """Blocks that the guest has written, keyed by byte offset."""
        return {at * BLOCK: block for at, block in self._written.items()}

    # -- snapshots --------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return super().state() | {
            "queue": self.queue.state(), "trouble": self.trouble,
            "written": dict(sorted(self._shown.items()))}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        for name, end in (("status", 1 << 8), ("features", 1 << 64), ("interrupts", 4)):
            number(state[name], end)
        queue, trouble, written = state["queue"], state["trouble"], state["written"]
        if not (isinstance(queue, list) and len(queue) == len(self.queue.state())
                and all(type(one) is int and 0 <= one < 1 << 64 for one in queue)
                and isinstance(trouble, str) and isinstance(written, dict)):
            raise ValueError("the saved state of a disk is invalid")
        blocks = {}
        for key, text in written.items():
            block_number, block = int(key), bytes.fromhex(text)
            left = len(self._content) - block_number * BLOCK
            if (block_number < 0 or left <= 0 or len(block) != min(BLOCK, left)
                    or str(block_number) != key):
                raise ValueError("the saved state of a disk contains an invalid block")
            blocks[block_number] = block
        self.queue.restore(queue)
        self.trouble = trouble
        self._written, self._shown = {}, {}
        for block_number, block in blocks.items():
            self._keep(block_number, block)
