"""Handling of a firing, from the breakpoint exception to the guest's next instruction.

On the *direct* path, a breakpoint is handled where it occurs; on the *guest* path, at the kernel's
seam.  On the *double* path, the trampoline's second breakpoint is handled at the seam, too.

This file is part of the dispatcher; ``_dispatch.pyx`` includes it.
"""


cdef void firing_full(Dispatch *d) noexcept with gil:
    (<Dispatcher>d.owner).spill()


cdef void firing_tell(Dispatch *d, uint32_t probe) noexcept with gil:
    (<Dispatcher>d.owner).told(probe)


cdef void firing_crowded(Dispatch *d) noexcept with gil:
    (<Dispatcher>d.owner).engine.failed(MachineError(
        f"more than {MAX_THREADS} threads have hit breakpoints, and each needs a trampoline: "
        "use --trampolines=probe"))


cdef void firing_unreadable(Dispatch *d) noexcept with gil:
    (<Dispatcher>d.owner).engine.failed(MachineError(
        f"the address of the kernel's own breakpoint handler, at {d.scratch:#x}, cannot be "
        "read"))


cdef uint64_t firing_argument(void *source, uint32_t number) noexcept nogil:
    """Return a value of the interrupted code by number; ``_action.pxd`` defines the numbers."""
    cdef Dispatch *d = <Dispatch *>source
    if DECLARED <= number < DECLARED + DECLARED_ARGUMENTS:
        return d.made[number - DECLARED] if d.making else 0
    if number >= REGISTER:
        return op_get(d, <uint8_t>(number - REGISTER)) if number - REGISTER < <uint32_t>d.count else 0
    if number == AFTER:
        return d.after
    return op_get(d, d.arguments[number] if number < ARGUMENTS else d.result)


cdef void firing_act(Dispatch *d, uint32_t probe) noexcept nogil:
    """Run the native action of a firing."""
    d.firing = True
    if d.action.run(d.action.data, probe, firing_argument, d, time_at(d.clock, d.clock.instructions)):
        firing_action_failed(d)
    d.firing = False


cdef void firing_action_failed(Dispatch *d) noexcept with gil:
    (<Dispatcher>d.owner).acted()


cdef void firing_keep(Dispatch *d, uint32_t probe) noexcept nogil:
    """Store a record of a firing."""
    cdef Record *r = &d.records[d.record_count]
    cdef uint32_t k
    r.probe = probe
    r.cpu = d.clock.cpu
    r.time = d.clock.instructions
    r.skew = time_at(d.clock, d.clock.instructions) - d.clock.instructions
    for k in range(ARGUMENTS):
        r.arguments[k] = d.made[k] if d.making else op_get(d, d.arguments[k])
    if d.probes[probe].provider == AT_RETURN or d.probes[probe].provider == PROGRAM_RETURN:
        r.arguments[1] = op_get(d, d.result)
    d.record_count += 1
    if d.record_count == RECORDS:
        firing_full(d)


cdef void firing_fire_one(Dispatch *d, uint32_t probe) noexcept nogil:
    d.probes[probe].count += 1
    d.firings += 1
    if d.action.run != NULL:
        if d.records != NULL:
            firing_keep(d, probe)
        firing_act(d, probe)
        if d.probes[probe].told:
            firing_tell(d, probe)
    elif not d.counting_only:
        if d.records != NULL:
            firing_keep(d, probe)
        else:
            firing_tell(d, probe)


cdef inline bint firing_calls(const Template *t) noexcept nogil:
    """Whether the instruction is a call."""
    return t.op == CALL or t.op == LINK and t.a != NO_REGISTER or t.op == INDIRECT and t.truth


