"""Waits for a debugger, on loopback or on a pair of files, and serves it."""

import contextlib
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
def connected(place: str, ready: Callable[[int], None]) -> Iterator[Connection]:
    """The connection to a debugger, once it has come.

    :param place: a port on loopback (0: any free one), or ``-``.
    :param ready: is called with the port, when a debugger can connect.
    :raises GdbError: when there cannot be one.
    """
    if place == STANDARD:
        yield Connection((sys.stdin.buffer, sys.stdout.buffer))
        return
    if not (place.isascii() and place.isdecimal() and int(place[:6]) <= MAX_PORT):
        raise GdbError(f"--gdb {place[:40]}: give a port, 0 for any free one, or - for standard "
                       "input and output")
    try:
        with socket.create_server((LOOPBACK, int(place))) as server:
            ready(server.getsockname()[1])
            accepted, _address = server.accept()
    except OSError as error:
        raise GdbError(f"--gdb {place}: {error.strerror or error}") from None
    with accepted:
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield Connection(accepted)


def serve(target: Target, place: str, ready: Callable[[int], None], threads: ThreadList,
          commands: dict[str, tuple[str, Command]]) -> None:
    """Serve one debugger, until it leaves."""
    with connected(place, ready) as connection, contextlib.suppress(Gone):
        GdbSession(target, connection, threads, commands).serve()
