"""One firing of one probe as the machine goes through it: every instruction, the trap frame.

The firing takes the long way: the kernel's vectors, the handler in Python, on arm64 and riscv64 the
second breakpoint through the vectors again (``kinst.probes.breakpoints``, path ``double``).  The
machine that it is looked at on is not used for anything else: each instruction is a stop of
Unicorn's.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import unicorn

from dtrace.flow.steps import Translations
from dwarf.types import Types
from emu.elf.symbols import Symbol
from emu.host.errors import KinstError, MemoryAccessError
from emu.machine.machine import Stop, StopReason, Until
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.wired_machine import Go
from kinst.code.listing import ProbedInstruction
from kinst.probes.breakpoints import DOUBLE, Breakpoints, NativeState
from kinst.probes.kinds import ProbeKind
from kinst.probes.probe_table import Probe
from kinst.relocation.trampoline import SLOT
from kinst.relocation.trap import NO_TRAMPOLINES, CpuState
from kinst.relocation.verdict import Copy, Refuse, Rewrite
from kinst_emu.explain.record.chosen import ChosenPlace
from kinst_emu.explain.record.clause import ExplainedClause, Narration
from kinst_emu.explain.record.stack_words import WORD, StackWords
from kinst_emu.explain.record.what_if import COPY, SHARE, CopyingBreakpoints, sharing

MAX_ROWS = 20_000  # instructions between the breakpoint and where the run goes on
STACK = 128  # bytes of the stack that are kept
MAX_SEEN = 300_000  # instructions of a call that goes wrong, those of firings among them
STRAYED = 4  # instructions that are kept of a run that does not go on as it should


@dataclass(frozen=True)
class SeenInstruction:
    """An instruction that was executed.

    :param registers: before it: the general ones and the flags.
    :param returns_to: the system register that a return from an exception goes to then; None: the
        architecture has none.
    """

    address: int
    code: bytes
    registers: dict[str, int]
    returns_to: int | None = None


@dataclass(frozen=True)
class Stack:
    """What the stack pointer leads to.

    :param content: whole words; less than ``STACK`` bytes where no more is mapped.
    """

    address: int
    content: bytes


@dataclass
class SeenFrame:
    """A trap frame, where the kernel's vectors have built it.

    :param row: the number of the row before which the seam was come to.
    :param before: its bytes there; ``after`` when the handler has answered, where the kernel's
        return path takes them from there (on amd64 the handler restores the registers itself).
    :param called: the machine where the handler is called, which is no instruction of the kernel's;
        ``stack`` what is on its stack, ``words`` and ``written`` as ``SeenFiring`` has them.
    """

    row: int
    address: int
    breakpoint: int
    before: bytes
    called: SeenInstruction
    stack: Stack
    words: Mapping[int, int]
    written: frozenset[int] = frozenset()
    after: bytes = b""


@dataclass(frozen=True)
class SeenStore:
    """What an instruction has stored.

    :param address: where; None: at an address that it is not seen to have computed.
    :param physical: where that is in the machine's memory.
    :param before: the bytes that were there; ``after`` those that it left.
    """

    address: int | None
    physical: int
    before: bytes
    after: bytes


@dataclass
class SeenFiring:
    """What was seen of it; each number is the machine's.

    :param original: the bytes at the probed instruction; ``patched`` while the probe is enabled.
    :param rows: from the breakpoint to the instruction where the run goes on; of a tail call that
        is a return, one more, where the function that it goes to has returned.
    :param frames: of the breakpoint, and of the second one where there is one.
    :param slot: the trampoline's address, 0: there is none; ``trampoline`` its bytes.
    :param second: the address of the second breakpoint; 0: there is none.
    :param fired: the number of the row before which the probe fires: its clause is run there.
    :param narration: what the clause did, where there is one.
    :param stacks: by the number of the row before which it was so.
    :param words: by the number of a row, the words around the stack pointer that are, before it,
        not what they were before the row before (or where the handler was called): by address.
    :param written: by the number of a row, the words of the stacks that the row before it (or the
        CPU, taking the exception) has stored, whatever they held.
    :param stores: of the displaced instruction, by the number of the row in the trampoline that
        made them; of one that is emulated, what it pushed, by that of the last.
    :param devices: what the displaced instruction has stored to devices: (physical address, bytes,
        value).
    :param layout: of a trap frame: field -> (byte offset, bytes).
    :param entry: how the CPU comes to the vector, where the architecture has a table for that.
    :param asked: where it is, and of which probe.
    :param what_if: what was done wrong; ``other`` whose trampoline was written over this one's.
    :param strayed: the number of the row where a run left the trampoline for a place that nobody
        waits for; 0: it did not.
    :param ended: why the call did not come to its end; empty: it did.
    :param complete: whether the run has gone on.
    :param between: of a tail call that is a return, how many instructions are executed from where
        the run goes on to where the probe fires; 0: the probe fires at the breakpoint.
    """

    architecture: str
    function: Symbol
    instruction: ProbedInstruction
    number: int
    hit: int
    asked: ChosenPlace
    original: bytes = b""
    patched: bytes = b""
    rows: list[SeenInstruction] = field(default_factory=list)
    frames: list[SeenFrame] = field(default_factory=list)
    slot: int = 0
    trampoline: bytes = b""
    second: int = 0
    fired: int = 0
    narration: Narration | None = None
    stacks: dict[int, Stack] = field(default_factory=dict)
    words: dict[int, Mapping[int, int]] = field(default_factory=dict)
    written: dict[int, frozenset[int]] = field(default_factory=dict)
    stores: dict[int, list[SeenStore]] = field(default_factory=dict)
    devices: list[tuple[int, int, int]] = field(default_factory=list)
    layout: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    entry: str = ""
    what_if: str = ""
    other: ProbedInstruction | None = None
    strayed: int = 0
    ended: str = ""
    complete: bool = False
    between: int = 0

    @property
    def last(self) -> int:
        """The number of the row where the run goes on."""
        return len(self.rows) - (2 if self.between else 1)


class FiringRecorder:
    """Records one firing.

    :param machine: where a kernel waits; not to be used for anything else afterwards.
    :param asked: the probe that the instruction was found by.
    :raises KinstError: when the instruction cannot be probed.
    """

    def __init__(self, machine: UnicornMachine, function: Symbol, offset: int, hit: int = 1,
                 what_if: str = "", asked: ChosenPlace | None = None) -> None:
        self.machine = machine
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
        if what_if and made.trap.told:
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
        self.firing = SeenFiring(machine.arch.name, function, found, number, hit,
                                 asked or ChosenPlace(function, offset, hit),
                                 layout=machine.guest.traps.trap_frame.fields, what_if=what_if,
                                 other=other)
        self._words = StackWords(machine, machine.guest.traps.trap_frame.size)
        self._slot = self._others_slot = 0
        if other is not None:
            self._breakpoints.add(function, ProbeKind.OFFSET, other)
        self._hits = self._seen = 0
        self._began = self._waiting = False
        self._storing: list[tuple[int, bytes]] = []  # of the last row: where, and what was there
        self._stored: list[tuple[int, int]] = []  # of it: (physical address, bytes)
        self._failure: KinstError | None = None
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
        with self._enabled(), self._each_instruction():
            firing.patched = machine.read(at, size)
            self._slot = self._slot_of(at)
            if firing.other is not None:
                self._others_slot = self._slot_of(firing.other.address)
            try:
                workload()
            except KinstError as error:
                ran = bool(firing.what_if) and len(firing.rows) > 1
                if not (firing.complete or firing.strayed or ran):
                    raise
                firing.ended = "" if firing.strayed else str(error)
                if not firing.complete and not firing.strayed:  # it ends there
                    firing.strayed, firing.slot = firing.last, self._slot
                    firing.trampoline = b"".join(
                        row.code for row in firing.rows
                        if self._slot <= row.address < self._slot + SLOT)
        where = f"{firing.function.name}:{firing.instruction.offset}"
        if self._failure is not None:
            raise KinstError(f"{where}: cannot be looked at: {self._failure}")
        if not self._began:
            raise KinstError(f"{where}: it was executed {self._hits} times: there is no firing "
                             f"number {firing.hit}: give another call")
        if not firing.complete and not firing.strayed:
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
    def _each_instruction(self) -> Iterator[None]:
        machine = self.machine
        hooks = [
            machine.uc.hook_add(unicorn.UC_HOOK_CODE, self._executed, begin=1, end=0),
            machine.uc.hook_add(unicorn.UC_HOOK_MEM_WRITE, self._storing_now, begin=1, end=0)]
        machine.engine.flush_translations()  # blocks that are known have no such stop
        machine.runner = self
        try:
            yield
        finally:
            machine.runner = None
            for hook in hooks:
                machine.engine.unhook(hook)

    def entered(self, kind: str, name: str, value: bytes) -> None:
        """What comes in from outside (``emu.unicorn.machine.Runner``): it is the call's own."""

    def run(self, until: Until, go: Go) -> Stop:
        """Where a run ends, no instruction is executed that could tell of it."""
        stop = go(until)
        waits = not self.firing.complete or self._returns_to is not None
        if self._began and waits and not self.machine.engine.frozen:
            pc = self.machine.pc
            self._executed(self.machine.uc, pc, 0, None)
        return stop

    def _length(self, pc: int) -> int:
        try:
            return self.machine.arch.instruction_length(self.machine.read(pc, 16)) or 1
        except MemoryAccessError:
            return 0

    def _executed(self, _uc: unicorn.Uc, address: int, _size: int, _data: object) -> None:
        """Unicorn keeps an exception to itself here, and the machine would never end."""
        if self._failure is None:
            try:
                self._look(address)
            except KinstError as error:
                self._failure = error

    def _storing_now(self, _uc: unicorn.Uc, _access: int, physical: int, size: int, value: int,
                     _data: object) -> None:
        """Before an instruction stores."""
        firing = self.firing
        waits = self._returns_to is not None and not firing.between
        if firing.rows and (waits or not firing.complete) and len(self._stored) < MAX_ROWS:
            self._stored.append((physical, size))
        if (self._failure is None and firing.rows and not firing.complete
                and self._slot <= firing.rows[-1].address < self._slot + SLOT):
            try:
                self._storing.append((physical, self.machine.read_physical(physical, size)))
            except MemoryAccessError:  # no memory, and reading a device may change it
                firing.devices.append((physical, size, value & (1 << 8 * size) - 1))

    def _keep_stores(self) -> None:
        """What the last row has stored, before the next."""
        row, machine = self.firing.rows[-1], self.machine
        where = Translations(machine)
        self.firing.stores[len(self.firing.rows) - 1] = [
            SeenStore(where.virtual(dict(row.registers), row.address, physical), physical, before,
                      machine.read_physical(physical, len(before)))
            for physical, before in self._storing]
        self._storing.clear()

    def _keep_pushed(self) -> None:
        """What an emulated instruction has pushed."""
        firing, machine = self.firing, self.machine
        at, name = machine.sp, machine.arch.sp
        physical, before = machine.translate(at), firing.words[0].get(at)
        if at < firing.rows[0].registers[name] and physical is not None and before is not None:
            firing.stores[len(firing.rows) - 1] = [SeenStore(
                at, physical, before.to_bytes(8, "little"), machine.read(at, 8))]

    def _look(self, address: int) -> None:
        firing, machine = self.firing, self.machine
        if self._storing:
            self._keep_stores()
        self._seen += 1
        if firing.what_if and self._seen > MAX_SEEN:
            self._give_up(address)
        if firing.complete:
            self._wait_for_return(address)
            return
        if len(firing.rows) > MAX_ROWS:
            return
        if firing.strayed and len(firing.rows) >= firing.strayed + STRAYED:
            self._give_up(address)
            return
        if not self._began:
            if address != firing.instruction.address:
                return
            self._hits += 1
            if self._hits != firing.hit:
                return
            self._began = True
            if firing.asked.tail and not firing.what_if:
                self._returns_to = (machine.arch.return_address(machine),
                                    machine.arch.stack_after_return(machine))
        if self._waiting:
            frame = firing.frames[-1]
            if self._breakpoints.trap.called:
                frame.after = machine.read(frame.address, machine.guest.traps.trap_frame.size)
            self._waiting = False
        if firing.what_if and firing.rows and not firing.strayed and self._strays(address):
            firing.strayed = len(firing.rows)
        firing.rows.append(self._row(address, machine.read(address, self._length(address))))
        if len(firing.rows) == 2:
            firing.entry = machine.cpu.told_entry(
                self._breakpoints.trap.guest_breakpoint.vector,
                *(row.registers[machine.arch.sp] for row in firing.rows))
        firing.complete = (len(firing.rows) > 1 and not machine.engine.frozen
                           and not firing.strayed)
        if firing.complete and not self._slot:
            self._keep_pushed()
        if firing.complete:
            self._went_on = self._seen
            inside = 0 <= address - firing.function.address < firing.function.size
            if self._returns_to is not None and inside:
                raise KinstError("the function does not leave there this time: give another firing "
                                 "(--hit)")
        if self._slot and not firing.slot and (firing.complete or firing.strayed):
            firing.slot, firing.trampoline = self._slot, machine.read(self._slot, SLOT)
        firing.stacks[len(firing.rows) - 1] = self._stack()
        firing.words[len(firing.rows) - 1] = self._words.changed()
        firing.written[len(firing.rows) - 1] = self._written() | self._saved_by_cpu()

    def _wait_for_return(self, address: int) -> None:
        """After a tail call: look whether the function that was jumped to has returned."""
        firing = self.firing
        if self._returns_to is None or firing.between:
            return
        if self._stored:
            self._stored_since |= self._written()
        if (address, self.machine.sp) != self._returns_to:
            return
        firing.rows.append(self._row(address, self.machine.read(address, self._length(address))))
        firing.between, number = self._seen - self._went_on, len(firing.rows) - 1
        firing.stacks[number], firing.words[number] = self._stack(), self._words.changed()
        firing.written[number] = frozenset(self._stored_since)

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

    def _row(self, address: int, code: bytes) -> SeenInstruction:
        machine = self.machine
        registers = {name: machine.read_register(name) for name in machine.arch.registers}
        registers[machine.arch.pc] = address
        system = self._breakpoints.trap.return_register
        return SeenInstruction(address, code, registers,
                               machine.read_register(system) if system else None)

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
