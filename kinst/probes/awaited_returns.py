"""Stops at the addresses where functions return that have left by tail calls, and where inline
copies end that leave by a call."""

from collections.abc import Callable

from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine
from kinst.probes._dispatch import Dispatcher
from kinst.probes.inline_copies import InlineCopies
from kinst.probes.probed_code import ProbeError

MAX_THREADS, MAX_TAILS = 1 << 16, 1 << 20
SAME_STACK = 1 << 20  # bytes: stack pointers that are further apart are of different stacks


class AwaitedReturns:
    """Return addresses that probes wait for, by thread: of functions that left by a tail call, and
    of inline copies that end with a call.  The machine stops at each.

    :param returned: called with the number of a probe that is to fire, and whether its function
        has returned; else its inline copy has been left.
    """

    def __init__(self, machine: Machine, dispatcher: Dispatcher,
                 returned: Callable[[int, bool], None]) -> None:
        self._machine, self._dispatcher, self._returned = machine, dispatcher, returned
        # By thread: (stack pointer and address when they have returned, probe), the last one last.
        self._waiting: dict[int, list[tuple[int, int, int]]] = {}
        self._copies: dict[int, InlineCopies] = {}  # that the thread is in
        self._addresses: set[int] = set()  # all that one was expected at

    def wait(self, number: int, sp: int, back: int) -> None:
        """Wait until the thread that runs is back.

        :param number: of the probe that is to fire then; a copy has been left then.
        :param sp: the stack pointer when it is back, and ``back`` the address.
        :raises ProbeError: when more are waited for than can be.
        """
        waiting = self._of_thread()[0]
        while waiting and 0 < sp - waiting[-1][0] < SAME_STACK:
            waiting.pop()  # its frame is gone
        if len(waiting) == MAX_TAILS:
            raise ProbeError(f"more than {MAX_TAILS} functions of one thread have left by tail "
                             "calls and have not returned: probe fewer returns")
        waiting.append((sp, back, number))
        self._addresses.add(back)
        self._machine.handle(back, self._came)

    @property
    def copies(self) -> InlineCopies:
        """The inline copies that the thread that runs is in."""
        return self._of_thread()[1]

    def clear(self) -> None:
        """Nothing is waited for."""
        for address in self._addresses:
            self._machine.handle(address, None)
        self._addresses.clear()
        self._waiting.clear()
        self._copies.clear()

    def _of_thread(self) -> tuple[list[tuple[int, int, int]], InlineCopies]:
        """What is kept of the thread that runs."""
        machine = self._machine
        try:
            thread = machine.read_u64(machine.read_register(machine.guest.threads.per_cpu))
        except MemoryAccessError:  # there is none: a kernel without threads
            thread = 0
        if thread not in self._copies and len(self._copies) == MAX_THREADS:
            raise ProbeError(f"more than {MAX_THREADS} threads come to probes of returns: probe "
                             "fewer")
        return (self._waiting.setdefault(thread, []),
                self._copies.setdefault(thread, InlineCopies(self._dispatcher)))

    def _came(self) -> None:
        """The guest is at an address that a function may return to."""
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
