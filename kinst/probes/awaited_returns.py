"""Tracking of awaited returns, for probes of inline copies and of functions left by tail calls."""

from collections.abc import Callable

from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine
from kinst.probes._dispatch import Dispatcher
from kinst.probes.inline_copies import SAME_STACK, InlineCopies
from kinst.probes.probed_code import ProbeError

MAX_THREADS, MAX_TAILS = 1 << 16, 1 << 20


class AwaitedReturns:
    """Collection of each thread's awaited return addresses, at which the machine stops.

    Functions that left by a tail call return there, and calls that end an inline copy.

    :param returned: called with the number of a probe that fires, and whether its function has
        returned (otherwise its inline copy was left).
    """

    def __init__(self, machine: Machine, dispatcher: Dispatcher,
                 returned: Callable[[int, bool], None]) -> None:
        self._machine, self._dispatcher, self._returned = machine, dispatcher, returned
        # thread -> (stack pointer after the return, return address, probe), innermost last
        self._waiting: dict[int, list[tuple[int, int, int]]] = {}
        self._copies: dict[int, InlineCopies] = {}  # inline copies that each thread is executing
        self._addresses: set[int] = set()  # all return addresses at which the machine stops

    def wait(self, number: int, sp: int, back: int) -> None:
        """Arrange for a probe to fire when the running thread has returned to an address.

        :param number: number of the probe that fires then.
        :param sp: the stack pointer after the return.
        :param back: the return address.
        :raises ProbeError: when too many returns are awaited.
        """
        waiting = self._of_thread()[0]
        while waiting and 0 < sp - waiting[-1][0] < SAME_STACK:
            waiting.pop()  # the stack frame of this call no longer exists
        if len(waiting) == MAX_TAILS:
            raise ProbeError(f"more than {MAX_TAILS} tail calls of one thread have not returned "
                             "yet: probe fewer returns")
        waiting.append((sp, back, number))
        self._addresses.add(back)
        self._machine.handle(back, self._came)

    @property
    def copies(self) -> InlineCopies:
        """Inline copies that the running thread is executing."""
        return self._of_thread()[1]

    def clear(self) -> None:
        """Stop waiting for returns, and forget the inline copies."""
        for address in self._addresses:
            self._machine.handle(address, None)
        self._addresses.clear()
        self._waiting.clear()
        self._copies.clear()

    def _of_thread(self) -> tuple[list[tuple[int, int, int]], InlineCopies]:
        """Return the awaited returns and the inline copies of the running thread."""
        machine = self._machine
        try:
            thread = machine.read_u64(machine.read_register(machine.guest.threads.per_cpu))
        except MemoryAccessError:  # the kernel has no threads
            thread = 0
        if thread not in self._copies and len(self._copies) == MAX_THREADS:
            raise ProbeError(f"more than {MAX_THREADS} threads have reached return probes: probe "
                             "fewer returns")
        return (self._waiting.setdefault(thread, []),
                self._copies.setdefault(thread, InlineCopies(self._dispatcher)))

    def _came(self) -> None:
        """Handle a stop at an awaited return address."""
        machine = self._machine
        waiting, copies = self._of_thread()
        while waiting and 0 < machine.sp - waiting[-1][0] < SAME_STACK:
            waiting.pop()
        while waiting and waiting[-1][:2] == (machine.sp, machine.pc):
            number = waiting.pop()[2]
            if self._dispatcher.copy_of(number) is None:
                self._returned(number, True)
            elif copies.leave(number):
                self._returned(number, False)
