# cython: language_level=3, boundscheck=True, cdivision=True
"""Listener for single instructions: the registers they change and the memory they access.

Probe code, during which virtual time stands still, is left out.

The changes made by an instruction are detected when the next one begins.  The beginning of an
instruction that the CPU model leaves to its host during translation (a clock read on riscv64) is
not detected: when the next instruction begins, it is reported with the address 0, after the
changes made by both.  An instruction before which the run stopped is reported again when the run
continues, with the same instruction count.
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
    STEP_INSTRUCTION = 0  # a = address, b = number of instructions executed before this one
    STEP_REGISTER = 1  # what = index of the register, a = value set by the previous instruction
    STEP_STORE = 2  # what = size, a = physical address, b = value that the last instruction stored
    STEP_LOAD = 3  # what = size in bytes, a = physical address

cpdef enum StepLimit:
    MAX_STEP_REGISTERS = 64

cdef enum:
    STEP_ENTRIES = 1 << 16
    MAX_UNSEEN = 16  # maximum number of consecutive instructions that no hook saw


cdef struct StepEntry:
    uint32_t kind
    uint32_t what
    uint64_t a
    uint64_t b


cdef struct StepState:
    Clock *clock
    void *steps
    uint64_t begun  # instruction count before this block
    uint64_t index  # index of the instruction in its block
    uint64_t next  # instruction count before the expected next instruction
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
    """Report instructions that no hook saw, unless the machine's state was changed in between."""
    if now - s.next < MAX_UNSEEN:
        while s.next < now:
            step_put(s, STEP_INSTRUCTION, 0, 0, s.next)
            s.next += 1
    s.next = now


cdef void step_block(void *uc, uint64_t address, uint32_t size, void *data) noexcept nogil:
    """Handle a block start; ``block_hook`` has already counted the previous block."""
    cdef StepState *s = <StepState *>data
    s.begun, s.index = s.clock.instructions, 0


cdef void step_code(void *uc, uint64_t address, uint32_t size, void *data) noexcept nogil:
    """Report an instruction that is about to be executed, and what the previous one changed."""
    cdef StepState *s = <StepState *>data
    if s.clock.frozen:
        return
    step_changes(s, True)
    step_unseen(s, s.begun + s.index)
    step_put(s, STEP_INSTRUCTION, 0, address, s.begun + s.index)
    s.index += 1
    s.next = s.begun + s.index


cdef void step_exchange(void *data, bint after) noexcept nogil:
    """Avoid reporting another CPU's registers as changes when it is loaded into the engine."""
    step_changes(<StepState *>data, not after)


cdef void step_access(void *uc, int kind, uint64_t address, int size, int64_t value, void *data
                     ) noexcept nogil:
    cdef StepState *s = <StepState *>data
    if not s.clock.frozen:
        step_put(s, STEP_STORE if kind == UC_MEM_WRITE else STEP_LOAD, <uint32_t>size, address,
                 <uint64_t>value)


@cython.no_gc_clear
cdef class Steps:
    """Listener that reports every executed instruction until ``close`` is called.

    An entry is u32 kind (StepKind), u32 what, u64 a, u64 b in the host's byte order
    (little-endian).

    :param sink: called now and then with the bytes of several entries.
    :param registers: Unicorn's numbers of the registers to observe (at most 64).
    :param loads: whether to report loads, too.
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
            raise RuntimeError("this Steps object is already initialized")
        engine._still()
        numbers = list(registers)
        if len(numbers) > MAX_STEP_REGISTERS:
            raise ValueError(f"{len(numbers)} registers to observe: at most {MAX_STEP_REGISTERS}")
        for i in range(<int>len(numbers)):
            engine.read(numbers[i])  # raises an error if the register does not exist
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
            raise RuntimeError("another listener already observes instructions of this engine")
        self.open = True
        engine.clock.observed += 1
        engine.clock.exchanging, engine.clock.exchanging_data = step_exchange, self.s
        for i in range(3):
            engine._ok("observe instructions", engine.hook_add(
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
        """Pass the entries up to the current position to the sink; the machine must be stopped."""
        if self.engine is None:
            raise RuntimeError("this Steps object was not initialized")
        self.engine._still()
        step_changes(self.s, True)
        step_unseen(self.s, self.engine.clock.instructions)
        self.give()

    def close(self):
        """Stop observing and pass the remaining entries to the sink; the machine must not run."""
        cdef int i
        if self.open:
            self.flush()
            self.open = False
            self.engine.clock.observed -= 1
            self.engine.clock.exchanging = NULL
            for i in range(3):
                self.engine.unhook(self.hooks[i])

    def __dealloc__(self):
        cdef int i
        if self.open:  # the hooks point to this object, which is about to be freed
            self.engine.clock.observed -= 1
            for i in range(3):
                self.engine.clock.exchanging = NULL
                if self.hooks[i]:
                    self.engine.hook_del(self.engine.uc, self.hooks[i])
        free(self.s)
