"""Kernel probes, the current thread and the thread's variables (included by ``_runtime.pyx``)."""


cdef uint64_t current_thread(Machine *m) noexcept nogil:
    """Return the current ``struct thread *`` (first word of the per-CPU data), or 0."""
    if not m.thread_known:
        m.thread = 0
        if m.clock == NULL:
            m.thread = host_thread(m)
        elif m.clock.thread_word != NULL:
            m.thread = m.clock.thread_word[0]
        elif not guest_read(
                m.clock, register_read(m.clock, m.per_cpu), &m.thread, 8):
            m.thread = 0
        m.thread_known = True
    return m.thread


cdef enum:
    TRACER = 1  # key of the tracer's own thread; no structure has this address


cdef uint64_t thread_key(Machine *m) noexcept nogil:
    """Return a key for the current thread, made of the thread's address, ID and process ID.

    The address and the thread ID are not enough, since the kernel reuses both for a thread of
    another process.  BEGIN and END fire in the tracer's own thread, which the guest does not have.
    """
    if m.in_tracer:
        return TRACER
    cdef uint64_t thread = current_thread(m)
    cdef uint64_t process = 0
    cdef uint32_t number = 0
    cdef uint32_t process_number = 0
    if not m.numbered or thread == 0 or not m.read(
            m.read_data, thread + m.number_at, &number, sizeof(number)) or not m.read(
            m.read_data, thread + m.process_at, &process, sizeof(process)) or not m.read(
            m.read_data, process + m.process_number_at, &process_number, sizeof(process_number)):
        return thread
    return (<uint64_t>(process_number << 16 ^ number) << 32) | <uint64_t><uint32_t>(thread >> 4)


cdef uint64_t host_thread(Machine *m) noexcept with gil:
    """Return the current thread of a guest in another process, or 0 if no guest is attached."""
    cdef Runtime runtime = <Runtime>m.owner
    if runtime.other is None:
        return 0
    try:
        return word(runtime.other.thread)
    except BaseException as failure:
        runtime.failed(failure)
        return 0


cdef bint read_other(void *owner, uint64_t address, void *to, uint32_t size) noexcept with gil:
    """Read memory of a guest in another process."""
    cdef Runtime runtime = <Runtime>owner
    cdef bytes found
    try:
        found = runtime.other.memory(address, size)
        if found is None or len(found) != size:
            return False
        memcpy(to, <const char *>found, size)
        return True
    except BaseException as failure:
        runtime.failed(failure)
        return False


cdef uint64_t register_of_other(void *owner, uint32_t number) noexcept with gil:
    """Return an argument, the function's result or a register of a guest in another process."""
    cdef Runtime runtime = <Runtime>owner
    try:
        return word(runtime.other.interrupted(number))
    except BaseException as failure:
        runtime.failed(failure)
        return 0


cdef bint read_clock(void *clock, uint64_t address, void *to, uint32_t size) noexcept nogil:
    return guest_read(<Clock *>clock, address, to, size)


cdef uint64_t h_variable(Machine *m, uint64_t *r) noexcept nogil:
    cdef Walk *w
    cdef uint64_t value, n
    cdef uint64_t again[6]
    cdef uint8_t *to
    cdef int64_t length
    if r[1] == REGS and m.read_register != NULL and r[2] < PLACES and m.place[r[2]] >= 0:
        return m.read_register(m.interrupted, <uint32_t>(REGISTER + m.place[r[2]]))
    if r[1] >= WALKS or not m.walk[r[1]].known:
        if of_stack(m, r, &value):
            return value
        return call_host(m, VARIABLE, r)
    w = &m.walk[r[1]]
    value = current_thread(m)
    for n in range(w.steps):
        value += w.offset[n]
        if n + 1 < w.steps:
            if not fetch(m, value, &value, 8):
                return 0
    if w.steps == 0:
        return value
    if not w.text:
        r[1], r[2] = value, w.size
        return h_load(m, r)
    again[1] = m.string_size
    n = h_allocate(m, again)
    to = resolve(m, n, m.string_size, True)
    if to == NULL:
        return 0
    length = text(m, value, to, m.string_size)
    return n if length >= 0 else 0


