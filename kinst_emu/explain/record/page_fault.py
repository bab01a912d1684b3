"""Recorder of page faults: accesses that a program's page tables do not permit."""

from dataclasses import dataclass, replace

from emu.host.errors import KinstError
from emu.machine.system_call import calls_of
from emu.unicorn.machine import UnicornMachine
from kinst.relocation.trap import trap_of
from kinst_emu.explain.record.entry import EntryRecorder, SeenEntry
from kinst_emu.explain.record.instruction import SeenInstruction
from kinst_emu.explain.record.running import RunningThread

WHAT = "user-mode page faults"


@dataclass(frozen=True)
class Mapping:
    """Translation of an address by the page tables.

    :param physical: physical address.
    :param entry: the page table entry that maps the address.
    :param writable: whether the entry permits writing.
    """

    physical: int
    entry: int
    writable: bool


class FaultRecorder(EntryRecorder):
    """Recorder of a page fault in a program.

    Faults of the kernel itself, while it copies from or to a program, are not counted: the program
    entered the kernel for another reason then.

    ``address`` is the address of the access, ``access`` its kind (bits of ``vm_prot_t``);
    ``before`` and ``after`` are the translations of the address before and after the fault; None
    if it is not mapped.

    :raises KinstError: if the kernel runs no programs, or its page faults cannot be recorded.
    """

    def __init__(self, machine: UnicornMachine, command: str, hit: int, limit: int,
                 running: RunningThread) -> None:
        calls_of(machine)
        faults = machine.guest.traps.page_faults
        if faults is None:
            raise KinstError(f"{machine.image.path}: cannot explain page faults: the kernel's "
                             "page fault handler is unknown")
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
        """Return whether the trap frame shows that the program itself caused the fault."""
        field, bits, values = self._faults.cause
        return self._field(field) & bits in values

    def _field(self, name: str) -> int:
        return self.machine.guest.traps.trap_frame.read(self.machine, self.running.frame(), name)

    def program(self, row: SeenInstruction) -> SeenInstruction:
        """Record the faulting access, and return the faulting instruction."""
        machine, layout = self.machine, self.machine.guest.traps.trap_frame
        self.address = self._field(self._faults.address)
        self.access = machine.read_register(machine.arch.arguments[self._faults.access])
        self.before = self._mapping()
        pc = self._field(self._pc)
        if row.address == pc:
            return row
        # The instruction could not be fetched, so it was not recorded: use the trap frame's values.
        registers = dict(row.registers)
        for name in registers:
            field = self._registers.field(name)
            if field in layout.fields:
                registers[name] = self._field(field)
        return SeenInstruction(pc, b"", registers)

    def left(self) -> None:
        """Record the mapping of the faulting address after the fault."""
        self.after = self._mapping()

    def record(self) -> SeenEntry:
        """Run the command and record the wanted page fault.

        The bytes of an instruction that could not be fetched are those of its second attempt.
        """
        seen = super().record()
        first, last = seen.entry.rows[0], seen.leaving.rows[-1]
        if not first.code and last.address == first.address:
            seen.entry.rows[0] = replace(first, code=last.code)
        return seen

    def _mapping(self) -> Mapping | None:
        arch = self.machine.arch
        walked = arch.walk(self.machine, self.address)
        return None if walked is None else Mapping(*walked, arch.writable(walked[1]))
