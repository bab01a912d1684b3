"""Guards of translated code: ranges of RAM in which Unicorn notices every store of the guest.

Unicorn notices stores to code through an executable mapping.  Through another mapping of the same
page (a kernel's direct map), it notices only the first store after the mapping has entered its TLB,
and drops only the translations of the bytes stored.  It never stops looking where a memory hook is
installed, of whatever kind.  The hooks of guards are for fetches from memory without permission to
execute, which does not exist here: they are never called, and cost nothing but that stores in the
range are looked at.

Where a kernel has high addresses, only its code is guarded, and not that of programs: Unicorn walks
the list of hooks at many stores, so that guards of many pages cost more than half of the speed.  The
code of the kernel's image and of the modules loaded with it takes one guard each; modules that the
guest loads later take a guard for each run of pages.  If there are no guards left, the closest one
grows.

A hook's range cannot be changed through Unicorn's interface, and a removed hook remains in the list
until the run ends.  The range is therefore changed in the hook itself, in which it is found by its
values.  Part of the engine (``_engine.pyx`` includes this file).
"""

# The range of a hook that is not in use: the last bytes of the address space, which are not RAM
cdef uint64_t UNGUARDED = ~<uint64_t>0 - 8


cdef bint never_called(void *uc, int kind, uint64_t address, int size, int64_t value, void *data
                       ) noexcept nogil:
    return False


cdef void guard_code(Clock *c, uint64_t address, uint64_t physical) noexcept nogil:
    """Guard a page of RAM on which code has been translated for the first time.

    :param address: virtual address of the code.  If it is in the code of the image, all whole pages
        of that code are guarded at once.  They are nearly always contiguous in memory; where they
        are not, other pages are guarded needlessly.
    """
    cdef uint64_t begin = physical & ~<uint64_t>4095
    cdef uint64_t last = begin + 4095
    cdef uint64_t page = address & ~<uint64_t>4095
    cdef uint64_t first, end
    cdef Guard *found = NULL
    cdef Guard *guard
    cdef int i = 0
    for i in range(c.guard_count):
        if c.guards[i].begin <= physical <= c.guards[i].last:
            return
    for i in range(c.image_code_count):
        first = c.image_code[i][0] + 4095 & ~<uint64_t>4095
        end = c.image_code[i][1] & ~<uint64_t>4095
        if first <= page < end and page - first <= begin:
            last = begin + (end - page) - 1
            begin -= page - first
            break
    i = 0
    while i < c.guard_count:  # take over the guards that the new one touches
        guard = &c.guards[i]
        if guard.begin <= last + 1 and begin <= guard.last + 1:
            begin, last = min(begin, guard.begin), max(last, guard.last)
            if found == NULL:
                found = guard
                i += 1
            else:
                drop_guard(c, i)
        else:
            i += 1
    if found == NULL:
        if c.guard_count == MAX_GUARDS:
            found = closest_guard(c, begin)
            begin, last = min(begin, found.begin), max(last, found.last)
        else:
            found = new_guard(c)
            if found == NULL:
                return
    set_guard(found, begin, last)
    # Mappings that are in the TLB already may have been written, and would not be looked at.
    c.ctl(c.uc, ctl_word(CTL_TLB_FLUSH, 0, CTL_WRITE))


cdef Guard *closest_guard(Clock *c, uint64_t begin) noexcept nogil:
    """Return the guard that is closest to an address outside all guards."""
    cdef uint64_t distance, least = ~<uint64_t>0
    cdef int i, best = 0
    for i in range(c.guard_count):
        distance = (c.guards[i].begin - begin if begin < c.guards[i].begin
                    else begin - c.guards[i].last)
        if distance < least:
            least, best = distance, i
    return &c.guards[best]


cdef Guard *new_guard(Clock *c) noexcept nogil:
    """Return a guard whose range is not set yet, or NULL after an error."""
    cdef Guard *guard = &c.guards[c.guard_count]
    cdef uint64_t words[HOOK_WORDS]
    cdef int i
    if guard.range == NULL:
        if c.hook_add(c.uc, &guard.hook, HOOK_MEM_FETCH_PROT, <void *>never_called, c,
                      UNGUARDED, UNGUARDED + 1):
            with gil:
                (<Engine>c.engine).failed(MemoryError("Unicorn cannot watch stores to code"))
            return NULL
        memcpy(words, <void *>guard.hook, sizeof(words))
        for i in range(HOOK_WORDS - 1):
            if words[i] == UNGUARDED and words[i + 1] == UNGUARDED + 1:
                guard.range = <uint64_t *>guard.hook + i
                break
        else:
            with gil:
                (<Engine>c.engine).failed(RuntimeError(
                    "Unicorn's hooks have another layout: version 2.1.4 is known to work"))
            return NULL
    c.guard_count += 1
    return guard


cdef void set_guard(Guard *guard, uint64_t begin, uint64_t last) noexcept nogil:
    guard.begin, guard.last = begin, last
    guard.range[0], guard.range[1] = begin, last


cdef void drop_guard(Clock *c, int i) noexcept nogil:
    """Remove a guard; its hook, whose range is then that of no memory, is used again later."""
    cdef Guard dropped = c.guards[i]
    set_guard(&dropped, UNGUARDED, UNGUARDED + 1)
    c.guard_count -= 1
    c.guards[i] = c.guards[c.guard_count]
    c.guards[c.guard_count] = dropped
