# cython: language_level=3, boundscheck=True, cdivision=True
"""The native executor of a D program's BPF code, and the memory it works on.

Every address is looked up in a table of regions before it is used, so a program that was not
verified can spoil its own results, nothing else.  ``dtrace/bpf/interpreter.py`` is the twin in
Python; it works on the same ``Runtime``.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from cpython.pycapsule cimport PyCapsule_New

from emu.unicorn._engine cimport Clock, Engine, guest_read, register_read
from kinst._action cimport REGISTER, RESULT, Action, argument_fn

from dtrace.bpf import layout
from dtrace.bpf.encoding import (
    HELPER, LOCAL, REGION, SIZE, STACK, WIDE, Alu, Class, Jump, Mode, Size, X, decode,
)
from dtrace.bpf.layout import Aggregate, Fault, Helper, Policy, Region

cdef enum:
    MAX_REGIONS = 16
    MAX_DEPTH = 8
    FRAMES = 17  # of two runs, one inside the other (ERROR), and one spare
    MAX_HELPER = 256
    TEXT = 1 << 16  # bytes of a string that is looked at
    PARAMETERS = 4
    PAGE = 4096
    MAX_SPECULATIONS = 4096
    WALK = 4  # steps from the thread to a variable
    WALKS = 64
    PLACES = 64
    BUDGET = 1 << 24  # instructions of one run, by what jumps back and calls can repeat
    HEAD = 24  # of a record: clause and size, time, size as DTrace counts

# How instructions are told apart here; which opcode is which is said by a table below.
cdef enum:
    O_BAD, O_ADD, O_SUB, O_MUL, O_DIV, O_OR, O_AND, O_LSH, O_RSH, O_NEG, O_MOD, O_XOR, O_MOV, O_ARSH
    O_SDIV, O_SMOD, O_MOVS8, O_MOVS16, O_MOVS32
    O_ADD32, O_SUB32, O_MUL32, O_DIV32, O_OR32, O_AND32, O_LSH32, O_RSH32, O_NEG32, O_MOD32, O_XOR32
    O_MOV32, O_ARSH32, O_SDIV32, O_SMOD32, O_MOVS8_32, O_MOVS16_32
    O_SWAP16, O_SWAP32, O_SWAP64, O_LOW16, O_LOW32, O_LOW64
    O_JA, O_JEQ, O_JGT, O_JGE, O_JSET, O_JNE, O_JSGT, O_JSGE, O_JLT, O_JLE, O_JSLT, O_JSLE
    O_JEQ32, O_JGT32, O_JGE32, O_JSET32, O_JNE32, O_JSGT32, O_JSGE32, O_JLT32, O_JLE32, O_JSLT32
    O_JSLE32, O_CALL, O_LOCAL, O_EXIT, O_END
    O_LD1, O_LD2, O_LD4, O_LD8, O_LDS1, O_LDS2, O_LDS4, O_ST1, O_ST2, O_ST4, O_ST8
    O_WIDE

cdef struct Code:
    uint8_t op
    uint8_t to
    uint8_t source
    bint immediate
    int32_t jump  # the number of the instruction that it leads to
    int64_t offset
    uint64_t value

cdef struct RegionData:
    uint8_t *data
    uint64_t size
    bint writable

cdef struct Variable:
    uint32_t size
    uint8_t text  # 0: a number, 1: a string, 2: bytes
    bint thread

cdef struct Function:
    int kind
    uint32_t count
    int64_t parameter[PARAMETERS]

# A value of an associative array: in a chunk of the dynamic region, the key before it.
cdef struct Chunk:
    uint64_t hash
    uint32_t next
    uint32_t variable
    uint32_t key_size
    bint used

cdef struct Entry:
    uint64_t hash
    uint32_t next
    uint32_t function
    uint32_t key_size
    uint64_t at  # in the arena: values, then the key

# A variable that lies in the guest: a walk from the thread on, by offsets.
cdef struct Walk:
    bint known
    bint text  # the last offset leads to a string, not to a number
    uint32_t size  # of the number
    uint32_t steps
    uint64_t offset[WALK]

# What the program of a kernel's probe is given, beside its arguments.
cdef struct Entered:
    bint enabled
    uint8_t kind
    uint8_t wanted  # arguments that its program reads, from the first
    uint32_t entry
    uint64_t number
    uint64_t first
    uint64_t offset
    uint64_t text[4]

cdef struct Speculated:
    uint8_t *data
    uint64_t used
    uint64_t counted
    int state

ctypedef bint (*read_fn)(void *, uint64_t, void *, uint32_t) noexcept nogil

cdef struct Machine:
    RegionData region[MAX_REGIONS]
    Code *code
    uint32_t code_count
    uint32_t code_room
    int depth
    # the fault in progress
    int fault
    uint64_t fault_value
    uint32_t fault_at
    uint32_t error_entry
    bint in_error
    uint8_t error_context[256]
    uint64_t error_faults
    # the guest
    read_fn read
    void *read_data
    uint64_t thread
    bint thread_known  # it is looked up once a firing
    argument_fn read_register  # in a firing; NULL: none is
    void *interrupted
    int16_t place[PLACES]  # of regs[n] among the registers; -1: the host is asked
    # scratch
    uint64_t scratch_at
    uint64_t string_size
    uint8_t *compared[2]  # room for two strings
    # dynamic variables
    Variable *variable
    uint32_t variable_count
    Chunk *chunk
    uint32_t chunk_count
    uint32_t chunk_size
    uint32_t chunk_free
    uint32_t *bucket
    uint32_t bucket_count
    uint64_t dynamic_drops
    # aggregations
    Function *function
    uint32_t function_count
    Entry *entry
    uint32_t entry_count
    uint32_t entry_room
    uint32_t *entry_bucket
    uint32_t entry_buckets
    uint8_t *arena
    uint64_t arena_used
    uint64_t arena_size
    uint64_t arena_room
    uint64_t aggregation_drops
    # records
    uint8_t *buffer
    uint64_t buffer_size
    uint64_t buffer_used
    uint64_t buffer_room  # what was allocated; a record takes more here than DTrace counts
    uint64_t counted
    uint64_t buffer_begin  # of a ring: the oldest record
    uint64_t buffer_end  # of a ring: behind the last record before the wrap
    bint wrapped
    int policy
    uint64_t drops
    uint64_t record_clause
    uint64_t record_size
    uint64_t record_counted
    bint record_open
    bint filled
    # speculations
    Speculated *speculated
    uint32_t speculation_count
    uint64_t speculation_size
    uint64_t speculation_room
    uint64_t speculation_drops
    uint64_t speculation_unavailable
    uint64_t speculating
    bint stopped
    bint told  # that tracing has ended
    # a kernel's probes
    Clock *clock
    Entered *entered
    uint32_t entered_count
    int per_cpu
    uint64_t look  # the time at which the consumer wants to look
    bint failing
    Walk walk[WALKS]
    void *owner

ctypedef uint64_t (*helper_fn)(Machine *, uint64_t *) noexcept nogil

cdef helper_fn HELPERS[MAX_HELPER]
cdef uint64_t BASE = layout.BASE >> layout.REGION_SHIFT

cdef uint64_t LAST_FAULT = max(Fault)
cdef int BAD_ADDRESS = Fault.BAD_ADDRESS
cdef int ILLEGAL_OPERATION = Fault.ILLEGAL_OPERATION
cdef int NO_SCRATCH = Fault.NO_SCRATCH
cdef int TUPLE_OVERFLOW = Fault.TUPLE_OVERFLOW
cdef int R_STACK = Region.STACK
cdef int R_CONTEXT = Region.CONTEXT
cdef int R_RECORD = Region.RECORD
cdef int R_SCRATCH = Region.SCRATCH
cdef int R_DYNAMIC = Region.DYNAMIC
cdef int R_STATE = Region.STATE
cdef int CONTEXT_SIZE = layout.Context.END
cdef int CONTEXT_TIMESTAMP = layout.Context.TIMESTAMP
cdef int CONTEXT_CLAUSE = layout.Context.CLAUSE
cdef int CONTEXT_ARGUMENTS = layout.Context.ARGUMENTS
cdef int CONTEXT_FIRST = layout.Context.FIRST
cdef int CONTEXT_PROVIDER = layout.Context.PROVIDER
cdef int VARIABLE = Helper.VARIABLE
cdef uint64_t REGS = layout.REGS
cdef int CONTEXT_PROBE = layout.Context.PROBE
cdef int FRAME_BYTES = STACK

cdef int A_COUNT = Aggregate.COUNT
cdef int A_SUM = Aggregate.SUM
cdef int A_MIN = Aggregate.MIN
cdef int A_MAX = Aggregate.MAX
cdef int A_AVG = Aggregate.AVG
cdef int A_STDDEV = Aggregate.STDDEV
cdef int A_QUANTIZE = Aggregate.QUANTIZE
cdef int A_LQUANTIZE = Aggregate.LQUANTIZE
cdef int A_LLQUANTIZE = Aggregate.LLQUANTIZE
cdef int ZERO_BUCKET = layout.QUANTIZE_ZERO
cdef int P_FILL = Policy.FILL
cdef int P_RING = Policy.RING

cdef uint32_t NONE = 0xFFFFFFFF
cdef uint64_t LOW32 = 0xFFFFFFFF


# -- memory ----------------------------------------------------------------------------------------

cdef inline uint64_t address_of(int region, uint64_t offset) noexcept nogil:
    return (BASE | <uint64_t>region) << 32 | offset


cdef inline uint8_t *resolve(Machine *m, uint64_t address, uint64_t size, bint write) noexcept nogil:
    """Memory of the executor's own; NULL where there is none."""
    cdef uint64_t number = (address >> 32) - BASE
    cdef uint64_t offset = address & LOW32
    cdef RegionData *r
    if number >= MAX_REGIONS:
        return NULL
    r = &m.region[number]
    if offset > r.size or size > r.size - offset or write and not r.writable:
        return NULL
    return r.data + offset


