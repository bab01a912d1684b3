"""Detours of probed instructions; the clock stands still during a detour.

Part of the engine (``_engine.pyx`` includes this file).
"""


cdef void freeze(Clock *c) noexcept nogil:
    """Stop the clock before a breakpoint; the breakpoint is the last instruction of its block."""
    cdef DetourState *d = &c.detour
    if c.count:
        c.instructions += c.count - 1
        c.count = 0
    c.frozen = True
    d.at = d.slot = d.slot_entries = 0
    d.sp_register = 0
    d.deferred = 0
    d.status_bits = 0
    d.gives_away = False


cdef void keep_footprint(Clock *c, uint64_t sp) noexcept nogil:
    """Save the part of the stack that the kernel's breakpoint path will write to.

    Its pages must remain mapped to the same frames during the detour.
    """
    cdef DetourState *d = &c.detour
    # Number of bytes below sp on the same page.
    cdef uint32_t on_page = <uint32_t>(((sp - 1) & 4095) + 1)
    cdef uint32_t wanted = d.stack_wanted
    cdef uint8_t *last
    cdef uint64_t at = 0
    d.footprint = True
    c.keep(c)
    d.stack_size = 0
    last = host_page(c, sp - 1, &at)
    if last == NULL:
        return
    if on_page >= wanted:
        d.stack_at = sp - wanted
        d.stack_split = d.stack_size = wanted
        d.stack_host[0] = last - (wanted - 1)
        d.stack_physical[0] = at - (wanted - 1)
    else:
        d.stack_at = sp - wanted
        d.stack_split = wanted - on_page
        d.stack_size = wanted
        d.stack_host[0] = host_page(c, d.stack_at, &d.stack_physical[0])
        d.stack_host[1] = last - (on_page - 1)
        d.stack_physical[1] = at - (on_page - 1)
        if d.stack_host[0] == NULL:
            # The next lower page is unmapped, so the kernel's path can use only this page.
            d.stack_at = sp - on_page
            d.stack_split = d.stack_size = on_page
            d.stack_host[0], d.stack_physical[0] = d.stack_host[1], d.stack_physical[1]
    memcpy(d.stack, d.stack_host[0], d.stack_split)
    if d.stack_split < d.stack_size:
        memcpy(d.stack + d.stack_split, d.stack_host[1], d.stack_size - d.stack_split)


cdef uint8_t *host_stack(Clock *c, uint64_t address) noexcept nogil:
    """Return the host address of a location in the saved part of the stack, or NULL."""
    cdef DetourState *d = &c.detour
    cdef uint64_t at = address - d.stack_at
    if not d.footprint or at >= d.stack_size:
        return NULL
    return d.stack_host[0] + at if at < d.stack_split else d.stack_host[1] + (at - d.stack_split)


cdef inline bint guard_holds(Clock *c) noexcept nogil:
    """Return whether the guard (the lowest saved bytes of the stack) is unchanged."""
    cdef DetourState *d = &c.detour
    cdef uint32_t first = d.stack_split if d.stack_split < GUARD else GUARD
    return memcmp(d.stack, d.stack_host[0], first) == 0 and (
        first == GUARD or memcmp(d.stack + first, d.stack_host[1], GUARD - first) == 0)


cdef void overran(Clock *c) noexcept with gil:
    (<Engine>c.engine).failed(MachineError(
        "the kernel's breakpoint path has used more than "
        f"{c.detour.stack_wanted - GUARD} bytes of stack (below "
        f"{c.detour.stack_at + GUARD:#x}): its changes there cannot be undone"))


cdef void wipe_footprint(Clock *c) noexcept nogil:
    """Restore the stack and registers that the kernel's breakpoint path has changed."""
    cdef DetourState *d = &c.detour
    if d.footprint:
        d.footprint = False
        if d.stack_size == d.stack_wanted and not guard_holds(c):
            overran(c)
        if d.stack_size:
            memcpy(d.stack_host[0], d.stack, d.stack_split)
            written(c, d.stack_physical[0], d.stack_split)
            if d.stack_split < d.stack_size:
                memcpy(d.stack_host[1], d.stack + d.stack_split, d.stack_size - d.stack_split)
                written(c, d.stack_physical[1], d.stack_size - d.stack_split)
        c.forget(c)


cdef bint defer(Clock *c, int register, uint64_t value) noexcept nogil:
    """Schedule a register to be set when time resumes; return False if the list is full."""
    cdef DetourState *d = &c.detour
    cdef int i
    for i in range(d.deferred):
        if d.deferred_register[i] == register:
            break
    else:
        i = d.deferred
        if i == MAX_DEFERRED:
            return False
        d.deferred += 1
    d.deferred_register[i] = register
    d.deferred_value[i] = value
    return True


cdef inline bint thaws_at(Clock *c, uint64_t address) noexcept nogil:
    cdef DetourState *d = &c.detour
    return address == d.at and (
        not d.sp_register or register_read(c, d.sp_register) == d.sp)


cdef void thaw_now(Clock *c) noexcept nogil:
    """End the detour: time resumes one instruction later, after the displaced instruction."""
    cdef DetourState *d = &c.detour
    cdef int i
    cdef uint64_t last
    wipe_footprint(c)
    for i in range(d.deferred):
        register_write(c, d.deferred_register[i], d.deferred_value[i])
    d.deferred = 0
    if c.last_address and d.slot:
        last = register_read(c, c.last_address)
        if d.slot <= last < d.slot + SLOT:
            register_write(c, c.last_address, d.site)
    c.frozen = False
    # If the displaced instruction ends a block, the next instruction is a canonical block start,
    # as it is without the probe.
    c.resumed = d.resumed and not (d.slot and d.slot_ended)
    c.resume_at = d.at
    c.instructions += d.slot_entries if d.slot_entries else 1
    if d.gives_away:
        give_away(c, c.instructions)
        pause(c)
        c.horizon = 0


