"""Calls of guest functions on a stopped machine.

A call borrows the CPU: it runs on the stack of the interrupted thread and returns to the kernel's
entry point, which nothing executes after the boot.  The call is complete when the CPU reaches that
address with the stack pointer of the call's own frame.
"""

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from emu.elf.symbols import STT_GNU_IFUNC, Symbol
from emu.host.errors import KinstError
from emu.machine.machine import Machine, Stop, StopReason, Until

STACK_GAP = 512  # number of bytes below the interrupted stack pointer that calls leave untouched
SMALL = 2048  # maximum size in bytes of arguments placed on the interrupted stack
DEFAULT_LIMIT = 2_000_000_000  # maximum number of instructions that one call may execute


class CallError(KinstError):
    """Error raised if a guest function call does not return.

    :ivar console: console output of the guest during the call.
    """

    def __init__(self, text: str, console: bytes = b"") -> None:
        super().__init__(text)
        self.console = console


class PatienceError(CallError):
    """Error raised if a guest function call is still running when its time allowance expires.

    Whether the call would have returned is unknown.
    """


@dataclass(eq=False)
class _Room:
    """Unused stack space below a stopped thread; all callers on a machine share this space.

    :param sp: stack pointer of the thread.
    :param free: lowest stack address in use.
    :param left: bytes still available for arguments.
    """

    sp: int
    free: int
    left: int = SMALL


_ROOMS: "weakref.WeakKeyDictionary[Machine, weakref.ref[_Room]]" = weakref.WeakKeyDictionary()


def _room(machine: Machine) -> _Room:
    """Return the stack space shared by a machine's callers; reset it if the stack pointer moved."""
    known = _ROOMS.get(machine)
    room = known() if known is not None else None
    if room is None or room.sp != machine.sp:
        room = _Room(machine.sp, (machine.sp - STACK_GAP) & ~15)
        _ROOMS[machine] = weakref.ref(room)
    return room


class Caller:
    """Caller of guest functions on one machine.

    Arguments placed in memory stay there until the machine returns to an earlier state or its last
    caller is released.

    :param limit: instructions after which a call is considered stuck.
    :param on_stack: whether arguments may be placed on the interrupted thread's stack.  Use False
        if that thread continues while the arguments are in use; they then go to memory from the
        guest's ``malloc``.
    """

    def __init__(self, machine: Machine, limit: int = DEFAULT_LIMIT, on_stack: bool = True) -> None:
        self.machine, self._on_stack = machine, on_stack
        self.limit = limit
        self._held = _room(machine)
        self._back = machine.guest.entry_address(machine.image)

    @property
    def _room(self) -> _Room:
        """Return the unused stack space below the machine's current stack pointer.

        :raises KinstError: while the machine runs, because a probe callback cannot make calls.
        """
        if self.machine.running:
            raise KinstError("the machine is running: a probe callback cannot call guest functions")
        if self._held.sp != self.machine.sp:
            self._held = _room(self.machine)
        return self._held

    def placed(self) -> tuple[int, int, int]:
        """Return the state of the stack space, for ``placed_again``."""
        return self._held.sp, self._held.free, self._held.left

    def placed_again(self, placed: tuple[int, int, int]) -> None:
        """Restore a state that ``placed`` returned, after the machine itself has been restored."""
        self._held.sp, self._held.free, self._held.left = placed

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """At the end of a ``with`` block, release the stack space used for its call arguments."""
        room = self._room
        before = room.free, room.left
        try:
            yield
        finally:
            room.free, room.left = before

    def place(self, data: bytes) -> int:
        """Copy bytes into guest memory, aligned to 16 bytes, and return the address of the copy.

        Data goes on the stack while it fits, else into memory from the guest's ``malloc``.
        """
        size, room = (len(data) + 15) & ~15, self._room
        if self._on_stack and size <= room.left:
            room.left -= size
            room.free -= size
            address = room.free
        else:
            address = self._allocate(size)
        self.machine.write(address, data.ljust(size, b"\0"))  # zero padding hides stale bytes
        return address

    def _allocate(self, size: int) -> int:
        symbols = self.machine.image.symbols
        allocator = self.machine.guest.allocator
        function, kind = symbols.find(allocator.function), symbols.find(allocator.kind)
        if function is None or kind is None:
            raise KinstError(
                f"{size} bytes of arguments cannot be placed: the stack holds at most {SMALL}, and "
                f"this kernel has no {allocator.function}"
            )
        address = self.call(function.address, [size, kind.address, allocator.flags],
                            allocator.function)
        if address == 0:
            raise KinstError(f"the guest cannot allocate {size} bytes for arguments")
        return address

    def call(self, address: int, arguments: Sequence[int], name: str) -> int:
        """Call the guest function at an address and return its result.

        :param name: function name for error messages.
        :raises PatienceError: if the call does not finish in the time allowed.
        :raises CallError: if the guest panics, faults or does not return.
        """
        m, room = self.machine, self._room
        saved = m.registers()
        seen = len(m.console.text)
        m.write_register(m.arch.sp, room.free)
        m.arch.prepare_call(m, tuple(arguments), self._back)
        m.pc = address
        top = m.arch.stack_after_return(m)
        limit = m.instructions + self.limit if m.counts else None
        while True:
            stop = m.run(Until(addresses=[self._back], instructions=limit))
            if stop.reason is StopReason.ADDRESS and stop.pc == self._back:
                if m.sp != top:
                    continue  # another thread or a deeper frame reached the return address
                break
            self._failed(name, stop, seen)
        value = m.read_register(m.arch.result)
        for register, content in saved.items():
            m.write_register(register, content)
        return value

    def call_symbol(self, function: Symbol, arguments: Sequence[int]) -> int:
        """Call a function by its symbol, after resolving an ifunc; see ``call``."""
        address = function.address
        if function.kind == STT_GNU_IFUNC:
            address = self.call(address, [], function.name)
        return self.call(address, arguments, function.name)

    def _failed(self, name: str, stop: Stop, seen: int) -> None:
        m = self.machine
        where = m.image.symbols.where(stop.pc)
        if stop.reason is StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        if stop.reason is StopReason.PATIENCE:
            raise PatienceError(
                f"{name} did not finish in the time allowed: {stop.detail} (at {where})",
                bytes(m.console.text[seen:]))
        if stop.reason is StopReason.INSTRUCTIONS:
            why = f"did not return within {self.limit} instructions (at {where})"
        elif stop.reason is StopReason.PANIC:
            why = f"panicked ({stop.detail})" if stop.detail else "panicked"
        elif stop.reason is StopReason.UNHANDLED:
            why = f"faulted: {stop.detail} at {where}"
        else:
            why = f"did not return: {stop.reason.value} at {where}"
        raise CallError(f"{name} {why}", bytes(m.console.text[seen:]))