cdef inline bint own(uint64_t address) noexcept nogil:
    return (address >> 32) - BASE < MAX_REGIONS


cdef inline uint64_t bad(Machine *m, int fault, uint64_t value) noexcept nogil:
    if m.fault < 0:
        m.fault = fault
        m.fault_value = value
    return 0


cdef bint fetch(Machine *m, uint64_t address, void *to, uint64_t size) noexcept nogil:
    """Read bytes of the executor's memory or the guest's; false, with a fault: there are none."""
    cdef uint8_t *data
    cdef bint read = False
    if own(address):
        data = resolve(m, address, size, False)
        if data != NULL:
            memmove(to, data, size)
            return True
    elif m.read != NULL and size <= TEXT:
        read = m.read(m.read_data, address, to, <uint32_t>size)
        if read:
            return True
    bad(m, BAD_ADDRESS, address)
    return False


cdef int64_t text(Machine *m, uint64_t address, uint8_t *to, uint64_t limit) noexcept nogil:
    """Copy a string of at most ``limit`` bytes, without its NUL; its length, -1 with a fault."""
    cdef uint64_t n = 0
    cdef uint64_t part, i
    cdef uint8_t *data
    cdef RegionData *r
    if own(address):
        data = resolve(m, address, 0, False)
        if data != NULL:
            r = &m.region[(address >> 32) - BASE]
            part = r.size - (address & LOW32)
            while n < limit and n < part and data[n] != 0:
                to[n] = data[n]
                n += 1
            return <int64_t>n
        bad(m, BAD_ADDRESS, address)
        return -1
    while n < limit:
        part = PAGE - ((address + n) & (PAGE - 1))
        if part > limit - n:
            part = limit - n
        if part > 64:
            part = 64
        if not fetch(m, address + n, to + n, part):
            m.fault_value = address
            return -1
        for i in range(part):
            if to[n + i] == 0:
                return <int64_t>(n + i)
        n += part
    return <int64_t>n


cdef inline bint inside(Machine *m, uint64_t address, uint64_t size) noexcept nogil:
    """Whether what lies among the dynamic variables lies in one of them."""
    cdef uint64_t offset = address & LOW32
    cdef uint64_t c
    if (address >> 32) - BASE != <uint64_t>R_DYNAMIC or m.chunk_size == 0:
        return True
    c = offset / m.chunk_size
    return (c < m.chunk_count and m.chunk[c].used and
            offset % m.chunk_size + size <= m.variable[m.chunk[c].variable].size)


