"""Callbacks for blocks that begin at awaited addresses (included by ``_engine.pyx``).

A function's return address begins a block whenever a function returns there, and it ends the block
that contains the call.  Both kinds of blocks are kept off the fast path, so that awaiting an
address does not slow down any other block.
"""

cdef enum:
    LONGEST_BLOCK = 4096 + 16  # maximum size of a block in bytes (a page end ends a block)



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


cdef int await_address(Clock *c, uint64_t address) noexcept nogil:
    """Add an address to the awaited addresses; ``await_nothing`` removes all of them.

    ``arrived`` is called before each block that begins there, ``called`` after each that ends
    there.
    """
    cdef uint64_t i, size
    cdef uint64_t *more
    if address == 0 or is_awaited(c, address):
        return AWAITED
    if c.awaited_count == MAX_AWAITED:
        return TOO_MANY_AWAITED
    if 2 * (c.awaited_count + 1) > c.awaited_mask:
        size = 2 * (c.awaited_mask + 1) if c.awaited != NULL else 1024
        more = <uint64_t *>calloc(size, sizeof(uint64_t))
        if more == NULL:
            return NO_MEMORY
        if c.awaited != NULL:
            for i in range(c.awaited_mask + 1):
                if c.awaited[i]:
                    put_awaited(more, size - 1, c.awaited[i])
        free(c.awaited)
        c.awaited, c.awaited_mask = more, size - 1
    put_awaited(c.awaited, c.awaited_mask, address)
    c.awaited_count += 1
    fast_block(c, address).size = 0
    forget_calls_back_to(c, address)
    return AWAITED


cdef void forget_calls_back_to(Clock *c, uint64_t address) noexcept nogil:
    """Take all blocks that end at a given address off the fast path."""
    cdef FastBlock *fast
    cdef uint64_t size = 4 if c.fixed else 1
    while size <= LONGEST_BLOCK:
        fast = fast_block(c, address - size)
        if fast.address == address - size and fast.size == size:
            fast.size = 0
        size += 4 if c.fixed else 1


cdef inline void tell_call(Clock *c, uint64_t address) noexcept nogil:
    """Report a possible call at the end of the previous block, now that the next block begins."""
    if c.calling:
        c.calling = False
        if c.called != NULL and address != c.calls_back:
            c.called(c.arrived_data, c.calls_back)


cdef inline void note_call(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    """Record whether the block about to be executed ends at an awaited return address."""
    if c.awaited_count and is_awaited(c, address + size):
        c.calling, c.calls_back = True, address + size


cdef void await_nothing(Clock *c) noexcept nogil:
    """Remove all awaited addresses and their callbacks."""
    c.awaited_count = 0
    c.arrived, c.called, c.calling = NULL, NULL, False
    if c.awaited != NULL:
        memset(c.awaited, 0, (c.awaited_mask + 1) * sizeof(uint64_t))
