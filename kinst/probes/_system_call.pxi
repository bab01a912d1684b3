"""Probes of system calls, at the kernel's call of a system call's function and at its return.

All system calls share these sites.  The thread tells which call it is: the kernel has stored there
the call's arguments and the address of its table entry (``struct sysent``).

This file is part of the dispatcher; ``_dispatch.pyx`` includes it.
"""

cdef uint32_t syscall_probe(Dispatch *d, uint64_t thread, int kind, const int8_t **widths) noexcept nogil:
    """Return the probe of the system call that a thread makes, or NONE."""
    cdef const CallTable *t
    cdef uint64_t entry = 0
    cdef int i
    if not guest_read(d.clock, thread + d.calls.entry, &entry, 8):
        return NONE
    for i in range(d.calls.table_count):
        t = &d.calls.tables[i]
        if t.base <= entry < t.base + t.size * t.count and (entry - t.base) % t.size == 0:
            entry = (entry - t.base) // t.size
            widths[0] = t.widths + CALL_ARGUMENTS * entry
            return t.probes[2 * entry + (kind == CALL_ENDS)]
    return NONE


cdef uint64_t syscall_narrowed(uint64_t value, int bits) noexcept nogil:
    """Return the lowest ``bits`` bits of a value (0: all), sign-extended for negative ``bits``."""
    if bits == 0:
        return value
    if bits > 0:
        return value & ((<uint64_t>1 << bits) - 1)
    return <uint64_t>(<int64_t>(value << (64 + bits)) >> (64 + bits))


cdef void syscall_fire(Dispatch *d, int kind) noexcept nogil:
    """Fire the probe of the system call that begins or has returned."""
    cdef uint64_t thread = 0
    cdef uint64_t at
    cdef const int8_t *widths = NULL
    cdef int32_t error, before
    cdef uint32_t flags = 0
    cdef int32_t value = -1
    cdef bint changed = False
    cdef int k
    if not guest_read(d.clock, register_read(d.clock, d.calls.per_cpu), &thread, 8):
        return
    at = thread + d.calls.arguments
    if kind == CALL_BEGINS and (op_get(d, d.arguments[0]) != thread or op_get(d, d.arguments[1]) != at):
        return  # this call instruction does not lead to a system call's handler function
    cdef uint32_t probe = syscall_probe(d, thread, kind, &widths)
    if probe == NONE:
        return
    memset(d.made, 0, sizeof(d.made))
    if kind == CALL_BEGINS:
        guest_read(d.clock, at, d.made, CALL_ARGUMENTS * 8)
        for k in range(CALL_ARGUMENTS):
            d.made[k] = syscall_narrowed(d.made[k], widths[k])
    else:
        # Set the thread's error first, as the kernel does before it calls systrace_probe_func.
        error = before = <int32_t>op_get(d, d.result)
        if error == 0:
            guest_read(d.clock, thread + d.calls.value, &value, 4)
        d.made[0] = d.made[1] = <uint64_t><int64_t>value
        guest_read(d.clock, thread + d.calls.flags, &flags, 4)
        if not flags & d.calls.error_set and guest_read(
                d.clock, thread + d.calls.error, &before, 4) and before != error:
            changed = guest_write(d.clock, thread + d.calls.error, &error, 4)
    d.making = True
    firing_fire_one(d, probe)
    d.making = False
    if changed:
        guest_write(d.clock, thread + d.calls.error, &before, 4)


cdef int syscall_add_table(Dispatch *d, uint64_t base, uint64_t size, uint32_t count) except -1:
    cdef CallTable *t
    if d.calls.table_count == MAX_TABLES or not 0 < count <= MAX_CALLS or not 8 <= size <= 4096:
        raise ValueError(f"invalid table of {count} {size}-byte system calls, or too many tables")
    t = &d.calls.tables[d.calls.table_count]
    t.base, t.size, t.count = base, size, count
    t.probes = <uint32_t *>malloc(2 * count * sizeof(uint32_t))
    t.widths = <int8_t *>calloc(CALL_ARGUMENTS * count, 1)
    if t.probes == NULL or t.widths == NULL:
        free(t.probes)
        free(t.widths)
        raise MemoryError
    memset(t.probes, 0xFF, 2 * count * sizeof(uint32_t))
    d.calls.table_count += 1
    return d.calls.table_count - 1


cdef void syscall_forget_calls(Dispatch *d) noexcept:
    cdef int i
    for i in range(d.calls.table_count):
        free(d.calls.tables[i].probes)
        free(d.calls.tables[i].widths)
    d.calls.table_count = 0
