# cython: language_level=3, boundscheck=True, cdivision=True
"""The native part of the providers: sites and probes by the million, and what a firing does.

A *site* is an instruction that may carry a breakpoint; *probes* are chained to it.  What an
instruction is, is read by ``kinst/code/_reader.pyx``.  ``Dispatcher`` answers the engine's breakpoint
exceptions: it finds the site, records the firing, carries out the operation of the site's template and
sends the guest on, on the *direct* path at the breakpoint, on the *guest* path at the kernel's seam.

The Python twin of the operations is ``Emulate.next_pc``; of the trampolines, the architecture's
``GuestTrap.trampoline``; of the seam, its ``enter`` and ``leave``.

Here is ``Dispatcher``, what Python sees, and the structures.  It is one module with the files that are
included below, so that the compiler sees all that a firing does at once.
"""

from bisect import bisect_left

cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from emu.unicorn._engine import EngineError
from emu.host.errors import MachineError
from kinst.probes.kinds import ProbeKind, TrapPath

from emu.unicorn._engine cimport (
    SLOT,
    STOP_IN_PLACE,
    Clock,
    Engine,
    MAX_AWAITED,
    NO_MEMORY,
    TOO_MANY_AWAITED,
    await_address,
    await_nothing,
    defer,
    drop_translations,
    freeze,
    go_to,
    guest_read,
    guest_write,
    host_physical,
    host_stack,
    host_virtual,
    keep_footprint,
    register_read,
    register_write,
    request_stop,
    resume,
    stops_at,
    time_at,
    wipe_footprint,
)

from kinst.probes._action cimport AFTER, ARGUMENTS, DECLARED, DECLARED_ARGUMENTS, REGISTER, Action
from kinst.code._reader cimport (
    MAX_CODE,
    MAX_REGISTERS,
    CodeReader,
    Piece,
    Template,
    Templates,
    split_fn,
)

include "../relocation/_template.pxi"

cdef enum:
    RECORDS = 1 << 16
    ABOVE = 2048  # bytes of a frame in which the way to a gate may spill registers
    GIVEN_ARGUMENTS = 6  # that a gate can be given behind its first
    MAX_FLAGS = 5  # their combinations are bits of a 32-bit truth
    MAX_THREADS = 1024
    STACK_PAGE = 4096
    MAX_TABLES = 4  # of system calls
    MAX_OPERATIONS = 512
    MAX_PENDING = 4096  # calls of operations in progress
    MAX_CALLS = 1 << 16  # in one
    CALL_ARGUMENTS = 8  # of one
    CALL_BEGINS = 1
    CALL_ENDS = 2
    MANY = 64  # more patches than this drop all translations at once
    MAX_TAILS = 1 << 20  # functions of one thread that have left by tail calls
    ELSEWHERE = -2  # of flow_of
    MAX_ALL_TAILS = 1 << 22  # of all threads, and the copies that they are in
    MAX_TAIL_THREADS = 1 << 16
    PROGRAM_BITS = 5  # of a key, for a number up to MAX_PROGRAMS
    # Why a call cannot be noted; see ``await_address`` for the first ones.
    TOO_MANY_OF_THREAD = 3
    TOO_MANY_OF_ALL = 4
    STACK_REACH = 1 << 20  # bytes: stack pointers that are further apart are of different stacks

cdef uint32_t NONE = 0xFFFFFFFF

cdef int GUEST = TrapPath.GUEST
cdef int DIRECT = TrapPath.DIRECT
cdef int DOUBLE = TrapPath.DOUBLE
cdef int AT_RETURN = ProbeKind.RETURN
cdef int STATIC = ProbeKind.STATIC
cdef int PROGRAM_RETURN = ProbeKind.PROGRAM_RETURN

cdef struct Site:
    uint64_t address
    uint32_t template
    uint32_t first
    uint32_t slot  # index of its trampoline, or NONE
    int32_t relative  # of an encoding whose template leaves the displacement out
    uint8_t length
    uint8_t second  # offset of the trampoline's second breakpoint
    uint8_t patched
    uint8_t gate  # how many arguments of a static probe are there when the guest comes here
    uint8_t call  # a system call begins here, or has returned (CALL_BEGINS, CALL_ENDS)
    uint32_t operation  # one of them is called here, or has returned; 0: none
    uint8_t repeats  # in a program: counted as often as it repeats itself
    uint32_t behind  # in a program: instructions before it in a block that starts at ``block``
    uint64_t block
    uint8_t join  # a guard's way without a tracepoint leads here
    uint64_t target  # where a static probe's arguments are made; of a guard: what it guards
    uint64_t otherwise  # of a guard: where it leads else
    uint8_t code[MAX_CODE]

cdef struct Probe:
    uint64_t count
    uint32_t site  # NONE: of a static probe, which may have many
    uint32_t primary  # whose firings these are: of one of a static probe's sites, that probe; or itself
    uint32_t next
    uint32_t function
    uint8_t provider
    uint8_t removed
    uint64_t low  # a return that a condition or an address decides: it fires where the next
    uint64_t high  # instruction is not behind the first of [low, high), the function; 0: always
    uint8_t told  # Python is told of its firings, whatever is done natively
    uint8_t role  # of an inline copy: ENTERS, WAY_OUT or CALLS_OUT
    uint8_t silent  # it only follows the copy
    uint32_t copy
    int32_t lower  # at an entry of a copy: bytes that the stack pointer is lowered by there
    uint8_t tail  # a return at a jump: it fires when the function that is jumped to has returned

# The probes of an operation; NONE: it is not enabled.
cdef struct Operation:
    uint32_t entry
    uint32_t returns

# A call of one that is in progress.
cdef struct Pending:
    uint64_t sp
    const Operation *operation
    uint64_t arguments

cdef struct Record:
    uint64_t time
    uint64_t skew  # virtual time beyond the instructions
    uint64_t arguments[ARGUMENTS]
    uint32_t probe
    uint32_t cpu

# An instruction that the kernel's vectors do: what they are told, and where the stack pointer is then.
cdef struct Told:
    uint64_t answer
    int64_t change  # from the register ``base``
    uint8_t base
    uint8_t code
    bint returns
    uint8_t stores  # at the new stack pointer; NO_REGISTER: nothing
    uint8_t loads  # from where ``base`` leads to

cdef enum:
    MAX_TOLD = 8

cdef struct CallTable:
    uint64_t base
    uint64_t size  # of an entry, in bytes
    uint32_t count
    uint32_t *probes  # entry and return of each; NONE: there is none
    int8_t *widths  # of each call's arguments: so many bits, negative ones with a sign; 0: as it is

cdef struct Calls:
    int per_cpu  # the register that leads to the thread
    # In the thread: the call's arguments, its entry, what it returns, its error; its flags, of which
    # one says that the call itself has set the error.
    uint64_t arguments
    uint64_t entry
    uint64_t value
    uint64_t error
    uint64_t flags
    uint32_t error_set
    int table_count
    CallTable tables[MAX_TABLES]

# A function that has left by a tail call, and has not returned.
cdef struct Tail:
    uint64_t sp  # the stack pointer when it has returned
    uint64_t back
    uint32_t probe
    bint calls  # the call that it waits for has not been executed yet

# An inline copy that a thread is in.
cdef struct ActiveCopy:
    uint64_t sp  # when it was entered
    uint32_t copy

