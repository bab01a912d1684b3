"""Recorder of a program's entry into a kernel function and of the return, with the trap frame.

The command runs twice. The second run is normal until shortly before the function; from there on,
Unicorn stops at each instruction. The machine is not to be used for anything else.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dtrace.stacks.threads import Threads
from emu.elf.symbols import Symbol
from emu.host.errors import KinstError, MemoryAccessError
from emu.machine.machine import Stop, StopReason, Until
from emu.machine.running_thread import thread_of
from emu.unicorn.machine import UnicornMachine
from images.shell import CommandError, at_shell, check_command
from kinst.relocation.trap import trap_of
from kinst_emu.explain.record.each_instruction import EachInstruction
from kinst_emu.explain.record.instruction import SeenInstruction, seen_instruction
from kinst_emu.explain.record.running import RunningThread

# number of instructions recorded before the function is called, including the entry into the kernel
BEFORE = 3000
# maximum number of recorded instructions from the program to the function, or back
MAX_ROWS = 20_000
# Maximum number of instructions until the function returns, including those of other threads.
MAX_WORK = 5_000_000
MAX_ENTERED = 24  # maximum number of functions whose first call is recorded
SHELL_PROCESS = 1  # process ID of the shell
WORD = 8  # size of a word in bytes
# number of bytes of code recorded before and after the address of the program's instruction
AROUND = 24


@dataclass
class SeenWay:
    """Instructions executed on the path from a program to a kernel function, or back.

    :param boundary: number of the row where control passes between the vectors and the kernel's C
        code, in either direction; 0 if no row does that.
    :param stored: by row number, the words of the trap frame, by address, that changed or were
        stored to since the row before.  The first row on the way in has all mapped words (the
        second row, if the program's instruction was not seen); the first row on the way out has
        the words that changed while the function ran.
    """

    rows: list[SeenInstruction] = field(default_factory=list)
    stored: list[Mapping[int, int]] = field(default_factory=list)
    boundary: int = 0


@dataclass
class SeenEntry:
    """A recorded entry into the kernel and the return from it.

    :param function: the kernel function to which the entry is followed.
    :param what: plural name of such entries, for error messages.
    :param process: name of the program's process; ``pid`` is its number.
    :param code: the program's bytes around the instruction, beginning at ``code_at``.
    :param entry: from the program's instruction to the function's first instruction.
    :param leaving: from the function's return address to the program's next instruction, inclusive.
    :param work: the functions called in between: the number of calls, and the number of
        instructions executed before the first call, counted from the function's first instruction;
        ``entered`` has the registers at the first call, for the first ``MAX_ENTERED`` of them.
    :param others: whether other threads ran meanwhile.
    :param spent: number of instructions from the function's first to its return.
    :param frame: address of the trap frame; ``before``: its bytes when the function is called;
        ``after``: its bytes when the program resumes.
    """

    function: Symbol
    what: str
    command: str
    hit: int
    process: str = ""
    pid: int = 0
    code: bytes = b""
    code_at: int = 0
    entry: SeenWay = field(default_factory=SeenWay)
    work: dict[str, tuple[int, int]] = field(default_factory=dict)
    entered: list[tuple[str, SeenInstruction]] = field(default_factory=list)
    spent: int = 0
    others: bool = False
    leaving: SeenWay = field(default_factory=SeenWay)
    frame: int = 0
    before: bytes = b""
    after: bytes = b""


class WantedTime(Protocol):
    """Requested occurrence of an event, such as a system call, during a command."""

    @property
    def command(self) -> str: ...

    @property
    def what(self) -> str: ...

    @property
    def hit(self) -> int: ...


def times_come_to(machine: UnicornMachine, function: Symbol, wanted: WantedTime, limit: int,
                  counts: Callable[[], bool]) -> Iterator[int]:
    """Yield the instruction count each time a typed command reaches a function.

    The last value is that of the wanted occurrence.

    :param counts: returns whether the current arrival is one of those that are counted.
    :raises CommandError: if the command does not reach the wanted occurrence.
    """
    until = Until(addresses=[function.address], console=machine.guest.boot.shell_prompt,
                  instructions=machine.instructions + limit)
    counted, command = 0, wanted.command[:60]
    while counted < wanted.hit:
        stop = machine.run(until)
        if stop.reason is StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        if stop.reason is StopReason.INSTRUCTIONS:
            raise CommandError(f"'{command}': occurrence {wanted.hit} of the {wanted.what} was "
                               f"not reached within {limit:,} instructions; raise --limit", stop)
        if stop.reason is not StopReason.ADDRESS:
            raise CommandError(f"--hit {wanted.hit}: too few {wanted.what} in '{command}': "
                               f"{counted}", stop)
        counted += counts()
        yield machine.instructions


class EntryRecorder(EachInstruction):
    """Recorder of one entry into the kernel by a program.

    :param machine: at the shell prompt; not to be used for anything else afterwards.
    :param handler: name of the first C function of the kernel that the entry reaches.
    :param running: reader of the current thread.
    """

    def __init__(self, machine: UnicornMachine, seen: SeenEntry, handler: str, limit: int,
                 running: RunningThread) -> None:
        super().__init__(machine)
        self.seen, self._limit, self.running = seen, limit, running
        self._handler_function = machine.symbol(handler)
        self._handled = 0  # address to which the handler returns
        self._returns = trap_of(machine.guest, machine.arch.name).instructions.trap_returns
        at_shell(machine)
        check_command(seen.command)
        self._way = SeenWay()  # rows recorded so far on the way to the function, or back
        self._back = 0  # address to which the function returns
        self._thread = 0  # the thread that called the function
        # stack pointer after the return; number of instructions executed since the call
        self._sp = self._count = 0
        self._earlier = 0  # number of earlier calls of the function that are recorded, too
        self._inside = False

    @abstractmethod
    def counts(self) -> bool:
        """Return whether the current call of the function counts as an occurrence."""

    @abstractmethod
    def program(self, row: SeenInstruction) -> SeenInstruction:
        """Return the program's instruction that entered the kernel.

        :param row: the last instruction that the program has executed, or the kernel's first if
            the program has executed none since the kernel last returned to it.
        :raises KinstError: if the instruction is not known.
        """

    @abstractmethod
    def left(self) -> None:
        """Examine the machine when control has returned from the kernel to the program."""

    def record(self) -> SeenEntry:
        """Run the command and record the wanted entry into the kernel.

        :raises KinstError: if the command does not make the entry, or does not return from it.
        """
        machine, seen = self.machine, self.seen
        start = machine.snapshot()
        count = self._reached()
        running = next((thread for thread in Threads(machine).all()
                        if thread.address == machine.read_u64(
                            machine.read_register(machine.guest.threads.per_cpu))), None)
        seen.process, seen.pid = ("", 0) if running is None else (running.process, running.pid)
        machine.restore(start)
        self._type()
        if machine.instructions < count - BEFORE:
            machine.run(Until(instructions=count - BEFORE))
        size = machine.guest.traps.trap_frame.size
        stop = self.watch(range(seen.frame & -WORD, seen.frame + size, WORD), count + MAX_WORK)
        if not self.over:
            raise KinstError(f"{seen.function.name}: did not return to the program within "
                             f"{MAX_WORK:,} instructions ({stop}); choose another occurrence with "
                             "--hit")
        return seen

    def _type(self) -> None:
        self.machine.type(self.seen.command.encode() + b"\r")

    def _reached(self) -> int:
        """Run to the wanted call of the function, and return the instruction count at the call."""
        machine, seen = self.machine, self.seen
        self._type()
        reached = list(times_come_to(machine, seen.function, seen, self._limit, lambda: (
            # Calls by the shell, which reads the line and waits, do not count.
            self.running.pid() != SHELL_PROCESS and self.counts())))
        seen.frame = self.running.frame()
        self._earlier = sum(count >= reached[-1] - BEFORE for count in reached[:-1])
        return reached[-1]

    def look(self, address: int) -> None:
        """Record the instruction at ``address``, or only count it while the function runs."""
        seen = self.seen
        if self._inside:
            self._working(address)
            return
        way = self._way
        # Keep only the program's last instruction before the entry into the kernel.  A return that
        # is followed by kernel code means that the program's page was missing: discard the rows.
        in_program = not address >> 63
        returned = bool(way.rows) and way.rows[-1].code in self._returns
        if not seen.spent and (in_program or returned):
            self._way = way = SeenWay()
            self.kept.again()
        way.rows.append(seen_instruction(self.machine, address))
        way.stored.append(self.kept.stored())
        if address == self._handler_function.address and not seen.spent:
            self._handled = self._returns_to()
        if len(way.rows) > MAX_ROWS:
            raise KinstError(f"{seen.function.name}: more than {MAX_ROWS:,} instructions ran "
                             "between the program and the function; choose another occurrence "
                             "with --hit")
        if seen.spent:
            if not address >> 63 and thread_of(self.machine) == self._thread:
                self._leave()
        elif address == seen.function.address:
            self._earlier -= 1
            if self._earlier < 0:
                self._enter()

    def _read(self, address: int, size: int) -> bytes:
        """Return the bytes at an address, or empty bytes if the memory is not mapped."""
        try:
            return self.machine.read(address, size)
        except MemoryAccessError:
            return b""

    def _returns_to(self) -> int:
        """Return the return address of a function that is at its first instruction."""
        machine, link = self.machine, self.machine.arch.link
        return (machine.read_register(link) if link is not None else machine.read_u64(machine.sp))

    def _enter(self) -> None:
        """Record the arrival at the function's first instruction."""
        machine, seen, arch = self.machine, self.seen, self.machine.arch
        seen.entry, self._way = self._way, SeenWay()
        rows = seen.entry.rows
        if rows[0].address >> 63:
            rows.insert(0, rows[0])
            seen.entry.stored.insert(0, {})
        rows[0] = self.program(rows[0])
        if seen.frame != self.running.frame():
            raise KinstError(f"{seen.function.name}: the addresses of the trap frame in two runs "
                             "differ; choose another occurrence with --hit")
        self._thread = thread_of(machine)
        seen.entry.boundary = next((number for number, row in enumerate(rows)
                                    if row.address == self._handler_function.address), 0)
        if not seen.entry.boundary:
            raise KinstError(f"{seen.function.name}: the entry into the kernel was not recorded, "
                             "because another thread ran in between; choose another occurrence "
                             "with --hit")
        pc = rows[0].address
        # Preceding instructions can be found only if all instructions have the same length.
        before = AROUND if machine.cpu.model.fixed_length else 0
        for begin, end in ((pc - before, pc + AROUND), (pc, pc + AROUND), (pc, pc + 4)):
            seen.code, seen.code_at = self._read(begin, end - begin), begin
            if seen.code:
                break
        seen.before = machine.read(seen.frame, machine.guest.traps.trap_frame.size)
        self._back = self._returns_to()
        self._sp = arch.stack_after_return(machine)
        self._inside = True

    def _working(self, address: int) -> None:
        """Count an instruction that any thread executes before the function returns."""
        machine, seen = self.machine, self.seen
        self._count += 1
        if address == self._back and machine.sp == self._sp:
            self._inside, seen.spent = False, self._count
            self.look(address)
            return
        function = machine.image.symbols.function_at(address)
        if function is not None and function.address == address:
            if thread_of(machine) == self._thread:
                times, first = seen.work.get(function.name, (0, self._count))
                seen.work[function.name] = times + 1, first
                if not times and len(seen.entered) < MAX_ENTERED:
                    seen.entered.append((function.name, seen_instruction(self.machine, address)))
            else:
                seen.others = True

    def _leave(self) -> None:
        seen = self.seen
        seen.leaving = self._way
        seen.leaving.boundary = next((number for number, row in enumerate(seen.leaving.rows)
                                      if row.address == self._handled), 0)
        seen.after = self.machine.read(seen.frame, self.machine.guest.traps.trap_frame.size)
        self.left()
        self.over = True
        self.machine.request_stop(Stop(StopReason.INTERRUPTED, self.machine.pc))
