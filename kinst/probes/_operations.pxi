"""Emulation of displaced instructions on the interrupted registers, and their trampolines.

This file is part of the dispatcher; ``_dispatch.pyx`` includes it.
"""


# -- registers of the interrupted code ---------------------------------------------------------

cdef inline uint64_t *op_field(Dispatch *d, int place) noexcept nogil:
    if <uint32_t>place < d.frame_split:
        return <uint64_t *>(d.frame[0] + place)
    return <uint64_t *>(d.frame[1] + (<uint32_t>place - d.frame_split))


cdef uint64_t op_get(Dispatch *d, uint8_t r) noexcept nogil:
    if r == NO_REGISTER:
        return 0
    if r == d.pc:
        return d.at
    if d.wide[r]:
        return 0
    if d.framed and d.place[r] >= 0 and not d.untold[r]:
        return op_field(d, d.place[r])[0]
    return register_read(d.clock, d.number[r])


cdef void op_put(Dispatch *d, uint8_t r, uint64_t value) noexcept nogil:
    cdef Clock *c = d.clock
    if r == NO_REGISTER or d.wide[r]:
        return
    if not d.framed:
        register_write(c, d.number[r], value)
    elif d.place[r] < 0:
        return  # the zero register of riscv64, which ignores writes
    elif d.restored[r]:
        op_field(d, d.place[r])[0] = value
    else:
        defer(c, d.number[r], value)  # cannot fail: the list has room for all registers


cdef bint op_set_frame(Dispatch *d, uint64_t address) noexcept nogil:
    """Find the trap frame in host memory, on one or two pages; return false if it is not mapped."""
    cdef uint32_t room = <uint32_t>(4096 - (address & 4095))
    d.frame[0] = host_stack(d.clock, address)
    if d.frame[0] == NULL:
        d.frame[0] = host_virtual(d.clock, address)
    d.frame[1] = NULL
    d.frame_split = room
    if d.frame[0] == NULL:
        return False
    if room < <uint32_t>d.frame_size:
        d.frame[1] = host_stack(d.clock, address + room)
        if d.frame[1] == NULL:
            d.frame[1] = host_virtual(d.clock, address + room)
        return d.frame[1] != NULL
    return True


# -- operations ------------------------------------------------------------------------------------

cdef bint op_flag_truth(Dispatch *d, uint32_t truth) noexcept nogil:
    cdef uint64_t flags = op_get(d, d.status)
    cdef int i
    cdef uint32_t index = 0
    for i in range(d.flag_count):
        index |= <uint32_t>(flags >> d.flag_bits[i] & 1) << i
    return truth >> index & 1


cdef bint op_compared(Dispatch *d, const Template *t) noexcept nogil:
    cdef uint64_t mask = ~<uint64_t>0 if t.extra == 64 else (<uint64_t>1 << t.extra) - 1
    cdef uint64_t x = op_get(d, t.a) & mask
    cdef uint64_t y = op_get(d, t.b) & mask
    cdef bint truth
    if t.n < 2:
        truth = x == y
    elif t.n < 6:
        truth = <int64_t>x < <int64_t>y
    else:
        truth = x < y
    return truth != (t.n & 1)


cdef bint op_push(Dispatch *d, uint64_t value) noexcept nogil:
    cdef uint64_t sp = op_get(d, d.sp) - 8
    if not guest_write(d.clock, sp, &value, 8):
        return False
    op_put(d, d.sp, sp)
    return True


cdef bint op_way(Dispatch *d, const Template *t, const Site *s, uint64_t *pc) noexcept nogil:
    """Compute the target of a jump; return false if its memory operand cannot be read."""
    cdef uint64_t after = program_place_of(s) + s.length
    cdef uint64_t target = target_of(t, program_place_of(s), s.relative)
    if t.op == JUMP:
        pc[0] = target
    elif t.op == BRANCH_FLAGS:
        pc[0] = target if op_flag_truth(d, t.truth) else after
    elif t.op == BRANCH_COMPARE:
        pc[0] = target if op_compared(d, t) else after
    elif t.op == BRANCH_BIT:
        pc[0] = target if (op_get(d, t.a) >> t.n & 1) == t.extra else after
    elif t.op == LINK:
        if t.b != NO_REGISTER:
            target = op_get(d, t.b) + t.extra
        pc[0] = target & ~<uint64_t>1 if t.n else target
    elif t.op == INDIRECT:
        if t.extra:  # the target is in a register, not in memory
            target = op_get(d, t.a)
        else:
            target += op_get(d, t.a) + op_get(d, t.b) * t.n + op_get(d, t.c)
            if not guest_read(d.clock, target, &target, 8):
                return False
        pc[0] = target
    else:
        return False
    return True


cdef bint op_leaves(Dispatch *d, const Site *s, const Probe *p) noexcept nogil:
    """Whether control leaves the function of a return probe or jumps to the function's start."""
    cdef uint64_t pc = 0
    return op_way(d, &d.templates.all[s.template], s, &pc) and not p.low < pc < p.high


