"""PCI configuration mechanism 1 (PCI Local Bus specification, 3.2.2.3.2), and what is on the
bus."""

import struct
from collections.abc import Sequence
from typing import Any, ClassVar

from emu.devices.device import Bus, Device, number

ADDRESS, DATA = 0, 4
ACCESS_COST = 500  # ns
ENABLED = 1 << 31
HEADER = 64  # bytes of configuration space that a function has
COMMAND, BASE, LINE = 0x04, 0x10, 0x3C
IO_SPACE = 1  # of the command register, and a base address register of ports
BRIDGE = 0x060000  # class code: a host bridge
INTEL, HOST = 0x8086, 0x1237


class PciFunction(Device):
    """A function of the bus: its configuration space (6.1), and ports where its first base address
    register has them."""

    STATE: ClassVar[tuple[str, ...]] = ("command", "base", "line")
    size = HEADER
    ports = 0  # bytes of its base address register; a power of two

    def __init__(self, vendor: int, device: int, kind: int, subsystem: tuple[int, int] = (0, 0),
                 base: int = 0, interrupt: int = 0) -> None:
        """:param kind: the class code; ``base`` and ``interrupt``: what firmware has set."""
        self.command = IO_SPACE if base else 0
        self.base, self.line = base, interrupt
        self._fixed = bytearray(HEADER)
        struct.pack_into("<HH", self._fixed, 0, vendor, device)
        self._fixed[9:12] = kind.to_bytes(3, "little")
        struct.pack_into("<HH", self._fixed, 0x2C, *subsystem)
        self._fixed[0x3D] = int(interrupt != 0)  # pin A

    def read(self, offset: int, size: int) -> int:
        space = bytearray(self._fixed)
        struct.pack_into("<H", space, COMMAND, self.command)
        if self.ports:
            struct.pack_into("<I", space, BASE, self.base | IO_SPACE)
        space[LINE] = self.line
        return int.from_bytes(space[offset : offset + size], "little")

    def write(self, offset: int, size: int, value: int) -> None:
        if offset == COMMAND:
            self.command = value & 0x0407
        elif offset == BASE and size == 4 and self.ports:
            self.base = value & 0xFFFF & -self.ports
        elif offset == LINE:
            self.line = value & 0xFF

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        for name, end in (("command", 1 << 16), ("base", 1 << 16), ("line", 1 << 8)):
            number(state[name], end)

    def read_port(self, offset: int, size: int) -> int:
        return (1 << 8 * size) - 1

    def write_port(self, offset: int, size: int, value: int) -> None:
        """Most have none."""

    def offset_of(self, port: int) -> int | None:
        """Which of its ports a port is."""
        if self.ports and self.command & IO_SPACE and 0 <= port - self.base < self.ports:
            return port - self.base
        return None


class PciConfiguration(Device):
    """Ports CF8h (address) and CFCh (data); where no device is, which may be everywhere, all reads
    as ones.

    :param functions: function 0 of the devices 1, 2, ... of bus 0.  Where there is one, device 0 is
        a host bridge.
    """

    STATE = ("address",)
    size = 8

    def __init__(self, bus: Bus, functions: Sequence[PciFunction] = ()) -> None:
        self._bus = bus
        self.address = 0
        self._functions = (PciFunction(INTEL, HOST, BRIDGE), *functions) if functions else ()

    def _addressed(self) -> PciFunction | None:
        """Bits of the address: 31 enabled, 23:16 bus, 15:11 device, 10:8 function, 7:2 register."""
        device = self.address >> 11 & 31
        if (not self.address & ENABLED or self.address & 0xFF0700
                or device >= len(self._functions)):
            return None
        return self._functions[device]

    def read(self, offset: int, size: int) -> int:
        self._bus.spend(ACCESS_COST)
        if offset < DATA and size == 4:
            return self.address
        found = self._addressed() if offset >= DATA else None
        if found is None:
            return (1 << 8 * size) - 1
        register = (self.address & 0xFC) + offset - DATA
        return found.read(register, size) if register < HEADER else 0

    def write(self, offset: int, size: int, value: int) -> None:
        self._bus.spend(ACCESS_COST)
        if offset == ADDRESS and size == 4:
            self.address = value & 0x80FFFFFC
        elif offset >= DATA and (found := self._addressed()) is not None:
            found.write((self.address & 0xFC) + offset - DATA, size, value)

    def port(self, port: int) -> tuple[PciFunction, int] | None:
        """The function that has a port, and which of its ports it is."""
        for function in self._functions:
            offset = function.offset_of(port)
            if offset is not None:
                return function, offset
        return None

    def state(self) -> dict[str, Any]:
        """With the functions', where there are some."""
        if not self._functions:
            return super().state()
        return super().state() | {
            "functions": {str(i): one.state() for i, one in enumerate(self._functions)}}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        number(state["address"], 1 << 32)
        for i, one in enumerate(self._functions):
            one.restore(state["functions"][str(i)])
