"""What the rest of the project must know of a guest; one object a kernel and architecture."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from emu.elf.image import Image
from emu.guest.hole import FindHole
from emu.guest.static_probe import StaticProbe


class VirtualMemory(Protocol):
    """Virtual memory of the guest."""

    def read(self, address: int, size: int) -> bytes: ...

    def write(self, address: int, data: bytes) -> None: ...


class TrapFrame:
    """Layout of the kernel's ``struct trapframe``: field -> (byte offset, bytes)."""

    def __init__(self, size: int, fields: Mapping[str, tuple[int, int]]) -> None:
        self.size = size
        self.fields = fields

    def read(self, memory: VirtualMemory, frame: int, name: str) -> int:
        offset, size = self.fields[name]
        return int.from_bytes(memory.read(frame + offset, size), "little")

    def write(self, memory: VirtualMemory, frame: int, name: str, value: int) -> None:
        offset, size = self.fields[name]
        memory.write(frame + offset, (value & (1 << 8 * size) - 1).to_bytes(size, "little"))


class BareMachine(Protocol):
    """What a boot loader finds: memory, one CPU, and what firmware says of the rest."""

    memory: int  # bytes of RAM

    @property
    def ram_base(self) -> int: ...

    def firmware(self) -> bytes:
        """Leave memory and the CPU as firmware does before it enters a boot loader.

        :return: the flattened device tree; nothing where firmware leaves tables in memory.
        """

    def write_physical(self, address: int, data: bytes) -> None: ...

    def write_register(self, name: str, value: int) -> None: ...


Loader = Callable[[BareMachine, Image], None]


@dataclass(frozen=True)
class LockKind:
    """:param word: the member of ``kind`` that has the owner's address, or how many share the lock.
    :param flags: of that word, what is neither; ``shared``: it is shared.
    """

    kind: str
    word: str
    flags: int
    shared: int
    spins: bool = False


@dataclass(frozen=True)
class LockMembers:
    """How a lock says what it is: a number in ``flags`` of ``kind``, which all locks begin with.

    :param kinds: by that number; None: of it nothing is known.
    """

    kind: str
    flags: str
    shift: int
    mask: int
    kinds: tuple[LockKind | None, ...]


@dataclass(frozen=True)
class Allocator:
    """The kernel's own: ``function(size, &kind, flags)``."""

    function: str
    kind: str
    flags: int


@dataclass(frozen=True)
class GuestRegisters:
    """Registers as the kernel's headers and structures have them.

    :param numbers: of D's ``regs[]`` and ``uregs[]``, by the names of the constants.
    :param places: such a number -> our name, or the trap frame's.
    :param saved: where ``struct pcb`` keeps those of a thread while another runs: (member, index).
    """

    numbers: Mapping[str, int]
    places: Mapping[int, str]
    saved: Mapping[str, tuple[str, int | None]]


@dataclass(frozen=True)
class SystemCalls:
    """How a program calls the kernel.

    :param instruction: its bytes.
    :param number: the register with the call's number; ``result``: what it gives.
    :param failed: the register whose bits tell that the result is an error's number, and the bits.
    :param handler: the kernel's first function in C on the way; ``others``: more such, for
        programs of other kinds.
    :param names: the kernel's variable (C array of strings) with their names, by number.
    :param prefix: what the names of the kernel's functions for them begin with.
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


@dataclass(frozen=True)
class PageFaults:
    """How the kernel goes about an access that the page tables do not allow.

    :param function: that is given what for the access is, as the argument of that number, from 0.
    :param handler: the kernel's first function in C on the way.
    :param address: the field of the trap frame with the address that was wanted.
    :param cause: the field that tells why the program was left, which of its bits, and what they
        are where it was such an access.
    """

    function: str
    access: int
    handler: str
    address: str
    cause: tuple[str, int, frozenset[int]]


@dataclass(frozen=True)
class CallMembers:
    """The members of a thread that tell of its system call.

    :param arguments: an array of words; ``entry``: which leads to the table's entry.
    :param value: what it returns; ``error``: its number, in C's ``int``.
    :param flags: of which ``error_set`` says that the call has set ``error`` itself.
    """

    thread: str
    arguments: str
    entry: str
    value: str
    error: str
    flags: str
    error_set: int


@dataclass(frozen=True)
class ProcessMembers:
    """The members of ``thread`` and of its process, of type ``kind``, that tell which it is.

    :param flags: of which ``executed`` says that it has executed a program since it was made.
    """

    thread: str
    process: str
    kind: str
    number: str
    flags: str
    executed: int
    name: str


@dataclass(frozen=True)
class SignalMembers:
    """What a thread is told of a signal by: members of ``thread``.

    :param pending: sets of 32-bit words, whose bit ``signal - 1`` says that it is pending.
    :param notice: flags, of which ``bit`` has it look at signals on its way to user mode.
    :param stop: the number of the signal that stops a process; there are ``count``.
    """

    thread: str
    pending: tuple[str, ...]
    notice: str
    bit: int
    stop: int
    count: int


@dataclass(frozen=True)
class Exclusions:
    """Functions that are not probed unless one insists.

    :param names: DTrace itself runs through them; ``prefixes``: of names of more of them, but for
        those that begin with ``allowed``.
    :param copied: code that the kernel only copies to user programs.
    """

    names: frozenset[str]
    prefixes: tuple[str, ...]
    allowed: str
    copied: frozenset[str]

    def reason(self, name: str) -> str:
        """Why a function is not probed unless one insists; empty when it is."""
        if name in self.copied:
            return "is copied to user programs, breakpoints and all"
        if name in self.names or (
                name.startswith(self.prefixes) and not name.startswith(self.allowed)):
            return "is excluded: DTrace itself may run through it"
        return ""


@dataclass(frozen=True)
class ThreadLists:
    """Where the kernel keeps its threads: members of its types, those within a member dotted.

    :param first_process: the variable that leads to the first process, of type ``process``.
    :param saved: the member of a thread that leads to what it goes on with, of type ``registers``;
        ``frame`` to the trap frame of its last entry into the kernel.
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


