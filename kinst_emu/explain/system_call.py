"""One system call as the machine goes through it: from the program's instruction into the kernel
and back, every instruction, with the trap frame.

The command that makes it runs twice, the second time up to shortly before the call; from there on
each instruction is a stop of Unicorn's.  The machine is not used for anything else.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import unicorn

from dtrace.threads import Threads
from emu.errors import KinstError, MemoryAccessError
from emu.guest import SystemCalls
from emu.machine import Stop, StopReason, Until
from emu.replay.flow import thread_of
from emu.symbols import Symbol
from emu.system_call import calls_of, numbers
from emu.unicorn.machine import UnicornMachine
from images.shell import CommandError, at_shell, check_command
from kinst_emu.explain.recorder import SeenInstruction

BEFORE = 3000  # instructions before the call's function in which its program has made it
MAX_ROWS = 20_000  # instructions of the ways in and out
MAX_WORK = 5_000_000  # of the call's function, and what it waits for
SHELL_PROCESS = 1  # our shell is the first process
AROUND = 24  # bytes of the program before the instruction, and from it on


@dataclass
class SeenCall:
    """What was seen of it; each number is the machine's.

    :param process: the name and ``pid`` of who makes it.
    :param code: the program's bytes around the instruction, from ``code_at`` on.
    :param entry: the instruction that makes the call, and what follows it, up to the first of the
        call's function; ``handler`` is the number of the row where the kernel's C code begins.
    :param leaving: from where the function has returned to, up to the program's next instruction,
        which is the last; ``handled`` the number of the row where the C code has ended.
    :param work: the functions that are entered in between: how often, and the instructions that
        are executed before the first time, counted from the function's first.
    :param others: whether other threads have run meanwhile.
    :param spent: instructions from the function's first to its return.
    :param frame: the trap frame's address; ``before`` its bytes when the function is called,
        ``after`` when the program goes on.
    """

    architecture: str
    function: Symbol
    number: int
    command: str
    hit: int
    process: str = ""
    pid: int = 0
    code: bytes = b""
    code_at: int = 0
    entry: list[SeenInstruction] = field(default_factory=list)
    handler: int = 0
    work: dict[str, tuple[int, int]] = field(default_factory=dict)
    spent: int = 0
    others: bool = False
    leaving: list[SeenInstruction] = field(default_factory=list)
    handled: int = 0
    frame: int = 0
    before: bytes = b""
    after: bytes = b""


class CallRecorder:
    """:param machine: at our shell's prompt; not to be used for anything else afterwards.
    :param frame: gives the trap frame's address of the thread that runs; ``pid`` its process.
    :raises KinstError: when there is no such system call.
    """

    def __init__(self, machine: UnicornMachine, name: str, command: str, hit: int, limit: int,
                 frame: Callable[[], int], pid: Callable[[], int]) -> None:
        self.machine, self._limit, self._frame, self._pid = machine, limit, frame, pid
        self.calls: SystemCalls = calls_of(machine)
        at_shell(machine)
        check_command(command)
        plain = name.removeprefix(self.calls.prefix)
        known = numbers(machine)
        function = machine.image.symbols.find(self.calls.prefix + plain)
        if plain not in known or function is None:
            raise KinstError(f"'{name}' is no system call of this kernel: give its name, like "
                             f"open or {self.calls.prefix}open")
        self.seen = SeenCall(machine.arch.name, function, known[plain], command, hit)
        self._rows: list[SeenInstruction] = []
        self._back = 0  # where the function returns to
        self._thread = 0  # who makes the call
        self._sp = self._count = 0  # the stack pointer then; instructions of it so far
        self._earlier = 0  # calls of the same function, shortly before
        self._inside = self._over = False
        self._failure: KinstError | None = None

    def record(self) -> SeenCall:
        """:raises KinstError: when the command does not make it, or it does not come back."""
        machine, seen = self.machine, self.seen
        start = machine.snapshot()
        count = self._reached()
        running = next((one for one in Threads(machine).all()
                        if one.address == machine.read_u64(
                            machine.read_register(machine.guest.per_cpu))), None)
        seen.process, seen.pid = ("", 0) if running is None else (running.process, running.pid)
        machine.restore(start)
        self._type()
        if machine.instructions < count - BEFORE:
            machine.run(Until(instructions=count - BEFORE))
        hook = machine.uc.hook_add(unicorn.UC_HOOK_CODE, self._executed, begin=1, end=0)
        machine.engine.flush_translations()
        try:
            stop = machine.run(Until(instructions=count + MAX_WORK))
        finally:
            machine.engine.unhook(hook)
        if self._failure is not None:
            raise self._failure
        if stop.reason is StopReason.INTERRUPTED and not self._over:
            raise KeyboardInterrupt
        if not self._over:
            raise KinstError(f"{seen.function.name}: it has not come back to the program within "
                             f"{MAX_WORK:,} instructions ({stop}): --hit explains another one")
        seen.after = machine.read(seen.frame, machine.guest.trap_frame.size)
        return seen

    def _type(self) -> None:
        self.machine.type(self.seen.command.encode() + b"\r")

    def _reached(self) -> int:
        """The instructions executed where the wanted call's function begins."""
        machine, seen = self.machine, self.seen
        self._type()
        limit = machine.instructions + self._limit
        until = Until(addresses=[seen.function.address], console=machine.guest.shell_prompt,
                      instructions=limit)
        reached: list[int] = []
        counted: list[int] = []
        while len(counted) < seen.hit:
            made = len(counted)
            stop = machine.run(until)
            if stop.reason is StopReason.INTERRUPTED:
                raise KeyboardInterrupt
            if stop.reason is StopReason.INSTRUCTIONS:
                raise CommandError(f"'{seen.command[:60]}' has not come to {seen.function.name} "
                                   f"number {seen.hit} after {self._limit:,} instructions; "
                                   "--limit sets another limit", stop)
            if stop.reason is not StopReason.ADDRESS:
                raise CommandError(f"'{seen.command[:60]}' makes {made} calls of "
                                   f"{seen.function.name}: there is none number {seen.hit}", stop)
            reached.append(machine.instructions)
            if self._pid() != SHELL_PROCESS:  # which reads the line, and waits
                counted.append(machine.instructions)
        self._earlier = sum(one >= reached[-1] - BEFORE for one in reached[:-1])
        return reached[-1]

    def _executed(self, _uc: unicorn.Uc, address: int, _size: int, _data: object) -> None:
        """Unicorn keeps an exception to itself here, and the machine would never end."""
        if self._failure is None and not self._over:
            try:
                self._look(address)
            except KinstError as error:
                self._failure = error
                self.machine.request_stop(Stop(StopReason.INTERRUPTED, address))

    def _look(self, address: int) -> None:
        seen = self.seen
        if self._inside:
            self._working(address)
            return
        if not address >> 63 and not seen.spent:
            self._rows.clear()  # the last one before the kernel is kept
        self._rows.append(self._row(address))
        if len(self._rows) > MAX_ROWS:
            raise KinstError(f"{seen.function.name}: {MAX_ROWS:,} instructions of the way are not "
                             "shown")
        if seen.spent:
            if not address >> 63 and thread_of(self.machine) == self._thread:
                self._leave()
        elif address == seen.function.address:
            self._earlier -= 1
            if self._earlier < 0:
                self._enter()

    def _row(self, address: int) -> SeenInstruction:
        machine = self.machine
        registers = {name: machine.read_register(name) for name in machine.arch.registers}
        registers[machine.arch.pc] = address
        for size in (16, -address & 0xFFF or 16):  # the next page may not be there
            try:
                code = machine.read(address, size)
                break
            except MemoryAccessError:
                code = b""
        return SeenInstruction(address, code[: machine.arch.instruction_length(code)], registers)

    def _handler(self, rows: list[SeenInstruction], last: bool) -> int:
        """The number of the row where the kernel's C code begins, or (last) has ended."""
        function = self.machine.symbol(self.calls.handler)
        inside = [n for n, row in enumerate(rows)
                  if function.address <= row.address < function.address + function.size]
        return 0 if not inside else inside[-1] + 1 if last else inside[0]

    def _enter(self) -> None:
        """At the function's first instruction."""
        machine, seen, arch = self.machine, self.seen, self.machine.arch
        seen.entry = list(self._rows)
        if seen.entry[0].code != self.calls.instruction:
            raise KinstError(f"{seen.function.name}: where the program has made the call is not "
                             "seen: another thread ran in between; --hit explains another one")
        self._thread = thread_of(machine)
        seen.handler = self._handler(seen.entry, False)
        made = seen.entry[0].address
        # Where instructions differ in length, nobody knows where those before it begin.
        before = AROUND if machine.cpu.model.fixed_length else 0
        for begin, end in ((made - before, made + AROUND), (made, made + AROUND), (made, made + 4)):
            try:
                seen.code, seen.code_at = machine.read(begin, end - begin), begin
                break
            except MemoryAccessError:
                continue
        seen.frame = self._frame()
        seen.before = machine.read(seen.frame, machine.guest.trap_frame.size)
        self._back = (machine.read_register(arch.link) if arch.link is not None
                      else machine.read_u64(machine.sp))
        self._sp = arch.stack_after_return(machine)
        self._inside = True
        self._rows.clear()

    def _working(self, address: int) -> None:
        """An instruction between the function's first and its return; or another thread's."""
        machine, seen = self.machine, self.seen
        self._count += 1
        if address == self._back and machine.sp == self._sp:
            self._inside, seen.spent = False, self._count
            self._look(address)
            return
        function = machine.image.symbols.function_at(address)
        if function is not None and function.address == address:
            if thread_of(machine) == self._thread:
                times, first = seen.work.get(function.name, (0, self._count))
                seen.work[function.name] = times + 1, first
            else:
                seen.others = True

    def _leave(self) -> None:
        seen = self.seen
        seen.leaving = list(self._rows)
        seen.handled = self._handler(seen.leaving, True)
        self._over = True
        self.machine.request_stop(Stop(StopReason.INTERRUPTED, self.machine.pc))
