"""NS16550A serial port (National Semiconductor PC16550D data sheet, section 8).

Sending takes no time.  Registers are bytes at consecutive addresses.
"""

from emu.devices.device import Bus, Line
from emu.devices.serial_port import SerialPort

IER_RX, IER_THRE, IER_RLS, IER_MODEM = 1, 2, 4, 8
LSR_DATA, LSR_OVERRUN, LSR_THRE, LSR_TEMT = 1, 2, 0x20, 0x40
MCR_LOOPBACK, MCR_OUT2 = 0x10, 8
LCR_DLAB = 0x80
FIFO = 16


class Ns16550(SerialPort):
    """The serial ports of amd64 and riscv64."""

    STATE = ("ier", "fcr", "lcr", "mcr", "scratch", "divisor", "overrun", "thre", "fifo", "waiting")
    size = 8

    def __init__(self, bus: Bus, line: Line, needs_out2: bool = False,
                 name: str = "uart") -> None:
        super().__init__(bus, name)
        self._line = line
        self._needs_out2 = needs_out2
        self.ier = self.fcr = self.lcr = self.mcr = self.scratch = 0
        self.divisor = 1
        self.overrun = False
        self.thre = False
        self.fifo = bytearray()

    def receive(self, byte: int) -> bool:
        if self.mcr & MCR_LOOPBACK or len(self.fifo) >= (FIFO if self.fcr & 1 else 1):
            return False
        self.fifo.append(byte)
        self._update()
        return True

    def _identification(self) -> int:
        fifos = 0xC0 if self.fcr & 1 else 0
        if self.ier & IER_RLS and self.overrun:
            return fifos | 6
        if self.ier & IER_RX and self.fifo:
            return fifos | 4
        if self.ier & IER_THRE and self.thre:
            return fifos | 2
        return fifos | 1

    def _update(self) -> None:
        wired = not self._needs_out2 or bool(self.mcr & MCR_OUT2)
        self._line.set(wired and not self._identification() & 1)

    def read(self, offset: int, size: int) -> int:
        value = 0
        if offset == 0:
            if self.lcr & LCR_DLAB:
                return self.divisor & 0xFF
            if self.fifo:
                value = self.fifo.pop(0)
        elif offset == 1:
            return self.divisor >> 8 if self.lcr & LCR_DLAB else self.ier
        elif offset == 2:
            value = self._identification()
            if value & 0xF == 2:
                self.thre = False
        elif offset == 3:
            return self.lcr
        elif offset == 4:
            return self.mcr
        elif offset == 5:
            value = LSR_THRE | LSR_TEMT | (LSR_DATA if self.fifo else 0)
            if self.overrun:
                value |= LSR_OVERRUN
                self.overrun = False
        elif offset == 6:
            if self.mcr & MCR_LOOPBACK:  # loopback: DTR, RTS, OUT1, OUT2 drive DSR, CTS, RI, DCD
                m = self.mcr
                return (m & 1) << 5 | (m & 2) << 3 | (m & 4) << 4 | (m & 8) << 4
            # Carrier detect, data set ready, clear to send: all on, as if a terminal were connected
            return 0xB0
        elif offset == 7:
            return self.scratch
        self._update()
        return value

    def write(self, offset: int, size: int, value: int) -> None:
        value &= 0xFF
        if offset == 0:
            if self.lcr & LCR_DLAB:
                self.divisor = self.divisor & 0xFF00 | value
            elif self.mcr & MCR_LOOPBACK:
                if len(self.fifo) < (FIFO if self.fcr & 1 else 1):
                    self.fifo.append(value)
                else:
                    self.overrun = True
            else:
                self.output(value)
            self.thre = True
        elif offset == 1:
            if self.lcr & LCR_DLAB:
                self.divisor = self.divisor & 0xFF | value << 8
            else:
                if value & ~self.ier & IER_THRE:
                    self.thre = True
                self.ier = value & 0xF
        elif offset == 2:
            if (value ^ self.fcr) & 1 or value & 2:
                self.fifo.clear()
            self.fcr = value & 0xC9
        elif offset == 3:
            self.lcr = value
        elif offset == 4:
            self.mcr = value & 0x1F
        elif offset == 7:
            self.scratch = value
        self._update()
