"""What a program asks the guest: its thread and process, the stack, registers, the time."""

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence

from dtrace.bpf._runtime import Runtime, RuntimeFault
from dtrace.bpf.layout import MAX_USER_FRAMES, Fault
from dtrace.d.compile.program import ListedProbe
from dtrace.d.language.identifiers import HOSTED_NUMBERS
from dtrace.run.destructive import DestructiveActions
from dtrace.run.kernel import CALLER, INSTRUCTION, MARKS, KernelProbes
from dtrace.run.locks import Locks, LockState
from dtrace.run.thread_time import ThreadTime
from dtrace.stacks.stack import MAX_FRAMES, Stacks
from dtrace.stacks.user_programs import ADDRESS, UserPrograms, walk
from dwarf.types import Structure, Types, find_member, size_of, strip
from emu.host.errors import KinstError, MemoryAccessError
from emu.machine.machine import Machine
from kinst.probes.breakpoints import NativeState
from kinst.probes.probe_table import Probe
from kinst.relocation.trap import TRAPS, CpuState


class TracingEnded(KinstError):
    """What ran is not run to its end: tracing has ended."""


MAX_ANCESTORS = 64
NOT_COUNTED = "this kernel does not count the time of its threads"
NO_THREADS = "its debug data has no processes and threads"
TEXTS = ("execname", "jailname", "zonename")  # variables that are strings in the kernel
FIRST_PAGE = 4096  # no code is below: where a program begins, its stack has a small number
OFFSET = re.compile(r"\+0x[0-9a-f]+(?=  |$)")
IN_REGISTERS, AT_RETURN, UNKNOWN, OF_PROBE = 0, 1, 2, 3  # where a probe's arguments are


