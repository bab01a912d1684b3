"""Waits for a debugger, on loopback or on a pair of files, and serves it."""

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from emu.gdb.packets import Connection, GdbError, Gone
from emu.gdb.session import Command, GdbSession, ThreadList
from emu.gdb.target import Target

LOOPBACK = "127.0.0.1"
STANDARD = "-"  # the place: standard input and output
MAX_PORT = 65535


@contextmanager
def connections(place: str, ready: Callable[[int], None]) -> Iterator[Iterator[Connection]]:
    """The connections of debuggers, one after the other as they come.

    :param place: a port on loopback (0: any free one), or ``-``.
    :param ready: is called with the port, when a debugger can connect.
    :raises GdbError: when there cannot be one.
    """
    if place == STANDARD:
        yield iter([Connection((sys.stdin.buffer, sys.stdout.buffer))])
        return
    if not (place.isascii() and place.isdecimal() and int(place[:6]) <= MAX_PORT):
        raise GdbError(f"--gdb {place[:40]}: give a port, 0 for any free one, or - for standard "
                       "input and output")
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
    """Serve debuggers, until one detaches or ends the session.

    A connection that merely ends (an editor that looks whether the port is open, a debugger that
    crashed) leaves the target where it is, for the next one.
    """
    with connections(place, ready) as found:
        for connection in found:
            try:
                GdbSession(target, connection, threads, commands).serve()
            except Gone:
                target.breakpoints.clear()  # they were that debugger's
                target.watched.clear()
            else:
                break
