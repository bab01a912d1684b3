"""Virtio network device (Virtio 1.2, 5.1), without offloads.

The device handles the driver's buffers LATENCY ns after the driver's notification.
"""

import struct
from collections.abc import Callable
from typing import Any

from emu.devices.device import Bus, Line
from emu.devices.virtio_device import DRIVER_OK, VERSION_1, VirtioDevice
from emu.devices.virtio_queue import MAX_SIZE, QueueError
from emu.host.errors import MemoryAccessError
from emu.network.link import MAX_FRAME, MIN_FRAME, Link

MAC, STATUS = 1 << 5, 1 << 16  # feature bits
RECEIVE, TRANSMIT = 0, 1  # queues
LINK_UP = 1
HARDWARE = bytes.fromhex("525400000001")  # the device's Ethernet address
CONFIGURATION = struct.Struct("<6sH")  # virtio_net_config, up to and including status
LEGACY_HEADER, HEADER = 10, 12  # sizes in bytes of the header before each frame
LATENCY = 5_000
MAX_BACKLOG = 256  # maximum number of frames that wait for a buffer of the driver
Listener = Callable[[int, bytes], None]  # called with the virtual time and a frame


class VirtioNet(VirtioDevice):
    """Virtio network device at one end of a link.

    Frames that reach it while the driver has no buffer wait; frames that reach a device without a
    driver, or a full backlog, are lost.

    :ivar listener: called with each frame that the guest sends or receives; not part of the state.
    """

    TYPE, QUEUES, LATENCY = 1, 2, LATENCY
    FEATURES = MAC | STATUS

    def __init__(self, bus: Bus, name: str, link: Link, line: Line) -> None:
        super().__init__(bus, name, line, CONFIGURATION.pack(HARDWARE, LINK_UP))
        self._link = link
        self._backlog: list[bytes] = []
        self.listener: Listener | None = None

    def schedule(self, when: int, frame: bytes) -> None:
        """Let a frame arrive at the device at a virtual time in nanoseconds.

        The frame must have the size of an Ethernet frame.
        """
        self._link.schedule(when, frame)
        self._wake()

    @property
    def used(self) -> bool:
        """Whether the guest's state may depend on the files that the network's peer offers."""
        return self._link.used

    def stop(self) -> None:
        super().stop()
        self._backlog.clear()
        self._wake()

    def _wake(self) -> None:
        """Set the timer to the time of the link, if that is earlier."""
        when = min(self._timer.when, self._link.next)
        if when != self._timer.when:
            self._timer.set(when)

    def work(self) -> None:
        now = self._bus.now
        running = self.status & DRIVER_OK and not self.trouble
        try:
            if running:
                self._transmit(now)
            arrived = self._link.arrive(now)
            if running:
                self._backlog += arrived[: MAX_BACKLOG - len(self._backlog)]
                self._receive(now)
        except (QueueError, MemoryAccessError) as error:
            self.fail(error)
        self._wake()

    @property
    def _header(self) -> int:
        return HEADER if self.features & VERSION_1 else LEGACY_HEADER

    def _transmit(self, now: int) -> None:
        """Send all frames that the driver has made available."""
        queue, interrupt = self.queues[TRANSMIT], False
        for _ in range(MAX_SIZE):
            chain = queue.take()
            if chain is None:
                break
            frame = chain.readable[self._header :]
            if MIN_FRAME <= len(frame) <= MAX_FRAME:
                if self.listener is not None:
                    self.listener(now, frame)
                self._link.send(frame, now)
            interrupt |= queue.give(chain.head, 0)
        if interrupt:
            self.interrupt()

    def _receive(self, now: int) -> None:
        """Put frames into the driver's buffers; a frame that does not fit into its buffer is lost.

        The header says that the frame uses one buffer and no offloads.
        """
        queue, interrupt = self.queues[RECEIVE], False
        while self._backlog and (chain := queue.take()) is not None:
            frame = self._backlog.pop(0)
            header = bytes(LEGACY_HEADER) + (b"\1\0" if self._header == HEADER else b"")
            fits = len(header) + len(frame) <= sum(length for _address, length in chain.writable)
            if fits:
                if self.listener is not None:
                    self.listener(now, frame)
                self.fill(chain.writable, header + frame)
            interrupt |= queue.give(chain.head, len(header) + len(frame) if fits else 0)
        if interrupt:
            self.interrupt()

    # -- snapshots --------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return super().state() | {"backlog": [frame.hex() for frame in self._backlog],
                                  "link": self._link.state()}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        backlog = [bytes.fromhex(frame) for frame in state["backlog"]]
        if len(backlog) > MAX_BACKLOG or not all(
                MIN_FRAME <= len(frame) <= MAX_FRAME for frame in backlog):
            raise ValueError("the saved state of a network device is invalid")
        self._link.restore(state["link"])
        self._backlog = backlog
