"""A client of the gdb remote serial protocol (gdb manual, appendix "Remote Protocol")."""

import re
import socket
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from emu.gdb.framing import first, framed, opened, unescaped
from emu.host.errors import MachineError

LIMIT = 1 << 20  # bytes of a reply, and of a file of the target description
PART = 0x7F0  # bytes of a target description asked for at once
MEMORY_PART = 1024  # bytes of memory a packet
MAX_FILES = 64  # that a target description includes
MAX_REGISTERS = 1 << 16
MAX_NUMBER = 1 << 16  # of a register
MAX_SIZE = 1 << 12  # bytes of a register
HEX = re.compile("[0-9a-fA-F]+")
INCLUDE = re.compile(r'<xi:include href="([^"]+)"')


@dataclass(frozen=True)
class TargetRegister:
    """A register as the stub's target description has it."""

    name: str
    number: int
    size: int  # bytes


class GdbRemote:
    """A connection to a stub, as QEMU has one; the target stands still.

    :param where: the path of the stub's Unix socket, or a socket connected to it.
    :param patience: seconds to wait for a reply.
    :raises MachineError: when nobody answers, or not in the protocol.
    """

    def __init__(self, where: Path | socket.socket, patience: float = 60) -> None:
        self._socket = socket.socket(socket.AF_UNIX) if isinstance(where, Path) else where
        self._socket.settimeout(patience)
        self._patience = patience
        self._buffer = bytearray()
        self._physical = False
        self._described = time.monotonic() + patience  # when the target description is there
        try:
            if isinstance(where, Path):
                self._socket.connect(str(where))
        except OSError as error:
            raise MachineError(f"{where}: no gdb stub: {error.strerror or error}") from None
        self.ask("qSupported")
        # Single registers can be asked for only after this (QEMU).
        self._description = self._transfer("target.xml")
        self.ask("?")

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def waiting(self) -> bool:
        """Whether a packet was received that nobody has asked for yet."""
        return first(self._buffer) is not None

    def _transfer(self, name: str) -> str:
        """A file of the target description."""
        text = ""
        while len(text) < LIMIT:
            if time.monotonic() > self._described:
                raise MachineError("the gdb stub does not come to the end of its target "
                                   f"description within {self._patience:g} seconds")
            reply = self.ask(f"qXfer:features:read:{name}:{len(text):x},{PART:x}")
            text += reply[1:]
            if reply[0] == "l":
                return text
            if reply[0] != "m" or len(reply) == 1:  # "m" promises more, and must bring some
                raise MachineError(f"the gdb stub says {reply[:40]!r} for a part of its "
                                   f"{name[:40]!r}")
        raise MachineError(f"the gdb stub's {name[:40]!r} has more than {LIMIT} bytes")

    def target_registers(self) -> list[TargetRegister]:
        """All registers the stub knows, in the order of their numbers (gdb manual, "Target
        Description Format")."""
        found: list[TargetRegister] = []
        number = 0
        names = INCLUDE.findall(self._description)  # QEMU's is not well-formed XML
        self._described = time.monotonic() + self._patience
        if len(names) > MAX_FILES:
            raise MachineError("the gdb stub's target description includes too many files")
        try:
            for name in names:
                for entry in ET.fromstring(self._transfer(name)).iter("reg"):
                    number = int(entry.get("regnum", number))
                    size = int(entry.attrib["bitsize"]) // 8
                    if not (0 <= number < MAX_NUMBER and 0 < size <= MAX_SIZE):
                        raise ValueError(f"register {number} of {size} bytes")
                    found.append(TargetRegister(entry.attrib["name"], number, size))
                    number += 1
                    if len(found) > MAX_REGISTERS:
                        raise MachineError("the gdb stub has too many registers")
        except (ET.ParseError, KeyError, ValueError) as error:
            raise MachineError(f"the gdb stub's target description: {error}") from None
        return sorted(found, key=lambda r: r.number)

    def close(self) -> None:
        self._socket.close()

    def send(self, text: str) -> None:
        """A packet, without waiting for what it does."""
        self._write(framed(text.encode()))

    def _write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise MachineError(f"the gdb stub is gone: {error.strerror or error}") from None

    def receive(self) -> str:
        """The next packet.

        :raises MachineError: when none comes within ``patience``.
        """
        return self._received(time.monotonic() + self._patience)

    def _received(self, end: float) -> str:
        while True:
            place = first(self._buffer)
            if place is None:
                left = end - time.monotonic()
                if left <= 0:
                    raise MachineError("the gdb stub gives no answer within "
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
        """Take what has come, or wait for something; it need not be a packet (acknowledgements)."""
        try:
            more = self._socket.recv(1 << 16)
        except TimeoutError:
            raise MachineError("the gdb stub fell silent") from None
        except OSError as error:
            raise MachineError(f"the gdb stub is gone: {error.strerror or error}") from None
        if not more:
            raise MachineError("the gdb stub closed the connection")
        if len(self._buffer) > LIMIT:
            raise MachineError(f"the gdb stub says more than {LIMIT} bytes at once")
        self._buffer += more

    def ask(self, text: str) -> str:
        """A packet and its reply.

        :raises MachineError: when the reply is an error, or the stub does not know the packet.
        """
        self.send(text)
        end = time.monotonic() + self._patience
        reply = self._received(end)
        while reply[:1] in ("T", "S") and text not in ("?", "s", "c"):
            reply = self._received(end)  # said late: that the target stopped for us
        if not reply or (reply[0] == "E" and len(reply) == 3):
            raise MachineError(f"the gdb stub refuses {text[:40]!r}: {reply or 'unknown'}")
        return reply

    def read_register(self, register: TargetRegister) -> int:
        """The value of a register.

        :raises MachineError: when the stub's answer is not a value of the register's size.
        """
        reply = self.ask(f"p{register.number:x}")
        if len(reply) != 2 * register.size or not HEX.fullmatch(reply):
            raise MachineError(f"the gdb stub says {reply[:40]!r} for register "
                               f"{register.name[:40]!r}")
        return int.from_bytes(bytes.fromhex(reply), "little")

    def write_register(self, number: int, value: int, size: int = 8) -> None:
        self.ask(f"P{number:x}={value.to_bytes(size, 'little').hex()}")

    def read_registers(self) -> bytes:
        """The registers of the ``g`` packet, one after the other; which ones, the stub chooses.

        :raises MachineError: when the stub does not give all of them.
        """
        reply = self.ask("g")
        if len(reply) % 2 or not HEX.fullmatch(reply):  # gdb allows x for what is not known
            raise MachineError(f"the gdb stub says {reply[:40]!r} for the registers")
        return bytes.fromhex(reply)

    def write(self, address: int, data: bytes) -> None:
        """Memory; virtual, or physical after ``physical``."""
        for at in range(0, len(data), MEMORY_PART):
            part = data[at : at + MEMORY_PART]
            self.ask(f"M{address + at:x},{len(part):x}:{part.hex()}")

    def physical(self, wanted: bool) -> None:
        """Addresses are physical ones from now on, or virtual again (QEMU's own packet)."""
        if wanted != self._physical:
            self.ask(f"Qqemu.PhyMemMode:{wanted:d}")
            self._physical = wanted

    def interrupt(self) -> None:
        """Stop the running target; it says so with a packet."""
        self._write(b"\x03")

    def insert(self, address: int, kind: int) -> None:
        """A software breakpoint; ``kind`` is the architecture's, mostly its length."""
        self.ask(f"Z0,{address:x},{kind}")

    def remove(self, address: int, kind: int) -> None:
        self.ask(f"z0,{address:x},{kind}")

    def step(self) -> str:
        return self.ask("s")

    def go(self) -> str:
        """Continue until the target stops by itself."""
        return self.ask("c")