cdef uint64_t h_load(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint64_t value = 0
    cdef uint8_t *data
    if r[2] > 8:
        return bad(m, ILLEGAL_OPERATION, 0)
    if not inside(m, r[1], r[2]):
        return bad(m, BAD_ADDRESS, r[1])
    data = resolve(m, r[1], r[2], False)
    if data != NULL:
        memcpy(&value, data, r[2])
    else:
        fetch(m, r[1], &value, r[2])
    return value


cdef uint64_t h_store(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint8_t *data
    if r[2] > 8:
        return bad(m, ILLEGAL_OPERATION, 0)
    data = resolve(m, r[1], r[2], True)
    if data == NULL or not inside(m, r[1], r[2]):
        return bad(m, BAD_ADDRESS, r[1])
    memcpy(data, &r[3], r[2])
    return 0


cdef uint64_t h_copy(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint64_t n = 0
    cdef uint64_t part
    cdef uint8_t *data = resolve(m, r[1], r[3], True)
    if data == NULL:
        return bad(m, BAD_ADDRESS, r[1])
    if (r[1] >> 32) - BASE == <uint64_t>R_SCRATCH and (r[1] & LOW32) + r[3] > m.scratch_at:
        return bad(m, BAD_ADDRESS, r[1])  # it was not allocated
    if own(r[2]):
        fetch(m, r[2], data, r[3])
        return 0
    while n < r[3]:
        part = PAGE - ((r[2] + n) & (PAGE - 1))
        if part > r[3] - n:
            part = r[3] - n
        if not fetch(m, r[2] + n, data + n, part):
            return 0
        n += part
    return 0


cdef uint64_t h_copy_text(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint8_t *data = resolve(m, r[1], r[3], True)
    cdef uint8_t held[4096]
    cdef int64_t n
    if data == NULL or r[3] == 0:
        return bad(m, BAD_ADDRESS, r[1])
    if r[3] <= sizeof(held):  # what is written may be what is read
        n = text(m, r[2], held, r[3])
        if n < 0:
            return 0
        memcpy(data, held, n)
    else:
        n = text(m, r[2], data, r[3])
        if n < 0:
            return 0
    memset(data + n, 0, r[3] - n)
    return 0


cdef uint64_t h_key_text(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint64_t room
    cdef uint8_t *data = resolve(m, r[1], 8 + ((m.string_size + 7) & ~<uint64_t>7), True)
    cdef int64_t n
    if data == NULL:
        return bad(m, TUPLE_OVERFLOW, 0)
    n = text(m, r[2], data + 8, m.string_size)
    if n < 0:
        return r[1]
    memcpy(data, &n, 8)
    room = (<uint64_t>n + 7) & ~<uint64_t>7
    memset(data + 8 + n, 0, room - n)
    return r[1] + 8 + room


cdef uint64_t h_compare_text(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint8_t *a = m.compared[0]
    cdef uint8_t *b = m.compared[1]
    cdef uint64_t limit = m.string_size
    cdef int64_t n = text(m, r[1], a, limit) if r[1] else 0  # no string is an empty one
    cdef int64_t k
    cdef int order
    if n < 0:
        return 0
    k = text(m, r[2], b, limit) if r[2] else 0
    if k < 0:
        return 0
    a[n] = 0
    b[k] = 0
    order = memcmp(a, b, min(n, k) + 1)
    return <uint64_t>(<int64_t>((order > 0) - (order < 0)))


# -- variables that are found by a key ----------------------------------------------------------------

cdef inline uint64_t hashed(const uint8_t *data, uint64_t size, uint64_t seed) noexcept nogil:
    cdef uint64_t h = seed * <uint64_t>0x9E3779B97F4A7C15 + size
    cdef uint64_t word
    cdef uint64_t i = 0
    while i + 8 <= size:
        memcpy(&word, data + i, 8)
        h = (h ^ word) * <uint64_t>0xFF51AFD7ED558CCD
        h ^= h >> 32
        i += 8
    if i < size:
        word = 0
        memcpy(&word, data + i, size - i)
        h = (h ^ word) * <uint64_t>0xFF51AFD7ED558CCD
        h ^= h >> 32
    return h


cdef inline uint8_t *value_of(Machine *m, uint32_t chunk) noexcept nogil:
    """The value of a chunk; its key lies behind it."""
    return m.region[R_DYNAMIC].data + <uint64_t>chunk * m.chunk_size


cdef uint32_t find_chunk(Machine *m, uint64_t variable, const uint8_t *key, uint64_t size,
                         uint64_t h) noexcept nogil:
    cdef uint32_t c
    cdef Chunk *x
    if m.bucket_count == 0:
        return NONE
    c = m.bucket[h & (m.bucket_count - 1)]
    while c != NONE:
        x = &m.chunk[c]
        if (x.hash == h and x.variable == variable and x.key_size == size
                and (size == 0
                     or memcmp(value_of(m, c) + m.variable[variable].size, key, size) == 0)):
            return c
        c = x.next
    return NONE


cdef uint64_t current_thread(Machine *m) noexcept nogil:
    """``struct thread *`` of the guest's CPU: the first word of its per-CPU data; 0 for none."""
    if not m.thread_known:
        m.thread = 0
        if m.clock == NULL or not guest_read(
                m.clock, register_read(m.clock, m.per_cpu), &m.thread, 8):
            m.thread = 0
        m.thread_known = True
    return m.thread


cdef bint key_at(Machine *m, uint64_t *r, uint8_t *held, const uint8_t **key,
                 uint64_t *size) noexcept nogil:
    """The key of a call; a thread-local variable's has the thread before it."""
    cdef uint8_t *data = NULL
    cdef uint64_t thread
    if r[1] >= m.variable_count:
        bad(m, ILLEGAL_OPERATION, 0)
        return False
    if r[3]:
        data = resolve(m, r[2], r[3], False)
        if data == NULL or r[3] > TEXT:
            bad(m, TUPLE_OVERFLOW, 0)
            return False
    key[0] = data
    size[0] = r[3]
    if m.variable[r[1]].thread:
        if r[3] > 4096:
            bad(m, TUPLE_OVERFLOW, 0)
            return False
        thread = current_thread(m)
        memcpy(held, &thread, 8)
        if r[3]:
            memcpy(held + 8, data, r[3])
        key[0] = held
        size[0] = r[3] + 8
    return True


cdef uint64_t h_find(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint8_t held[4104]
    cdef const uint8_t *key
    cdef uint64_t size
    cdef uint32_t c
    if not key_at(m, r, held, &key, &size):
        return 0
    c = find_chunk(m, r[1], key, size, hashed(key, size, r[1]))
    return 0 if c == NONE else address_of(R_DYNAMIC, <uint64_t>c * m.chunk_size)


cdef void drop_chunk(Machine *m, uint32_t c) noexcept nogil:
    cdef uint32_t *link = &m.bucket[m.chunk[c].hash & (m.bucket_count - 1)]
    while link[0] != c:
        link = &m.chunk[link[0]].next
    link[0] = m.chunk[c].next
    m.chunk[c].used = False
    m.chunk[c].next = m.chunk_free
    m.chunk_free = c


cdef uint64_t h_assign(Machine *m, uint64_t *r) noexcept nogil:
    """Zero, or no string, gives the place back."""
    cdef uint8_t held[4104]
    cdef const uint8_t *key
    cdef uint64_t size, h
    cdef uint64_t again[6]
    cdef uint32_t c
    cdef Chunk *x
    cdef Variable *v
    if not key_at(m, r, held, &key, &size):
        return 0
    v = &m.variable[r[1]]
    h = hashed(key, size, r[1])
    c = find_chunk(m, r[1], key, size, h)
    if r[4] == 0:
        if c != NONE:
            drop_chunk(m, c)
        return 0
    if c == NONE:
        if m.chunk_free == NONE or v.size + size > m.chunk_size:
            m.dynamic_drops += 1
            return 0
        c = m.chunk_free
        x = &m.chunk[c]
        m.chunk_free = x.next
        x.hash, x.variable, x.key_size, x.used = h, <uint32_t>r[1], <uint32_t>size, True
        x.next = m.bucket[h & (m.bucket_count - 1)]
        m.bucket[h & (m.bucket_count - 1)] = c
        if size:
            memcpy(value_of(m, c) + v.size, key, size)
    if v.text:
        again[1], again[2], again[3] = address_of(R_DYNAMIC, <uint64_t>c * m.chunk_size), r[4], v.size
        if v.text == 2:
            h_copy(m, again)
        else:
            h_copy_text(m, again)
    else:
        memcpy(value_of(m, c), &r[4], min(v.size, 8))
    return 0


# -- aggregations -------------------------------------------------------------------------------------

cdef uint64_t llquantize_bucket(const Function *f, int64_t value) noexcept nogil:
    """The bucket of a value: steps within each power of the factor (DTrace guide, "llquantize")."""
    cdef int64_t factor = f.parameter[0]
    cdef int64_t low = f.parameter[1]
    cdef int64_t high = f.parameter[2]
    cdef int64_t steps = f.parameter[3]
    cdef int64_t power = 1
    cdef int64_t last, buckets, order
    cdef uint64_t base = 1
    for order in range(low):
        power *= factor
    if value < power:
        return 0
    last = power
    power *= factor
    for order in range(low, high + 1):
        buckets = steps if power > steps else power
        if value < power:
            return base + <uint64_t>((value - last) / (power / buckets))
        base += <uint64_t>(buckets - buckets / factor)
        last = power
        if power > (<int64_t>1 << 62) / factor:
            power = <int64_t>((<uint64_t>1 << 63) - 1)
        else:
            power *= factor
    return base


cdef uint64_t quantize_bucket(int64_t value) noexcept nogil:
    cdef uint64_t magnitude = <uint64_t>0 - <uint64_t>value if value < 0 else <uint64_t>value
    cdef int n = 0
    if value == 0:
        return ZERO_BUCKET
    while magnitude > 1:
        magnitude >>= 1
        n += 1
    if value < 0:
        return ZERO_BUCKET - 1 - n if n < ZERO_BUCKET else 0
    return ZERO_BUCKET + 1 + n


cdef uint64_t lquantize_bucket(const Function *f, int64_t wide) noexcept nogil:
    cdef int64_t value = <int32_t>wide
    cdef int64_t base = f.parameter[0]
    cdef int64_t step = f.parameter[1]
    cdef uint64_t levels = <uint64_t>f.parameter[2]
    cdef uint64_t level
    if value < base:
        return 0
    level = (<uint64_t>value - <uint64_t>base) / <uint64_t>step
    return level + 1 if level < levels else levels + 1


cdef void update(Function *f, int64_t *v, int64_t value, int64_t increment) noexcept nogil:
    cdef int kind = f.kind
    cdef uint64_t bucket, low, high, square, carry, magnitude
    if kind == A_COUNT:
        v[0] += 1
    elif kind == A_SUM:
        v[0] = <int64_t>(<uint64_t>v[0] + <uint64_t>value)
    elif kind == A_MIN:
        if value < v[0]:
            v[0] = value
    elif kind == A_MAX:
        if value > v[0]:
            v[0] = value
    elif kind == A_AVG:
        v[0] += 1
        v[1] = <int64_t>(<uint64_t>v[1] + <uint64_t>value)
    elif kind == A_STDDEV:
        v[0] += 1
        v[1] = <int64_t>(<uint64_t>v[1] + <uint64_t>value)
        magnitude = <uint64_t>0 - <uint64_t>value if value < 0 else <uint64_t>value
        low = magnitude & LOW32
        high = magnitude >> 32
        square = low * low
        carry = low * high  # twice, shifted by 32
        low = square + (carry << 33)
        high = high * high + (carry >> 31) + (low < square)
        square = <uint64_t>v[2]
        v[2] = <int64_t>(square + low)
        v[3] = <int64_t>(<uint64_t>v[3] + high + (<uint64_t>v[2] < square))
    else:
        if kind == A_QUANTIZE:
            bucket = quantize_bucket(value)
        elif kind == A_LQUANTIZE:
            bucket = lquantize_bucket(f, value)
        else:
            bucket = llquantize_bucket(f, value)
        if bucket < f.count:
            v[bucket] = <int64_t>(<uint64_t>v[bucket] + <uint64_t>increment)


cdef bint grow_entries(Machine *m) noexcept nogil:
    """Room for more entries of aggregations; false: the host has none."""
    cdef uint32_t room = m.entry_room * 2 if m.entry_room else 1024
    cdef uint32_t buckets = room * 2
    cdef uint32_t i, at
    cdef void *more = realloc(m.entry, room * sizeof(Entry))
    cdef uint32_t *table
    if more == NULL:
        return False
    m.entry = <Entry *>more
    table = <uint32_t *>malloc(buckets * sizeof(uint32_t))
    if table == NULL:
        return False
    m.entry_room = room
    memset(table, 0xFF, buckets * sizeof(uint32_t))
    for i in range(m.entry_count):
        at = m.entry[i].hash & (buckets - 1)
        m.entry[i].next = table[at]
        table[at] = i
    free(m.entry_bucket)
    m.entry_bucket = table
    m.entry_buckets = buckets
    return True


cdef uint64_t h_aggregate(Machine *m, uint64_t *r) noexcept nogil:
    cdef Function *f
    cdef uint8_t *key = NULL
    cdef uint64_t h, need, room
    cdef uint32_t e
    cdef Entry *x
    cdef void *more
    cdef int64_t *v
    if r[1] >= m.function_count:
        return bad(m, ILLEGAL_OPERATION, 0)
    f = &m.function[r[1]]
    if r[3]:
        key = resolve(m, r[2], r[3], False)
        if key == NULL:
            return bad(m, TUPLE_OVERFLOW, 0)
    h = hashed(key, r[3], r[1])
    e = NONE
    if m.entry_buckets:
        e = m.entry_bucket[h & (m.entry_buckets - 1)]
        while e != NONE:
            x = &m.entry[e]
            if (x.hash == h and x.function == r[1] and x.key_size == r[3]
                    and (r[3] == 0 or memcmp(
                        m.arena + x.at + 8 * <uint64_t>f.count, key, r[3]) == 0)):
                break
            e = x.next
    if e == NONE:
        need = 8 * <uint64_t>f.count + ((r[3] + 7) & ~<uint64_t>7)
        if m.arena_used + need + <uint64_t>m.entry_count * sizeof(Entry) > m.arena_size:
            m.aggregation_drops += 1
            return 0
        if m.arena_used + need > m.arena_room:
            room = max(2 * m.arena_room, m.arena_used + need, <uint64_t>65536)
            more = realloc(m.arena, room)
            if more == NULL:
                m.aggregation_drops += 1
                return 0
            m.arena = <uint8_t *>more
            m.arena_room = room
        if m.entry_count == m.entry_room and not grow_entries(m):
            m.aggregation_drops += 1
            return 0
        e = m.entry_count
        x = &m.entry[e]
        x.hash, x.function, x.key_size, x.at = h, <uint32_t>r[1], <uint32_t>r[3], m.arena_used
        x.next = m.entry_bucket[h & (m.entry_buckets - 1)]
        m.entry_bucket[h & (m.entry_buckets - 1)] = e
        m.entry_count += 1
        m.arena_used += need
        v = <int64_t *>(m.arena + x.at)
        memset(v, 0, need)
        if f.kind == A_MIN:
            v[0] = <int64_t>((<uint64_t>1 << 63) - 1)
        elif f.kind == A_MAX:
            v[0] = <int64_t>(<uint64_t>1 << 63)
        if r[3]:
            memcpy(m.arena + x.at + 8 * <uint64_t>f.count, key, r[3])
    update(f, <int64_t *>(m.arena + m.entry[e].at), <int64_t>r[4], <int64_t>r[5])
    return 0


# -- records ------------------------------------------------------------------------------------------

cdef bint room_for(Machine *m, uint64_t size, uint64_t counted) noexcept nogil:
    """Make room for a record; false: it is dropped.

    :param counted: its size as DTrace counts it.
    """
    if m.policy != P_RING:
        if (m.filled or m.counted + counted > m.buffer_size
                or m.buffer_used + size > m.buffer_room):
            m.drops += 1
            if m.policy == P_FILL:
                m.filled = True
                m.stopped = True
            return False
        return True
    if counted > m.buffer_size or size > m.buffer_room:
        m.drops += 1
        return False
    while m.counted + counted > m.buffer_size:
        drop_oldest(m)
    if m.buffer_used + size > m.buffer_room:
        if m.wrapped:  # what is left of before is given up
            m.buffer_begin = 0
        m.buffer_end = m.buffer_used
        m.buffer_used = 0
        m.wrapped = True
    while m.wrapped and m.buffer_begin < m.buffer_used + size:
        drop_oldest(m)
    return True


cdef void drop_oldest(Machine *m) noexcept nogil:
    """Give the oldest record of a ring up."""
    cdef uint64_t head[3]
    if m.wrapped and m.buffer_begin >= m.buffer_end:
        m.wrapped = False
        m.buffer_begin = 0
    if not m.wrapped and m.buffer_begin >= m.buffer_used:
        m.counted = 0
        return
    memcpy(head, m.buffer + m.buffer_begin, HEAD)
    m.buffer_begin += head[0] >> 32
    m.counted -= min(head[2], m.counted)


cdef uint64_t h_record(Machine *m, uint64_t *r) noexcept nogil:
    cdef Speculated *s
    cdef uint64_t size
    m.record_open = False
    if m.region[R_RECORD].size < HEAD + 8 or r[2] > m.region[R_RECORD].size - HEAD - 8:
        return bad(m, ILLEGAL_OPERATION, 0)
    size = HEAD + ((r[2] + 7) & ~<uint64_t>7)
    if m.speculating:
        s = &m.speculated[m.speculating - 1]
        if s.counted + r[3] > m.speculation_size or s.used + size > m.speculation_room:
            m.speculation_drops += 1
            return 0
    elif not room_for(m, size, r[3]):
        return 0
    m.record_counted = r[3]
    m.record_clause, m.record_size, m.record_open = r[1], size, True
    memset(m.region[R_RECORD].data, 0, size)
    return address_of(R_RECORD, HEAD)


cdef uint64_t h_commit(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint8_t *record = m.region[R_RECORD].data
    cdef uint64_t head
    cdef Speculated *s
    if not m.record_open:
        return 0
    m.record_open = False
    head = m.record_clause & LOW32 | m.record_size << 32
    memcpy(record, &head, 8)
    memcpy(record + 8, m.region[R_CONTEXT].data + CONTEXT_TIMESTAMP, 8)
    memcpy(record + 16, &m.record_counted, 8)
    if m.speculating:
        s = &m.speculated[m.speculating - 1]
        if s.data == NULL:
            s.data = <uint8_t *>malloc(m.speculation_room)
        if s.data == NULL:
            m.speculation_drops += 1
            return 0
        memcpy(s.data + s.used, record, m.record_size)
        s.used += m.record_size
        s.counted += m.record_counted
        return 0
    memcpy(m.buffer + m.buffer_used, record, m.record_size)
    m.buffer_used += m.record_size
    m.counted += m.record_counted
    return 0


cdef uint64_t h_fault(Machine *m, uint64_t *r) noexcept nogil:
    return bad(m, <int>r[1] if r[1] <= LAST_FAULT else ILLEGAL_OPERATION, r[2])


cdef uint64_t h_speculation(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint32_t i
    for i in range(m.speculation_count):
        if m.speculated[i].state == 0:
            m.speculated[i].state = 1
            m.speculated[i].used = 0
            m.speculated[i].counted = 0
            return i + 1
    m.speculation_unavailable += 1
    return 0


cdef Speculated *speculation(Machine *m, uint64_t number) noexcept nogil:
    if not 0 < number <= m.speculation_count or m.speculated[number - 1].state == 0:
        return NULL
    return &m.speculated[number - 1]


cdef uint64_t h_speculate(Machine *m, uint64_t *r) noexcept nogil:
    """1 where the clause goes on, into that speculation; 0 where there is none."""
    if speculation(m, r[1]) == NULL:
        return 0
    if m.policy != P_RING and m.counted + r[2] > m.buffer_size:
        m.drops += 1
        return 0
    m.record_open = False  # what was begun had another place
    m.speculating = r[1]
    return 1


cdef uint64_t h_discard_speculation(Machine *m, uint64_t *r) noexcept nogil:
    cdef Speculated *s = speculation(m, r[1])
    m.record_open = False
    if s != NULL:
        s.state = 0
        s.used = 0
    return 0


cdef uint64_t h_commit_speculation(Machine *m, uint64_t *r) noexcept nogil:
    cdef Speculated *s = speculation(m, r[1])
    cdef uint64_t at = 0
    cdef uint64_t head[3]
    m.record_open = False
    if s == NULL:
        return 0
    while at < s.used:
        memcpy(head, s.data + at, HEAD)
        if room_for(m, head[0] >> 32, head[2]):
            memcpy(m.buffer + m.buffer_used, s.data + at, head[0] >> 32)
            m.buffer_used += head[0] >> 32
            m.counted += head[2]
        at += head[0] >> 32
    s.state = 0
    s.used = 0
    return 0


cdef uint64_t h_allocate(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint64_t size = (r[1] + 7) & ~<uint64_t>7
    cdef uint64_t at = m.scratch_at
    if r[1] > m.region[R_SCRATCH].size or at + size > m.region[R_SCRATCH].size:
        return bad(m, NO_SCRATCH, 0)
    memset(m.region[R_SCRATCH].data + at, 0, size)
    m.scratch_at = at + size
    return address_of(R_SCRATCH, at)


cdef bint read_clock(void *clock, uint64_t address, void *to, uint32_t size) noexcept nogil:
    return guest_read(<Clock *>clock, address, to, size)


cdef uint64_t h_variable(Machine *m, uint64_t *r) noexcept nogil:
    cdef Walk *w
    cdef uint64_t value, n
    cdef uint64_t again[6]
    cdef uint8_t *to
    cdef int64_t length
    if r[1] == REGS and m.read_register != NULL and r[2] < PLACES and m.place[r[2]] >= 0:
        return m.read_register(m.interrupted, <uint32_t>(REGISTER + m.place[r[2]]))
    if r[1] >= WALKS or not m.walk[r[1]].known:
        return call_host(m, VARIABLE, r)
    w = &m.walk[r[1]]
    value = current_thread(m)
    for n in range(w.steps):
        value += w.offset[n]
        if n + 1 < w.steps:
            if not fetch(m, value, &value, 8):
                return 0
    if w.steps == 0:
        return value
    if not w.text:
        r[1], r[2] = value, w.size
        return h_load(m, r)
    again[1] = m.string_size
    n = h_allocate(m, again)
    to = resolve(m, n, m.string_size, True)
    if to == NULL:
        return 0
    length = text(m, value, to, m.string_size)
    return n if length >= 0 else 0


cdef inline bint ended(Machine *m) noexcept nogil:
    """Whether tracing has: by exit(), or a buffer that is full."""
    return m.stopped or (<uint64_t *>m.region[R_STATE].data)[0] != 0


cdef int on_firing(void *data, uint32_t probe, argument_fn read, void *source,
                   uint64_t time) noexcept nogil:
    """A kernel's probe fires."""
    cdef Machine *m = <Machine *>data
    cdef Entered *e
    cdef uint64_t *context = <uint64_t *>m.region[R_CONTEXT].data
    cdef uint64_t *given = context + CONTEXT_ARGUMENTS / 8
    cdef int i
    if probe >= m.entered_count or not m.entered[probe].enabled or ended(m):
        return 0
    if time >= m.look:
        looked(m, time)
        if m.failing:
            return 1
    e = &m.entered[probe]
    context[CONTEXT_PROBE / 8] = e.number
    context[CONTEXT_FIRST / 8] = e.first
    context[CONTEXT_CLAUSE / 8] = e.first
    context[CONTEXT_TIMESTAMP / 8] = time
    for i in range(4):
        context[CONTEXT_PROVIDER / 8 + i] = e.text[i]
    for i in range(e.wanted):
        if e.kind == 0 and i < RESULT:
            given[i] = read(source, i)
        elif e.kind == 1 and i < 2:
            given[i] = read(source, RESULT) if i else e.offset
        else:
            given[i] = 0
    m.thread_known = False
    m.read_register, m.interrupted = read, source
    execute(m, e.entry, address_of(R_CONTEXT, 0))
    m.read_register = NULL
    if not m.told and ended(m):
        m.told = True  # tracing has ended with this firing
        looked(m, time)
    return m.failing


cdef void looked(Machine *m, uint64_t time) noexcept with gil:
    (<Runtime>m.owner).look_now(time)


cdef uint64_t h_stop(Machine *m, uint64_t *r) noexcept nogil:
    m.stopped = True
    return 0


cdef uint64_t call_host(Machine *m, uint64_t number, uint64_t *r) noexcept with gil:
    return (<Runtime>m.owner).host(number, r)


# -- execution ----------------------------------------------------------------------------------------

cdef inline uint64_t swapped(uint64_t value, int bits) noexcept nogil:
    cdef uint64_t out = 0
    cdef int i
    for i in range(0, bits, 8):
        out = out << 8 | (value >> i & 0xFF)
    return out


cdef uint64_t execute(Machine *m, uint32_t start, uint64_t argument) noexcept nogil:
    """Run a program from its first instruction; what its r0 is at the end.

    A fault ends the function that the program called, with r0 = -1; in the program itself, it.
    """
    cdef uint64_t r[11]
    cdef uint64_t saved[MAX_DEPTH][5]
    cdef uint32_t back[MAX_DEPTH]
    cdef int64_t entries[MAX_DEPTH]
    cdef int first = m.depth
    cdef int depth = 0
    cdef uint32_t pc = start
    cdef uint64_t budget = BUDGET
    cdef const Code *i
    cdef uint64_t b, value
    cdef uint8_t *data
    cdef bint taken
    if first >= FRAMES - MAX_DEPTH:
        return ~<uint64_t>0
    memset(r, 0, sizeof(r))
    r[1] = argument
    r[10] = address_of(R_STACK, <uint64_t>(first + 1) * FRAME_BYTES)
    m.depth = first + 1
    # Every program that was loaded ends with O_END, and leads nowhere else.
    while True:
        i = &m.code[pc]
        pc += 1
        b = i.value if i.immediate else r[i.source]
        if i.op == O_ADD: r[i.to] += b
        elif i.op == O_SUB: r[i.to] -= b
        elif i.op == O_MUL: r[i.to] *= b
        elif i.op == O_DIV: r[i.to] = r[i.to] / b if b else 0
        elif i.op == O_OR: r[i.to] |= b
        elif i.op == O_AND: r[i.to] &= b
        elif i.op == O_LSH: r[i.to] <<= b & 63
        elif i.op == O_RSH: r[i.to] >>= b & 63
        elif i.op == O_NEG: r[i.to] = <uint64_t>0 - r[i.to]
        elif i.op == O_MOD: r[i.to] = r[i.to] % b if b else r[i.to]
        elif i.op == O_XOR: r[i.to] ^= b
        elif i.op == O_MOV: r[i.to] = b
        elif i.op == O_ARSH: r[i.to] = <uint64_t>(<int64_t>r[i.to] >> (b & 63))
        elif i.op == O_SDIV:
            if b == 0: r[i.to] = 0
            elif b == <uint64_t>-1: r[i.to] = <uint64_t>0 - r[i.to]
            else: r[i.to] = <uint64_t>(<int64_t>r[i.to] / <int64_t>b)
        elif i.op == O_SMOD:
            if b == <uint64_t>-1: r[i.to] = 0
            elif b: r[i.to] = <uint64_t>(<int64_t>r[i.to] % <int64_t>b)
        elif i.op == O_MOVS8: r[i.to] = <uint64_t>(<int64_t><int8_t>b)
        elif i.op == O_MOVS16: r[i.to] = <uint64_t>(<int64_t><int16_t>b)
        elif i.op == O_MOVS32: r[i.to] = <uint64_t>(<int64_t><int32_t>b)
        elif i.op == O_ADD32: r[i.to] = <uint32_t>(r[i.to] + b)
        elif i.op == O_SUB32: r[i.to] = <uint32_t>(r[i.to] - b)
        elif i.op == O_MUL32: r[i.to] = <uint32_t>(r[i.to] * b)
        elif i.op == O_DIV32: r[i.to] = <uint32_t>r[i.to] / <uint32_t>b if <uint32_t>b else 0
        elif i.op == O_OR32: r[i.to] = <uint32_t>(r[i.to] | b)
        elif i.op == O_AND32: r[i.to] = <uint32_t>(r[i.to] & b)
        elif i.op == O_LSH32: r[i.to] = <uint32_t>(r[i.to] << (b & 31))
        elif i.op == O_RSH32: r[i.to] = <uint32_t>r[i.to] >> (b & 31)
        elif i.op == O_NEG32: r[i.to] = <uint32_t>(0 - r[i.to])
        elif i.op == O_MOD32:
            r[i.to] = <uint32_t>r[i.to] % <uint32_t>b if <uint32_t>b else <uint32_t>r[i.to]
        elif i.op == O_XOR32: r[i.to] = <uint32_t>(r[i.to] ^ b)
        elif i.op == O_MOV32: r[i.to] = <uint32_t>b
        elif i.op == O_ARSH32: r[i.to] = <uint32_t>(<int32_t>r[i.to] >> (b & 31))
        elif i.op == O_SDIV32:
            if <uint32_t>b == 0: r[i.to] = 0
            elif <int32_t>b == -1: r[i.to] = <uint32_t>(0 - r[i.to])
            else: r[i.to] = <uint32_t>(<int32_t>r[i.to] / <int32_t>b)
        elif i.op == O_SMOD32:
            if <int32_t>b == -1: r[i.to] = 0
            elif <uint32_t>b: r[i.to] = <uint32_t>(<int32_t>r[i.to] % <int32_t>b)
            else: r[i.to] = <uint32_t>r[i.to]
        elif i.op == O_MOVS8_32: r[i.to] = <uint32_t>(<int32_t><int8_t>b)
        elif i.op == O_MOVS16_32: r[i.to] = <uint32_t>(<int32_t><int16_t>b)
        elif i.op == O_SWAP16: r[i.to] = swapped(r[i.to], 16)
        elif i.op == O_SWAP32: r[i.to] = swapped(r[i.to], 32)
        elif i.op == O_SWAP64: r[i.to] = swapped(r[i.to], 64)
        elif i.op == O_LOW16: r[i.to] = <uint16_t>r[i.to]
        elif i.op == O_LOW32: r[i.to] = <uint32_t>r[i.to]
        elif i.op == O_LOW64: pass
        elif i.op == O_WIDE: r[i.to] = i.value
        elif i.op == O_LD1 or i.op == O_LDS1:
            data = resolve(m, r[i.source] + <uint64_t>i.offset, 1, False)
            if data == NULL: bad(m, BAD_ADDRESS, r[i.source] + <uint64_t>i.offset)
            elif i.op == O_LD1: r[i.to] = data[0]
            else: r[i.to] = <uint64_t>(<int64_t><int8_t>data[0])
        elif i.op == O_LD2 or i.op == O_LDS2:
            data = resolve(m, r[i.source] + <uint64_t>i.offset, 2, False)
            if data == NULL: bad(m, BAD_ADDRESS, r[i.source] + <uint64_t>i.offset)
            else:
                value = 0
                memcpy(&value, data, 2)
                r[i.to] = value if i.op == O_LD2 else <uint64_t>(<int64_t><int16_t>value)
        elif i.op == O_LD4 or i.op == O_LDS4:
            data = resolve(m, r[i.source] + <uint64_t>i.offset, 4, False)
            if data == NULL: bad(m, BAD_ADDRESS, r[i.source] + <uint64_t>i.offset)
            else:
                value = 0
                memcpy(&value, data, 4)
                r[i.to] = value if i.op == O_LD4 else <uint64_t>(<int64_t><int32_t>value)
        elif i.op == O_LD8:
            data = resolve(m, r[i.source] + <uint64_t>i.offset, 8, False)
            if data == NULL: bad(m, BAD_ADDRESS, r[i.source] + <uint64_t>i.offset)
            else: memcpy(&r[i.to], data, 8)
        elif i.op == O_ST1 or i.op == O_ST2 or i.op == O_ST4 or i.op == O_ST8:
            value = 1 if i.op == O_ST1 else 2 if i.op == O_ST2 else 4 if i.op == O_ST4 else 8
            data = resolve(m, r[i.to] + <uint64_t>i.offset, value, True)
            if data == NULL: bad(m, BAD_ADDRESS, r[i.to] + <uint64_t>i.offset)
            else: memcpy(data, &b, value)
        elif i.op == O_END: break
        elif i.op == O_JA:
            if i.jump < <int64_t>pc:
                budget -= min(budget, <uint64_t>(<int64_t>pc - i.jump))
                if budget == 0: break
            pc = i.jump
        elif i.op == O_CALL:
            if HELPERS[i.value] != NULL:
                r[0] = HELPERS[i.value](m, r)
            else:
                r[0] = call_host(m, i.value, r)
        elif i.op == O_LOCAL:
            if depth + 1 >= MAX_DEPTH or budget == 0:
                bad(m, ILLEGAL_OPERATION, 0)
            else:
                budget -= 1
                entries[depth] = i.jump
                if depth == 0:
                    m.scratch_at = 0
                    m.record_open = False
                    m.speculating = 0
                back[depth] = pc
                memcpy(saved[depth], &r[6], 40)
                depth += 1
                m.depth += 1
                r[10] += FRAME_BYTES
                pc = i.jump
        elif i.op == O_EXIT:
            if depth == 0:
                break
            depth -= 1
            m.depth -= 1
            if <int64_t>pc > entries[depth]:
                budget -= min(budget, <uint64_t>(<int64_t>pc - entries[depth]))
            memcpy(&r[6], saved[depth], 40)
            pc = back[depth]
        else:
            if i.op == O_JEQ: taken = r[i.to] == b
            elif i.op == O_JGT: taken = r[i.to] > b
            elif i.op == O_JGE: taken = r[i.to] >= b
            elif i.op == O_JSET: taken = (r[i.to] & b) != 0
            elif i.op == O_JNE: taken = r[i.to] != b
            elif i.op == O_JSGT: taken = <int64_t>r[i.to] > <int64_t>b
            elif i.op == O_JSGE: taken = <int64_t>r[i.to] >= <int64_t>b
            elif i.op == O_JLT: taken = r[i.to] < b
            elif i.op == O_JLE: taken = r[i.to] <= b
            elif i.op == O_JSLT: taken = <int64_t>r[i.to] < <int64_t>b
            elif i.op == O_JSLE: taken = <int64_t>r[i.to] <= <int64_t>b
            elif i.op == O_JEQ32: taken = <uint32_t>r[i.to] == <uint32_t>b
            elif i.op == O_JGT32: taken = <uint32_t>r[i.to] > <uint32_t>b
            elif i.op == O_JGE32: taken = <uint32_t>r[i.to] >= <uint32_t>b
            elif i.op == O_JSET32: taken = (<uint32_t>r[i.to] & <uint32_t>b) != 0
            elif i.op == O_JNE32: taken = <uint32_t>r[i.to] != <uint32_t>b
            elif i.op == O_JSGT32: taken = <int32_t>r[i.to] > <int32_t>b
            elif i.op == O_JSGE32: taken = <int32_t>r[i.to] >= <int32_t>b
            elif i.op == O_JLT32: taken = <uint32_t>r[i.to] < <uint32_t>b
            elif i.op == O_JLE32: taken = <uint32_t>r[i.to] <= <uint32_t>b
            elif i.op == O_JSLT32: taken = <int32_t>r[i.to] < <int32_t>b
            else: taken = <int32_t>r[i.to] <= <int32_t>b
            if taken:
                if i.jump < <int64_t>pc:  # code that was not verified may go in circles
                    budget -= min(budget, <uint64_t>(<int64_t>pc - i.jump))
                    if budget == 0: break
                pc = i.jump
        if m.fault >= 0:
            m.fault_at = pc - 1
            m.record_open = False
            m.speculating = 0
            if depth == 0:
                faulted(m)
                r[0] = <uint64_t>-1
                break
            m.depth -= depth - 1
            depth = 1
            faulted(m)
            depth = 0
            m.depth -= 1
            memcpy(&r[6], saved[0], 40)
            if <int64_t>pc > entries[0]:
                budget -= min(budget, <uint64_t>(<int64_t>pc - entries[0]))
            pc = back[0]
            r[0] = <uint64_t>-1
    m.depth = first
    return r[0] if budget else ~<uint64_t>0


cdef void faulted(Machine *m) noexcept nogil:
    """Tell the ERROR probe: its arguments are clause, action, offset, fault and value."""
    cdef uint8_t kept[256]
    cdef uint64_t *context = <uint64_t *>m.region[R_CONTEXT].data
    cdef uint64_t clause = context[CONTEXT_CLAUSE / 8]
    cdef uint64_t scratch = m.scratch_at
    cdef int fault = m.fault
    cdef uint64_t value = m.fault_value
    m.fault = -1
    if m.in_error:
        m.error_faults += 1
        return
    if m.error_entry == NONE:
        call_error(m, clause, fault, value)
        return
    memcpy(kept, context, CONTEXT_SIZE)
    m.in_error = True
    memcpy(context, m.error_context, CONTEXT_SIZE)
    memcpy(<uint8_t *>context + CONTEXT_TIMESTAMP, kept + CONTEXT_TIMESTAMP, 8)
    context[CONTEXT_ARGUMENTS / 8 + 1] = clause
    context[CONTEXT_ARGUMENTS / 8 + 2] = 0
    context[CONTEXT_ARGUMENTS / 8 + 3] = m.fault_at
    context[CONTEXT_ARGUMENTS / 8 + 4] = <uint64_t>fault
    context[CONTEXT_ARGUMENTS / 8 + 5] = value
    execute(m, m.error_entry, address_of(R_CONTEXT, 0))
    memcpy(context, kept, CONTEXT_SIZE)
    m.in_error = False
    call_error(m, clause, fault, value)
    m.scratch_at = scratch


cdef void call_error(Machine *m, uint64_t clause, int fault, uint64_t value) noexcept with gil:
    (<Runtime>m.owner).noted(clause, fault, value)


# -- Python's side ------------------------------------------------------------------------------------

class RuntimeFault(Exception):
    """A helper of the host ends the clause.

    :param fault: a ``Fault``.
    """

    def __init__(self, fault, value=0):
        super().__init__(fault, value)
        self.fault, self.value = fault, value


cdef uint64_t word(object value):
    return <uint64_t>(int(value) & 0xFFFFFFFFFFFFFFFF)


cdef class Runtime:
    """Memory, variables, aggregations and buffers of a D program, and its execution.

    :param sizes: of the regions, in bytes, by ``Region``.
    :param constants: the content of ``Region.STRINGS``.
    :param variables: (size, 0 a number / 1 a string / 2 bytes, thread-local) of each variable that
        has a key.
    :param dynamic: bytes for their values.
    :param functions: (Aggregate, values, parameters) of each aggregation.
    :param aggregation_size: bytes for the keys and values of all aggregations.
    :param buffer_size: bytes for records.
    :param speculations: how many, and bytes for the records of each.
    :param string_size: the most bytes of a string; one of just so many has no NUL.
    """

    cdef Machine m
    cdef bint begun
    cdef object helpers
    cdef public object faults
    cdef public object failure  # an exception of a helper, which is none of the program's
    cdef Engine engine  # lives as long as its clock is used
    cdef Action action
    cdef public object look  # is called when it is time for the consumer to look, with the time

    def __cinit__(self):
        memset(&self.m, 0, sizeof(Machine))
        self.m.fault = -1
        self.m.error_entry = NONE
        for number in range(PLACES):
            self.m.place[number] = -1

    def __dealloc__(self):
        cdef int i
        cdef uint32_t n
        for i in range(MAX_REGIONS):
            free(self.m.region[i].data)
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

    def __init__(self, sizes, bytes constants, variables, uint64_t dynamic, functions,
                 uint64_t aggregation_size, uint64_t buffer_size, int policy, speculations,
                 uint64_t string_size, helpers):
        cdef Machine *m = &self.m
        cdef uint64_t key
        if self.begun:
            raise RuntimeError("a runtime is made once")
        self.begun = True
        self.helpers = helpers
        self.faults = None
        sizes = {Region(region): size for region, size in dict(sizes).items()}
        sizes[Region.STACK] = FRAMES * FRAME_BYTES
        sizes[Region.CONTEXT] = 256
        sizes[Region.STRINGS] = len(constants)
        sizes[Region.STATE] = 64
        if not 1 < string_size <= TEXT:
            raise ValueError("a string is of 2 to 65536 bytes")
        for n in range(2):
            m.compared[n] = <uint8_t *>malloc(string_size + 1)
            if m.compared[n] == NULL:
                raise MemoryError
        m.string_size = string_size
        self.make_variables(variables, dynamic, sizes)
        for region, size in sizes.items():
            if not 0 <= size <= 1 << 31:
                raise ValueError(f"a region of {size} bytes")
            m.region[<int>region].data = <uint8_t *>calloc(1, max(size, 1))
            if m.region[<int>region].data == NULL:
                raise MemoryError
            m.region[<int>region].size = size
            m.region[<int>region].writable = region not in (Region.STRINGS, Region.CONTEXT)
        m.region[<int>Region.CONTEXT].writable = True
        memcpy(m.region[<int>Region.STRINGS].data, <const char *>constants, len(constants))
        m.function_count = len(functions)
        m.function = <Function *>calloc(max(len(functions), 1), sizeof(Function))
        if m.function == NULL:
            raise MemoryError
        for n, (kind, count, parameters) in enumerate(functions):
            if not 0 < count <= 1 << 20 or len(parameters) > PARAMETERS:
                raise ValueError("an aggregation is of 1 to 1048576 values")
            self.check_function(kind, count, tuple(parameters))
            m.function[n].kind, m.function[n].count = kind, count
            for k, parameter in enumerate(parameters):
                m.function[n].parameter[k] = parameter
        m.arena_size = aggregation_size
        if buffer_size > 1 << 31:
            raise ValueError("a buffer is of at most 2 GiB")
        m.buffer_room = 4 * buffer_size + (1 << 20)
        m.buffer = <uint8_t *>malloc(m.buffer_room)
        if m.buffer == NULL:
            raise MemoryError
        m.buffer_size, m.policy = buffer_size, policy
        count, size = speculations
        if not 0 <= count <= MAX_SPECULATIONS:
            raise ValueError("too many speculations")
        m.speculated = <Speculated *>calloc(max(count, 1), sizeof(Speculated))
        if m.speculated == NULL:
            raise MemoryError
        m.speculation_count, m.speculation_size = count, size
        m.speculation_room = 4 * <uint64_t>size + (1 << 12)
        m.owner = <void *>self  # it is whole now

    cdef int check_function(self, int kind, uint32_t count, tuple parameters) except -1:
        """Whether the parameters of an aggregation are some that can be counted with."""
        good = count >= {A_AVG: 2, A_STDDEV: 4}.get(kind, 1)
        if kind == A_LQUANTIZE:
            good = len(parameters) == 3 and parameters[1] > 0 and parameters[2] >= 0
        elif kind == A_LLQUANTIZE:
            good = len(parameters) == 4
            if good:
                factor, low, high, steps = parameters
                good = (factor >= 2 and 0 <= low < high < 64 and steps >= factor
                        and factor ** (high + 1) < 1 << 63)
        elif not A_COUNT <= kind <= A_LLQUANTIZE:
            good = False
        if not good:
            raise ValueError("an aggregation with parameters that are none")
        return 0

    cdef int make_variables(self, variables, uint64_t dynamic, dict sizes) except -1:
        cdef Machine *m = &self.m
        cdef uint32_t i
        m.variable_count = len(variables)
        m.variable = <Variable *>calloc(max(len(variables), 1), sizeof(Variable))
        if m.variable == NULL:
            raise MemoryError
        largest = 0
        for n, (size, text_, thread, key_size) in enumerate(variables):
            m.variable[n].size, m.variable[n].text, m.variable[n].thread = size, text_, thread
            largest = max(largest, size + key_size + 8 * thread)
        m.chunk_free = NONE
        if not largest:
            return 0
        if largest > 1 << 20:
            raise ValueError("a variable of more than a MiB")
        m.chunk_size = (largest + 15) & ~15
        m.chunk_count = max(1, min(dynamic // m.chunk_size, (1 << 31) // m.chunk_size))
        m.bucket_count = 1
        while m.bucket_count < m.chunk_count:
            m.bucket_count *= 2
        m.chunk = <Chunk *>calloc(m.chunk_count, sizeof(Chunk))
        m.bucket = <uint32_t *>malloc(m.bucket_count * sizeof(uint32_t))
        if m.chunk == NULL or m.bucket == NULL:
            raise MemoryError
        memset(m.bucket, 0xFF, m.bucket_count * sizeof(uint32_t))
        for i in range(m.chunk_count):
            m.chunk[i].next = i + 1 if i + 1 < m.chunk_count else NONE
        m.chunk_free = 0
        sizes[Region.DYNAMIC] = int(m.chunk_count) * int(m.chunk_size)
        return 0

    cdef int made(self) except -1:
        """Python may make an object without calling ``__init__``."""
        if self.m.owner == NULL:
            raise RuntimeError("the runtime was not made")
        return 0

    # -- programs ---------------------------------------------------------------------------------

    def load(self, bytes code):
        """Take a program, which a verifier should have seen; the number of its first instruction.

        :raises EncodingError: for what is no instruction.
        :raises ValueError: for a jump out of the program, and a helper that there cannot be.
        """
        self.made()
        cdef Machine *m = &self.m
        cdef Code *c
        cdef void *more
        instructions = decode(code)
        first = m.code_count
        if first + len(instructions) + 1 > m.code_room:
            room = max(2 * m.code_room, first + len(instructions) + 1)
            more = realloc(m.code, room * sizeof(Code))
            if more == NULL:
                raise MemoryError
            m.code = <Code *>more
            m.code_room = room
        for n, i in enumerate(instructions):
            c = &m.code[first + n]
            memset(c, 0, sizeof(Code))
            if i is None:
                continue
            c.op = operation(i)
            if c.op == O_BAD:
                raise ValueError(f"instruction {n} is not known")
            c.to, c.source, c.offset = i.destination, i.source, i.offset
            if i.wide is not None:
                c.value = word(i.constant)
                if i.source == REGION:
                    c.value = word((layout.BASE | i.immediate << layout.REGION_SHIFT) + i.wide)
                continue
            kind = i.opcode & 7
            c.immediate = kind == Class.ST or kind not in (Class.LDX, Class.STX) and (
                not i.opcode & X or c.op in (O_CALL, O_LOCAL))
            c.value = word(i.immediate)
            target = None
            if c.op == O_LOCAL:
                target = n + 1 + i.immediate
            elif c.op == O_JA and kind == Class.JMP32:
                target = n + 1 + i.immediate
            elif kind in (Class.JMP, Class.JMP32) and c.op not in (O_CALL, O_EXIT):
                target = n + 1 + i.offset
            elif c.op == O_CALL and not 0 <= i.immediate < MAX_HELPER:
                raise ValueError(f"there is no helper {i.immediate}")
            if target is not None:
                if not 0 <= target < len(instructions) or instructions[target] is None:
                    raise ValueError(f"instruction {n} leads out of the program")
                c.jump = first + target
        # Behind a wide immediate, execution goes on two slots further: one jump does it.
        for n, i in enumerate(instructions):
            if i is None:
                c = &m.code[first + n]
                c.op, c.jump = O_JA, first + n + 1
        c = &m.code[first + len(instructions)]
        memset(c, 0, sizeof(Code))
        c.op = O_END
        m.code_count = first + len(instructions) + 1
        return first

    def run(self, uint32_t entry, uint64_t argument=0):
        """Execute a program; r0 at its end.

        :raises Exception: what a helper of the host raised, that was no fault.
        """
        cdef uint64_t value
        self.made()
        if entry >= self.m.code_count:
            raise ValueError("there is no such program")
        with nogil:
            value = execute(&self.m, entry, argument)
        if self.failure is not None:
            raise self.take_failure()
        return value

    def fire(self, uint32_t entry):
        """Execute a probe's program on the context."""
        self.made()
        if self.m.clock != NULL:
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
        except BaseException as failure:  # it is raised by ``run``, behind the native code
            self.failed(failure)
            return bad(&self.m, 0, 0)

    cdef int noted(self, uint64_t clause, int fault, uint64_t value) noexcept:
        try:
            if self.faults is not None:
                self.faults(clause, fault, value, self.m.fault_at)
        except BaseException as failure:  # as above
            self.failed(failure)
        return 0

    def call(self, uint32_t number, *arguments):
        """A helper, for the executor in Python.

        :raises RuntimeFault: where the clause ends.
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
        """A function of the program is about to be called, for the executor in Python."""
        self.m.scratch_at = 0
        self.m.record_open = False
        self.m.speculating = 0

    # -- memory -----------------------------------------------------------------------------------

    def read(self, uint64_t address, uint64_t size):
        """:raises RuntimeFault: where there is no memory."""
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
        self.check()
        return bytes(out)

    def write(self, uint64_t address, bytes content):
        """:raises RuntimeFault: where the program may not write."""
        self.made()
        cdef uint8_t *data = resolve(&self.m, address, len(content), True)
        if data == NULL:
            raise RuntimeFault(BAD_ADDRESS, address)
        memcpy(data, <const char *>content, len(content))

    def text(self, uint64_t address, limit=None):
        """A string, without its NUL.

        :raises RuntimeFault: where there is no memory.
        """
        self.made()
        cdef uint64_t most = self.m.string_size if limit is None else min(limit, TEXT)
        cdef bytearray out = bytearray(most + 1)
        cdef uint8_t[::1] view = out
        cdef int64_t n = text(&self.m, address, &view[0], most)
        self.check()
        return bytes(out[:n])

    def allocate(self, uint64_t size):
        """Scratch memory.

        :raises RuntimeFault: when there is none.
        """
        self.made()
        cdef uint64_t r[6]
        r[1] = size
        address = h_allocate(&self.m, r)
        self.check()
        return address

    def keep(self, bytes content):
        """A string in scratch memory, cut to what a string may be; its address."""
        content = content[: self.m.string_size]
        address = self.allocate(len(content) + 1)
        self.write(address, content + b"\0")
        return address

    # -- a kernel ----------------------------------------------------------------------------------

    def attach(self, Engine engine, int per_cpu, uint32_t probes):
        """Work on a guest: its memory, its thread, its probes.

        :param per_cpu: the engine's number of the register that leads to the per-CPU data.
        :param probes: how many the kernel may have.
        """
        self.made()
        cdef Machine *m = &self.m
        if self.engine is not None:
            raise RuntimeError("a runtime is attached once")
        engine.read(per_cpu)
        m.entered = <Entered *>calloc(max(probes, 1), sizeof(Entered))
        if m.entered == NULL:
            raise MemoryError
        m.entered_count = probes
        self.engine = engine
        m.clock = &engine.clock
        m.per_cpu = per_cpu
        m.read = read_clock
        m.read_data = <void *>m.clock

    def add_probe(self, uint32_t probe, uint32_t entry, uint64_t number, uint64_t first, texts,
                  int kind, uint64_t offset, uint32_t wanted):
        """The program of a kernel's probe.

        :param texts: addresses of provider, module, function and name.
        :param kind: 0 where arguments stand in registers, 1 at a return, 2 where nothing is known.
        :param offset: of a return, in its function.
        :param wanted: how many arguments its program reads, from the first.
        """
        cdef Entered *e
        if probe >= self.m.entered_count or entry >= self.m.code_count:
            raise ValueError("there is no such probe, or program")
        e = &self.m.entered[probe]
        e.enabled, e.kind, e.entry, e.number, e.first = True, kind, entry, number, first
        e.offset = offset
        e.wanted = <uint8_t>min(wanted, 10)
        for n in range(4):
            e.text[n] = texts[n]

    def set_variable(self, uint32_t number, offsets, uint32_t size, bint text_):
        """A variable that is found from the thread on: the last offset is its own, those before
        lead to pointers; without any it is the thread itself.

        :param size: bytes of a number.
        """
        cdef Walk *w
        if number >= WALKS or len(offsets) > WALK or size > 8:
            raise ValueError("no such variable")
        w = &self.m.walk[number]
        w.known, w.text, w.size, w.steps = True, text_, size, len(offsets)
        for n, offset in enumerate(offsets):
            w.offset[n] = offset

    def set_register(self, uint32_t number, int place):
        """Where ``regs[number]`` is among the registers of the dispatcher."""
        if number >= PLACES or not 0 <= place < 256:
            raise ValueError("no such register")
        self.m.place[number] = <int16_t>place

    def firing_action(self):
        """The capsule that a dispatcher calls at each firing."""
        self.made()
        self.action.run = on_firing
        self.action.data = <void *>&self.m
        return PyCapsule_New(<void *>&self.action, "kinst.action", NULL)

    def take_failure(self):
        """What a helper of the host raised."""
        failure, self.failure = self.failure, None
        self.m.failing = False
        return failure if failure is not None else RuntimeError("an action failed")

    def look_at(self, uint64_t time):
        """When to call ``look`` next."""
        self.m.look = time

    cdef int look_now(self, uint64_t time) noexcept:
        try:
            if self.look is not None:
                self.look(time)
            else:
                self.m.look = ~<uint64_t>0
        except BaseException as failure:  # the dispatcher is told, which ends the run
            self.failed(failure)
        return 0

    cdef int failed(self, failure) noexcept:
        self.failure = failure
        self.m.stopped = True
        self.m.failing = True
        return 0

    @property
    def probe(self):
        """The number of the probe that fires."""
        self.made()
        return (<uint64_t *>self.m.region[R_CONTEXT].data)[CONTEXT_PROBE / 8]

    @property
    def string_size(self):
        return self.m.string_size

    @property
    def stopped(self):
        return bool(self.m.stopped)

    @property
    def thread(self):
        return current_thread(&self.m)

    @thread.setter
    def thread(self, uint64_t value):
        self.m.thread, self.m.thread_known = value, True

    def set_error(self, uint32_t entry):
        """The program of the ERROR probe, whose context is set now."""
        self.made()
        if entry >= self.m.code_count:
            raise ValueError("there is no such program")
        self.m.error_entry = entry
        memcpy(self.m.error_context, self.m.region[R_CONTEXT].data, CONTEXT_SIZE)

    def set_context(self, int offset, uint64_t value):
        if not 0 <= offset <= CONTEXT_SIZE - 8 or self.m.owner == NULL:
            raise ValueError("not in the context")
        memcpy(self.m.region[R_CONTEXT].data + offset, &value, 8)

    # -- results ----------------------------------------------------------------------------------

    def records(self):
        """The records since the last time, oldest first: (clause, payload)."""
        self.made()
        cdef Machine *m = &self.m
        cdef uint64_t head
        found = []
        spans = [(m.buffer_begin, m.buffer_used)]
        if m.wrapped:
            spans = [(m.buffer_begin, m.buffer_end), (0, m.buffer_used)]
        for begin, end in spans:
            at = begin
            while at < end:
                memcpy(&head, m.buffer + <uint64_t>at, 8)
                size = head >> 32
                found.append((head & LOW32,
                              (<const char *>m.buffer)[<uint64_t>at + HEAD : <uint64_t>at + <uint64_t>size]))
                at += size
        m.buffer_used, m.buffer_begin, m.buffer_end, m.wrapped = 0, 0, 0, False
        m.counted = 0
        return found

    def take_drops(self):
        """Drops since the last time: records, of dynamic variables, of aggregations, of
        speculations, speculations that were not available, faults of the ERROR probe."""
        cdef Machine *m = &self.m
        found = (m.drops, m.dynamic_drops, m.aggregation_drops, m.speculation_drops,
                 m.speculation_unavailable, m.error_faults)
        m.error_faults = 0
        m.drops = m.dynamic_drops = m.aggregation_drops = 0
        m.speculation_drops = m.speculation_unavailable = 0
        return found

    def aggregated(self):
        """All aggregations since the last time: (number, key, values), in the order of their
        first use."""
        self.made()
        cdef Machine *m = &self.m
        cdef uint32_t e
        cdef uint32_t count, k
        cdef int64_t *v
        found = []
        for e in range(m.entry_count):
            count = m.function[m.entry[e].function].count
            v = <int64_t *>(m.arena + m.entry[e].at)
            key = (<const char *>(v + count))[: m.entry[e].key_size]
            found.append((m.entry[e].function, key, [v[k] for k in range(count)]))
        m.entry_count, m.arena_used = 0, 0
        if m.entry_buckets:
            memset(m.entry_bucket, 0xFF, m.entry_buckets * sizeof(uint32_t))
        return found


cdef int operation(i) except -1:
    """The number in ``execute`` of an instruction."""
    kind, code = i.opcode & 7, i.opcode & 0xF0
    if kind in (Class.ALU, Class.ALU64):
        if code == Alu.END:
            swap = kind == Class.ALU64 or i.opcode & X
            return {(True, 16): O_SWAP16, (True, 32): O_SWAP32, (True, 64): O_SWAP64,
                    (False, 16): O_LOW16, (False, 32): O_LOW32, (False, 64): O_LOW64,
                    }[bool(swap), i.immediate]
        return (WIDE_ALU if kind == Class.ALU64 else NARROW_ALU).get((code, i.offset), O_BAD)
    if kind in (Class.JMP, Class.JMP32):
        if code == Jump.JA:
            return O_JA
        if code == Jump.EXIT:
            return O_EXIT
        if code == Jump.CALL:
            return O_LOCAL if i.source == LOCAL else O_CALL
        return (WIDE_JUMP if kind == Class.JMP else NARROW_JUMP).get(code, O_BAD)
    if i.wide is not None:
        return O_WIDE
    mode, size = i.opcode & 0xE0, i.opcode & 0x18
    if kind == Class.LDX:
        return (SIGNED_LOAD if mode == Mode.MEMSX else LOAD).get(size, O_BAD)
    return STORE.get(size, O_BAD)


WIDE_ALU = {
    (Alu.ADD, 0): O_ADD, (Alu.SUB, 0): O_SUB, (Alu.MUL, 0): O_MUL, (Alu.DIV, 0): O_DIV,
    (Alu.OR, 0): O_OR, (Alu.AND, 0): O_AND, (Alu.LSH, 0): O_LSH, (Alu.RSH, 0): O_RSH,
    (Alu.NEG, 0): O_NEG, (Alu.MOD, 0): O_MOD, (Alu.XOR, 0): O_XOR, (Alu.MOV, 0): O_MOV,
    (Alu.ARSH, 0): O_ARSH, (Alu.DIV, 1): O_SDIV, (Alu.MOD, 1): O_SMOD, (Alu.MOV, 8): O_MOVS8,
    (Alu.MOV, 16): O_MOVS16, (Alu.MOV, 32): O_MOVS32,
}
NARROW_ALU = {
    (Alu.ADD, 0): O_ADD32, (Alu.SUB, 0): O_SUB32, (Alu.MUL, 0): O_MUL32, (Alu.DIV, 0): O_DIV32,
    (Alu.OR, 0): O_OR32, (Alu.AND, 0): O_AND32, (Alu.LSH, 0): O_LSH32, (Alu.RSH, 0): O_RSH32,
    (Alu.NEG, 0): O_NEG32, (Alu.MOD, 0): O_MOD32, (Alu.XOR, 0): O_XOR32, (Alu.MOV, 0): O_MOV32,
    (Alu.ARSH, 0): O_ARSH32, (Alu.DIV, 1): O_SDIV32, (Alu.MOD, 1): O_SMOD32,
    (Alu.MOV, 8): O_MOVS8_32, (Alu.MOV, 16): O_MOVS16_32,
}
WIDE_JUMP = {
    Jump.JEQ: O_JEQ, Jump.JGT: O_JGT, Jump.JGE: O_JGE, Jump.JSET: O_JSET, Jump.JNE: O_JNE,
    Jump.JSGT: O_JSGT, Jump.JSGE: O_JSGE, Jump.JLT: O_JLT, Jump.JLE: O_JLE, Jump.JSLT: O_JSLT,
    Jump.JSLE: O_JSLE,
}
NARROW_JUMP = {
    Jump.JEQ: O_JEQ32, Jump.JGT: O_JGT32, Jump.JGE: O_JGE32, Jump.JSET: O_JSET32,
    Jump.JNE: O_JNE32, Jump.JSGT: O_JSGT32, Jump.JSGE: O_JSGE32, Jump.JLT: O_JLT32,
    Jump.JLE: O_JLE32, Jump.JSLT: O_JSLT32, Jump.JSLE: O_JSLE32,
}
LOAD = {Size.B: O_LD1, Size.H: O_LD2, Size.W: O_LD4, Size.DW: O_LD8}
SIGNED_LOAD = {Size.B: O_LDS1, Size.H: O_LDS2, Size.W: O_LDS4}
STORE = {Size.B: O_ST1, Size.H: O_ST2, Size.W: O_ST4, Size.DW: O_ST8}

memset(HELPERS, 0, sizeof(HELPERS))
HELPERS[<int>Helper.LOAD] = h_load
HELPERS[<int>Helper.STORE] = h_store
HELPERS[<int>Helper.COPY] = h_copy
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
NATIVE = frozenset(n for n in range(MAX_HELPER) if HELPERS[n] != NULL)
