"""Recorder of a firing of the kernel's own tracer, instruction by instruction.

The tracer runs in the guest, with its own modules. The command runs three times: the first run
counts the firings; the second one is recorded from shortly before the wanted firing; the third one
adds how the words change that the second one has found: trap frame, trampoline and record.
"""

from dtrace.stacks.threads import Threads
from emu.elf.symbols import Symbol
from emu.guest.tracer import TracerCode
from emu.host.errors import KinstError
from emu.machine.machine import Stop, StopReason, Until
from emu.machine.running_thread import thread_of
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.mark import StateMark
from images.shell import check_command
from kinst.relocation.trap import trap_of
from kinst_emu.explain.record.each_instruction import EachInstruction
from kinst_emu.explain.record.entry import times_come_to
from kinst_emu.explain.record.instruction import SeenInstruction, seen_instruction
from kinst_emu.explain.record.kept_words import KeptWords
from kinst_emu.explain.record.running import RunningThread
from kinst_emu.explain.record.seen_tracing import BREAKPOINT, CALL, PROGRAM, SeenTracing
from kinst_emu.explain.record.tracer_memory import SeenBuffer, TracerMemory
from kinst_emu.explain.record.tracer_parts import Calls, divide

BEFORE = 6000  # number of instructions recorded before the tracer is called
MAX_ROWS = 60_000  # maximum number of recorded instructions of a firing
MAX_SHOWN = 96  # maximum number of bytes of a record whose changes are recorded
# Number of instructions before the firing at which its second recording begins: the CPU does not
# count every instruction that causes an exception.
EARLIER = 8
WORD = 8  # size of a word in bytes
MAX_RECORD = 1 << 16  # maximum number of bytes kept of what a firing has written
MAX_WORK = 1_000_000  # maximum number of instructions until the firing ends


