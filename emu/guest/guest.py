"""Interface to a guest kernel: one ``Guest`` object for each kernel and architecture."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from emu.elf.image import Image
from emu.elf.symbols import Symbol
from emu.guest.hole import FindHole
from emu.guest.static_probe import StaticProbe
from emu.guest.tracer import TracerCode
from emu.guest.user_memory import MapMembers, SignalFrame


class VirtualMemory(Protocol):
    """Interface for reading and writing the guest's virtual memory."""

    def read(self, address: int, size: int) -> bytes: ...

    def write(self, address: int, data: bytes) -> None: ...


class TrapFrame:
    """Layout of the kernel's ``struct trapframe``.

    :param size: size in bytes.
    :param fields: field name -> (offset, size) in bytes.
    """

    def __init__(self, size: int, fields: Mapping[str, tuple[int, int]]) -> None:
        self.size = size
        self.fields = fields

    def read(self, memory: VirtualMemory, frame: int, name: str) -> int:
        """Read a field of the trap frame at an address."""
        offset, size = self.fields[name]
        return int.from_bytes(memory.read(frame + offset, size), "little")

    def write(self, memory: VirtualMemory, frame: int, name: str, value: int) -> None:
        """Write a field of the trap frame at an address."""
        offset, size = self.fields[name]
        memory.write(frame + offset, (value & (1 << 8 * size) - 1).to_bytes(size, "little"))


class BareMachine(Protocol):
    """Computer in the state in which a boot loader starts: RAM, one CPU and firmware tables."""

    memory: int  # size of RAM in bytes

    @property
    def ram_base(self) -> int: ...

    def firmware(self) -> bytes:
        """Set up memory and the CPU as firmware does before it starts a boot loader.

        :return: the flattened device tree; empty if the firmware puts tables into memory instead.
        """

    def write_physical(self, address: int, data: bytes) -> None: ...

    def write_register(self, name: str, value: int) -> None: ...


Loader = Callable[[BareMachine, Image], None]


class LockKind(NamedTuple):
    """A kind of lock, and the encoding of its state in a word of the lock.

    :param kind: C type of the lock.
    :param word: member of ``kind`` with the owner's address, or with the number of sharers.
    :param flags: bits of the word that belong to neither.
    :param shared: bits of the word that are set if the lock is shared.
    :param spins: whether a thread that waits for the lock spins instead of sleeping.
    :param name: name of the kind for users.
    :param sharers: number of the lowest bit of the word that counts the sharers.
    """

    kind: str
    word: str
    flags: int
    shared: int
    spins: bool = False
    name: str = ""
    sharers: int = 0


class LockMembers(NamedTuple):
    """Location of a lock's kind: a bit field in the structure at the start of every lock.

    :param kind: C type that all locks begin with.
    :param flags: member of ``kind`` that contains the number.
    :param shift: position of the number's lowest bit in ``flags``.
    :param mask: mask of the number after the shift.
    :param kinds: kinds of locks by number; None: a kind that is not supported.
    :param name: member of ``kind`` that points to the lock's name.
    :param initialized: bit of ``flags`` that is set in every lock that may be used.
    :param functions: patterns for the names of the functions that lock, unlock, or wait for a lock;
        a lock is taken by their caller.
    :param entered: functions that acquire a lock which is not in a word of the lock: (function,
        function that releases it, kind); the first argument is the lock.
    :param stack: size in bytes of a thread's stack in the kernel.
    """

    kind: str
    flags: str
    shift: int
    mask: int
    kinds: tuple[LockKind | None, ...]
    name: str = ""
    initialized: int = 0
    functions: tuple[str, ...] = ()
    entered: tuple[tuple[str, str, str], ...] = ()
    stack: int = 0


