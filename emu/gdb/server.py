"""Server that waits for debuggers on a loopback port or on a pair of files."""

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from emu.gdb.packets import Connection, GdbError, Gone
from emu.gdb.session import Command, GdbSession, ThreadList
from emu.gdb.target import Target

LOOPBACK = "127.0.0.1"
STANDARD = "-"  # value of --gdb that selects standard input and output
MAX_PORT = 65535


@contextmanager
def connections(place: str, ready: Callable[[int], None]) -> Iterator[Iterator[Connection]]:
    """Accept connections of debuggers, one after the other.

    :param place: port on loopback (0: any free port), or ``-`` for standard input and output.
    :param ready: called with the port as soon as a debugger can connect.
    :raises GdbError: if the place is invalid, or the port cannot be used.
    """
    if place == STANDARD:
        yield iter([Connection((sys.stdin.buffer, sys.stdout.buffer))])
        return
    if not (place.isascii() and place.isdecimal() and int(place[:6]) <= MAX_PORT):
        raise GdbError(f"--gdb {place[:40]}: is neither a port number (0 to {MAX_PORT}; 0 selects "
                       "a free port) nor - (standard input and output)")
    try:
        server = socket.create_server((LOOPBACK, int(place)))
    except OSError as error:
        raise GdbError(f"--gdb {place}: {error.strerror or error}") from None
    with server:
        ready(server.getsockname()[1])
        yield _accepted(server, place)


def _accepted(server: socket.socket, place: str) -> Iterator[Connection]:
    while True:
        try:
            accepted, _address = server.accept()
        except OSError as error:
            raise GdbError(f"--gdb {place}: {error.strerror or error}") from None
        with accepted:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield Connection(accepted)


def serve(target: Target, place: str, ready: Callable[[int], None], threads: ThreadList,
          commands: dict[str, tuple[str, Command]]) -> None:
    """Serve debuggers until one of them detaches or kills the target.

    If a connection merely ends (an editor that probes the port, a debugger that crashed), the
    target stays where it is, and the next debugger can connect.
    """
    with connections(place, ready) as incoming:
        for connection in incoming:
            try:
                GdbSession(target, connection, threads, commands).serve()
            except Gone:
                target.breakpoints.clear()  # the debugger that set them has disconnected
                target.watched.clear()
            else:
                break
