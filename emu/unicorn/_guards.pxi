"""Guards of translated code: ranges of RAM in which Unicorn notices every store of the guest.

Unicorn notices stores to code through an executable mapping.  Through another mapping of the same
page (a kernel's direct map), it notices only the first store after the mapping has entered its TLB,
and drops only the translations of the bytes stored.  It never stops looking where a memory hook is
installed, of whatever kind.  The hooks of guards are for fetches from memory without permission to
execute, which does not exist here: they are never called, and cost nothing but that stores in the
range are looked at.  Part of the engine (``_engine.pyx`` includes this file).
"""

cdef bint never_called(void *uc, int kind, uint64_t address, int size, int64_t value, void *data
                       ) noexcept nogil:
    return False


cdef void guard_code(Clock *c, uint64_t physical) noexcept nogil:
    """Guard a page of RAM on which code has been translated for the first time."""
    cdef uint64_t begin = physical & ~<uint64_t>(GUARDED - 1)
    cdef uint64_t last = begin + GUARDED - 1
    cdef int i = 0
    for i in range(c.guard_count):
        if c.guards[i].begin <= physical <= c.guards[i].last:
            return
    i = 0
    while i < c.guard_count:  # take over the guards that touch the new one
        if c.guards[i].begin <= last + 1 and begin <= c.guards[i].last + 1:
            begin, last = min(begin, c.guards[i].begin), max(last, c.guards[i].last)
            remove_guard(c, i)
        else:
            i += 1
    if c.guard_count == MAX_GUARDS:
        join_guards(c)
        guard_code(c, physical)
        return
    add_guard(c, begin, last)


cdef void add_guard(Clock *c, uint64_t begin, uint64_t last) noexcept nogil:
    cdef Guard *guard = &c.guards[c.guard_count]
    guard.begin, guard.last = begin, last
    if c.hook_add(c.uc, &guard.hook, HOOK_MEM_FETCH_PROT, <void *>never_called, c, begin, last):
        with gil:
            (<Engine>c.engine).failed(MemoryError("Unicorn cannot watch stores to code"))
        return
    c.guard_count += 1
    # Mappings that are in the TLB already may have been written, and would not be looked at.
    c.ctl(c.uc, ctl_word(CTL_TLB_FLUSH, 0, CTL_WRITE))


cdef void remove_guard(Clock *c, int i) noexcept nogil:
    c.hook_del(c.uc, c.guards[i].hook)
    c.guard_count -= 1
    c.guards[i] = c.guards[c.guard_count]


cdef void join_guards(Clock *c) noexcept nogil:
    """Replace the two guards that are closest to each other with one."""
    cdef uint64_t distance, best = ~<uint64_t>0
    cdef int i, k, first = 0, second = 1
    cdef uint64_t begin, last
    for i in range(c.guard_count):
        for k in range(c.guard_count):
            if c.guards[i].last < c.guards[k].begin:
                distance = c.guards[k].begin - c.guards[i].last
                if distance < best:
                    best, first, second = distance, i, k
    begin, last = c.guards[first].begin, c.guards[second].last
    remove_guard(c, max(first, second))
    remove_guard(c, min(first, second))
    add_guard(c, begin, last)
