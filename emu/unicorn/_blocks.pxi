"""Handling of block starts: the clock, stops and the seam.

``_engine.pyx`` includes this file, so that the C compiler can inline code that runs at each of the
millions of block starts.
"""

cdef void request_stop(Clock *c, int why) noexcept nogil:
    c.stop = why
    c.emu_stop(c.uc)


cdef int block_end(Clock *c) noexcept nogil:
    """Return how the previous block ended: END_ITSELF, END_CUT or END_UNKNOWN."""
    cdef BlockCount *entry = table_entry(c, code_key(c, c.before, c.before_size), c.before_size)
    cdef uint32_t last = 0
    if entry != NULL and entry.end != END_UNKNOWN:
        return entry.end
    if c.end_mask and guest_read(c, c.before + c.before_size - 4, &last, 4):
        if last & c.end_mask != c.end_value:
            set_block_end(c, c.before, c.before_size, c.before_size >> 2, END_CUT)
            return END_CUT
    return END_UNKNOWN if c.slow else branch_end(c)


cdef uint32_t split(Clock *c, const uint8_t *code, uint32_t size, uint32_t *last) noexcept nogil:
    """Return the number of instructions in ``code`` and the offset of the last one, or 0."""
    if c.fixed:
        if size & (1 << c.fixed_bits) - 1:
            return 0
        last[0] = size - (1 << c.fixed_bits)
        return size >> c.fixed_bits
    return 0 if c.split == NULL else c.split(code, size, last)


cdef int branch_end(Clock *c) noexcept nogil:
    """Return END_ITSELF if the previous block ends with a branch, else END_UNKNOWN."""
    cdef uint8_t code[PREFIX_BYTES + 4]
    cdef uint32_t last = 0
    cdef uint32_t first, count, size = c.before_size
    cdef int i
    if c.branch_count == 0 or not 0 < size <= PREFIX_BYTES or not guest_read(
            c, c.before, code, size):
        return END_UNKNOWN
    memset(code + size, 0, 4)
    count = split(c, code, size, &last)
    if count == 0 or count > 0xFFFF or last >= size:
        return END_UNKNOWN
    memcpy(&first, code + last, 4)
    for i in range(c.branch_count):
        if (size - last == c.branches[i].size
                and first & c.branches[i].mask == c.branches[i].value):
            if set_block_end(c, c.before, size, count, END_ITSELF) != 0:
                return END_UNKNOWN
            return END_ITSELF
    return END_UNKNOWN


cdef int set_block_end(Clock *c, uint64_t address, uint32_t size, uint32_t count,
                       int end) noexcept nogil:
    cdef uint64_t key = code_key(c, address, size)
    if table_entry(c, key, size) == NULL and table_put(c, key, size, count) != 0:
        return -1
    table_entry(c, key, size).end = end
    fast_block(c, address).size = 0
    return 0


