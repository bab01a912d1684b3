"""Hash table of sites by address, and the chain of probes at each site.

This file is part of the dispatcher; ``_dispatch.pyx`` includes it.
"""


# Order of the probes at an instruction
cdef enum:
    AT_INSTRUCTION
    COPY_ENTERED
    COPY_LEFT
    FUNCTION_LEFT


cdef inline uint32_t table_find(Dispatch *d, uint64_t address) noexcept nogil:
    cdef uint64_t i
    if d.hash == NULL:
        return NONE
    i = (address * <uint64_t>0x9E3779B97F4A7C15 >> 24) & d.hash_mask
    while d.hash[i] != NONE:
        if d.sites[d.hash[i]].address == address:
            return d.hash[i]
        i = (i + 1) & d.hash_mask
    return NONE


cdef inline uint32_t table_find_second(Dispatch *d, uint64_t address) noexcept nogil:
    """Return the site whose trampoline has its second breakpoint at an address, or NONE."""
    cdef uint64_t slot
    cdef uint32_t i
    if address < d.slot_base or d.slots == NULL:
        return NONE
    slot = (address - d.slot_base) // SLOT
    if slot >= d.slot_count or d.returns_by_jump:
        return NONE
    i = d.slot_site[slot]
    if i == NONE or address != d.slot_base + slot * SLOT + d.sites[i].second:
        return NONE
    return i


cdef uint32_t table_site_at(Dispatch *d, uint64_t address, uint32_t template, const uint8_t *code,
                      uint32_t length, int32_t relative) except? 0xFFFFFFFF:
    """Return the site at an address; create the site if necessary."""
    cdef uint32_t i = table_find(d, address)
    cdef uint64_t room
    cdef void *more
    cdef Site *s
    if i != NONE:
        return i
    if d.site_count == d.site_room:
        if d.site_room >= 1 << 30:
            raise MemoryError
        room = d.site_room * 2 if d.site_room else 1024
        more = realloc(d.sites, room * sizeof(Site))
        if more == NULL:
            raise MemoryError
        d.sites = <Site *>more
        d.site_room = <uint32_t>room
    if d.hash == NULL or d.site_count * 2 > d.hash_mask:
        table_rehash(d, (d.hash_mask + 1) * 2 if d.hash != NULL else 4096)
    i = d.site_count
    s = &d.sites[i]
    memset(s, 0, sizeof(Site))
    s.address = address
    s.template = template
    s.first = NONE
    s.slot = NONE
    s.length = <uint8_t>length
    s.relative = relative
    memcpy(s.code, code, length)
    d.site_count += 1
    table_enter_hash(d, i)
    return i


cdef void table_enter_hash(Dispatch *d, uint32_t index):
    cdef uint64_t i
    i = (d.sites[index].address * <uint64_t>0x9E3779B97F4A7C15 >> 24) & d.hash_mask
    while d.hash[i] != NONE:
        i = (i + 1) & d.hash_mask
    d.hash[i] = index


cdef int table_rehash(Dispatch *d, uint64_t size) except -1:
    cdef uint32_t i
    cdef uint32_t *new = <uint32_t *>malloc(size * sizeof(uint32_t))
    if new == NULL:
        raise MemoryError
    memset(new, 0xFF, size * sizeof(uint32_t))
    free(d.hash)
    d.hash = new
    d.hash_mask = size - 1
    for i in range(d.site_count):
        table_enter_hash(d, i)
    return 0


cdef uint32_t table_probe_at(Dispatch *d, uint32_t site, uint32_t function,
                      int provider) except? 0xFFFFFFFF:
    """Return a function's probe at a site for a provider; create the probe if necessary."""
    cdef uint32_t i = d.sites[site].first
    while i != NONE:
        if d.probes[i].function == function and d.probes[i].provider == provider and (
                not d.probes[i].role):
            return i
        i = d.probes[i].next
    i = table_new_probe(d, site, function, provider)
    table_link(d, site, i)
    return i


cdef void table_link(Dispatch *d, uint32_t site, uint32_t probe) noexcept:
    """Add a probe to its site, in the order in which the probes fire.

    A function is entered before the inline copies in it, and left after them; the same holds for a
    copy that contains another one.  A copy of one instruction is entered before it is left.
    """
    cdef uint32_t i = d.sites[site].first
    cdef uint32_t last = NONE
    while i != NONE and not table_precedes(d, probe, i):
        last = i
        i = d.probes[i].next
    d.probes[probe].next = i
    if last == NONE:
        d.sites[site].first = probe
    else:
        d.probes[last].next = probe


cdef bint table_precedes(Dispatch *d, uint32_t one, uint32_t other) noexcept:
    """Whether a probe fires before another one that was added to the site earlier."""
    cdef int mine = table_phase(d, one)
    cdef int its = table_phase(d, other)
    if mine != its or not d.probes[one].role or not d.probes[other].role:
        return mine < its
    if mine == COPY_ENTERED:
        return d.copies[d.probes[one].copy].order < d.copies[d.probes[other].copy].order
    return d.copies[d.probes[one].copy].order > d.copies[d.probes[other].copy].order


cdef int table_phase(Dispatch *d, uint32_t probe) noexcept:
    cdef const Probe *p = &d.probes[probe]
    if p.role:
        return COPY_ENTERED if p.role == ENTERS else COPY_LEFT
    return FUNCTION_LEFT if p.provider == AT_RETURN or p.provider == PROGRAM_RETURN else AT_INSTRUCTION


cdef void table_leaves_only(Dispatch *d, uint32_t probe, uint64_t address, uint64_t size) noexcept:
    d.probes[probe].low, d.probes[probe].high = address, address + size


cdef uint32_t table_new_probe(Dispatch *d, uint32_t site, uint32_t function,
                        int provider) except? 0xFFFFFFFF:
    cdef uint32_t i
    cdef uint64_t room
    cdef void *more
    cdef Probe *p
    if d.probe_count == d.probe_room:
        room = d.probe_room * 2 if d.probe_room else 1024
        more = realloc(d.probes, room * sizeof(Probe))
        if more == NULL:
            raise MemoryError
        d.probes = <Probe *>more
        d.probe_room = <uint32_t>room
    i = d.probe_count
    p = &d.probes[i]
    memset(p, 0, sizeof(Probe))
    p.site = site
    p.primary = i
    p.next = NONE
    p.function = function
    p.provider = <uint8_t>provider
    d.probe_count += 1
    return i


cdef bint table_has_gate(Dispatch *d) noexcept nogil:
    cdef uint32_t i
    for i in range(d.site_count):
        if d.sites[i].gate:
            return True
    return False
