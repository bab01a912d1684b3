"""A CPU is taken from one thread and given to another: the function that does it, instruction by
instruction, and what it keeps of both threads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from dtrace.stacks.stack import Stacks
from dtrace.stacks.threads import Threads, structure
from dwarf.types import find_member
from emu.elf.symbols import Symbol
from emu.host.errors import KinstError
from emu.machine.machine import Stop, StopReason
from emu.unicorn.machine import UnicornMachine
from images.shell import at_shell, check_command
from kinst_emu.explain.record.each_instruction import EachInstruction
from kinst_emu.explain.record.entry import SHELL_PROCESS, times_come_to
from kinst_emu.explain.record.instruction import SeenInstruction, seen_instruction
from kinst_emu.explain.record.running import RunningThread

MAX_ROWS = 5000
FRAMES = 16
WORD = 8


@dataclass(frozen=True)
class SwitchedThread:
    """:param name: the thread's, and its process; ``kept`` where the kernel keeps its registers:
        by their names, addresses of words.
    :param stack: its calls, the innermost first, where it calls for the switch, or goes on.
    """

    address: int
    name: str
    process: str
    pid: int
    kept: Mapping[str, int]
    stack: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        if not self.pid and not self.process:
            return f"the thread at {self.address:#x}"
        return f"{self.process}" + (f"/{self.name}" if self.name != self.process else "") + (
            f" (process {self.pid})")


@dataclass
class SeenSwitch:
    """:param rows: from the function's first instruction to the first of the other thread, which is
        the last.
    :param roots: of each, the register that leads to the page tables.
    :param words: of each, the words where registers are kept that the row before has stored to,
        by address; of the first, all.
    :param loaded: the number of the first row with the other one's stack pointer.
    """

    function: Symbol
    before: SwitchedThread
    after: SwitchedThread
    rows: list[SeenInstruction] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    words: list[Mapping[int, int]] = field(default_factory=list)
    loaded: int = 0

    @property
    def names(self) -> list[str]:
        """The registers that are stored of the old thread: others, which have a place beside
        them, are not kept in a switch."""
        stored = {at for words in self.words[1 : self.loaded + 1] for at in words}
        return [name for name, at in self.before.kept.items() if at in stored]


class SwitchRecorder(EachInstruction):
    """:param machine: at our shell's prompt; not to be used for anything else afterwards.
    :cvar what: the command comes to.
    :raises KinstError: for a kernel of whose switches nothing is known.
    """

    what: ClassVar[str] = "context switches"

    def __init__(self, machine: UnicornMachine, command: str, hit: int, limit: int,
                 running: RunningThread) -> None:
        super().__init__(machine)
        self.command, self.hit, self._limit = command, hit, limit
        self._running, switch = running, machine.guest.threads.switch
        kind = structure(running.types, machine.guest.threads.lists.registers)
        if switch is None or kind is None:
            raise KinstError(f"{machine.image.path}: nothing is known of its context switches")
        self._kind = kind
        self._function = machine.symbol(switch.functions[0])
        self._root = machine.guest.programs.page_tables[1]
        at_shell(machine)
        check_command(command)
        self.seen: SeenSwitch | None = None
        self._sp = self._pc = 0  # what the other thread's are kept as

    def record(self) -> SeenSwitch:
        """:raises KinstError: when the command does not come to it."""
        machine, function = self.machine, self._function
        machine.type(self.command.encode() + b"\r")
        counted = 0

        def counts() -> bool:
            """Until the shell has read the line, it is the shell that is switched to."""
            nonlocal counted
            counted += counted > 0 or self._running.pid() == SHELL_PROCESS
            return counted > 0

        for _ in times_come_to(machine, function, self, self._limit, counts):
            pass
        self.seen = seen = self._begin()
        stop = self.watch([*seen.before.kept.values(), *seen.after.kept.values()],
                          machine.instructions + 2 * MAX_ROWS)
        if not self.over:
            raise KinstError(f"{function.name}: it has not come to another thread ({stop}): --hit "
                             "explains another one")
        return seen

    def _begin(self) -> SeenSwitch:
        machine = self.machine
        old, new = (machine.read_register(machine.arch.arguments[number]) for number in (0, 1))
        before, after = self._thread(old, self._stack(machine.pc)), self._thread(new)
        self._sp, self._pc = (machine.read_u64(after.kept[name])
                              for name in (machine.arch.sp, machine.arch.pc))
        return SeenSwitch(self._function, before, after)

    def _thread(self, address: int, stack: tuple[str, ...] = ()) -> SwitchedThread:
        guest = self.machine.guest
        found = next((one for one in Threads(self.machine).all() if one.address == address), None)
        saved = int(self._running.at(address)[guest.threads.lists.saved])
        kept = dict[str, int]()
        for name, (member, index) in guest.registers.saved.items():
            place = find_member(self._kind, member)
            if place is not None:
                kept[name] = saved + place.offset // 8 + WORD * (index or 0)
        return SwitchedThread(address, "" if found is None else found.name,
                              "" if found is None else found.process,
                              0 if found is None else found.pid, kept, stack)

    def _stack(self, pc: int) -> tuple[str, ...]:
        machine, name = self.machine, self.machine.arch.pc
        return tuple(line.strip() for line in Stacks(machine).text(
            lambda one: pc if one == name else machine.read_register(one), FRAMES))

    def look(self, address: int) -> None:
        machine, seen = self.machine, self.seen
        assert seen is not None
        seen.rows.append(seen_instruction(machine, address))
        seen.roots.append(machine.read_register(self._root))
        seen.words.append(self.kept.stored())
        if not seen.loaded and len(seen.rows) > 1 and machine.sp == self._sp:
            seen.loaded = len(seen.rows) - 1
        if (seen.loaded and address == self._pc) or len(seen.rows) > MAX_ROWS:
            self.over = address == self._pc
            # Here, since the machine goes on to the end of the block.
            seen.after = self._thread(seen.after.address, self._stack(address))
            machine.request_stop(Stop(StopReason.INSTRUCTIONS, address))
