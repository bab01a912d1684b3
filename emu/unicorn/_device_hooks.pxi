"""Guest accesses to device windows, ports, clocks and system registers.

Part of the engine (``_engine.pyx`` includes this file).
"""

cdef class _Window:
    """Callbacks of one memory-mapped device window, and the engine to which they report errors."""

    cdef Engine engine
    cdef object read
    cdef object write


cdef uint64_t window_read(void *uc, uint64_t offset, unsigned size, void *data) noexcept with gil:
    cdef _Window w = <_Window>data
    try:
        return <uint64_t>(w.read(offset, size) & 0xFFFFFFFFFFFFFFFF)
    except BaseException as error:
        w.engine.failed(error)
        return 0


cdef void window_write(void *uc, uint64_t offset, unsigned size, uint64_t value,
                       void *data) noexcept with gil:
    cdef _Window w = <_Window>data
    try:
        w.write(offset, size, value)
    except BaseException as error:
        w.engine.failed(error)


cdef uint32_t port_read(void *uc, uint32_t port, int size, void *data) noexcept nogil:
    cdef ClockRead *r = port_clock(data, port, size)
    if r != NULL:
        return <uint32_t>(ticks(r) & port_mask(data))
    return port_ask(uc, port, size, data)


cdef ClockRead *port_clock(void *data, uint32_t port, int size) noexcept nogil:
    """Return the counter that the kernel reads through a port, or NULL for other port accesses."""
    if (<Engine>data).counter_port != port or size != 4 or in_user_mode(&(<Engine>data).clock):
        return NULL
    return &(<Engine>data).port_counter


cdef inline uint64_t port_mask(void *data) noexcept nogil:
    return (<Engine>data).counter_mask


cdef uint32_t port_ask(void *uc, uint32_t port, int size, void *data) noexcept with gil:
    cdef Engine engine = <Engine>data
    try:
        if in_user_mode(&engine.clock) and engine.port_refused():
            return 0
        return <uint32_t>(engine.port_in(port, size) & 0xFFFFFFFF)
    except BaseException as error:
        engine.failed(error)
        return 0


cdef void port_write(void *uc, uint32_t port, int size, uint32_t value,
                     void *data) noexcept with gil:
    cdef Engine engine = <Engine>data
    try:
        if in_user_mode(&engine.clock) and engine.port_refused():
            return
        engine.port_out(port, size, value)
    except BaseException as error:
        engine.failed(error)


cdef inline uint64_t ticks(ClockRead *r) noexcept nogil:
    cdef uint64_t now
    r.clock.skew += r.cost
    r.clock.horizon = 0
    now = time_at(r.clock, r.clock.canonical)
    if r.denominator == 1:
        return now * r.numerator
    return (now // r.denominator * r.numerator
            + now % r.denominator * r.numerator // r.denominator)


cdef int tsc_read(void *uc, void *data) noexcept nogil:
    cdef ClockRead *r = <ClockRead *>data
    cdef uint64_t t = ticks(r)
    cdef uint64_t low = <uint32_t>t
    cdef uint64_t high = t >> 32
    r.reg_write(uc, r.low, &low)
    r.reg_write(uc, r.high, &high)
    if r.third:
        r.reg_write(uc, r.third, &r.third_value)
    return 1


cdef struct MsrReg:
    uint32_t rid
    uint64_t value


cdef inline uint32_t system_key(CpReg *cp) noexcept nogil:
    return ((cp.op0 << 14) | (cp.op1 << 11) | (cp.crn << 7) | (cp.crm << 3) | cp.op2) & 0xFFFF


cdef uint32_t system_read(void *uc, int reg, CpReg *cp, void *data) noexcept nogil:
    cdef SystemRegisters *s = <SystemRegisters *>data
    cdef uint32_t key = system_key(cp)
    cdef uint64_t value
    if s.counters[key]:
        value = ticks(&s.counter)
    elif not s.known[key] or not system_ask(s.engine, key, &value):
        return 0
    s.counter.reg_write(uc, reg, &value)
    return 1


cdef bint system_ask(void *data, uint32_t key, uint64_t *value) noexcept with gil:
    cdef Engine engine = <Engine>data
    try:
        answer = engine.system_in(key)
        if answer is None:
            return False
        value[0] = <uint64_t>(answer & 0xFFFFFFFFFFFFFFFF)
        return True
    except BaseException as error:
        engine.failed(error)
        return False


cdef uint32_t system_write(void *uc, int reg, CpReg *cp, void *data) noexcept nogil:
    cdef SystemRegisters *s = <SystemRegisters *>data
    cdef uint32_t key = system_key(cp)
    if key == s.trap_key and s.trap_bits:
        s.counter.clock.program_traps = cp.val & s.trap_bits != s.trap_bits
    if not s.known[key]:
        return 0
    return system_tell(s.engine, key, cp.val)


cdef bint system_tell(void *data, uint32_t key, uint64_t value) noexcept with gil:
    cdef Engine engine = <Engine>data
    try:
        return bool(engine.system_out(key, value))
    except BaseException as error:
        engine.failed(error)
        return False
