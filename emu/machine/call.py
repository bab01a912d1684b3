"""Calls of guest functions, injected into a machine that stands still.

A call borrows the CPU: it runs on the interrupted thread's stack, returns to the kernel's entry
point, which nothing executes after the boot, and is over when it gets there on its own stack.
"""

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from emu.elf.symbols import STT_GNU_IFUNC, Symbol
from emu.host.errors import KinstError
from emu.machine.machine import Machine, Stop, StopReason, Until

STACK_GAP = 512  # bytes below the interrupted stack pointer that are left alone
SMALL = 2048  # bytes of arguments that are placed on the stack
DEFAULT_LIMIT = 2_000_000_000  # instructions


class CallError(KinstError):
    """A call did not return; ``console`` is what the guest wrote meanwhile."""

    def __init__(self, text: str, console: bytes = b"") -> None:
        super().__init__(text)
        self.console = console


class PatienceError(CallError):
    """The host waited for a call, and it was not done: nothing is known of the call."""


@dataclass(eq=False)
class _Room:
    """The stack below a thread that stands still: all callers of a machine share it.

    :param sp: of the thread.
    :param free: the address below what is in use.
    """

    sp: int
    free: int
    left: int = SMALL


_ROOMS: "weakref.WeakKeyDictionary[Machine, weakref.ref[_Room]]" = weakref.WeakKeyDictionary()


def _room(machine: Machine) -> _Room:
    """The room of the callers that there are, or a new one where the machine stands now."""
    known = _ROOMS.get(machine)
    room = known() if known is not None else None
    if room is None or room.sp != machine.sp:
        room = _Room(machine.sp, (machine.sp - STACK_GAP) & ~15)
        _ROOMS[machine] = weakref.ref(room)
    return room


class Caller:
    """Calls on one machine.  Arguments placed in memory stay there until the machine goes back, or
    no caller is left.

    :param limit: instructions after which a call is taken to never return.
    :param on_stack: False: the interrupted thread goes on, and what is placed is kept elsewhere.
    """

    def __init__(self, machine: Machine, limit: int = DEFAULT_LIMIT, on_stack: bool = True) -> None:
        self.machine, self._on_stack = machine, on_stack
        self.limit = limit
        self._held = _room(machine)
        self._back = machine.guest.entry_address(machine.image)

    @property
    def _room(self) -> _Room:
        """Where the machine stands now.

        :raises KinstError: while it runs: a probe's function cannot call.
        """
        if self.machine.running:
            raise KinstError("the machine is running: a probe's function only looks at it")
        if self._held.sp != self.machine.sp:
            self._held = _room(self.machine)
        return self._held

    def placed(self) -> tuple[int, int, int]:
        """How much of the stack is in use, for ``placed_again``."""
        return self._held.sp, self._held.free, self._held.left

    def placed_again(self, placed: tuple[int, int, int]) -> None:
        """The machine has gone back to where just this was in use."""
        self._held.sp, self._held.free, self._held.left = placed

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """What is placed on the stack meanwhile is given up afterwards."""
        room = self._room
        before = room.free, room.left
        try:
            yield
        finally:
            room.free, room.left = before

    def place(self, data: bytes) -> int:
        """Put bytes into guest memory, 16-byte aligned, and give their address.

        Small ones go on the stack, others into memory from the guest's own ``malloc``.
        """
        size, room = (len(data) + 15) & ~15, self._room
        if self._on_stack and size <= room.left:
            room.left -= size
            room.free -= size
            address = room.free
        else:
            address = self._allocate(size)
        self.machine.write(address, data.ljust(size, b"\0"))  # what was there is nobody's argument
        return address

    def _allocate(self, size: int) -> int:
        symbols = self.machine.image.symbols
        allocator = self.machine.guest.allocator
        function, kind = symbols.find(allocator.function), symbols.find(allocator.kind)
        if function is None or kind is None:
            raise KinstError(
                f"{size} bytes of arguments: this kernel has no {allocator.function} to hold more "
                f"than {SMALL}"
            )
        address = self.call(function.address, [size, kind.address, allocator.flags],
                            allocator.function)
        if address == 0:
            raise KinstError(f"the guest has no memory for {size} bytes of arguments")
        return address

    def call(self, address: int, arguments: Sequence[int], name: str) -> int:
        """Call the function and give its return value.

        :raises PatienceError: when the machine is waited for too long.
        :raises CallError: when it panics, faults, or does not return.
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
                    continue  # another thread's, or a deeper frame's
                break
            self._failed(name, stop, seen)
        value = m.read_register(m.arch.result)
        for register, content in saved.items():
            m.write_register(register, content)
        return value

    def call_symbol(self, function: Symbol, arguments: Sequence[int]) -> int:
        """Call a function, or the one that an ifunc chooses, as ``call`` does."""
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
                f"{name} was not done in the time given: {stop.detail} (at {where})",
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