cdef struct TailThread:
    uint64_t key
    bint used
    uint32_t count
    uint32_t room
    Tail *all
    uint32_t active_count
    uint32_t active_room
    ActiveCopy *active

cdef struct InlineCopy:
    uint32_t first  # of its ranges
    uint32_t count

cdef struct CodeRange:
    uint64_t low
    uint64_t high

cdef enum:
    NO_WAY_OUT = 0
    ENTERS = 1
    WAY_OUT = 2
    CALLS_OUT = 3
    MAX_RANGES = 4096

cdef struct Tails:
    TailThread *threads  # open addressing
    uint64_t mask
    uint64_t count
    uint64_t room  # of all threads
    uint64_t history  # of the clock: when it changes, another state was restored

include "_program_table.pxi"


cdef struct Dispatch:
    Clock *clock
    Operation operations[MAX_OPERATIONS]
    int operation_count
    Pending pending[MAX_PENDING]
    uint64_t latest  # when one of them was called last: time that goes back makes them void
    int pending_count
    void *owner
    int path
    bint counting_only
    # registers: Unicorn's numbers, place in the trap frame (-1: none), restored by the kernel
    int count
    int number[MAX_REGISTERS]
    int place[MAX_REGISTERS]
    bint restored[MAX_REGISTERS]
    bint untold[MAX_REGISTERS]  # the frame does not have it as it was, and no compiled code changes it
    bint wide[MAX_REGISTERS]  # more than 64 bits: LOAD_VECTOR's only
    uint8_t arguments[ARGUMENTS]
    uint8_t pc
    uint8_t sp
    uint8_t status
    uint8_t link
    uint8_t result
    uint8_t frame_register
    uint8_t segment
    uint8_t counter  # of what repeats itself
    int flag_bits[8]
    int flag_count
    # the breakpoint
    uint32_t vector
    uint32_t bias
    bint called  # the seam is called and returns 0; else registers are set from the frame
    # Instructions that the kernel's vectors do themselves, when they are told.
    Told told[MAX_TOLD]
    int told_count
    uint64_t frame_bias
    uint64_t trap_stack  # what breakpoints come on; 0: the interrupted stack
    uint64_t frame_mask  # of the frame's status register, to mask interrupts in the trampoline
    bint mask_sets
    uint64_t cpu_mask  # the same of the CPU's
    uint64_t saved_mask
    int frame_size
    uint64_t seam
    uint64_t scratch  # a word that the kernel's path writes: its address and content
    uint64_t scratch_value
    uint64_t flags_if  # amd64: RFLAGS.IF, to choose a per-thread trampoline
    # trampolines
    uint8_t *slots
    uint64_t slot_base
    uint64_t slot_count
    uint32_t *slot_site
    uint64_t *slot_used
    uint64_t slot_hint
    bint threads
    uint64_t thread[MAX_THREADS]
    uint32_t thread_count
    uint32_t thread_slot
    bint returns_by_jump
    uint8_t jump[8]  # to the address behind it
    uint32_t jump_length
    uint8_t breakpoint[4]
    uint32_t breakpoint_length
    uint8_t short_breakpoint[2]
    uint8_t short_nop[2]
    # tables
    const Templates *templates
    Site *sites
    uint32_t site_count
    uint32_t site_room
    Probe *probes
    uint32_t probe_count
    uint32_t probe_room
    uint32_t *hash
    uint64_t hash_mask
    # firings
    Record *records
    uint32_t record_count
    uint64_t firings
    Action action
    # the firing in progress
    uint8_t *frame[2]
    uint32_t frame_split
    bint framed
    uint64_t at
    bint firing  # Python is told of it
    # a static probe's arguments on the way: from the site, with the registers there
    uint32_t visiting
    uint32_t reached  # from a guard: the tracepoint
    uint64_t before[MAX_REGISTERS]
    uint8_t above[ABOVE]  # the stack, from its pointer on
    uint64_t above_at
    uint64_t above_size
    uint8_t made_in[GIVEN_ARGUMENTS]  # NO_REGISTER: the stack, so far above its pointer
    uint64_t made_stack
    uint64_t made[DECLARED_ARGUMENTS]
    split_fn split
    Programs programs
    bint making  # what fires is a static probe, or a system call's
    Calls calls
    Tails tails
    InlineCopy *copies
    uint32_t copy_count
    uint32_t copy_room
    CodeRange *ranges
    uint32_t range_count
    uint32_t range_room
    bint after  # the function that fires has returned
    bint linked  # calls leave their return address in ``link``, not on the stack
    int per_cpu  # Unicorn's number of the register that leads to the thread; 0: it is not known
    uint64_t thread_begins  # where new threads begin; 0: it is not known
    bint stop  # that failed: the instruction is not carried out

include "_tables.pxi"
include "_operations.pxi"
include "_tracepoint.pxi"
include "_system_call.pxi"
include "_operation.pxi"
include "_program.pxi"
include "_returns.pxi"
include "_inline.pxi"
include "_firing.pxi"
include "_patches.pxi"