@dataclass(frozen=True)
class ThreadStart:
    """How a thread of the kernel's own is made to run on one CPU.

    :param stands: a function that a program's system call enters, with no lock held: from there
        threads are made.
    :param create: makes one that does not run yet, with ``stopped`` among its flags.
    :param lock: locks it (empty: nothing does); ``add`` has it run.
    :param exit: ends the thread that calls it.
    :param thread: the type of one; behind it lies ``scheduler``'s: with the number of its
        ``cpu``, and ``flags``, of which ``bound`` says that it stays there, as the thread's
        ``pinned`` does.
    :param alone: the kernel uses one CPU only: where there are more, they have no threads.
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


@dataclass(frozen=True)
class ProgramStart:
    """Functions that a program comes through.

    :param executed: one is about to begin in the thread that it is given, whose ``frame`` leads to
        the trap frame with the first instruction, behind it.
    :param ends: the process of the thread that it is given ends, with the exit status and the
        number of the signal, if one has ended it.
    :param levels: members of a thread, and what has it run in user mode when nothing else is to
        run, in turns with others of its kind.
    :param bind: keeps a thread (of a number; -1: the one that calls) on the CPU of a number; -1:
        no more.
    """

    executed: str
    frame: str
    ends: str
    bind: str
    levels: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class ThreadSwitch:
    """How a CPU is taken from a thread and given to another one, by members of a thread.

    :param functions: that do it, given the thread and the next one.
    :param owes: a byte: behind an interrupt it gives the CPU up; ``flags``, of which ``ended`` says
        that its time is used up: all others that can run have theirs before it.
    :param nesting: (C int) while it is not 0, the CPU is not taken from it.
    :param state: the thread's, which is ``queued`` where it could run.
    """

    functions: tuple[str, ...]
    owes: str
    flags: str
    ended: int
    nesting: str
    state: str
    queued: int


@dataclass(frozen=True)
class WaitMembers:
    """What a thread says of its waiting, by members of its type.

    :param message: (``char *``) why it sleeps; ``lock``: the name of the lock that it waits for.
    :param blocked: the queue that it is in then, and there ``owner``, who holds the lock.
    :param spins: functions in which it waits for one by going round.
    """

    message: str
    lock: str
    blocked: str
    owner: str
    spins: tuple[str, ...]


@dataclass(frozen=True)
class ThreadClock:
    """How the kernel counts the time that threads have had a CPU: in ticks of a counter.

    :param ran: the member of a thread with the ticks that the kernel has added up for it; ``since``
        that of a CPU with the count when it last did; ``tid`` that of a thread with its number.
    :param adders: the functions that add up.
    :param reader: the variable with the function that reads the counter.
    :param through: a function for ``reader`` that reads 32 bits of another counter; the members
        that lead from the variable ``timecounter`` to the function that reads that one.
    :param ticks: nanoseconds of a tick, by the name of the function that reads the counter, for
        those that the machine drives by its own time.
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


@dataclass(frozen=True)
class GuestBoot:
    """How a kernel is entered, what its console says, and how it ends.

    :param load: plays the boot loader: the CPU is about to execute the kernel's first instruction.
    :param place: puts the image into memory, maps it and RAM by page tables of ours, gives the CPU
        a stack.  Both raise ``ImageError`` when the image does not fit.
    :param prompts: what the console ends with when a boot is over.
    :param starts: machine-independent start-up: what runs before it sets up vectors and tables.
    :param readers: functions that wait for the console's input, with no lock held.
    :param panic: where a panic begins; ``panic_ends``: what the console says at its end.
    :param releases: where they are on the download server, under its releases/.
    :param later_prompt: behind the first of these, the second is a prompt, too.
    :param shell_prompt: that of these which our shell ends with; empty: it runs no programs.
    :param unmounted: a pattern of what it says where its root file system cannot be mounted: the
        file system's name, the error's number; empty: there is none.
    :param needs: what a kernel must be built with to run our userland: an option or device -> a
        symbol that a kernel with it has.
    :param no_file_system: errors of a mount that mean that the disk holds no file system it knows.
    """

    load: Loader
    place: Loader
    prompts: tuple[str, ...]
    starts: tuple[str, ...]
    readers: tuple[str, ...]
    panic: str
    panic_ends: tuple[bytes, ...]
    releases: str = ""
    later_prompt: tuple[str, str] = ("", "")
    shell_prompt: str = ""
    unmounted: bytes = b""
    needs: Mapping[str, str] = field(default_factory=dict)
    no_file_system: frozenset[int] = frozenset()


