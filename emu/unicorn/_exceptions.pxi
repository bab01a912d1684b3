"""Delivery of exceptions without Python (``_engine.pyx`` includes this file).

The architecture's ``DELIVER`` changes the registers; this file determines how far the block in
progress was executed and sets the clock.  Exceptions that ``DELIVER`` declines are handled in
Python (``Cpu.exception``), which implements all of them and handles every one if ``Clock.slow``
is set.
"""

cpdef enum ExceptionLimit:
    MAX_EXCEPTIONS = 64  # maximum number of consecutive exceptions without an executed instruction


cdef inline bint delivers(Clock *c) noexcept nogil:
    return c.deliver != NULL and not c.frozen and not c.slow


cdef bint one_more(Clock *c, uint64_t at) noexcept nogil:
    """Count an exception after ``at`` instructions; return whether MAX_EXCEPTIONS is exceeded."""
    if at != c.exception_at:
        c.exception_at = at
        c.exceptions = 0
    c.exceptions += 1
    return c.exceptions > MAX_EXCEPTIONS


cdef inline BlockPrefix *prefix_at(Clock *c, const uint8_t *code, uint32_t size) noexcept nogil:
    cdef uint64_t h = size
    cdef uint64_t word
    cdef uint32_t i = 0
    while i + 8 <= size:
        memcpy(&word, code + i, 8)
        h = (h ^ word) * <uint64_t>0x9E3779B97F4A7C15
        h ^= h >> 29
        i += 8
    while i < size:
        h = (h ^ code[i]) * <uint64_t>0x9E3779B97F4A7C15
        i += 1
    return &c.prefixes[h >> 40 & PREFIXES - 1]


cdef void learn_prefix(Clock *c, const uint8_t *code, uint32_t size, uint32_t count) noexcept nogil:
    cdef BlockPrefix *prefix
    if c.prefixes == NULL or size > PREFIX_BYTES:
        return
    prefix = prefix_at(c, code, size)
    prefix.size, prefix.count = size, count
    memcpy(prefix.code, code, size)


cdef int64_t executed(Clock *c, uint64_t pc) noexcept nogil:
    """Return how many instructions of the block were executed before ``pc``, or -1 if unknown."""
    cdef uint64_t behind = pc - c.address
    cdef uint8_t code[PREFIX_BYTES]
    cdef BlockPrefix *prefix
    cdef uint32_t count, last
    if behind >= c.size or c.count == 0:
        return c.count
    if behind == 0:
        return 0
    if c.fixed:
        return behind >> c.fixed_bits
    if c.prefixes == NULL or behind > PREFIX_BYTES or not guest_read(c, c.address, code,
                                                                     <uint32_t>behind):
        return -1
    prefix = prefix_at(c, code, <uint32_t>behind)
    if prefix.size == behind and memcmp(prefix.code, code, behind) == 0:
        return prefix.count
    count = split(c, code, <uint32_t>behind, &last)
    if count == 0:
        return -1
    count = min(count, c.count)  # the CPU model may count several instructions as one
    learn_prefix(c, code, <uint32_t>behind, count)
    return count


cdef bint delivered(Clock *c, uint32_t vector, uint64_t pc, int64_t count) noexcept nogil:
    """Deliver an exception at ``pc``, after ``count`` instructions of the current block."""
    cdef uint64_t at = c.instructions + count
    cdef Answer answer
    if count < 0 or (at == c.exception_at and c.exceptions >= MAX_EXCEPTIONS):
        return False
    c.moment = at
    answer = c.deliver(c, vector, pc)
    if answer == DECLINED:
        return False
    one_more(c, at)
    if answer == EXECUTED:
        at += 1
    c.instructions = c.canonical = at
    c.count = 0
    pause(c)
    c.resumed = False
    c.taken += 1
    return True
