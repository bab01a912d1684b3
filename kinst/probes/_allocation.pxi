"""Probes of a kernel's allocations, where the kernel has updated the statistics of a type.

All types share these sites.  Registers tell which type it is, and how much is allocated or freed.

This file is part of the dispatcher; ``_dispatch.pyx`` includes it.
"""


cdef uint32_t allocation_probe(Dispatch *d, uint64_t kind, bint frees) noexcept nogil:
    """Return the probe of a type's allocations, or NONE."""
    cdef const Allocations *a = &d.allocations
    cdef uint32_t low = 0, high = a.type_count, middle
    while low < high:
        middle = (low + high) // 2
        if a.types[middle].kind < kind:
            low = middle + 1
        else:
            high = middle
    return a.types[low].probes[frees] if low < a.type_count and a.types[low].kind == kind else NONE


cdef void allocation_fire(Dispatch *d, const Site *s) noexcept nogil:
    """Fire the probe of the type of which memory is allocated or freed."""
    cdef const Allocations *a = &d.allocations
    cdef const AllocationSite *w = &a.sites[s.allocation - 1]
    cdef uint64_t kind = op_get(d, w.kind)
    cdef uint64_t statistics = 0, cpu = 0
    cdef uint32_t probe = allocation_probe(d, kind, w.frees)
    if probe == NONE:
        return
    memset(d.made, 0, sizeof(d.made))
    if not (guest_read(d.clock, kind + a.statistics, &statistics, 8) and
            guest_read(d.clock, register_read(d.clock, a.per_cpu) + a.of_cpu, &cpu, 8)):
        allocation_unreadable(d, kind)
        return
    d.made[0] = kind
    d.made[1] = kind + a.internal
    d.made[2] = statistics + cpu
    d.made[3] = op_get(d, w.size) if w.size != NO_REGISTER else w.size_value
    d.made[4] = op_get(d, w.zone) if w.zone != NO_REGISTER else w.zone_value
    d.made[4] = <uint64_t><int64_t><int32_t>d.made[4]
    d.making = True
    firing_fire_one(d, probe)
    d.making = False


cdef void allocation_unreadable(Dispatch *d, uint64_t kind) noexcept with gil:
    d.stop = True
    (<Dispatcher>d.owner).engine.failed(MachineError(
        f"the statistics of the type of memory at {kind:#x} cannot be read"))


cdef int allocation_add_type(Dispatch *d, uint64_t kind, bint frees, uint32_t probe) except -1:
    """Add the probe of a type, keeping the types sorted by address."""
    cdef Allocations *a = &d.allocations
    cdef AllocationType *more
    cdef uint32_t room, i = 0
    while i < a.type_count and a.types[i].kind < kind:
        i += 1
    if i == a.type_count or a.types[i].kind != kind:
        if a.type_count == a.type_room:
            room = max(512, 2 * a.type_room)
            if room > MOST_ALLOCATION_TYPES:
                raise ValueError(f"there can be at most {MOST_ALLOCATION_TYPES} types")
            more = <AllocationType *>realloc(a.types, room * sizeof(AllocationType))
            if more == NULL:
                raise MemoryError
            a.types, a.type_room = more, room
        memmove(&a.types[i + 1], &a.types[i], (a.type_count - i) * sizeof(AllocationType))
        a.type_count += 1
        a.types[i].kind = kind
        a.types[i].probes[0] = a.types[i].probes[1] = NONE
    a.types[i].probes[frees] = probe
    return 0
