"""A client of the gdb remote serial protocol (gdb manual, appendix "Remote Protocol")."""

import socket
from pathlib import Path

from emu.errors import MachineError

LIMIT = 1 << 20  # bytes of a reply


class GdbRemote:
    """A connection to a stub, as QEMU has one; the target stands still.

    :param path: of the stub's Unix socket.
    :param patience: seconds to wait for a reply.
    :raises MachineError: when nobody answers, or not in the protocol.
    """

    def __init__(self, path: Path, patience: float = 60) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(patience)
        self._buffer = bytearray()
        try:
            self._socket.connect(str(path))
        except OSError as error:
            raise MachineError(f"{path}: no gdb stub: {error.strerror or error}") from None
        self.ask("qSupported")
        self.ask("qXfer:features:read:target.xml:0,ff0")  # single registers only after this (QEMU)
        self.ask("?")

    def close(self) -> None:
        self._socket.close()

    def send(self, text: str) -> None:
        """A packet, without waiting for what it does."""
        data = text.encode()
        self._write(b"$%s#%02x" % (data, sum(data) & 0xFF))

    def _write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise MachineError(f"the gdb stub is gone: {error.strerror or error}") from None

    def receive(self) -> str:
        """The next packet."""
        while True:
            start = self._buffer.find(b"$")
            end = self._buffer.find(b"#", start + 1) if start >= 0 else -1
            if end >= 0 and len(self._buffer) >= end + 3:
                data = bytes(self._buffer[start + 1 : end])
                del self._buffer[: end + 3]
                self._write(b"+")
                return data.decode("ascii", "replace")
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
        reply = self.receive()
        while reply[:1] in ("T", "S") and text not in ("?", "s", "c"):
            reply = self.receive()  # said late: that the target stopped for us
        if not reply or (reply[0] == "E" and len(reply) == 3):
            raise MachineError(f"the gdb stub refuses {text[:40]!r}: {reply or 'unknown'}")
        return reply

    def read_register(self, number: int) -> int:
        reply = self.ask(f"p{number:x}")
        try:
            return int.from_bytes(bytes.fromhex(reply), "little")
        except ValueError:
            raise MachineError(f"the gdb stub says {reply[:40]!r} for a register") from None

    def write_register(self, number: int, value: int) -> None:
        self.ask(f"P{number:x}={value.to_bytes(8, 'little').hex()}")

    def write(self, address: int, data: bytes) -> None:
        self.ask(f"M{address:x},{len(data):x}:{data.hex()}")

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