cdef void firing_fire(Dispatch *d, const Site *s) noexcept nogil:
    cdef uint32_t i = s.first
    # Compute ``back`` before any handler runs, because a handler may reallocate the tables.
    cdef uint64_t back = program_place_of(s) + s.length if firing_calls(&d.templates.all[s.template]) else 0
    if s.call:
        syscall_fire(d, s.call)
    if s.operation:
        operation_fire(d, s)
    if s.lock:
        lock_fire(d, s)
    if s.allocation:
        allocation_fire(d, s)
    if d.reached != NONE:
        i = d.sites[d.reached].first
        d.reached = NONE
        d.making = True
        while i != NONE:
            if d.probes[i].provider == STATIC:
                firing_fire_one(d, d.probes[i].primary)
            i = d.probes[i].next
        i = s.first
    while i != NONE:
        if d.probes[i].high and not op_leaves(d, s, &d.probes[i]):
            pass
        elif d.probes[i].role:
            inline_fire(d, s, i)
        elif d.probes[i].tail:
            return_leave_by_tail(d, s, i)
        elif d.probes[i].provider == PROGRAM_ASKED:
            op_put(d, d.result, 1)
        elif d.probes[i].provider != PROGRAM_STATIC or program_static_arguments(d, i):
            d.making = d.probes[i].provider in (STATIC, PROGRAM_STATIC)
            firing_fire_one(d, d.probes[i].primary)
        i = d.probes[i].next
    d.making = False
    if back and d.tails.count:
        d.clock.calling, d.clock.calls_back = True, back


cdef void firing_displaced(Dispatch *d, Site *s, uint64_t slot) noexcept nogil:
    """Tell the clock that the displaced instruction will be executed in a trampoline."""
    cdef Clock *c = d.clock
    c.detour.slot = slot
    c.detour.slot_code = d.slots + (slot - d.slot_base)
    c.detour.site = s.address
    c.detour.slot_shared = d.threads
    c.detour.slot_ended = False
    c.detour.site_length = s.length
    c.detour.slot_entries = 0
    c.detour.at = s.address + s.length if d.returns_by_jump else 0
    c.detour.resumed = True


cdef void firing_in_place(Dispatch *d, const Site *s) noexcept nogil:
    """Execute in place an instruction that cannot be emulated because it will fault."""
    cdef Clock *c = d.clock
    c.frozen = False
    c.moved = s.address
    resume(c, s.address)
    request_stop(c, STOP_IN_PLACE)


cdef const Effect *firing_effect_of(Dispatch *d, const Site *s) noexcept nogil:
    cdef int i
    for i in range(d.effect_count):
        if d.effects[i].code == s.code[0]:
            return &d.effects[i]
    return NULL


cdef bint firing_do_effect(Dispatch *d, const Site *s, uint64_t *pc) noexcept nogil:
    """Emulate what the kernel's breakpoint handler does; return false if a memory access fails."""
    cdef Clock *c = d.clock
    cdef const Effect *t = firing_effect_of(d, s)
    cdef uint64_t sp, value
    if t == NULL:
        return False
    sp = op_get(d, t.base) + <uint64_t>t.change
    pc[0] = s.address + s.length
    if t.returns and not guest_read(c, op_get(d, d.sp), pc, 8):
        return False
    if t.stores != NO_REGISTER:
        value = op_get(d, t.stores)
        if not guest_write(c, sp, &value, 8):
            return False
    if t.loads != NO_REGISTER:
        if not guest_read(c, op_get(d, t.base), &value, 8):
            return False
        op_put(d, t.loads, value)
    op_put(d, d.sp, sp)
    return True


cdef void firing_go_on(Dispatch *d, uint32_t index) noexcept nogil:
    """Fire the probes of a site and let the guest continue; the registers are in the CPU."""
    cdef Clock *c = d.clock
    cdef Site *s = &d.sites[index]
    cdef const Template *t = &d.templates.all[s.template]
    cdef uint64_t pc = 0
    d.framed = False
    d.at = s.address
    firing_fire(d, s)
    s = &d.sites[index]  # a handler may have reallocated the tables
    t = &d.templates.all[s.template]
    if d.stop:
        d.stop = False
        c.frozen = False
        c.moved = s.address
        resume(c, s.address)
        return
    if op_emulated(t):
        if not (firing_do_effect(d, s, &pc) if d.effect_count else op_carry_out(d, t, s, &pc)):
            firing_in_place(d, s)
            return
        c.detour.slot = 0
        c.detour.site = s.address
        c.detour.at = pc
        c.detour.resumed = not t.flags & ENDS_BLOCK
    else:
        pc = op_trampoline(d, s)
        firing_displaced(d, s, pc)
    go_to(c, pc)


cdef void firing_behind(Dispatch *d, const Site *s) noexcept nogil:
    """Handle the breakpoint at a trampoline's end directly, without the kernel's vectors."""
    cdef Clock *c = d.clock
    if d.visiting != NONE:
        go_to(c, s.address + s.length)
        return
    c.detour.at = s.address + s.length
    c.detour.sp_register = 0  # skip the stack pointer check: the kernel's return path does not run
    c.detour.resumed = True
    go_to(c, c.detour.at)


