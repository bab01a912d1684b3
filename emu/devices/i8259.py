"""The PC's two Intel 8259A interrupt controllers, which kernels mask because they use the APICs."""

from emu.devices.device import Device


class I8259(Device):
    """Intel 8259A interrupt controller that never raises an interrupt."""
    STATE = ("mask", "words")
    size = 2

    def __init__(self) -> None:
        self.mask = 0xFF
        self.words = 0  # number of initialization command words that are still expected

    def read(self, offset: int, size: int) -> int:
        return self.mask if offset else 0

    def write(self, offset: int, size: int, value: int) -> None:
        if offset == 0:
            if value & 0x10:
                self.words = 3 if value & 1 else 2
        elif self.words:
            self.words -= 1
        else:
            self.mask = value & 0xFF
