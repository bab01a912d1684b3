"""Tracking of inline copies, from their entries to their exits.

An inline copy may have several code ranges.  It is left where control reaches an instruction
outside of all of them.  A copy fires once when it is entered and once when it is left: a loop that
comes back to the entry does not enter the copy again, and control that passes from one range to
another does not leave it.  The copies that a thread is in are recorded for each thread, as its tail
calls are.  ``kinst/probes/inline_copies.py`` is the Python counterpart.

This file is part of the dispatcher; ``_dispatch.pyx`` includes it.
"""


cdef inline bint inline_in_copy(Dispatch *d, uint32_t copy, uint64_t pc) noexcept nogil:
    cdef const InlineCopy *c = &d.copies[copy]
    cdef uint32_t i
    for i in range(c.first, c.first + c.count):
        if d.ranges[i].low <= pc < d.ranges[i].high:
            return True
    return False


cdef uint32_t inline_add(Dispatch *d, list ranges, uint64_t order) except? 0xFFFFFFFF:
    """Add an inline copy with code in the ranges [low, high), and return the copy's number.

    :param order: number that is lower than those of the copies inside this one.
    """
    cdef void *more
    cdef uint64_t low, high, room
    if not 0 < len(ranges) <= MAX_RANGES:
        raise ValueError(f"an inline copy must have 1 to {MAX_RANGES} ranges")
    if d.copy_count == d.copy_room:
        room = 2 * d.copy_room if d.copy_room else 256
        more = realloc(d.copies, room * sizeof(InlineCopy))
        if more == NULL:
            raise MemoryError
        d.copies, d.copy_room = <InlineCopy *>more, <uint32_t>room
    if d.range_count + len(ranges) > d.range_room:
        room = 2 * d.range_room + len(ranges) + 256
        more = realloc(d.ranges, room * sizeof(CodeRange))
        if more == NULL:
            raise MemoryError
        d.ranges, d.range_room = <CodeRange *>more, <uint32_t>room
    d.copies[d.copy_count] = InlineCopy(d.range_count, <uint32_t>len(ranges), order)
    for low, high in ranges:
        d.ranges[d.range_count] = CodeRange(low, high)
        d.range_count += 1
    d.copy_count += 1
    return d.copy_count - 1


cdef int inline_way_out(Dispatch *d, uint32_t copy, const Template *t, uint64_t target, uint64_t after
                 ) noexcept nogil:
    """Return whether an instruction may leave an inline copy: NO_WAY_OUT, WAY_OUT or CALLS_OUT.

    CALLS_OUT: the instruction calls a function that returns to an address outside of the copy.
    """
    cdef bint inside = inline_in_copy(d, copy, after)
    if t.flags & RETURNS or t.op == RETURN:
        return WAY_OUT
    if t.op == JUMP:
        return NO_WAY_OUT if inline_in_copy(d, copy, target) else WAY_OUT
    if t.op == BRANCH_FLAGS or t.op == BRANCH_COMPARE or t.op == BRANCH_BIT or t.op == BRANCH_COUNT:
        return NO_WAY_OUT if inside and inline_in_copy(d, copy, target) else WAY_OUT
    if t.op == LINK and t.a == NO_REGISTER or t.op == INDIRECT and not t.truth:
        return WAY_OUT
    if t.op == LINK or t.op == CALL or t.op == INDIRECT:
        return NO_WAY_OUT if inside else CALLS_OUT
    return NO_WAY_OUT if inside else WAY_OUT


cdef uint64_t inline_counted(Dispatch *d, const Template *t, const Site *s) noexcept nogil:
    """Return the next pc of a branch that tests a counter register (see ``op_carry_out``)."""
    cdef uint64_t mask = ~<uint64_t>0 if t.extra == 64 else (<uint64_t>1 << t.extra) - 1
    cdef uint64_t value = op_get(d, t.a) & mask
    cdef bint taken = value == 0
    if t.n:
        taken = ((value - 1) & mask) != 0 and op_flag_truth(d, t.truth)
    return target_of(t, program_place_of(s), s.relative) if taken else (
        program_place_of(s) + s.length)


cdef bint inline_goes_out(Dispatch *d, const Site *s, const Probe *p) noexcept nogil:
    """Whether an instruction leaves the probe's inline copy, directly or after a call returns."""
    cdef const Template *t = &d.templates.all[s.template]
    cdef uint64_t pc = 0
    if p.role == CALLS_OUT or t.flags & RETURNS or t.op == RETURN:
        return True
    if t.op == BRANCH_COUNT:
        return not inline_in_copy(d, p.copy, inline_counted(d, t, s))
    if t.op == JUMP or t.op == BRANCH_FLAGS or t.op == BRANCH_COMPARE or t.op == BRANCH_BIT or t.op == LINK or (
            t.op == INDIRECT):
        return op_way(d, t, s, &pc) and not inline_in_copy(d, p.copy, pc)
    return True