class LockPath(NamedTuple):
    """A function that acquires or releases a lock if inline code has not done so at once.

    The inline code tries to swap the lock's word, and calls the function if that fails.

    :param function: name of the function.
    :param probe: name of the static probe that fires for the lock.
    :param kind: index of the lock's kind in ``LockMembers.kinds``.
    :param acquires: whether the function acquires the lock.
    """

    function: str
    probe: str
    kind: int
    acquires: bool


class LockProbes(NamedTuple):
    """Static probes for locks, whose tracepoints the kernel bypasses unless a variable is set.

    :param provider: provider of the probes.
    :param enabled: the variable.
    :param paths: functions that the kernel calls to acquire or release a lock.
    """

    provider: str
    enabled: str
    paths: tuple[LockPath, ...]


class Allocator(NamedTuple):
    """The kernel's memory allocator: ``function(size, &kind, flags)``."""

    function: str
    kind: str
    flags: int


class GuestRegisters(NamedTuple):
    """Names of registers in the kernel's headers and structures.

    :param numbers: constant -> index into D's ``regs[]`` and ``uregs[]``.
    :param places: index -> the emulator's name of the register, or a field of the trap frame.
    :param saved: register -> (member, index) of ``struct pcb``, which keeps the registers of a
        thread while another one runs; index None: the member is not an array.
    """

    numbers: Mapping[str, int]
    places: Mapping[int, str]
    saved: Mapping[str, tuple[str, int | None]]


class SystemCalls(NamedTuple):
    """Calling convention of system calls, and the kernel functions that handle them.

    :param instruction: bytes of the instruction that makes a system call.
    :param number: register with the number of the system call.
    :param arguments: registers with the arguments.
    :param result: register with the result.
    :param failed: a register, and its bits that are set if the result is an error number.
    :param handler: the kernel's first C function that handles the call.
    :param others: the same for other kinds of programs, such as 32-bit ones.
    :param names: kernel variable (C array of strings) with the names of the calls, by number.
    :param prefix: prefix of the names of the kernel functions that implement the calls.
    """

    instruction: bytes
    number: str
    arguments: tuple[str, ...]
    result: str
    failed: tuple[str, int]
    handler: str
    others: tuple[str, ...] = ()
    names: str = "syscallnames"
    prefix: str = "sys_"


class PageFaults(NamedTuple):
    """Description of how the kernel handles page faults.

    :param function: function with an argument for the kind of the access.
    :param access: index of that argument, from 0.
    :param handler: the kernel's first C function that handles the fault.
    :param address: field of the trap frame with the faulting address.
    :param cause: field of the trap frame with the cause of the trap, a mask of its bits, and their
        values for page faults of programs.
    """

    function: str
    access: int
    handler: str
    address: str
    cause: tuple[str, int, frozenset[int]]


class CallMembers(NamedTuple):
    """Thread structure members that describe the thread's current system call.

    :param thread: C type of a thread.
    :param arguments: array of words with the arguments.
    :param entry: pointer to the call's entry in the table of system calls.
    :param value: return value.
    :param error: error number (C ``int``).
    :param flags: word of flags; the bit ``error_set`` means that the call itself has set ``error``.
    """

    thread: str
    arguments: str
    entry: str
    value: str
    error: str
    flags: str
    error_set: int


class ProcessMembers(NamedTuple):
    """Thread and process structure members that identify the process.

    :param thread: C type of a thread.
    :param process: its member that points to the process, which has the C type ``kind``.
    :param number: process ID.
    :param flags: word of flags; the bit ``executed`` means that the process has executed a program.
    :param name: name of the program.
    :param parent: the process that created it.
    :param space: address space, which a child of vfork(2) shares with its parent.
    """

    thread: str
    process: str
    kind: str
    number: str
    flags: str
    executed: int
    name: str
    parent: str
    space: str


