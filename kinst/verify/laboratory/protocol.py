"""A relocator in another process: requests on its standard input, answers on its standard output,
one JSON object a line (docs/trial.md, "A relocator of your own").
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

PATIENCE = 20.0  # seconds for an answer
MAX_LINE = 1 << 16  # bytes
MAX_BODY = 512  # bytes of a trampoline
MAX_LOADS, MAX_STORES, MAX_DATA = 64, 64, 4096
MASK, VECTOR_MASK = (1 << 64) - 1, (1 << 128) - 1
VECTOR = re.compile(r"[0-9]{1,3}", re.ASCII)


@dataclass(frozen=True)
class Relocated:
    """Code for the trampoline.

    :param back: the offset in it where the instruction has been executed, and whoever runs it goes
        on behind the original one; None: the code goes there by itself.
    """

    body: bytes
    back: int | None = None


@dataclass(frozen=True)
class Emulates:
    """The program does what the instruction would, state by state."""


@dataclass(frozen=True)
class Refuses:
    reason: str


Answer = Relocated | Emulates | Refuses


@dataclass
class Emulated:
    """:param vectors: vector registers, by their numbers.
    :param stores: (address, bytes), in their order.
    """

    pc: int
    registers: dict[str, int]
    vectors: dict[int, int] = field(default_factory=dict)
    stores: list[tuple[int, bytes]] = field(default_factory=list)


def identity(command: str) -> str:
    """A relocator's command line, and sixteen digits that change when a file that it names does.

    :raises KinstError: when it cannot be read.
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
    """A program that relocates.

    :param command: as a shell would take it, without one.
    :raises KinstError: here and later, when it cannot be run, ends, or answers what is no answer.
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
        """Begin anew, with the instruction that was asked of last: an emulation was left."""
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
        rest, end = json.dumps(row).encode() + b"\n", time.monotonic() + PATIENCE
        while rest:
            try:
                rest = rest[self._in.write(rest) or 0 :]
            except OSError:
                raise self._trouble(self._ended()) from None
            if rest:
                self._wait(self._in, selectors.EVENT_WRITE, end, "it does not read what it is sent")

    def _ended(self) -> str:
        try:
            status = self._process.wait(1)
        except subprocess.TimeoutExpired:
            return "it does not read what it is sent"
        return f"it has ended, with status {status}"

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\n" not in self._buffer:
            if len(self._buffer) > MAX_LINE:
                raise self._trouble(f"a line of more than {MAX_LINE} bytes")
            self._wait(self._out, selectors.EVENT_READ, end, "no answer")
            got = self._out.read(MAX_LINE)
            if not got:
                raise self._trouble(self._ended())
            self._buffer += got
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise self._trouble(f"an answer that is no JSON object: {line[:80]!r}")
        return row

    def ask(self, arch: str, address: int, code: bytes, trampoline: int) -> Answer:
        """What becomes of an instruction."""
        self._number += 1
        self._asked = {"id": self._number, "architecture": arch, "address": address,
                       "bytes": code.hex(), "trampoline": trampoline}
        self._send(self._asked)
        row = self._receive()
        if row.items() >= self._asked.items():  # cat, tee
            raise self._trouble("answers with the question itself: it is no relocator")
        if row.get("id") != self._number:
            raise self._trouble(f"an answer with the id {row.get('id')!r} to the request "
                                f"{self._number}")
        if isinstance(row.get("refuse"), str):
            return Refuses(printable(row["refuse"]))
        if row.get("emulate") is True:
            return Emulates()
        body, back = self._bytes(row.get("bytes"), MAX_BODY), row.get("back")
        if back is not None and (type(back) is not int or not 0 <= back <= len(body)):
            raise self._trouble(f"'back' is not an offset in the bytes: {back!r}")
        return Relocated(body, back)

    def _bytes(self, text: object, most: int) -> bytes:
        try:
            found = bytes.fromhex(text) if isinstance(text, str) else b""
        except ValueError:
            found = b""
        if not found or len(found) > most:
            raise self._trouble("an answer without 'bytes' (hexadecimal, 1 to "
                                f"{most}), 'emulate' or 'refuse'")
        return found

    def emulate(self, registers: Mapping[str, int], load: Callable[[int, int], bytes]) -> Emulated:
        """Let it do what the instruction that it was asked of last would do.

        :param load: memory, where it asks for some.
        """
        self._send({"id": self._number, "state": dict(registers)})
        for _ in range(MAX_LOADS):
            row = self._receive()
            if "load" not in row:
                return self._emulated(row, registers)
            address, size = row["load"], row.get("size", 8)
            if not (type(address) is type(size) is int and 0 < size <= MAX_DATA):
                raise self._trouble(f"a load that is none: {row!r}"[:200])
            self._send({"bytes": load(address & MASK, size).hex()})
        raise self._trouble(f"more than {MAX_LOADS} loads for one instruction")

    def _emulated(self, row: dict[str, Any], registers: Mapping[str, int]) -> Emulated:
        pc, changed, stores = row.get("pc"), row.get("registers", {}), row.get("stores", [])
        if (type(pc) is not int or not isinstance(changed, dict) or not isinstance(stores, list)
                or len(stores) > MAX_STORES):
            raise self._trouble("an emulation without 'pc', 'registers' and 'stores'")
        for name, value in changed.items():
            if name not in registers or type(value) is not int:
                raise self._trouble(f"an emulation changes '{name}'")
        found = Emulated(pc & MASK, {name: value & MASK for name, value in changed.items()})
        vectors = row.get("vectors", {})
        if not isinstance(vectors, dict) or not all(
                VECTOR.fullmatch(name) and type(value) is int for name, value in vectors.items()):
            raise self._trouble("'vectors' that are not numbers by numbers")
        found.vectors.update((int(name), value & VECTOR_MASK) for name, value in vectors.items())
        for one in stores:
            if not (isinstance(one, list) and len(one) == 2 and type(one[0]) is int):
                raise self._trouble("a store that is not [address, bytes]")
            found.stores.append((one[0] & MASK, self._bytes(one[1], MAX_DATA)))
        return found
