"""Guest state that D programs read: current thread and process, stacks, registers and time."""

import array
import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence

from dtrace.bpf._runtime import Runtime, RuntimeFault
from dtrace.bpf.layout import MAX_USER_FRAMES, Fault, SpaceOffsets
from dtrace.d.compile.program import ListedProbe
from dtrace.d.language.identifiers import HOSTED_NUMBERS
from dtrace.run.destructive import DestructiveActions
from dtrace.run.enabled_probes import Many
from dtrace.run.kernel import CALLER, INSTRUCTION, MARKS
from dtrace.run.kernel_probes import KernelProbes
from dtrace.run.locks import Locks, LockState
from dtrace.run.thread_time import ThreadTime
from dtrace.stacks.frame_step import FrameStep
from dtrace.stacks.locals import MAX_ENTERED, Locals
from dtrace.stacks.mapped_files import MappedFile, MappedFiles, mapped_files
from dtrace.stacks.signal_frames import SignalFrames, signal_frames
from dtrace.stacks.stack import MAX_FRAMES, Stacks
from dtrace.stacks.user_programs import ADDRESS, UserPrograms, frame_word
from dtrace.stacks.user_steps import UserStep, UserSteps, walk
from dwarf.debug_file import DebugDataError
from dwarf.types import Structure, Types, find_member, size_of, strip
from emu.devices.clock import RELEASE, SECOND
from emu.host.errors import KinstError, MemoryAccessError
from emu.machine.machine import Machine
from kinst.probes.breakpoints import NativeState
from kinst.probes.probe_table import Probe
from kinst.relocation.trap import TRAPS, CpuState, trap_of


class TracingEnded(KinstError):
    """Error raised to stop the workload when tracing has ended."""


MAX_ANCESTORS = 64
NOT_COUNTED = "this kernel does not count the CPU time of threads"
NO_THREADS = "its debug data does not describe processes and threads"
TEXTS = ("execname", "jailname", "zonename")  # variables that are strings in the kernel's memory
OFFSET = re.compile(r"\+0x[0-9a-f]+(?=  |$)")
IN_REGISTERS, AT_RETURN, UNKNOWN, OF_PROBE = 0, 1, 2, 3  # locations of a probe's arguments


