"""Breakpoints in guest memory, and the slots of the trampolines.

This file is part of the dispatcher; ``_dispatch.pyx`` includes it.
"""


cdef inline bint patch_taken(const Site *s) noexcept nogil:
    """Whether a site has a breakpoint while probes are enabled."""
    return (s.first != NONE and not program_owns(s) or s.gate or s.call or s.operation or
            s.lock or s.allocation or s.join or s.target != 0)


cdef object patch_find_changed(Dispatch *d):
    """Return the address of a site whose code has changed since it was added, or None."""
    cdef uint32_t i
    cdef Site *s
    cdef uint8_t now[MAX_CODE]
    cdef uint64_t page = 1
    cdef uint8_t *host = NULL
    for i in range(d.site_count):
        s = &d.sites[i]
        if not patch_taken(s):
            continue
        if s.address & ~<uint64_t>4095 != page:
            page = s.address & ~<uint64_t>4095
            host = host_virtual(d.clock, page)
        if host == NULL:
            return s.address
        if (s.address & 4095) + s.length <= 4096:
            if memcmp(host + (s.address & 4095), s.code, s.length) != 0:
                return s.address
        elif not guest_read(d.clock, s.address, now, s.length) or memcmp(
                now, s.code, s.length) != 0:
            return s.address
    return None


cdef int patch_make_slots(Dispatch *d, uint64_t base, uint64_t physical, uint64_t size, uint64_t reserved,
                    bint threads) except -1:
    """Prepare the guest memory for trampolines; see ``Dispatcher.use_slots``."""
    free(d.slot_site)
    free(d.slot_used)
    d.slot_site = NULL
    d.slot_used = NULL
    d.slot_base = base
    d.slot_count = size // SLOT
    d.slots = host_physical(d.clock, physical, size)
    if d.slots == NULL:
        d.slot_count = 0
        raise ValueError("the trampoline area is not in RAM")
    d.slot_site = <uint32_t *>malloc(d.slot_count * sizeof(uint32_t))
    d.slot_used = <uint64_t *>calloc(d.slot_count // 64 + 1, 8)
    if d.slot_site == NULL or d.slot_used == NULL:
        d.slots = NULL
        d.slot_count = 0
        raise MemoryError
    memset(d.slot_site, 0xFF, d.slot_count * sizeof(uint32_t))
    d.slot_hint = reserved
    d.threads = threads
    d.thread_count = 0
    d.thread_slot = <uint32_t>reserved
    for i in range(reserved + (MAX_THREADS + 1 if threads else 0)):
        d.slot_used[i // 64] |= <uint64_t>1 << i % 64
    return 0


cdef uint32_t patch_take_slot(Dispatch *d) except? 0xFFFFFFFF:
    """Allocate and return the lowest free slot, searching from ``slot_hint``."""
    while d.slot_hint < d.slot_count:
        if d.slot_used[d.slot_hint // 64] >> d.slot_hint % 64 & 1 == 0:
            d.slot_used[d.slot_hint // 64] |= <uint64_t>1 << d.slot_hint % 64
            d.slot_hint += 1
            return <uint32_t>(d.slot_hint - 1)
        d.slot_hint += 1
    raise MemoryError("no trampoline slot is free")


cdef int patch_site(Dispatch *d, Site *s, const uint8_t *code, bint one_by_one) except -1:
    """Overwrite the first bytes of a site with a breakpoint or the original code."""
    cdef uint32_t n = d.breakpoint_length if s.length >= d.breakpoint_length else s.length
    if not guest_write(d.clock, s.address, code, n):
        raise MemoryError(f"{s.address:#x} is not mapped")
    if one_by_one:
        drop_translations(d.clock, s.address, s.address + s.length)
    return 0


cdef bint patch_holds_breakpoint(Dispatch *d, Site *s):
    """Whether a site still has its breakpoint; the kernel may have patched its own code."""
    cdef uint8_t now[4]
    if s.length < d.breakpoint_length:
        return guest_read(d.clock, s.address, now, s.length) and memcmp(
            now, d.short_breakpoint, s.length) == 0
    return guest_read(d.clock, s.address, now, d.breakpoint_length) and memcmp(
        now, d.breakpoint, d.breakpoint_length) == 0


cdef int patch_all(Dispatch *d, bint one_by_one) except -1:
    """Write the trampolines, and the breakpoints of all sites that need breakpoints.

    :param one_by_one: drop the translations of each site; otherwise the caller drops all.
    """
    cdef uint32_t i
    cdef Site *s
    for i in range(d.site_count):
        s = &d.sites[i]
        if not patch_taken(s) or s.patched:
            continue
        if not op_emulated(&d.templates.all[s.template]) and not d.threads:
            s.slot = patch_take_slot(d)
            d.slot_site[s.slot] = i
            s.second = <uint8_t>op_build(d, s, d.slot_base + <uint64_t>s.slot * SLOT,
                                      d.slots + <uint64_t>s.slot * SLOT)
        if s.length < d.breakpoint_length:
            patch_site(d, s, d.short_breakpoint, one_by_one)
        else:
            patch_site(d, s, d.breakpoint, one_by_one)
        s.patched = True
    return 0


cdef int patch_unpatch_all(Dispatch *d, bint one_by_one) except -1:
    """Restore the original code of all sites and free their trampolines.

    :param one_by_one: drop the translations of each site; otherwise the caller drops all.
    """
    cdef uint32_t i
    cdef uint32_t k
    cdef Site *s
    for i in range(d.site_count):
        s = &d.sites[i]
        if not s.patched:
            continue
        if patch_holds_breakpoint(d, s):
            patch_site(d, s, s.code, one_by_one)
        s.patched = False
        if s.slot != NONE:
            d.slot_used[s.slot // 64] &= ~(<uint64_t>1 << s.slot % 64)
            d.slot_site[s.slot] = NONE
            for k in range(SLOT):
                d.slots[<uint64_t>s.slot * SLOT + k] = d.breakpoint[k % d.breakpoint_length]
            if s.slot < d.slot_hint:
                d.slot_hint = s.slot
            s.slot = NONE
    return 0