@dataclass(frozen=True)
class SignalMembers:
    """Thread structure members that the kernel sets in order to send a signal to the thread.

    :param thread: C type of a thread.
    :param pending: sets of pending signals, of 32-bit words; signal N is bit N - 1.
    :param notice: word of flags with a bit that makes the thread check for signals before it
        returns to user mode.
    :param bits: number of that bit, by the first ``__FreeBSD_version`` that has it; sorted.
    :param stop: number of the signal that stops a process.
    :param count: number of signals.
    """

    thread: str
    pending: tuple[str, ...]
    notice: str
    bits: tuple[tuple[int, int], ...]
    stop: int
    count: int

    def bit(self, version: int | None) -> int:
        """Return the number of the bit in a kernel with the given ``__FreeBSD_version``.

        :param version: None: unknown; then the number of the latest release.
        """
        return next(bit for first, bit in reversed(self.bits)
                    if version is None or version >= first)


class Exclusions(NamedTuple):
    """Functions that are excluded from probing by default.

    :param names: functions that DTrace itself may run through.
    :param prefixes: prefixes of the names of more such functions.
    :param allowed: prefix of functions that are not excluded even if ``prefixes`` match.
    :param copied: code that the kernel only copies to user programs.
    """

    names: frozenset[str]
    prefixes: tuple[str, ...]
    allowed: str
    copied: frozenset[str]

    def reason(self, name: str) -> str:
        """Return why a function is excluded by default, or an empty string for other functions."""
        if name in self.copied:
            return "is copied to user programs, together with any breakpoints in it"
        if name in self.names or (
                name.startswith(self.prefixes) and not name.startswith(self.allowed)):
            return "is excluded: DTrace itself may run through it"
        return ""


class ThreadLists(NamedTuple):
    """C types and members through which all kernel threads can be found.

    The names of nested members contain dots.

    :param first_process: variable that points to the first process.
    :param saved: member of a thread that points to its saved registers, of the C type
        ``registers``.
    :param frame: member of a thread that points to the trap frame of its last entry into the
        kernel.
    """

    process: str
    thread: str
    registers: str
    first_process: str
    next_process: str
    first_thread: str
    next_thread: str
    tid: str
    name: str
    pid: str
    process_name: str
    saved: str
    frame: str


class ThreadStart(NamedTuple):
    """Kernel functions and structure members used to start a kernel thread on a given CPU.

    :param stands: function that a program enters by a system call, with no lock held; threads are
        created there.
    :param create: function that creates a thread; the flag ``stopped`` keeps it from running.
    :param lock: function that locks a thread; empty: threads need no lock.
    :param add: function that makes a locked thread runnable.
    :param exit: function that ends the calling thread.
    :param thread: C type of a thread, which the scheduler's structure follows in memory.
    :param pinned: member of a thread that is nonzero while the thread must stay on its CPU.
    :param scheduler: C type of the scheduler's structure.
    :param cpu: member of that structure with the number of the thread's CPU.
    :param flags: its word of flags; the bit ``bound`` keeps the thread on its CPU.
    :param alone: whether the kernel uses only one CPU and has no threads on the others.
    """

    stands: str
    create: str
    stopped: int
    lock: str
    add: str
    exit: str
    thread: str
    pinned: str
    scheduler: str
    cpu: str
    flags: str
    bound: int
    alone: bool = False


class ProgramStart(NamedTuple):
    """Kernel functions and structure members used to start and end a program.

    :param executed: function that prepares a thread, its first argument, to begin a program.
    :param frame: member of the thread that points to its trap frame; after ``executed`` the frame
        contains the address of the program's first instruction.
    :param ends: function that ends a thread's process; its arguments are the thread, the exit
        status, and the number of the signal that ended the process, or 0.
    :param bind: function that binds a thread (by ID; -1: the caller) to a CPU (by number; -1: no
        CPU).
    :param levels: members of a thread, and the values that let it run in user mode only when
        nothing else runs, taking turns with other such threads.
    """

    executed: str
    frame: str
    ends: str
    bind: str
    levels: tuple[tuple[str, int], ...]


