"""Stacks of interrupted kernel and user code, and user registers (included by ``_runtime.pyx``).

The host is asked once per address how to step to the caller (``FrameStep`` of
``dtrace/stacks/stack.py``); the answer is cached. ``dtrace/run/guest_state.py`` is the slower
reference implementation, which also handles the cases that are not supported here.
"""


cdef inline uint64_t interrupted(Machine *m, int place) noexcept nogil:
    return m.read_register(m.interrupted, <uint32_t>(REGISTER + place))


cdef inline bint in_kernel(Machine *m) noexcept nogil:
    """Whether a probe is firing in kernel code whose stack can be walked natively."""
    return (m.walker.pc >= 0 and m.read_register != NULL and m.clock != NULL and
            not (m.walker.programs and not interrupted(m, m.walker.place[m.walker.pc]) >> 63))


cdef bint word_at(Machine *m, uint64_t address, uint8_t size, uint64_t *value) noexcept nogil:
    """Read a number from guest memory; return False, without a fault, at an unmapped address."""
    value[0] = 0
    return not own(address) and m.read(m.read_data, address, value, size)


cdef KnownStep *step_at(Machine *m, uint64_t pc, bint is_return) noexcept nogil:
    """Return the step from an address to its caller, or NULL if the host must walk the stack."""
    cdef uint64_t at = ((pc << 1 | is_return) * <uint64_t>0x9E3779B97F4A7C15) >> (64 - STEP_BITS)
    cdef KnownStep *s
    while True:
        s = &m.walker.step[at]
        if s.how == STEP_FREE:
            break
        if s.address == pc and s.is_return == is_return:
            return s
        at = (at + 1) & (STEPS - 1)
    if m.walker.steps >= STEPS / 2:  # the table is half full: clear it
        memset(m.walker.step, 0, STEPS * sizeof(KnownStep))
        m.walker.steps = m.walker.user_steps = 0
        return step_at(m, pc, is_return)
    if not ask_step(m, pc, is_return, s):
        memset(s, 0, sizeof(KnownStep))
        return NULL
    s.address, s.is_return = pc, is_return
    m.walker.steps += 1
    m.walker.user_steps += not pc >> 63
    return s


cdef bint ask_step(Machine *m, uint64_t pc, bint is_return, KnownStep *s) noexcept with gil:
    cdef Runtime runtime = <Runtime>m.owner
    try:
        return runtime.find_step(pc, is_return, s)
    except BaseException as failure:
        runtime.failed(failure)
        return False


cdef int64_t kernel_stack(Machine *m, uint8_t *to, uint64_t skip, uint64_t most) noexcept nogil:
    """Walk the kernel stack and return the number of frames after the first ``skip``.

    Store their addresses at ``to`` unless it is NULL. Return -1 if the host must walk the stack.
    """
    cdef uint64_t now[WALKED]
    cdef uint64_t then[WALKED]
    cdef bint known[WALKED]
    cdef Walker *w = &m.walker
    cdef KnownStep *s
    cdef const SavedRegister *saved
    cdef uint64_t pc, frame, sp, n, marked, back
    cdef bint is_return = w.after
    cdef int k, count
    cdef uint64_t limit = skip + most
    memset(known, 0, sizeof(known))
    n = 0
    while n < limit:
        pc = walked(m, now, known, w.pc)
        if is_return and pc == w.entry:
            break
        if not w.low <= pc < w.high:  # a user address or an invalid address
            if is_return or n and not walked(m, now, known, w.sp) >> 63:
                break
            return -1
        s = step_at(m, pc, is_return)
        if s == NULL:
            return -1
        if s.how == STEP_OUTSIDE:
            if is_return:
                break
            return -1
        if n >= skip and to != NULL:
            marked = pc
            if w.marks:
                marked = pc & ~w.marks | (w.caller_mark if is_return else w.own_mark)
            memcpy(to + 8 * (n - skip), &marked, 8)
        n += 1
        if s.how == STEP_LAST:
            break
        sp = walked(m, now, known, w.sp)
        frame = walked(m, now, known, s.base) + <uint64_t><int64_t>s.offset
        if s.how == STEP_TRAP:
            saved, count = w.trap, w.trap_count
        else:
            saved, count = s.saved, s.count
            if frame - <uint64_t><int64_t>s.floor < sp or s.above and frame == sp:
                break
        for k in range(count):
            if not word_at(m, frame + <uint64_t><int64_t>saved[k].offset, saved[k].size, &then[k]):
                return n - skip if n > skip else 0
        back = walked(m, now, known, s.link) if s.link >= 0 else 0
        for k in range(count):
            now[saved[k].register] = then[k]
            known[saved[k].register] = True
        if s.link >= 0:
            now[w.pc] = back
            known[w.pc] = True
        if s.how != STEP_TRAP:
            now[w.sp] = frame
            known[w.sp] = True
        is_return = s.how != STEP_TRAP
    return n - skip if n > skip else 0