@cython.no_gc_clear  # the engine is needed to the end, to be told that nobody listens
cdef class Dispatcher(CodeReader):
    """Sites and probes of one machine.

    :param engine: the machine's.
    :param shape: what the architecture is like (``kinst/relocation/shape.py``).
    :param classify: gives the number of a template for (bytes, length, displacement).
    """

    cdef Dispatch d
    cdef Engine engine
    cdef object shape
    cdef public object fire
    cdef public object recursion
    cdef public object sink  # is called when there are many records
    cdef list drained
    cdef object action  # keeps what is called
    cdef list program_hooks
    cdef object failure

    def __cinit__(self):
        memset(&self.d, 0, sizeof(Dispatch))
        self.d.templates = &self.templates

    def __dealloc__(self):
        if self.engine is not None and self.program_hooks:  # they lead here
            for hook in self.program_hooks:
                self.engine.hook_del(self.engine.uc, hook)
        if self.engine is not None and self.engine.clock.trap_data == <void *>&self.d:
            self.engine.clock.trap = NULL
            self.engine.clock.seam_call = NULL
        if self.engine is not None and self.engine.clock.arrived_data == <void *>&self.d:
            await_nothing(&self.engine.clock)
        forget_tails(&self.d)
        free(self.d.copies)
        free(self.d.ranges)
        forget_calls(&self.d)
        free(self.d.sites)
        free(self.d.probes)
        free(self.d.hash)
        free(self.d.records)
        free(self.d.slot_site)
        free(self.d.slot_used)

    def __init__(self, Engine engine, shape, classify):
        cdef Dispatch *d = &self.d
        cdef int i
        if d.owner != NULL:
            raise RuntimeError("a dispatcher is made once")
        self.engine = engine  # None: to look at code, not to probe it
        self.drained = []
        self.program_hooks = []
        CodeReader.__init__(self, shape, classify)
        if engine is not None:
            d.clock = &engine.clock
        d.owner = <void *>self
        d.visiting = d.reached = NONE
        d.split = self.split
        forget_left(&d.programs)
        d.count = self.registers
        d.frame_size = shape.frame_size
        if not 0 < d.frame_size <= 4096:
            raise ValueError("a trap frame is of at most 4096 bytes")
        for i, (number, place, restored) in enumerate(shape.registers):
            d.number[i] = number
            d.place[i] = place
            d.restored[i] = restored
            if not -1 <= place <= d.frame_size - 8:
                raise ValueError("a register lies outside the trap frame")
            if engine is not None:
                d.wide[i] = not self.is_narrow(number)
        for i in range(ARGUMENTS):
            d.arguments[i] = self.known_register(shape.arguments[i])
        for register in shape.untold:
            d.untold[self.known_register(register)] = True
        for i in range(GIVEN_ARGUMENTS):
            d.made_in[i] = NO_REGISTER if shape.made[i] is None else self.known_register(shape.made[i])
        d.made_stack = shape.made_stack
        d.pc, d.sp, d.status = (
            self.known_register(r) for r in (shape.pc, shape.sp, shape.status))
        d.link, d.result, d.frame_register = (
            self.known_register(r) for r in (shape.link, shape.result, shape.frame))
        d.segment = self.known_register(shape.segment)
        d.counter = self.known_register(shape.repeat_counter)
        if len(shape.flag_bits) > MAX_FLAGS or any(not 0 <= b < 64 for b in shape.flag_bits):
            raise ValueError("too many flags")
        d.flag_count = len(shape.flag_bits)
        for i in range(d.flag_count):
            d.flag_bits[i] = shape.flag_bits[i]
        d.linked = shape.linked
        d.called = shape.called
        d.frame_bias = shape.frame_bias
        if len(shape.told) > MAX_TOLD:
            raise ValueError("too many instructions are told")
        for code, answer, base, change, returns, stores, loads in shape.told:
            if len(code) != 1:
                raise ValueError("an instruction that is told has one byte")
            d.told[d.told_count].code = code[0]
            d.told[d.told_count].answer = answer
            d.told[d.told_count].base = self.known_register(base)
            d.told[d.told_count].change = change
            d.told[d.told_count].returns = returns
            d.told[d.told_count].stores = (
                NO_REGISTER if stores == NO_REGISTER else self.known_register(stores))
            d.told[d.told_count].loads = (
                NO_REGISTER if loads == NO_REGISTER else self.known_register(loads))
            d.told_count += 1
        if d.called and (d.place[d.pc] < 0 or d.place[d.sp] < 0 or d.place[d.status] < 0):
            raise ValueError("the trap frame lacks pc, sp or status")
        d.frame_mask, d.mask_sets, d.cpu_mask = shape.frame_mask, shape.mask_sets, shape.cpu_mask
        d.flags_if = shape.flags_if
        d.returns_by_jump = not shape.second_breakpoint
        if len(shape.jump) > 8 or len(shape.short_nop) > 2:
            raise ValueError("too long a jump")
        d.jump_length = len(shape.jump)
        for i in range(len(shape.jump)):
            d.jump[i] = shape.jump[i]
        self.shape = shape
        self.choose(GUEST)
        for i in range(len(shape.short_nop)):
            d.short_nop[i] = shape.short_nop[i]

    def choose(self, int path):
        """The breakpoints of a path: 0 guest, 1 direct, 2 double."""
        cdef Dispatch *d = &self.d
        cdef int i
        self.unchanging()
        if path not in (GUEST, DIRECT, DOUBLE):
            raise ValueError("a path is 0, 1 or 2")
        if self.d.clock != NULL and self.d.clock.trap_data == <void *>&self.d:
            raise RuntimeError("breakpoints are answered: deafen the dispatcher first")
        kind = self.shape.breakpoints[path == DIRECT]
        if not 0 < len(kind.code) <= 4 or len(kind.short) > 2:
            raise ValueError("a breakpoint is of one to four bytes, a short one of at most two")
        d.path = path
        d.vector = kind.vector
        d.bias = kind.bias
        d.breakpoint_length = len(kind.code)
        for i in range(len(kind.code)):
            d.breakpoint[i] = kind.code[i]
        for i in range(len(kind.short)):
            d.short_breakpoint[i] = kind.short[i]

    cdef bint is_narrow(self, int number) except? False:
        """Whether a register has at most 64 bits."""
        try:
            self.engine.read(number)
        except EngineError:
            return False
        return True

    # -- sites and probes ---------------------------------------------------------------------

    def add(self, uint64_t address, bytes code, uint32_t function, int provider):
        """A probe on one instruction.

        :return: its number, or -1 when the instruction is refused.
        """
        self.unchanging()
        cdef uint32_t length = 0
        cdef int32_t relative = 0
        cdef int64_t template = self.template_of(code, len(code), address, &length, &relative)
        if template < 0 or self.templates.all[template].op == REFUSE:
            return -1
        return probe_at(
            &self.d, site_at(&self.d, address, <uint32_t>template, code, length, relative),
            function, provider)

    def add_static(self, uint32_t declared):
        """A static probe, which has no tracepoint yet.

        :param declared: which of those that are declared.
        :return: its number; asked for again, another one.
        """
        self.unchanging()
        return new_probe(&self.d, NONE, declared, STATIC)

    def add_tracepoint(self, uint32_t probe, uint64_t address, bytes code, uint64_t target):
        """One of a static probe's.

        :param code: the instruction there.
        :param target: where the kernel makes the arguments, on the way to a gate.
        """
        self.unchanging()
        cdef Dispatch *d = &self.d
        cdef uint32_t i, site
        if probe >= d.probe_count or d.probes[probe].site != NONE or not target:
            raise ValueError("no static probe, or no place where its arguments are made")
        site = self._site(address, code)
        i = probe_at(d, site, d.probes[probe].function, STATIC)
        d.probes[i].primary = probe
        d.sites[site].target = target

    def add_guard(self, uint64_t address, bytes code, uint64_t target, uint64_t otherwise,
                  bytes there):
        """A branch, which tests whether static probes are enabled, to code with a tracepoint.

        :param target: where it leads when they are; ``otherwise`` else: the same code may come there
            without a tracepoint.
        :param there: the instruction there.
        """
        self.unchanging()
        if not target or not otherwise:
            raise ValueError("a guard leads to two places")
        cdef uint32_t site = self._site(address, code)
        cdef const Template *t = &self.templates.all[self.d.sites[site].template]
        if not (t.op == BRANCH_FLAGS or t.op == BRANCH_COMPARE or t.op == BRANCH_BIT
                or t.op == BRANCH_COUNT and not t.n):
            raise ValueError(f"{address:#x}: a guard is a branch that changes nothing")
        cdef uint32_t join = self._site(otherwise, there)
        self.d.sites[site].target, self.d.sites[site].otherwise = target, otherwise
        self.d.sites[join].join = True

    def add_gate(self, uint64_t address, bytes code, int arguments):
        """Where static probes' arguments are in the registers: so many, behind a first one."""
        self.unchanging()
        if not 0 < arguments <= GIVEN_ARGUMENTS:
            raise ValueError(f"a gate is given at most {GIVEN_ARGUMENTS} arguments")
        cdef uint32_t site = self._site(address, code)
        self.d.sites[site].gate = <uint8_t>arguments

    def use_calls(self, int per_cpu, *, uint64_t arguments, uint64_t entry, uint64_t value,
                  uint64_t error, uint64_t flags, uint32_t error_set):
        """Where a thread has what it says of its system call: offsets.

        :param per_cpu: Unicorn's number of the register that leads to the thread.
        :param error_set: of its flags, says that the call has set the error itself.
        """
        self.unchanging()
        if not self.is_narrow(per_cpu):
            raise ValueError(f"register {per_cpu} has more than 64 bits")
        cdef Calls *c = &self.d.calls
        c.per_cpu, c.arguments, c.entry, c.value = per_cpu, arguments, entry, value
        c.error, c.flags, c.error_set = error, flags, error_set

    def add_call_table(self, uint64_t base, uint64_t size, uint32_t count):
        """A table of system calls, of entries of ``size`` bytes; its number."""
        self.unchanging()
        return add_call_table(&self.d, base, size, count)

    def add_call_site(self, uint64_t address, bytes code, bint returns):
        """Where the kernel calls a system call's function, or where that has returned."""
        self.unchanging()
        cdef uint32_t site = self._site(address, code)
        self.d.sites[site].call = CALL_ENDS if returns else CALL_BEGINS

    def add_operation(self):
        """A function that is inline in its callers, whose calls are to be probed; its number."""
        self.unchanging()
        cdef Dispatch *d = &self.d
        if d.operation_count == MAX_OPERATIONS:
            raise ValueError(f"more than {MAX_OPERATIONS} operations")
        d.operations[d.operation_count] = Operation(NONE, NONE)
        d.operation_count += 1
        return d.operation_count - 1

    def add_operation_call(self, uint32_t operation, uint64_t address, bytes code, bint returned):
        """Where an operation is called, or has returned."""
        self.unchanging()
        if operation >= <uint32_t>self.d.operation_count:
            raise ValueError("no such operation")
        cdef uint32_t site = self._site(address, code)
        cdef uint32_t here = 2 * operation + returned + 1
        if self.d.sites[site].operation not in (0, here):
            raise ValueError("two operations are called there")
        self.d.sites[site].operation = here

    def set_operation(self, uint32_t operation, uint32_t probe, bint returned):
        """A static probe is that of an operation, before it or where it has returned."""
        self.unchanging()
        cdef Dispatch *d = &self.d
        if operation >= <uint32_t>d.operation_count or probe >= d.probe_count or (
                d.probes[probe].site != NONE):
            raise ValueError("no such operation, or no static probe")
        if returned:
            d.operations[operation].returns = probe
        else:
            d.operations[operation].entry = probe

    def add_call(self, int table, uint32_t index, bint returns, uint32_t probe, widths):
        """A static probe is that of a system call.

        :param widths: of its arguments, bits; negative: with a sign, 0: all as they are.
        """
        self.unchanging()
        cdef Dispatch *d = &self.d
        cdef CallTable *t
        if not 0 <= table < d.calls.table_count or index >= d.calls.tables[table].count or (
                probe >= d.probe_count or d.probes[probe].site != NONE):
            raise ValueError("no such table, no such system call in it, or no static probe")
        if len(widths) > CALL_ARGUMENTS or any(not -64 < bits < 64 for bits in widths):
            raise ValueError(f"a system call has at most {CALL_ARGUMENTS} arguments of 64 bits")
        t = &d.calls.tables[table]
        t.probes[2 * index + returns] = probe
        for k, bits in enumerate(widths):
            t.widths[CALL_ARGUMENTS * index + k] = bits

    def use_programs(self, *, uint64_t process, uint64_t number, uint64_t flags, uint32_t executed,
                     uint64_t name):
        """Where a thread has its process, and that its number, flags and name: offsets.

        :param executed: of the flags, says that it has executed a program since it was made.
        """
        self.unchanging()
        cdef Programs *p = &self.d.programs
        p.process, p.number, p.flags, p.executed, p.name = process, number, flags, executed, name

    def add_program(self, uint32_t process, bytes name, bint executed):
        """A process while it runs a program; its number, from 1.

        :param name: of the process, then.
        :param executed: only from when it has executed it; not where it was made as a copy.
        """
        self.unchanging()
        cdef Programs *p = &self.d.programs
        cdef Program *one
        if p.count == MAX_PROGRAMS:
            raise ValueError(f"at most {MAX_PROGRAMS} programs have probes at once")
        one = &p.all[p.count]
        memset(one, 0, sizeof(Program))
        one.process, one.executed = process, executed
        for i, byte in enumerate(name[: COMM - 1]):
            one.name[i] = byte
        p.count += 1
        return p.count

    def add_in_program(self, int program, uint64_t address, bytes code, uint32_t function, int kind):
        """A probe on an instruction of a program.

        :return: its number, or -1 when it is no instruction.
        """
        self.unchanging()
        cdef uint32_t length = 0
        cdef int32_t relative = 0
        cdef int64_t template = self.template_of(code, len(code), address, &length, &relative)
        if template < 0:
            return -1
        return probe_at(&self.d, site_in_program(&self.d, program, address, <uint32_t>template, code,
                                                 length, relative), function, kind)

    def fire_leaving(self, uint32_t probe, uint64_t address, uint64_t size):
        """A probe fires only where the guest then leaves the function, of ``size`` bytes."""
        self.unchanging()
        if probe >= self.d.probe_count or self.d.probes[probe].site == NONE:
            raise IndexError(probe)
        self.leaves_by(probe, self.d.sites[self.d.probes[probe].site].template)
        leaves_only(&self.d, probe, address, size)

    def fire_behind(self, uint32_t probe):
        """A probe at a jump fires when the function that is jumped to has returned."""
        self.unchanging()
        if probe >= self.d.probe_count or self.d.probes[probe].site == NONE:
            raise IndexError(probe)
        self.leaves_by(probe, self.d.sites[self.d.probes[probe].site].template)

    def leaves(self, uint32_t probe):
        """The function [begin, end) that a probe fires only on leaving; None: it fires always."""
        if probe >= self.d.probe_count:
            raise IndexError(probe)
        cdef Probe p = self.d.probes[probe]
        return (p.low, p.high) if p.high else None

    def add_all_in_program(self, int program, uint64_t address, bytes code, uint32_t function,
                           int kind):
        """Probes on all instructions of a program's function; their numbers."""
        self.unchanging()
        cdef Piece *pieces = NULL
        cdef uint64_t i, count
        cdef const uint8_t[::1] content = code
        made = []
        try:
            count = self.pieces(address, content, 0, len(code), &pieces, [])
            for i in range(count):
                made.append(probe_at(&self.d, site_in_program(
                    &self.d, program, address + pieces[i].at, pieces[i].template,
                    &content[pieces[i].at], pieces[i].length, pieces[i].relative), function, kind))
        finally:
            free(pieces)
        return made

    def program(self, uint32_t probe):
        """The number of the program that a probe is in; 0: the kernel."""
        if probe >= self.d.probe_count:
            raise IndexError(probe)
        if self.d.probes[probe].site == NONE or not in_program(&self.d.sites[self.d.probes[probe].site]):
            return 0
        return self.d.sites[self.d.probes[probe].site].address >> PROGRAM_SHIFT

    cdef int hook_programs(self) except -1:
        self.d.programs.turn = 0
        for begin, end in program_ranges(&self.d):
            self.program_hooks.append(self.engine.hook_range(
                begin, end, <void *>on_instruction, &self.d))
        if self.program_hooks:
            self.engine.flush_translations()
        return 0

    cdef int unhook_programs(self) except -1:
        while self.program_hooks:
            self.engine.unhook(self.program_hooks[len(self.program_hooks) - 1])
            self.program_hooks.pop()
        return 0

    cdef uint32_t _site(self, uint64_t address, bytes code) except? 0xFFFFFFFF:
        cdef uint32_t length = 0
        cdef int32_t relative = 0
        cdef int64_t template = self.template_of(code, len(code), address, &length, &relative)
        if template < 0 or self.templates.all[template].op == REFUSE:
            raise ValueError(f"{address:#x}: no instruction there can be displaced")
        return site_at(&self.d, address, <uint32_t>template, code, length, relative)

    def add_all(self, uint64_t address, const uint8_t[::1] code, uint64_t start, uint64_t size,
                uint32_t function, int provider):
        """Probes on all instructions of a function that are not refused.

        :param code: memory that holds the function at ``start``.
        :return: their numbers.
        """
        self.unchanging()
        cdef Piece *pieces = NULL
        cdef uint64_t i, count
        cdef bint exclusive = False
        cdef const Template *t
        made = []
        try:
            count = self.pieces(address, code, start, size, &pieces, [])
            for i in range(count):
                t = &self.templates.all[pieces[i].template]
                exclusive = exclusive or t.flags & STARTS_EXCLUSIVE
                if not exclusive and t.op != REFUSE:
                    made.append(probe_at(
                        &self.d,
                        site_at(&self.d, address + pieces[i].at, pieces[i].template,
                                &code[start + pieces[i].at], pieces[i].length,
                                pieces[i].relative),
                        function, provider))
                if t.flags & ENDS_EXCLUSIVE:
                    exclusive = False
        finally:
            free(pieces)
        return made

    def add_copy(self, list ranges):
        """An inline copy with its code in [low, high) of each range; its number."""
        self.unchanging()
        return add_copy(&self.d, ranges)

    def add_copy_ends(self, uint64_t address, const uint8_t[::1] code, uint64_t start,
                      uint64_t size, uint32_t function, int provider, copies, bint entry,
                      bint returns, padding, bint anywhere):
        """The probes of inline copies that have code in a function.

        :param copies: (number, offset of its begin or None where that is in another function,
            whether it is entered there alone).
        :param entry: whether the probes of entries are wanted, not silent; so ``returns``.
        :param padding: says of an instruction's bytes whether it only fills space.
        :param anywhere: whether other functions may jump to any place in this one.
        :return: for each copy a list of where it is entered, (offset, probe's number), and a list
            of the same for the instructions that may lead out of it.  In place of the number -1:
            there is no instruction, -2: it is refused, -3: it lies in an exclusive access.
        """
        self.unchanging()
        cdef Dispatch *d = &self.d
        cdef Piece *pieces = NULL
        cdef int64_t *ways = NULL
        cdef uint64_t i, count, at
        cdef bint exclusive = False
        cdef const Template *t
        cdef uint32_t copy
        cdef int role
        made, refused, where = [], {}, {}
        try:
            count = self.pieces(address, code, start, size, &pieces, [])
            for i in range(count):
                t = &self.templates.all[pieces[i].template]
                exclusive = exclusive or t.flags & STARTS_EXCLUSIVE
                if exclusive or t.op == REFUSE:
                    refused[i] = -3 if exclusive else -2
                if t.flags & ENDS_EXCLUSIVE:
                    exclusive = False
                where[pieces[i].at] = i
            offsets = sorted(where)
            ways = <int64_t *>calloc(2 * count + 1, sizeof(int64_t))
            if ways == NULL:
                raise MemoryError
            unseen = self.flow_of(address, code, start, pieces, count, where, padding, ways)
            for copy, first, alone in copies:
                if copy >= d.copy_count:
                    raise ValueError("no such copy")
                entered, left = [], []
                if first is None:
                    firsts = []
                elif alone:
                    firsts = [first]
                else:
                    firsts = (self.reached(copy, address, pieces, count, ways, unseen, anywhere)
                              or self.reached(copy, address, pieces, count, ways, unseen, True)
                              or [first])
                for one in firsts:
                    if one not in where:
                        entered.append((one, -1))
                    elif where[one] in refused:
                        entered.append((one, refused[where[one]]))
                    else:
                        entered.append((one, copy_probe(d, self.site_of(
                            address, code, start, &pieces[<uint64_t>where[one]]), function,
                            provider, copy, ENTERS, not entry)))
                for i in self.in_ranges(copy, address, offsets, where):
                    t = &self.templates.all[pieces[i].template]
                    at = address + pieces[i].at
                    role = way_out(d, copy, t, target_of(t, at, pieces[i].relative),
                                   at + pieces[i].length)
                    if role == NO_WAY_OUT:
                        continue
                    left.append((pieces[i].at, refused[i] if i in refused else copy_probe(
                        d, self.site_of(address, code, start, &pieces[i]), function, provider,
                        copy, role, not returns)))
                made.append((entered, left))
        finally:
            free(pieces)
            free(ways)
        return made

    def ways(self, uint64_t address, const uint8_t[::1] code, uint64_t start, uint64_t size):
        """Where control goes in a function: of each instruction (offset, length, numbers of the
        following one and of the one that it branches to, negative: of none; whether it calls)."""
        cdef Piece *pieces = NULL
        cdef int64_t *to = NULL
        cdef const Template *t
        cdef uint64_t i, count
        try:
            count = self.pieces(address, code, start, size, &pieces, [])
            to = <int64_t *>calloc(2 * count + 1, sizeof(int64_t))
            if to == NULL:
                raise MemoryError
            where = {pieces[i].at: i for i in range(count)}
            self.flow_of(address, code, start, pieces, count, where, lambda code: True, to)
            found = []
            for i in range(count):
                t = &self.templates.all[pieces[i].template]
                found.append((pieces[i].at, pieces[i].length, to[2 * i], to[2 * i + 1], t.op == CALL
                              or t.op == LINK and t.a != NO_REGISTER
                              or t.op == INDIRECT and t.truth != 0))
            return found
        finally:
            free(pieces)
            free(to)

    cdef list flow_of(self, uint64_t address, const uint8_t[::1] code, uint64_t start,
                      const Piece *pieces, uint64_t count, dict where, padding, int64_t *ways):
        """Where control goes from each instruction of a function: numbers of instructions, -1: not
        to one of them, -2: an address says where; of each the following one and the one that it
        branches to.

        :return: where control may come to by ways that are not seen: behind what control does not
            go on from, but for padding.
        """
        cdef uint64_t i, target, before_target = 0
        cdef bint falls
        cdef const Template *t
        cdef Template before
        memset(&before, 0, sizeof(Template))
        targets, behind, open_ = set(), [], False
        for i in range(count):
            t = &self.templates.all[pieces[i].template]
            target = target_of(t, address + pieces[i].at, pieces[i].relative)
            ways[2 * i] = ways[2 * i + 1] = -1
            falls = True
            if t.flags & RETURNS or t.op == RETURN:
                falls = False
            elif t.op == BRANCH_FLAGS or t.op == BRANCH_COMPARE or t.op == BRANCH_BIT or (
                    t.op == BRANCH_COUNT) or t.op == JUMP:
                falls = t.op != JUMP
                ways[2 * i + 1] = where.get(<uint64_t>(target - address), -1)
            elif t.op == LINK and t.a == NO_REGISTER:
                falls = False
                if t.b != NO_REGISTER and before.op == SET and before.a == t.b:
                    target = before_target + t.extra
                if t.b == NO_REGISTER or before.op == SET and before.a == t.b:
                    ways[2 * i + 1] = where.get(<uint64_t>(target & ~<uint64_t>1) - address, -1)
                else:
                    ways[2 * i + 1] = ELSEWHERE
            elif t.op == INDIRECT and not t.truth:
                falls = False
                ways[2 * i + 1] = ELSEWHERE
            if ways[2 * i + 1] >= 0:
                targets.add(ways[2 * i + 1])
            falls = falls and i + 1 < count and (
                pieces[i + 1].at == pieces[i].at + pieces[i].length)
            if falls:
                ways[2 * i] = i + 1
            if open_ and not padding(bytes(code[start + pieces[i].at :
                                                start + pieces[i].at + pieces[i].length])):
                behind.append(i)
                open_ = False
            open_ = open_ or not falls
            before = t[0]
            before_target = target
        return [one for one in behind if one not in targets]

    cdef list reached(self, uint32_t copy, uint64_t address, const Piece *pieces, uint64_t count,
                      const int64_t *ways, list unseen, bint anywhere):
        """Offsets of the instructions of a copy that control comes to first.

        :param unseen: as of ``flow_of``: control comes to these from a jump to an address outside of
            the copy, or, ``anywhere``, from other functions.
        """
        cdef uint8_t *seen = <uint8_t *>calloc(count + 1, 1)
        cdef uint64_t *waiting = <uint64_t *>malloc((count + 1) * sizeof(uint64_t))
        cdef uint64_t waits = 0
        cdef uint64_t i
        cdef int64_t k
        cdef int which
        found = []
        try:
            if seen == NULL or waiting == NULL:
                raise MemoryError
            if count:
                seen[0] = 1  # each instruction waits once
                waits = 1
                waiting[0] = 0
            while waits or anywhere:
                if anywhere:
                    anywhere = False
                    for k in unseen:
                        if 0 <= k < <int64_t>count and not seen[k]:
                            seen[k] = 1
                            waiting[waits] = <uint64_t>k
                            waits += 1
                    unseen = []
                    continue
                waits -= 1
                i = waiting[waits]
                if in_copy(&self.d, copy, address + pieces[i].at):
                    found.append(int(pieces[i].at))
                    continue
                for which in range(2):
                    k = ways[2 * i + which]
                    anywhere = anywhere or k == ELSEWHERE
                    if k >= 0 and not seen[k]:
                        seen[k] = 1
                        waiting[waits] = <uint64_t>k
                        waits += 1
        finally:
            free(seen)
            free(waiting)
        found.sort()
        return found

    cdef list in_ranges(self, uint32_t copy, uint64_t address, offsets, where):
        """The numbers of a function's instructions that lie in a copy."""
        cdef const InlineCopy *c = &self.d.copies[copy]
        cdef uint32_t k
        found = []
        for k in range(c.first, c.first + c.count):
            low, high = int(self.d.ranges[k].low) - address, int(self.d.ranges[k].high) - address
            found += [where[at] for at in offsets[bisect_left(offsets, low):
                                                  bisect_left(offsets, high)]]
        return found

    cdef uint32_t site_of(self, uint64_t address, const uint8_t[::1] code, uint64_t start,
                          const Piece *piece) except? 0xFFFFFFFF:
        return site_at(&self.d, address + piece.at, piece.template, &code[start + piece.at],
                       piece.length, piece.relative)

    def copy_of(self, uint32_t probe):
        """What a probe is to an inline copy: (the copy's number, 1: it is entered there, 2: control
        may leave it there, 3: there it calls a function that returns to the outside, whether the
        probe is silent); None: it is a probe of no copy."""
        if probe >= self.d.probe_count:
            raise IndexError(probe)
        cdef const Probe *p = &self.d.probes[probe]
        return (p.copy, p.role, bool(p.silent)) if p.role else None

    def lies_lower(self, uint32_t probe, int32_t lower):
        """How many bytes the stack pointer is lowered by at an entry of a copy that has several."""
        self.unchanging()
        if self.copy_of(probe) is None:
            raise ValueError(f"probe {probe} is of no inline copy")
        self.d.probes[probe].lower = lower

    def lowered_at(self, uint32_t probe):
        """What ``lies_lower`` was told of a probe; 0: nothing."""
        if probe >= self.d.probe_count:
            raise IndexError(probe)
        return self.d.probes[probe].lower

    def enter_copy(self, uint32_t probe):
        """Control is at the begin of a probe's inline copy; whether the probe is to fire."""
        self.live()
        if self.copy_of(probe) is None:
            raise ValueError(f"probe {probe} is of no inline copy")
        return bool(enter_copy(&self.d, self.d.probes[probe].copy, self.d.probes[probe].lower)
                    and not self.d.probes[probe].silent)

    def leave_copy(self, uint32_t probe):
        """Control has left a probe's inline copy; whether the probe is to fire."""
        self.live()
        if self.copy_of(probe) is None:
            raise ValueError(f"probe {probe} is of no inline copy")
        return bool(leave_copy(&self.d, self.d.probes[probe].copy)
                    and not self.d.probes[probe].silent)

    def ranges_of(self, uint32_t copy):
        """[low, high) of each piece of an inline copy."""
        if copy >= self.d.copy_count:
            raise IndexError(copy)
        cdef const InlineCopy *c = &self.d.copies[copy]
        return [(self.d.ranges[k].low, self.d.ranges[k].high)
                for k in range(c.first, c.first + c.count)]

    def forget_copy(self, probes):
        """The copy of some probes is not followed: its entry fires whenever control comes there, its
        ends never."""
        self.unchanging()
        cdef uint32_t i
        for i in probes:
            if i >= self.d.probe_count or not self.d.probes[i].role:
                raise ValueError(f"probe {i} is of no copy")
            if self.d.probes[i].role == ENTERS:
                self.d.probes[i].role = NO_WAY_OUT
            else:
                self.d.probes[i].silent = True

    def add_boundaries(self, uint64_t address, const uint8_t[::1] code, uint64_t start,
                       uint64_t size, uint32_t function, entry, returns, strays):
        """Probes where a function is entered and left.

        :param entry: their provider; None: none there.  So ``returns``.
        :param strays: says of an offset whether its jump leads where no function begins.
        :return: their numbers.
        """
        self.unchanging()
        first, left, _framed, leaving = self.boundaries(address, code, start, size)
        wanted = [(first, entry, False)] if entry is not None and first >= 0 else []
        if returns is not None:
            wanted += sorted([*((at, returns, False) for at in left if not strays(at)),
                              *((at, returns, True) for at in leaving if not strays(at))])
        cdef uint32_t length = 0
        cdef int32_t relative = 0
        cdef int64_t template
        cdef uint64_t at
        made = []
        for at, provider, decided in wanted:
            template = self.template_of(&code[start + at], <uint32_t>min(size - at, 15),
                                        address + at, &length, &relative)
            if template < 0:
                raise ValueError("a boundary is no instruction")
            made.append(probe_at(
                &self.d, site_at(&self.d, address + at, <uint32_t>template, &code[start + at],
                                 length, relative), function, provider))
            if provider == returns:
                self.leaves_by(<uint32_t>made[len(made) - 1], <uint32_t>template)
            if decided:
                leaves_only(&self.d, <uint32_t>made[len(made) - 1], address, size)
        return made

    cdef void leaves_by(self, uint32_t probe, uint32_t template):
        """A return is at an instruction that returns, or at a jump that is a tail call."""
        self.d.probes[probe].tail = not self.templates.all[template].flags & RETURNS

    def follow_threads(self, int per_cpu, uint64_t begins):
        """How to know threads, for returns by tail calls.

        :param per_cpu: Unicorn's number of the register that leads to the thread.
        :param begins: the address of a new thread's first instruction; 0: it is not known.
        """
        if not self.is_narrow(per_cpu):
            raise ValueError(f"register {per_cpu} has more than 64 bits")
        self.d.per_cpu, self.d.thread_begins = per_cpu, begins

    def is_tail(self, uint32_t probe):
        """Whether a probe fires only when the function that its instruction jumps to has returned."""
        if probe >= self.d.probe_count:
            raise IndexError(probe)
        return bool(self.d.probes[probe].tail)

    def leave_by_tail(self, uint32_t probe, uint64_t sp, uint64_t back):
        """Have such a probe fire when control is at ``back`` with the stack pointer ``sp``."""
        self.live()
        if not self.is_tail(probe) and self.d.probes[probe].role != CALLS_OUT:
            raise ValueError(f"probe {probe} fires where it is")
        cdef int why = note_tail(&self.d, probe, sp, back, 0, self.d.probes[probe].role == CALLS_OUT)
        if why:
            raise MachineError(why_not_noted(why))

    def pending_returns(self):
        """The probes that wait for a function to return: (thread, probe), the outermost of a thread first.

        A function that has left by a tail call has no frame on its thread's stack any more.
        """
        cdef uint64_t i
        cdef uint32_t k
        cdef list found = []
        cdef TailThread *t
        for i in range(self.d.tails.mask + 1 if self.d.tails.threads != NULL else 0):
            t = &self.d.tails.threads[i]
            for k in range(t.count if t.used else 0):
                found.append((thread_of(t.key), t.all[k].probe))
        return found

    def copies_entered(self):
        """The inline copies that threads are in: (thread, copy), the outermost of a thread first."""
        cdef uint64_t i
        cdef uint32_t k
        cdef list found = []
        cdef TailThread *t
        for i in range(self.d.tails.mask + 1 if self.d.tails.threads != NULL else 0):
            t = &self.d.tails.threads[i]
            for k in range(t.active_count if t.used else 0):
                found.append((thread_of(t.key), t.active[k].copy))
        return found

    @property
    def after(self):
        """Whether the function that fires has returned already, to its caller."""
        return bool(self.d.after)

    def remove(self, uint32_t probe):
        """Take a probe away; its breakpoint must not be in memory."""
        self.unchanging()
        cdef Dispatch *d = &self.d
        cdef uint32_t i
        cdef Site *s
        if probe >= d.probe_count:
            raise IndexError(probe)
        if d.probes[probe].removed:
            return
        if d.probes[probe].site == NONE or d.probes[probe].primary != probe:
            raise ValueError("static probes are taken away all together")
        if d.sites[d.probes[probe].site].patched:
            raise RuntimeError("its breakpoint is in memory: disable the probes first")
        d.probes[probe].removed = True
        s = &d.sites[d.probes[probe].site]
        if s.first == probe:
            s.first = d.probes[probe].next
            return
        i = s.first
        while i != NONE:
            if d.probes[i].next == probe:
                d.probes[i].next = d.probes[probe].next
                return
            i = d.probes[i].next

    def clear(self):
        """Take all probes away, and give their memory back."""
        self.unchanging()
        self.unpatched()
        cdef Dispatch *d = &self.d
        if d.site_room > 4096:
            free(d.sites)
            free(d.probes)
            free(d.hash)
            d.sites, d.probes, d.hash = NULL, NULL, NULL
            d.site_room = d.probe_room = 0
            d.hash_mask = 0
        elif d.hash != NULL:
            memset(d.hash, 0xFF, (d.hash_mask + 1) * sizeof(uint32_t))
        d.site_count = d.probe_count = 0
        d.programs.count = 0
        d.operation_count = d.pending_count = 0
        forget_left(&d.programs)
        forget_calls(d)
        forget_tails(d)
        d.copy_count = d.range_count = 0

    def __len__(self):
        return self.d.probe_count

    def probe(self, uint32_t number):
        """Address, code, function, provider, firings, and whether it was removed."""
        if number >= self.d.probe_count:
            raise IndexError(number)
        cdef Probe p = self.d.probes[number]
        if p.site == NONE:
            return 0, b"", p.function, p.provider, p.count, bool(p.removed)
        cdef Site *s = &self.d.sites[p.site]
        return place_of(s), bytes(s.code[:s.length]), p.function, p.provider, p.count, bool(p.removed)

    def template(self, uint64_t address):
        """The operation at a site: (op, trampoline's address or 0), or None."""
        cdef uint32_t i = find(&self.d, address)
        if i == NONE:
            return None
        cdef Site *s = &self.d.sites[i]
        return (self.templates.all[s.template].op,
                0 if s.slot == NONE else self.d.slot_base + <uint64_t>s.slot * SLOT)

    def __contains__(self, uint64_t address):
        """Whether one of our breakpoints is there, in code or in a trampoline."""
        cdef uint32_t i = find(&self.d, address)
        return i != NONE and self.d.sites[i].patched or find_second(&self.d, address) != NONE

    def displaced(self, uint64_t address):
        """The bytes a breakpoint stands over."""
        cdef uint32_t i = find(&self.d, address)
        if i == NONE:
            return b""
        return bytes(self.d.sites[i].code[:self.d.sites[i].length])

    def second(self, uint64_t address):
        """The address of the site whose trampoline's second breakpoint this is, or None."""
        cdef uint32_t i = find_second(&self.d, address)
        return None if i == NONE else self.d.sites[i].address

    def probes_at(self, uint64_t address):
        """The numbers of the probes at a site, in the order they fire."""
        cdef uint32_t i = find(&self.d, address)
        found = []
        if i != NONE:
            i = self.d.sites[i].first
            while i != NONE:
                found.append(self.d.probes[i].primary)
                i = self.d.probes[i].next
        return found

    # -- enabling -----------------------------------------------------------------------------

    def changed(self):
        """The address of a site whose code in memory is not what it was; None: there is none."""
        self.live()
        return find_changed(&self.d)

    def use_slots(self, uint64_t base, uint64_t physical, uint64_t size, uint64_t reserved,
                  bint threads):
        """Trampolines live at virtual ``base``; the first ``reserved`` slots are not ours."""
        self.unchanging()
        self.live()
        cdef Dispatch *d = &self.d
        cdef uint64_t count = size // SLOT
        if reserved > count or (threads and count - reserved < MAX_THREADS + 1) or (
                count >= NONE):
            raise ValueError("no such number of trampolines")
        self.unpatched()
        make_slots(&self.d, base, physical, size, reserved, threads)

    def slots_needed(self):
        """How many slots ``enable`` will take, beside the reserved ones."""
        cdef Dispatch *d = &self.d
        cdef uint32_t i
        cdef uint64_t n = MAX_THREADS + 1
        for i in range(d.site_count):
            n += taken(&d.sites[i]) and not emulated(
                &d.templates.all[d.sites[i].template])
        return n

    @property
    def slots_used(self):
        """Bits set in the map of slots."""
        cdef uint64_t i
        cdef uint64_t n = 0
        if self.d.slot_used != NULL:
            for i in range(self.d.slot_count):
                n += self.d.slot_used[i // 64] >> i % 64 & 1
        return n

    def enable(self):
        """Make trampolines, write breakpoints.  ``changed`` must have said that all is well."""
        self.unchanging()
        self.live()
        cdef bint one_by_one = self.d.site_count <= MANY
        patch_all(&self.d, one_by_one)
        if not one_by_one:
            self.engine.flush_translations()
        self.hook_programs()
        if has_tails(&self.d):
            forget_tails(&self.d)
            self.d.clock.arrived_data, self.d.clock.arrived = &self.d, on_arrived
            self.d.clock.called = on_called
            await_address(self.d.clock, self.d.thread_begins)

    def disable(self):
        """Write the original bytes back and free the trampolines."""
        self.unchanging()
        self.live()
        cdef bint one_by_one = self.d.site_count <= MANY
        if self.d.clock.arrived_data == <void *>&self.d:
            await_nothing(self.d.clock)
            self.d.clock.arrived_data = NULL
        try:
            self.unhook_programs()
        finally:
            unpatch_all(&self.d, one_by_one)
        if not one_by_one:
            self.engine.flush_translations()

    def listen(self, uint64_t seam, uint64_t scratch, uint64_t scratch_value,
               uint64_t trap_stack=0):
        """Answer breakpoints from now on.

        :param seam: where the guest's vectors lead to, on the guest path.
        :param trap_stack: the top of the stack that breakpoints come on; 0: the interrupted one.
        :param scratch: a word that the kernel's path writes, to be kept at ``scratch_value``.
        """
        self.unchanging()
        self.live()
        cdef Dispatch *d = &self.d
        if d.path != DIRECT or has_gate(d):
            self.engine._has_breakpoint()
        d.visiting = d.reached = NONE
        d.seam = seam
        d.scratch = scratch
        d.scratch_value = scratch_value
        d.trap_stack = trap_stack
        d.clock.trap_data = d
        d.clock.trap = on_trap
        if d.path != DIRECT and d.called:
            try:
                self.engine.hook_seam(seam, on_seam)
            except BaseException:
                d.clock.seam_call = NULL
                d.clock.trap = NULL
                d.clock.trap_data = NULL
                raise

    def deafen(self):
        """Answer none."""
        self.unchanging()
        self.live()
        self.engine.unhook_seam()
        self.d.clock.trap = NULL
        self.d.clock.trap_data = NULL

    # -- firings ------------------------------------------------------------------------------

    def record(self, how):
        """What a firing does: ``"count"`` only counts, ``"record"`` keeps a record, also where it
        is handled natively, ``"tell"`` calls ``fire(number, dispatcher)``."""
        self.unchanging()
        cdef Dispatch *d = &self.d
        free(d.records)
        d.records = NULL
        d.record_count = 0
        d.counting_only = how == "count"
        if how == "record":
            d.records = <Record *>malloc(RECORDS * sizeof(Record))
            if d.records == NULL:
                raise MemoryError

    cdef int drain(self) except -1:
        cdef uint32_t i
        cdef Record *r
        for i in range(self.d.record_count):
            r = &self.d.records[i]
            self.drained.append((r.probe, r.cpu, r.time, r.time + r.skew,
                                 r.arguments[0], r.arguments[1], r.arguments[2], r.arguments[3],
                                 r.arguments[4]))
        self.d.record_count = 0
        return 0

    cdef void spill(self):
        self.d.firing = True
        try:
            self.drain()
            if self.sink is not None:
                self.sink()
        except BaseException as error:
            self.d.record_count = 0
            self.d.stop = True
            self.engine.failed(error)
        self.d.firing = False

    def records(self):
        """The records since the last time: (probe, number of the CPU, instructions executed,
        virtual time, five arguments)."""
        self.drain()
        found = self.drained
        self.drained = []
        return found

    def tell_also(self, uint32_t probe):
        """Tell Python of a probe's firings also where they are handled natively."""
        if probe >= self.d.probe_count:
            raise ValueError("there is no such probe")
        self.d.probes[probe].told = True

    def act_by(self, action, failure):
        """Let firings be handled natively.

        :param action: a capsule, "kinst.action"; None: no more.
        :param failure: gives the exception of an action that failed.
        """
        cdef Action *given
        self.unchanging()
        if action is None:
            self.d.action.run = NULL
        else:
            given = <Action *>PyCapsule_GetPointer(action, "kinst.action")
            self.d.action = given[0]
        self.action, self.failure = action, failure

    cdef void acted(self):
        self.d.stop = True
        try:
            self.engine.failed(self.failure())
        except BaseException as error:
            self.engine.failed(error)

    cdef void told(self, uint32_t probe):
        self.d.firing = True
        try:
            self.fire(probe)
        except BaseException as error:
            self.d.stop = True
            self.engine.failed(error)
        self.d.firing = False

    cdef int unchanging(self) except -1:
        """Tables and memory stay as they are while a firing uses them."""
        if self.d.firing:
            raise RuntimeError("probes cannot be changed while one fires")
        return 0

    cdef int live(self) except -1:
        if self.d.clock == NULL:
            raise RuntimeError("this dispatcher has no machine: it only reads code")
        return 0

    cdef int unpatched(self) except -1:
        cdef uint32_t i
        for i in range(self.d.site_count):
            if self.d.sites[i].patched:
                raise RuntimeError("breakpoints are in memory: disable the probes first")
        if self.program_hooks:
            raise RuntimeError("probes in programs are enabled: disable the probes first")
        return 0

    cdef void stuck(self, uint64_t pc):
        """A breakpoint on the way of a breakpoint."""
        try:
            self.recursion(pc)
        except BaseException as error:
            self.engine.failed(error)

    @property
    def firings(self):
        return self.d.firings

    @property
    def made(self):
        """In a static probe's firing, or a system call's: its arguments, eight numbers."""
        if not self.d.firing or not self.d.making:
            raise RuntimeError("no static probe fires")
        return tuple(self.d.made[k] for k in range(DECLARED_ARGUMENTS))

    cdef int in_firing(self, int register) except -1:
        self.live()
        if not 0 <= register < self.d.count:
            raise IndexError(f"there is no register {register}")
        if self.d.wide[register]:
            raise ValueError(f"register {register} has more than 64 bits: it is read and set "
                             "through the machine")
        if not self.d.firing:
            raise RuntimeError("no probe fires: there is no interrupted code")
        return 0

    def get(self, int register):
        """A register of the interrupted code, in a firing, by its place in the shape."""
        self.in_firing(register)
        return get(&self.d, <uint8_t>register)

    def set(self, int register, uint64_t value):
        self.in_firing(register)
        if self.d.framed and self.d.place[register] < 0:
            raise ValueError(f"register {register} is not in the trap frame")
        put(&self.d, <uint8_t>register, value)
