# cython: language_level=3, boundscheck=True, cdivision=True
"""What single instructions do: the registers they change, the memory they write.  What happens while
time stands still (probe code) is none of it.

What an instruction changed is seen when the next one begins.  One that the CPU model leaves to its
host as it translates it (a clock is read, riscv64) is not seen to begin: it is told with the address
0 when the next one begins, behind what both have changed.  One that was about to be executed
when the run was stopped is told again, with the same count of instructions before it.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize

from emu.unicorn._engine cimport (
    HOOK_BLOCK,
    HOOK_CODE,
    HOOK_MEM_READ,
    HOOK_MEM_WRITE,
    UC_MEM_WRITE,
    Clock,
    Engine,
)

cpdef enum StepKind:
    STEP_INSTRUCTION = 0  # a: its address; b: instructions before it
    STEP_REGISTER = 1  # what: number in the list; a: its value; of the instruction before
    STEP_STORE = 2  # what: bytes; a: physical address; b: value; of the instruction before
    STEP_LOAD = 3  # what: bytes; a: physical address

cpdef enum StepLimit:
    MAX_STEP_REGISTERS = 64

cdef enum:
    STEP_ENTRIES = 1 << 16
    MAX_UNSEEN = 16  # instructions one behind the other


cdef struct StepEntry:
    uint32_t kind
    uint32_t what
    uint64_t a
    uint64_t b


cdef struct StepState:
    Clock *clock
    void *steps
    uint64_t begun  # instructions before this block
    uint64_t index  # of the instruction in it
    uint64_t next  # instructions before the one that is expected
    int count
    int registers[MAX_STEP_REGISTERS]
    uint64_t values[MAX_STEP_REGISTERS]
    uint64_t used
    StepEntry entries[STEP_ENTRIES]


cdef void step_put(StepState *s, uint32_t kind, uint32_t what, uint64_t a, uint64_t b) noexcept nogil:
    cdef StepEntry *entry = &s.entries[s.used]
    entry.kind, entry.what, entry.a, entry.b = kind, what, a, b
    s.used += 1
    if s.used == STEP_ENTRIES:
        step_give(s.steps)


cdef void step_give(void *steps) noexcept with gil:
    cdef Steps it = <Steps>steps
    try:
        it.give()
    except BaseException as error:
        it.engine.failed(error)


cdef void step_changes(StepState *s, bint say) noexcept nogil:
    cdef int i
    cdef uint64_t value
    for i in range(s.count):
        value = 0
        s.clock.reg_read(s.clock.uc, s.registers[i], &value)
        if value != s.values[i]:
            s.values[i] = value
            if say:
                step_put(s, STEP_REGISTER, <uint32_t>i, value, 0)


cdef void step_unseen(StepState *s, uint64_t now) noexcept nogil:
    """Tell those that were not seen to begin; the machine may also have gone elsewhere."""
    if now - s.next < MAX_UNSEEN:
        while s.next < now:
            step_put(s, STEP_INSTRUCTION, 0, 0, s.next)
            s.next += 1
    s.next = now


cdef void step_block(void *uc, uint64_t address, uint32_t size, void *data) noexcept nogil:
    """A block begins; ``block_hook`` has counted the one before it."""
    cdef StepState *s = <StepState *>data
    s.begun, s.index = s.clock.instructions, 0


cdef void step_code(void *uc, uint64_t address, uint32_t size, void *data) noexcept nogil:
    """An instruction is about to be executed."""
    cdef StepState *s = <StepState *>data
    if s.clock.frozen:
        return
    step_changes(s, True)
    step_unseen(s, s.begun + s.index)
    step_put(s, STEP_INSTRUCTION, 0, address, s.begun + s.index)
    s.index += 1
    s.next = s.begun + s.index


cdef void step_exchange(void *data, bint after) noexcept nogil:
    """What is another CPU's register is no change."""
    step_changes(<StepState *>data, not after)


cdef void step_access(void *uc, int kind, uint64_t address, int size, int64_t value, void *data
                     ) noexcept nogil:
    cdef StepState *s = <StepState *>data
    if not s.clock.frozen:
        step_put(s, STEP_STORE if kind == UC_MEM_WRITE else STEP_LOAD, <uint32_t>size, address,
                 <uint64_t>value)


@cython.no_gc_clear
cdef class Steps:
    """Looks at every instruction from now on, until it is closed.

    :param sink: is given bytes now and then: entries of u32 kind (StepKind), u32 what, u64 a, u64 b,
        in the host's order (little-endian).
    :param registers: Unicorn's numbers of those that are looked at, at most 64.
    :param loads: whether loads are told, too.
    """

    cdef Engine engine
    cdef StepState *s
    cdef object sink
    cdef size_t hooks[3]
    cdef bint open

    def __cinit__(self):
        self.s = <StepState *>calloc(1, sizeof(StepState))
        if self.s == NULL:
            raise MemoryError

    def __init__(self, Engine engine not None, sink, registers, bint loads=False):
        cdef int i
        if self.engine is not None:
            raise RuntimeError("steps are looked at once")
        engine._still()
        numbers = list(registers)
        if len(numbers) > MAX_STEP_REGISTERS:
            raise ValueError("too many registers")
        for i in range(<int>len(numbers)):
            engine.read(numbers[i])  # or it is none
            self.s.registers[i] = numbers[i]
        self.s.count = <int>len(numbers)
        self.s.clock = &engine.clock
        self.s.steps = <void *>self
        self.s.begun = self.s.next = engine.clock.instructions
        self.engine, self.sink = engine, sink
        step_changes(self.s, False)
        kinds = (HOOK_BLOCK, HOOK_CODE, HOOK_MEM_WRITE | (HOOK_MEM_READ if loads else 0))
        cdef void *calls[3]
        calls[0], calls[1], calls[2] = <void *>step_block, <void *>step_code, <void *>step_access
        if engine.clock.exchanging != NULL:
            raise RuntimeError("somebody looks at steps already")
        self.open = True
        engine.clock.exchanging, engine.clock.exchanging_data = step_exchange, self.s
        for i in range(3):
            engine._ok("look at steps", engine.hook_add(
                engine.uc, &self.hooks[i], kinds[i], calls[i], self.s, <uint64_t>1, <uint64_t>0))
        engine.flush_translations()

    cdef int give(self) except -1:
        cdef uint64_t used = self.s.used
        self.s.used = 0
        if used:
            self.sink(PyBytes_FromStringAndSize(<char *>self.s.entries,
                                                used * sizeof(StepEntry)))
        return 0

    def flush(self):
        """Give away what there is, up to where the machine stands still."""
        if self.engine is None:
            raise RuntimeError("steps that are not looked at")
        self.engine._still()
        step_changes(self.s, True)
        step_unseen(self.s, self.engine.clock.instructions)
        self.give()

    def close(self):
        """Look no longer, and give away what there is; the machine stands still."""
        cdef int i
        if self.open:
            self.flush()
            self.open = False
            self.engine.clock.exchanging = NULL
            for i in range(3):
                self.engine.unhook(self.hooks[i])

    def __dealloc__(self):
        cdef int i
        if self.open:  # its hooks lead here: the engine must not run again
            for i in range(3):
                self.engine.clock.exchanging = NULL
                if self.hooks[i]:
                    self.engine.hook_del(self.engine.uc, self.hooks[i])
        free(self.s)
