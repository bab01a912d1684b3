"""The threads of the guest's kernel, by its own lists and types."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dtrace.kernel_types import kernel_types
from dwarf.debug_file import DebugDataError
from dwarf.types import Structure, Types
from dwarf.values import CStruct
from emu.errors import MemoryAccessError
from emu.machine import Machine
from emu.printable import plain

MOST = 4096  # threads, and processes; a list may also be a circle
MAX_NAME = 64
MASK = (1 << 64) - 1
# What a list that is not yet, or no longer, in order makes of being read.
UNREADABLE = (MemoryAccessError, DebugDataError, AttributeError, TypeError, ValueError)


@dataclass(frozen=True)
class Thread:
    """:param address: of its ``struct thread``.
    :param process: the name of its process; ``pid`` is its number.
    :param saved: the address of its ``struct pcb``: what it goes on with, where it does not run.
    """

    address: int
    tid: int
    name: str
    pid: int
    process: str
    saved: int


def structure(types: Types, name: str) -> Structure | None:
    """A struct of the kernel's; None: it has none, or does not say what is in it."""
    for kind in types.named(f"struct {name}"):
        if isinstance(kind, Structure):
            return kind
    return None


class Threads:
    """The threads of one machine.  A kernel without types, or without threads, has none."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._types: Types | None = None
        self._thread = self._process = None
        try:
            self._types = kernel_types(machine.image)
        except DebugDataError:
            return
        self._thread = structure(self._types, "thread")
        self._process = structure(self._types, "proc")

    def name(self, address: int) -> str:
        """``td_name`` of a thread; empty where it cannot be read."""
        if self._thread is None:
            return ""
        try:
            return _text(CStruct(self._thread, address, self._machine)["td_name"])
        except UNREADABLE:
            return ""

    def names(self, addresses: Iterable[int]) -> dict[int, str]:
        return {address: name for address in addresses if address and (name := self.name(address))}

    def all(self) -> Iterator[Thread]:
        """Those of every process on the kernel's list, as far as it can be read."""
        if self._thread is None or self._process is None:
            return
        head = self._machine.image.symbols.find("allproc")
        try:
            at = 0 if head is None else self._machine.read_u64(head.address)
            known, left = set[int](), MOST
            while at and at not in known and len(known) < MOST:
                known.add(at)
                process = CStruct(self._process, at, self._machine)
                for thread in self._of(process):
                    left -= 1
                    if left < 0:
                        return
                    yield thread
                at = int(process["p_list"]["le_next"])
        except UNREADABLE:
            return

    def _of(self, process: CStruct) -> Iterator[Thread]:
        assert self._thread is not None
        at = int(process["p_threads"]["tqh_first"])
        known = set[int]()
        while at and at not in known and len(known) < MOST:
            known.add(at)
            thread = CStruct(self._thread, at, self._machine)
            yield Thread(at, int(thread["td_tid"]), _text(thread["td_name"]),
                         int(process["p_pid"]), _text(process["p_comm"]),
                         int(thread["td_pcb"]))
            at = int(thread["td_plist"]["tqe_next"])

    def saved(self, thread: Thread) -> dict[str, int]:
        """The registers that a thread which does not run goes on with, as far as they are kept."""
        kind = None if self._types is None else structure(self._types, "pcb")
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


def _text(name: object) -> str:
    return plain(str(name)[:MAX_NAME])
