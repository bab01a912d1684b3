"""One firing of one probe as the machine goes through it: every instruction, the trap frame.

The firing takes the long way: the kernel's vectors, the handler in Python, on arm64 and riscv64 the
second breakpoint through the vectors again (``kinst.probes.breakpoints``, path ``double``).  The
machine that it is looked at on is not used for anything else: each instruction is a stop of
Unicorn's.
"""

import contextlib
from collections.abc import Callable, Iterator

import unicorn

from dtrace.flow.steps import Translations
from dwarf.types import Types
from emu.host.errors import KinstError, MemoryAccessError
from emu.machine.machine import Stop, StopReason, Until
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.wired_machine import Go
from kinst.probes.breakpoints import DOUBLE, Breakpoints, NativeState
from kinst.probes.kinds import ProbeKind
from kinst.probes.probe_table import Probe
from kinst.relocation.trampoline import SLOT
from kinst.relocation.trap import NO_TRAMPOLINES, CpuState
from kinst.relocation.verdict import Copy, Refuse, Rewrite
from kinst_emu.explain.record.chosen import ChosenPlace
from kinst_emu.explain.record.clause import ExplainedClause
from kinst_emu.explain.record.each_instruction import EachInstruction
from kinst_emu.explain.record.instruction import SeenInstruction, seen_instruction
from kinst_emu.explain.record.seen_firing import (
    STACK,
    SeenFiring,
    SeenFrame,
    SeenMistake,
    SeenStore,
    Stack,
)
from kinst_emu.explain.record.stack_words import WORD, StackWords
from kinst_emu.explain.record.what_if import COPY, SHARE, CopyingBreakpoints, sharing

MAX_ROWS = 20_000  # instructions between the breakpoint and where the run goes on
MAX_SEEN = 300_000  # instructions of a call that goes wrong, those of firings among them
STRAYED = 4  # instructions that are kept of a run that does not go on as it should


