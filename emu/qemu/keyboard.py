"""Console input for QEMU; the guest receives one byte at a time when it reads the console.

QEMU runs in real time, so a key pressed after a prompt may arrive before the kernel begins to read.
The kernel's interrupt handler then takes the byte, and drops it while no terminal is open.
"""

from emu.machine.machine import Machine

READER = "uart_cngetc"  # the kernel's console poll function; it returns a byte or -1


class Keyboard:
    """Queue of input bytes; each is sent after the guest has read the previous one.

    If the guest does not have this reader function, all bytes are sent at once.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        reader = machine.image.symbols.find(READER)
        self._reader = None if reader is None else reader.address
        self._typed = bytearray()
        self._sent = False  # whether a byte was sent that the guest has not read yet
        # Values of pc and sp after the kernel's poll function returns.
        self._back: tuple[int, int] | None = None

    def type(self, data: bytes) -> bytes:
        """Queue input bytes; return those that must be sent to the guest at once."""
        if self._reader is None:
            return data
        self._typed += data
        return b""

    @property
    def left(self) -> bool:
        """Whether there are input bytes that the guest has not read yet."""
        return bool(self._typed or self._sent)

    def places(self) -> set[int]:
        """Return the addresses at which the guest must stop so that ``at`` can be called."""
        places = set[int]()
        if self._reader is not None and self.left:
            places.add(self._reader)
        if self._back is not None:
            places.add(self._back[0])
        return places

    def at(self, pc: int) -> bytes:
        """Return the input to send when the guest stops at one of the addresses of ``places``."""
        machine, arch = self._machine, self._machine.arch
        if pc == self._reader and self.left:
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
