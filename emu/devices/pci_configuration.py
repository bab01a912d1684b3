"""PCI configuration mechanism 1 (PCI Local Bus specification, 3.2.2.3.2), and PCI functions."""

import struct
from collections.abc import Sequence
from typing import Any, ClassVar

from emu.devices.device import Bus, Device, number

ADDRESS, DATA = 0, 4
ACCESS_COST = 500  # cost of a register access in ns
ENABLED = 1 << 31
HEADER = 64  # size of a function's configuration space in bytes
COMMAND, BASE, LINE = 0x04, 0x10, 0x3C
IO_SPACE = 1  # I/O space bit of the command register and of base address registers
BRIDGE = 0x060000  # class code: a host bridge
INTEL, HOST = 0x8086, 0x1237


class PciFunction(Device):
    """PCI function: a configuration space (6.1), and optional I/O ports.

    The first base address register contains the address of the ports.

    :param kind: the class code.
    :param base: address of the ports, as set by firmware.
    :param interrupt: interrupt line, as set by firmware.
    """

    STATE: ClassVar[tuple[str, ...]] = ("command", "base", "line")
    size = HEADER
    ports = 0  # number of I/O ports, a power of two

    def __init__(self, vendor: int, device: int, kind: int, subsystem: tuple[int, int] = (0, 0),
                 base: int = 0, interrupt: int = 0) -> None:
        self.command = IO_SPACE if base else 0
        self.base, self.line = base, interrupt
        self._fixed = bytearray(HEADER)
        struct.pack_into("<HH", self._fixed, 0, vendor, device)
        self._fixed[9:12] = kind.to_bytes(3, "little")
        struct.pack_into("<HH", self._fixed, 0x2C, *subsystem)
        self._fixed[0x3D] = int(interrupt != 0)  # interrupt pin A

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
        """Read ``size`` bytes from the I/O ports at an offset; by default, return all ones."""
        return (1 << 8 * size) - 1

    def write_port(self, offset: int, size: int, value: int) -> None:
        """Write ``size`` bytes to the I/O ports at an offset; by default, ignore the write."""

    def offset_of(self, port: int) -> int | None:
        """Return the offset of a port among this function's I/O ports, or None for other ports."""
        if self.ports and self.command & IO_SPACE and 0 <= port - self.base < self.ports:
            return port - self.base
        return None


class PciConfiguration(Device):
    """PCI configuration ports CF8h (address) and CFCh (data).

    The registers of a function that does not exist read as all ones.

    :param functions: function 0 of the devices 1, 2, ... on bus 0.  If there are any, device 0 is a
        host bridge; otherwise the bus is empty.
    """

    STATE = ("address",)
    size = 8

    def __init__(self, bus: Bus, functions: Sequence[PciFunction] = ()) -> None:
        self._bus = bus
        self.address = 0
        self._functions = (PciFunction(INTEL, HOST, BRIDGE), *functions) if functions else ()

    def _addressed(self) -> PciFunction | None:
        """Return the function that the address register selects, or None.

        The register's bits: 31 enabled, 23:16 bus, 15:11 device, 10:8 function, 7:2 register.
        """
        device = self.address >> 11 & 31
        if (not self.address & ENABLED or self.address & 0xFF0700
                or device >= len(self._functions)):
            return None
        return self._functions[device]

    def read(self, offset: int, size: int) -> int:
        self._bus.spend(ACCESS_COST)
        if offset < DATA and size == 4:
            return self.address
        function = self._addressed() if offset >= DATA else None
        if function is None:
            return (1 << 8 * size) - 1
        register = (self.address & 0xFC) + offset - DATA
        return function.read(register, size) if register < HEADER else 0

    def write(self, offset: int, size: int, value: int) -> None:
        self._bus.spend(ACCESS_COST)
        if offset == ADDRESS and size == 4:
            self.address = value & 0x80FFFFFC
        elif offset >= DATA and (function := self._addressed()) is not None:
            function.write((self.address & 0xFC) + offset - DATA, size, value)

    def port(self, port: int) -> tuple[PciFunction, int] | None:
        """Return (function, offset in its ports) for an I/O port, or None if the port is unused."""
        for function in self._functions:
            offset = function.offset_of(port)
            if offset is not None:
                return function, offset
        return None

    def state(self) -> dict[str, Any]:
        """Return the state of the configuration ports and of any functions."""
        if not self._functions:
            return super().state()
        return super().state() | {
            "functions": {str(i): function.state() for i, function in enumerate(self._functions)}}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        number(state["address"], 1 << 32)
        for i, function in enumerate(self._functions):
            function.restore(state["functions"][str(i)])
