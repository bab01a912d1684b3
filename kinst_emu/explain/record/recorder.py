"""Recorder of one firing of a probe, with each executed instruction and the trap frames.

The firing takes the path ``double`` of ``kinst.probes.breakpoints``: the kernel's vectors, the
handler in Python and, on arm64 and riscv64, the second breakpoint through the vectors again. Since
Unicorn stops at each instruction, the machine is not to be used for anything else.
"""

import contextlib
from collections.abc import Callable, Iterator

import unicorn

from dtrace.flow.steps import Translations
from dwarf.types import Types
from emu.host.errors import KinstError, MemoryAccessError
from emu.host.printable import counted
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

# Maximum number of recorded instructions from the breakpoint to the end of the firing.
MAX_ROWS = 20_000
MAX_SEEN = 300_000  # maximum number of instructions observed in a call with a deliberate mistake
STRAYED = 4  # number of instructions recorded after a run has strayed from its trampoline


class FiringRecorder(EachInstruction):
    """Recorder of one firing of a probe.

    :param machine: with a booted kernel; not to be used for anything else afterwards.
    :param place: the instruction, which of its executions, and the probe that it was found by.
    :param what_if: the deliberate mistake (``COPY`` or ``SHARE``); empty: none.
    :raises KinstError: if the instruction cannot be probed, or the mistake cannot be made there.
    """

    def __init__(self, machine: UnicornMachine, place: ChosenPlace, what_if: str = "") -> None:
        function, offset = place.function, place.offset
        super().__init__(machine)
        breakpoints = Breakpoints(machine, self._fired, DOUBLE, python=True)
        table = breakpoints.instructions(function)
        probed = next((i for i in table if i.offset == offset), None)
        if probed is None:
            nearest = sorted((i.offset for i in table), key=lambda at: abs(at - offset))[:2]
            raise KinstError(f"{function.name}:{offset}: no instruction begins there; the nearest "
                             f"are at {' and '.join(map(str, sorted(nearest)))} (kinst disas "
                             f"{function.name} lists all)")
        if isinstance(probed.verdict, Refuse):
            raise KinstError(f"{function.name}:{offset}: cannot be probed: it "
                             f"{probed.verdict.reason}")
        where = f"{function.name}:{offset}"
        if what_if and breakpoints.trap.kernel_effects:
            raise KinstError(f"{where}: --what-if {what_if}: needs trampolines, but "
                             f"{NO_TRAMPOLINES}")
        if what_if == COPY:
            if isinstance(probed.verdict, Copy):
                raise KinstError(f"{where}: --what-if copy: the instruction is copied unchanged "
                                 "anyway; choose one that is rewritten or emulated (kinst disas "
                                 f"{function.name} shows the verdicts)")
            breakpoints = CopyingBreakpoints(machine, self._fired, probed.code)
        other = None
        if what_if == SHARE:
            other = sharing(table, probed)
            if not isinstance(probed.verdict, Copy | Rewrite):
                raise KinstError(f"{where}: --what-if share: the instruction is emulated and has "
                                 "no trampoline; choose one that is copied or rewritten")
            if other is None:
                raise KinstError(f"{where}: --what-if share: no other instruction of "
                                 f"{function.name} has a trampoline; choose another function")
        self._breakpoints = breakpoints
        self.table = table
        number = self._breakpoints.add(function, ProbeKind.OFFSET, probed)
        self.firing = SeenFiring(machine.arch.name, place, probed, number,
                                 mistake=SeenMistake(what_if, other),
                                 layout=machine.guest.traps.trap_frame.fields)
        self._words = StackWords(machine, machine.guest.traps.trap_frame.size)
        self._slot = self._others_slot = 0
        if other is not None:
            self._breakpoints.add(function, ProbeKind.OFFSET, other)
        self._hits = self._seen = 0
        self._began = self._waiting = False
        self._storing: list[tuple[int, bytes]] = []  # (address, old bytes) of the last row's stores
        # (address, size) of stores that are not assigned to a recorded row yet
        self._stored: list[tuple[int, int]] = []
        # After a tail call: the return address, and the stack pointer after the return.
        self._returns_to: tuple[int, int] | None = None
        self._went_on = 0  # number of instructions observed until the end of the firing
        # addresses of the words to which instructions have stored since the end of the firing
        self._stored_since: set[int] = set()
        self._clause: ExplainedClause | None = None

    def clause(self, text: str, types: Types | None) -> None:
        """Attach a D clause to the probe.

        :param types: the kernel's types; None if it has none.
        :raises KinstError: if the clause does not compile or is not for this probe alone.
        """
        firing = self.firing
        self._clause = ExplainedClause(self._breakpoints, types, firing.function,
                              firing.instruction.offset, firing.number, text)

    def record(self, workload: Callable[[], object]) -> SeenFiring:
        """Run a workload and record the wanted firing.

        :raises KinstError: if the workload does not reach the firing, or it cannot be recorded.
        """
        firing, machine = self.firing, self.machine
        at, size = firing.instruction.address, len(firing.instruction.code)
        firing.original = machine.read(at, size)
        self._breakpoints.trapped = self._trapped
        if machine.runner is not None:
            raise KinstError("this machine is being recorded; explain a firing on another machine")
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
                # If the run ended in the middle of the firing, show the code that it executed.
                if not firing.complete and not firing.mistake.strayed:
                    firing.mistake.strayed, firing.slot = firing.last, self._slot
                    firing.trampoline = b"".join(
                        row.code for row in firing.rows
                        if self._slot <= row.address < self._slot + SLOT)
        where = f"{firing.function.name}:{firing.instruction.offset}"
        if self.failure is not None:
            raise KinstError(f"{where}: the firing cannot be recorded: {self.failure}")
        if not self._began:
            raise KinstError(f"{where}: --hit {firing.hit}: this call executes the instruction "
                             f"only {counted(self._hits, 'time')}; choose another call"
                             f"{' or a smaller --hit' if self._hits else ''}")
        if not firing.complete and not firing.mistake.strayed:
            raise KinstError(f"{where}: the interrupted code did not resume within {MAX_ROWS} "
                             "instructions after the breakpoint; choose another call")
        if self._returns_to is not None and not firing.between:
            raise KinstError(f"{where}: the function reached by the tail call does not return in "
                             "this run; choose another call")
        return firing

    def _slot_of(self, address: int) -> int:
        """Return the address of an instruction's trampoline, or 0 if the instruction has none."""
        known = self._breakpoints.dispatcher.template(address)
        return known[1] if known is not None else 0

    @contextlib.contextmanager
    def _enabled(self) -> Iterator[None]:
        self._breakpoints.enable()
        try:
            yield
        finally:
            self.machine.engine.detour.thaw()  # if the run has strayed, the clock is still frozen
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
        """Ignore an input from outside the machine, since it belongs to the injected call."""

    def run(self, until: Until, go: Go) -> Stop:
        """Run the machine; when it stops, call ``look`` for the next instruction.

        No hook is called for that instruction, because it is not executed.
        """
        stop = go(until)
        waits = not self.firing.complete or self._returns_to is not None
        if self._began and waits and not self.machine.engine.frozen:
            self.executed(self.machine.pc)
        return stop

    def failed(self, address: int) -> None:
        """After an error, let the call run to its end without recording it."""

    def _storing_now(self, _uc: unicorn.Uc, _access: int, physical: int, size: int, value: int,
                     _data: object) -> None:
        """Record a store before it happens (Unicorn's memory hook)."""
        firing = self.firing
        waits = self._returns_to is not None and not firing.between
        if firing.rows and (waits or not firing.complete) and len(self._stored) < MAX_ROWS:
            self._stored.append((physical, size))
        if (self.failure is None and firing.rows and not firing.complete
                and self._slot <= firing.rows[-1].address < self._slot + SLOT):
            try:
                self._storing.append((physical, self.machine.read_physical(physical, size)))
            except MemoryAccessError:  # a device, whose state a read may change
                firing.memory.devices.append((physical, size, value & (1 << 8 * size) - 1))

    def _keep_stores(self) -> None:
        """Record the stores that the last row's instruction has made."""
        row, machine = self.firing.rows[-1], self.machine
        where = Translations(machine)
        self.firing.memory.stores[len(self.firing.rows) - 1] = [
            SeenStore(where.virtual(dict(row.registers), row.address, physical), physical, before,
                      machine.read_physical(physical, len(before)))
            for physical, before in self._storing]
        self._storing.clear()

    def _keep_pushed(self) -> None:
        """Record the word that an emulated instruction has pushed."""
        firing, machine = self.firing, self.machine
        at, name = machine.sp, machine.arch.sp
        physical, before = machine.translate(at), firing.memory.words[0].get(at)
        if at < firing.rows[0].registers[name] and physical is not None and before is not None:
            firing.memory.stores[len(firing.rows) - 1] = [SeenStore(
                at, physical, before.to_bytes(8, "little"), machine.read(at, 8))]

    def look(self, address: int) -> None:
        """Record the instruction at ``address`` if it belongs to the wanted firing."""
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
                raise KinstError("this instruction does not leave the function in this firing; "
                                 "choose another firing with --hit")
        if self._slot and not firing.slot and (firing.complete or mistake.strayed):
            firing.slot, firing.trampoline = self._slot, machine.read(self._slot, SLOT)
        self._keep_memory(self._written() | self._saved_by_cpu())

    def _wait_for_return(self, address: int) -> None:
        """Check whether the function reached by a tail call has returned."""
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
        """Record the stack and the changed words before the last row's instruction is executed."""
        memory, number = self.firing.memory, len(self.firing.rows) - 1
        memory.stacks[number], memory.words[number] = self._stack(), self._words.changed()
        memory.written[number] = written

    def _written(self) -> frozenset[int]:
        """Return the addresses of the stack words that were stored to since the last call."""
        words = self._words.of_physical(self._stored, self.machine.translate)
        self._stored.clear()
        return words

    def _saved_by_cpu(self) -> frozenset[int]:
        """Return the addresses of the stack words that the CPU stored for the exception."""
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
        for size in (STACK, -at & 0xFFF or STACK):  # the stack's next page may be unmapped
            try:
                return Stack(at, self.machine.read(at, size))
            except MemoryAccessError:
                continue
        return Stack(at, b"")

    def _give_up(self, address: int) -> None:
        """Stop a run that cannot complete the firing.

        The clock is frozen during a firing and must be thawed first, since stops depend on it.
        """
        self.machine.engine.detour.thaw()
        self.machine.request_stop(Stop(StopReason.INSTRUCTIONS, address))

    def _strays(self, address: int) -> bool:
        """Return whether the run leaves the trampoline for an unexpected address.

        Expected are the address at which the run continues, and a second breakpoint.
        """
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
        if wanted and self._others_slot:  # simulate another thread that overwrites the trampoline
            with self.machine.unrecorded():
                self.machine.write(self._slot, self.machine.read(self._others_slot, SLOT))
            self.machine.engine.remove_translations(self._slot, self._slot + SLOT)

    def _trapped(self, address: int, frame: int) -> None:
        """Record the trap frame that the kernel's vectors have built for the handler."""
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
