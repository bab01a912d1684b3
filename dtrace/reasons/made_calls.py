"""System calls that programs make in a recorded run, with their arguments and error numbers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dtrace.debug.kernel_types import kernel_types
from dwarf.types import (
    MAX_STEPS,
    Enumeration,
    Integer,
    Member,
    Pointer,
    Qualified,
    Type,
    Typedef,
    Types,
    size_of,
    strip,
)
from dwarf.values import is_text
from emu.guest.static_probe import SystemCall
from emu.host.errors import KinstError, MemoryAccessError
from emu.host.printable import printable
from emu.machine.machine import StopReason, Until
from emu.machine.running_thread import thread_of
from emu.machine.system_call import calls_of
from emu.replay.player import Player
from kinst.probes import system_calls
from kinst.probes.breakpoints import Breakpoints

MAX_CALLS = 1_000_000  # maximum number of system calls in a recording
MAX_PATH = 256  # maximum number of bytes shown of a string
WORD = 8
ERRORS = 1 << 31  # numbers from here on are negative: not errors, but what the kernel does next


@dataclass(frozen=True)
class MadeCall:
    """A system call that has returned.

    :param begin: instruction count when its function was called.
    :param count: instruction count when its function had returned.
    :param thread: address of the thread structure.
    :param words: the arguments, as the program passed them.
    :param text: the call as C source: name and arguments.
    :param error: error number; 0 if it succeeded.
    """

    begin: int
    count: int
    thread: int
    name: str
    function: str
    words: tuple[int, ...]
    text: str
    error: int


@dataclass(frozen=True)
class _Begun:
    count: int
    name: str
    function: str
    words: tuple[int, ...]
    text: str


class MadeCalls:
    """Finder of the system calls in a recording.

    :raises KinstError: if the kernel has no system calls, or its types are unknown.
    """

    def __init__(self, player: Player) -> None:
        self._player, self._machine = player, player.machine
        machine, image = player.machine, player.machine.image
        calls, members = calls_of(machine), machine.guest.programs.call_members
        if members is None:
            raise KinstError(f"{image.path}: the system calls of this kernel cannot be read")
        self._types: Types = kernel_types(image)
        self._offsets = system_calls.offsets(self._types, members)
        table = Breakpoints(machine)
        # address of an entry in a table of system calls -> name of the call, and the call
        self._declared: dict[int, tuple[str, SystemCall]] = {
            one.call.table.base + one.call.index * one.call.table.size: (one.function, one.call)
            for one in table.declared if one.call is not None}
        self._entries: dict[int, int] = {}
        for name in (calls.handler, *calls.others):
            function = image.symbols.find(name)
            if function is not None:
                self._entries |= {call.address: following.address for call, following in
                                  system_calls.places(table.trap, table.instructions(function),
                                                      self._offsets.arguments)}
        if not self._entries:
            raise KinstError(f"{image.path}: the calls of system call functions were not found")

    def all(self) -> Iterator[MadeCall]:
        """Yield the calls from the player's position on that return, in the order of returns.

        :raises KeyboardInterrupt: if the user interrupts the replay.
        """
        machine, begun = self._machine, dict[int, _Begun]()
        returns = set(self._entries.values())
        addresses = sorted(set(self._entries) | returns)
        for _ in range(2 * MAX_CALLS):
            stop = self._player.run(Until(addresses=addresses))
            if stop is None:
                return
            if stop.reason is StopReason.INTERRUPTED:
                raise KeyboardInterrupt
            thread, count = thread_of(machine), self._player.position.instructions
            if machine.pc in returns and thread in begun:
                call = begun.pop(thread)
                error = machine.read_register(machine.arch.result) & 0xFFFF_FFFF
                yield MadeCall(call.count, count, thread, call.name, call.function, call.words,
                               call.text, 0 if error >= ERRORS else error)
            if machine.pc in self._entries:
                begins = self._begins(thread, count)
                if begins is not None:
                    begun[thread] = begins
        raise KinstError(f"more than {MAX_CALLS} system calls; give a later start")

    def _begins(self, thread: int, count: int) -> _Begun | None:
        """Return the call that a thread begins, or None if it cannot be read."""
        machine = self._machine
        try:
            declared = self._declared.get(machine.read_u64(thread + self._offsets.entry))
            if declared is None:
                return None
            name, call = declared
            members = system_calls.arguments(self._types, machine.image, call.function)
            content = machine.read(thread + self._offsets.arguments, WORD * len(members))
        except MemoryAccessError:
            return None
        words = tuple(int.from_bytes(content[at : at + WORD], "little")
                      for at in range(0, len(content), WORD))
        shown = ", ".join(self._shown(member, word)
                          for member, word in zip(members, words, strict=True))
        return _Begun(count, name, call.function, words, f"{name}({shown})")

    def _shown(self, member: Member, word: int) -> str:
        kind = strip(member.type)
        if isinstance(kind, Pointer) and word and is_text(kind.target) and _is_const(kind.target):
            text = read_text(self._machine.read, word)
            if text is not None:
                return text
        if isinstance(kind, Integer | Enumeration):
            size = size_of(kind)
            word &= (1 << 8 * size) - 1
            if kind.signed and word >> 8 * size - 1:
                return str(word - (1 << 8 * size))
            return str(word)
        return f"{word:#x}" if word else "NULL"


def _is_const(kind: Type) -> bool:
    """Return whether a type is constant; a buffer for a result is not."""
    for _ in range(MAX_STEPS):
        if not isinstance(kind, Typedef | Qualified):
            return False
        if isinstance(kind, Qualified) and kind.qualifier == "const":
            return True
        kind = kind.target
    return False


def read_text(read: Callable[[int, int], bytes], address: int) -> str | None:
    """Return the string at an address in quotes, or None if it cannot be read."""
    content = bytearray()
    try:
        while len(content) < MAX_PATH and 0 not in content:
            size = min(64 - (address + len(content)) % 64, MAX_PATH - len(content))
            content += read(address + len(content), size)
    except MemoryAccessError:
        return None
    text, end, _rest = bytes(content).partition(b"\0")
    shown = printable(text.decode("utf-8", "backslashreplace"))
    return f'"{shown}"' if end else f'"{shown}"...'
