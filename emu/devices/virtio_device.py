"""The part of a virtio device that does not depend on its type or its transport (Virtio 1.2, 2).

A device handles its queues in timer callbacks, a fixed time after the driver's notification.
"""

from abc import abstractmethod
from typing import Any, ClassVar

from emu.devices.device import Bus, Device, Line, number
from emu.devices.virtio_queue import QueueError, VirtQueue
from emu.host.errors import MemoryAccessError

DRIVER_OK, NEEDS_RESET = 4, 0x40  # bits of the device status
QUEUE_INTERRUPT, CONFIGURATION_INTERRUPT = 1, 2
VERSION_1 = 1 << 32  # feature bit that only a modern transport offers


class VirtioDevice(Device):
    """Virtio device; its registers form the device's configuration space.

    A transport also uses its queues and its attributes ``status``, ``features`` and ``interrupts``.

    :cvar TYPE: device type (Virtio 1.2, 5).
    :cvar FEATURES: offered feature bits.
    :cvar QUEUES: number of queues.
    :cvar LATENCY: time in ns from a notification to ``work``.
    :param name: unique name of the device's timer.
    :ivar trouble: how the driver has violated the specification, or an empty string.
    """

    TYPE: ClassVar[int]
    FEATURES: ClassVar[int]
    QUEUES: ClassVar[int]
    LATENCY: ClassVar[int]
    STATE: ClassVar[tuple[str, ...]] = ("status", "features", "interrupts")

    def __init__(self, bus: Bus, name: str, line: Line, configuration: bytes) -> None:
        self._bus, self._line = bus, line
        self._timer = bus.timer(name, self.work)
        self._configuration, self.size = configuration, len(configuration)
        self.status = self.features = self.interrupts = 0
        self.trouble = ""
        self.queues = tuple(VirtQueue(bus) for _ in range(self.QUEUES))

    # -- interface for transports -----------------------------------------------------------------

    def reset(self) -> None:
        """Reset the device at the driver's request."""
        self.status = self.features = 0
        self.trouble = ""
        for queue in self.queues:
            queue.reset()
        self.stop()
        self.acknowledge(~0)

    def notify(self, queue: int) -> None:
        """Handle the driver's notification that buffers are available in a queue."""
        if self.status & DRIVER_OK and not self.trouble and queue < len(self.queues):
            self._timer.set(min(self._timer.when, self._bus.now + self.LATENCY))

    def queue(self, number: int) -> VirtQueue | None:
        """Return a queue, or None if it does not exist."""
        return self.queues[number] if number < len(self.queues) else None

    def acknowledge(self, interrupts: int) -> None:
        """Clear interrupt causes, and lower the interrupt line if no cause remains."""
        self.interrupts &= ~interrupts
        self._line.set(self.interrupts != 0)

    def read(self, offset: int, size: int) -> int:
        return int.from_bytes(self._configuration[offset : offset + size], "little")

    def write(self, offset: int, size: int, value: int) -> None:
        """Ignore a write: the configuration space is read-only."""

    # -- for the types of devices -----------------------------------------------------------------

    @abstractmethod
    def work(self) -> None:
        """Handle the buffers that the driver has made available."""

    def stop(self) -> None:
        """Forget work in progress, because the device is reset."""
        self._timer.cancel()

    def interrupt(self, cause: int = QUEUE_INTERRUPT) -> None:
        """Raise the interrupt line."""
        self.interrupts |= cause
        self._line.set(True)

    def fail(self, error: QueueError | MemoryAccessError) -> None:
        """Report a violation of the specification to the driver, which must reset the device."""
        self.trouble = str(error)
        self.status |= NEEDS_RESET
        self.interrupt(CONFIGURATION_INTERRUPT)

    def fill(self, writable: tuple[tuple[int, int], ...], data: bytes) -> None:
        """Write data to the beginning of a chain's buffers.

        :raises MemoryAccessError: if a buffer is not in RAM.
        """
        at = 0
        for address, length in writable:
            piece = data[at : at + length]
            if piece:
                self._bus.write_memory(address, piece)
            at += length

    # -- snapshots --------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        queues = {key: queue.state() for key, queue in zip(self._keys(), self.queues, strict=True)}
        return super().state() | queues | {"trouble": self.trouble}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        for name, end in (("status", 1 << 8), ("features", 1 << 64), ("interrupts", 4)):
            number(state[name], end)
        trouble, queues = state["trouble"], [state[key] for key in self._keys()]
        if not isinstance(trouble, str) or not all(
                isinstance(queue, list) and len(queue) == len(own.state())
                and all(type(one) is int and 0 <= one < 1 << 64 for one in queue)
                for own, queue in zip(self.queues, queues, strict=True)):
            raise ValueError("the saved state of a virtio device is invalid")
        for own, queue in zip(self.queues, queues, strict=True):
            own.restore(queue)
        self.trouble = trouble

    def _keys(self) -> list[str]:
        return ["queue", *(f"queue{i}" for i in range(1, self.QUEUES))]
