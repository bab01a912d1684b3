"""Recorder of a system call that a program makes."""

from emu.guest.guest import SystemCalls
from emu.host.errors import KinstError
from emu.machine.system_call import calls_of, numbers
from emu.unicorn.machine import UnicornMachine
from kinst_emu.explain.record.entry import EntryRecorder, SeenEntry
from kinst_emu.explain.record.instruction import SeenInstruction
from kinst_emu.explain.record.running import RunningThread


class CallRecorder(EntryRecorder):
    """Recorder of a system call made by a program.

    :param name: name of the call, such as ``open`` or ``sys_open``.
    :raises KinstError: if there is no system call with that name.
    """

    def __init__(self, machine: UnicornMachine, name: str, command: str, hit: int, limit: int,
                 running: RunningThread) -> None:
        self.calls: SystemCalls = calls_of(machine)
        plain = name.removeprefix(self.calls.prefix)
        known = numbers(machine)
        function = machine.image.symbols.find(self.calls.prefix + plain)
        if plain not in known or function is None:
            raise KinstError(f"'{name}' is not a system call of this kernel; use a name such as "
                             f"open or {self.calls.prefix}open")
        self.number = known[plain]
        super().__init__(machine, SeenEntry(
            function, f"calls to {function.name}", command, hit),
            self.calls.handler, limit, running)

    def counts(self) -> bool:
        """Return True: every call of the function is an occurrence."""
        return True

    def program(self, row: SeenInstruction) -> SeenInstruction:
        """Return the instruction that made the system call."""
        if row.code != self.calls.instruction:
            raise KinstError(f"{self.seen.function.name}: the program's system call instruction "
                             "was not recorded, because another thread ran in between; choose "
                             "another occurrence with --hit")
        return row

    def left(self) -> None:
        """Do nothing: the recording of a system call is complete at this point."""