cdef bint firing_at_direct(Dispatch *d, uint64_t pc) noexcept nogil:
    cdef Clock *c = d.clock
    cdef uint32_t i = table_find(d, pc)
    if i == NONE or not d.sites[i].patched:
        return False
    tracepoint_forget_visit(d)
    if d.visiting == NONE:
        freeze(c)
    tracepoint_arrived(d, i)
    return True


cdef void firing_answer(Dispatch *d, uint64_t value) noexcept nogil:
    """Set the seam's return value; the guest executes the seam's own return instruction."""
    register_write(d.clock, d.number[d.result], value)


cdef void firing_decline(Dispatch *d) noexcept nogil:
    """Let the kernel handle a breakpoint that does not belong to a probe."""
    cdef uint64_t pc = 0
    if d.called:
        firing_answer(d, 0 if d.effect_count else 1)
    elif guest_read(d.clock, d.scratch, &pc, 8):
        go_to(d.clock, pc)
    else:
        firing_unreadable(d)


cdef void firing_unframe(Dispatch *d) noexcept nogil:
    """Set the CPU's registers from the trap frame to their values before the breakpoint."""
    cdef int r
    for r in range(d.count):
        if d.place[r] >= 0 and r != d.pc:
            register_write(d.clock, d.number[r], op_field(d, d.place[r])[0])


cdef void firing_unwind(Dispatch *d) noexcept nogil:
    """Restore the registers and the stack to their state before the breakpoint."""
    firing_unframe(d)
    wipe_footprint(d.clock)


cdef void firing_mask(Dispatch *d) noexcept nogil:
    """Mask interrupts in the trampoline until its breakpoint has reached the seam."""
    cdef Clock *c = d.clock
    cdef uint64_t *status = op_field(d, d.place[d.status])
    d.saved_mask = status[0] & d.frame_mask
    status[0] = status[0] | d.frame_mask if d.mask_sets else status[0] & ~d.frame_mask
    c.detour.status_register = d.number[d.status]
    c.detour.status_bits = d.cpu_mask
    c.detour.status_value = d.cpu_mask if d.saved_mask else 0


cdef bint firing_tell_kernel(Dispatch *d, const Site *s) noexcept nogil:
    """Tell the kernel's handler which instruction to emulate; return false if that would fault."""
    cdef Clock *c = d.clock
    cdef uint64_t pc = s.address + s.length
    cdef const Effect *t = firing_effect_of(d, s)
    if t == NULL or (t.returns and not guest_read(c, op_get(d, d.sp), &pc, 8)):
        return False
    c.detour.slot = 0
    c.detour.site = s.address
    c.detour.at = pc
    c.detour.sp = op_get(d, t.base) + <uint64_t>t.change
    c.detour.resumed = not d.templates.all[s.template].flags & ENDS_BLOCK
    firing_answer(d, t.answer)
    return True