class ThreadSwitch(NamedTuple):
    """Kernel functions and structure members used to switch a CPU between threads.

    :param functions: functions that switch; their arguments are the old and the new thread.
    :param owes: byte of a thread; 1: it gives up the CPU after the next interrupt.
    :param flags: word of flags of a thread; the bit ``ended`` means that its time slice is used up,
        so that all other runnable threads run first.
    :param nesting: member of a thread (C int); the thread is not preempted unless it is 0.
    :param state: state of a thread, which is ``queued`` while the thread is ready to run.
    """

    functions: tuple[str, ...]
    owes: str
    flags: str
    ended: int
    nesting: str
    state: str
    queued: int


class WaitMembers(NamedTuple):
    """Thread structure members that describe what the thread waits for.

    :param message: why it sleeps (``char *``).
    :param lock: name of the lock that it waits for.
    :param blocked: pointer to the queue in which it waits for the lock.
    :param owner: member of the queue that points to the thread that holds the lock.
    :param spins: functions in which threads spin while they wait for a lock.
    """

    message: str
    lock: str
    blocked: str
    owner: str
    spins: tuple[str, ...]


class TerminalMembers(NamedTuple):
    """Structure members that tell which processes are in the foreground of a terminal.

    :param group: pointer from a process to its process group.
    :param terminal: path from the group to the pointer to its terminal, or null.
    :param foreground: pointer from the terminal to the process group in its foreground.
    :param identity: D's macro variables, such as ``ppid``, with the path from a process to their
        value.
    """

    group: str
    terminal: str
    foreground: str
    identity: Mapping[str, str]


class SleepMembers(NamedTuple):
    """Functions and members that tell why a thread stops running, and who makes it ready again.

    :param leaves: function by which the running thread stops running; the low bits of its first
        argument, ``mask``, are the number of a reason.
    :param reasons: text for each reason number, except those of sleeps and of waits for locks.
    :param channel: member of a thread: the address that it sleeps on; 0 if it does not sleep.
    :param ready: functions that make a thread ready to run; it is their first argument.
    :param inner: patterns for the names of the functions that only carry out a sleep or a wakeup;
        answers leave them out.
    """

    leaves: str
    mask: int
    reasons: Mapping[int, str]
    channel: str
    ready: tuple[str, ...]
    inner: tuple[str, ...]


class ThreadClock(NamedTuple):
    """Description of how the kernel counts the CPU time of threads, in ticks of a counter.

    :param ran: (type, member) of a thread with the ticks counted for it so far.
    :param since: (type, member) of a CPU with the counter's value at the last update of ``ran``.
    :param tid: (type, member) of a thread with its ID.
    :param adders: functions that update ``ran``.
    :param reader: variable that points to the function that reads the counter.
    :param through: function for ``reader`` that reads 32 bits of the timecounter in use instead.
    :param timecounter: variable from which ``members`` lead to the function that reads the
        timecounter in use.
    :param ticks: name of a function that reads a counter -> nanoseconds per tick, for counters
        that the machine drives by virtual time.
    """

    ran: tuple[str, str]
    since: tuple[str, str]
    tid: tuple[str, str]
    adders: frozenset[str]
    reader: str
    through: str
    timecounter: str
    members: tuple[tuple[str, str], ...]
    ticks: Mapping[str, int]


