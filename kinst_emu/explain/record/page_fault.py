"""A page fault of a program: an access to an address that its page tables do not let it have."""

from dataclasses import dataclass, replace

from emu.host.errors import KinstError
from emu.machine.system_call import calls_of
from emu.unicorn.machine import UnicornMachine
from kinst.relocation.trap import trap_of
from kinst_emu.explain.record.entry import EntryRecorder, SeenEntry
from kinst_emu.explain.record.instruction import SeenInstruction
from kinst_emu.explain.record.running import RunningThread

WHAT = "page faults of a program"


@dataclass(frozen=True)
class Mapping:
    """What the page tables have for an address.

    :param entry: that maps it.
    """

    physical: int
    entry: int
    writable: bool


class FaultRecorder(EntryRecorder):
    """Those of the kernel itself, while it copies from or to a program, are not counted: the
    program was left by something else then.

    ``address`` is the one that was wanted, ``access`` what for (bits of ``vm_prot_t``); ``before``
    and ``after`` what the page tables have for it; None: nothing.

    :raises KinstError: for a kernel that runs no programs.
    """

    def __init__(self, machine: UnicornMachine, command: str, hit: int, limit: int,
                 running: RunningThread) -> None:
        calls_of(machine)
        faults = machine.guest.traps.page_faults
        if faults is None:
            raise KinstError(f"{machine.image.path}: nothing is known of its page faults")
        self._faults = faults
        arch = machine.arch
        self._registers = trap_of(machine.guest, arch.name).frame
        self._pc = self._registers.field(arch.pc)
        self.address = self.access = 0
        self.before: Mapping | None = None
        self.after: Mapping | None = None
        super().__init__(machine, SeenEntry(
            machine.symbol(faults.function), WHAT, command, hit), faults.handler, limit, running)

    def counts(self) -> bool:
        field, bits, values = self._faults.cause
        return self._field(field) & bits in values

    def _field(self, name: str) -> int:
        return self.machine.guest.traps.trap_frame.read(self.machine, self.running.frame(), name)

    def program(self, row: SeenInstruction) -> SeenInstruction:
        machine, layout = self.machine, self.machine.guest.traps.trap_frame
        self.address = self._field(self._faults.address)
        self.access = machine.read_register(machine.arch.arguments[self._faults.access])
        self.before = self._mapping()
        pc = self._field(self._pc)
        if row.address == pc:
            return row
        # It could not be fetched, so nobody has seen it; what the program has is in the frame.
        registers = dict(row.registers)
        for name in registers:
            field = self._registers.field(name)
            if field in layout.fields:
                registers[name] = self._field(field)
        return SeenInstruction(pc, b"", registers)

    def left(self) -> None:
        self.after = self._mapping()

    def record(self) -> SeenEntry:
        seen = super().record()
        first, last = seen.entry.rows[0], seen.leaving.rows[-1]
        if not first.code and last.address == first.address:
            seen.entry.rows[0] = replace(first, code=last.code)
        return seen

    def _mapping(self) -> Mapping | None:
        arch = self.machine.arch
        found = arch.walk(self.machine, self.address)
        return None if found is None else Mapping(*found, arch.writable(found[1]))