class GuestState(ABC):
    """Interface between D programs and a guest: probes, current thread, stacks and registers.

    There is a subclass for each kind of machine.
    Large because each of D's variables and functions that looks at the guest needs a method here.
    """

    def __init__(self, probes: KernelProbes, types: Types | None, machine: Machine) -> None:
        self._probes, self._types, self._machine = probes, types, machine
        # Registers of the interrupted code; ``Session.narrated`` replaces them temporarily.
        self.state: CpuState | NativeState = CpuState(machine, 0)
        self.programs = UserPrograms()
        self.by_line = False  # whether to merge frames with the same inline functions and line
        # Text of a frame -> first frame with this text
        self._by_line: dict[tuple[str, ...], tuple[int, bool]] = {}
        self.destructive = DestructiveActions(
            machine, types, lambda: self.thread, self._fired_name)
        self._stacks: Stacks | None = None
        self._locals: Locals | None = None
        self._places: dict[tuple[str, str], tuple[int, int] | None] = {}
        self._runtime: Runtime | None = None
        self._latest_map: tuple[object, int] = None, 0

    @property
    @abstractmethod
    def now(self) -> int:
        """Time of a firing in nanoseconds; exact if the machine counts instructions."""

    @property
    @abstractmethod
    def time(self) -> int:
        """Time of the guest's clock in nanoseconds, as seen by the guest's devices."""

    @property
    @abstractmethod
    def cpu(self) -> int:
        """Number of the current CPU."""

    @property
    @abstractmethod
    def per_cpu(self) -> int | None:
        """Address of the CPU's ``struct pcpu``, or None before the kernel has initialized it."""

    @property
    @abstractmethod
    def after(self) -> bool:
        """Whether the function of the firing probe has already returned to its caller.

        This is so if the function ended in a tail call.
        """

    @property
    def frozen(self) -> bool:
        """Whether the guest must not be stopped because a firing is in progress."""
        return False

    @abstractmethod
    def begin(self) -> None:
        """Enable the probes."""

    @abstractmethod
    def arm(self, due: int | None, ring: Callable[[], int | None]) -> None:
        """Set the timer that calls ``ring`` at the time ``due``; see ``run``.

        :raises KinstError: if the machine does not support timers.
        """

    @abstractmethod
    def end(self) -> None:
        """Disable the probes."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the workload because tracing has ended."""

    @abstractmethod
    def _attach(self, runtime: Runtime) -> None:
        """Give a runtime access to the memory and registers of this guest."""

    def attach(self, runtime: Runtime) -> None:
        """Prepare a runtime to read this guest's memory, registers and variables."""
        machine = self._machine
        self._runtime = runtime
        self._attach(runtime)
        runtime.set_variable(HOSTED_NUMBERS["curthread"], [], 8, False)
        paths = machine.guest.members
        if {"tid", "pid"} <= paths.keys():
            thread_places = [self._member(*member) for member in (*paths["tid"], *paths["pid"])]
            if None not in thread_places and len(thread_places) == 3:
                runtime.number_threads(*(place[0] for place in thread_places if place is not None))
        registers = list(machine.arch.registers)
        for index, name in machine.guest.registers.places.items():
            if name in registers:
                runtime.set_register(index, registers.index(name))
        for name, members in machine.guest.members.items():
            places = [self._member(*member) for member in members]
            if None not in places:
                path = [place for place in places if place is not None]
                runtime.set_variable(HOSTED_NUMBERS[name], [offset for offset, _size in path],
                                     min(path[-1][1], 8), name in TEXTS)

    def add(self, probe: ListedProbe, entry: int, first: int, texts: Sequence[int],
            wanted: int) -> bool:
        """Set the BPF program that runs when a kernel probe fires.

        :param entry: address of the program.
        :param first: number of its first clause.
        :param texts: addresses of the probe's provider, module, function and name, and its ID.
        :return: whether the probe is one of the kernel.
        """
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

    def add_many(self, many: Many, entry: int, names: Mapping[str, int], wanted: int) -> None:
        """Set the BPF program that runs when one of many probes fires.

        :param entry: address of the program.
        :param names: addresses of the names of the probes' modules, functions and so on.
        """
        if self._runtime is None or not many.probes:
            return
        provider, numbers = names[many.probes[0].provider], many.probes.numbers
        base, clauses = self._probes.base, len(many.functions)
        for function, at, offsets in many.probes.runs():
            self._runtime.add_probes(
                array.array("I", numbers[at : at + len(offsets)]), base, entry,
                many.first + at * clauses, clauses,
                (provider, names[function.module_name], names[function.name]),
                array.array("Q", [names[str(offset)] for offset in offsets]), UNKNOWN, wanted)

    @abstractmethod
    def walk_natively(self, marked: bool) -> None:
        """Let the runtime walk stacks natively where possible.

        :param marked: see ``stack``.
        """

    @property
    def pc(self) -> int:
        """The program counter."""
        return self._machine.pc

    @property
    def outside(self) -> bool:
        """Whether the CPU is executing a user program rather than the kernel."""
        return bool(self._machine.guest.boot.shell_prompt) and not self._machine.pc >> 63

    @property
    def user_end(self) -> int:
        """First address above the memory of user programs, or 0 if the kernel runs no programs."""
        return 1 << 63 if self._machine.guest.boot.shell_prompt else 0

    @property
    def copies_at_once(self) -> bool:
        """Whether the kernel's tracer copies user memory by one instruction."""
        tracer = self._machine.guest.probes.tracer
        return tracer is not None and tracer.copies_at_once

    @property
    def thread(self) -> int:
        """Address of the current thread (first member of ``struct pcpu``), or 0 if unknown."""
        try:
            register = self._machine.guest.threads.per_cpu
            return self._machine.read_u64(self._machine.read_register(register))
        except MemoryAccessError:
            return 0

    def run(self, workload: Callable[[], None], due: int | None,
            ring: Callable[[], int | None]) -> None:
        """Run a workload while the probes are enabled.

        :param due: time of the first call to ``ring``, or None for no calls.
        :param ring: timer callback; it returns the time of the next call.
        """
        self.arm(due, ring)
        self.begin()
        try:
            workload()
        finally:
            self.end()

    def _fired(self) -> Probe | None:
        """Return the kernel probe that is firing, or None for one of DTrace's own probes."""
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
        """Return the lines of a frame, with inline functions and source lines.

        :param is_return: whether the address is a return address.
        """
        text = self._walk().lines(address, is_return)
        return [OFFSET.sub("", line, count=1) for line in text] if self.by_line else text

    def stack(self, frames: int, user: bool, marked: bool = False) -> list[int]:
        """Return the program counters of a stack's frames, innermost first.

        Frames of a user stack are words of ``UserPrograms``.  For an FBT probe, the frame of the
        probed function itself is omitted, as in DTrace.

        :param marked: whether to encode in the ``MARKS`` bits if an address is a return address.
        """
        if user:
            number = self.program_number(self._execname())
            return [frame_word(number, pc) for pc in self._user_stack(frames)]
        fired = self._fired()
        if self.outside:
            return []
        own = int(fired is not None and fired.provider == "fbt" and not self.after)
        read = self._machine.read_register if fired is None else self.state.get
        pairs = list(self._walk().addresses(read, frames + own, self.after))[own:]
        if self.by_line:
            pairs = [self._by_line.setdefault(tuple(self.lines(*frame)), frame) for frame in pairs]
        return [pc & ~MARKS | (CALLER if is_return else INSTRUCTION) if marked else pc
                for pc, is_return in pairs]

    def in_program(self, address: int) -> int:
        """Encode an address in the current thread's program as a ``UserPrograms`` stack word."""
        if not 0 < address <= ADDRESS:
            return address
        return frame_word(self.program_number(self._execname()), address)

    @functools.cached_property
    def _maps(self) -> MappedFiles | None:
        """Reader of the files that processes have mapped; None if the kernel's types lack maps."""
        return mapped_files(self._machine, self._types, self._machine.guest.programs.maps)

    @property
    def space_offsets(self) -> SpaceOffsets | None:
        """Location of processes' memory maps, or None if it is unknown."""
        member, maps = self._machine.guest.programs.members, self._maps
        if member is None or maps is None:
            return None
        process = self._member(member.thread.removeprefix("struct "), member.process)
        number = self._member(member.kind.removeprefix("struct "), member.number)
        return None if process is None or number is None else SpaceOffsets(
            process[0], number[0], maps.space, maps.changes, maps.lock, maps.shared)

    def mapped(self, thread: int) -> list[MappedFile]:
        """Return the files that the process of a thread has mapped; [] if that is unknown.

        :param thread: address of the thread's structure.
        """
        offsets, maps = self.space_offsets, self._maps
        if offsets is None or maps is None:
            return []
        try:
            return maps.of(self._machine.read_u64(thread + offsets.process))
        except MemoryAccessError:
            return []

    def program_number(self, name: str) -> int:
        """Return the number of the current thread's process in the words of user stacks.

        :param name: name of the process.
        """
        offsets, maps = self.space_offsets, self._maps
        if offsets is None or maps is None or self.programs.knows(name):
            return self.programs.number(name)
        try:
            process = self._machine.read_u64(self.thread + offsets.process)
            number = int.from_bytes(self._machine.read(process + offsets.number, 4), "little")
            space = self._machine.read_u64(process + offsets.space)
            changes = int.from_bytes(self._machine.read(space + offsets.changes, 4), "little")
            busy = not self._machine.read_u64(space + offsets.lock) & offsets.shared
            key = name, number, space, changes
            if key != self._latest_map[0] or busy:
                self._latest_map = (None if busy else key), self.programs.number(
                    name, number, maps.of(process))
        except MemoryAccessError:
            return self.programs.number(name)
        return self._latest_map[1]

    @functools.cached_property
    def _signals(self) -> SignalFrames | None:
        """Reader of signal frames, or None if the kernel's types do not describe them."""
        machine = self._machine
        return signal_frames(machine, self._types, machine.guest.programs.signal_frame,
                             machine.arch)

    @functools.cached_property
    def _user_steps(self) -> UserSteps:
        machine = self._machine
        return UserSteps(machine.arch, trap_of(machine.guest, machine.arch.name), self.programs,
                         self._trampoline, self._walk().code)

    def _trampoline(self) -> tuple[int, int, Callable[[int], FrameStep]] | None:
        offsets = self.space_offsets
        if self._signals is None or offsets is None:
            return None
        try:
            process = self._machine.read_u64(self.thread + offsets.process)
        except MemoryAccessError:
            return None
        return *self._signals.trampoline(process), self._signals.step

    def user_step(self, word: int, is_return: bool) -> UserStep:
        """Return the step from a word of ``UserPrograms`` in the running process to its caller."""
        return self._user_steps.step(word, is_return)

    def _user_stack(self, frames: int) -> list[int]:
        """Return the addresses on the current thread's user stack, or [] for a kernel thread."""
        arch = self._machine.arch

        def word(address: int) -> int | None:
            try:
                return self._number(address) if address <= ADDRESS else None
            except RuntimeFault:
                return None

        registers = {}
        for name in filter(None, (*arch.dwarf_registers, arch.pc)):
            try:
                registers[name] = self._user_register(name) or 0
            except RuntimeFault:
                registers[name] = 0
        number = self.program_number(self._execname())
        return walk(registers[arch.pc], registers, arch,
                    lambda pc, is_return: self.user_step(frame_word(number, pc), is_return),
                    word, frames, self.outside and self.after)

    def _user_depth(self) -> int:
        """Return the number of frames on the user stack.

        :raises RuntimeFault: if there are more frames than DTrace follows.
        """
        addresses = self._user_stack(MAX_USER_FRAMES + 1)
        if len(addresses) > MAX_USER_FRAMES:
            raise RuntimeFault(Fault.BAD_STACK, addresses[-1])
        return len(addresses)

    def _execname(self) -> str:
        """Return the name of the current thread's process."""
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
        """Return a member's cached offset and size in bytes, or None if there is no such member."""
        key = structure, name
        if key not in self._places:
            self._places[key] = self._find_member(structure, name)
        return self._places[key]

    def _find_member(self, structure: str, name: str) -> tuple[int, int] | None:
        types = [] if self._types is None else self._types.named(f"struct {structure}")
        kind = strip(types[0]) if types else None
        member = find_member(kind, name) if isinstance(kind, Structure) else None
        return None if member is None else (member.offset // 8, size_of(member.type))

    def unknown(self, names: Collection[str]) -> dict[str, str]:
        """Return the variables that are not available for any thread, each with the reason."""
        guest = self._machine.guest
        paths = dict(guest.members) | {"execargs": guest.programs.arguments}
        reasons = {name: NO_THREADS for name in names if name in paths and (
            not paths[name] or None in [self._member(*member) for member in paths[name]])}
        if "vtimestamp" in names:
            time = self._thread_time
            problem = NOT_COUNTED if time is None else time.problem
            if problem:
                reasons["vtimestamp"] = problem
        return reasons

    def values(self) -> dict[str, Callable[[], int | bytes | None]]:
        """Return callbacks, keyed by name, for variables that the runtime cannot read itself."""
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
        """Reader of threads' CPU times, or None if the kernel does not count CPU times."""
        clock = self._machine.guest.threads.clock
        return None if clock is None else ThreadTime(
            self._machine, clock, self._member, self._number)

    def _ran(self) -> int | None:
        """Return the CPU time of the current thread in nanoseconds, or None if unknown."""
        time, cpu = self._thread_time, self.per_cpu
        if time is None or cpu is None or self._runtime is None:
            return None
        fired = self._fired()
        if (fired is None or fired.provider != "fbt") and time.adding(self.pc):
            return None
        return time.of(self._runtime.thread, cpu, self.now)

    @property
    def started(self) -> int:
        """Time of day at the start of the boot, in nanoseconds since 1970.

        Without a real-time clock, it is the date of FreeBSD 15.0-RELEASE.
        """
        date = self._machine.image.options.date
        return (int(RELEASE.timestamp()) if date is None else date) * SECOND

    def _ppid(self) -> int | None:
        """Return 0 for a process without a parent, or None if the kernel has no processes.

        The runtime itself reads the parent ID of other processes.
        """
        return 0 if self._machine.guest.members else None

    def _execargs(self) -> bytes | None:
        """Return the arguments of the current process, separated by spaces, or None if unknown.

        :raises RuntimeFault: if they cannot be read.
        """
        places = [self._member(*member) for member in self._machine.guest.programs.arguments]
        if not places or None in places:
            return None
        process, arguments, length, text = (place for place in places if place is not None)
        process_args = self._number(self._number(self.thread + process[0]) + arguments[0])
        if not process_args:
            return b""
        assert self._runtime is not None
        size = min(self._number(process_args + length[0], length[1]), self._runtime.string_size)
        content = self._runtime.read(process_args + text[0], size)
        return content.rstrip(b"\0").replace(b"\0", b" ")

    def _ancestors(self) -> bytes:
        """Return the IDs of the current process, its parent, and so on, as eight bytes each."""
        to_process, to_parent, to_number = (
            self._member(*member) for member in self._machine.guest.members["ppid"])
        ids = b""
        if to_process is None or to_parent is None or to_number is None:
            return ids
        try:
            process, visited = self._number(self.thread + to_process[0]), set[int]()
            while process and process not in visited and len(visited) < MAX_ANCESTORS:
                visited.add(process)
                ids += self._number(process + to_number[0], 4).to_bytes(8, "little")
                process = self._number(process + to_parent[0])
        except RuntimeFault:
            pass  # keep the ancestors found so far
        return ids

    def _caller(self) -> int:
        """Return the address of the first frame outside the current function."""
        fired = self._fired()
        own = int((fired is None or fired.provider != "fbt") and not self.after)
        frames = self.stack(1 + own, False)
        return frames[own] if len(frames) > own else 0

    def register(self, array: str, index: int) -> int | None:
        """Return ``regs[index]`` or ``uregs[index]``, or None if there is no such register.

        Registers of a user program are in the trap frame that the thread built at its last entry
        into the kernel (``td_frame``).

        :raises RuntimeFault: if the thread has no trap frame.
        """
        name = self._machine.guest.registers.places.get(index)
        if name is None:
            return None
        if array == "regs":
            return self._read(name) if name in self._machine.arch.registers else None
        return self._user_register(name)

    def entered(self, register: int) -> int | None:
        """Return a register at the entry of the probed function, or None if it is unknown.

        :param register: DWARF number of the register.
        """
        if self._locals is None:
            self._locals = Locals(self._machine, stacks=self._walk())
        fired = self._fired()
        read = self._machine.read_register if fired is None else self.state.get
        try:
            frames = self._locals.frames(read, MAX_ENTERED)
            return self._locals.entered(frames, 0, register)
        except (DebugDataError, MemoryAccessError):
            return None

    @property
    def lock(self) -> Callable[[int], LockState | None] | None:
        """Callback that maps a lock's address to its state; None if locks are unsupported."""
        members = self._machine.guest.threads.locks
        if members is None or self._types is None:
            return None
        return Locks(self._types, members, self._number).state

    def _user_register(self, name: str) -> int | None:
        """Return a register of the current thread's program, from the CPU or the trap frame.

        :raises RuntimeFault: if the thread has no trap frame.
        """
        arch = self._machine.arch
        if self.outside:
            return self._machine.read_register(name) if name in arch.registers else (
                0 if name == "zero" else None)
        field = TRAPS[arch.name].frame.field(name)
        location = self._machine.guest.traps.trap_frame.fields.get(field)
        if location is None:
            return 0 if name == "zero" else None
        place = self._member("thread", self._machine.guest.threads.lists.frame)
        frame = 0 if place is None else self._number(self.thread + place[0])
        if not frame:  # the thread has never left the kernel: report a fault, as FreeBSD does
            raise RuntimeFault(Fault.BAD_ADDRESS, 0)
        return self._number(frame + location[0], location[1])

    def _number(self, address: int, size: int = 8) -> int:
        """Read an unsigned integer from guest memory.

        :raises RuntimeFault: if no memory is mapped there.
        """
        assert self._runtime is not None
        return int.from_bytes(self._runtime.read(address, size), "little")