class ConsoleSession(NamedTuple):
    """How the root shell of a complete system is reached and used on the console.

    :param reads: function that waits for input from a terminal; its second argument points to a
        condition variable, which begins with a pointer to its name.
    :param input: name of the condition variable of threads that wait for typed input.
    :param login: program that waits for a login on a terminal.
    :param prompts: ends of the last console line when a system waits for a login or a command.
    :param answers: (end of the last console line, keys that answer it); an answer is given once,
        and the first one that was not given yet is used.
    :param locked: end of a console line that asks for a password.
    :param prompt: prompt of the shell after the last answer.
    :param more: prompt of the shell when a command is incomplete.
    :param attach: command that mounts the files of the disk whose number replaces ``{}``.
    :param status: command that prints the exit status of the previous command as an OSC 133 mark.
    :param tracing: command that loads all of the kernel's tracing modules; empty: it has none.
    :param judge: command that runs a D program, which is typed until an end of file, by the
        system's own tracer, whose further options replace ``{}``; it prints the program's output,
        its exit status as an OSC 133 mark, and then what was written to standard error.
    :param listing: command that lists the probes of a D program, which is typed until an end of
        file, by the system's own tracer; its options replace ``{}``. The list is as in
        ``dtrace.judge.probe_lists.parse``.
    :param noise: pattern of messages that the kernel prints on the console while a tracer runs.
    :param program: command that reads a D program, which is typed until an end of file.
    :param trace: command that starts the system's own tracer with that program in the background,
        and waits until it prints a line which begins with the text that replaces ``{}``; if the
        tracer ends before, the command fails and prints the tracer's messages.
    :param target: command that runs the system's own tracer with that program and the command that
        replaces ``{}``; if the tracer fails, it prints the messages.
    """

    reads: str
    input: str
    login: str
    prompts: tuple[str, ...]
    answers: tuple[tuple[str, str], ...]
    locked: str
    prompt: str
    more: str
    attach: str
    status: str
    tracing: str
    judge: str
    listing: str
    noise: bytes
    program: str
    trace: str
    target: str


class GuestBoot(NamedTuple):
    """Description of how a kernel boots and panics, and what it prints on the console.

    :param load: acts as the boot loader; afterwards the CPU is about to execute the kernel's first
        instruction.
    :param place: puts the image into memory without booting it: maps it and RAM with separate page
        tables, and sets up a stack.  Both raise ``ImageError`` if the image does not fit.
    :param prompts: ends of the console output when the boot is over.
    :param starts: first machine-independent functions of the boot; vectors and page tables are set
        up before them.
    :param readers: functions that wait for console input, with no lock held.
    :param panic: function that begins a panic.
    :param panic_ends: beginnings of console lines that end a panic.
    :param releases: directory on the download server, below its releases/.
    :param shell_prompt: which of the prompts is that of the kinst-emu shell; empty: the kernel runs
        no programs.
    :param unmounted: pattern of the message that the root file system cannot be mounted, with
        groups for the file system and the error number; empty: there is no such message.
    :param needs: options and devices that a kernel needs to run our userland: name -> symbol of
        kernels that have it.
    :param several_cpus: kernel option, and symbol of kernels that have it and can use several CPUs;
        None: all kernels can.
    :param no_file_system: error numbers of a mount that mean that the disk has no file system that
        the kernel knows.
    :param version: the kernel's version string; empty: it has none.
    :param built: pattern of the time of the build in that string, with the groups ``month`` (three
        letters), ``day``, ``hour``, ``minute``, ``second`` and ``year``.
    :param session: how to log in to a complete system; None: the kernel runs no such system.
    """

    load: Loader
    place: Loader
    prompts: tuple[str, ...]
    starts: tuple[str, ...]
    readers: tuple[str, ...]
    panic: str
    panic_ends: tuple[bytes, ...]
    releases: str = ""
    shell_prompt: str = ""
    unmounted: bytes = b""
    needs: Mapping[str, str] = MappingProxyType({})
    several_cpus: tuple[str, str] | None = None
    no_file_system: frozenset[int] = frozenset()
    version: str = ""
    built: bytes = b""
    session: ConsoleSession | None = None