cdef bint inline_enter(Dispatch *d, const Probe *p, int program) noexcept nogil:
    """Record that the running thread enters a probe's copy; return false if it is already inside.

    It is already inside if it loops back to the entry, or comes from another entry, where the stack
    pointer was lowered by a different number of bytes (``lower``).  If no code of the copy leads
    to the entry, a longjmp() has left the copy before.

    :param program: number of the program that contains the copy, or 0 for the kernel.
    """
    cdef uint32_t copy = p.copy
    cdef uint64_t sp = op_get(d, d.sp) + <uint64_t><int64_t>p.lower
    cdef TailThread *t = inline_current_tails(d, program, True)
    cdef uint64_t reach = PROGRAM_STACK_REACH if program else STACK_REACH
    cdef int64_t i
    cdef int why
    if t == NULL:
        return_not_noted(d, TOO_MANY_OF_ALL if d.tails.count >= MAX_TAIL_THREADS else NO_MEMORY)
        return False
    i = <int64_t>t.active_count - 1
    while i >= 0:
        if t.active[i].copy == copy:
            if t.active[i].sp == sp and p.loops:
                return False
            if t.active[i].sp > sp and t.active[i].sp - sp < reach and not program:
                break  # this entry belongs to an outer call of the same function
            if t.active[i].sp <= sp and sp - t.active[i].sp < reach:
                inline_forget_active(t, <uint32_t>i)  # the copy's stack frame no longer exists
        i -= 1
    if t.active_count == t.active_room:
        why = return_make_room(d, <void **>&t.active, &t.active_room, sizeof(ActiveCopy))
        if why:
            return_not_noted(d, why)
            return False
    t.active[t.active_count] = ActiveCopy(sp, copy)
    t.active_count += 1
    return True


cdef bint inline_leads_back(Dispatch *d, uint32_t copy, uint64_t begin, uint64_t end, list inside,
                            const int64_t *ways, int64_t entry):
    """Whether code of a copy may lead to an entry of the copy.

    :param begin: address of the function that contains the entry; ``end``: address after it.
    :param inside: indices of the function's instructions that are in the copy.
    :param ways: successors of the instructions (``flow_of``).
    :param entry: index of the entry's instruction.
    """
    cdef const InlineCopy *c = &d.copies[copy]
    cdef uint32_t k
    cdef uint64_t i
    for k in range(c.first, c.first + c.count):
        if not begin <= d.ranges[k].low <= d.ranges[k].high <= end:
            return True  # another function contains code of the copy
    for i in inside:
        if ways[2 * i] == entry or ways[2 * i + 1] == entry or ways[2 * i + 1] == ELSEWHERE:
            return True
    return False


cdef bint inline_leave(Dispatch *d, uint32_t copy, int program) noexcept nogil:
    """Record that the running thread has left a copy; return false if the thread was outside.

    In the kernel, it leaves the copy that it entered last.  In a program, which may have switched
    to another stack since then, it leaves the last one in this stack, or else the closest one.
    """
    cdef TailThread *t = inline_current_tails(d, program, False)
    cdef uint64_t sp = op_get(d, d.sp)
    cdef uint64_t least = ~<uint64_t>0
    cdef uint64_t distance
    cdef int64_t i
    cdef int64_t found = -1
    if t == NULL:
        return False
    i = <int64_t>t.active_count - 1
    while i >= 0 and (program or found < 0):
        if t.active[i].copy == copy:
            distance = t.active[i].sp - sp if t.active[i].sp > sp else sp - t.active[i].sp
            if found < 0 or distance < least:
                found, least = i, distance
            if distance < PROGRAM_STACK_REACH:
                break
        i -= 1
    if found < 0:
        return False
    inline_forget_active(t, <uint32_t>found)
    return True


cdef void inline_forget_active(TailThread *t, uint32_t index) noexcept nogil:
    memmove(&t.active[index], &t.active[index + 1],
            (t.active_count - index - 1) * sizeof(ActiveCopy))
    t.active_count -= 1


cdef TailThread *inline_current_tails(Dispatch *d, int program, bint make) noexcept nogil:
    if d.clock.history != d.tails.history:
        return_forget_tails(d)
    return return_tails_of(d, return_running_thread(d), program, make)


cdef void inline_fire(Dispatch *d, const Site *s, uint32_t probe) noexcept nogil:
    """Track a probe's inline copy; fire the probe if the thread enters or leaves the copy."""
    cdef const Probe *p = &d.probes[probe]
    cdef int program = program_number_of(s)
    cdef int why
    if p.role == ENTERS:
        if inline_enter(d, p, program) and not p.silent:
            firing_fire_one(d, probe)
    elif inline_goes_out(d, s, p):
        if p.role == CALLS_OUT:
            why = return_note_tail(d, probe, op_get(d, d.sp), program_place_of(s) + s.length,
                                   program, True)
            if why:
                return_not_noted(d, why)
        elif inline_leave(d, p.copy, program) and not p.silent:
            firing_fire_one(d, probe)


cdef uint32_t inline_probe(Dispatch *d, uint32_t site, uint32_t function, int provider, uint32_t copy,
                         int role, bint silent) except? 0xFFFFFFFF:
    """Add a probe of an inline copy; a silent probe never fires but tracks the copy."""
    cdef uint32_t made = table_new_probe(d, site, function, provider)
    d.probes[made].copy, d.probes[made].role, d.probes[made].silent = copy, role, silent
    table_link(d, site, made)
    return made