class FiringRecorder(EachInstruction):
    """Records one firing.

    :param machine: where a kernel waits; not to be used for anything else afterwards.
    :param place: where the firing is, and by what probe that was found.
    :raises KinstError: when the instruction cannot be probed.
    """

    def __init__(self, machine: UnicornMachine, place: ChosenPlace, what_if: str = "") -> None:
        function, offset = place.function, place.offset
        super().__init__(machine)
        made = Breakpoints(machine, self._fired, DOUBLE, python=True)
        table = made.instructions(function)
        found = next((i for i in table if i.offset == offset), None)
        if found is None:
            near = sorted((i.offset for i in table), key=lambda at: abs(at - offset))[:2]
            raise KinstError(f"{function.name}:{offset}: no instruction begins there; the nearest "
                             f"are at {' and '.join(map(str, sorted(near)))} (kinst disas "
                             f"{function.name} lists all)")
        if isinstance(found.verdict, Refuse):
            raise KinstError(f"{function.name}:{offset}: cannot be probed: it "
                             f"{found.verdict.reason}")
        where = f"{function.name}:{offset}"
        if what_if and made.trap.kernel_effects:
            raise KinstError(f"{where}: --what-if {what_if}: {NO_TRAMPOLINES}: it has no "
                             "trampolines")
        if what_if == COPY:
            if isinstance(found.verdict, Copy):
                raise KinstError(f"{where}: --what-if copy: it is rightly copied as it is: "
                                 "choose one that is rewritten or emulated (kinst disas "
                                 f"{function.name} shows the verdicts)")
            made = CopyingBreakpoints(machine, self._fired, found.code)
        other = None
        if what_if == SHARE:
            other = sharing(table, found)
            if not isinstance(found.verdict, Copy | Rewrite):
                raise KinstError(f"{where}: --what-if share: it has no trampoline: it is emulated")
            if other is None:
                raise KinstError(f"{where}: --what-if share: no other instruction of "
                                 f"{function.name} has a trampoline")
        self._breakpoints = made
        self.table = table
        number = self._breakpoints.add(function, ProbeKind.OFFSET, found)
        self.firing = SeenFiring(machine.arch.name, place, found, number,
                                 mistake=SeenMistake(what_if, other),
                                 layout=machine.guest.traps.trap_frame.fields)
        self._words = StackWords(machine, machine.guest.traps.trap_frame.size)
        self._slot = self._others_slot = 0
        if other is not None:
            self._breakpoints.add(function, ProbeKind.OFFSET, other)
        self._hits = self._seen = 0
        self._began = self._waiting = False
        self._storing: list[tuple[int, bytes]] = []  # of the last row: where, and what was there
        self._stored: list[tuple[int, int]] = []  # of it: (physical address, bytes)
        # Of a tail call that is a return: where its function returns to, and the stack pointer
        # then; the number of the instruction where the run goes on, the words stored since then.
        self._returns_to: tuple[int, int] | None = None
        self._went_on = 0
        self._stored_since: set[int] = set()
        self._clause: ExplainedClause | None = None

    def clause(self, text: str, types: Types | None) -> None:
        """Have a D clause on the probe.

        :param types: of the kernel; None where it has none.
        :raises KinstError: when it does not compile, or is not for this probe alone.
        """
        firing = self.firing
        self._clause = ExplainedClause(self._breakpoints, types, firing.function,
                              firing.instruction.offset, firing.number, text)

    def record(self, workload: Callable[[], object]) -> SeenFiring:
        """Run something, and keep what becomes of the wanted firing in it.

        :raises KinstError: when it does not come to that.
        """
        firing, machine = self.firing, self.machine
        at, size = firing.instruction.address, len(firing.instruction.code)
        firing.original = machine.read(at, size)
        self._breakpoints.trapped = self._trapped
        if machine.runner is not None:
            raise KinstError("the machine is recorded: explain a firing on another one")
        with self._enabled(), self._looked_at():
            firing.patched = machine.read(at, size)
            self._slot = self._slot_of(at)
            if firing.mistake.other is not None:
                self._others_slot = self._slot_of(firing.mistake.other.address)
            try:
                workload()
            except KinstError as error:
                ran = bool(firing.mistake.kind) and len(firing.rows) > 1
                if not (firing.complete or firing.mistake.strayed or ran):
                    raise
                firing.mistake.ended = "" if firing.mistake.strayed else str(error)
                if not firing.complete and not firing.mistake.strayed:  # it ends there
                    firing.mistake.strayed, firing.slot = firing.last, self._slot
                    firing.trampoline = b"".join(
                        row.code for row in firing.rows
                        if self._slot <= row.address < self._slot + SLOT)
        where = f"{firing.function.name}:{firing.instruction.offset}"
        if self.failure is not None:
            raise KinstError(f"{where}: cannot be looked at: {self.failure}")
        if not self._began:
            raise KinstError(f"{where}: it was executed {self._hits} times: there is no firing "
                             f"number {firing.hit}: give another call")
        if not firing.complete and not firing.mistake.strayed:
            raise KinstError(f"{where}: the run did not go on within {MAX_ROWS} instructions "
                             "after the breakpoint")
        if self._returns_to is not None and not firing.between:
            raise KinstError(f"{where}: the function that it goes to does not return in this run")
        return firing

    def _slot_of(self, address: int) -> int:
        """The address of an instruction's trampoline; 0: it has none."""
        known = self._breakpoints.dispatcher.template(address)
        return known[1] if known is not None else 0

    @contextlib.contextmanager
    def _enabled(self) -> Iterator[None]:
        self._breakpoints.enable()
        try:
            yield
        finally:
            self.machine.engine.detour.thaw()  # a run that strayed has not come to its end
            self._breakpoints.disable()

    @contextlib.contextmanager
    def _looked_at(self) -> Iterator[None]:
        with self.each_instruction(self._storing_now):
            self.machine.runner = self
            try:
                yield
            finally:
                self.machine.runner = None

    def entered(self, kind: str, name: str, value: bytes) -> None:
        """What comes in from outside (``emu.unicorn.machine.Runner``): it is the call's own."""

    def run(self, until: Until, go: Go) -> Stop:
        """Where a run ends, no instruction is executed that could tell of it."""
        stop = go(until)
        waits = not self.firing.complete or self._returns_to is not None
        if self._began and waits and not self.machine.engine.frozen:
            self.executed(self.machine.pc)
        return stop

    def failed(self, address: int) -> None:
        """The call goes on to its end, unseen."""

    def _storing_now(self, _uc: unicorn.Uc, _access: int, physical: int, size: int, value: int,
                     _data: object) -> None:
        """Before an instruction stores."""
        firing = self.firing
        waits = self._returns_to is not None and not firing.between
        if firing.rows and (waits or not firing.complete) and len(self._stored) < MAX_ROWS:
            self._stored.append((physical, size))
        if (self.failure is None and firing.rows and not firing.complete
                and self._slot <= firing.rows[-1].address < self._slot + SLOT):
            try:
                self._storing.append((physical, self.machine.read_physical(physical, size)))
            except MemoryAccessError:  # no memory, and reading a device may change it
                firing.memory.devices.append((physical, size, value & (1 << 8 * size) - 1))

    def _keep_stores(self) -> None:
        """What the last row has stored, before the next."""
        row, machine = self.firing.rows[-1], self.machine
        where = Translations(machine)
        self.firing.memory.stores[len(self.firing.rows) - 1] = [
            SeenStore(where.virtual(dict(row.registers), row.address, physical), physical, before,
                      machine.read_physical(physical, len(before)))
            for physical, before in self._storing]
        self._storing.clear()

    def _keep_pushed(self) -> None:
        """What an emulated instruction has pushed."""
        firing, machine = self.firing, self.machine
        at, name = machine.sp, machine.arch.sp
        physical, before = machine.translate(at), firing.memory.words[0].get(at)
        if at < firing.rows[0].registers[name] and physical is not None and before is not None:
            firing.memory.stores[len(firing.rows) - 1] = [SeenStore(
                at, physical, before.to_bytes(8, "little"), machine.read(at, 8))]

    def look(self, address: int) -> None:
        firing, machine, mistake = self.firing, self.machine, self.firing.mistake
        if self._storing:
            self._keep_stores()
        self._seen += 1
        if mistake.kind and self._seen > MAX_SEEN:
            self._give_up(address)
        if firing.complete:
            self._wait_for_return(address)
            return
        if len(firing.rows) > MAX_ROWS:
            return
        if mistake.strayed and len(firing.rows) >= mistake.strayed + STRAYED:
            self._give_up(address)
            return
        if not self._began:
            if address != firing.instruction.address:
                return
            self._hits += 1
            if self._hits != firing.hit:
                return
            self._began = True
            if firing.asked.tail and not mistake.kind:
                self._returns_to = (machine.arch.return_address(machine),
                                    machine.arch.stack_after_return(machine))
        if self._waiting:
            frame = firing.frames[-1]
            if self._breakpoints.trap.called:
                frame.after = machine.read(frame.address, machine.guest.traps.trap_frame.size)
            self._waiting = False
        if mistake.kind and firing.rows and not mistake.strayed and self._strays(address):
            mistake.strayed = len(firing.rows)
        firing.rows.append(self._row(address))
        if len(firing.rows) == 2:
            firing.entry = machine.cpu.entry_described(
                self._breakpoints.trap.guest_breakpoint.vector,
                *(row.registers[machine.arch.sp] for row in firing.rows))
        firing.complete = (len(firing.rows) > 1 and not machine.engine.frozen
                           and not mistake.strayed)
        if firing.complete and not self._slot:
            self._keep_pushed()
        if firing.complete:
            self._went_on = self._seen
            inside = 0 <= address - firing.function.address < firing.function.size
            if self._returns_to is not None and inside:
                raise KinstError("the function does not leave there this time: give another firing "
                                 "(--hit)")
        if self._slot and not firing.slot and (firing.complete or mistake.strayed):
            firing.slot, firing.trampoline = self._slot, machine.read(self._slot, SLOT)
        self._keep_memory(self._written() | self._saved_by_cpu())

    def _wait_for_return(self, address: int) -> None:
        """After a tail call: look whether the function that was jumped to has returned."""
        firing = self.firing
        if self._returns_to is None or firing.between:
            return
        if self._stored:
            self._stored_since |= self._written()
        if (address, self.machine.sp) != self._returns_to:
            return
        firing.rows.append(self._row(address))
        firing.between = self._seen - self._went_on
        self._keep_memory(frozenset(self._stored_since))

    def _keep_memory(self, written: frozenset[int]) -> None:
        """What is in memory before the last row."""
        memory, number = self.firing.memory, len(self.firing.rows) - 1
        memory.stacks[number], memory.words[number] = self._stack(), self._words.changed()
        memory.written[number] = written

    def _written(self) -> frozenset[int]:
        """The words of the stacks that were stored since the last look."""
        found = self._words.of_physical(self._stored, self.machine.translate)
        self._stored.clear()
        return found

    def _saved_by_cpu(self) -> frozenset[int]:
        """What taking the exception has stored, where the architecture has a stack for that."""
        trap, rows = self._breakpoints.trap, self.firing.rows
        if trap.return_register or len(rows) < 2 or not (
                len(rows) == 2 or rows[-2].address == self.firing.second != 0):
            return frozenset()
        sp = self.machine.sp
        return frozenset(range(sp, sp + WORD * len(trap.saved), WORD))

    def _row(self, address: int, code: bytes | None = None) -> SeenInstruction:
        return seen_instruction(self.machine, address, code,
                                self._breakpoints.trap.return_register)

    def _stack(self) -> Stack:
        at = self.machine.sp & ~7
        for size in (STACK, -at & 0xFFF or STACK):  # the next page may not be there
            try:
                return Stack(at, self.machine.read(at, size))
            except MemoryAccessError:
                continue
        return Stack(at, b"")

    def _give_up(self, address: int) -> None:
        """End a run that went wrong.  In the middle of a firing the clock stands, which stops go
        by."""
        self.machine.engine.detour.thaw()
        self.machine.request_stop(Stop(StopReason.INSTRUCTIONS, address))

    def _strays(self, address: int) -> bool:
        """Whether the trampoline is left, neither for where the run goes on nor by a second
        breakpoint."""
        last = self.firing.rows[-1].address
        return (self._slot <= last < self._slot + SLOT
                and not self._slot <= address < self._slot + SLOT and self.machine.engine.frozen
                and self._breakpoints.dispatcher.second(last) is None)

    def _fired(self, probe: Probe, state: CpuState | NativeState) -> None:
        if probe.id != self.firing.number + 1:
            return
        wanted = self._began and not self.firing.complete
        if wanted:
            self.firing.fired = len(self.firing.rows)
        if self._clause is not None:
            narration = self._clause.fire(state, wanted)
            self.firing.narration = narration or self.firing.narration
        if wanted and self._others_slot:  # the other thread's handler has written its own there
            with self.machine.unrecorded():
                self.machine.write(self._slot, self.machine.read(self._others_slot, SLOT))
            self.machine.engine.remove_translations(self._slot, self._slot + SLOT)

    def _trapped(self, address: int, frame: int) -> None:
        """At the seam: the kernel's vectors have built a trap frame."""
        firing, machine = self.firing, self.machine
        if not self._began or firing.complete:
            return
        if address != firing.instruction.address:
            firing.second = address
        content = machine.read(frame, machine.guest.traps.trap_frame.size)
        firing.frames.append(SeenFrame(len(firing.rows), frame, address, content,
                                   self._row(machine.pc, b""), self._stack(),
                                   self._words.changed(), self._written()))
        self._waiting = True