cdef inline uint64_t walked(Machine *m, uint64_t *now, bint *known, int register) noexcept nogil:
    """Return the value of a register in the current frame.

    A register that no frame has saved still has its value in the interrupted code.
    """
    if not known[register]:
        now[register] = interrupted(m, m.walker.place[register])
        known[register] = True
    return now[register]


cdef struct UserWalk:
    uint64_t now[WALKED]
    bint known[WALKED]
    uint64_t trap  # address of the thread's trap frame; 0: the CPU is in user mode


cdef inline bint can_walk_programs(Machine *m) noexcept nogil:
    """Whether a probe is firing, in kernel or user code, and user stacks can be walked natively."""
    return (m.walker.pc >= 0 and m.read_register != NULL and m.clock != NULL and
            m.walker.frames_known)


cdef inline bint in_program(Machine *m) noexcept nogil:
    """Whether a probe is firing in user code."""
    return m.walker.programs and not interrupted(m, m.walker.place[m.walker.pc]) >> 63


cdef inline uint64_t user_value(Machine *m, UserWalk *u, int register) noexcept nogil:
    """Return the value of a user register in the current frame; see ``walked``."""
    cdef const SavedRegister *saved = &m.walker.entered[register]
    if not u.known[register]:
        u.now[register] = 0
        if u.trap == 0:
            u.now[register] = interrupted(m, m.walker.place[register])
        elif saved.size:
            word_at(m, u.trap + <uint64_t><int64_t>saved.offset, saved.size, &u.now[register])
        u.known[register] = True
    return u.now[register]


cdef inline void set_value(UserWalk *u, int register, uint64_t value) noexcept nogil:
    u.now[register] = value
    u.known[register] = True


