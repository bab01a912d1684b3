"""Probes for locks that inline code acquires or releases by swapping their words.

The site is the instruction after the swap.  There, registers still have the address of the word,
its old value and its new value, and tell whether they were swapped.

This file is part of the dispatcher; ``_dispatch.pyx`` includes it.
"""


cdef inline uint64_t lock_owner(const LockState *k, uint64_t value) noexcept nogil:
    return 0 if k.shared and value & k.shared else value & ~k.flags


cdef inline uint64_t lock_sharers(const LockState *k, uint64_t value) noexcept nogil:
    return value >> k.sharers if k.shared and value & k.shared else 0


cdef inline bint lock_acquired(const LockState *k, uint64_t old, uint64_t new) noexcept nogil:
    """Whether a new value of a lock's word means that a thread has acquired the lock."""
    if lock_owner(k, old):
        return False
    if lock_owner(k, new):
        return not lock_sharers(k, old)
    return lock_sharers(k, new) == lock_sharers(k, old) + 1


cdef bint lock_is(Dispatch *d, const LockState *k, uint64_t lock) noexcept nogil:
    """Whether there is a lock of this kind at an address."""
    cdef uint64_t kind = 0
    return guest_read(d.clock, lock + k.kind_at, &kind, 4) and (
        kind >> k.shift & k.mask) == k.number


cdef bint lock_passes(Dispatch *d, uint64_t address, uint64_t merges) noexcept nogil:
    """Whether the guest has come to a site from another swap, whose probe has fired already.

    :param merges: the site to which the code jumps next, or 0.
    """
    cdef uint64_t thread, sp
    cdef int i
    cdef bint passes = False
    if d.lock_history != d.clock.history:
        d.lock_passing_count = 0
    if not merges and not d.lock_passing_count:
        return False
    thread, sp = return_running_thread(d), op_get(d, d.sp)
    for i in range(d.lock_passing_count):
        if d.lock_passing[i].address == address and d.lock_passing[i].thread == thread and (
                d.lock_passing[i].sp == sp):
            passes = True
            d.lock_passing_count -= 1
            d.lock_passing[i] = d.lock_passing[d.lock_passing_count]
            break
    if merges:
        if d.lock_passing_count == MAX_PASSING:
            memmove(&d.lock_passing[0], &d.lock_passing[1], (MAX_PASSING - 1) * sizeof(Passing))
            d.lock_passing_count -= 1
        d.lock_passing[d.lock_passing_count] = Passing(thread, sp, merges)
        d.lock_passing_count += 1
        d.lock_history = d.clock.history
    return passes


cdef void lock_fire(Dispatch *d, const Site *s) noexcept nogil:
    """Fire the probe of a lock if the swap before a site has acquired or released the lock."""
    cdef const LockSwap *w = &d.lock_swaps[s.lock - 1]
    cdef const LockState *k = &d.locks[w.kind]
    cdef uint64_t wanted = op_get(d, w.equal) if w.equal != NO_REGISTER else w.value
    cdef uint64_t old, new, lock
    if lock_passes(d, s.address, w.merges):
        return
    if (op_get(d, w.result) ^ wanted) & w.result_mask:
        return
    old, new = op_get(d, w.old), op_get(d, w.new)
    if not (lock_acquired(k, old, new) if w.acquires else lock_acquired(k, new, old)):
        return
    lock = op_get(d, w.base) + op_get(d, w.index) * w.scale + w.offset - k.word
    if w.uncertain and not lock_is(d, k, lock):
        return
    memset(d.made, 0, sizeof(d.made))
    # The same arguments as the kernel's tracepoints: the lock, and whether threads share it.
    d.made[0] = lock
    d.made[1] = 0 if lock_owner(k, new if w.acquires else old) else 1
    d.making = True
    firing_fire_one(d, w.probe)
    d.making = False
