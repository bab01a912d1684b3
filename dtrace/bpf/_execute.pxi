"""Executor of BPF instructions and handler of their faults (included by ``_runtime.pyx``).

``dtrace/bpf/interpreter.py`` is the same executor in Python.
"""


cdef helper_fn HELPERS[MAX_HELPER]


cdef uint64_t h_fault(Machine *m, uint64_t *r) noexcept nogil:
    return bad(m, <int>r[1] if r[1] <= LAST_FAULT else ILLEGAL_OPERATION, r[2])


cdef uint64_t h_stop(Machine *m, uint64_t *r) noexcept nogil:
    m.stopped = True
    return 0


cdef uint64_t call_host(Machine *m, uint64_t number, uint64_t *r) noexcept with gil:
    return (<Runtime>m.owner).host(number, r)


cdef inline uint64_t swapped(uint64_t value, int bits) noexcept nogil:
    cdef uint64_t out = 0
    cdef int i
    for i in range(0, bits, 8):
        out = out << 8 | (value >> i & 0xFF)
    return out


cdef uint64_t execute(Machine *m, uint32_t start, uint64_t argument) noexcept nogil:
    """Run a program from its first instruction and return the final value of r0.

    A fault ends the function that the program called, with r0 = -1; outside of a function, it ends
    the program.
    """
    cdef uint64_t r[11]
    cdef uint64_t saved[MAX_DEPTH][5]
    cdef uint32_t back[MAX_DEPTH]
    cdef int64_t entries[MAX_DEPTH]
    cdef int first = m.depth
    cdef int depth = 0
    cdef uint32_t pc = start
    cdef uint64_t budget = BUDGET
    cdef const Code *i
    cdef uint64_t b, value
    cdef uint8_t *data
    cdef bint taken
    if first >= FRAMES - MAX_DEPTH:
        return ~<uint64_t>0
    memset(r, 0, sizeof(r))
    r[1] = argument
    r[10] = address_of(R_STACK, <uint64_t>(first + 1) * FRAME_BYTES)
    m.depth = first + 1
    # Each loaded program ends with O_END, and its jumps stay within the program.
    while True:
        i = &m.code[pc]
        pc += 1
        b = i.value if i.immediate else r[i.source]
        if i.op == O_ADD: r[i.to] += b
        elif i.op == O_SUB: r[i.to] -= b
        elif i.op == O_MUL: r[i.to] *= b
        elif i.op == O_DIV: r[i.to] = r[i.to] / b if b else 0
        elif i.op == O_OR: r[i.to] |= b
        elif i.op == O_AND: r[i.to] &= b
        elif i.op == O_LSH: r[i.to] <<= b & 63
        elif i.op == O_RSH: r[i.to] >>= b & 63
        elif i.op == O_NEG: r[i.to] = <uint64_t>0 - r[i.to]
        elif i.op == O_MOD: r[i.to] = r[i.to] % b if b else r[i.to]
        elif i.op == O_XOR: r[i.to] ^= b
        elif i.op == O_MOV: r[i.to] = b
        elif i.op == O_ARSH: r[i.to] = <uint64_t>(<int64_t>r[i.to] >> (b & 63))
        elif i.op == O_SDIV:
            if b == 0: r[i.to] = 0
            elif b == <uint64_t>-1: r[i.to] = <uint64_t>0 - r[i.to]
            else: r[i.to] = <uint64_t>(<int64_t>r[i.to] / <int64_t>b)
        elif i.op == O_SMOD:
            if b == <uint64_t>-1: r[i.to] = 0
            elif b: r[i.to] = <uint64_t>(<int64_t>r[i.to] % <int64_t>b)
        elif i.op == O_MOVS8: r[i.to] = <uint64_t>(<int64_t><int8_t>b)
        elif i.op == O_MOVS16: r[i.to] = <uint64_t>(<int64_t><int16_t>b)
        elif i.op == O_MOVS32: r[i.to] = <uint64_t>(<int64_t><int32_t>b)
        elif i.op == O_ADD32: r[i.to] = <uint32_t>(r[i.to] + b)
        elif i.op == O_SUB32: r[i.to] = <uint32_t>(r[i.to] - b)
        elif i.op == O_MUL32: r[i.to] = <uint32_t>(r[i.to] * b)
        elif i.op == O_DIV32: r[i.to] = <uint32_t>r[i.to] / <uint32_t>b if <uint32_t>b else 0
        elif i.op == O_OR32: r[i.to] = <uint32_t>(r[i.to] | b)
        elif i.op == O_AND32: r[i.to] = <uint32_t>(r[i.to] & b)
        elif i.op == O_LSH32: r[i.to] = <uint32_t>(r[i.to] << (b & 31))
        elif i.op == O_RSH32: r[i.to] = <uint32_t>r[i.to] >> (b & 31)
        elif i.op == O_NEG32: r[i.to] = <uint32_t>(0 - r[i.to])
        elif i.op == O_MOD32:
            r[i.to] = <uint32_t>r[i.to] % <uint32_t>b if <uint32_t>b else <uint32_t>r[i.to]
        elif i.op == O_XOR32: r[i.to] = <uint32_t>(r[i.to] ^ b)
        elif i.op == O_MOV32: r[i.to] = <uint32_t>b
        elif i.op == O_ARSH32: r[i.to] = <uint32_t>(<int32_t>r[i.to] >> (b & 31))
        elif i.op == O_SDIV32:
            if <uint32_t>b == 0: r[i.to] = 0
            elif <int32_t>b == -1: r[i.to] = <uint32_t>(0 - r[i.to])
            else: r[i.to] = <uint32_t>(<int32_t>r[i.to] / <int32_t>b)
        elif i.op == O_SMOD32:
            if <int32_t>b == -1: r[i.to] = 0
            elif <uint32_t>b: r[i.to] = <uint32_t>(<int32_t>r[i.to] % <int32_t>b)
            else: r[i.to] = <uint32_t>r[i.to]
        elif i.op == O_MOVS8_32: r[i.to] = <uint32_t>(<int32_t><int8_t>b)
        elif i.op == O_MOVS16_32: r[i.to] = <uint32_t>(<int32_t><int16_t>b)
        elif i.op == O_SWAP16: r[i.to] = swapped(r[i.to], 16)
        elif i.op == O_SWAP32: r[i.to] = swapped(r[i.to], 32)
        elif i.op == O_SWAP64: r[i.to] = swapped(r[i.to], 64)
        elif i.op == O_LOW16: r[i.to] = <uint16_t>r[i.to]
        elif i.op == O_LOW32: r[i.to] = <uint32_t>r[i.to]
        elif i.op == O_LOW64: pass
        elif i.op == O_WIDE: r[i.to] = i.value
        elif i.op == O_LD1 or i.op == O_LDS1:
            data = resolve(m, r[i.source] + <uint64_t>i.offset, 1, False)
            if data == NULL: bad(m, BAD_ADDRESS, r[i.source] + <uint64_t>i.offset)
            elif i.op == O_LD1: r[i.to] = data[0]
            else: r[i.to] = <uint64_t>(<int64_t><int8_t>data[0])
        elif i.op == O_LD2 or i.op == O_LDS2:
            data = resolve(m, r[i.source] + <uint64_t>i.offset, 2, False)
            if data == NULL: bad(m, BAD_ADDRESS, r[i.source] + <uint64_t>i.offset)
            else:
                value = 0
                memcpy(&value, data, 2)
                r[i.to] = value if i.op == O_LD2 else <uint64_t>(<int64_t><int16_t>value)
        elif i.op == O_LD4 or i.op == O_LDS4:
            data = resolve(m, r[i.source] + <uint64_t>i.offset, 4, False)
            if data == NULL: bad(m, BAD_ADDRESS, r[i.source] + <uint64_t>i.offset)
            else:
                value = 0
                memcpy(&value, data, 4)
                r[i.to] = value if i.op == O_LD4 else <uint64_t>(<int64_t><int32_t>value)
        elif i.op == O_LD8:
            data = resolve(m, r[i.source] + <uint64_t>i.offset, 8, False)
            if data == NULL: bad(m, BAD_ADDRESS, r[i.source] + <uint64_t>i.offset)
            else: memcpy(&r[i.to], data, 8)
        elif i.op == O_ST1 or i.op == O_ST2 or i.op == O_ST4 or i.op == O_ST8:
            value = 1 if i.op == O_ST1 else 2 if i.op == O_ST2 else 4 if i.op == O_ST4 else 8
            data = resolve(m, r[i.to] + <uint64_t>i.offset, value, True)
            if data == NULL: bad(m, BAD_ADDRESS, r[i.to] + <uint64_t>i.offset)
            else: memcpy(data, &b, value)
        elif i.op == O_END: break
        elif i.op == O_JA:
            if i.jump < <int64_t>pc:
                budget -= min(budget, <uint64_t>(<int64_t>pc - i.jump))
                if budget == 0: bad(m, ILLEGAL_OPERATION, 0)
            if m.fault < 0: pc = i.jump
        elif i.op == O_CALL:
            if HELPERS[i.value] != NULL:
                r[0] = HELPERS[i.value](m, r)
            else:
                r[0] = call_host(m, i.value, r)
        elif i.op == O_LOCAL:
            if depth + 1 >= MAX_DEPTH or budget == 0:
                bad(m, ILLEGAL_OPERATION, 0)
            else:
                budget -= 1
                entries[depth] = i.jump
                if depth == 0:
                    m.scratch_at = 0
                    m.record_open = False
                    m.speculating = 0
                back[depth] = pc
                memcpy(saved[depth], &r[6], 40)
                depth += 1
                m.depth += 1
                r[10] += FRAME_BYTES
                pc = i.jump
        elif i.op == O_EXIT:
            if depth == 0:
                break
            depth -= 1
            m.depth -= 1
            if <int64_t>pc > entries[depth]:
                budget -= min(budget, <uint64_t>(<int64_t>pc - entries[depth]))
            memcpy(&r[6], saved[depth], 40)
            pc = back[depth]
        else:
            if i.op == O_JEQ: taken = r[i.to] == b
            elif i.op == O_JGT: taken = r[i.to] > b
            elif i.op == O_JGE: taken = r[i.to] >= b
            elif i.op == O_JSET: taken = (r[i.to] & b) != 0
            elif i.op == O_JNE: taken = r[i.to] != b
            elif i.op == O_JSGT: taken = <int64_t>r[i.to] > <int64_t>b
            elif i.op == O_JSGE: taken = <int64_t>r[i.to] >= <int64_t>b
            elif i.op == O_JLT: taken = r[i.to] < b
            elif i.op == O_JLE: taken = r[i.to] <= b
            elif i.op == O_JSLT: taken = <int64_t>r[i.to] < <int64_t>b
            elif i.op == O_JSLE: taken = <int64_t>r[i.to] <= <int64_t>b
            elif i.op == O_JEQ32: taken = <uint32_t>r[i.to] == <uint32_t>b
            elif i.op == O_JGT32: taken = <uint32_t>r[i.to] > <uint32_t>b
            elif i.op == O_JGE32: taken = <uint32_t>r[i.to] >= <uint32_t>b
            elif i.op == O_JSET32: taken = (<uint32_t>r[i.to] & <uint32_t>b) != 0
            elif i.op == O_JNE32: taken = <uint32_t>r[i.to] != <uint32_t>b
            elif i.op == O_JSGT32: taken = <int32_t>r[i.to] > <int32_t>b
            elif i.op == O_JSGE32: taken = <int32_t>r[i.to] >= <int32_t>b
            elif i.op == O_JLT32: taken = <uint32_t>r[i.to] < <uint32_t>b
            elif i.op == O_JLE32: taken = <uint32_t>r[i.to] <= <uint32_t>b
            elif i.op == O_JSLT32: taken = <int32_t>r[i.to] < <int32_t>b
            else: taken = <int32_t>r[i.to] <= <int32_t>b
            if taken:
                if i.jump < <int64_t>pc:  # unverified code may loop forever
                    budget -= min(budget, <uint64_t>(<int64_t>pc - i.jump))
                    if budget == 0: bad(m, ILLEGAL_OPERATION, 0)
                if m.fault < 0: pc = i.jump
        if m.fault >= 0:
            m.fault_at = pc - 1
            m.record_open = False
            m.speculating = 0
            if depth == 0:
                faulted(m)
                r[0] = <uint64_t>-1
                break
            m.depth -= depth - 1
            depth = 1
            faulted(m)
            depth = 0
            m.depth -= 1
            memcpy(&r[6], saved[0], 40)
            if <int64_t>pc > entries[0]:
                budget -= min(budget, <uint64_t>(<int64_t>pc - entries[0]))
            pc = back[0]
            r[0] = <uint64_t>-1
    m.depth = first
    return r[0] if budget else ~<uint64_t>0


