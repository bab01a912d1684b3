"""Returns of functions that leave through a tail call.

Such a function returns when the function that it jumps to returns: to the same address, with the
same stack pointer.  Its probe does not fire at the jump.  Instead, the jump is recorded for the
thread, and the engine reports when a block begins at the return address
(``emu/unicorn/_awaited.pxi``).  Functions that leave one after the other return in reverse order.
A function that never returns because of a longjmp() to one of its callers is forgotten when that
caller's stack pointer is above its frame, or when the caller calls again from the same place: see
``on_called``.

The records belong to the observer, not to the machine: snapshots do not contain them.

This file is part of the dispatcher; ``_dispatch.pyx`` includes it.
"""


cdef uint64_t return_running_thread(Dispatch *d) noexcept nogil:
    """Return the address of the running thread, or 0 if unknown."""
    cdef uint64_t thread = 0
    if d.clock.thread_word != NULL:
        return d.clock.thread_word[0]
    if d.per_cpu and guest_read(d.clock, register_read(d.clock, d.per_cpu), &thread, 8):
        return thread
    return 0


cdef uint64_t return_thread_of(uint64_t key) noexcept nogil:
    """Return the kernel address of a thread from the thread's key, or 0 if unknown."""
    cdef uint64_t lost = ~(~<uint64_t>0 >> PROGRAM_BITS)
    return lost | key >> PROGRAM_BITS if key >> PROGRAM_BITS else 0


cdef TailThread *return_tails_of(Dispatch *d, uint64_t thread, int program, bint make) noexcept nogil:
    """Return a thread's records for the kernel (program 0) or a program, or NULL if none exist."""
    cdef Tails *t = &d.tails
    cdef uint64_t key = thread << PROGRAM_BITS | <uint64_t>program
    cdef uint64_t i, k, size
    cdef TailThread *more
    if t.threads == NULL or make and 2 * (t.count + 1) > t.mask:
        if not make:
            return NULL
        size = 2 * (t.mask + 1) if t.threads != NULL else 64
        more = <TailThread *>calloc(size, sizeof(TailThread))
        if more == NULL:
            return NULL
        if t.threads != NULL:
            for k in range(t.mask + 1):
                if t.threads[k].used:
                    i = (t.threads[k].key * <uint64_t>0x9E3779B97F4A7C15 >> 32) & (size - 1)
                    while more[i].used:
                        i = (i + 1) & (size - 1)
                    more[i] = t.threads[k]
            free(t.threads)
        t.threads, t.mask = more, size - 1
    i = (key * <uint64_t>0x9E3779B97F4A7C15 >> 32) & t.mask
    while t.threads[i].used:
        if t.threads[i].key == key:
            return &t.threads[i]
        i = (i + 1) & t.mask
    if not make or t.count >= MAX_TAIL_THREADS:
        return NULL
    t.threads[i].used, t.threads[i].key = True, key
    t.count += 1
    return &t.threads[i]


cdef void return_forget_tails(Dispatch *d) noexcept nogil:
    cdef uint64_t i
    if d.tails.threads != NULL:
        for i in range(d.tails.mask + 1):
            free(d.tails.threads[i].all)
            free(d.tails.threads[i].active)
    free(d.tails.threads)
    d.tails.threads = NULL
    d.tails.mask = d.tails.count = d.tails.room = 0
    d.tails.history = d.clock.history if d.clock != NULL else 0


cdef void return_forget_thread(Dispatch *d, uint64_t thread) noexcept nogil:
    """Forget the records of an exited thread, whose address a new thread reuses."""
    cdef TailThread *t
    cdef int program
    for program in range(d.programs.count + 1):
        t = return_tails_of(d, thread, program, False)
        if t != NULL:
            t.count = t.active_count = 0


cdef inline bint return_abandoned(const Tail *tail, uint64_t sp) noexcept nogil:
    """Whether a function has been left: the stack pointer is above its frame in the same stack."""
    return tail.sp < sp and sp - tail.sp < STACK_REACH


cdef int return_make_room(Dispatch *d, void **all, uint32_t *room, size_t size) noexcept nogil:
    """Double the capacity of a thread's array of records; return 0 or the reason for a failure."""
    cdef uint32_t more = 2 * room[0] if room[0] else 16
    cdef void *made
    if more > MAX_TAILS:
        return TOO_MANY_OF_THREAD
    if d.tails.room + more - room[0] > MAX_ALL_TAILS:
        return TOO_MANY_OF_ALL
    made = realloc(all[0], more * size)
    if made == NULL:
        return NO_MEMORY
    d.tails.room += more - room[0]
    all[0], room[0] = made, more
    return 0


cdef int return_note_tail(Dispatch *d, uint32_t probe, uint64_t sp, uint64_t back, int program, bint calls
                   ) noexcept nogil:
    """Record that a function leaves through a tail call; return 0 or the reason for a failure.

    The function's probe fires when control is at ``back`` with the stack pointer ``sp``.

    :param calls: whether the call that returns to ``back`` has yet to be executed.
    """
    cdef uint64_t thread = return_running_thread(d)
    cdef TailThread *t
    cdef int why
    if d.clock.history != d.tails.history:
        return_forget_tails(d)
    t = return_tails_of(d, thread, program, True)
    if t == NULL:
        return TOO_MANY_OF_ALL if d.tails.count >= MAX_TAIL_THREADS else NO_MEMORY
    if thread:
        while t.count and return_abandoned(&t.all[t.count - 1], sp):
            t.count -= 1
    if t.count == t.room:
        why = return_make_room(d, <void **>&t.all, &t.room, sizeof(Tail))
        if why:
            return why
    t.all[t.count] = Tail(sp, back, probe, calls)
    t.count += 1
    return await_address(d.clock, back)