cdef bint holds_trapped(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    """Return whether any bytes of a block encode an instruction that must trap."""
    cdef uint64_t key = code_key(c, address, size)
    cdef BlockCount *entry = table_entry(c, key, size)
    cdef uint32_t code = 0
    cdef uint32_t at
    cdef int i
    cdef bint found = False
    if entry != NULL and entry.trapped != TRAPPED_UNKNOWN:
        return entry.trapped == TRAPPED_SOME
    at = 0
    while at < size and guest_read(c, address + at, &code, 4):
        for i in range(c.trapped_count):
            found |= code & c.trapped[i][0] == c.trapped[i][1]
        at += 4 if c.fixed else 2
    if entry != NULL or c.fixed and table_put(c, key, size, size >> 2) == 0:
        table_entry(c, key, size).trapped = TRAPPED_SOME if found else TRAPPED_NONE
    return found


cdef inline void resume(Clock *c, uint64_t address) noexcept nogil:
    """Mark the next block start at ``address`` as not canonical."""
    c.resumed = True
    c.resume_at = address


cdef inline int canonical_start(Clock *c) noexcept nogil:
    """Handle a canonical block start; return a stop that is due before the block, or STOP_NONE."""
    c.canonical = c.instructions
    if time_at(c, c.instructions) >= c.deadline:
        return STOP_DEADLINE
    if c.instructions >= c.turn_end and turn_over(c, c.instructions):
        return STOP_TURN
    if c.shadow:
        c.shadow = False
    elif c.pending:
        if interruptible(c):
            return STOP_INTERRUPT
    return 0


cdef void block_hook(void *uc, uint64_t address, uint32_t size, void *data) noexcept nogil:
    """Handle a block start on the fast path, which only advances the clock."""
    cdef Clock *c = <Clock *>data
    cdef FastBlock *fast = fast_block(c, address)
    cdef uint64_t unusual
    cdef uint64_t total = c.instructions + c.count
    memcpy(&unusual, c, sizeof(unusual))
    if (unusual or address == c.cut_at or fast.address != address or fast.size != size
            or fast.turn != c.turns[address >> 63] or total + fast.count > c.horizon):
        c.unusual(c, address, size)
        return
    c.instructions = c.canonical = total
    c.address = address
    c.size = size
    c.count = fast.count
    c.cut_at = fast.cut_at
    c.blocks += 1


cdef void unusual_block(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    """Handle a block start that the fast path cannot handle or does not know yet."""
    cdef FastBlock *fast = fast_block(c, address)
    cdef uint64_t total = c.instructions + c.count
    cdef uint64_t unusual, last
    cdef uint32_t n = 0
    # A switch from the kernel to a program changes ``turns[0]``, so the first block after the
    # switch takes this path.
    if c.address >> 63 and not address >> 63:
        c.program_began = total
    memcpy(&unusual, c, sizeof(unusual))
    if not unusual and goes_on(c, fast, address, size, total):
        return
    unusual |= may_be_cut(c, address)
    if not unusual and not (c.program_traps and not address >> 63 and holds_trapped(c, address, size)
                            ) and not gives_away(c, address, size):
        n = size >> c.fixed_bits if c.fixed else table_find(c, code_key(c, address, size), size)
    if c.awaited_count and (is_awaited(c, address) or is_awaited(c, address + size)):
        n = 0  # select ``begin``, which calls the callbacks even at the end of a detour
    last = address + size
    c.cut_at = last
    if n == 0 or total + n > c.horizon:
        if c.untold:
            translated(c, address, size)
        if (c.frozen and not c.count and address != c.detour.at
                and address - c.detour.slot > c.detour.site_length
                and c.detour.frozen_blocks + 1 & 0xFFFFF and not c.slow):
            c.detour.frozen_blocks += 1  # this block is on the kernel's path to the seam or back
            c.address = address
            c.size = size
            return
        c.begin(c, address, size)
        return
    fast.address, fast.turn = address, c.turns[address >> 63]
    fast.size, fast.count = size, <uint16_t>n
    know_end(c, fast)
    c.cut_at = fast.cut_at
    c.instructions = c.canonical = total
    c.address = address
    c.size = size
    c.count = n
    c.blocks += 1


cdef bint goes_on(Clock *c, FastBlock *fast, uint64_t address, uint32_t size, uint64_t total
                 ) noexcept nogil:
    """Enter a known block that continues a cut block and thus has no canonical start.

    Return False, and do nothing, for any other block.
    """
    cdef FastBlock *before = fast_block(c, c.address)
    if (c.count == 0 or address != c.cut_at or before.end != END_CUT
            or before.address != c.address or before.size != c.size
            or before.turn != c.turns[c.address >> 63]
            or fast.address != address or fast.size != size
            or fast.turn != c.turns[address >> 63] or total + fast.count > c.horizon):
        return False
    c.instructions = total
    c.address = address
    c.size = size
    c.count = fast.count
    c.cut_at = fast.cut_at
    c.blocks += 1
    return True


cdef void know_end(Clock *c, FastBlock *fast) noexcept nogil:
    """Determine how a block ends, and the address at which the rest of a cut block would begin."""
    cdef uint64_t last = fast.address + fast.size
    cdef BlockCount *entry
    fast.cut_at = 0
    fast.end = END_ITSELF
    if fast.count >= LONG_BLOCK or (fast.address ^ last) >> c.page_bits != 0:
        entry = table_entry(c, code_key(c, fast.address, fast.size), fast.size)
        fast.end = END_UNKNOWN if entry == NULL else entry.end
        if fast.end != END_ITSELF:
            fast.cut_at = last


cdef inline bint may_be_cut(Clock *c, uint64_t address) noexcept nogil:
    """Return whether the guest fell through to ``address`` from a block that may be cut.

    A block may be cut at the end of a page or because of its length.  Bitwise operators avoid
    branches, which would be mispredicted here.
    """
    return (address - c.address == c.size) & (
        (c.count >= LONG_BLOCK) | ((c.address ^ address) >> c.page_bits != 0))


cdef void look_ahead(Clock *c) noexcept nogil:
    """Set ``horizon``, the instruction count up to which no deadline, limit or turn end is due."""
    c.horizon = c.instructions + SIGNALS
    if c.limit < c.horizon:
        c.horizon = c.limit
    cdef uint64_t now = time_at(c, c.instructions)
    if c.pause_end != NEVER:
        c.horizon = 0  # the next block start is not on the fast path, and calls ``pause``
    if c.turn_end <= c.horizon:
        c.horizon = c.turn_end - 1 if c.turn_end else 0
    if c.deadline <= now:
        c.horizon = 0
    elif c.deadline != NEVER and c.deadline - c.skew - 1 < c.horizon:
        c.horizon = c.deadline - c.skew - 1


cdef void begin_block(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    cdef uint32_t n
    cdef int why
    cdef bint resumed
    cdef bint doubtful
    # A stop that was requested earlier in this run takes effect only when this hook returns.
    doubtful = may_be_cut(c, address) and c.count != 0
    if doubtful:
        c.before = c.address
        c.before_size = c.size
    c.instructions += c.count
    c.count = 0
    pause(c)
    c.address = address
    c.size = size
    if c.frozen:
        c.detour.frozen_blocks += 1
        if c.detour.frozen_blocks & 0xFFFFF == 0:
            check_signals(c)
        if address == c.detour.slot:
            c.detour.slot_entries += 1  # a REP instruction enters its block once per repetition
            if c.detour.slot_entries == 1:
                c.detour.gives_away = displaced_yields(c, address, size)
                wipe_footprint(c)
            elif repetition_due(c):
                return
        elif address == c.detour.slot + c.detour.site_length:
            c.detour.slot_ended = True
        if not thaws_at(c, address):
            return
        thaw_now(c)  # the displaced instruction was executed: continue after it
    tell_call(c, address)
    if is_awaited(c, address) and c.arrived != NULL and not c.arrived(c.arrived_data, address):
        request_stop(c, STOP_REQUEST)
        return
    resumed = c.resumed
    if resumed:
        c.resumed = False
        resumed = c.resume_at == address
    elif doubtful:
        why = block_end(c)
        if why == END_UNKNOWN:
            request_stop(c, STOP_UNSURE)
            return
        resumed = why == END_CUT
    if c.fixed:
        n = size >> c.fixed_bits
    else:
        n = table_find(c, code_key(c, address, size), size)
        if n == 0:
            if resumed:
                resume(c, address)
            c.unknown_address = address
            c.unknown_size = size
            request_stop(c, STOP_UNCOUNTED)
            return
    c.blocks += 1
    if c.instructions >= c.heard:
        c.heard = c.instructions + SIGNALS
        check_signals(c)
    if not resumed:
        why = canonical_start(c)
        if why:
            request_stop(c, why)
            return
    if c.in_piece and c.piece == address:
        c.in_piece = False
    elif (c.program_traps and not address >> 63 and holds_trapped(c, address, size)
            and in_user_mode(c)):
        resume(c, address)
        request_stop(c, STOP_TRAPPED)
        return
    elif c.instructions + n > c.limit:
        resume(c, address)  # the guest has reached the block and will execute part of it
        request_stop(c, STOP_LIMIT)
        return
    c.count = n
    note_call(c, address, size)
    if gives_away(c, address, size):
        give_away(c, c.instructions + n)
    look_ahead(c)


cdef enum:
    # Minimum number of instructions in a block that the CPU model may have cut for being too long.
    # Translation ends at 512 instructions or 4000 operations (TCG_MAX_INSNS, tcg_op_buf_full), and
    # no instruction needs 250 operations.
    LONG_BLOCK = 16
    SIGNALS = 1 << 20  # number of instructions between two checks for host signals
    MANY_PAGES = 1 << 20  # maximum number of bytes whose translations are dropped page by page
    END_UNKNOWN = 0  # it is not yet known how the block ends
    END_ITSELF = 1  # the last instruction, such as a jump, always ends a block
    END_CUT = 2  # the CPU model cut the block, at the end of a page or because of its length
    TRAPPED_UNKNOWN = 0
    TRAPPED_NONE = 1
    TRAPPED_SOME = 2
    YIELDS_UNKNOWN = 0
    YIELDS_NOT = 1
    YIELDS = 2


# unicorn.h: uc_tb
cdef struct UcTb:
    uint64_t pc
    uint16_t icount
    uint16_t size


cdef void edge_hook(void *uc, UcTb *current, UcTb *previous, void *data) noexcept nogil:
    cdef Clock *c = <Clock *>data
    cdef size_t i
    cdef uint64_t key = code_key(c, current.pc, current.size)
    fast_block(c, current.pc).size = 0
    # Where an exit address cuts a translation, Unicorn's count includes one instruction too many.
    # The decoder then counts the block's instructions instead (STOP_UNCOUNTED).
    c.untold = False
    translated(c, current.pc, current.size)
    for i in range(c.exit_count):
        if current.pc + current.size == c.exits[i]:
            return
    if not c.fixed or table_entry(c, key, current.size) != NULL:
        table_put(c, key, current.size, current.icount)


cdef void stop_hook(void *uc, uint64_t address, uint32_t size, void *data) noexcept nogil:
    cdef Clock *c = <Clock *>data
    cdef int i
    for i in range(c.stop_count):
        if c.stops[i] == address:
            break
    else:
        return  # the stop was removed, but its hook could not be removed
    if c.passing and c.pass_by == address:
        c.passing = False
        c.passed, c.passed_at = address, c.instructions
        return
    request_stop(c, STOP_ADDRESS)


cdef bint stops_at(Clock *c, uint64_t address) noexcept nogil:
    """Return whether the run ends before the instruction at ``address``.

    Other hooks of the instruction call this; they may run before or after the stop's own hook.
    """
    cdef int i
    if c.stop:
        return True
    for i in range(c.stop_count):
        if c.stops[i] == address:
            return not (c.passing and c.pass_by == address) and not (
                c.passed == address and c.passed_at == c.instructions)
    return False


cdef void seam_hook(void *uc, uint64_t address, uint32_t size, void *data) noexcept nogil:
    cdef Clock *c = <Clock *>data
    if c.seam_call != NULL and c.seam == address:
        c.seam_call(c.trap_data)