cdef inline bint ended(Machine *m) noexcept nogil:
    """Whether tracing has ended, by exit() or because a buffer is full."""
    return m.stopped or (<uint64_t *>m.region[R_STATE].data)[0] != 0


cdef uint32_t constant(object address) except? 0:
    """Return the offset of a string constant from the first one.

    :raises ValueError: if the address is not that of a constant.
    """
    if not CONSTANTS <= address <= CONSTANTS + 0xFFFFFFFF:
        raise ValueError("not the address of a string constant")
    return <uint32_t>(address - CONSTANTS)


cdef Entered *enable(Machine *m, uint32_t probe, uint32_t entry, uint64_t number, uint64_t first,
                     int kind, uint32_t wanted) except NULL:
    """Enable a probe of the kernel; the caller fills in its names.

    :raises ValueError: if a number is out of range.
    """
    cdef Entered *e
    if probe >= m.entered_count or entry >= m.code_count:
        raise ValueError("the probe's number or its program's entry is out of range")
    if number > LOW32 or first > LOW32:
        raise ValueError("more than 4,294,967,295 probes or clauses")
    e = &m.entered[probe]
    e.enabled, e.kind, e.entry = True, <uint8_t>kind, entry
    e.number, e.first = <uint32_t>number, <uint32_t>first
    e.own_frames = kind < 2
    e.wanted = <uint8_t>min(wanted, 10)
    return e


cdef int on_firing(void *data, uint32_t probe, argument_fn read, void *source,
                   uint64_t time) noexcept nogil:
    """Run the program of a firing kernel probe; return nonzero if a callback failed."""
    cdef Machine *m = <Machine *>data
    cdef Entered *e
    cdef uint64_t *context = <uint64_t *>m.region[R_CONTEXT].data
    cdef uint64_t *given = context + CONTEXT_ARGUMENTS / 8
    cdef int i
    if probe >= m.entered_count or not m.entered[probe].enabled or ended(m):
        return 0
    if time >= m.look:
        looked(m, time)
        if m.failing:
            return 1
    e = &m.entered[probe]
    m.serial += 2
    context[CONTEXT_PROBE / 8] = e.number
    context[CONTEXT_FIRST / 8] = e.first
    context[CONTEXT_CLAUSE / 8] = e.first
    context[CONTEXT_TIMESTAMP / 8] = time
    for i in range(4):
        context[CONTEXT_PROVIDER / 8 + i] = CONSTANTS + e.text[i]
    context[CONTEXT_PROVIDER / 8 + 4] = e.text[4]
    for i in range(e.wanted):
        if e.kind == 0 and i < RESULT:
            given[i] = read(source, i)
        elif e.kind == 1 and i < 2:
            given[i] = read(source, RESULT) if i else e.offset
        elif e.kind == 3 and i < DECLARED_ARGUMENTS:
            given[i] = read(source, DECLARED + i)
        else:
            given[i] = 0
        if m.failing:  # a read from a guest in another process failed
            return 1
    m.thread_known = False
    m.read_register, m.interrupted = read, source
    m.walker.skip = e.own_frames
    m.walker.after = e.kind == 1 and read(source, AFTER) != 0
    if m.walker.after:
        m.walker.skip = 0  # the function has returned, so the interrupted code is in the caller
    execute(m, e.entry, address_of(R_CONTEXT, 0))
    m.read_register = NULL
    if not m.told and ended(m):
        m.told = True  # tracing ended with this firing
        looked(m, time)
    return m.failing


cdef void looked(Machine *m, uint64_t time) noexcept with gil:
    (<Runtime>m.owner).look_now(time)
