"""Firings of static probes; the guest's own code computes their arguments with the clock stopped.

The breakpoint replaces the instruction that the kernel would patch to a jump.  The guest continues
at the target of that jump and reaches a *gate*: the function that is called with the arguments.
There the registers and the stack are restored to their state at the tracepoint, and the probes
fire.

A tracepoint that the kernel executes only while probes are enabled has a *guard*, a branch.  The
guest takes the guard's other direction: to the tracepoint and from there as above, or to the
*join*, where both directions meet.  Then it is back at the branch.

This file is part of the dispatcher; ``_dispatch.pyx`` includes it.
"""


cdef inline bint tracepoint_comes_back(Dispatch *d, int r) noexcept nogil:
    """Whether the gate restores a register to the value at the tracepoint."""
    return d.place[r] >= 0 and r != d.pc and not d.wide[r] and not d.untold[r]


cdef void tracepoint_set_out(Dispatch *d, uint32_t site) noexcept nogil:
    cdef int r
    for r in range(d.count):
        if tracepoint_comes_back(d, r):
            d.before[r] = op_get(d, <uint8_t>r)
    d.above_at = op_get(d, d.sp)
    d.above_size = ABOVE
    if not guest_read(d.clock, d.above_at, d.above, d.above_size):
        d.above_size = STACK_PAGE - d.above_at % STACK_PAGE  # the next page is unmapped
        if not guest_read(d.clock, d.above_at, d.above, d.above_size):
            d.above_size = 0
    d.visiting = site
    d.reached = NONE
    d.clock.detour.at = d.clock.detour.slot = 0


cdef uint32_t tracepoint_come_back(Dispatch *d, int arguments) noexcept nogil:
    """Restore the tracepoint's registers and stack at a gate, and read the arguments.

    :param arguments: number of arguments after the gate's first one.
    :return: the site of the tracepoint.
    """
    cdef uint32_t site = d.visiting
    cdef int k, r
    cdef uint8_t now[ABOVE]
    memset(d.made, 0, sizeof(d.made))
    for k in range(arguments):
        if d.made_in[k] != NO_REGISTER:
            d.made[k] = op_get(d, d.made_in[k])
        elif not guest_read(d.clock, op_get(d, d.sp) + d.made_stack, &d.made[k], 8):
            d.made[k] = 0
    if d.above_size and guest_read(d.clock, d.above_at, now, d.above_size) and memcmp(
            now, d.above, d.above_size) != 0:
        guest_write(d.clock, d.above_at, d.above, d.above_size)
    for r in range(d.count):
        if tracepoint_comes_back(d, r):
            op_put(d, <uint8_t>r, d.before[r])
    d.visiting = NONE
    return site


cdef void tracepoint_keep_on(Clock *c) noexcept nogil:
    """Save the context for a nested breakpoint, but keep the tracepoint's exception registers."""
    cdef uint64_t kept[8]
    memcpy(kept, c.detour.kept, sizeof(kept))
    c.keep(c)  # save the context that ``enter`` will use
    memcpy(c.detour.kept, kept, sizeof(kept))


cdef void tracepoint_lost(Dispatch *d, uint64_t pc) noexcept with gil:
    d.visiting = d.reached = NONE
    d.clock.frozen = False
    d.clock.detour.footprint = False
    (<Dispatcher>d.owner).engine.failed(MachineError(
        f"{pc:#x}: the arguments of a static probe cannot be computed: the kernel's code for them "
        "has faulted"))


cdef inline void tracepoint_forget_visit(Dispatch *d) noexcept nogil:
    """Stop waiting for a gate if the clock runs: an exception or restore has diverted the guest."""
    if d.visiting != NONE and not d.clock.frozen:
        d.visiting = d.reached = NONE


cdef inline bint tracepoint_strayed(const Site *s) noexcept nogil:
    """Whether a site is only a gate, so that the guest has not passed a tracepoint."""
    return s.gate and s.first == NONE


cdef inline bint tracepoint_arrives(Dispatch *d, const Site *s) noexcept nogil:
    """Whether a site ends the computation of arguments: a gate, or the join of the guard."""
    return s.gate or (s.join and d.sites[d.visiting].otherwise == s.address)


cdef bint tracepoint_sets_out(Dispatch *d, const Site *s) noexcept nogil:
    """Whether the guest must be redirected to reach the code that computes the arguments."""
    cdef uint64_t pc = 0
    if not s.otherwise:
        return s.target != 0
    return op_carry_out(d, &d.templates.all[s.template], s, &pc) and pc != s.target


cdef bint tracepoint_passed_over(Dispatch *d, const Site *s, uint64_t *pc) noexcept nogil:
    """Pass a breakpoint before the gate without firing; return false if a memory access fails."""
    cdef const Template *t = &d.templates.all[s.template]
    if s.target and not s.otherwise and d.sites[d.visiting].otherwise:
        d.reached = table_find(d, s.address)
        pc[0] = s.target
        return True
    if op_emulated(t):
        return op_carry_out(d, t, s, pc)
    pc[0] = op_trampoline(d, <Site *>s)
    return True


cdef void tracepoint_arrived(Dispatch *d, uint32_t i) noexcept nogil:
    """Handle a breakpoint while the CPU contains the interrupted registers."""
    cdef Site *s = &d.sites[i]
    cdef uint64_t pc = 0
    d.framed = False
    d.at = s.address
    if d.visiting != NONE:
        if tracepoint_arrives(d, s):
            i = tracepoint_come_back(d, s.gate)
            wipe_footprint(d.clock)
            firing_go_on(d, i)
        elif tracepoint_passed_over(d, s, &pc):
            go_to(d.clock, pc)
        else:
            tracepoint_lost(d, s.address)
        return
    if tracepoint_strayed(s):
        tracepoint_lost(d, s.address)
        return
    if tracepoint_sets_out(d, s):
        if not d.clock.detour.footprint:
            keep_footprint(d.clock, register_read(d.clock, d.number[d.sp]))
        tracepoint_set_out(d, i)
        go_to(d.clock, s.target)
        return
    wipe_footprint(d.clock)
    firing_go_on(d, i)