cdef int64_t user_stack(Machine *m, uint64_t number, uint8_t *to, uint64_t most) noexcept nogil:
    """Walk the user stack of the current thread.

    Return the number of frames, and store their addresses at ``to`` unless it is NULL. Return -1
    if the host must walk the stack.

    :param number: ``program_number``, above the bits of an address.
    """
    cdef Walker *w = &m.walker
    cdef UserWalk u
    cdef uint64_t then[WALKED]
    cdef KnownStep *s
    cdef const SavedRegister *saved
    cdef uint64_t pc, frame, sp, back, outer
    cdef uint64_t n = 0
    cdef bint is_return = False
    cdef bint guessed = False
    cdef int k, count
    memset(u.known, 0, sizeof(u.known))
    u.trap = 0
    if in_program(m):
        is_return = w.after
    elif not word_at(m, current_thread(m) + w.thread_frame, 8, &u.trap) or not u.trap:
        return 0
    pc = user_value(m, &u, w.pc)
    while n < most and 0 < pc <= USER_ADDRESS:
        s = step_at(m, number | pc, is_return)
        if s == NULL:
            return -1
        if guessed and not s.called:
            break
        if to != NULL:
            memcpy(to + 8 * n, &pc, 8)
        n += 1
        guessed = s.how == STEP_RECORD or s.how == STEP_GUESS
        if n >= most or s.how == STEP_LAST:
            break
        if s.how == STEP_RECORD:
            frame = user_value(m, &u, w.frame)
            if frame == 0 or frame & 7 or frame > USER_ADDRESS:
                break
            if (frame + <uint64_t><int64_t>w.record_return > USER_ADDRESS or
                    frame + <uint64_t><int64_t>w.record_saved > USER_ADDRESS or not (
                    word_at(m, frame + <uint64_t><int64_t>w.record_return, 8, &back) and
                    word_at(m, frame + <uint64_t><int64_t>w.record_saved, 8, &outer))):
                break
            if back == 0 or back > USER_ADDRESS:
                break
            pc = back
            if outer and outer <= frame:
                s = step_at(m, number | pc, True)
                if s == NULL:
                    return -1
                if s.called:
                    if to != NULL:
                        memcpy(to + 8 * n, &pc, 8)
                    n += 1
                break
            set_value(&u, w.frame, outer)
            set_value(&u, w.sp, frame + (8 + w.record_return if w.record_return > -8 else 0))
            is_return = True
            continue
        sp = user_value(m, &u, w.sp)
        frame = user_value(m, &u, s.base) + <uint64_t><int64_t>s.offset
        if frame > USER_ADDRESS:
            break
        if s.how == STEP_SIGNAL:
            saved, count = w.signal, w.signal_count
        else:
            saved, count = s.saved, s.count
            if frame < sp or s.above and frame == sp:
                break
        for k in range(count):
            if frame + <uint64_t><int64_t>saved[k].offset > USER_ADDRESS or not word_at(
                    m, frame + <uint64_t><int64_t>saved[k].offset, saved[k].size, &then[k]):
                return <int64_t>n
        back = user_value(m, &u, s.link) if s.link >= 0 else 0
        for k in range(count):
            set_value(&u, saved[k].register, then[k])
        if s.link >= 0:
            set_value(&u, w.pc, back)
        if s.how != STEP_SIGNAL:
            set_value(&u, w.sp, frame)
        pc = user_value(m, &u, w.pc)
        is_return = s.how != STEP_SIGNAL
    return <int64_t>n


cdef int64_t program_number(Machine *m) noexcept nogil:
    """Return the host's ID for the name of the running process and the files that it has mapped."""
    cdef Walker *w = &m.walker
    cdef Walk *walk = &m.walk[w.name_variable]
    cdef uint64_t address = current_thread(m)
    cdef ProcessName key
    cdef uint64_t process, lock
    cdef bint busy = False
    cdef uint32_t n
    memset(&key, 0, sizeof(key))
    if w.spaces_known and word_at(m, address + w.space_process, 8, &process) and (
            word_at(m, process + w.space_number, 4, &key.process) and
            word_at(m, process + w.space, 8, &key.space) and key.space and
            word_at(m, key.space + w.changes, 4, &key.changes) and
            word_at(m, key.space + w.map_lock, 8, &lock)):
        busy = not lock & w.map_shared
    else:
        key.process = key.space = key.changes = 0
    for n in range(walk.steps):
        address += walk.offset[n]
        if n + 1 < walk.steps and not word_at(m, address, 8, &address):
            return 0
    if own(address) or not m.read(m.read_data, address, key.text, w.name_size):
        return 0
    for n in range(w.names):
        if w.name[n].process == key.process and w.name[n].space == key.space and memcmp(
                w.name[n].text, key.text, NAME_BYTES) == 0:
            if w.name[n].changes == key.changes and not busy:
                return w.name[n].number
            break
    else:
        n = w.names = w.names % NAMES  # if the cache is full, discard its contents
        w.names += 1
    key.number = ask_number(m, key.text)
    if w.user_steps:  # another file may be mapped where the steps were unknown
        memset(w.step, 0, STEPS * sizeof(KnownStep))
        w.steps = w.user_steps = 0
    if busy:  # a thread is changing the map
        key.process = ~<uint64_t>0
    w.name[n] = key
    return key.number