class GuestTraps(NamedTuple):
    """Description of how a kernel handles exceptions, including breakpoints.

    :param hole: finds unused address space for executable memory; see ``emu.guest.hole.FindHole``.
    :param trap_entries: symbols of the vectors that call the kernel's C code, with the trap frame
        at the stack pointer.
    :param seam: pointer through which the kernel calls the handler of breakpoints.
    :param hooks: symbol of kernels with DTrace hooks; empty: all kernels have them.  Without the
        hooks, some kernels define the seam but ignore it.
    :param exclusions: functions that must not contain breakpoints.
    :param seam_word: variable that the kernel writes on its breakpoint path; empty: it has none.
    :param trap: module in ``kinst/<architecture>`` with the host's part of breakpoint handling.
    :param trap_stack: symbol of the top of the stack for breakpoint exceptions; empty: they use the
        interrupted stack.
    :param page_faults: how the kernel handles page faults; None: unknown.
    :param interrupts: functions that handle interrupts.
    """

    hole: FindHole
    trap_frame: TrapFrame
    trap_entries: frozenset[str]
    seam: str
    exclusions: Exclusions
    hooks: str = ""
    seam_word: str = ""
    trap: str = "trap"
    trap_stack: str = ""
    page_faults: PageFaults | None = None
    interrupts: tuple[str, ...] = ()

    def seam_of(self, image: Image) -> Symbol | None:
        """Return the kernel's seam, or None if the kernel was built without DTrace hooks."""
        if self.hooks and image.symbols.find(self.hooks) is None:
            return None
        return image.symbols.find(self.seam)


class GuestThreads(NamedTuple):
    """Description of how a kernel starts threads, shares a CPU between them, and lets them wait.

    :param per_cpu: register that points to a CPU's ``struct pcpu``, which begins with a pointer to
        the running thread.
    :param per_cpu_outside: register to use instead while a program runs, and whether it points to
        a word with the address of ``struct pcpu`` instead of containing that address.
    :param lists: where the kernel keeps its threads.
    :param start: how to start threads.
    :param switch: how the kernel switches between threads.
    :param waits: members that describe what a thread waits for.
    :param sleeps: how threads stop running and become ready again.
    :param locks: members that describe a lock.
    :param clock: how the kernel counts the CPU time of threads; None: it does not.
    :param terminals: members that tell which processes read a terminal; None: there are none.
    :param begins: symbol at which a new thread executes its first instruction; empty: unknown.
    :param atomics: prefix of the kernel's inline functions for atomic accesses.
    """

    per_cpu: str
    lists: ThreadLists
    per_cpu_outside: tuple[str, bool] = ("", False)
    start: ThreadStart | None = None
    switch: ThreadSwitch | None = None
    waits: WaitMembers | None = None
    sleeps: SleepMembers | None = None
    locks: LockMembers | None = None
    clock: ThreadClock | None = None
    terminals: TerminalMembers | None = None
    begins: str = ""
    atomics: str = ""


class GuestPrograms(NamedTuple):
    """Description of how a kernel runs programs: processes, system calls and signals.

    :param last_process: variable (C int) with the number of the process that was created last.
    :param members: members that identify a thread's process; None: there are no processes.
    :param system_calls: calling convention of system calls; None: there are no system calls.
    :param call_members: members of a thread that describe its system call.
    :param page_tables: members that lead from a process to the root of its page tables, and the
        register with the root while the process runs.
    :param signals: members through which a thread receives signals; None: there are no signals.
    :param start: what happens when a program begins and ends.
    :param arguments: members that lead from a thread to the arguments of its program, then members
        with their size in bytes and with the strings, one after the other; empty: the kernel does
        not keep them.
    :param errors: names of the error numbers that system calls return.
    :param executes: names of the system calls that begin a program.
    :param forks: names of the system calls that create a copy of a process and return its ID.
    :param last_number: highest ID of a process.
    :param maps: members that describe the files that a process has mapped; None: unknown.
    :param debug_file: path of the file with the symbols of a stripped file, whose path replaces
        ``{}``; empty: there are no such files.
    :param signal_frame: how to leave the code to which signal handlers return; None: unknown.
    :param writes: names of the system calls that write memory to a descriptor (descriptor, address,
        size), and of those that write several pieces (descriptor, array of address and size as
        words, number of pieces).
    """

    last_process: str = ""
    members: ProcessMembers | None = None
    system_calls: SystemCalls | None = None
    call_members: CallMembers | None = None
    page_tables: tuple[str, str] = ("", "")
    signals: SignalMembers | None = None
    start: ProgramStart | None = None
    arguments: tuple[tuple[str, str], ...] = ()
    errors: Mapping[int, str] = MappingProxyType({})
    executes: tuple[str, ...] = ()
    forks: tuple[str, ...] = ()
    last_number: int = 0
    writes: tuple[str, str] = ("", "")
    maps: MapMembers | None = None
    debug_file: str = ""
    signal_frame: SignalFrame | None = None