cdef void firing_at_seam_called(Dispatch *d) noexcept nogil:
    cdef Clock *c = d.clock
    cdef uint64_t pc = op_field(d, d.place[d.pc])[0]
    cdef uint64_t *status
    cdef uint32_t i = table_find_second(d, pc)
    cdef Site *s
    cdef const Template *t
    d.framed = True
    d.at = pc
    c.detour.sp_register = d.number[d.sp]
    c.detour.sp = op_field(d, d.place[d.sp])[0]
    if i != NONE:  # a trampoline's second breakpoint; it reaches the seam only on the double path
        s = &d.sites[i]
        status = op_field(d, d.place[d.status])
        status[0] = status[0] & ~d.frame_mask | d.saved_mask
        pc = s.address + s.length
        c.detour.at = pc if d.visiting == NONE else 0
        c.detour.resumed = True
        c.detour.status_bits = 0
    else:
        i = table_find(d, pc)
        if i == NONE or not d.sites[i].patched:
            firing_decline(d)
            return
        s = &d.sites[i]
        if tracepoint_strayed(s) if d.visiting == NONE else (
                not tracepoint_arrives(d, s) and not tracepoint_passed_over(d, s, &pc)):
            tracepoint_lost(d, s.address)
            return
        if d.visiting != NONE and not tracepoint_arrives(d, s):
            op_field(d, d.place[d.pc])[0] = pc
            firing_answer(d, 0)
            return
        if d.visiting != NONE:
            i = tracepoint_come_back(d, s.gate)
            c.detour.sp = op_field(d, d.place[d.sp])[0]  # sp at the end of the kernel's return path
        elif tracepoint_sets_out(d, s):
            tracepoint_set_out(d, i)
            op_field(d, d.place[d.pc])[0] = s.target
            firing_answer(d, 0)
            return
        d.at = d.sites[i].address
        firing_fire(d, &d.sites[i])
        s = &d.sites[i]  # a handler may have reallocated the tables
        t = &d.templates.all[s.template]
        if d.stop:
            d.stop = False
            firing_unwind(d)
            c.frozen = False
            c.moved = s.address
            resume(c, s.address)
            return
        if d.effect_count:
            if not firing_tell_kernel(d, s):
                firing_unwind(d)
                firing_in_place(d, s)
            return
        if op_emulated(t):
            c.detour.slot = 0
            c.detour.site = s.address
            if not op_carry_out(d, t, s, &pc):
                firing_unwind(d)
                firing_in_place(d, s)
                return
            c.detour.at = pc
            c.detour.resumed = not t.flags & ENDS_BLOCK
        else:
            pc = d.slot_base + <uint64_t>s.slot * SLOT
            firing_displaced(d, s, pc)
            if d.path == DOUBLE:
                firing_mask(d)
    op_field(d, d.place[d.pc])[0] = pc
    firing_answer(d, 0)


cdef void firing_at_seam_jumped(Dispatch *d) noexcept nogil:
    """Handle a jump to the seam: restore the registers from the trap frame, as a module would."""
    cdef Clock *c = d.clock
    cdef uint32_t i = table_find(d, op_field(d, d.place[d.pc])[0] - d.bias)
    if i == NONE or not d.sites[i].patched:
        firing_decline(d)
        return
    firing_unframe(d)
    guest_write(c, d.scratch, &d.scratch_value, 8)
    tracepoint_arrived(d, i)


cdef void firing_recursion(Dispatch *d, uint64_t pc) noexcept with gil:
    d.clock.frozen = False
    d.clock.detour.footprint = False
    (<Dispatcher>d.owner).stuck(pc)


cdef bint firing_framed(Dispatch *d) noexcept nogil:
    """Find the trap frame at the seam; return false if the frame is not mapped."""
    d.framed = False
    d.at = d.seam
    return op_set_frame(d, register_read(d.clock, d.number[d.frame_register]) + d.frame_bias)


cdef void on_seam(void *data) noexcept nogil:
    """Engine callback: the kernel has called the seam."""
    cdef Dispatch *d = <Dispatch *>data
    if firing_framed(d):
        firing_at_seam_called(d)
    else:
        firing_answer(d, 0 if d.effect_count else 1)


cdef bint firing_at_guest(Dispatch *d, uint64_t pc) noexcept nogil:
    cdef Clock *c = d.clock
    cdef uint32_t i
    if pc == d.seam and not d.called:
        if not firing_framed(d):
            return False
        firing_at_seam_jumped(d)
        return True
    tracepoint_forget_visit(d)
    i = table_find(d, pc)
    if i != NONE and d.sites[i].patched:
        if c.frozen and d.visiting == NONE:
            firing_recursion(d, pc)
            return True
        if d.visiting == NONE:
            freeze(c)
    elif table_find_second(d, pc) == NONE:
        return False
    if d.visiting == NONE:
        keep_footprint(c, d.trap_stack if d.trap_stack else register_read(c, d.number[d.sp]))
    else:
        tracepoint_keep_on(c)
    return c.enter(c, pc)


cdef bint on_trap(void *data, uint32_t vector) noexcept nogil:
    """Engine callback: handle a breakpoint exception; return false if no probe is the cause."""
    cdef Dispatch *d = <Dispatch *>data
    cdef uint64_t pc
    cdef uint32_t second
    if d.programs.count and d.programs.met != NONE:
        program_left(d)
    if vector != d.vector:
        return False
    pc = register_read(d.clock, d.number[d.pc]) - d.bias
    second = table_find_second(d, pc)
    if second != NONE and d.path != DOUBLE:
        firing_behind(d, &d.sites[second])
        return True
    return firing_at_direct(d, pc) if d.path == DIRECT else firing_at_guest(d, pc)