cdef int64_t ask_number(Machine *m, const uint8_t *name) noexcept with gil:
    """Ask the host for the number of the running process."""
    cdef Runtime runtime = <Runtime>m.owner
    try:
        return runtime.host_numbers(name[:m.walker.name_size].partition(b"\0")[0])
    except BaseException as failure:
        runtime.failed(failure)
        return 0


cdef uint64_t h_stack(Machine *m, uint64_t *r) noexcept nogil:
    cdef int64_t n = -1
    cdef int64_t k
    cdef uint64_t number, address
    cdef uint8_t *to
    if r[2] > MAX_FRAMES or not (can_walk_programs(m) if r[3] else in_kernel(m)):
        return call_host(m, STACK_HELPER, r)
    to = resolve(m, r[1], 8 * r[2], True)
    if to == NULL:
        return bad(m, BAD_ADDRESS, r[1])
    if not r[3]:
        n = kernel_stack(m, to, m.walker.skip, r[2])
    else:
        number = <uint64_t>program_number(m) << 48
        n = user_stack(m, number, to, r[2])
        for k in range(n):
            memcpy(&address, to + 8 * k, 8)
            address |= number
            memcpy(to + 8 * k, &address, 8)
    if n < 0:
        return call_host(m, STACK_HELPER, r)
    memset(to + 8 * n, 0, 8 * (r[2] - <uint64_t>n))
    return 0


cdef bint of_stack(Machine *m, uint64_t *r, uint64_t *value) noexcept nogil:
    """Read a stack variable or a user register; return False to leave the read to the host."""
    cdef uint64_t two[2]
    cdef uint64_t marks, number, trap
    cdef int64_t n = -1
    cdef SavedRegister *saved
    value[0] = 0
    if r[1] == m.walker.ustackdepth or r[1] == m.walker.ucaller:
        if not can_walk_programs(m):
            return False
        number = <uint64_t>program_number(m) << 48
        two[1] = 0
        if r[1] == m.walker.ucaller:
            n = user_stack(m, number, <uint8_t *>two, 2)
            value[0] = two[1] if n > 1 else 0
        else:
            n = user_stack(m, number, NULL, MAX_USER_FRAMES + 1)
            value[0] = <uint64_t>n
            if n > <int64_t>MAX_USER_FRAMES:
                return False  # the stack is too deep: the host reports the fault
        return n >= 0
    if not in_kernel(m):
        return False
    if r[1] == m.walker.stackdepth:
        n = kernel_stack(m, NULL, m.walker.skip, MAX_FRAMES)
        value[0] = <uint64_t>n
    elif r[1] == m.walker.caller:
        two[1] = 0
        marks, m.walker.marks = m.walker.marks, 0
        n = kernel_stack(m, <uint8_t *>two, 0, 2)
        m.walker.marks = marks
        value[0] = two[1] if n > 1 else 0
        if m.walker.after:
            value[0] = two[0] if n > 0 else 0
    elif r[1] == UREGS and r[2] < PLACES and m.walker.user[r[2]].size and m.walker.frames_known:
        saved = &m.walker.user[r[2]]
        if fetch(m, current_thread(m) + m.walker.thread_frame, &trap, 8):
            if trap == 0:  # the thread has never been in user mode
                bad(m, BAD_ADDRESS, 0)
            else:
                value[0] = 0
                fetch(m, trap + <uint64_t><int64_t>saved.offset, value, saved.size)
        n = 0
    return n >= 0


cdef uint64_t h_progenyof(Machine *m, uint64_t *r) noexcept nogil:
    cdef Walker *w = &m.walker
    cdef uint64_t process, number
    cdef int n
    if not w.family_known or m.clock == NULL:
        return call_host(m, PROGENYOF, r)
    if not word_at(m, current_thread(m) + w.process, 8, &process):
        return 0
    for n in range(ANCESTORS):
        if process == 0 or not word_at(m, process + w.process_number, 4, &number):
            return 0
        if number == r[1]:
            return 1
        if not word_at(m, process + w.parent, 8, &process):
            return 0
    return 0
