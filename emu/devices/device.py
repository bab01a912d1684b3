"""The one interface of devices.

A device is given a ``Bus`` when it is made and answers reads and writes of its registers.  All
that a snapshot must keep of it is in the attributes named in ``STATE``.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from emu.machine.events import Timer

MAX_LIST = 4096


class Bus(Protocol):
    """What a device may ask of its machine."""

    @property
    def now(self) -> int:
        """Virtual nanoseconds."""

    def spend(self, nanoseconds: int) -> None:
        """Let virtual time pass: what a slow register access costs."""

    def timer(self, name: str, callback: Callable[[], None]) -> Timer:
        """Make an alarm."""

    def output(self, data: int) -> None:
        """One byte for the console."""

    def read_memory(self, address: int, size: int) -> bytes:
        """Read physical memory; only when a timer has run out.

        :raises MemoryAccessError: when the range is not RAM.
        """

    def write_memory(self, address: int, data: bytes) -> None:
        """Write to physical memory; only when a timer has run out.

        :raises MemoryAccessError: when the range is not RAM.
        """

    def interrupts_changed(self) -> None:
        """Tell that an interrupt line of the CPU may have changed."""


class Device(ABC):
    """A set of registers at ``size`` consecutive addresses."""

    STATE: ClassVar[tuple[str, ...]] = ()
    size: int

    @abstractmethod
    def read(self, offset: int, size: int) -> int:
        """The register at byte ``offset``, ``size`` bytes wide."""

    @abstractmethod
    def write(self, offset: int, size: int, value: int) -> None:
        """Set the register at byte ``offset``."""

    def kept(self) -> tuple[str, ...]:
        """The names of the attributes that a snapshot has of it."""
        return self.STATE

    def state(self) -> dict[str, Any]:
        """JSON-able state; bytes-like attributes as hexadecimal text."""
        return {
            name: {"hex": bytes(value).hex()} if isinstance(value, bytes | bytearray)
            else copy.deepcopy(value)  # it goes on changing in the device
            for name in self.kept()
            for value in (getattr(self, name),)
        }

    def keep(self) -> list[Any]:
        """What ``put_back`` takes: the same as ``state``, for memory only, and quicker."""
        return [copied(getattr(self, name)) for name in self.kept()]

    def put_back(self, kept: list[Any]) -> None:
        for name, value in zip(self.kept(), kept, strict=True):
            setattr(self, name, copied(value))

    def restore(self, state: dict[str, Any]) -> None:
        """Take on a state.

        :raises ValueError: when it is not one of such a device.
        :raises KeyError: when something is missing.
        """
        own = self.state()
        for name in self.kept():
            value = state[name]
            if not _alike(own[name], value):
                raise ValueError(f"{name} is not what it should be")
            if isinstance(value, dict) and "hex" in value:
                value = bytearray.fromhex(value["hex"])
            setattr(self, name, copy.deepcopy(value))


def copied(value: Any) -> Any:
    """A copy of what a device's state is made of, down to its numbers."""
    if isinstance(value, list):
        return [copied(item) for item in value] if value and not isinstance(value[0], int) \
            else value[:]
    if isinstance(value, dict):
        return {key: item if isinstance(item, int) else copied(item) for key, item in value.items()}
    return value[:] if isinstance(value, bytearray) else value


def number(value: object, end: int = 1 << 63) -> int:
    """A count of a state, from a file.

    :raises ValueError: when it is none below ``end``.
    """
    if type(value) is not int or not 0 <= value < end:
        raise ValueError("not a count of a state")
    return value


def _alike(own: object, other: object) -> bool:
    """Whether a value from a file has the shape of the device's own."""
    if isinstance(own, dict):
        return isinstance(other, dict) and own.keys() == other.keys() and all(
            _alike(own[key], other[key]) for key in own
        )
    if isinstance(own, list):
        if not isinstance(other, list) or len(other) > MAX_LIST:
            return False
        if own and isinstance(own[0], int | dict):
            return len(own) == len(other) and all(map(_alike, own, other))
        # A list that grows and shrinks: of numbers, or of pairs of numbers.
        return all(
            isinstance(item, int)
            or (isinstance(item, list) and len(item) == 2 and all(isinstance(i, int) for i in item))
            for item in other
        )
    if isinstance(own, str):
        return isinstance(other, str)
    return isinstance(own, int) and isinstance(other, int)


class Line:
    """An interrupt line from a device to a controller's input."""

    def __init__(self, sink: Callable[[int, bool], None], number: int) -> None:
        self._sink = sink
        self.number = number

    def set(self, level: bool) -> None:
        self._sink(self.number, level)

