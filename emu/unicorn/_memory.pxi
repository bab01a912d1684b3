"""Access to guest memory and registers for native code, and the pages with translated code.

Part of the engine (``_engine.pyx`` includes this file).
"""

cdef Region *region_of(Clock *c, uint64_t physical, uint64_t size) noexcept nogil:
    """Return the RAM region that contains a range of physical memory, or NULL."""
    cdef int i
    for i in range(c.region_count):
        if (physical >= c.regions[i].physical
                and physical - c.regions[i].physical < c.regions[i].size
                and size <= c.regions[i].size - (physical - c.regions[i].physical)):
            return &c.regions[i]
    return NULL


cdef uint8_t *host_physical(Clock *c, uint64_t physical, uint64_t size) noexcept nogil:
    """Return the host address of a physical memory range, or NULL if the range is not RAM."""
    cdef Region *region = region_of(c, physical, size)
    return NULL if region == NULL else region.host + (physical - region.physical)


cdef bint flat(Clock *c, uint64_t address, uint64_t *physical) noexcept nogil:
    """Translate an address to itself, for an engine without page tables."""
    c.walked_count = 0
    physical[0] = address
    return True


# -- translated code ------------------------------------------------------------------------------
# The CPU model notices the guest's own stores. All other writers of RAM must call ``written``.

cdef void note_translated(Clock *c, Region *region, uint64_t physical) noexcept nogil:
    cdef uint8_t *code = &region.code[(physical - region.physical) >> 12]
    if code[0] != CODE_NEW:
        code[0] = CODE_NEW
        if c.translated_used < MAX_TRANSLATED:
            c.translated[c.translated_used] = physical & ~<uint64_t>4095
            c.translated_used += 1


cdef void translated(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    """Record that code at virtual [address, address + size) was translated (on up to two pages)."""
    cdef uint64_t physical = 0
    cdef uint64_t last = address + (size if size else 1) - 1
    cdef Region *region
    while True:
        region = region_of(c, physical, 1) if c.walk(c, address, &physical) else NULL
        if region == NULL:
            c.code_anywhere = True
        else:
            if not region.code[(physical - region.physical) >> 12] and (
                    address >> 63 or not c.guards_high):
                c.guards_high |= <bint>(address >> 63)
                guard_code(c, address, physical)
            if c.asks_translated:
                note_translated(c, region, physical)
            else:
                region.code[(physical - region.physical) >> 12] = CODE_KNOWN
        if (address ^ last) >> 12 == 0:
            return
        address = last


cdef bint holds_code(Clock *c, uint64_t physical, uint64_t size) noexcept nogil:
    """Return whether any page in a physical range may contain translated code."""
    cdef Region *region = region_of(c, physical, size)
    cdef uint64_t page
    if region == NULL:
        return False  # not RAM
    if c.code_anywhere:
        return True
    physical -= region.physical
    for page in range(physical >> 12, (physical + size - 1 >> 12) + 1):
        if region.code[page]:
            return True
    return False


cdef void written(Clock *c, uint64_t physical, uint64_t size) noexcept nogil:
    """Drop translations of a range within one RAM region after a write by the host.

    Unicorn drops translations by virtual address, and looks the address up as if the guest fetched
    there: this sets accessed bits, and where the guest could not fetch, nothing is dropped and a
    page fault begins.  Virtual addresses are therefore treated as physical ones meanwhile.
    """
    cdef uint64_t offset = physical - c.regions[0].physical
    if offset < c.regions[0].size and (offset & 4095) + size <= 4096 and not (
            c.code_anywhere or c.regions[0].code[offset >> 12]):
        return  # common case: a probe writes to a page without code in the first region
    if not c.started or size == 0 or not holds_code(c, physical, size):
        return
    flatten(c, True)
    c.ctl(c.uc, ctl_word(CTL_TB_REMOVE_CACHE, 2, CTL_WRITE), physical, physical + size)
    flatten(c, False)


cdef void flatten(Clock *c, bint physical) noexcept nogil:
    """Start or stop treating virtual addresses as physical ones."""
    if c.walk != flat:
        c.ctl(c.uc, ctl_word(CTL_TLB_TYPE, 1, CTL_WRITE),
              <int>(TLB_VIRTUAL if physical else TLB_CPU))
        c.ctl(c.uc, ctl_word(CTL_TLB_FLUSH, 0, CTL_WRITE))


cdef bint ask_model(Clock *c, uint64_t address, uint64_t *physical) noexcept nogil:
    """Translate an address through the CPU model, for engines without a native page walk."""
    c.walked_count = 0
    return c.vmem_translate(c.uc, address, PROT_READ, physical) == 0


cdef bint drop_translations(Clock *c, uint64_t begin, uint64_t end) noexcept nogil:
    """Drop translations of code at virtual [begin, end), without changing the page tables.

    Return False if a page is not mapped or the range is too large; then all must be dropped.
    """
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
    """Return whether the guest could fetch code from the page that was just walked.

    If it could not, Unicorn would raise a page fault, as it looks up code like the guest.  In user
    mode the page may be the kernel's; in the kernel it may be a program's, at a low address.
    """
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
    """Restore the page table entries that were walked; return whether any had changed."""
    cdef int i
    cdef bint changed = False
    for i in range(c.walked_count):
        if c.walked[i][0] != content[i]:
            c.walked[i][0] = content[i]
            changed = True
    return changed


cdef uint8_t *host_page(Clock *c, uint64_t address, uint64_t *physical) noexcept nogil:
    """Return the host address of a virtual address, or NULL; valid up to the end of the page."""
    if not c.walk(c, address, physical):
        return NULL
    return host_physical(c, physical[0], 4096 - (address & 4095))


cdef uint8_t *host_virtual(Clock *c, uint64_t address) noexcept nogil:
    cdef uint64_t physical = 0
    return host_page(c, address, &physical)


cdef bint guest_read(Clock *c, uint64_t address, void *data, uint32_t size) noexcept nogil:
    """Read virtual memory; return False if a page is not mapped to RAM."""
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
    """Write virtual memory; if a page is not mapped to RAM, write nothing and return False."""
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
    """Set the program counter from a hook."""
    if c.by_context:
        c.context_save(c.uc, c.context)
        in_context(c, c.pc_place)[0] = pc
        c.context_restore(c.uc, c.context)
    else:
        c.reg_write(c.uc, c.pc_register, &pc)
