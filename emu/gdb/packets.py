"""Packets of the gdb remote serial protocol (gdb manual, appendix E, "Overview")."""

import select
import socket
from typing import IO

from emu.gdb.framing import first, framed, opened, unescaped
from emu.host.errors import KinstError

MAX_PACKET = 1 << 15  # maximum size of a received packet in bytes
INTERRUPT = 0x03


class GdbError(KinstError):
    """Error in a debugger's connection or session."""


class Gone(GdbError):
    """Error raised if the connection to the debugger is lost."""


class Connection:
    """Connection to a debugger: a connected socket, or a pair of files such as pipes.

    :ivar acknowledges: whether packets are acknowledged with ``+``, as they are until both sides
        agree to stop.
    """

    def __init__(self, stream: socket.socket | tuple[IO[bytes], IO[bytes]]) -> None:
        self._socket = stream if isinstance(stream, socket.socket) else None
        self._files = None if isinstance(stream, socket.socket) else stream
        self._buffer = bytearray()
        self.acknowledges = True
        self._sent = b""

    def _receive(self, wait: bool) -> bool:
        """Receive data, and return whether any arrived."""
        source = self._socket if self._socket is not None else self._files[0]  # type: ignore[index]
        if not wait and not select.select([source], [], [], 0)[0]:
            return False
        try:
            more = (self._socket.recv(1 << 16) if self._socket is not None
                    else self._files[0].read1(1 << 16))  # type: ignore
        except OSError as error:
            raise Gone(f"lost the connection to the debugger: {error.strerror or error}") from None
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
            raise Gone(f"lost the connection to the debugger: {error.strerror or error}") from None

    def send(self, content: bytes) -> None:
        """Send a packet."""
        self._sent = framed(content)
        self._write(self._sent)

    def interrupted(self) -> bool:
        """Return whether the debugger wants the running target to stop."""
        while self._receive(False):
            if len(self._buffer) > MAX_PACKET:
                raise GdbError(f"the debugger sent more than {MAX_PACKET} bytes at once")
        if INTERRUPT in self._buffer and b"$" not in self._buffer:
            self._buffer.clear()
            return True
        return False

    def packet(self) -> bytes:
        """Return the next packet, ignoring interrupts, because the target is already stopped.

        :raises Gone: if the connection ends.
        """
        while True:
            content = self._next()
            if content is not None:
                return content
            if len(self._buffer) > MAX_PACKET:
                raise GdbError(f"the debugger sent more than {MAX_PACKET} bytes at once")
            self._receive(True)

    def _next(self) -> bytes | None:
        while self._buffer:
            if self._buffer[0] == ord("-") and self._sent:
                self._write(self._sent)
            if self._buffer[0] != ord("$"):
                del self._buffer[0]
                continue
            bounds = first(self._buffer)
            if bounds is None:
                return None
            content, fits = opened(self._buffer[: bounds[1]])
            del self._buffer[: bounds[1]]
            if not self.acknowledges:
                return unescaped(content)
            if fits:
                self._write(b"+")
                return unescaped(content)
            self._write(b"-")
        return None
