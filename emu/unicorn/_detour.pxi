"""The detour of a probed instruction, and the clock that stands still meanwhile; part of the engine
(``_engine.pyx`` includes it)."""


cdef void freeze(Clock *c) noexcept nogil:
    """The last instruction of the block in progress is a breakpoint: stop the clock before it."""
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
    """Remember the stack that the kernel's breakpoint path will write to.  Its pages stay where
    they are meanwhile."""
    cdef DetourState *d = &c.detour
    cdef uint32_t on_page = <uint32_t>(((sp - 1) & 4095) + 1)  # bytes of sp's own page below it
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
            # The page below is not mapped: what the path needs is on this one, or nothing helps it.
            d.stack_at = sp - on_page
            d.stack_split = d.stack_size = on_page
            d.stack_host[0], d.stack_physical[0] = d.stack_host[1], d.stack_physical[1]
    memcpy(d.stack, d.stack_host[0], d.stack_split)
    if d.stack_split < d.stack_size:
        memcpy(d.stack + d.stack_split, d.stack_host[1], d.stack_size - d.stack_split)


cdef uint8_t *host_stack(Clock *c, uint64_t address) noexcept nogil:
    """The host's address of a place in the stack that is kept; NULL: it is not there."""
    cdef DetourState *d = &c.detour
    cdef uint64_t at = address - d.stack_at
    if not d.footprint or at >= d.stack_size:
        return NULL
    return d.stack_host[0] + at if at < d.stack_split else d.stack_host[1] + (at - d.stack_split)


cdef inline bint guard_holds(Clock *c) noexcept nogil:
    """Whether the lowest bytes that were kept are still what they were."""
    cdef DetourState *d = &c.detour
    cdef uint32_t first = d.stack_split if d.stack_split < GUARD else GUARD
    return memcmp(d.stack, d.stack_host[0], first) == 0 and (
        first == GUARD or memcmp(d.stack + first, d.stack_host[1], GUARD - first) == 0)


cdef void overran(Clock *c) noexcept with gil:
    (<Engine>c.engine).failed(MachineError(
        "the kernel's way through a breakpoint has used more than "
        f"{c.detour.stack_wanted - GUARD} bytes of stack (at "
        f"{c.detour.stack_at + GUARD:#x}): what it has left there cannot be put back"))


cdef void wipe_footprint(Clock *c) noexcept nogil:
    """Put back what the kernel's breakpoint path has changed."""
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
    """Set a register when time goes on; false: there are too many."""
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
    """The displaced instruction is done: time goes on, one instruction later."""
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
    # In place, too, a block would start here behind an instruction that ends its block by itself.
    c.resumed = d.resumed and not (d.slot and d.slot_ended)
    c.resume_at = d.at
    c.instructions += d.slot_entries if d.slot_entries else 1
    if d.gives_away:
        give_away(c, c.instructions)
        c.horizon = 0


cdef void abandon(Clock *c) noexcept nogil:
    """The trampoline was left by an exception, or for an interrupt: the guest's own time goes on,
    as if it had been left in place."""
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
    """Between two repetitions in a trampoline: whether an interrupt or event comes first."""
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
    """The detour of an engine: from a breakpoint, through the kernel's own path and a trampoline,
    to the instruction behind the displaced one."""

    cdef Engine engine

    def __cinit__(self, Engine engine not None):
        self.engine = engine

    def freeze(self, uint64_t sp):
        """A breakpoint was executed: the clock stands still, and the stack below ``sp`` is kept.

        Still frozen (a second breakpoint), only the stack is.
        """
        cdef Clock *c = &self.engine.clock
        self.engine._has_breakpoint()
        if not c.frozen:
            freeze(c)
        keep_footprint(c, sp)

    @property
    def kept_stack(self):
        """While frozen: (address, bytes) of the stack as it was before the breakpoint."""
        cdef Clock *c = &self.engine.clock
        return c.detour.stack_at, bytes(c.detour.stack[:c.detour.stack_size])

    def wipe(self):
        """While frozen: put back the stack and the registers that the breakpoint has changed."""
        self.engine._made()
        wipe_footprint(&self.engine.clock)

    def thaw_at(self, uint64_t address, bint canonical, int register=0, uint64_t sp=0):
        """While frozen: time goes on at ``address``, one instruction later than it stopped.

        :param canonical: a block would have started there without the probe, too.
        :param register: the stack pointer, which is ``sp`` there; 0: it does not matter.
        """
        cdef Clock *c = &self.engine.clock
        c.detour.at = address
        c.detour.sp_register = register
        c.detour.sp = sp
        c.detour.resumed = not canonical

    def use_trampoline(self, uint64_t address, uint64_t site, uint32_t length, int register=0,
                       uint64_t bits=0, uint64_t value=0):
        """While frozen: the displaced instruction of ``length`` bytes at ``site`` is executed at
        ``address``, with ``register & bits == value`` changed to mask interrupts."""
        cdef Clock *c = &self.engine.clock
        c.detour.slot = address
        c.detour.site = site
        c.detour.site_length = length
        c.detour.slot_shared = False
        c.detour.slot_ended = False
        c.detour.slot_entries = 0
        c.detour.status_register = register
        c.detour.status_bits = bits
        c.detour.status_value = value

    def defer(self, int register, uint64_t value):
        """Set a register when time goes on: the guest's return path would not."""
        self.engine._made()
        if not defer(&self.engine.clock, register, value):
            raise ValueError("too many registers to set")

    def thaw(self):
        """Forget all about a probe in progress: time goes on."""
        cdef Clock *c = &self.engine.clock
        c.frozen = False
        c.resumed = False
        c.shadow = False
        c.detour.at = c.detour.slot = c.detour.slot_entries = 0
        c.detour.footprint = False
        c.detour.deferred = 0
        c.detour.status_bits = 0

    def thaw_if_at(self, uint64_t address):
        """The same, where the CPU was stopped before a block at ``address`` could start."""
        cdef Clock *c = &self.engine.clock
        self.engine._made()
        if c.frozen and thaws_at(c, address):
            thaw_now(c)

    def abandon(self, uint64_t pc):
        """An exception left the block in progress at ``pc``, which a trampoline may hold.

        :return: where it happened for the guest: at the displaced instruction.
        """
        cdef Clock *c = &self.engine.clock
        self.engine._made()
        if c.frozen and thaws_at(c, pc):
            thaw_now(c)  # it is done, and where it leads to is not there
        elif c.frozen:
            if (c.detour.slot and not c.detour.slot_shared
                    and c.detour.slot <= pc < c.detour.slot + SLOT):
                pc = c.detour.site
            abandon(c)
        return pc
