"""Threads of the guest's kernel, found through the kernel's lists and types."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dtrace.debug.kernel_types import kernel_types
from dwarf.debug_file import DebugDataError
from dwarf.types import Structure, Types, find_member
from dwarf.values import CStruct
from emu.host.errors import KinstError, MemoryAccessError
from emu.host.printable import plain
from emu.machine.address_space import AddressSpace
from emu.machine.machine import Machine

MOST = 4096  # maximum number of threads or processes, in case a list is circular
MAX_NAME = 64
MASK = (1 << 64) - 1
# Exceptions raised by reading a list that is not initialized or is being changed.
UNREADABLE = (MemoryAccessError, DebugDataError, AttributeError, TypeError, ValueError)


@dataclass(frozen=True)
class Thread:
    """A thread of the guest's kernel.

    :param address: address of its structure.
    :param pid: ID of its process.
    :param process: name of its process.
    :param saved: address of its saved registers while it does not run.
    """

    address: int
    tid: int
    name: str
    pid: int
    process: str
    saved: int


def structure(types: Types, name: str, members: Sequence[str] = ()) -> Structure | None:
    """Return a structure type of the kernel, such as ``struct proc``, or None if undefined.

    :param members: members that it must have; several source files may define a type of that name.
    """
    for kind in types.named(name):
        if isinstance(kind, Structure) and all(find_member(kind, one) for one in members):
            return kind
    return None


class Threads:
    """Threads of one machine; empty if the kernel has no threads or no debug data."""

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
        """Return the name of a thread, or an empty string if the name cannot be read.

        :param address: address of the thread.
        """
        if self._thread is None:
            return ""
        try:
            return _text(CStruct(self._thread, address, self._machine)[self._lists.name])
        except UNREADABLE:
            return ""

    def names(self, addresses: Iterable[int]) -> dict[int, str]:
        """Return the readable names of threads, keyed by thread address."""
        return {address: name for address in addresses if address and (name := self.name(address))}

    def all(self) -> Iterator[Thread]:
        """Yield the threads of all processes on the readable part of the kernel's list."""
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

    def at(self, address: int) -> Thread:
        """Return the thread with its structure at an address.

        :raises KinstError: if it cannot be read, or the kernel's threads are unknown.
        """
        members, lists = self._machine.guest.programs.members, self._lists
        if self._thread is None or members is None:
            raise KinstError(f"{self._machine.image.path}: the threads of this kernel are unknown")
        thread = CStruct(self._thread, address, self._machine)
        try:
            process = thread[members.process]
            return Thread(address, _number(thread, lists.tid), _text(thread[lists.name]),
                          int(process[lists.pid]), _text(process[lists.process_name]),
                          _number(thread, lists.saved))
        except UNREADABLE:
            raise KinstError(f"the thread at {address:#x} cannot be read") from None

    def reading_terminals(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Yield the name and the identity of each process in the foreground of its terminal.

        The identity has the values that ``TerminalMembers`` names.
        """
        members = self._machine.guest.threads.terminals
        if members is None:
            return
        for process in self._processes():
            try:
                group = process[members.group]
                terminal = _member(group, members.terminal)
                if not int(terminal) or int(terminal[members.foreground]) != int(group):
                    continue
            except UNREADABLE:
                continue
            identity = dict[str, int]()
            for name, path in members.identity.items():
                with contextlib.suppress(*UNREADABLE):
                    identity[name] = _number(process, path)
            yield _text(process[self._lists.process_name]), identity

    def _processes(self) -> Iterator[CStruct]:
        """Yield the processes on the readable part of the kernel's list."""
        if self._thread is None or self._process is None:
            return
        head = self._machine.image.symbols.find(self._lists.first_process)
        known = set[int]()
        try:
            address = 0 if head is None else self._machine.read_u64(head.address)
            while address and address not in known and len(known) < MOST:
                known.add(address)
                process = CStruct(self._process, address, self._machine)
                yield process
                address = _number(process, self._lists.next_process)
        except UNREADABLE:
            return

    def _of(self, process: CStruct) -> Iterator[Thread]:
        assert self._thread is not None
        lists = self._lists
        address = _number(process, self._lists.first_thread)
        known = set[int]()
        while address and address not in known and len(known) < MOST:
            known.add(address)
            thread = CStruct(self._thread, address, self._machine)
            yield Thread(address, _number(thread, lists.tid), _text(thread[lists.name]),
                         _number(process, lists.pid), _text(process[lists.process_name]),
                         _number(thread, lists.saved))
            address = _number(thread, lists.next_thread)

    def space(self, pid: int) -> tuple[str, AddressSpace]:
        """Return the name and the address space of a process.

        :raises KinstError: if there is no such process, or the kernel does not describe processes.
        """
        path, register = self._machine.guest.programs.page_tables
        if self._process is None or not path:
            raise KinstError(f"{self._machine.image.path}: the memory of processes is not "
                             "available, because the kernel has no debug data or no processes")
        known = []
        for process in self._processes():
            known.append(_number(process, self._lists.pid))
            if known[-1] == pid:
                try:
                    root = _number(process, path)
                except UNREADABLE:
                    break  # the process has no address space, or no longer has one
                return (_text(process[self._lists.process_name]),
                        AddressSpace(self._machine, register, root))
        raise KinstError(f"process {pid} does not exist or has no memory; existing processes: "
                         f"{', '.join(map(str, sorted(known)[:50])) or 'none'}")

    def saved(self, thread: Thread) -> dict[str, int]:
        """Return the registers that the kernel has saved for a thread that is not running."""
        kind = None if self._types is None else structure(self._types, self._lists.registers)
        registers: dict[str, int] = {}
        if kind is None:
            return registers
        pcb = CStruct(kind, thread.saved, self._machine)
        for name, (member, index) in self._machine.guest.registers.saved.items():
            try:
                value = pcb[member]
                registers[name] = int(value if index is None else value[index]) & MASK
            except (*UNREADABLE, IndexError):
                continue
        return registers


def _number(inside: CStruct, path: str) -> int:
    """Return the integer member of a structure at a path such as ``member.member``."""
    return int(_member(inside, path))


def _member(inside: Any, path: str) -> Any:
    """Return the member of a structure at a path such as ``member.member``."""
    for member in path.split("."):
        inside = inside[member]
    return inside


def _text(name: object) -> str:
    return plain(str(name)[:MAX_NAME])
