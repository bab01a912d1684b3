"""What is typed at QEMU's console: it waits for the guest's reader.

QEMU's time is the host's, so a key pressed behind a prompt may arrive before the kernel has begun
to read: its interrupt handler then takes the byte, and drops it while no terminal is open.
"""

from emu.machine.machine import Machine

READER = "uart_cngetc"  # the kernel polls its console here: a byte, or -1


class Keyboard:
    """Bytes on their way to a guest: one for each time its reader took the one before.

    A guest without the kernel's reader gets all at once.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        reader = machine.image.symbols.find(READER)
        self._reader = None if reader is None else reader.address
        self._typed = bytearray()
        self._sent = False  # a byte that the reader has not taken yet
        self._back: tuple[int, int] | None = None  # the pc and sp with which the reader returns

    def type(self, data: bytes) -> bytes:
        """What goes to the guest at once."""
        if self._reader is None:
            return data
        self._typed += data
        return b""

    def places(self) -> set[int]:
        """Where the guest must be stopped for ``at``."""
        places = set[int]()
        if self._reader is not None and (self._typed or self._sent):
            places.add(self._reader)
        if self._back is not None:
            places.add(self._back[0])
        return places

    def at(self, pc: int) -> bytes:
        """The guest is at one of the places: what goes to it now."""
        machine, arch = self._machine, self._machine.arch
        if pc == self._reader and (self._typed or self._sent):
            self._back = arch.return_address(machine), arch.stack_after_return(machine)
            if not self._sent:
                self._sent = True
                data = bytes(self._typed[:1])
                del self._typed[:1]
                return data
        elif (pc, machine.sp) == self._back:
            self._back = None
            if machine.read_register(arch.result) & 0xFFFFFFFF != 0xFFFFFFFF:
                self._sent = False
        return b""
