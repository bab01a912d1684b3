"""Virtio block device (Virtio 1.2, 5.2), independent of its transport.

The device keeps what the guest writes in memory; the disk image does not change.  It carries out
one request at a time, LATENCY ns after the driver's notification.  Before the next request, it
takes that time again and 1 ns for each transferred byte.
"""

import struct
from collections.abc import Callable
from typing import Any

from emu.devices.device import Bus, Line
from emu.devices.virtio_device import VirtioDevice
from emu.devices.virtio_queue import Chain, QueueError
from emu.host.errors import MemoryAccessError
from emu.host.input_file import Content

SECTOR = 512
BLOCK = 4096  # size in bytes of the blocks in which written data is stored
LATENCY = 20_000  # delay in ns before the device handles a request
MAX_SEGMENTS = 126  # maximum number of data segments of a request, in a queue of 128 descriptors
SEG_MAX, BLK_SIZE, FLUSH = 1 << 2, 1 << 6, 1 << 9  # feature bits
IN, OUT, SYNC, GET_ID = 0, 1, 4, 8  # request types
OK, IO_ERROR, UNSUPPORTED = 0, 1, 2
CONFIGURATION = struct.Struct("<QIIHBBI")  # virtio_blk_config, up to and including blk_size
NAME = b"kinst".ljust(20, b"\0")


class VirtioBlock(VirtioDevice):
    """Virtio block device.

    A reset by the driver does not change the content of the disk.

    :param content: the disk image, a whole number of sectors.
    :param capacity: size of the disk in bytes, which reads as zeros behind the content; None: the
        size of the content.
    """

    TYPE, QUEUES, LATENCY = 2, 1, LATENCY
    FEATURES = SEG_MAX | BLK_SIZE | FLUSH

    def __init__(self, bus: Bus, name: str, content: Content, line: Line,
                 capacity: int | None = None) -> None:
        self._capacity = len(content) if capacity is None else capacity
        super().__init__(bus, name, line, CONFIGURATION.pack(
            self._capacity // SECTOR, 0, MAX_SEGMENTS, 0, 0, 0, SECTOR))
        self._content = content
        self._written: dict[int, bytes] = {}  # changed blocks, keyed by block number
        self._shown: dict[str, str] = {}  # the changed blocks, as saved in snapshots

    # -- requests ---------------------------------------------------------------------------------

    def work(self) -> None:
        queue = self.queues[0]
        try:
            chain = queue.take()
            if chain is None:
                return
            written = self._carry_out(chain)
            if queue.give(chain.head, written):
                self.interrupt()
            if queue.waiting():
                self._timer.set(self._bus.now + LATENCY + len(chain.readable) + written)
        except (QueueError, MemoryAccessError) as error:
            self.fail(error)

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
        if size % SECTOR or sector * SECTOR + size > self._capacity:
            return b"", IO_ERROR
        return act(sector * SECTOR, size), OK

    def _fill(self, chain: Chain, data: bytes, status: int) -> int:
        """Write a request's data, zero-padded, followed by the status in the last writable byte.

        :return: number of bytes written to the chain.
        """
        room = sum(length for _address, length in chain.writable)
        padded = data.ljust(room - 1, b"\0") if data else b""
        self.fill(chain.writable, padded)
        address, length = chain.writable[-1]
        self._bus.write_memory(address + length - 1, bytes((status,)))
        return len(padded) + 1

    def content(self, at: int, size: int) -> bytes:
        """Return bytes of the disk, including changes by the guest."""
        original = bytes(self._content[at : at + size]).ljust(size, b"\0")
        changed = [(number * BLOCK, self._written[number])
                   for number in range(at // BLOCK, (at + size + BLOCK - 1) // BLOCK)
                   if number in self._written]
        if not changed:
            return original
        content = bytearray(original)
        for base, block in changed:
            begin, end = max(base, at), min(base + len(block), at + size)
            content[begin - at : end - at] = block[begin - base : end - base]
        return bytes(content)

    def _store(self, at: int, data: bytes) -> bytes:
        end = at + len(data)
        for block_number in range(at // BLOCK, (end + BLOCK - 1) // BLOCK):
            base = block_number * BLOCK
            size = min(BLOCK, self._capacity - base)
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
        return super().state() | {"written": dict(sorted(self._shown.items()))}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        written = state["written"]
        if not isinstance(written, dict):
            raise ValueError("the saved state of a disk is invalid")
        blocks = {}
        for key, text in written.items():
            block_number, block = int(key), bytes.fromhex(text)
            left = self._capacity - block_number * BLOCK
            if (block_number < 0 or left <= 0 or len(block) != min(BLOCK, left)
                    or str(block_number) != key):
                raise ValueError("the saved state of a disk contains an invalid block")
            blocks[block_number] = block
        self._written, self._shown = {}, {}
        for block_number, block in blocks.items():
            self._keep(block_number, block)
