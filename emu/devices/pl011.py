"""PrimeCell PL011 UART (ARM DDI 0183, chapter 3).  Sending takes no time."""

from emu.devices.device import Bus, Line
from emu.devices.serial_port import SerialPort

DR, FR, IBRD, FBRD, LCR_H, CR, IFLS = 0x00, 0x18, 0x24, 0x28, 0x2C, 0x30, 0x34
IMSC, RIS, MIS, ICR = 0x38, 0x3C, 0x40, 0x44
FR_TXFE, FR_RXFF, FR_RXFE = 1 << 7, 1 << 6, 1 << 4
INT_RX, INT_TX, INT_RT = 1 << 4, 1 << 5, 1 << 6
IDENTIFICATION = bytes((0x11, 0x10, 0x14, 0x00, 0x0D, 0xF0, 0x05, 0xB1))
FIFO = 16


class Pl011(SerialPort):
    """The serial ports of arm64."""

    STATE = ("registers", "imsc", "raw", "fifo", "waiting")
    size = 0x1000

    def __init__(self, bus: Bus, line: Line, name: str = "uart") -> None:
        super().__init__(bus, name)
        self._line = line
        self.registers = {str(r): 0 for r in (IBRD, FBRD, LCR_H, CR, IFLS)}
        self.registers[str(CR)], self.registers[str(IFLS)] = 0x300, 0x12
        self.imsc = 0
        self.raw = 0
        self.fifo = bytearray()

    def receive(self, byte: int) -> bool:
        if len(self.fifo) >= self._depth:
            return False
        self.fifo.append(byte)
        self._update()
        return True

    @property
    def _depth(self) -> int:
        return FIFO if self.registers[str(LCR_H)] & 0x10 else 1

    def _update(self) -> None:
        self.raw = self.raw & ~(INT_RX | INT_RT) | (INT_RX | INT_RT if self.fifo else 0)
        self._line.set(bool(self.raw & self.imsc))

    def read(self, offset: int, size: int) -> int:
        if offset == DR:
            value = self.fifo.pop(0) if self.fifo else 0
            self._update()
            return value
        if offset == FR:
            return FR_TXFE | (0 if self.fifo else FR_RXFE) | (
                FR_RXFF if len(self.fifo) >= self._depth else 0
            )
        if offset == IMSC:
            return self.imsc
        if offset == RIS:
            return self.raw
        if offset == MIS:
            return self.raw & self.imsc
        if 0xFE0 <= offset < 0x1000:
            return IDENTIFICATION[(offset - 0xFE0) // 4]
        return self.registers.get(str(offset), 0)

    def write(self, offset: int, size: int, value: int) -> None:
        if offset == DR:
            self.output(value & 0xFF)
            self.raw |= INT_TX
        elif offset == IMSC:
            self.imsc = value & 0x7FF
        elif offset == ICR:
            self.raw &= ~value
        elif str(offset) in self.registers:
            self.registers[str(offset)] = value & 0xFFFF
        self._update()