class TracingRecorder(EachInstruction):
    """Recorder of a firing of the kernel's own tracer.

    :param machine: traces in the background, at the shell's prompt; not to be used for anything
        else afterwards.
    :param typed: command whose processes make the probe fire; ``command``: how messages call it.
    :param hit: number of the firing, from 1; only processes that the command starts count.
    :raises KinstError: if the debug data of the tracer's modules is missing.
    """

    def __init__(self, machine: UnicornMachine, tracer: TracerCode, typed: str, command: str,
                 hit: int, limit: int, running: RunningThread) -> None:
        super().__init__(machine)
        self._tracer, self._limit, self._running = tracer, limit, running
        self._memory = TracerMemory(machine, running.types, tracer)
        self._buffer = SeenBuffer(0, 0)
        self._fires = machine.symbol(tracer.fires).address
        self._handles = machine.symbol(tracer.handles).address
        trap = trap_of(machine.guest, machine.arch.name)
        self._returns = trap.instructions.trap_returns
        self._breakpoints = frozenset({trap.guest_breakpoint.code, trap.guest_breakpoint.short})
        self._earlier = 0  # number of recorded earlier calls of the tracer
        self._fired = self._start = -1
        self._thread = self._returns_to = 0
        self._in_trampoline = False
        self._words: KeptWords | None = None  # during the second recording
        self._typed = check_command(typed)
        self.seen = SeenTracing(command, hit)

    def record(self) -> SeenTracing:
        """Run the command and record the wanted firing.

        :raises KinstError: if the probe does not fire so often, or the firing does not end.
        """
        machine, seen = self.machine, self.seen
        start = machine.mark()
        count = self._reached()
        seen.probe = machine.read_register(machine.arch.arguments[0]) & 0xFFFFFFFF
        thread = next((thread for thread in Threads(machine).all()
                       if thread.address == self._running.address), None)
        seen.name, seen.ecbs = self._memory.name(seen.probe), self._memory.ecbs(seen.probe)
        if thread is None:
            raise KinstError("the thread that makes the probe fire is unknown; choose another "
                             "firing with --hit")
        seen.process, seen.pid = thread.process, thread.pid
        self._again(start, count - BEFORE)
        stop = self._watched(count + MAX_WORK)
        if not self.over:
            raise KinstError(f"the firing did not end within {MAX_WORK:,} instructions ({stop}); "
                             "choose another one with --hit")
        self._keep()
        self._finish()
        self._again(start, count - seen.fired - EARLIER)
        self._words = KeptWords(machine, self._wanted())
        try:
            self._watched(count + MAX_WORK)
        finally:
            self._words.close()
        if not self.over:
            raise KinstError("the two recordings of the firing differ; choose another one with "
                             "--hit")
        return seen

    def _again(self, start: StateMark, instructions: int) -> None:
        """Go back to the prompt, and run the command up to a number of instructions."""
        self.machine.back_to(start)
        self._type()
        if self.machine.instructions < instructions:
            self.machine.run(Until(instructions=instructions))
        self.over, self.failure = False, None

    def _watched(self, instructions: int) -> Stop:
        """Run the machine, and call ``look`` before each instruction."""
        with self.each_instruction():
            stop = self.machine.run(Until(instructions=instructions))
        if self.failure is not None:
            raise self.failure
        if stop.reason is StopReason.INTERRUPTED and not self.over:
            raise KeyboardInterrupt
        return stop

    def _wanted(self) -> list[int]:
        """Return the addresses of the words whose changes are recorded."""
        seen, words = self.seen, list[int]()
        for at, size in ((seen.frame, self.machine.guest.traps.trap_frame.size),
                         (seen.trampoline, len(seen.slot)), (seen.record_at, MAX_SHOWN)):
            if at:
                end = at + (min(size, len(seen.record)) if at == seen.record_at else size)
                words += range(at & -WORD, end, WORD)
        return words

    def _type(self) -> None:
        self.machine.type(self._typed.encode() + b"\r")

    def _reached(self) -> int:
        """Run to the wanted firing, and return the instruction count at the call of the tracer."""
        machine, seen = self.machine, self.seen
        old = {thread.pid for thread in Threads(machine).all()}
        self._type()

        def counts() -> bool:
            """Return whether a probe of the program fires in a process that the command starts."""
            probe = machine.read_register(machine.arch.arguments[0]) & 0xFFFFFFFF
            return probe > self._tracer.last_own and self._running.pid() not in old

        reached = list(times_come_to(machine, machine.symbol(self._tracer.fires), seen,
                                     self._limit, counts))
        self._earlier = sum(count >= reached[-1] - BEFORE for count in reached[:-1])
        return reached[-1]

    def look(self, address: int) -> None:
        """Record the instruction at ``address``, and stop when the firing has ended."""
        seen = self.seen
        if self._words is not None:
            self._keep_words(address)
            return
        seen.rows.append(seen_instruction(self.machine, address))
        if self._fired < 0:
            if address == self._fires:
                self._earlier -= 1
                if self._earlier < 0:
                    self._fire()
            return
        if len(seen.rows) - self._start > MAX_ROWS:
            adds = any(name in self._tracer.enabled.aggregates
                       for ecb in seen.ecbs for name in ecb.actions)
            raise KinstError(f"the firing has more than {MAX_ROWS:,} instructions; "
                             + "the first one that adds to an aggregation clears a table; " * adds
                             + "choose another one with --hit")
        if self._ended():
            self.over = True
            self.machine.request_stop(Stop(StopReason.INSTRUCTIONS, address))

    def _keep_words(self, address: int) -> None:
        """Record the words that the row before has stored to."""
        seen, words = self.seen, self._words
        assert words is not None
        if seen.rows[len(seen.stored)].address != address:
            if len(seen.stored) > EARLIER:
                raise KinstError("the two recordings of the firing differ; choose another one "
                                 "with --hit")
            seen.stored.clear()  # the rows before the firing were alike by chance
            words.again()
            if seen.rows[0].address != address:
                return
        seen.stored.append(words.stored())
        if len(seen.stored) == len(seen.rows):
            self.over = True
            self.machine.request_stop(Stop(StopReason.INSTRUCTIONS, address))

    def _fire(self) -> None:
        """Find the row with which the firing begins."""
        seen, rows, machine = self.seen, self.seen.rows, self.machine
        self._fired = len(rows) - 1
        active = self._active()
        names = {function.name: first for first, _last, function in active}
        in_program = names.keys() & self._tracer.in_programs
        if self._tracer.handles in names:
            seen.how, handled = BREAKPOINT, names[self._tracer.handles]
            begin = next((n for n in range(handled, -1, -1)
                          if rows[n].code in self._breakpoints), -1)
            registers = rows[handled].registers
            seen.frame = registers[machine.arch.sp if self._tracer.frame_on_stack
                                   else machine.arch.arguments[0]]
        elif in_program:
            seen.how = PROGRAM
            begin = next((n for n in range(self._fired, -1, -1) if not rows[n].address >> 63), -1)
            if begin >= 0 and rows[begin].code not in self._breakpoints:
                begin = -1
            seen.frame = self._running.frame()
        else:
            begin = next((last for _first, last, function in reversed(active)
                          if not self._is_tracer(function.address)), -1)
        if begin < 0:
            raise KinstError("the beginning of the firing was not recorded; choose another firing "
                             "with --hit")
        self._start, self._thread = begin, thread_of(machine)
        if seen.how == CALL:
            entered = rows[begin + 1].registers
            self._returns_to = (entered[machine.arch.link] if machine.arch.link is not None
                                else machine.read_u64(entered[machine.arch.sp]))
        self._buffer = self._memory.buffer(self.seen.probe)

    def _active(self) -> list[tuple[int, int, Symbol]]:
        """Return (first row, last row, function) of each function being executed, outermost first.

        Code outside functions has no entry.
        """
        calls, found = Calls(self._function), list[tuple[int, int, Symbol | None]]()
        for number, row in enumerate(self.seen.rows):
            depth = calls.enter(row.address)
            first = (found[depth][0] if depth < len(found)
                     and found[depth][2] == calls.functions[-1] else number)
            found[depth:] = [(first, number, calls.functions[-1])]
        return [(first, last, function) for first, last, function in found if function is not None]

    def _is_tracer(self, address: int) -> bool:
        """Return whether an address is in the tracer's modules, or in a gate to them."""
        module, function = self.machine.image.module_at(address), self._function(address)
        return (module is not None and module.path.name in self._tracer.modules) or (
            function is not None and function.name in self._tracer.gates)

    def _function(self, address: int) -> Symbol | None:
        return self.machine.image.symbols.function_at(address)

    def _ended(self) -> bool:
        """Return whether the last row is the first one after the firing."""
        rows, machine, seen = self.seen.rows, self.machine, self.seen
        before, row, first = rows[-2], rows[-1], rows[self._start]
        sp = machine.arch.sp
        if seen.how == CALL:
            entered = rows[self._start + 1].registers[sp] + machine.arch.return_size
            return row.address == self._returns_to and row.registers[sp] >= entered
        if self._is_tracer(row.address) or thread_of(machine) != self._thread:
            return False
        if before.code in self._returns:
            self._in_trampoline = self._is_trampoline(row.address)
            if self._in_trampoline and not seen.slot:
                seen.trampoline = row.address
                seen.slot = machine.read(row.address, self._tracer.chunks.trampoline)
            return not self._in_trampoline and self._goes_on(row, first)
        if self._in_trampoline and not self._is_trampoline(row.address):
            self._in_trampoline = False
            return (not row.address >> 63 if seen.how == PROGRAM
                    else not self._is_vector(row.address))
        return False

    def _goes_on(self, row: SeenInstruction, first: SeenInstruction) -> bool:
        """Return whether the probed code continues at a row after the return from an exception.

        Other exceptions may occur during the firing, such as a page fault of the displaced
        instruction and an interrupt of the page fault's handler.
        """
        if self.seen.how == PROGRAM:
            return not row.address >> 63
        probed = self._function(first.address)
        if not row.address >> 63 or self._is_vector(row.address):
            return False
        return row.registers[self.machine.arch.sp] >= self.seen.frame or (
            probed is not None and self._function(row.address) == probed)

    def _is_vector(self, address: int) -> bool:
        """Return whether an address is in the kernel's entry code."""
        function = self._function(address)
        return function is None or function.name in self.machine.guest.traps.exclusions.names

    def _is_trampoline(self, address: int) -> bool:
        if self.seen.how == PROGRAM:
            scratch = self._scratch()
            return bool(scratch) and scratch <= address < scratch + 64
        return not self.machine.image.holds_code(address)

    def _scratch(self) -> int:
        """Return the address of the trampoline in the program's memory, or 0."""
        value = thread_of(self.machine)
        for kind, member in self._tracer.scratch:
            value = self._running.member(kind, member, value) if value else 0
        return value

    def _keep(self) -> None:
        """Keep what the firing has written."""
        seen, memory, machine = self.seen, self._memory, self.machine
        before, after = self._buffer, memory.buffer(seen.probe)
        if after.data == before.data and before.offset < after.offset:
            seen.record_at = before.data + before.offset
            seen.record = machine.read(seen.record_at, min(after.offset - before.offset,
                                                           MAX_RECORD))
        seen.chunks = memory.chunks()
        if seen.how == BREAKPOINT and seen.trampoline:
            self._align()

    def _align(self) -> None:
        """Find the beginning of the trampoline, which may be entered at a later instruction."""
        seen, chunks = self.seen, self._tracer.chunks
        for chunk in seen.chunks:
            offset = seen.trampoline - chunk.address
            if 0 <= offset < chunks.size:
                seen.trampoline -= offset % chunks.trampoline
                seen.slot = self.machine.read(seen.trampoline, chunks.trampoline)
                return
        raise KinstError(f"{self.machine.image.path}: the chunk of the trampoline at "
                         f"{seen.trampoline:#x} is not known; debug data of the tracer's modules "
                         "may be missing")

    def _finish(self) -> None:
        """Remove the rows before the firing, and divide the others into parts."""
        seen, begin = self.seen, self._start
        seen.rows = seen.rows[begin:]
        seen.fired = self._fired - begin
        if seen.how == BREAKPOINT:
            seen.handled = next(n for n in range(seen.fired, -1, -1)
                                if seen.rows[n].address == self._handles)
        if seen.how != CALL:
            first = seen.rows[0]
            seen.original = self._displaced(first.address) if first.address >> 63 else b""
        divide(seen, self.machine.image, self._tracer, self._breakpoints)

    def _displaced(self, address: int) -> bytes:
        image, arch = self.machine.image, self.machine.arch
        function = self._function(address)
        size = 16 if function is None else min(16, function.address + function.size - address)
        code = image.virtual_to_file(address, size)
        return code[: arch.instruction_length(code)]
