# cython: language_level=3, boundscheck=True, cdivision=True
"""Native executor of a D program's BPF code, and the memory that the code accesses.

Each address is looked up in a table of regions before it is used, so a program that was not
verified can spoil only its own results. ``dtrace/bpf/interpreter.py`` is the same executor in
Python, on the same ``Runtime``.

This file defines ``Runtime``, the interface for Python. The files included below belong to the same
module, so that the C compiler can optimize a whole firing at once.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from cpython.pycapsule cimport PyCapsule_New

from emu.unicorn._engine cimport Clock, Engine, guest_read, register_read
from kinst.probes._action cimport (
    AFTER,
    DECLARED,
    DECLARED_ARGUMENTS,
    REGISTER,
    RESULT,
    Action,
    argument_fn,
)

from dtrace.bpf import layout
from dtrace.bpf.encoding import (
    HELPER,
    LOCAL,
    REGION,
    SIZE,
    STACK,
    WIDE,
    Alu,
    Class,
    BpfJump,
    Mode,
    Size,
    X,
    decode,
)
from dtrace.bpf.layout import Aggregate, Fault, Helper, Policy, Region, StepKind

include "_machine.pxi"
include "_instructions.pxi"
include "_memory.pxi"
include "_variables.pxi"
include "_aggregations.pxi"
include "_records.pxi"
include "_stacks.pxi"
include "_probes.pxi"
include "_execute.pxi"


class RuntimeFault(Exception):
    """Exception that ends a clause; host helpers may raise this exception.

    :param fault: a ``Fault``.
    :param value: the faulting address, if the fault has one.
    """

    def __init__(self, fault, value=0):
        super().__init__(fault, value)
        self.fault, self.value = fault, value


cdef uint64_t word(object value):
    return <uint64_t>(int(value) & 0xFFFFFFFFFFFFFFFF)


cdef class Runtime:
    """Executor of a D program, with the program's memory, variables, aggregations and buffers.

    :param sizes: the sizes of the regions in bytes, by ``Region``.
    :param constants: the content of ``Region.STRINGS``.
    :param variables: (size, type, thread-local, key size) of each variable that has a key, in
        bytes; the type is 0 for a number, 1 for a string, 2 for other bytes.
    :param dynamic: bytes for the values and keys of these variables.
    :param functions: (``Aggregate``, number of values, parameters) of each aggregation, and
        optionally the size of an entry as DTrace counts it.
    :param aggregation_size: bytes for the keys and values of all aggregations.
    :param buffer_size: bytes for records.
    :param policy: a ``Policy``.
    :param speculations: the number of speculations, and bytes for the records of each.
    :param string_size: the maximum length of a string in bytes; one of this length has no NUL.
    :param helpers: the host's helpers by number, called with r1 to r5.
    """

    cdef Machine m
    cdef bint begun
    cdef object helpers
    cdef public object faults
    cdef public object actions  # callback that returns (action, storing) for a faulting instruction
    cdef public object failure  # exception from a Python callback, other than a RuntimeFault
    cdef Engine engine  # keeps the engine alive, because the runtime uses its clock
    cdef object other  # a guest that runs in another process
    cdef object host_steps  # callback that returns the step from an address to its caller
    cdef object host_numbers  # callback that returns the ID of a process name
    cdef dict walked  # maps the name of a register to its index in the walk
    cdef Action action
    cdef public object look  # callback that consumes the buffers; its argument is the time

    def __cinit__(self):
        memset(&self.m, 0, sizeof(Machine))
        self.m.fault = -1
        self.m.error_entry = NONE
        for number in range(PLACES):
            self.m.place[number] = -1
        self.m.walker.pc = -1

    def __dealloc__(self):
        cdef int i
        cdef uint32_t n
        for i in range(MAX_REGIONS):
            free(self.m.region[i].data)
            free(self.m.region[i].end)
        free(self.m.code)
        free(self.m.variable)
        free(self.m.chunk)
        free(self.m.bucket)
        free(self.m.function)
        free(self.m.entry)
        free(self.m.entry_bucket)
        free(self.m.arena)
        free(self.m.buffer)
        free(self.m.compared[0])
        free(self.m.compared[1])
        free(self.m.entered)
        if self.m.speculated != NULL:
            for n in range(self.m.speculation_count):
                free(self.m.speculated[n].data)
        free(self.m.speculated)
        free(self.m.walker.step)

    def __init__(self, sizes, bytes constants, variables, uint64_t dynamic, functions,
                 uint64_t aggregation_size, uint64_t buffer_size, int policy, speculations,
                 uint64_t string_size, helpers):
        cdef Machine *m = &self.m
        cdef uint64_t key
        if self.begun:
            raise RuntimeError("Runtime.__init__() may be called only once")
        self.begun = True
        self.helpers = helpers
        self.faults = None
        self.actions = None
        sizes = {Region(region): size for region, size in dict(sizes).items()}
        sizes[Region.STACK] = FRAMES * FRAME_BYTES
        sizes[Region.CONTEXT] = 256
        sizes[Region.STRINGS] = len(constants)
        sizes[Region.STATE] = 64
        if not 1 < string_size <= TEXT:
            raise ValueError("the string size must be 2 to 65536 bytes")
        for n in range(2):
            m.compared[n] = <uint8_t *>malloc(string_size + 1)
            if m.compared[n] == NULL:
                raise MemoryError
        m.string_size = string_size
        make_variables(m, variables, dynamic, sizes)
        make_regions(m, sizes, constants)
        make_functions(m, functions)
        m.arena_size = aggregation_size
        if buffer_size > 1 << 31:
            raise ValueError("the buffer size must be at most 2 GiB")
        m.buffer_room = 4 * buffer_size + (1 << 20)
        m.buffer = <uint8_t *>malloc(m.buffer_room)
        if m.buffer == NULL:
            raise MemoryError
        m.buffer_size, m.policy = buffer_size, policy
        count, size = speculations
        if not 0 <= count <= MAX_SPECULATIONS:
            raise ValueError("the number of speculations must be 0 to 4096")
        m.speculated = <Speculated *>calloc(max(count, 1), sizeof(Speculated))
        if m.speculated == NULL:
            raise MemoryError
        m.speculation_count, m.speculation_size = count, size
        m.speculation_room = 4 * <uint64_t>size + (1 << 12)
        m.owner = <void *>self  # set last: initialization is complete

    cdef int made(self) except -1:
        """Check that ``__init__`` was called, since Python can create an object without it."""
        if self.m.owner == NULL:
            raise RuntimeError("Runtime.__init__() was not called")
        return 0

    def divide(self, region, variables):
        """Divide a region into variables, which accesses by pointers must not leave.

        :param variables: (offset, size in bytes) of each variable; offsets are multiples of 8.
        :raises ValueError: for another region than ``GLOBALS`` or ``LOCALS``, if it is divided
            already, or if a variable is not inside.
        """
        self.made()
        if region not in (Region.GLOBALS, Region.LOCALS):
            raise ValueError(f"region {region}: only GLOBALS and LOCALS have variables")
        divide_region(&self.m, region, list(variables))

    # -- programs ---------------------------------------------------------------------------------

    def load(self, bytes code):
        """Load a program and return the number of its first instruction.

        The verifier should have checked the program.

        :raises EncodingError: if an instruction is not valid.
        :raises ValueError: if a jump leads out of the program, or a helper's number is too large.
        """
        self.made()
        cdef Machine *m = &self.m
        cdef Code *c
        instructions = decode(code)
        first = m.code_count
        if first + len(instructions) + 1 > m.code_room:
            room = max(2 * m.code_room, first + len(instructions) + 1)
            more = realloc(m.code, room * sizeof(Code))
            if more == NULL:
                raise MemoryError
            m.code = <Code *>more
            m.code_room = room
        translate(m, first, instructions)
        m.code_count = first + len(instructions) + 1
        return first

    def run(self, uint32_t entry, uint64_t argument=0):
        """Execute a program and return the final value of r0.

        :raises Exception: an exception other than RuntimeFault that a host helper raised.
        """
        cdef uint64_t value
        self.made()
        if entry >= self.m.code_count:
            raise ValueError("the entry is outside the loaded programs")
        with nogil:
            value = execute(&self.m, entry, argument)
        if self.failure is not None:
            raise self.take_failure()
        return value

    def fire(self, uint32_t entry):
        """Execute a probe's program on the current context."""
        self.made()
        self.m.serial += 2
        if self.m.clock != NULL or self.other is not None:
            self.m.thread_known = False
        return self.run(entry, address_of(R_CONTEXT, 0))

    cdef uint64_t host(self, uint64_t number, uint64_t *r) noexcept:
        try:
            helper = self.helpers.get(number)
            if helper is None:
                return bad(&self.m, ILLEGAL_OPERATION, 0)
            return word(helper(r[1], r[2], r[3], r[4], r[5]))
        except RuntimeFault as fault:
            return bad(&self.m, fault.fault, word(fault.value))
        except BaseException as failure:  # ``run`` raises it once the native code has returned
            self.failed(failure)
            return bad(&self.m, 0, 0)

    cdef int64_t action_at(self, uint32_t at) noexcept:
        """Return ``2 * number + storing`` for an instruction, with the result of ``actions``.

        ``number`` is the action's number; ``storing`` is 1 if the instruction stores its value.
        """
        try:
            if self.actions is not None:
                number, storing = self.actions(at)
                return 2 * number + storing
        except BaseException as failure:
            self.failed(failure)
        return 0

    cdef int noted(self, uint64_t clause, int fault, uint64_t value) noexcept:
        if self.m.failing:
            return 0  # the exception in ``failure`` ends the run
        try:
            if self.faults is not None:
                self.faults(clause, fault, value, self.m.fault_at)
        except BaseException as failure:  # ``run`` raises it once the native code has returned
            self.failed(failure)
        return 0

    def call(self, uint32_t number, *arguments):
        """Call a helper function for the reference interpreter (``interpreter.py``).

        :raises RuntimeFault: if the helper ends the clause.
        """
        self.made()
        cdef uint64_t r[6]
        cdef uint64_t value
        memset(r, 0, sizeof(r))
        for n, argument in enumerate(arguments[:5]):
            r[n + 1] = word(argument)
        if number >= MAX_HELPER:
            raise RuntimeFault(ILLEGAL_OPERATION)
        if HELPERS[number] != NULL:
            value = HELPERS[number](&self.m, r)
        else:
            value = self.host(number, r)
        if self.failure is not None:
            raise self.take_failure()
        self.check()
        return value

    cdef int check(self) except -1:
        if self.m.fault >= 0:
            fault, self.m.fault = self.m.fault, -1
            raise RuntimeFault(fault, self.m.fault_value)
        return 0

    def begin_clause(self):
        """Reset the state of a clause; the reference interpreter calls this before each clause."""
        self.m.scratch_at = 0
        self.m.record_open = False
        self.m.speculating = 0

    # -- memory -----------------------------------------------------------------------------------

    def read(self, uint64_t address, uint64_t size, bint last=False):
        """Read memory of the executor or the guest.

        :param last: whether the fault reports the last unreadable address instead of the first.
        :raises RuntimeFault: if an address is not mapped.
        """
        self.made()
        if size > 1 << 26:
            raise RuntimeFault(BAD_ADDRESS, address)
        cdef bytearray out = bytearray(size)
        cdef uint8_t[::1] view
        cdef uint64_t n = 0
        cdef uint64_t part
        if size:
            view = out
            if own(address):
                fetch(&self.m, address, &view[0], size)
            else:
                while n < size and self.m.fault < 0:
                    part = min(size - n, PAGE - ((address + n) & (PAGE - 1)))
                    fetch(&self.m, address + n, &view[n], part)
                    n += part
                if last and self.m.fault == BAD_ADDRESS:
                    self.m.fault_value = last_unreadable(&self.m, address, size)
        self.check()
        return bytes(out)

    def write(self, uint64_t address, bytes content):
        """Write to the executor's memory.

        :raises RuntimeFault: if the program may not write there.
        """
        self.made()
        cdef uint8_t *data = resolve(&self.m, address, len(content), True)
        if data == NULL:
            raise RuntimeFault(BAD_ADDRESS, address)
        memcpy(data, <const char *>content, len(content))

    def text(self, uint64_t address, limit=None):
        """Read a string, without its NUL.

        :param limit: the maximum length in bytes (default: the program's string size).
        :raises RuntimeFault: if an address is not mapped.
        """
        self.made()
        cdef uint64_t most = self.m.string_size if limit is None else min(limit, TEXT)
        cdef bytearray out = bytearray(most + 1)
        cdef uint8_t[::1] view = out
        cdef int64_t n = text(&self.m, address, &view[0], most)
        self.check()
        return bytes(out[:n])

    def allocate(self, uint64_t size):
        """Allocate scratch memory and return its address.

        :raises RuntimeFault: if no scratch memory is left.
        """
        self.made()
        cdef uint64_t r[6]
        r[1] = size
        address = h_allocate(&self.m, r)
        self.check()
        return address

    def allocated(self, uint64_t address, uint64_t size):
        """Whether [address, address + size) is scratch memory that this clause allocated."""
        self.made()
        return bool(allocated(&self.m, address, size))

    def keep(self, bytes content):
        """Copy a string to scratch memory, truncated to the string size, and return its address."""
        content = content[: self.m.string_size]
        address = self.allocate(len(content) + 1)
        self.write(address, content + b"\0")
        return address

    # -- kernel ------------------------------------------------------------------------------------

    def attach(self, Engine engine, int per_cpu, uint32_t probes):
        """Attach the runtime to a guest's memory, current thread and probes.

        :param per_cpu: the engine's number of the register that points to the per-CPU data.
        :param probes: the maximum number of kernel probes.
        """
        self.made()
        cdef Machine *m = &self.m
        if self.engine is not None or self.other is not None:
            raise RuntimeError("the runtime is already attached to a guest")
        engine.read(per_cpu)
        self.room_for(probes)
        self.engine = engine
        m.clock = &engine.clock
        m.per_cpu = per_cpu
        m.read = read_clock
        m.read_data = <void *>m.clock

    def number_threads(self, uint64_t number, uint64_t process, uint64_t process_number):
        """Set the offsets of the members that identify a thread: thread ID, process and process ID.

        Both IDs have 32 bits; they become part of the keys of thread-local variables.
        """
        self.m.number_at, self.m.process_at, self.m.process_number_at = (
            number, process, process_number)
        self.m.numbered = True

    def attach_other(self, other, uint32_t probes):
        """Attach the runtime to a guest in another process; call ``fire_other`` at each firing.

        :param other: an object with these members: ``memory(address, size)`` returns bytes, or None
            if the address is not mapped; ``thread`` is the address of the current thread;
            ``interrupted(number)`` returns an argument (from 0), the return value
            (``OTHER_RESULT``), whether the function has returned (``OTHER_AFTER``), or a register
            (``OTHER_REGISTER`` plus its index).
        :param probes: the maximum number of kernel probes.
        """
        self.made()
        if self.engine is not None or self.other is not None:
            raise RuntimeError("the runtime is already attached to a guest")
        self.room_for(probes)
        self.other = other
        self.m.read = read_other
        self.m.read_data = <void *>self

    def fire_other(self, uint32_t probe, uint64_t time):
        """Run the program of a probe that fires in a guest in another process.

        :param time: virtual time in nanoseconds.
        :raises BaseException: an exception that ``other`` or a host helper raised.
        """
        self.made()
        if self.other is None:
            raise RuntimeError("fire_other() needs a guest attached by attach_other()")
        if on_firing(<void *>&self.m, probe, register_of_other, <void *>self, time):
            raise self.take_failure()

    cdef room_for(self, uint32_t probes):
        cdef Machine *m = &self.m
        m.entered = <Entered *>calloc(max(probes, 1), sizeof(Entered))
        if m.entered == NULL:
            raise MemoryError
        m.entered_count = probes

    def add_probe(self, uint32_t probe, uint32_t entry, uint64_t number, uint64_t first, texts,
                  int kind, uint32_t offset, uint32_t wanted):
        """Set the program of a kernel probe.

        :param texts: the addresses of its provider, module, function and name, and its ID.
        :param kind: 0 if the arguments are in registers, 1 at a return, 2 if they are unknown, 3
            for the declared arguments of a static probe or system call.
        :param offset: the offset in its function, for a return.
        :param wanted: the number of leading arguments that its program reads.
        """
        cdef Entered *e = enable(&self.m, probe, entry, number, first, kind, wanted)
        e.offset = offset
        for n in range(4):
            e.text[n] = constant(texts[n])
        e.text[4] = texts[4]

    def add_probes(self, const uint32_t[::1] numbers, uint32_t base, uint32_t entry, uint64_t first,
                   uint32_t clauses, texts, const uint64_t[::1] names, int kind, uint32_t wanted):
        """Set the program of many kernel probes in one function.

        :param numbers: their IDs; ``base`` is the ID of the kernel's first probe.
        :param first: number of the first clause of the first one.
        :param clauses: number of clauses of each.
        :param texts: the addresses of their provider, module and function.
        :param names: the addresses of their names.
        """
        cdef Entered *e
        cdef Py_ssize_t i
        cdef uint32_t of_all[3]
        for n in range(3):
            of_all[n] = constant(texts[n])
        if names.shape[0] != numbers.shape[0]:
            raise ValueError("each probe needs a name")
        for i in range(numbers.shape[0]):
            if numbers[i] < base:
                raise ValueError("the probe's number or its program's entry is out of range")
            e = enable(&self.m, numbers[i] - base, entry, numbers[i],
                       first + <uint64_t>i * clauses, kind, wanted)
            e.offset = 0
            memcpy(e.text, of_all, sizeof(of_all))
            e.text[3] = constant(names[i])
            e.text[4] = numbers[i]

    def set_variable(self, uint32_t number, offsets, uint32_t size, bint text_):
        """Set how a D variable is read from guest memory, starting at the current thread.

        :param offsets: the last one leads to the variable, the others to pointers; without any,
            the value is the thread's address.
        :param size: the size of a number in bytes.
        :param text_: whether the variable is a string.
        """
        cdef Walk *w
        if number >= WALKS or len(offsets) > WALK or size > 8:
            raise ValueError("the variable's number, size or number of offsets is out of range")
        w = &self.m.walk[number]
        w.known, w.text, w.size, w.steps = True, text_, size, len(offsets)
        for n, offset in enumerate(offsets):
            w.offset[n] = offset

    def walk_stacks(self, shape, steps):
        """Enable native walks of kernel stacks; their results are the same as those of the host.

        :param shape: a ``StackShape``.
        :param steps: called with a code address and whether it is a return address; returns
            ``StepKind``, ``FrameStep`` or None, and whether a call is before the address.
        """
        self.made()
        cdef Walker *w = &self.m.walker
        places = dict(shape.registers)
        if self.engine is None or not 0 < len(places) <= WALKED:
            raise ValueError("walking stacks needs an engine and 1 to 40 registers")
        self.walked = {name: n for n, name in enumerate(places)}
        for name, n in self.walked.items():
            if not 0 <= places[name] < 256:
                raise ValueError("a register's index is out of range")
            w.place[n] = <int16_t>places[name]
        self.host_steps = steps
        if w.step == NULL:
            w.step = <KnownStep *>calloc(STEPS, sizeof(KnownStep))
            if w.step == NULL:
                raise MemoryError
        if len(shape.trap) > WALKED:
            raise ValueError("a trap frame may save at most 40 registers")
        for n, row in enumerate(shape.trap):
            self.saved_at(row, &w.trap[n])
        w.trap_count = len(shape.trap)
        w.low, w.high, w.entry = shape.low, shape.high, shape.entry
        w.programs = shape.programs
        w.marks, w.own_mark, w.caller_mark = shape.marks
        w.stackdepth, w.caller = shape.stackdepth, shape.caller
        w.ustackdepth, w.ucaller = shape.ustackdepth, shape.ucaller
        w.sp = self.walked[shape.sp]
        w.pc = self.walked[shape.pc]

    def walk_programs(self, shape, numbers):
        """Enable native walks of user stacks; call ``walk_stacks`` first.

        :param shape: a ``ProgramShape``.
        :param numbers: returns the number of the running process; called with its name (bytes).
        """
        cdef Walker *w = &self.m.walker
        if not shape.name_variable < WALKS or not self.m.walk[shape.name_variable].known or not (
                0 < shape.name_size <= NAME_BYTES):
            raise ValueError("the process name's variable is not set, or its size is not 1 to 32")
        for index, (offset, size) in shape.registers.items():
            if not 0 <= index < PLACES:
                raise ValueError("a register's index is out of range")
            self.memory_at(offset, size, &w.user[index])
        if len(shape.signal) > WALKED:
            raise ValueError("a signal frame may save at most 40 registers")
        for n, row in enumerate(shape.signal):
            self.saved_at(row, &w.signal[n])
        w.signal_count = len(shape.signal)
        for n in range(w.trap_count):
            w.entered[w.trap[n].register] = w.trap[n]
        w.frame = self.walked[shape.frame]
        w.record_saved, w.record_return = shape.record
        w.thread_frame = shape.thread_frame
        w.name_variable, w.name_size = shape.name_variable, shape.name_size
        w.spaces_known = shape.space is not None
        if shape.space is not None:
            (w.space_process, w.space_number, w.space, w.changes, w.map_lock,
             w.map_shared) = shape.space
        self.host_numbers = numbers
        w.frames_known = True

    def know_family(self, uint64_t process, uint64_t number, uint64_t parent):
        """Set the offsets of the members that link threads to processes and their ancestors.

        The members hold a thread's process, a process's 32-bit ID and a process's parent.
        """
        cdef Walker *w = &self.m.walker
        w.process, w.process_number, w.parent = process, number, parent
        w.family_known = True

    cdef int memory_at(self, offset, size, SavedRegister *to) except -1:
        if not 0 < size <= 8 or not -1 << 31 <= offset < 1 << 31:
            raise ValueError("a saved register's offset or size is out of range")
        to.offset, to.size = offset, size
        return 0

    cdef int saved_at(self, row, SavedRegister *to) except -1:
        name, offset, size = row
        self.memory_at(offset, size, to)
        to.register = <uint8_t>self.walked[name]
        return 0

    cdef bint find_step(self, uint64_t pc, bint is_return, KnownStep *to) except -1:
        """Ask the host for the step to the caller; return False if the step cannot be cached."""
        cdef int n
        kind, step, to.called = self.host_steps(pc, is_return)
        to.how, to.link, to.base = kind, -1, self.m.walker.sp
        if kind == 0:
            return False
        if kind == STEP_SIGNAL:
            if not -1 << 31 <= step.offset < 1 << 31:
                return False
            to.offset = step.offset
        if kind != STEP_ON and kind != STEP_GUESS:
            return True
        if len(step.saved) > SAVED or not -1 << 31 <= step.offset < 1 << 31:
            return False
        to.offset, to.floor, to.above = step.offset, step.floor, step.above
        to.base = <uint8_t>self.walked[step.base]
        if step.link:
            to.link = <int8_t>self.walked[step.link]
        for n, row in enumerate(step.saved):
            if not -1 << 31 <= row[1] < 1 << 31:
                return False
            self.saved_at(row, &to.saved[n])
        to.count = len(step.saved)
        return True

    def set_register(self, uint32_t number, int place):
        """Set the index of ``regs[number]`` among the dispatcher's registers."""
        if number >= PLACES or not 0 <= place < 256:
            raise ValueError("a register's index is out of range")
        self.m.place[number] = <int16_t>place

    def firing_action(self):
        """Return the capsule of the callback that a dispatcher calls at each firing."""
        self.made()
        self.action.run = on_firing
        self.action.data = <void *>&self.m
        return PyCapsule_New(<void *>&self.action, "kinst.action", NULL)

    def take_failure(self):
        """Return and clear the exception that ended the run."""
        failure, self.failure = self.failure, None
        self.m.failing = False
        return failure if failure is not None else RuntimeError("an action failed")

    def look_at(self, uint64_t time):
        """Set the time of the next ``look`` callback in nanoseconds."""
        self.m.look = time

    @property
    def look_time(self):
        """Time of the next ``look`` callback in nanoseconds."""
        return self.m.look

    cdef int look_now(self, uint64_t time) noexcept:
        try:
            if self.look is not None:
                self.look(time)
            else:
                self.m.look = ~<uint64_t>0
        except BaseException as failure:  # the dispatcher sees the failure and ends the run
            self.failed(failure)
        return 0

    cdef int failed(self, failure) noexcept:
        self.failure = failure
        self.m.stopped = True
        self.m.failing = True
        return 0

    @property
    def firing(self):
        """Whether a kernel probe is firing."""
        return self.m.read_register != NULL

    @property
    def probe(self):
        """ID of the probe that is firing."""
        self.made()
        return (<uint64_t *>self.m.region[R_CONTEXT].data)[CONTEXT_PROBE / 8]

    @property
    def serial(self):
        """Serial number of the current firing; odd for a firing of the ERROR probe."""
        return self.m.serial

    @property
    def string_size(self):
        """Maximum length of a string in bytes."""
        return self.m.string_size

    @property
    def stopped(self):
        """Whether tracing was stopped."""
        return bool(self.m.stopped)

    @property
    def thread(self):
        """Address of the current thread in the guest."""
        return current_thread(&self.m)

    @thread.setter
    def thread(self, uint64_t value):
        self.m.thread, self.m.thread_known = value, True

    @property
    def in_tracer(self):
        """Whether the firing probe has the thread-local variables of the tracer's own thread."""
        return bool(self.m.in_tracer)

    @in_tracer.setter
    def in_tracer(self, bint value):
        self.m.in_tracer = value

    def set_error(self, uint32_t entry):
        """Set the program of the ERROR probe, and save the current context for that probe."""
        self.made()
        if entry >= self.m.code_count:
            raise ValueError("the entry is outside the loaded programs")
        self.m.error_entry = entry
        memcpy(self.m.error_context, self.m.region[R_CONTEXT].data, CONTEXT_SIZE)

    def set_context(self, int offset, uint64_t value):
        """Set the 8-byte field at an offset of the context."""
        if not 0 <= offset <= CONTEXT_SIZE - 8 or self.m.owner == NULL:
            raise ValueError("the offset is outside the context")
        memcpy(self.m.region[R_CONTEXT].data + offset, &value, 8)

    # -- results ----------------------------------------------------------------------------------

    def records(self):
        """Return all records as (clause, CPU, payload, time), oldest first, and remove them."""
        self.made()
        return take_records(&self.m)

    def take_drops(self):
        """Return and reset the drop counters.

        In this order: records, dynamic variables, aggregations, records of speculations,
        unavailable speculations, faults within the ERROR probe.
        """
        cdef Machine *m = &self.m
        found = (m.drops, m.dynamic_drops, m.aggregation_drops, m.speculation_drops,
                 m.speculation_unavailable, m.error_faults)
        m.error_faults = 0
        m.drops = m.dynamic_drops = m.aggregation_drops = 0
        m.speculation_drops = m.speculation_unavailable = 0
        return found

    @property
    def cpu(self):
        """ID of the current CPU, or 0 if the runtime is not attached to a machine."""
        return 0 if self.m.clock == NULL else self.m.clock.cpu

    def aggregated(self):
        """Return all aggregations as (number, key, values) in order of use, and clear them."""
        self.made()
        return take_aggregations(&self.m)


