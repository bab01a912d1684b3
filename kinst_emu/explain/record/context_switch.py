"""Recorder of a context switch, instruction by instruction, in the kernel's switch function."""

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

MAX_ROWS = 5000  # maximum number of instructions recorded for a context switch
FRAMES = 16  # maximum number of recorded frames of a call stack
WORD = 8  # size of a word in bytes


@dataclass(frozen=True)
class SwitchedThread:
    """A thread that takes part in a context switch.

    :param name: name of the thread; ``process`` and ``pid`` identify its process.
    :param kept: addresses of the words where the kernel saves its registers, by register name.
    :param stack: its call stack, innermost first, where it calls the switch function or resumes.
    """

    address: int
    name: str
    process: str
    pid: int
    kept: Mapping[str, int]
    stack: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        """Names of process and thread, or the thread's address if the process is unknown."""
        if not self.pid and not self.process:
            return f"the thread at {self.address:#x}"
        return f"{self.process}" + (f"/{self.name}" if self.name != self.process else "") + (
            f" (process {self.pid})")


@dataclass
class SeenSwitch:
    """A recorded context switch.

    :param rows: from the first instruction of the switch function to the new thread's first
        instruction, inclusive.
    :param roots: for each row, the register that holds the root of the page tables.
    :param words: for each row, the words of saved registers that the row before has stored to, by
        address; for the first row, all of them.
    :param loaded: number of the first row with the new thread's stack pointer.
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
        """Names of the registers that the switch stores for the old thread.

        Registers with a save area that a switch does not use are left out.
        """
        stored = {at for words in self.words[1 : self.loaded + 1] for at in words}
        return [name for name, at in self.before.kept.items() if at in stored]


class SwitchRecorder(EachInstruction):
    """Recorder of a context switch while a shell command runs.

    :param machine: at the shell prompt; not to be used for anything else afterwards.
    :cvar what: plural name of the recorded events, for error messages.
    :raises KinstError: if the context switches of this kernel cannot be recorded.
    """

    what: ClassVar[str] = "context switches"

    def __init__(self, machine: UnicornMachine, command: str, hit: int, limit: int,
                 running: RunningThread) -> None:
        super().__init__(machine)
        self.command, self.hit, self._limit = command, hit, limit
        self._running, switch = running, machine.guest.threads.switch
        registers = structure(running.types, machine.guest.threads.lists.registers)
        if switch is None or registers is None:
            raise KinstError(f"{machine.image.path}: cannot explain context switches: the switch "
                             "function or the type of the saved registers is unknown")
        self._kind = registers
        self._function = machine.symbol(switch.functions[0])
        self._root = machine.guest.programs.page_tables[1]
        at_shell(machine)
        check_command(command)
        self.seen: SeenSwitch | None = None
        self._sp = self._pc = 0  # stack pointer and program counter saved for the new thread

    def record(self) -> SeenSwitch:
        """Run the command and record the requested context switch.

        :raises KinstError: if the command does not reach it.
        """
        machine, function = self.machine, self._function
        machine.type(self.command.encode() + b"\r")
        counted = 0

        def counts() -> bool:
            """Return whether a switch counts; those before the shell's first switch do not."""
            nonlocal counted
            counted += counted > 0 or self._running.pid() == SHELL_PROCESS
            return counted > 0

        for _ in times_come_to(machine, function, self, self._limit, counts):
            pass
        self.seen = seen = self._begin()
        stop = self.watch([*seen.before.kept.values(), *seen.after.kept.values()],
                          machine.instructions + 2 * MAX_ROWS)
        if not self.over:
            raise KinstError(f"{function.name}: did not switch to another thread ({stop}); choose "
                             "another context switch with --hit")
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
        thread = next((one for one in Threads(self.machine).all() if one.address == address), None)
        saved = int(self._running.at(address)[guest.threads.lists.saved])
        kept = dict[str, int]()
        for name, (member, index) in guest.registers.saved.items():
            place = find_member(self._kind, member)
            if place is not None:
                kept[name] = saved + place.offset // 8 + WORD * (index or 0)
        return SwitchedThread(address, "" if thread is None else thread.name,
                              "" if thread is None else thread.process,
                              0 if thread is None else thread.pid, kept, stack)

    def _stack(self, pc: int) -> tuple[str, ...]:
        machine, name = self.machine, self.machine.arch.pc
        return tuple(line.strip() for line in Stacks(machine).text(
            lambda one: pc if one == name else machine.read_register(one), FRAMES))

    def look(self, address: int) -> None:
        """Record the instruction at ``address``; stop at the new thread's first instruction."""
        machine, seen = self.machine, self.seen
        assert seen is not None
        seen.rows.append(seen_instruction(machine, address))
        seen.roots.append(machine.read_register(self._root))
        seen.words.append(self.kept.stored())
        if not seen.loaded and len(seen.rows) > 1 and machine.sp == self._sp:
            seen.loaded = len(seen.rows) - 1
        if (seen.loaded and address == self._pc) or len(seen.rows) > MAX_ROWS:
            self.over = address == self._pc
            # Read the stack now: the machine stops only at the end of the basic block.
            seen.after = self._thread(seen.after.address, self._stack(address))
            machine.request_stop(Stop(StopReason.INSTRUCTIONS, address))
