"""Fuzzer of the gdb client ``emu.qemu.gdb_remote``: a gdb stub that sends wrong replies.

The stub imitates QEMU's, but some of its answers are damaged, of another kind, too long, repeated
or cut off. The client may continue or raise a MachineError. Anything else is a bug, and so is a
client that waits longer than its timeout.

Left out are a silent stub, which the client abandons after ``patience`` seconds (tests/emu/qemu),
and the connection of the console, which has no protocol.
"""

import inspect
import socket
import threading
import time
from typing import Any

from emu.gdb.framing import framed, opened, unescaped
from emu.host.errors import MachineError
from emu.qemu.gdb_remote import GdbRemote, TargetRegister
from tests.fuzzing.changes import bytes_changed, text_changed

PATIENCE = 0.5  # the client's timeout for a reply, in seconds
LONGEST = 4.0  # time limit for a test case, in seconds
TARGET = ('l<?xml version="1.0"?><target><xi:include href="core.xml"/>'
          '<xi:include href="system.xml"/></target>')
CORE = "l<feature>" + "".join(f'<reg name="r{n}" bitsize="64"/>' for n in range(17)) + "</feature>"
SYSTEM = 'l<feature><reg name="cr0" bitsize="32" regnum="30"/></feature>'
STRANGE = ("", "OK", "E01", "l", "m", "T05thread:01;", "S05", "W00", "X09", "x" * 16, "0" * 15,
           "f" * 272, "1" * 4000, "lm", "m<a/>", "l<feature>", "}", "\0", "\u00e9",
           'l<feature><reg name="a" bitsize="-8"/></feature>',
           'l<feature><reg name="a" bitsize="1e9"/></feature>',
           'l<feature><reg name="a" bitsize="99999999999999999999" regnum="-1"/></feature>',
           'l<feature><reg bitsize="64"/></feature>',
           'l<!DOCTYPE a [<!ENTITY b "cccccccccc"><!ENTITY d "' + "&b;" * 50 + '">]><a>&d;</a>',
           'l<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
           "l" + '<xi:include href="core.xml"/>' * 60, "l" + "<a>" * 600, "m<",
           'l<xi:include href="co\n\x1b[2Jre.xml"/>',
           'l<feature><reg name="' + "a&#10;" * 300 + '" bitsize="64"/></feature>')
CLIENT = GdbRemote
LEFT_OUT = {"close": "ends each case", "fileno": "returns a number", "hear": "is called by receive",
            "receive": "waits for a packet that was not requested",
            "send": "is called by ask", "waiting": "checks the buffer only",
            "interrupt": "has an answer only while the target runs (tests/emu/qemu)"}


class Stub(threading.Thread):
    """A gdb stub that runs in a thread; up to five of its first twelve replies are wrong."""

    def __init__(self, rng: Any, connection: socket.socket) -> None:
        super().__init__(daemon=True)
        self._rng, self._connection = rng, connection
        self._wrong = {rng.randrange(12) for _ in range(rng.choice((1, 1, 2, 5)))}

    def run(self) -> None:
        number, received = 0, b""
        try:
            while more := self._connection.recv(1 << 16):
                received += more
                while (end := received.find(b"#")) >= 0 and len(received) >= end + 3:
                    begin = received.find(b"$")
                    content, _fits = opened(received[begin : end + 3])
                    received = received[end + 3 :]
                    answer = framed(self._answer(unescaped(content).decode("latin-1")).encode())
                    self._connection.sendall(b"+")
                    for packet in self._changed(answer) if number in self._wrong else [answer]:
                        self._connection.sendall(packet)
                    number += 1
        except OSError:
            pass  # the client or this stub has closed the connection
        finally:
            self._connection.close()

    def _answer(self, asked: str) -> str:
        match asked[:1], asked:
            case "q", _ if asked.startswith("qXfer:features:read:"):
                name, _, where = asked.split(":", 3)[3].rpartition(":")
                text = {"target.xml": TARGET, "core.xml": CORE, "system.xml": SYSTEM}.get(name)
                if text is None:
                    return "E01"
                at, size = (int(part, 16) for part in where.split(","))
                part = text[1 + at : 1 + at + size]
                return ("m" if 1 + at + size < len(text) else "l") + part
            case "q", _:
                return "PacketSize=1000;qXfer:features:read+"
            case "?" | "s" | "c", _:
                return "T05thread:01;"
            case "g", _:
                return "0011223344556677" * 17
            case "p", _:
                return "00112233" if asked == "p1e" else "0011223344556677"
        return "OK"

    def _changed(self, answer: bytes) -> list[bytes]:
        rng = self._rng
        text = answer[1:-3].decode("latin-1")
        match rng.randrange(10):
            case 0:
                return [bytes_changed(rng, answer, [])]
            case 1 | 2:
                return [framed(text_changed(rng, text.encode(), []))]
            case 3 | 4 | 5:
                return [framed(rng.choice(STRANGE).encode())]
            case 6:
                return [framed(b"T05"), answer] * rng.choice((1, 3, 1000))
            case 7:
                return [answer] * rng.choice((2, 50))
            case 8:
                return [b"$" + b"0" * (2 << 20)]
            case _:
                self._connection.shutdown(socket.SHUT_RDWR)
                return []


def ground() -> None:
    """Do nothing, since the test cases share no state."""


def verbs() -> list[str]:
    """Return the names of the client methods that the fuzzer calls."""
    return [name for name in dir(CLIENT) if not name.startswith("_") and name not in LEFT_OUT]


def once(rng: Any, _ground: None) -> str:
    """Run one session with the stub and return ``refused`` or ``went on``."""
    ours, theirs = socket.socketpair()
    stub = Stub(rng, theirs)
    stub.start()
    begin = time.monotonic()
    try:
        with ours:
            client = CLIENT(ours, PATIENCE)
            registers = client.target_registers()
            for _ in range(8):
                call = getattr(client, rng.choice(verbs()))
                call(*(_argument(rng, parameter, registers)
                       for parameter in inspect.signature(call).parameters.values()))
        return "went on"
    except MachineError as error:
        assert "\n" not in str(error) and len(str(error)) < 300, error
        return "refused"
    finally:
        stub.join(LONGEST)
        assert not stub.is_alive(), "the client is still sending"
        seconds = time.monotonic() - begin
        assert seconds < LONGEST, f"the conversation took {seconds:.1f} s"


def _argument(rng: Any, one: inspect.Parameter, registers: list[TargetRegister]) -> object:
    if one.annotation is TargetRegister:
        return rng.choice(registers) if registers else TargetRegister("pc", 16, 8)
    return {int: 4, str: "g", bytes: bytes(3000), bool: rng.random() < 0.5}[one.annotation]
