"""The registers of a CPU that QEMU's gdb stub has; what was read is known until the CPU runs."""

from emu.arch.arch import Arch
from emu.host.errors import MachineError
from emu.qemu.board import QemuBoard
from emu.qemu.gdb_remote import GdbRemote, TargetRegister


class QemuRegisters:
    """Reads and writes registers by our names.

    :raises MachineError: when the stub's registers make no sense.
    """

    def __init__(self, gdb: GdbRemote, board: QemuBoard, arch: Arch) -> None:
        self._gdb, self._board, self._arch = gdb, board, arch
        self._values: dict[str, int] = {}  # by the stub's names
        self._found = {register.name: register for register in gdb.target_registers()}
        self._packet: list[TargetRegister] = []  # in the order in which one packet has them
        self._packet_size = len(gdb.read_registers())
        at = 0
        for register in sorted(self._found.values(), key=lambda r: r.number):
            if at >= self._packet_size:
                break
            self._packet.append(register)
            at += register.size
        if at != self._packet_size:
            raise MachineError(f"the gdb stub gives {self._packet_size} bytes of registers, the "
                               "last of which is not whole")

    def has(self, name: str) -> bool:
        """Whether the stub has a register of ours."""
        return any(spelling in self._found for spelling in self._board.spellings(name))

    def forget(self) -> None:
        """The CPU has run, or will."""
        self._values.clear()

    def read(self, name: str) -> int:
        """The value of a register.

        :raises MachineError: when the stub has no such register.
        """
        register = self._register(name)
        if register.name not in self._values:
            if register in self._packet:
                self._read_packet()
            else:
                self._values[register.name] = self._gdb.read_register(register)
        return self._values[register.name]

    def write(self, name: str, value: int) -> None:
        """Set a register; one that is always 0 stays so.

        :raises MachineError: when the stub has no such register.
        """
        if name in self._board.constants:
            return
        register = self._register(name)
        size = max(register.size, 8)
        value &= (1 << 8 * size) - 1
        if self._values.get(register.name) == value:
            return
        self._gdb.write_register(register.number, value, size)
        if name in self._arch.registers:
            self._values[register.name] = value
        else:
            self.forget()  # a system register may change what others read as

    def _register(self, name: str) -> TargetRegister:
        for spelling in self._board.spellings(name):
            if spelling in self._found:
                return self._found[spelling]
        raise MachineError(f"{self._arch.name} on QEMU has no register '{name}'")

    def _read_packet(self) -> None:
        data, at = self._gdb.read_registers(), 0
        if len(data) != self._packet_size:
            raise MachineError(f"the gdb stub gives {len(data)} bytes of registers, and gave "
                               f"{self._packet_size} before")
        for register in self._packet:
            self._values[register.name] = int.from_bytes(data[at : at + register.size], "little")
            at += register.size
