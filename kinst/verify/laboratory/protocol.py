"""Protocol of an external relocator: one JSON object per line on standard input and output.

The program reads requests from standard input and writes answers to standard output
(docs/trial.md, "A relocator of your own").
"""

import hashlib
import json
import os
import re
import selectors
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from emu.host.errors import KinstError
from emu.host.printable import printable

PATIENCE = 20.0  # seconds to wait for an answer
MAX_LINE = 1 << 16  # maximum length of an answer in bytes
MAX_BODY = 512  # maximum size of a trampoline in bytes
MAX_LOADS, MAX_STORES, MAX_DATA = 64, 64, 4096
MASK, VECTOR_MASK = (1 << 64) - 1, (1 << 128) - 1
VECTOR = re.compile(r"[0-9]{1,3}", re.ASCII)


@dataclass(frozen=True)
class Relocated:
    """The relocator's answer that contains the code of the trampoline.

    :param back: offset in the code at which the instruction has been executed and control returns
        to the instruction after the original; None if the code jumps there by itself.
    """

    body: bytes
    back: int | None = None


@dataclass(frozen=True)
class Emulates:
    """The relocator's answer that it emulates the instruction, one state at a time."""


@dataclass(frozen=True)
class Refuses:
    """The relocator's answer that it refuses to relocate the instruction."""
    reason: str


Answer = Relocated | Emulates | Refuses


@dataclass
class Emulated:
    """Result of an emulation.

    :param vectors: changed vector registers by number.
    :param stores: (address, bytes) in the order of execution.
    """

    pc: int
    registers: dict[str, int]
    vectors: dict[int, int] = field(default_factory=dict)
    stores: list[tuple[int, bytes]] = field(default_factory=list)


