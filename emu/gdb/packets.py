"""Packets of the gdb remote serial protocol (gdb manual, appendix E, "Overview")."""

import select
import socket
from typing import IO

from emu.gdb.framing import first, framed, opened, unescaped
from emu.host.errors import KinstError

MAX_PACKET = 1 << 15  # bytes of one that is received
INTERRUPT = 0x03


class GdbError(KinstError):
    """The debugger cannot be served."""


class Gone(GdbError):
    """It has closed the connection."""


class Connection:
    """To a debugger: a connected socket, or a pair of files (of a pipe).

    :ivar acknowledges: packets are answered with ``+``, until both agree that they need not be.
    """

    def __init__(self, stream: socket.socket | tuple[IO[bytes], IO[bytes]]) -> None:
        self._socket = stream if isinstance(stream, socket.socket) else None
        self._files = None if isinstance(stream, socket.socket) else stream
        self._buffer = bytearray()
        self.acknowledges = True
        self._sent = b""

    def _receive(self, wait: bool) -> bool:
        """Take what has come; whether something had."""
        source = self._socket if self._socket is not None else self._files[0]  # type: ignore[index]
        if not wait and not select.select([source], [], [], 0)[0]:
            return False
        try:
            more = (self._socket.recv(1 << 16) if self._socket is not None
                    else self._files[0].read1(1 << 16))  # type: ignore
        except OSError as error:
            raise Gone(f"the debugger is gone: {error.strerror or error}") from None
        if not more:
            raise Gone("the debugger has closed the connection")
        self._buffer += more
        return True

    def _write(self, data: bytes) -> None:
        try:
            if self._socket is not None:
                self._socket.sendall(data)
            else:
                self._files[1].write(data)  # type: ignore[index]
                self._files[1].flush()  # type: ignore[index]
        except OSError as error:
            raise Gone(f"the debugger is gone: {error.strerror or error}") from None

    def send(self, content: bytes) -> None:
        self._sent = framed(content)
        self._write(self._sent)

    def interrupted(self) -> bool:
        """Whether the debugger wants the running target to stop."""
        while self._receive(False):
            if len(self._buffer) > MAX_PACKET:
                raise GdbError(f"the debugger says more than {MAX_PACKET} bytes at once")
        if INTERRUPT in self._buffer and b"$" not in self._buffer:
            self._buffer.clear()
            return True
        return False

    def packet(self) -> bytes:
        """The next packet.  An interrupt finds the target standing still: it asks for nothing.

        :raises Gone: when the connection ends.
        """
        while True:
            found = self._next()
            if found is not None:
                return found
            if len(self._buffer) > MAX_PACKET:
                raise GdbError(f"the debugger says more than {MAX_PACKET} bytes at once")
            self._receive(True)

    def _next(self) -> bytes | None:
        while self._buffer:
            if self._buffer[0] == ord("-") and self._sent:
                self._write(self._sent)
            if self._buffer[0] != ord("$"):
                del self._buffer[0]
                continue
            place = first(self._buffer)
            if place is None:
                return None
            content, fits = opened(self._buffer[: place[1]])
            del self._buffer[: place[1]]
            if not self.acknowledges:
                return unescaped(content)
            if fits:
                self._write(b"+")
                return unescaped(content)
            self._write(b"-")
        return None
