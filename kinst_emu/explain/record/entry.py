"""One way from a program into the kernel and back: from the program's instruction to a function of
the kernel's and to the program's next instruction, with the trap frame.

The command that comes that way runs twice, the second time up to shortly before the function; from
there on each instruction is a stop of Unicorn's.  The machine is not used for anything else.
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

BEFORE = 3000  # instructions before the function in which the program has entered the kernel
MAX_ROWS = 20_000  # instructions of the ways in and out
MAX_WORK = 5_000_000  # of the function, and what it waits for
MAX_ENTERED = 24  # functions that are kept as they were entered
SHELL_PROCESS = 1  # our shell is the first process
WORD = 8
AROUND = 24  # bytes of the program before the instruction, and from it on


@dataclass
class SeenWay:
    """The instructions of a way between a program and a function of the kernel's.

    :param boundary: the number of the row where it passes between the vectors and the kernel's C
        code, in either direction; 0 when no row is.
    :param stored: by the number of a row, the words of the trap frame, by address, that changed or
        were stored to since the row before.  The first row of the way in has all mapped words (the
        second, where the program's instruction was not seen); the first row of the way out has what
        changed while the function ran.
    """

    rows: list[SeenInstruction] = field(default_factory=list)
    stored: list[Mapping[int, int]] = field(default_factory=list)
    boundary: int = 0


@dataclass
class SeenEntry:
    """What was seen of it; each number is the machine's.

    :param function: what it is followed to.
    :param what: what is told of an entry like this, where there is none.
    :param process: the name and ``pid`` of whose program it is.
    :param code: the program's bytes around the instruction, from ``code_at`` on.
    :param entry: the program's instruction, and what follows it, up to the function's first.
    :param leaving: from where the function has returned to, up to the program's next instruction,
        which is the last.
    :param work: the functions that are entered in between: how often, and the instructions that
        are executed before the first time, counted from the function's first; ``entered`` the
        machine at the first time, of the first ones.
    :param others: whether other threads have run meanwhile.
    :param spent: instructions from the function's first to its return.
    :param frame: the trap frame's address; ``before`` its bytes when the function is called,
        ``after`` when the program goes on.
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
    """What of a command is wanted: of ``what``, which is several, number ``hit``."""

    @property
    def command(self) -> str: ...

    @property
    def what(self) -> str: ...

    @property
    def hit(self) -> int: ...


def times_come_to(machine: UnicornMachine, function: Symbol, wanted: WantedTime, limit: int,
                  counts: Callable[[], bool]) -> Iterator[int]:
    """The instructions executed whenever a command, which was typed, comes to a function, up to
    the wanted time.

    :param counts: whether a time is one of those that are counted.
    :raises CommandError: when it does not come to that.
    """
    until = Until(addresses=[function.address], console=machine.guest.boot.shell_prompt,
                  instructions=machine.instructions + limit)
    counted, command = 0, wanted.command[:60]
    while counted < wanted.hit:
        stop = machine.run(until)
        if stop.reason is StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        if stop.reason is StopReason.INSTRUCTIONS:
            raise CommandError(f"'{command}' has not come to number {wanted.hit} of the "
                               f"{wanted.what} after {limit:,} instructions; --limit sets another "
                               "limit", stop)
        if stop.reason is not StopReason.ADDRESS:
            raise CommandError(f"'{command}' makes {counted} {wanted.what}: there is none number "
                               f"{wanted.hit}", stop)
        counted += counts()
        yield machine.instructions


class EntryRecorder(EachInstruction):
    """:param machine: at our shell's prompt; not to be used for anything else afterwards.
    :param running: what can be told of the thread that runs.
    :param handler: the kernel's first function in C on the way.
    """

    def __init__(self, machine: UnicornMachine, seen: SeenEntry, handler: str, limit: int,
                 running: RunningThread) -> None:
        super().__init__(machine)
        self.seen, self._limit, self.running = seen, limit, running
        self._handler_function = machine.symbol(handler)
        self._handled = 0  # where that returns to
        self._returns = trap_of(machine.guest, machine.arch.name).instructions.trap_returns
        at_shell(machine)
        check_command(seen.command)
        self._way = SeenWay()  # so far
        self._back = 0  # where the function returns to
        self._thread = 0  # whose it is
        self._sp = self._count = 0  # the stack pointer then; instructions of it so far
        self._earlier = 0  # times that the function is come to shortly before
        self._inside = False

    @abstractmethod
    def counts(self) -> bool:
        """At the function: whether this is one of those that are counted."""

    @abstractmethod
    def program(self, row: SeenInstruction) -> SeenInstruction:
        """At the function: the program's instruction that has led here.

        :param row: the last that it has executed; the kernel's first, where it has executed none
            since the kernel last returned to it.
        :raises KinstError: when none has.
        """

    @abstractmethod
    def left(self) -> None:
        """At the program's next instruction, before anything of it is executed."""

    def record(self) -> SeenEntry:
        """:raises KinstError: when the command does not come that way, or not back."""
        machine, seen = self.machine, self.seen
        start = machine.snapshot()
        count = self._reached()
        running = next((one for one in Threads(machine).all()
                        if one.address == machine.read_u64(
                            machine.read_register(machine.guest.threads.per_cpu))), None)
        seen.process, seen.pid = ("", 0) if running is None else (running.process, running.pid)
        machine.restore(start)
        self._type()
        if machine.instructions < count - BEFORE:
            machine.run(Until(instructions=count - BEFORE))
        size = machine.guest.traps.trap_frame.size
        stop = self.watch(range(seen.frame & -WORD, seen.frame + size, WORD), count + MAX_WORK)
        if not self.over:
            raise KinstError(f"{seen.function.name}: it has not come back to the program within "
                             f"{MAX_WORK:,} instructions ({stop}): --hit explains another one")
        return seen

    def _type(self) -> None:
        self.machine.type(self.seen.command.encode() + b"\r")

    def _reached(self) -> int:
        """The instructions executed where the wanted call's function begins."""
        machine, seen = self.machine, self.seen
        self._type()
        reached = list(times_come_to(machine, seen.function, seen, self._limit, lambda: (
            # The shell reads the line, and waits.
            self.running.pid() != SHELL_PROCESS and self.counts())))
        seen.frame = self.running.frame()
        self._earlier = sum(one >= reached[-1] - BEFORE for one in reached[:-1])
        return reached[-1]

    def look(self, address: int) -> None:
        seen = self.seen
        if self._inside:
            self._working(address)
            return
        way = self._way
        # Keep only the program's last instruction before the kernel.  A return that is followed by
        # kernel code means that the program's page was missing: begin again there, too.
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
            raise KinstError(f"{seen.function.name}: {MAX_ROWS:,} instructions of the way are not "
                             "shown: --hit explains another one")
        if seen.spent:
            if not address >> 63 and thread_of(self.machine) == self._thread:
                self._leave()
        elif address == seen.function.address:
            self._earlier -= 1
            if self._earlier < 0:
                self._enter()

    def _read(self, address: int, size: int) -> bytes:
        """Empty: it is not mapped."""
        try:
            return self.machine.read(address, size)
        except MemoryAccessError:
            return b""

    def _returns_to(self) -> int:
        """At a function's first instruction: where it returns to."""
        machine, link = self.machine, self.machine.arch.link
        return (machine.read_register(link) if link is not None else machine.read_u64(machine.sp))

    def _enter(self) -> None:
        """At the function's first instruction."""
        machine, seen, arch = self.machine, self.seen, self.machine.arch
        seen.entry, self._way = self._way, SeenWay()
        rows = seen.entry.rows
        if rows[0].address >> 63:
            rows.insert(0, rows[0])
            seen.entry.stored.insert(0, {})
        rows[0] = self.program(rows[0])
        if seen.frame != self.running.frame():
            raise KinstError(f"{seen.function.name}: its trap frame is elsewhere, the second time: "
                             "--hit explains another one")
        self._thread = thread_of(machine)
        seen.entry.boundary = next((number for number, row in enumerate(rows)
                                    if row.address == self._handler_function.address), 0)
        if not seen.entry.boundary:
            raise KinstError(f"{seen.function.name}: its way into the kernel is not seen: another "
                             "thread ran in between; --hit explains another one")
        made = rows[0].address
        # Where instructions differ in length, nobody knows where those before it begin.
        before = AROUND if machine.cpu.model.fixed_length else 0
        for begin, end in ((made - before, made + AROUND), (made, made + AROUND), (made, made + 4)):
            seen.code, seen.code_at = self._read(begin, end - begin), begin
            if seen.code:
                break
        seen.before = machine.read(seen.frame, machine.guest.traps.trap_frame.size)
        self._back = self._returns_to()
        self._sp = arch.stack_after_return(machine)
        self._inside = True

    def _working(self, address: int) -> None:
        """An instruction between the function's first and its return; or another thread's."""
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