cdef void return_leave_by_tail(Dispatch *d, const Site *s, uint32_t probe) noexcept nogil:
    """Record the return address of a function that leaves through a tail call."""
    cdef uint64_t sp = op_get(d, d.sp)
    cdef uint64_t back = 0
    cdef int program = program_number_of(s)
    if d.linked:
        back = op_get(d, d.link)
    elif guest_read(d.clock, sp, &back, 8):
        sp += 8
    else:
        return  # the return address cannot be read: the function has no caller
    cdef int why = return_note_tail(d, probe, sp, back, program, False)
    if why:
        return_not_noted(d, why)


cdef void return_not_noted(Dispatch *d, int why) noexcept with gil:
    d.stop = True
    (<Dispatcher>d.owner).engine.failed(MachineError(return_why_not_noted(why)))


cdef str return_why_not_noted(int why):
    if why == NO_MEMORY:
        return "the host has too little memory to record a tail call: probe fewer returns"
    if why == TOO_MANY_AWAITED:
        return f"more than {MAX_AWAITED} return addresses are awaited: probe fewer returns"
    if why == TOO_MANY_OF_ALL:
        return (f"more than {MAX_ALL_TAILS} tail calls, or tail calls of more than "
                f"{MAX_TAIL_THREADS} threads, have not returned yet: "
                "probe fewer returns")
    return (f"more than {MAX_TAILS} tail calls of one thread have not returned yet: "
            "probe fewer returns")


cdef bint on_arrived(void *data, uint64_t address) noexcept nogil:
    """Engine callback: a block begins at an address that a function may return to."""
    cdef Dispatch *d = <Dispatch *>data
    cdef Clock *c = d.clock
    cdef int program = 0
    cdef TailThread *t
    cdef Tail tail
    cdef uint64_t sp
    if c.frozen:
        return True
    if c.history != d.tails.history:
        return_forget_tails(d)
        return True
    if not address >> 63 and d.programs.count:
        program = program_running(d)
        if program == 0:
            return True
    if address == d.thread_begins:
        return_forget_thread(d, return_running_thread(d))
        return True
    t = return_tails_of(d, return_running_thread(d), program, False)
    if t == NULL:
        return True
    sp = register_read(c, d.number[d.sp])
    while t.count:
        tail = t.all[t.count - 1]
        if return_abandoned(&tail, sp):
            t.count -= 1
            continue
        if tail.sp != sp or tail.back != address:
            break
        t.count -= 1
        d.framed = False
        d.at = address
        if d.probes[tail.probe].role:
            if inline_leave(d, d.probes[tail.probe].copy, program) and not d.probes[tail.probe].silent:
                firing_fire_one(d, tail.probe)
        else:
            d.after = True
            firing_fire_one(d, tail.probe)
            d.after = False
        if d.stop:
            d.stop = False
            return False
    return True


cdef void on_called(void *data, uint64_t back) noexcept nogil:
    """Engine callback: a call that returns to ``back`` may just have been executed.

    Control is in the calling function again, so all earlier records that wait for ``back`` with its
    stack pointer, or have a frame below it, were left without a return and are forgotten.
    """
    cdef Dispatch *d = <Dispatch *>data
    cdef Clock *c = d.clock
    cdef int program = 0
    cdef TailThread *t
    cdef uint64_t thread, sp
    cdef uint64_t returns_to = 0
    cdef uint32_t first, low, kept, i
    if c.frozen or c.history != d.tails.history:
        return
    if not back >> 63 and d.programs.count:
        program = program_running(d)
        if program == 0:
            return
    thread = return_running_thread(d)
    t = return_tails_of(d, thread, program, False)
    if t == NULL or t.count == 0 or thread == 0:
        return
    sp = register_read(c, d.number[d.sp])
    if d.linked:
        returns_to = register_read(c, d.number[d.link])
    elif guest_read(c, sp, &returns_to, 8):
        sp += 8
    if returns_to != back:
        return
    first = t.count
    while first and t.all[first - 1].calls and t.all[first - 1].sp == sp and (
            t.all[first - 1].back == back):
        first -= 1
        t.all[first].calls = False  # the call whose return address is ``back`` has been executed
    low = kept = first
    while low and (t.all[low - 1].sp == sp or return_abandoned(&t.all[low - 1], sp)):
        low -= 1
    # Keep records that have this stack pointer but a different return address: a calling function
    # without a frame returns with the same stack pointer.
    for i in range(low, first):
        if t.all[i].sp == sp and t.all[i].back != back:
            t.all[low] = t.all[i]
            low += 1
    memmove(&t.all[low], &t.all[kept], (t.count - kept) * sizeof(Tail))
    t.count -= kept - low


cdef bint return_has_tails(Dispatch *d) noexcept nogil:
    cdef uint32_t i
    for i in range(d.probe_count):
        if (d.probes[i].tail or d.probes[i].role) and not d.probes[i].removed:
            return True
    return False