class GuestState(ABC):
    """What a program asks of the guest: the thread, its process, the stack; and its probes.  One
    subclass for each kind of machine.
    """

    def __init__(self, probes: KernelProbes, types: Types | None, machine: Machine) -> None:
        self._probes, self._types, self._machine = probes, types, machine
        # The interrupted registers in a firing; who lets one fire may have others.
        self.state: CpuState | NativeState = CpuState(machine, 0)
        self.programs = UserPrograms()
        self.by_line = False  # frames with the same inline functions and source line are one
        self._by_line: dict[tuple[str, ...], tuple[int, bool]] = {}  # the first met of each
        self.destructive = DestructiveActions(
            machine, types, lambda: self.thread, self._fired_name)
        self._stacks: Stacks | None = None
        self._places: dict[tuple[str, str], tuple[int, int] | None] = {}
        self._runtime: Runtime | None = None

    @property
    @abstractmethod
    def now(self) -> int:
        """The time of a firing, in nanoseconds, to the instruction where the machine counts."""

    @property
    @abstractmethod
    def time(self) -> int:
        """The guest's clock, as its devices see it."""

    @property
    @abstractmethod
    def cpu(self) -> int:
        """The number of the CPU."""

    @property
    @abstractmethod
    def per_cpu(self) -> int | None:
        """The address of the CPU's ``struct pcpu``; None: there is none yet."""

    @property
    @abstractmethod
    def after(self) -> bool:
        """Whether the function of the probe that fires has returned already, to its caller: it
        left by a tail call."""

    @property
    def frozen(self) -> bool:
        """Whether it is in the middle of a firing: nothing may stop it there."""
        return False

    @abstractmethod
    def begin(self) -> None:
        """Enable the probes."""

    @abstractmethod
    def arm(self, due: int | None, ring: Callable[[], int | None]) -> None:
        """Set the timer; ``due`` and ``ring`` as of ``run``.

        :raises KinstError: where the machine has none.
        """

    @abstractmethod
    def end(self) -> None:
        """Disable the probes."""

    @abstractmethod
    def stop(self) -> None:
        """End what runs: tracing has ended."""

    @abstractmethod
    def _attach(self, runtime: Runtime) -> None:
        """Let a runtime read this guest."""

    def attach(self, runtime: Runtime) -> None:
        """Let a runtime work on this guest."""
        machine = self._machine
        self._runtime = runtime
        self._attach(runtime)
        runtime.set_variable(HOSTED_NUMBERS["curthread"], [], 8, False)
        paths = machine.guest.members
        if {"tid", "pid"} <= paths.keys():
            at = [self._member(*member) for member in (*paths["tid"], *paths["pid"])]
            if None not in at and len(at) == 3:
                runtime.number_threads(*(place[0] for place in at if place is not None))
        known = list(machine.arch.registers)
        for index, name in machine.guest.registers.places.items():
            if name in known:
                runtime.set_register(index, known.index(name))
        for name, members in machine.guest.members.items():
            places = [self._member(*member) for member in members]
            if None not in places:
                found = [place for place in places if place is not None]
                runtime.set_variable(HOSTED_NUMBERS[name], [offset for offset, _size in found],
                                     min(found[-1][1], 8), name in TEXTS)

    def add(self, probe: ListedProbe, entry: int, first: int, texts: Sequence[int],
            wanted: int) -> bool:
        """Give a probe of the kernel its program; whether it is one."""
        number = self._probes.kernel_number(probe.number)
        if number is None or self._runtime is None:
            return False
        kind, offset = UNKNOWN, 0
        if probe.provider == "fbt" or self._probes.breakpoints.program_of(number) is not None:
            kind = AT_RETURN if probe.name == "return" else IN_REGISTERS
        elif self._probes.declared(probe) is not None:
            kind = OF_PROBE
        if kind == AT_RETURN:
            offset = self._probes.breakpoints.offset(number)
        self._runtime.add_probe(number, entry, probe.number, first, texts, kind, offset, wanted)
        return True

    @abstractmethod
    def walk_natively(self, marked: bool) -> None:
        """Have the runtime walk stacks by itself, where it can.

        :param marked: as of ``stack``.
        """

    @property
    def pc(self) -> int:
        return self._machine.pc

    @property
    def outside(self) -> bool:
        """Whether a program runs, not the kernel."""
        return bool(self._machine.guest.boot.shell_prompt) and not self._machine.pc >> 63

    @property
    def user_end(self) -> int:
        """The first address that no program has; 0 where the kernel runs none."""
        return 1 << 63 if self._machine.guest.boot.shell_prompt else 0

    @property
    def thread(self) -> int:
        """``struct thread *curthread``: ``struct pcpu`` begins with it; 0 where there is none."""
        try:
            register = self._machine.guest.threads.per_cpu
            return self._machine.read_u64(self._machine.read_register(register))
        except MemoryAccessError:
            return 0

    def run(self, workload: Callable[[], None], due: int | None,
            ring: Callable[[], int | None]) -> None:
        """Run something while the probes are enabled.

        :param due: when to call ``ring`` first; None for never.  It gives the next time.
        """
        self.arm(due, ring)
        self.begin()
        try:
            workload()
        finally:
            self.end()

    def _fired(self) -> Probe | None:
        """The kernel's probe that fires; None for one of DTrace's own."""
        if self._runtime is None:
            return None
        kernel = self._probes.kernel_number(self._runtime.probe)
        return None if kernel is None else self._probes.breakpoints.probe(kernel)

    def _fired_name(self) -> str:
        fired = self._fired()
        if fired is not None:
            return f"{fired.provider}:{fired.module}:{fired.function}:{fired.name}"
        number = 0 if self._runtime is None else self._runtime.probe
        return next((own.text for own in self._probes.own.probes if own.number == number), "")

    def _read(self, register: str) -> int:
        if self._fired() is None:
            return self._machine.read_register(register)
        return self.state.get(register)

    def _walk(self) -> Stacks:
        if self._stacks is None:
            self._stacks = Stacks(self._machine)
        return self._stacks

    def lines(self, address: int, is_return: bool) -> list[str]:
        """The lines of a frame, with inline functions and source lines."""
        found = self._walk().lines(address, is_return)
        return [OFFSET.sub("", line, count=1) for line in found] if self.by_line else found

    def stack(self, frames: int, user: bool, marked: bool = False) -> list[int]:
        """Addresses, inner ones first; of a user's stack as ``UserPrograms`` has them.

        Of an FBT probe the function's own frame is left out, as DTrace does.

        :param marked: tell with MARKS of each what it is.
        """
        if user:
            name = self._execname()
            return [self.programs.frame(name, pc) for pc in self._user_stack(frames)]
        fired = self._fired()
        if self.outside:
            return []
        own = int(fired is not None and fired.provider == "fbt" and not self.after)
        read = self._machine.read_register if fired is None else self.state.get
        found = list(self._walk().addresses(read, frames + own, self.after))[own:]
        if self.by_line:
            found = [self._by_line.setdefault(tuple(self.lines(*frame)), frame) for frame in found]
        return [pc & ~MARKS | (CALLER if is_return else INSTRUCTION) if marked else pc
                for pc, is_return in found]

    def in_program(self, address: int) -> int:
        """An address of the program that the thread runs, as ``UserPrograms`` has it."""
        if not 0 < address <= ADDRESS:
            return address
        return self.programs.frame(self._execname(), address)

    def _user_stack(self, frames: int) -> list[int]:
        """Addresses of the program that the thread runs; none of a thread of the kernel's own."""
        arch = self._machine.arch
        register, *record = arch.frame_record

        def word(address: int) -> int | None:
            try:
                return self._number(address)
            except RuntimeFault:
                return None

        try:
            pc, frame = self._user_register(arch.pc), self._user_register(register)
        except RuntimeFault:
            return []
        if not pc or pc > ADDRESS or frame is None:
            return []
        found = walk(pc, frame, (record[0], record[1]), word, frames)
        fired = self._fired()
        if self.outside and not self.after and fired is not None and fired.name in (
                "entry", "return"):
            # There the function has no frame record of its own.
            back = (self._machine.read_register(arch.link) if arch.link is not None
                    else word(self._machine.sp))
            found[1:1] = [back] if back and FIRST_PAGE <= back <= ADDRESS else []
        return found[:frames]

    def _user_depth(self) -> int:
        """:raises RuntimeFault: when there are more frames than DTrace follows."""
        found = self._user_stack(MAX_USER_FRAMES + 1)
        if len(found) > MAX_USER_FRAMES:
            raise RuntimeFault(Fault.BAD_STACK, found[-1])
        return len(found)

    def _execname(self) -> str:
        """The name of the thread's process."""
        address = self.thread
        *path, last = self._machine.guest.members["execname"]
        try:
            for member in path:
                place = self._member(*member)
                address = 0 if place is None else self._number(address + place[0])
            place = self._member(*last)
            assert self._runtime is not None
            content = b"" if place is None else self._runtime.read(address + place[0], place[1])
        except RuntimeFault:
            return ""
        return content.partition(b"\0")[0].decode("utf-8", "replace")

    def _member(self, structure: str, name: str) -> tuple[int, int] | None:
        """Offset and size of a member; looked up once."""
        key = structure, name
        if key not in self._places:
            self._places[key] = self._find_member(structure, name)
        return self._places[key]

    def _find_member(self, structure: str, name: str) -> tuple[int, int] | None:
        found = [] if self._types is None else self._types.named(f"struct {structure}")
        kind = strip(found[0]) if found else None
        member = find_member(kind, name) if isinstance(kind, Structure) else None
        return None if member is None else (member.offset // 8, size_of(member.type))

    def unknown(self, names: Collection[str]) -> dict[str, str]:
        """Which of some variables cannot be known, whatever thread the kernel runs, and why."""
        guest = self._machine.guest
        paths = dict(guest.members) | {"execargs": guest.programs.arguments}
        found = {name: NO_THREADS for name in names if name in paths and (
            not paths[name] or None in [self._member(*member) for member in paths[name]])}
        if "vtimestamp" in names:
            time = self._thread_time
            problem = NOT_COUNTED if time is None else time.problem
            if problem:
                found["vtimestamp"] = problem
        return found

    def values(self) -> dict[str, Callable[[], int | bytes | None]]:
        """Variables that no walk from the thread finds, by name."""
        return {
            "cpu": lambda: self.cpu, "ipl": lambda: None,
            "caller": self._caller,
            "stackdepth": lambda: len(self.stack(MAX_FRAMES, False)),
            "ucaller": lambda: [*self._user_stack(2), 0, 0][1],
            "ancestors": self._ancestors,
            "ustackdepth": self._user_depth,
            **dict.fromkeys(("jid", "jailname", "zonename"), lambda: None),
            **dict.fromkeys(self._machine.guest.members, lambda: None),
            "execargs": self._execargs, "ppid": self._ppid, "vtimestamp": self._ran}

    @functools.cached_property
    def _thread_time(self) -> ThreadTime | None:
        """None: the kernel does not count the time of its threads."""
        clock = self._machine.guest.threads.clock
        return None if clock is None else ThreadTime(
            self._machine, clock, self._member, self._number)

    def _ran(self) -> int | None:
        """Nanoseconds that the thread has had a CPU; None: not known."""
        time, cpu = self._thread_time, self.per_cpu
        if time is None or cpu is None or self._runtime is None:
            return None
        fired = self._fired()
        if (fired is None or fired.provider != "fbt") and time.adding(self.pc):
            return None
        return time.of(self._runtime.thread, cpu, self.now)

    def _ppid(self) -> int | None:
        """Only for a process without a parent: all others are found from the thread on."""
        return 0 if self._machine.guest.members else None

    def _execargs(self) -> bytes | None:
        """The arguments of the process's program, with blanks between them; None: not known.

        :raises RuntimeFault: when they cannot be read.
        """
        places = [self._member(*member) for member in self._machine.guest.programs.arguments]
        if not places or None in places:
            return None
        process, arguments, length, text = (place for place in places if place is not None)
        found = self._number(self._number(self.thread + process[0]) + arguments[0])
        if not found:
            return b""
        assert self._runtime is not None
        size = min(self._number(found + length[0], length[1]), self._runtime.string_size)
        content = self._runtime.read(found + text[0], size)
        return content.rstrip(b"\0").replace(b"\0", b" ")

    def _ancestors(self) -> bytes:
        """The numbers of the thread's process, of its parent, and so on: eight bytes each."""
        to_process, to_parent, to_number = (
            self._member(*member) for member in self._machine.guest.members["ppid"])
        found = b""
        if to_process is None or to_parent is None or to_number is None:
            return found
        try:
            process, known = self._number(self.thread + to_process[0]), set[int]()
            while process and process not in known and len(known) < MAX_ANCESTORS:
                known.add(process)
                found += self._number(process + to_number[0], 4).to_bytes(8, "little")
                process = self._number(process + to_parent[0])
        except RuntimeFault:
            pass  # what there is of them
        return found

    def _caller(self) -> int:
        """The first frame of another function."""
        fired = self._fired()
        own = int((fired is None or fired.provider != "fbt") and not self.after)
        frames = self.stack(1 + own, False)
        return frames[own] if len(frames) > own else 0

    def register(self, array: str, index: int) -> int | None:
        """``regs[n]``, ``uregs[n]``; None where there is none.

        A register of the user is in the trap frame that its thread made at the last entry into the
        kernel (``td_frame``).

        :raises RuntimeFault: when that is nowhere.
        """
        name = self._machine.guest.registers.places.get(index)
        if name is None:
            return None
        if array == "regs":
            return self._read(name) if name in self._machine.arch.registers else None
        return self._user_register(name)

    @property
    def lock(self) -> Callable[[int], LockState | None] | None:
        """Gives the state of a lock, by its address; None: nothing is known of locks."""
        members = self._machine.guest.threads.locks
        if members is None or self._types is None:
            return None
        return Locks(self._types, members, self._number).state

    def _user_register(self, name: str) -> int | None:
        """One of the program's that the thread runs, by name, of the machine or the trap frame.

        :raises RuntimeFault: when that is nowhere.
        """
        arch = self._machine.arch
        if self.outside:
            return self._machine.read_register(name) if name in arch.registers else (
                0 if name == "zero" else None)
        field = TRAPS[arch.name].frame.field(name)
        found = self._machine.guest.traps.trap_frame.fields.get(field)
        if found is None:
            return 0 if name == "zero" else None
        place = self._member("thread", self._machine.guest.threads.lists.frame)
        frame = 0 if place is None else self._number(self.thread + place[0])
        if not frame:  # a thread that has never been outside the kernel, as FreeBSD says it
            raise RuntimeFault(Fault.BAD_ADDRESS, 0)
        return self._number(frame + found[0], found[1])

    def _number(self, address: int, size: int = 8) -> int:
        """:raises RuntimeFault: where there is no memory."""
        assert self._runtime is not None
        return int.from_bytes(self._runtime.read(address, size), "little")
