"""Data structures of the kernel's own tracer: what is enabled for a probe, and its trampolines."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dtrace.stacks.threads import structure
from dwarf.types import Types, find_member
from dwarf.values import CStruct
from emu.guest.tracer import TracerCode
from emu.host.errors import KinstError, MemoryAccessError
from emu.machine.machine import Machine

MAX_LISTED = 64  # maximum number of ECBs of a probe, actions of an ECB, and chunks
MAX_NAME = 256  # maximum length of a part of a probe's name


@dataclass(frozen=True)
class SeenEcb:
    """What is enabled for a probe by one clause (an enabling control block).

    :param size: size of its records in bytes.
    :param predicate: address of the predicate's code; 0 if the clause has no predicate.
    :param actions: names of the actions, one for each value that is recorded or used.
    """

    number: int
    size: int
    predicate: int
    actions: tuple[str, ...]


@dataclass(frozen=True)
class SeenBuffer:
    """The buffer to which the records of a firing are written.

    :param data: its address.
    :param offset: number of bytes that it holds.
    """

    data: int
    offset: int


@dataclass(frozen=True)
class SeenChunk:
    """A piece of memory with trampolines.

    :param free: for each trampoline, whether it is free.
    """

    address: int
    free: tuple[bool, ...]


class TracerMemory:
    """Reader of the tracer's data structures.

    :raises KinstError: if the debug data of its modules is missing.
    """

    def __init__(self, machine: Machine, types: Types, tracer: TracerCode) -> None:
        self._machine, self._types, self._tracer = machine, types, tracer
        enabled = tracer.enabled
        self._probe = structure(types, enabled.probe)
        if self._probe is None:
            raise KinstError(f"{machine.image.path}: the debug data of the tracer's modules is "
                             f"missing: {enabled.probe} is unknown")

    def name(self, number: int) -> str:
        """Return the name of a probe."""
        probe = self._at(number)
        return ":".join(self._text(_member(probe, names)) for names in self._tracer.enabled.names)

    def ecbs(self, number: int) -> list[SeenEcb]:
        """Return what is enabled for a probe."""
        enabled, result = self._tracer.enabled, []
        for ecb in _list(_member(self._at(number), enabled.first), enabled.next):
            kinds = [int(action[enabled.kind])
                     for action in _list(ecb[enabled.action], enabled.next_action)]
            predicate = ecb[enabled.predicate]
            result.append(SeenEcb(int(ecb[enabled.number]), int(ecb[enabled.size]),
                                  int(predicate[enabled.code]) if int(predicate) else 0,
                                  tuple(enabled.actions.get(kind, f"action {kind:#x}")
                                        for kind in kinds)))
        return result

    def buffer(self, number: int) -> SeenBuffer:
        """Return the first CPU's buffer of what is enabled for a probe."""
        enabled = self._tracer.enabled
        ecb = _member(self._at(number), enabled.first)
        if not int(ecb):
            return SeenBuffer(0, 0)
        buffer = _member(ecb, enabled.buffer)
        return SeenBuffer(int(buffer[enabled.data]), int(buffer[enabled.offset]))

    def chunks(self) -> list[SeenChunk]:
        """Return the chunks of trampolines."""
        chunks, machine = self._tracer.chunks, self._machine
        kind, first = structure(self._types, chunks.chunk), machine.image.symbols.find(chunks.first)
        bits = None if kind is None else find_member(kind, chunks.free)
        if kind is None or first is None or bits is None:
            return []
        found, at = list[SeenChunk](), machine.read_u64(first.address)
        while at and len(found) < MAX_LISTED:
            chunk: Any = CStruct(kind, at, machine)
            count = chunks.size // chunks.trampoline
            words = machine.read(at + bits.offset // 8, count // 8)
            free = int.from_bytes(words, "little")
            found.append(SeenChunk(int(chunk[chunks.address]),
                                   tuple(bool(free >> n & 1) for n in range(count))))
            at = int(_member(chunk, chunks.next))
        return found

    def _at(self, number: int) -> Any:
        machine = self._machine
        assert self._probe is not None
        array = machine.read_u64(machine.symbol(self._tracer.enabled.probes).address)
        return CStruct(self._probe, machine.read_u64(array + 8 * (number - 1)), machine)

    def _text(self, pointer: Any) -> str:
        try:
            return self._machine.read_string(int(pointer), MAX_NAME).decode("utf-8", "replace")
        except MemoryAccessError:
            return "?"


def _member(value: Any, names: str) -> Any:
    """Return the member to which names separated by dots lead."""
    for name in names.split("."):
        value = value[name]
    return value


def _list(pointer: Any, following: str) -> Iterator[Any]:
    """Yield the structures of a linked list."""
    for _ in range(MAX_LISTED):
        if not int(pointer):
            return
        yield pointer
        pointer = pointer[following]