cdef bint op_carry_out(Dispatch *d, const Template *t, const Site *s, uint64_t *pc) noexcept nogil:
    """Emulate an instruction and compute the next pc.

    :return: false if a memory access fails; then nothing is changed.
    """
    cdef uint64_t after = s.address + s.length
    cdef uint64_t target = target_of(t, s.address, s.relative)
    cdef uint64_t value, mask
    cdef uint8_t vector[16]
    if t.op == JUMP or t.op == BRANCH_FLAGS or t.op == BRANCH_COMPARE or t.op == BRANCH_BIT:
        return op_way(d, t, s, pc)
    if t.op == BRANCH_COUNT:
        mask = ~<uint64_t>0 if t.extra == 64 else (<uint64_t>1 << t.extra) - 1
        value = op_get(d, t.a) & mask
        if t.n:
            value = (value - 1) & mask
            op_put(d, t.a, value)
            pc[0] = target if value != 0 and op_flag_truth(d, t.truth) else after
        else:
            pc[0] = target if value == 0 else after
    elif t.op == SET:
        op_put(d, t.a, target)
        pc[0] = after
    elif t.op == NEXT:
        pc[0] = after
    elif t.op == LINK:
        op_way(d, t, s, pc)
        op_put(d, t.a, after)
    elif t.op == CALL:
        if not op_push(d, after):
            return False
        pc[0] = target
    elif t.op == INDIRECT:
        if not op_way(d, t, s, pc) or t.truth and not op_push(d, after):
            return False
    elif t.op == RETURN:
        value = op_get(d, d.sp)
        if not guest_read(d.clock, value, pc, 8):
            return False
        op_put(d, d.sp, value + 8 + t.extra)
    elif t.op == CHANGE_FLAGS:
        op_put(d, d.status, (op_get(d, d.status) | t.target) & ~t.extra)
        pc[0] = after
    elif t.op == READ_FLAGS:
        op_put(d, t.a, op_get(d, d.status) & t.extra)
        pc[0] = after
    elif t.op == WRITE_FLAGS:
        op_put(d, d.status, op_get(d, d.status) & ~t.extra | op_get(d, t.a) & t.extra)
        pc[0] = after
    elif t.op == LOAD_VECTOR:
        memset(vector, 0, sizeof(vector))
        if not guest_read(d.clock, target, vector, t.n):
            return False
        if t.a != NO_REGISTER:  # the kernel's breakpoint path does not change vector registers
            d.clock.reg_write(d.clock.uc, d.number[t.a], vector)
        pc[0] = after
    else:
        return False
    return True


# -- trampolines -----------------------------------------------------------------------------------

cdef bint op_emulated(const Template *t) noexcept nogil:
    return t.op > REWRITE


cdef uint32_t op_build(Dispatch *d, Site *s, uint64_t at, uint8_t *out) noexcept nogil:
    """Write a trampoline for address ``at``; return the offset of its second breakpoint or jump."""
    cdef const Template *t = &d.templates.all[s.template]
    cdef uint32_t n = s.length
    cdef uint32_t data
    cdef int32_t displacement
    cdef uint64_t value
    cdef uint32_t i
    for i in range(SLOT):
        out[i] = d.breakpoint[i % d.breakpoint_length]
    if t.op == REWRITE and t.code_length:
        n = t.code_length
        memcpy(out, t.code, n)
    else:
        memcpy(out, s.code, n)
        if t.op == REWRITE:
            displacement = <int32_t>(target_of(t, s.address, s.relative) - (at + n))
            memcpy(out + t.n, &displacement, 4)
    if d.returns_by_jump:
        memcpy(out + n, d.jump, d.jump_length)
        value = s.address + s.length
        memcpy(out + n + d.jump_length, &value, 8)
        return n
    if n == 2:
        memcpy(out + 2, d.short_nop, 2)
        n = 4
    memcpy(out + n, d.breakpoint, d.breakpoint_length)
    if t.has_data:
        data = (n + 4 + 7) & ~<uint32_t>7
        memset(out + n + 4, 0, data - n - 4)
        value = target_of(t, s.address, s.relative)
        memcpy(out + data, &value, 8)
    return n


cdef uint64_t op_thread_slot(Dispatch *d) noexcept nogil:
    """Return the trampoline slot of the running thread, or of the CPU if interrupts are disabled.

    FreeBSD's kinst does the same.
    """
    cdef uint64_t thread = 0
    cdef uint32_t i
    if not op_get(d, d.status) & d.flags_if:
        return d.thread_slot
    guest_read(d.clock, op_get(d, d.segment), &thread, 8)
    for i in range(d.thread_count):
        if d.thread[i] == thread:
            return d.thread_slot + 1 + i
    if d.thread_count == MAX_THREADS:
        firing_crowded(d)
        return d.thread_slot
    d.thread[d.thread_count] = thread
    d.thread_count += 1
    return d.thread_slot + d.thread_count


cdef uint64_t op_trampoline(Dispatch *d, Site *s) noexcept nogil:
    """Return the address of the trampoline for a displaced instruction."""
    cdef uint8_t code[SLOT]
    cdef uint64_t slot, at
    if not d.threads:
        return d.slot_base + <uint64_t>s.slot * SLOT
    slot = op_thread_slot(d)
    at = d.slot_base + slot * SLOT
    op_build(d, s, at, code)
    if memcmp(d.slots + slot * SLOT, code, SLOT) != 0:
        memcpy(d.slots + slot * SLOT, code, SLOT)
        drop_translations(d.clock, at, at + SLOT)
    return at
