"""gdb protocol sessions, which answer a debugger's packets (gdb manual, appendix E, "Packets")."""

import binascii
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from emu.arch.target_description import DESCRIPTIONS, GdbRegister
from emu.gdb.packets import MAX_PACKET, Connection, GdbError, Gone
from emu.gdb.target import StopEvent, Target, Why
from emu.host.errors import KinstError, MemoryAccessError
from emu.host.printable import plain

MAX_REASON = 400  # maximum number of characters of an error message in a reply
OK, UNKNOWN, NO_MEMORY, REFUSED = b"OK", b"", b"E14", b"E01"
SIGTRAP, SIGINT, SIGABRT = 5, 2, 6
SIGNALS = {Why.INTERRUPTED: SIGINT, Why.OVER: SIGABRT}
MAX_READ = 1 << 14  # maximum number of bytes of memory in a reply
MAX_TEXT = 1 << 20  # maximum number of characters that a monitor command prints
ANY, ALL = 0, -1
ONLY = 1  # ID of the only thread of a kernel whose threads are unknown
BREAKPOINTS, WATCHES = (0, 1), (2, 3, 4)


@dataclass(frozen=True)
class GuestThread:
    """A thread of the guest's kernel.

    :param number: thread ID, not 0.
    :param text: description of the thread.
    :param registers: saved registers with which the thread will continue, as far as known, or
        None for a running thread.
    """

    number: int
    text: str
    registers: dict[str, int] | None


class ThreadList(Protocol):
    """Source of the guest's threads."""

    def now(self) -> list[GuestThread]:
        """Return the current threads, the running thread first; return [] if they are unknown."""


class NoThreads:
    """Thread list of a kernel whose threads are unknown."""

    def now(self) -> list[GuestThread]:
        """Return an empty list of threads."""
        return []


# Function that executes a ``monitor`` command: it takes the argument and returns output lines.
Command = Callable[[str], Iterable[str]]


