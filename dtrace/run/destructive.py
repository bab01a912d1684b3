"""What D's destructive actions do to the guest: it is another run from there on.

A signal is told to the thread that runs as the kernel would, in the thread's own structure: it
looks at that before it goes on in user mode.  Memory of programs is written where a program could
write.  A kernel that is to panic, or to enter its debugger, ends the run.
"""

from collections.abc import Callable

from dtrace.bpf._runtime import RuntimeFault
from dtrace.bpf.layout import Fault
from dtrace.stacks.user_programs import ADDRESS
from dwarf.members import MemberError, offset_of
from dwarf.types import Types
from emu.host.errors import KinstError
from emu.machine.machine import Machine


class ActionEnded(KinstError):
    """panic() or breakpoint(): the run ends there."""


class DestructiveActions:
    """:param thread: gives the address of the thread that runs; 0: there is none.
    :param fired: gives the name of the probe that fires.
    """

    def __init__(self, machine: Machine, types: Types | None, thread: Callable[[], int],
                 fired: Callable[[], str]) -> None:
        self._machine, self._types, self._thread, self._fired = machine, types, thread, fired

    def carry_out(self, name: str, value: int) -> None:
        """An action that is no chill().

        :raises RuntimeFault: for a signal that there is not, or no thread that could get it.
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
            at = [thread + offset_of(self._types, members.thread, path) + (number - 1) // 32 * 4
                  for path in members.pending]
            notice = thread + offset_of(self._types, members.thread, members.notice)
        except MemberError:
            raise RuntimeFault(Fault.ILLEGAL_OPERATION) from None
        for address in at:
            self._set(address, 1 << (number - 1) % 32)
        self._set(notice, 1 << members.bit)

    def _set(self, address: int, bits: int) -> None:
        before = int.from_bytes(self._machine.read(address, 4), "little")
        self._machine.write(address, (before | bits).to_bytes(4, "little"))

    def copy_out(self, address: int, content: bytes) -> None:
        """copyout() and copyoutstr().

        :raises RuntimeFault: where the program could not write now.
        """
        if address + len(content) > ADDRESS or not self._machine.may_write(address, len(content)):
            raise RuntimeFault(Fault.BAD_ADDRESS, address)
        self._machine.write(address, content)
