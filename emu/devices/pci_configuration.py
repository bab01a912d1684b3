"""PCI configuration mechanism 1 (PCI Local Bus specification, 3.2.2.3.2) over an empty bus."""

from emu.device import Bus, Device

ADDRESS, DATA = 0, 4
ACCESS_COST = 500  # ns


class PciConfiguration(Device):
    """Ports CF8h (address) and CFCh (data); no device answers, which reads as ones."""

    STATE = ("address",)
    size = 8

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.address = 0

    def read(self, offset: int, size: int) -> int:
        self._bus.spend(ACCESS_COST)
        if offset < DATA and size == 4:
            return self.address
        return (1 << 8 * size) - 1

    def write(self, offset: int, size: int, value: int) -> None:
        self._bus.spend(ACCESS_COST)
        if offset == ADDRESS and size == 4:
            self.address = value & 0x80FFFFFC
