"""Addresses at which somebody wants to be told that a block begins; part of the engine
(``_engine.pyx`` includes it).

A function's return address begins a block whenever something returns there. The short cut for known
blocks never holds an awaited address, so that all other blocks cost what they cost without.
"""


cdef inline bint is_awaited(Clock *c, uint64_t address) noexcept nogil:
    cdef uint64_t i
    if c.awaited_count == 0:
        return False
    i = (address * <uint64_t>0x9E3779B97F4A7C15 >> 24) & c.awaited_mask
    while c.awaited[i]:
        if c.awaited[i] == address:
            return True
        i = (i + 1) & c.awaited_mask
    return False


cdef void put_awaited(uint64_t *table, uint64_t mask, uint64_t address) noexcept nogil:
    cdef uint64_t i = (address * <uint64_t>0x9E3779B97F4A7C15 >> 24) & mask
    while table[i]:
        i = (i + 1) & mask
    table[i] = address


cdef bint await_address(Clock *c, uint64_t address) noexcept nogil:
    """Have ``arrived`` called before each block that begins at an address, until ``await_nothing``;
    false: there is no memory for it."""
    cdef uint64_t i, size
    cdef uint64_t *more
    if address == 0 or is_awaited(c, address):
        return True
    if 2 * (c.awaited_count + 1) > c.awaited_mask:
        size = 2 * (c.awaited_mask + 1) if c.awaited != NULL else 1024
        more = <uint64_t *>calloc(size, sizeof(uint64_t))
        if more == NULL:
            return False
        if c.awaited != NULL:
            for i in range(c.awaited_mask + 1):
                if c.awaited[i]:
                    put_awaited(more, size - 1, c.awaited[i])
        free(c.awaited)
        c.awaited, c.awaited_mask = more, size - 1
    put_awaited(c.awaited, c.awaited_mask, address)
    c.awaited_count += 1
    fast_block(c, address).size = 0
    return True


cdef void await_nothing(Clock *c) noexcept nogil:
    """Forget all awaited addresses."""
    c.awaited_count = 0
    c.arrived = NULL
    if c.awaited != NULL:
        memset(c.awaited, 0, (c.awaited_mask + 1) * sizeof(uint64_t))