@dataclass(frozen=True)
class GuestTraps:
    """How a kernel takes exceptions, and breakpoints among them.

    :param hole: unused address space for executable memory: see ``emu.guest.hole.FindHole``.
    :param trap_entries: where the vectors call the kernel's C code, with the trap frame at the
        stack pointer.
    :param seam: the pointer through which the kernel hands on a breakpoint.
    :param exclusions: functions that breakpoints must not be in.
    :param seam_word: a word of the kernel that its breakpoint path writes; empty: it has none.
    :param trap: the module of ``kinst/<architecture>`` that has the host's half of its breakpoints.
    :param trap_stack: a symbol, the top of the stack that breakpoints come on; empty: on the
        interrupted one.
    :param page_faults: how it takes them; None: it has none.
    :param interrupts: the functions that handle them.
    """

    hole: FindHole
    trap_frame: TrapFrame
    trap_entries: frozenset[str]
    seam: str
    exclusions: Exclusions
    seam_word: str = ""
    trap: str = "trap"
    trap_stack: str = ""
    page_faults: PageFaults | None = None
    interrupts: tuple[str, ...] = ()


@dataclass(frozen=True)
class GuestThreads:
    """Which thread a CPU runs, how threads are made, take turns and wait.

    :param per_cpu: the register that leads to a CPU's ``struct pcpu``, which begins with the
        thread; ``per_cpu_outside``: while a program runs, a register that has it, or
        (True) leads to a word that has it.
    :param lists: where the kernel keeps its threads.
    :param start: how threads are made, and ``switch``, how they take turns; ``waits``: what one
        says that waits; ``locks``: what a lock says; ``clock``: how long each has run; None: the
        kernel does not count it.
    :param begins: a symbol, where a new thread executes its first instruction; empty: not known.
    :param atomics: what the names of its inline functions for atomic accesses begin with.
    """

    per_cpu: str
    lists: ThreadLists
    per_cpu_outside: tuple[str, bool] = ("", False)
    start: ThreadStart | None = None
    switch: ThreadSwitch | None = None
    waits: WaitMembers | None = None
    locks: LockMembers | None = None
    clock: ThreadClock | None = None
    begins: str = ""
    atomics: str = ""


@dataclass(frozen=True)
class GuestPrograms:
    """The processes of a kernel, and their system calls.

    :param last_process: the variable (C int) that has the number of the process made last.
    :param members: what a thread says of its process; None: there are none.
    :param system_calls: of its programs; None: it has none.
    :param call_members: where a thread has what it says of a system call.
    :param page_tables: the members that lead from a process to the root of its page tables, and the
        register that has that while it runs.
    :param signals: how a thread is told of a signal; None: it is not.
    :param start: how a program begins and ends.
    :param arguments: the members that lead from a thread to the arguments of its process's program,
        and there the bytes of all of them, and the strings behind each other; empty: it does not
        keep them.
    """

    last_process: str = ""
    members: ProcessMembers | None = None
    system_calls: SystemCalls | None = None
    call_members: CallMembers | None = None
    page_tables: tuple[str, str] = ("", "")
    signals: SignalMembers | None = None
    start: ProgramStart | None = None
    arguments: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class GuestProbes:
    """The probes that a kernel declares itself.

    :param declared: reads its static probes, in a kernel that was started; ``calls``: those of its
        system calls.
    :param gates: the functions that its tracepoints call, with so many arguments behind the first.
    :param tracepoint: the instruction that a tracepoint is, which does nothing.
    :param guard: the kernel's variable that says whether any is enabled, and the probes (provider,
        name) whose code looks at it.
    :param operations: provider and module of static probes of functions that are inline in their
        callers and go by the tracepoints; ``unseen``: what of a provider does, and is not found.
    """

    declared: Callable[[Image, VirtualMemory], list[StaticProbe]] | None = None
    calls: Callable[[Image, VirtualMemory], list[StaticProbe]] | None = None
    gates: Mapping[str, int] = field(default_factory=dict)
    tracepoint: bytes = b""
    guard: tuple[str, frozenset[tuple[str, str]]] = ("", frozenset())
    operations: tuple[str, str] = ("", "")
    unseen: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Guest:
    """A kernel on an architecture.  Names are those of its symbols, types and members.

    :param recognized_by: a symbol that no other guest has; empty: whatever no other guest is.
    :param members: of D's variables: the members that lead to them, from the thread on.
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
        """An address in the kernel's first instructions, which the boot alone executes.  Not of the
        very first: Unicorn also looks at the byte before a stop address."""
        return image.entry + 16
