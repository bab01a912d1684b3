"""Common interface of all emulated devices.

A device receives a ``Bus`` when it is created, and handles reads and writes of its registers.  The
attributes named in ``STATE`` are everything that a snapshot has to save.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from emu.machine.events import Timer

MAX_LIST = 4096


class Bus(Protocol):
    """Services that a machine offers to its devices."""

    @property
    def now(self) -> int:
        """Current virtual time in nanoseconds."""

    def spend(self, nanoseconds: int) -> None:
        """Advance virtual time by the cost of a slow register access."""

    def timer(self, name: str, callback: Callable[[], None]) -> Timer:
        """Create a timer with a unique name."""

    def output(self, data: int) -> None:
        """Send a byte to the console."""

    def read_memory(self, address: int, size: int) -> bytes:
        """Read physical memory; allowed only in a timer callback.

        :raises MemoryAccessError: if the range is not RAM.
        """

    def check_memory(self, address: int, size: int) -> None:
        """Check that a range of physical memory is RAM.

        :raises MemoryAccessError: if it is not.
        """

    def write_memory(self, address: int, data: bytes) -> None:
        """Write physical memory; allowed only in a timer callback.

        :raises MemoryAccessError: if the range is not RAM.
        """

    def interrupts_changed(self) -> None:
        """Report that an interrupt line of the CPU may have changed."""


class Device(ABC):
    """A device: a set of registers at ``size`` consecutive addresses."""

    STATE: ClassVar[tuple[str, ...]] = ()
    size: int

    @abstractmethod
    def read(self, offset: int, size: int) -> int:
        """Read ``size`` bytes from the register at byte ``offset``."""

    @abstractmethod
    def write(self, offset: int, size: int, value: int) -> None:
        """Write ``size`` bytes to the register at byte ``offset``."""

    def kept(self) -> tuple[str, ...]:
        """Return the names of the attributes that a snapshot saves."""
        return self.STATE

    def state(self) -> dict[str, Any]:
        """Return the state as JSON-compatible values; bytes become hexadecimal text."""
        return {
            name: {"hex": bytes(value).hex()} if isinstance(value, bytes | bytearray)
            else copy.deepcopy(value)  # copied, because the device continues to modify the original
            for name in self.kept()
            for value in (getattr(self, name),)
        }

    def keep(self) -> list[Any]:
        """Return a copy of the state for ``put_back``, without converting the values."""
        return [copied(getattr(self, name)) for name in self.kept()]

    def put_back(self, kept: list[Any]) -> None:
        """Restore a state returned by ``keep``."""
        for name, value in zip(self.kept(), kept, strict=True):
            setattr(self, name, copied(value))

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state returned by ``state``; the state may come from an untrusted file.

        :raises ValueError: if the state does not fit this device.
        :raises KeyError: if an attribute is missing.
        """
        own = self.state()
        for name in self.kept():
            value = state[name]
            if not _alike(own[name], value):
                raise ValueError(f"the saved value of the device attribute {name} is invalid")
            if isinstance(value, dict) and "hex" in value:
                value = bytearray.fromhex(value["hex"])
            setattr(self, name, copy.deepcopy(value))


def copied(value: Any) -> Any:
    """Return a recursive copy of a value in a device's state."""
    if isinstance(value, list):
        return [copied(item) for item in value] if value and not isinstance(value[0], int) \
            else value[:]
    if isinstance(value, dict):
        return {key: item if isinstance(item, int) else copied(item) for key, item in value.items()}
    return value[:] if isinstance(value, bytearray) else value


def number(value: object, end: int = 1 << 63) -> int:
    """Check that a value from a file is a number from 0 to ``end - 1``, and return it.

    :raises ValueError: if the value is not such a number.
    """
    if type(value) is not int or not 0 <= value < end:
        raise ValueError("the saved state of a device contains an invalid number")
    return value


def _alike(own: object, other: object) -> bool:
    """Return whether a value from a file has the same structure as the device's current value."""
    if isinstance(own, dict):
        return isinstance(other, dict) and own.keys() == other.keys() and all(
            _alike(own[key], other[key]) for key in own
        )
    if isinstance(own, list):
        if not isinstance(other, list) or len(other) > MAX_LIST:
            return False
        if own and isinstance(own[0], int | dict):
            return len(own) == len(other) and all(map(_alike, own, other))
        # A list of numbers, or of pairs of numbers, may have any length up to MAX_LIST.
        return all(
            isinstance(item, int)
            or (isinstance(item, list) and len(item) == 2 and all(isinstance(i, int) for i in item))
            for item in other
        )
    if isinstance(own, str):
        return isinstance(other, str)
    return isinstance(own, int) and isinstance(other, int)


class Line:
    """Interrupt line from a device to an input of an interrupt controller."""

    def __init__(self, sink: Callable[[int, bool], None], number: int) -> None:
        self._sink = sink
        self.number = number

    def set(self, level: bool) -> None:
        """Set the level of the line."""
        self._sink(self.number, level)