class GdbSession:
    """Session with one debugger.

    :param threads: source of the guest's threads.
    :param commands: ``monitor`` commands: name -> (usage, function).
    """

    def __init__(self, target: Target, connection: Connection, threads: ThreadList,
                 commands: dict[str, tuple[str, Command]]) -> None:
        self._target, self._connection, self._threads = target, connection, threads
        self._commands = commands
        self._description = DESCRIPTIONS[target.machine.arch.name]
        self._registers = self._description.registers
        self._chosen = ANY
        self._known: list[GuestThread] | None = None
        self._last = StopEvent(Why.STEP)
        self._marks = False  # whether the debugger understands swbreak and hwbreak
        self._open = True

    def serve(self) -> None:
        """Answer packets until the debugger detaches or kills the target.

        :raises Gone: if the connection ends.
        """
        while self._open:
            packet = self._connection.packet()
            try:
                answer = self._answer(packet)
            except MemoryAccessError:
                answer = NO_MEMORY
            except (ValueError, IndexError, OverflowError):
                answer = REFUSED
            except Gone:
                raise
            except KinstError as error:
                # gdb would mistake a console packet for the reply, so the reply contains the error.
                answer = b"E." + plain(str(error))[:MAX_REASON].encode("ascii", "replace")
            if answer is not None:
                self._connection.send(answer)
            if packet == b"QStartNoAckMode":
                self._connection.acknowledges = False

    def _say(self, text: str) -> None:
        """Print text on the debugger's console."""
        for at in range(0, len(text), 1000):
            self._connection.send(b"O" + text[at : at + 1000].encode().hex().encode())

    def _answer(self, packet: bytes) -> bytes | None:
        kind, rest = chr(packet[0]) if packet else "", packet[1:].decode("latin-1")
        simple: dict[str, Callable[[], bytes | None]] = {
            "?": self._stopped, "g": self._all, "k": self._kill, "D": self._detach}
        if kind in simple:
            return simple[kind]()
        with_rest: dict[str, Callable[[str], bytes | None]] = {
            "m": self._read, "M": self._write, "p": self._register, "P": self._set,
            "H": self._choose, "T": self._alive, "Z": self._insert, "z": self._remove,
            "q": self._query, "Q": self._query, "v": self._verbose, "b": self._back,
            "c": lambda rest: self._resumed(self._target.go(self._poll)),
            "s": lambda rest: self._resumed(self._target.step())}
        return with_rest[kind](rest) if kind in with_rest else UNKNOWN

    def _poll(self) -> bool:
        return self._connection.interrupted()

    # -- threads ----------------------------------------------------------------------------------

    def _now(self) -> list[GuestThread]:
        if self._known is None:
            self._known = self._threads.now() or [
                GuestThread(ONLY, f"CPU {self._target.machine.cpu.number}", None)]
        return self._known

    def _thread(self, number: int) -> GuestThread:
        if number in (ANY, ALL):
            return self._now()[0]
        for thread in self._now():
            if thread.number == number:
                return thread
        raise GdbError(f"thread {number} does not exist any more")

    def _choose(self, rest: str) -> bytes:
        number = _thread_number(rest[1:])
        self._thread(number)
        if rest[0] == "g":
            self._chosen = number
        return OK

    def _alive(self, rest: str) -> bytes:
        number = _thread_number(rest)
        return OK if any(t.number == number for t in self._now()) else REFUSED

    # -- registers and memory ---------------------------------------------------------------------

    def _value(self, register: GdbRegister) -> bytes:
        """Return a register's value in hexadecimal, or only ``x`` digits if it is unavailable."""
        size, machine = register.bits // 8, self._target.machine
        thread = self._thread(self._chosen)
        if register.ours is not None and thread.registers is not None:
            value = thread.registers.get(register.ours)
            if value is not None:
                return value.to_bytes(size, "little").hex().encode()
        elif register.ours is not None and register.ours in machine.cpu.vectors:
            number = machine.cpu.vectors[register.ours]
            return machine.engine.read_bytes(number, size).hex().encode()
        elif register.ours is not None:
            value = machine.read_register(register.ours) & (1 << register.bits) - 1
            return value.to_bytes(size, "little").hex().encode()
        return b"xx" * size

    def _all(self) -> bytes:
        return b"".join(map(self._value, self._registers))

    def _register(self, rest: str) -> bytes:
        number = int(rest, 16)
        return self._value(self._registers[number]) if number < len(self._registers) else REFUSED

    def _set(self, rest: str) -> bytes:
        number, _equals, digits = rest.partition("=")
        register = self._registers[int(number, 16)]
        if register.ours is None or self._thread(self._chosen).registers is not None:
            return REFUSED
        self._target.write_register(register.ours, int.from_bytes(bytes.fromhex(digits), "little"))
        return OK

    def _read(self, rest: str) -> bytes:
        address, size = (int(part, 16) for part in rest.split(","))
        size = min(size, MAX_READ)
        data = b""
        while len(data) < size:
            at = address + len(data)
            piece = min(size - len(data), 4096 - at % 4096)
            try:
                data += self._target.read(at & (1 << 64) - 1, piece)
            except MemoryAccessError:
                break
        return binascii.hexlify(data) if data or not size else NO_MEMORY

    def _write(self, rest: str) -> bytes:
        place, _colon, digits = rest.partition(":")
        address, size = (int(part, 16) for part in place.split(","))
        data = bytes.fromhex(digits)
        if len(data) != size:
            return REFUSED
        self._target.write(address, data)
        return OK

    # -- breakpoints ------------------------------------------------------------------------------

    def _insert(self, rest: str) -> bytes:
        kind, address, size = _point(rest)
        if kind in BREAKPOINTS:
            self._target.break_at(address)
        elif kind in WATCHES:
            self._target.watch(address, size, kind)
        else:
            return UNKNOWN
        return OK

    def _remove(self, rest: str) -> bytes:
        kind, address, size = _point(rest)
        if kind in BREAKPOINTS:
            self._target.breakpoints.discard(address)
        elif kind in WATCHES:
            self._target.unwatch(address, size, kind)
        else:
            return UNKNOWN
        return OK

    # -- running ----------------------------------------------------------------------------------

    def _resumed(self, event: StopEvent) -> bytes:
        self._last, self._known, self._chosen = event, None, ANY
        if event.why is Why.OVER:
            self._say(f"{event.detail}\n")
        return self._stopped()

    def _stopped(self) -> bytes:
        """Return a stop reply packet for the last stop."""
        event = self._last
        text = f"T{SIGNALS.get(event.why, SIGTRAP):02x}thread:{self._now()[0].number:x};"
        if event.why is Why.WATCH and event.watched is not None:
            name = {2: "watch", 3: "rwatch", 4: "awatch"}[event.watched.kind]
            text += f"{name}:{event.watched.address:x};"
        elif event.why is Why.BREAKPOINT and self._marks:
            text += "swbreak:;"
        elif event.why in (Why.BEGIN, Why.END):
            text += f"replaylog:{'begin' if event.why is Why.BEGIN else 'end'};"
        return text.encode()

    def _back(self, rest: str) -> bytes:
        if rest[:1] == "s":
            return self._resumed(self._target.back_step())
        if rest[:1] == "c":
            return self._resumed(self._target.back(self._poll))
        return UNKNOWN

    def _verbose(self, rest: str) -> bytes | None:
        if rest.startswith("Cont?"):
            return b"vCont;c;C;s;S;r"
        if not rest.startswith("Cont;"):
            return self._kill() if rest.startswith("Kill") else UNKNOWN
        # Only the running thread can be resumed; actions for other threads are ignored.
        running = self._now()[0].number
        for action in rest.removeprefix("Cont;").split(";"):
            what, _colon, number = action.partition(":")
            if number and _thread_number(number) not in (ANY, ALL, running):
                continue
            if what[0] in "sS":
                return self._resumed(self._target.step())
            if what[0] == "r":
                begin, end = (int(part, 16) for part in what[1:].split(","))
                return self._resumed(self._target.range_step(begin, end, self._poll))
            if what[0] not in "cC":
                return REFUSED
            break
        return self._resumed(self._target.go(self._poll))

    def _kill(self) -> bytes | None:
        self._open = False
        return OK

    def _detach(self) -> bytes:
        self._open = False
        return OK

    # -- queries ----------------------------------------------------------------------------------

    def _query(self, rest: str) -> bytes | None:
        name = rest.split(":")[0].split(",")[0]
        if name == "Supported":
            self._marks = "swbreak+" in rest
            back = ";ReverseStep+;ReverseContinue+" if self._target.reverses else ""
            return (f"PacketSize={MAX_PACKET:x};qXfer:features:read+;QStartNoAckMode+;swbreak+;"
                    f"hwbreak+;vContSupported+{back}").encode()
        if name == "Xfer":
            return self._transfer(rest)
        if name == "Rcmd":
            self._monitor(bytes.fromhex(rest.partition(",")[2]).decode("utf-8", "replace"))
            return OK
        if name == "fThreadInfo":
            return b"m" + ",".join(f"{t.number:x}" for t in self._now()).encode()
        if name == "ThreadExtraInfo":
            text = self._thread(_thread_number(rest.partition(",")[2])).text
            return text.encode("ascii", "replace").hex().encode()
        return {"StartNoAckMode": OK, "C": f"QC{self._now()[0].number:x}".encode(),
                "sThreadInfo": b"l", "Attached": b"1", "Symbol": OK}.get(name, UNKNOWN)

    def _transfer(self, rest: str) -> bytes:
        parts = rest.split(":")
        if parts[1:4] != ["features", "read", "target.xml"]:
            return UNKNOWN
        offset, size = (int(part, 16) for part in parts[4].split(","))
        text = self._description.xml().encode()
        piece = text[offset : offset + min(size, MAX_READ)]
        return (b"m" if offset + len(piece) < len(text) else b"l") + piece

    def _monitor(self, line: str) -> None:
        """Run a ``monitor`` command, and print its output on the debugger's console."""
        name, _space, rest = line.strip().partition(" ")
        if name not in self._commands:
            self._say("".join(f"monitor {usage}\n" for usage, _call in self._commands.values()))
            return
        before, shown = self._target.count, 0
        try:
            for text in self._commands[name][1](rest.strip()):
                shown += len(text)
                if shown > MAX_TEXT:
                    break
                self._say(f"{text}\n")
        except KinstError as error:
            self._say(f"{error}\n")
        self._known, self._chosen = None, ANY
        if self._target.count != before:
            self._last = StopEvent(Why.STEP)
            self._say("the target has moved; enter in gdb: maintenance flush register-cache\n")


def _thread_number(text: str) -> int:
    return -1 if text == "-1" else int(text, 16)


def _point(rest: str) -> tuple[int, int, int]:
    """Return (kind, address, size) of a breakpoint or watchpoint from its packet's arguments."""
    kind, address, size = rest.split(";")[0].split(",")[:3]
    return int(kind), int(address, 16), int(size, 16)
