"""A system call that a program makes."""

from emu.guest.guest import SystemCalls
from emu.host.errors import KinstError
from emu.machine.system_call import calls_of, numbers
from emu.unicorn.machine import UnicornMachine
from kinst_emu.explain.record.entry import EntryRecorder, SeenEntry
from kinst_emu.explain.record.instruction import SeenInstruction
from kinst_emu.explain.record.running import RunningThread


class CallRecorder(EntryRecorder):
    """:param name: of the call: ``open`` or ``sys_open``.
    :raises KinstError: when there is no such system call.
    """

    def __init__(self, machine: UnicornMachine, name: str, command: str, hit: int, limit: int,
                 running: RunningThread) -> None:
        self.calls: SystemCalls = calls_of(machine)
        plain = name.removeprefix(self.calls.prefix)
        known = numbers(machine)
        function = machine.image.symbols.find(self.calls.prefix + plain)
        if plain not in known or function is None:
            raise KinstError(f"'{name}' is no system call of this kernel: give its name, like "
                             f"open or {self.calls.prefix}open")
        self.number = known[plain]
        super().__init__(machine, SeenEntry(
            function, f"calls of {function.name}", command, hit),
            self.calls.handler, limit, running)

    def counts(self) -> bool:
        return True

    def program(self, row: SeenInstruction) -> SeenInstruction:
        if row.code != self.calls.instruction:
            raise KinstError(f"{self.seen.function.name}: where the program has made the call is "
                             "not seen: another thread ran in between; --hit explains another one")
        return row

    def left(self) -> None:
        """There is nothing more to look at."""
