"""The threads of the guest's kernel, by its own lists and types."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dtrace.debug.kernel_types import kernel_types
from dwarf.debug_file import DebugDataError
from dwarf.types import Structure, Types
from dwarf.values import CStruct
from emu.host.errors import KinstError, MemoryAccessError
from emu.host.printable import plain
from emu.machine.address_space import AddressSpace
from emu.machine.machine import Machine

MOST = 4096  # threads, and processes; a list may also be a circle
MAX_NAME = 64
MASK = (1 << 64) - 1
# What a list that is not yet, or no longer, in order makes of being read.
UNREADABLE = (MemoryAccessError, DebugDataError, AttributeError, TypeError, ValueError)


@dataclass(frozen=True)
class Thread:
    """:param address: of its structure.
    :param process: the name of its process; ``pid`` is its number.
    :param saved: the address of what it goes on with, where it does not run.
    """

    address: int
    tid: int
    name: str
    pid: int
    process: str
    saved: int


def structure(types: Types, name: str) -> Structure | None:
    """One of the kernel's types, ``struct proc``; None: it has none, or only its name."""
    for kind in types.named(name):
        if isinstance(kind, Structure):
            return kind
    return None


class Threads:
    """The threads of one machine.  A kernel without types, or without threads, has none."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._lists = machine.guest.threads.lists
        self._types: Types | None = None
        self._thread = self._process = None
        try:
            self._types = kernel_types(machine.image)
        except DebugDataError:
            return
        self._thread = structure(self._types, self._lists.thread)
        self._process = structure(self._types, self._lists.process)

    def name(self, address: int) -> str:
        """Of a thread; empty where it cannot be read."""
        if self._thread is None:
            return ""
        try:
            return _text(CStruct(self._thread, address, self._machine)[self._lists.name])
        except UNREADABLE:
            return ""

    def names(self, addresses: Iterable[int]) -> dict[int, str]:
        return {address: name for address in addresses if address and (name := self.name(address))}

    def all(self) -> Iterator[Thread]:
        """Those of every process on the kernel's list, as far as it can be read."""
        left = MOST
        try:
            for process in self._processes():
                for thread in self._of(process):
                    left -= 1
                    if left < 0:
                        return
                    yield thread
        except UNREADABLE:
            return

    def _processes(self) -> Iterator[CStruct]:
        """As far as the list can be read."""
        if self._thread is None or self._process is None:
            return
        head = self._machine.image.symbols.find(self._lists.first_process)
        known = set[int]()
        try:
            at = 0 if head is None else self._machine.read_u64(head.address)
            while at and at not in known and len(known) < MOST:
                known.add(at)
                process = CStruct(self._process, at, self._machine)
                yield process
                at = _number(process, self._lists.next_process)
        except UNREADABLE:
            return

    def _of(self, process: CStruct) -> Iterator[Thread]:
        assert self._thread is not None
        lists = self._lists
        at = _number(process, self._lists.first_thread)
        known = set[int]()
        while at and at not in known and len(known) < MOST:
            known.add(at)
            thread = CStruct(self._thread, at, self._machine)
            yield Thread(at, _number(thread, lists.tid), _text(thread[lists.name]),
                         _number(process, lists.pid), _text(process[lists.process_name]),
                         _number(thread, lists.saved))
            at = _number(thread, lists.next_thread)

    def space(self, pid: int) -> tuple[str, AddressSpace]:
        """The name of a process, and its memory.

        :raises KinstError: when there is no such process, or the kernel does not tell.
        """
        path, register = self._machine.guest.programs.page_tables
        if self._process is None or not path:
            raise KinstError(f"{self._machine.image.path}: does not tell of its processes: it has "
                             "no types (debug data), or none")
        known = []
        for process in self._processes():
            known.append(_number(process, self._lists.pid))
            if known[-1] == pid:
                try:
                    root = _number(process, path)
                except UNREADABLE:
                    break  # it has no memory yet, or no more
                return (_text(process[self._lists.process_name]),
                        AddressSpace(self._machine, register, root))
        raise KinstError(f"there is no process {pid} now; there are "
                         f"{', '.join(map(str, sorted(known)[:50])) or 'none'}")

    def saved(self, thread: Thread) -> dict[str, int]:
        """The registers that a thread which does not run goes on with, as far as they are kept."""
        kind = None if self._types is None else structure(self._types, self._lists.registers)
        found: dict[str, int] = {}
        if kind is None:
            return found
        pcb = CStruct(kind, thread.saved, self._machine)
        for name, (member, index) in self._machine.guest.registers.saved.items():
            try:
                value = pcb[member]
                found[name] = int(value if index is None else value[index]) & MASK
            except (*UNREADABLE, IndexError):
                continue
        return found


def _number(inside: CStruct, path: str) -> int:
    """A member, or a member of a member."""
    value: Any = inside
    for member in path.split("."):
        value = value[member]
    return int(value)


def _text(name: object) -> str:
    return plain(str(name)[:MAX_NAME])