class AllocationProbes(NamedTuple):
    """Probes for allocating and freeing memory of a type.

    :param provider: name of their provider.
    :param declared: reads them from a kernel that has been started.
    :param enabled: kernel variable that the code tests after it has updated the statistics.
    :param frees: function that counts the type's memory -> whether the memory is freed.
    :param kind: variable of these functions that points to the type.
    :param size: variable with the size.
    :param zone: variable with the number of the zone; where there is none, it is 0.
    :param passed: number of the argument in which each variable is passed to DTrace.
    :param internal: path from a type to its internal structure.
    :param statistics: path from a type to the address of its statistics.
    :param of_cpu: (type, member) of the word that is added to this address for a CPU.
    """

    provider: str
    declared: Callable[[Image, VirtualMemory], list[StaticProbe]]
    enabled: str
    frees: Mapping[str, bool]
    kind: str
    size: str
    zone: str
    passed: Mapping[str, int]
    internal: tuple[str, str]
    statistics: tuple[str, str]
    of_cpu: tuple[str, str]


class GuestProbes(NamedTuple):
    """Static probes that a kernel declares.

    :param declared: reads the static probes of a kernel that has been started.
    :param calls: reads the system call probes of a kernel that has been started.
    :param gates: function that tracepoints call -> number of its arguments after the first.
    :param tracepoint: bytes of the no-op instruction at each tracepoint.
    :param guard: kernel variable that tells whether any static probe is enabled, and the probes
        (provider, name) whose code tests it.
    :param operations: provider and module of static probes whose functions are inlined into their
        callers, where calls can bypass the tracepoints.
    :param locks: probes for locks; None: the kernel has none.
    :param allocations: probes for allocations; None: the kernel has none.
    :param unseen: (provider, pattern for names) -> note about probes that do not fire.
    :param tracer: the kernel's own tracer; None: it is not known.
    """

    declared: Callable[[Image, VirtualMemory], list[StaticProbe]] | None = None
    calls: Callable[[Image, VirtualMemory], list[StaticProbe]] | None = None
    gates: Mapping[str, int] = MappingProxyType({})
    tracepoint: bytes = b""
    guard: tuple[str, frozenset[tuple[str, str]]] = ("", frozenset())
    operations: tuple[str, str] = ("", "")
    locks: LockProbes | None = None
    allocations: AllocationProbes | None = None
    unseen: Mapping[tuple[str, str], str] = MappingProxyType({})
    tracer: TracerCode | None = None


class Guest(NamedTuple):
    """A guest kernel on one architecture.

    Names are those of the kernel's symbols, types and members.

    :param recognized_by: symbol that no other guest has; empty: the guest for all kernels that no
        other guest recognizes.
    :param members: D variable -> (type, member) pairs that lead to it from the thread.
    """

    name: str
    recognized_by: str
    registers: GuestRegisters
    allocator: Allocator
    boot: GuestBoot
    traps: GuestTraps
    threads: GuestThreads
    programs: GuestPrograms
    probes: GuestProbes
    members: Mapping[str, tuple[tuple[str, str], ...]]

    def entry_address(self, image: Image) -> int:
        """Return an address among the kernel's first instructions, which run only during boot.

        It is not the very first one, because Unicorn also looks at the byte before a stop address.
        """
        return image.entry + 16
