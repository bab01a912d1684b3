"""Destructive actions of D, which change the guest and thus the rest of the run.

A signal is made pending in the structure of the current thread, as the kernel does it, and the
thread checks for signals before it returns to user mode.  Memory of a program is only written where
the program itself could write.  panic() and breakpoint() end the run.
"""

from collections.abc import Callable

from dtrace.bpf._runtime import RuntimeFault
from dtrace.bpf.layout import Fault
from dtrace.stacks.user_programs import ADDRESS
from dwarf.members import MemberError, offset_of
from dwarf.types import Types
from emu.elf.linked_image import version_of
from emu.host.errors import KinstError
from emu.machine.machine import Machine


class ActionEnded(KinstError):
    """Error raised when a panic() or breakpoint() action ends the run."""


class DestructiveActions:
    """Implementation of D's destructive actions on a guest.

    :param thread: returns the address of the current thread, or 0 if there is none.
    :param fired: returns the name of the firing probe.
    """

    def __init__(self, machine: Machine, types: Types | None, thread: Callable[[], int],
                 fired: Callable[[], str]) -> None:
        self._machine, self._types, self._thread, self._fired = machine, types, thread, fired

    def carry_out(self, name: str, value: int) -> None:
        """Perform a destructive action other than chill().

        :raises RuntimeFault: for an invalid signal number, or without a thread to receive a signal.
        :raises ActionEnded: for panic() and breakpoint().
        """
        if name in ("panic", "breakpoint"):
            raise ActionEnded(f"{name} action at probe {self._fired()}")
        members = self._machine.guest.programs.signals
        if members is None:
            raise RuntimeFault(Fault.ILLEGAL_OPERATION)
        self._signal(members.stop if name == "stop" else value)

    def _signal(self, number: int) -> None:
        members, thread = self._machine.guest.programs.signals, self._thread()
        if members is None or self._types is None or not thread or (
                not 0 < number <= members.count):
            raise RuntimeFault(Fault.ILLEGAL_OPERATION)
        try:
            words = [thread + offset_of(self._types, members.thread, path) + (number - 1) // 32 * 4
                     for path in members.pending]
            notice = thread + offset_of(self._types, members.thread, members.notice)
        except MemberError:
            raise RuntimeFault(Fault.ILLEGAL_OPERATION) from None
        for address in words:
            self._set(address, 1 << (number - 1) % 32)
        self._set(notice, 1 << members.bit(version_of(self._machine.image)))

    def _set(self, address: int, bits: int) -> None:
        before = int.from_bytes(self._machine.read(address, 4), "little")
        self._machine.write(address, (before | bits).to_bytes(4, "little"))

    def copy_out(self, address: int, content: bytes) -> None:
        """Write to a program's memory, for copyout() and copyoutstr().

        :raises RuntimeFault: if the program itself could not write there now.
        """
        if address + len(content) > ADDRESS or not self._machine.may_write(address, len(content)):
            raise RuntimeFault(Fault.BAD_ADDRESS, address)
        self._machine.write(address, content)
