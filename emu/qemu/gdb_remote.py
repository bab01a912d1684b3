"""Client for the gdb remote serial protocol (gdb manual, appendix "Remote Protocol")."""

import re
import socket
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from emu.gdb.framing import first, framed, opened, unescaped
from emu.host.errors import MachineError

LIMIT = 1 << 20  # maximum size in bytes of a reply, and of a file of the target description
PART = 0x7F0  # maximum number of bytes of a target description per request
MEMORY_PART = 1024  # maximum number of bytes of memory per packet
MAX_FILES = 64  # maximum number of files that a target description includes
MAX_REGISTERS = 1 << 16
MAX_NUMBER = 1 << 16  # upper limit (exclusive) of register numbers
MAX_SIZE = 1 << 12  # maximum size of a register in bytes
HEX = re.compile("[0-9a-fA-F]+")
INCLUDE = re.compile(r'<xi:include href="([^"]+)"')


@dataclass(frozen=True)
class TargetRegister:
    """A register in the stub's target description."""

    name: str
    number: int
    size: int  # size of the register in bytes


class GdbRemote:
    """Connection to a gdb stub, such as QEMU's; the stub's target is stopped.

    :param where: the path of the stub's Unix socket, or a socket connected to it.
    :param patience: seconds to wait for a reply.
    :raises MachineError: if the stub does not answer, or does not follow the protocol.
    """

    def __init__(self, where: Path | socket.socket, patience: float = 60) -> None:
        self._socket = socket.socket(socket.AF_UNIX) if isinstance(where, Path) else where
        self._socket.settimeout(patience)
        self._patience = patience
        self._buffer = bytearray()
        self._physical = False
        self._described = time.monotonic() + patience  # deadline for the target description
        try:
            if isinstance(where, Path):
                self._socket.connect(str(where))
        except OSError as error:
            raise MachineError(f"{where}: no gdb stub answers: {error.strerror or error}") from None
        self.ask("qSupported")
        # QEMU answers requests for single registers only after sending the target description.
        self._description = self._transfer("target.xml")
        self.ask("?")

    def fileno(self) -> int:
        """Return the socket's file descriptor, for ``select``."""
        return self._socket.fileno()

    @property
    def waiting(self) -> bool:
        """Whether a received packet is waiting to be read."""
        return first(self._buffer) is not None

    def _transfer(self, name: str) -> str:
        """Return a file of the target description."""
        text = ""
        while len(text) < LIMIT:
            if time.monotonic() > self._described:
                raise MachineError("the gdb stub did not complete its target description within "
                                   f"{self._patience:g} seconds")
            reply = self.ask(f"qXfer:features:read:{name}:{len(text):x},{PART:x}")
            text += reply[1:]
            if reply[0] == "l":
                return text
            if reply[0] != "m" or len(reply) == 1:  # "m" announces more data
                raise MachineError(f"the gdb stub answered {reply[:40]!r} to a request for "
                                   f"part of its {name[:40]!r}")
        raise MachineError(f"the gdb stub's {name[:40]!r} is longer than {LIMIT} bytes")

    def target_registers(self) -> list[TargetRegister]:
        """Return all registers of the stub, sorted by number.

        See the gdb manual, "Target Description Format".
        """
        registers: list[TargetRegister] = []
        number = 0
        names = INCLUDE.findall(self._description)  # QEMU's description is not well-formed XML
        self._described = time.monotonic() + self._patience
        if len(names) > MAX_FILES:
            raise MachineError("the gdb stub's target description includes more "
                               f"than {MAX_FILES} files")
        try:
            for name in names:
                for entry in ET.fromstring(self._transfer(name)).iter("reg"):
                    number = int(entry.get("regnum", number))
                    size = int(entry.attrib["bitsize"]) // 8
                    if not (0 <= number < MAX_NUMBER and 0 < size <= MAX_SIZE):
                        raise ValueError(f"register {number} ({size} bytes) is not supported")
                    registers.append(TargetRegister(entry.attrib["name"], number, size))
                    number += 1
                    if len(registers) > MAX_REGISTERS:
                        raise MachineError(f"the gdb stub describes more than {MAX_REGISTERS} "
                                           "registers")
        except (ET.ParseError, KeyError, ValueError) as error:
            raise MachineError(f"the gdb stub's target description is not valid: {error}") from None
        return sorted(registers, key=lambda r: r.number)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def send(self, text: str) -> None:
        """Send a packet without waiting for a reply."""
        self._write(framed(text.encode()))

    def _write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise MachineError("lost the connection to the gdb stub: "
                               f"{error.strerror or error}") from None

    def receive(self) -> str:
        """Return the next packet.

        :raises MachineError: if no packet arrives within ``patience`` seconds.
        """
        return self._received(time.monotonic() + self._patience)

    def _received(self, end: float) -> str:
        while True:
            place = first(self._buffer)
            if place is None:
                left = end - time.monotonic()
                if left <= 0:
                    raise MachineError("the gdb stub did not answer within "
                                       f"{self._patience:g} seconds")
                self._socket.settimeout(left)
                try:
                    self.hear()
                finally:
                    self._socket.settimeout(self._patience)
                continue
            content, fits = opened(self._buffer[place[0] : place[1]])
            del self._buffer[: place[1]]
            self._write(b"+" if fits else b"-")
            if fits:
                return unescaped(content).decode("ascii", "replace")

    def hear(self) -> None:
        """Wait for data if necessary, and receive it; the data may be only an acknowledgment."""
        try:
            more = self._socket.recv(1 << 16)
        except TimeoutError:
            raise MachineError("the gdb stub did not answer in time") from None
        except OSError as error:
            raise MachineError("lost the connection to the gdb stub: "
                               f"{error.strerror or error}") from None
        if not more:
            raise MachineError("the gdb stub closed the connection")
        if len(self._buffer) > LIMIT:
            raise MachineError(f"the gdb stub sent more than {LIMIT} bytes at once")
        self._buffer += more

    def ask(self, text: str) -> str:
        """Send a packet and return the reply.

        :raises MachineError: if the reply is an error, or the stub does not support the packet.
        """
        self.send(text)
        end = time.monotonic() + self._patience
        reply = self._received(end)
        while reply[:1] in ("T", "S") and text not in ("?", "s", "c"):
            reply = self._received(end)  # skip a late stop reply
        if not reply or (reply[0] == "E" and len(reply) == 3):
            raise MachineError(f"the gdb stub refused {text[:40]!r}: {reply or 'not supported'}")
        return reply

    def read_register(self, register: TargetRegister) -> int:
        """Return the value of a register.

        :raises MachineError: if the stub's answer is not a value of the register's size.
        """
        reply = self.ask(f"p{register.number:x}")
        if len(reply) != 2 * register.size or not HEX.fullmatch(reply):
            raise MachineError(f"the gdb stub sent an invalid value of register "
                               f"{register.name[:40]!r}: {reply[:40]!r}")
        return int.from_bytes(bytes.fromhex(reply), "little")

    def write_register(self, number: int, value: int, size: int = 8) -> None:
        """Set the register with a given number; its size is ``size`` bytes."""
        self.ask(f"P{number:x}={value.to_bytes(size, 'little').hex()}")

    def read_registers(self) -> bytes:
        """Return the bytes of the registers that the stub sends in reply to a ``g`` packet.

        :raises MachineError: if the value of a register is missing.
        """
        reply = self.ask("g")
        # The gdb protocol represents unavailable values with x digits
        if len(reply) % 2 or not HEX.fullmatch(reply):
            raise MachineError("the gdb stub sent an invalid reply to a request for the "
                               f"registers: {reply[:40]!r}")
        return bytes.fromhex(reply)

    def write(self, address: int, data: bytes) -> None:
        """Write memory at a virtual address, or at a physical address after ``physical(True)``."""
        for at in range(0, len(data), MEMORY_PART):
            part = data[at : at + MEMORY_PART]
            self.ask(f"M{address + at:x},{len(part):x}:{part.hex()}")

    def physical(self, wanted: bool) -> None:
        """Select physical or virtual addresses for memory packets (QEMU extension)."""
        if wanted != self._physical:
            self.ask(f"Qqemu.PhyMemMode:{wanted:d}")
            self._physical = wanted

    def interrupt(self) -> None:
        """Stop the running target, which then sends a stop reply."""
        self._write(b"\x03")

    def insert(self, address: int, kind: int) -> None:
        """Insert a software breakpoint; ``kind`` is usually the instruction's length in bytes."""
        self.ask(f"Z0,{address:x},{kind}")

    def remove(self, address: int, kind: int) -> None:
        """Remove a software breakpoint."""
        self.ask(f"z0,{address:x},{kind}")

    def step(self) -> str:
        """Execute one instruction and return the stop reply."""
        return self.ask("s")

    def go(self) -> str:
        """Continue until the target stops, and return the stop reply."""
        return self.ask("c")
