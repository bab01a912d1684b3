"""Guest memory and registers, for native code, and what the CPU model has translated of memory; part of
the engine (``_engine.pyx`` includes it).
"""

cdef Region *region_of(Clock *c, uint64_t physical, uint64_t size) noexcept nogil:
    """The RAM that holds a piece; NULL when none does."""
    cdef int i
    for i in range(c.region_count):
        if (physical >= c.regions[i].physical
                and physical - c.regions[i].physical < c.regions[i].size
                and size <= c.regions[i].size - (physical - c.regions[i].physical)):
            return &c.regions[i]
    return NULL


cdef uint8_t *host_physical(Clock *c, uint64_t physical, uint64_t size) noexcept nogil:
    """The host's address of a piece of RAM; NULL when it is none."""
    cdef Region *region = region_of(c, physical, size)
    return NULL if region == NULL else region.host + (physical - region.physical)


cdef bint flat(Clock *c, uint64_t address, uint64_t *physical) noexcept nogil:
    """The translation of an engine without page tables."""
    c.walked_count = 0
    physical[0] = address
    return True


# -- what was made of memory ----------------------------------------------------------------------
# The guest's own stores are seen by the CPU model.  Whoever else writes RAM tells ``written``.

cdef void note_translated(Clock *c, Region *region, uint64_t physical) noexcept nogil:
    cdef uint8_t *code = &region.code[(physical - region.physical) >> 12]
    if code[0] != CODE_NEW:
        code[0] = CODE_NEW
        if c.translated_used < MAX_TRANSLATED:
            c.translated[c.translated_used] = physical & ~<uint64_t>4095
            c.translated_used += 1