cdef void faulted(Machine *m) noexcept nogil:
    """Fire the ERROR probe; arg1 to arg5 are clause, action, offset, fault and value."""
    cdef uint8_t kept[256]
    cdef uint64_t *context = <uint64_t *>m.region[R_CONTEXT].data
    cdef uint64_t clause = context[CONTEXT_CLAUSE / 8]
    cdef uint64_t scratch = m.scratch_at
    cdef int fault = m.fault
    cdef uint64_t value = m.fault_value
    cdef uint32_t at = m.fault_at  # a fault of the ERROR probe must not replace it
    cdef uint64_t skip
    cdef bint after
    cdef int64_t action
    m.fault = -1
    if m.in_error:
        m.error_faults += 1
        return
    if m.error_entry == NONE:
        call_error(m, clause, fault, value)
        return
    memcpy(kept, context, CONTEXT_SIZE)
    m.in_error = True
    skip = m.walker.skip
    m.walker.skip = 0  # for the ERROR probe, stack() omits no frames
    after, m.walker.after = m.walker.after, False
    memcpy(context, m.error_context, CONTEXT_SIZE)
    memcpy(<uint8_t *>context + CONTEXT_TIMESTAMP, kept + CONTEXT_TIMESTAMP, 8)
    context[CONTEXT_ARGUMENTS / 8 + 1] = clause
    action = action_at(m, m.fault_at)
    context[CONTEXT_ARGUMENTS / 8 + 2] = <uint64_t>(action >> 1)
    context[CONTEXT_ARGUMENTS / 8 + 3] = ~<uint64_t>0 if action & 1 else m.fault_at
    context[CONTEXT_ARGUMENTS / 8 + 4] = <uint64_t>fault
    context[CONTEXT_ARGUMENTS / 8 + 5] = value
    m.serial += 1
    execute(m, m.error_entry, address_of(R_CONTEXT, 0))
    m.serial -= 1
    memcpy(context, kept, CONTEXT_SIZE)
    m.in_error = False
    m.walker.skip, m.walker.after = skip, after
    m.fault_at = at
    call_error(m, clause, fault, value)
    m.scratch_at = scratch


cdef int64_t action_at(Machine *m, uint32_t at) noexcept with gil:
    return (<Runtime>m.owner).action_at(at)


cdef void call_error(Machine *m, uint64_t clause, int fault, uint64_t value) noexcept with gil:
    (<Runtime>m.owner).noted(clause, fault, value)