cdef void abandon(Clock *c) noexcept nogil:
    """Abandon the detour because an exception or interrupt left the trampoline.

    The guest's time resumes as if the instruction had been left in place.
    """
    cdef DetourState *d = &c.detour
    if d.status_bits:
        register_write(c, d.status_register, (
            register_read(c, d.status_register) & ~d.status_bits | d.status_value))
    wipe_footprint(c)
    d.deferred = 0
    c.frozen = False
    c.resumed = False
    if d.slot_entries:
        c.instructions += d.slot_entries - 1


cdef bint repetition_due(Clock *c) noexcept nogil:
    """Return whether an interrupt or event is due before the next repetition in a trampoline."""
    cdef uint64_t at = c.instructions + c.detour.slot_entries - 1
    if time_at(c, at) >= c.deadline:
        c.stop = STOP_DEADLINE
    elif at >= c.turn_end and turn_over(c, at):
        c.stop = STOP_TURN
    elif c.pending:
        if not interruptible(c):
            return False
        c.stop = STOP_INTERRUPT
    else:
        return False
    c.canonical = at
    c.moved = c.detour.site
    abandon(c)
    c.emu_stop(c.uc)
    return True


cdef class Detour:
    """Detour of the guest from a breakpoint to the instruction after the displaced one.

    It leads through the kernel's own breakpoint path and a trampoline.
    """

    cdef Engine engine

    def __cinit__(self, Engine engine not None):
        self.engine = engine

    def freeze(self, uint64_t sp):
        """Stop the clock at a breakpoint, and save the stack below ``sp``.

        If the clock already stands still (at a second breakpoint), only the stack is saved.
        """
        cdef Clock *c = &self.engine.clock
        self.engine._has_breakpoint()
        if not c.frozen:
            freeze(c)
        keep_footprint(c, sp)

    @property
    def kept_stack(self):
        """Stack as it was before the breakpoint: (address, bytes), while the clock stands still."""
        cdef Clock *c = &self.engine.clock
        return c.detour.stack_at, bytes(c.detour.stack[:c.detour.stack_size])

    def wipe(self):
        """Restore the stack and registers that the breakpoint changed; the clock stays stopped."""
        self.engine._made()
        wipe_footprint(&self.engine.clock)

    def thaw_at(self, uint64_t address, bint canonical, int register=0, uint64_t sp=0):
        """Set the address at which time resumes, with one more instruction counted.

        :param canonical: whether a block would start at ``address`` without the probe, too.
        :param register: Unicorn's number of the stack pointer, which must equal ``sp`` there (0: no
            such condition).
        """
        cdef Clock *c = &self.engine.clock
        c.detour.at = address
        c.detour.sp_register = register
        c.detour.sp = sp
        c.detour.resumed = not canonical

    def use_trampoline(self, uint64_t address, uint64_t site, uint32_t length, int register=0,
                       uint64_t bits=0, uint64_t value=0):
        """Select the trampoline in which the displaced instruction will be executed.

        :param address: address of the trampoline.
        :param site: original address of the instruction, and ``length``: its size in bytes.
        :param register: the status register that is changed to mask interrupts meanwhile.
        :param bits: the changed bits, and ``value``: what an exception restores them to.
        """
        cdef Clock *c = &self.engine.clock
        c.detour.slot = address
        c.detour.slot_code = NULL
        c.detour.site = site
        c.detour.site_length = length
        c.detour.slot_shared = False
        c.detour.slot_ended = False
        c.detour.slot_entries = 0
        c.detour.status_register = register
        c.detour.status_bits = bits
        c.detour.status_value = value

    def defer(self, int register, uint64_t value):
        """Schedule a register write for when time resumes; the guest's return path omits it.

        :raises ValueError: too many registers are waiting.
        """
        self.engine._made()
        if not defer(&self.engine.clock, register, value):
            raise ValueError(f"at most {MAX_DEFERRED} registers can be set when time resumes")

    def thaw(self):
        """Drop the detour and resume time, without restoring anything."""
        cdef Clock *c = &self.engine.clock
        c.frozen = False
        c.resumed = False
        c.shadow = False
        c.detour.at = c.detour.slot = c.detour.slot_entries = 0
        c.detour.footprint = False
        c.detour.deferred = 0
        c.detour.status_bits = 0

    def thaw_if_at(self, uint64_t address):
        """Resume time if the detour ends at ``address``, the block start where the CPU stopped."""
        cdef Clock *c = &self.engine.clock
        self.engine._made()
        if c.frozen and thaws_at(c, address):
            thaw_now(c)

    def abandon(self, uint64_t pc):
        """Handle an exception at ``pc``, possibly in a trampoline, that ended the current block.

        :return: the address of the exception for the guest: that of the displaced instruction.
        """
        cdef Clock *c = &self.engine.clock
        self.engine._made()
        if c.frozen and thaws_at(c, pc):
            thaw_now(c)  # the displaced instruction was executed; the code after it is not mapped
        elif c.frozen:
            if (c.detour.slot and not c.detour.slot_shared
                    and c.detour.slot <= pc < c.detour.slot + SLOT):
                pc = c.detour.site
            abandon(c)
        return pc