cdef void translated(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    """Code was translated of the virtual [address, address + size): at most two pages."""
    cdef uint64_t physical = 0
    cdef uint64_t last = address + (size if size else 1) - 1
    cdef Region *region
    while True:
        region = region_of(c, physical, 1) if c.walk(c, address, &physical) else NULL
        if region == NULL:
            c.code_anywhere = True
        else:
            if c.asks_translated:
                note_translated(c, region, physical)
            else:
                region.code[(physical - region.physical) >> 12] = CODE_KNOWN
        if (address ^ last) >> 12 == 0:
            return
        address = last


cdef bint holds_code(Clock *c, uint64_t physical, uint64_t size) noexcept nogil:
    """Whether code may have been translated of a page there."""
    cdef Region *region = region_of(c, physical, size)
    cdef uint64_t page
    if region == NULL:
        return False  # no RAM
    if c.code_anywhere:
        return True
    physical -= region.physical
    for page in range(physical >> 12, (physical + size - 1 >> 12) + 1):
        if region.code[page]:
            return True
    return False


cdef void written(Clock *c, uint64_t physical, uint64_t size) noexcept nogil:
    """RAM was written past the CPU model, in one region: what was translated of it is dropped.

    Unicorn drops by virtual address, as the guest would fetch there: with accessed bits set, and
    where the guest could not, with nothing dropped and a page fault begun.  Meanwhile virtual
    addresses are physical ones.
    """
    cdef uint64_t offset = physical - c.regions[0].physical
    if offset < c.regions[0].size and (offset & 4095) + size <= 4096 and not (
            c.code_anywhere or c.regions[0].code[offset >> 12]):
        return  # on a page of RAM, as most is that a firing writes
    if not c.started or size == 0 or not holds_code(c, physical, size):
        return
    flatten(c, True)
    c.ctl(c.uc, ctl_word(CTL_TB_REMOVE_CACHE, 2, CTL_WRITE), physical, physical + size)
    flatten(c, False)


cdef void flatten(Clock *c, bint physical) noexcept nogil:
    """Make virtual addresses physical ones, or what they were."""
    if c.walk != flat:
        c.ctl(c.uc, ctl_word(CTL_TLB_TYPE, 1, CTL_WRITE),
              <int>(TLB_VIRTUAL if physical else TLB_CPU))
        c.ctl(c.uc, ctl_word(CTL_TLB_FLUSH, 0, CTL_WRITE))


cdef bint ask_model(Clock *c, uint64_t address, uint64_t *physical) noexcept nogil:
    """The CPU model's own translation, until the architecture's walk is set."""
    c.walked_count = 0
    return c.vmem_translate(c.uc, address, PROT_READ, physical) == 0


cdef bint drop_translations(Clock *c, uint64_t begin, uint64_t end) noexcept nogil:
    """Drop what was translated of the code at virtual [begin, end), for somebody who only looks: the
    guest's page tables and what is kept of them stay what they are.  False: a page is not mapped,
    and all must be dropped."""
    cdef uint64_t last
    cdef uint64_t physical = 0
    cdef uint64_t content[MAX_WALK]
    cdef bint changed = False
    if begin < end and end - begin > MANY_PAGES:
        return False
    while begin < end:
        last = (begin | 4095) + 1
        if last > end or last == 0:
            last = end
        if not c.walk(c, begin, &physical):
            return False
        if c.started and holds_code(c, physical, last - begin):
            if fetchable(c, begin):
                keep_walked(c, content)
                c.ctl(c.uc, ctl_word(CTL_TB_REMOVE_CACHE, 2, CTL_WRITE), begin, last)
                changed |= put_walked(c, content)
            else:
                written(c, physical, last - begin)
        begin = last
    if changed:
        c.ctl(c.uc, ctl_word(CTL_TLB_FLUSH, 0, CTL_WRITE))
    return True


cdef inline bint fetchable(Clock *c, uint64_t address) noexcept nogil:
    """Whether the guest could fetch from the page that was walked to: else Unicorn, who drops as the
    guest would fetch, begins a page fault.  In user mode it may be the kernel's; in the kernel it
    may be a program's, at low addresses."""
    cdef int i
    if not address >> 63 or in_user_mode(c):
        return False
    for i in range(c.walked_count):
        if c.walked[i][0] & c.no_execute:
            return False
    return True


cdef void keep_walked(Clock *c, uint64_t *content) noexcept nogil:
    cdef int i
    for i in range(c.walked_count):
        content[i] = c.walked[i][0]


cdef bint put_walked(Clock *c, uint64_t *content) noexcept nogil:
    """The entries that were walked become what they were; whether one was not."""
    cdef int i
    cdef bint changed = False
    for i in range(c.walked_count):
        if c.walked[i][0] != content[i]:
            c.walked[i][0] = content[i]
            changed = True
    return changed


cdef uint8_t *host_page(Clock *c, uint64_t address, uint64_t *physical) noexcept nogil:
    """The host's address of a virtual one, as far as the end of its page, and the physical one."""
    if not c.walk(c, address, physical):
        return NULL
    return host_physical(c, physical[0], 4096 - (address & 4095))


cdef uint8_t *host_virtual(Clock *c, uint64_t address) noexcept nogil:
    cdef uint64_t physical = 0
    return host_page(c, address, &physical)


cdef bint guest_read(Clock *c, uint64_t address, void *data, uint32_t size) noexcept nogil:
    """Virtual memory; false when a page is not mapped."""
    cdef uint8_t *to = <uint8_t *>data
    cdef uint8_t *host
    cdef uint32_t room
    while size:
        host = host_virtual(c, address)
        if host == NULL:
            return False
        room = <uint32_t>(4096 - (address & 4095))
        if room > size:
            room = size
        memcpy(to, host, room)
        to += room
        address += room
        size -= room
    return True


cdef bint guest_write(Clock *c, uint64_t address, const void *data, uint32_t size) noexcept nogil:
    """Virtual memory; false when a page is not mapped, and nothing is written then."""
    cdef const uint8_t *source = <const uint8_t *>data
    cdef uint64_t at = 0
    cdef uint64_t behind = 0
    cdef uint32_t room = <uint32_t>(4096 - (address & 4095))
    cdef uint8_t *first = host_page(c, address, &at)
    cdef uint8_t *second
    if first == NULL or size > 4096:
        return False
    if room < size:
        second = host_page(c, address + room, &behind)
        if second == NULL:
            return False
        memcpy(second, source + room, size - room)
        written(c, behind, size - room)
        size = room
    memcpy(first, source, size)
    written(c, at, size)
    return True


cdef uint64_t register_read(Clock *c, int register) noexcept nogil:
    cdef uint64_t value = 0
    c.reg_read(c.uc, register, &value)
    return value


cdef void register_write(Clock *c, int register, uint64_t value) noexcept nogil:
    c.reg_write(c.uc, register, &value)


cdef void go_to(Clock *c, uint64_t pc) noexcept nogil:
    """Set the program counter, from a hook."""
    if c.by_context:
        c.context_save(c.uc, c.context)
        in_context(c, c.pc_place)[0] = pc
        c.context_restore(c.uc, c.context)
    else:
        c.reg_write(c.uc, c.pc_register, &pc)
