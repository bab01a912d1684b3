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
    cdef const Operation *called = o
    cdef bint returned = (s.operation - 1) & 1
    cdef uint64_t sp = op_get(d, d.sp)
    cdef uint64_t arguments = 0
    cdef uint32_t probe
    if d.clock.instructions < d.latest:
        d.pending_count = 0
    d.latest = d.clock.instructions
    if returned:
        called = operation_has_returned(d, sp, o, &arguments)
    else:
        arguments = op_get(d, d.arguments[0])
        called = operation_called(d, o, arguments)
        operation_in_progress(d, sp, o, called, arguments)
    if called == NULL:
        return
    probe = called.returns if returned else called.entry
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


cdef const Operation *operation_called(Dispatch *d, const Operation *o, uint64_t arguments
                                       ) noexcept nogil:
    """Return the operation that a site of ``o`` calls, or NULL if it is not known.

    The compiler may have merged the calls of several operations.  The first word of the argument
    structure says which one it is.
    """
    cdef uint64_t descriptor = 0
    cdef int i
    if o.descriptor == 0:
        return o
    guest_read(d.clock, arguments, &descriptor, 8)
    if descriptor == o.descriptor:
        return o
    for i in range(d.operation_count):
        if descriptor and d.operations[i].descriptor == descriptor:
            return &d.operations[i]
    return NULL


cdef void operation_in_progress(Dispatch *d, uint64_t sp, const Operation *o,
                                const Operation *called, uint64_t arguments) noexcept nogil:
    cdef Pending *p
    cdef uint64_t ignored
    operation_has_returned(d, sp, o, &ignored)
    if called == NULL:
        return
    if d.pending_count == MAX_PENDING:
        memmove(&d.pending[0], &d.pending[1], (MAX_PENDING - 1) * sizeof(Pending))
        d.pending_count -= 1
    p = &d.pending[d.pending_count]
    p.sp, p.site, p.operation, p.arguments = sp, o, called, arguments
    d.pending_count += 1


cdef const Operation *operation_has_returned(Dispatch *d, uint64_t sp, const Operation *o,
                                             uint64_t *arguments) noexcept nogil:
    """Forget the call in progress at a stack pointer; return what it called, if at a site of ``o``.

    ``arguments`` receives the address of the call's argument structure.
    """
    cdef const Operation *found = NULL
    cdef int i = d.pending_count - 1
    while i >= 0:
        if d.pending[i].sp == sp:
            if d.pending[i].site == o:
                found = d.pending[i].operation
            arguments[0] = d.pending[i].arguments
            d.pending_count -= 1
            memmove(&d.pending[i], &d.pending[i + 1], (d.pending_count - i) * sizeof(Pending))
            break
        i -= 1
    return found