def identity(command: str) -> str:
    """Return a relocator's command line with a checksum of the files that the command names.

    :raises KinstError: if the command line cannot be parsed or a file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        for word in shlex.split(command):
            path = Path(shutil.which(word) or word)
            if path.is_file():
                digest.update(path.read_bytes())
    except (OSError, ValueError) as error:
        raise KinstError(f"--relocator {command}: {error}") from None
    return f"{command} ({digest.hexdigest()[:16]})"


class Relocator:
    """External relocator, run as a process.

    :param command: command line, split as a shell would split it, but run without a shell.
    :raises KinstError: if the program cannot be run; methods also raise it if the program exits or
        sends an invalid answer.
    """

    def __init__(self, command: str) -> None:
        self.command = command
        self._number = 0
        self._asked: dict[str, object] = {}
        self._begin()

    def _begin(self) -> None:
        try:
            self._process = subprocess.Popen(
                shlex.split(self.command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        except (OSError, ValueError, IndexError) as error:
            text = error.strerror if isinstance(error, OSError) else str(error)
            raise self._trouble(f"cannot be run: {text}") from None
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        for stream in (self._in, self._out):
            os.set_blocking(stream.fileno(), False)
        self._buffer = b""

    def close(self) -> None:
        """Close the program's streams, and kill the program unless it exits within one second."""
        for stream in (self._in, self._out):
            stream.close()
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _trouble(self, what: str) -> KinstError:
        return KinstError(f"--relocator {self.command}: {printable(what)}")

    def again(self) -> None:
        """Restart the program after an abandoned emulation, and repeat the last request."""
        self.close()
        self._begin()
        if self._asked:
            self._send(self._asked)
            self._receive()

    def _wait(self, stream: IO[bytes], event: int, end: float, what: str) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(stream, event)
            left = end - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise self._trouble(f"{what} within {PATIENCE:.0f} seconds")

    def _send(self, row: Mapping[str, object]) -> None:
        rest, deadline = json.dumps(row).encode() + b"\n", time.monotonic() + PATIENCE
        while rest:
            try:
                rest = rest[self._in.write(rest) or 0 :]
            except OSError:
                raise self._trouble(self._ended()) from None
            if rest:
                self._wait(self._in, selectors.EVENT_WRITE, deadline, "did not read its input")

    def _ended(self) -> str:
        try:
            status = self._process.wait(1)
        except subprocess.TimeoutExpired:
            return "does not read its input"
        return f"exited with status {status}"

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\n" not in self._buffer:
            if len(self._buffer) > MAX_LINE:
                raise self._trouble(f"sent a line of more than {MAX_LINE} bytes")
            self._wait(self._out, selectors.EVENT_READ, deadline, "sent no answer")
            data = self._out.read(MAX_LINE)
            if not data:
                raise self._trouble(self._ended())
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise self._trouble(f"the answer is not a JSON object: {line[:80]!r}")
        return row

    def ask(self, arch: str, address: int, code: bytes, trampoline: int) -> Answer:
        """Ask the program how to relocate an instruction."""
        self._number += 1
        self._asked = {"id": self._number, "architecture": arch, "address": address,
                       "bytes": code.hex(), "trampoline": trampoline}
        self._send(self._asked)
        row = self._receive()
        if row.items() >= self._asked.items():  # programs such as cat and tee repeat the request
            raise self._trouble("the answer repeats the request: the program is not a relocator")
        if row.get("id") != self._number:
            raise self._trouble(f"the answer has the id {row.get('id')!r}, but the request has the "
                                f"id {self._number}")
        if isinstance(row.get("refuse"), str):
            return Refuses(printable(row["refuse"]))
        if row.get("emulate") is True:
            return Emulates()
        body, back = self._bytes(row.get("bytes"), MAX_BODY), row.get("back")
        if back is not None and (type(back) is not int or not 0 <= back <= len(body)):
            raise self._trouble(f"'back' is not an offset in 'bytes': {back!r}")
        return Relocated(body, back)

    def _bytes(self, text: object, most: int) -> bytes:
        try:
            data = bytes.fromhex(text) if isinstance(text, str) else b""
        except ValueError:
            data = b""
        if not data or len(data) > most:
            raise self._trouble("the answer needs 'bytes' (1 to "
                                f"{most} bytes in hexadecimal), 'emulate' or 'refuse'")
        return data

    def emulate(self, registers: Mapping[str, int], load: Callable[[int, int], bytes]) -> Emulated:
        """Have the program emulate the instruction of the last request.

        :param registers: general registers before the instruction.
        :param load: reads (address, size) from guest memory for the program.
        """
        self._send({"id": self._number, "state": dict(registers)})
        for _ in range(MAX_LOADS):
            row = self._receive()
            if "load" not in row:
                return self._emulated(row, registers)
            address, size = row["load"], row.get("size", 8)
            if not (type(address) is type(size) is int and 0 < size <= MAX_DATA):
                raise self._trouble(f"invalid load request: {row!r}"[:200])
            self._send({"bytes": load(address & MASK, size).hex()})
        raise self._trouble(f"requested more than {MAX_LOADS} loads for one instruction")

    def _emulated(self, row: dict[str, Any], registers: Mapping[str, int]) -> Emulated:
        pc, changed, stores = row.get("pc"), row.get("registers", {}), row.get("stores", [])
        if (type(pc) is not int or not isinstance(changed, dict) or not isinstance(stores, list)
                or len(stores) > MAX_STORES):
            raise self._trouble("the emulation needs an integer 'pc', an object 'registers' and a "
                                f"list 'stores' (at most {MAX_STORES})")
        for name, value in changed.items():
            if name not in registers or type(value) is not int:
                raise self._trouble(f"the emulation changes '{name}', which is not a register, or "
                                    "sets it to a non-integer")
        emulated = Emulated(pc & MASK, {name: value & MASK for name, value in changed.items()})
        vectors = row.get("vectors", {})
        if not isinstance(vectors, dict) or not all(
                VECTOR.fullmatch(name) and type(value) is int for name, value in vectors.items()):
            raise self._trouble("'vectors' must map register numbers to integers")
        emulated.vectors.update((int(name), value & VECTOR_MASK) for name, value in vectors.items())
        for store in stores:
            if not (isinstance(store, list) and len(store) == 2 and type(store[0]) is int):
                raise self._trouble("each of 'stores' must have the form [address, bytes]")
            emulated.stores.append((store[0] & MASK, self._bytes(store[1], MAX_DATA)))
        return emulated
