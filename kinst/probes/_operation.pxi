"""Probes around calls of vnode operations that bypass the operations' tracepoints.

While no static probe is enabled, the inline function of a vnode operation calls the file system's
function directly instead of the function that has the tracepoints.  The probes fire before this
direct call and at its return address.  Other paths may also lead to the return address, so a call
in progress is identified by its stack pointer.

This file is part of the dispatcher; ``_dispatch.pyx`` includes it.
"""


cdef void operation_fire(Dispatch *d, const Site *s) noexcept nogil:
    """Fire a vnode operation's entry probe at a call site, or its return probe after the call."""
    cdef const Operation *o = &d.operations[(s.operation - 1) >> 1]
    cdef bint returned = (s.operation - 1) & 1
    cdef uint64_t sp = op_get(d, d.sp)
    cdef uint64_t arguments = 0
    cdef uint32_t probe = o.returns if returned else o.entry
    if d.clock.instructions < d.latest:
        d.pending_count = 0
    d.latest = d.clock.instructions
    if returned:
        if not operation_has_returned(d, sp, o, &arguments):
            return
    else:
        arguments = op_get(d, d.arguments[0])
        operation_in_progress(d, sp, o, arguments)
    if probe == NONE:
        return
    memset(d.made, 0, sizeof(d.made))
    # Pass the same arguments as the kernel's tracepoints: the vnode, which is the second word of
    # the argument structure, and the structure itself.
    guest_read(d.clock, arguments + 8, &d.made[0], 8)
    d.made[1] = arguments
    if returned:
        d.made[2] = syscall_narrowed(op_get(d, d.result), -32)
    d.making = True
    firing_fire_one(d, probe)
    d.making = False


cdef void operation_in_progress(Dispatch *d, uint64_t sp, const Operation *o,
                                uint64_t arguments) noexcept nogil:
    cdef Pending *p
    cdef uint64_t ignored
    operation_has_returned(d, sp, o, &ignored)
    if d.pending_count == MAX_PENDING:
        memmove(&d.pending[0], &d.pending[1], (MAX_PENDING - 1) * sizeof(Pending))
        d.pending_count -= 1
    p = &d.pending[d.pending_count]
    p.sp, p.operation, p.arguments = sp, o, arguments
    d.pending_count += 1


cdef bint operation_has_returned(Dispatch *d, uint64_t sp, const Operation *o, uint64_t *arguments
                       ) noexcept nogil:
    """Forget the call in progress at a stack pointer; return whether it was a call of ``o``.

    ``arguments`` receives the address of the call's argument structure.
    """
    cdef bint found = False
    cdef int i = d.pending_count - 1
    while i >= 0:
        if d.pending[i].sp == sp:
            found = d.pending[i].operation == o
            arguments[0] = d.pending[i].arguments
            d.pending_count -= 1
            memmove(&d.pending[i], &d.pending[i + 1], (d.pending_count - i) * sizeof(Pending))
            break
        i -= 1
    return found