memset(HELPERS, 0, sizeof(HELPERS))
HELPERS[<int>Helper.LOAD] = h_load
HELPERS[<int>Helper.STORE] = h_store
HELPERS[<int>Helper.COPY] = h_copy
HELPERS[<int>Helper.BCOPY] = h_bcopy
HELPERS[<int>Helper.COPY_TEXT] = h_copy_text
HELPERS[<int>Helper.KEY_TEXT] = h_key_text
HELPERS[<int>Helper.COMPARE_TEXT] = h_compare_text
HELPERS[<int>Helper.FIND] = h_find
HELPERS[<int>Helper.ASSIGN] = h_assign
HELPERS[<int>Helper.RECORD] = h_record
HELPERS[<int>Helper.COMMIT] = h_commit
HELPERS[<int>Helper.AGGREGATE] = h_aggregate
HELPERS[<int>Helper.FAULT] = h_fault
HELPERS[<int>Helper.SPECULATE] = h_speculate
HELPERS[<int>Helper.SPECULATION] = h_speculation
HELPERS[<int>Helper.COMMIT_SPECULATION] = h_commit_speculation
HELPERS[<int>Helper.DISCARD_SPECULATION] = h_discard_speculation
HELPERS[<int>Helper.ALLOCATE] = h_allocate
HELPERS[<int>Helper.STOP] = h_stop
HELPERS[<int>Helper.VARIABLE] = h_variable
HELPERS[<int>Helper.STACK] = h_stack
HELPERS[<int>Helper.PROGENYOF] = h_progenyof
OTHER_RESULT, OTHER_AFTER, OTHER_REGISTER = RESULT, AFTER, REGISTER  # see ``attach_other``
NATIVE = frozenset(n for n in range(MAX_HELPER) if HELPERS[n] != NULL)
