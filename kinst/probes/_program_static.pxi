"""Probes that programs declare themselves (USDT), at instructions that do nothing.

A program that asks whether such a probe is enabled reads the answer from the register of a
function's result, after an instruction that leaves this register alone.

This file is part of the dispatcher; ``_dispatch.pyx`` includes it.
"""


cdef uint32_t program_static_add(Dispatch *d, uint32_t declared, const Sources *given
                                 ) except? 0xFFFFFFFF:
    cdef uint32_t room, probe
    cdef Sources *more
    if d.source_count == d.source_room:
        room = max(64, 2 * d.source_room)
        if room > MOST_SOURCES:
            raise ValueError(f"programs can declare at most {MOST_SOURCES} probes")
        more = <Sources *>realloc(d.sources, room * sizeof(Sources))
        if more == NULL:
            raise MemoryError
        d.sources, d.source_room = more, room
    probe = table_new_probe(d, NONE, declared, PROGRAM_STATIC)
    d.sources[d.source_count] = given[0]
    d.probes[probe].sources = d.source_count
    d.source_count += 1
    return probe


cdef bint program_static_arguments(Dispatch *d, uint32_t probe) noexcept nogil:
    """Set ``made`` to the arguments of a program's own probe; return false if that fails."""
    cdef const Sources *given = &d.sources[d.probes[d.probes[probe].primary].sources]
    # a tail call leaves its arguments above the return address, where calls push it
    cdef bint above = not d.linked and (
        d.templates.all[d.sites[d.probes[probe].site].template].flags & RETURNS != 0)
    cdef int i
    cdef uint64_t at
    memset(d.made, 0, sizeof(d.made))
    for i in range(given.count):
        if given.place[i] < ON_STACK:
            d.made[i] = op_get(d, <uint8_t>given.place[i])
            continue
        at = op_get(d, d.sp) + 8 * <uint64_t>(given.place[i] - ON_STACK + above)
        if guest_read(d.clock, at, &d.made[i], 8):
            continue
        if i < given.declared:
            program_static_unreadable(d, i, at)
            return False
        d.made[i] = 0
    return True


cdef void program_static_unreadable(Dispatch *d, int number, uint64_t at) noexcept with gil:
    d.stop = True
    (<Dispatcher>d.owner).engine.failed(MachineError(
        f"argument {number} of the probe at {d.at:#x} of a program cannot be read from its stack, "
        f"at {at:#x}"))
