"""CPU registers as read from QEMU's gdb stub, cached until the CPU runs."""

from emu.arch.arch import Arch
from emu.host.errors import MachineError
from emu.qemu.board import QemuBoard
from emu.qemu.gdb_remote import GdbRemote, TargetRegister


class QemuRegisters:
    """Access to the stub's registers through the architecture's register names.

    :raises MachineError: if the stub's register data is inconsistent.
    """

    def __init__(self, gdb: GdbRemote, board: QemuBoard, arch: Arch) -> None:
        self._gdb, self._board, self._arch = gdb, board, arch
        self._values: dict[str, int] = {}  # cached values, keyed by the stub's register names
        self._found = {register.name: register for register in gdb.target_registers()}
        self._packet: list[TargetRegister] = []  # the registers of a g packet, in order
        self._packet_size = len(gdb.read_registers())
        at = 0
        for register in sorted(self._found.values(), key=lambda r: r.number):
            if at >= self._packet_size:
                break
            self._packet.append(register)
            at += register.size
        if at != self._packet_size:
            raise MachineError(f"the gdb stub's register packet ({self._packet_size} bytes) ends "
                               "in the middle of a register")

    def has(self, name: str) -> bool:
        """Return whether the stub has a register."""
        return any(spelling in self._found for spelling in self._board.spellings(name))

    def forget(self) -> None:
        """Discard cached values, because the CPU has run or will run."""
        self._values.clear()

    def read(self, name: str) -> int:
        """Return the value of a register.

        :raises MachineError: if the stub has no such register.
        """
        register = self._register(name)
        if register.name not in self._values:
            if register in self._packet:
                self._read_packet()
            else:
                self._values[register.name] = self._gdb.read_register(register)
        return self._values[register.name]

    def write(self, name: str, value: int) -> None:
        """Set a register; do nothing for a register that is always 0.

        :raises MachineError: if the stub has no such register.
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
            self.forget()  # a write to a system register may change other registers

    def _register(self, name: str) -> TargetRegister:
        for spelling in self._board.spellings(name):
            if spelling in self._found:
                return self._found[spelling]
        raise MachineError(f"{self._arch.name} on QEMU has no register '{name}'")

    def _read_packet(self) -> None:
        data, at = self._gdb.read_registers(), 0
        if len(data) != self._packet_size:
            raise MachineError(f"the gdb stub sent {len(data)} bytes of registers, not "
                               f"{self._packet_size} as before")
        for register in self._packet:
            self._values[register.name] = int.from_bytes(data[at : at + register.size], "little")
            at += register.size
