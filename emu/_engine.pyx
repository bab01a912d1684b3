# cython: language_level=3, boundscheck=True, cdivision=True
"""The native part of the machine: block clock, register access and hooks of one Unicorn engine.

The public C interface of libunicorn (``unicorn/unicorn.h``) is called through addresses that
the Python package hands over, so that this module and the package share one library.

The clock is counted in guest instructions.  A translated block adds its instructions when it is
entered; ``settle`` takes back those behind the program counter when the block was left early.
``now`` is what devices see: the count at the last canonical block start, plus ``skew`` (idle time
skipped, and the cost of polling a clock), in virtual nanoseconds.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from cpython.exc cimport PyErr_CheckSignals

ctypedef int (*emu_start_fn)(void *uc, uint64_t begin, uint64_t until, uint64_t timeout,
                             size_t count) noexcept nogil
ctypedef int (*emu_stop_fn)(void *uc) noexcept nogil
ctypedef int (*reg_fn)(void *uc, int regid, void *value) noexcept nogil
ctypedef int (*map_ptr_fn)(void *uc, uint64_t address, uint64_t size, uint32_t perms,
                           void *ptr) noexcept nogil
ctypedef int (*mmio_map_fn)(void *uc, uint64_t address, uint64_t size, void *read_cb, void *read_ud,
                            void *write_cb, void *write_ud) noexcept nogil
# uc_hook_add and uc_ctl are variadic; the x86-64 and AArch64 Linux conventions pass these
# integer arguments alike, but only a variadic prototype sets the vector register count.
cdef extern from *:
    """
    #include <stdint.h>
    #include <stddef.h>
    typedef int (*kinst_hook_add_fn)(void *, size_t *, int, void *, void *, uint64_t, uint64_t, ...);
    typedef int (*kinst_ctl_fn)(void *, unsigned int, ...);
    """
    ctypedef int (*kinst_hook_add_fn)(void *, size_t *, int, void *, void *, uint64_t, uint64_t,
                                      ...) noexcept nogil
    ctypedef int (*kinst_ctl_fn)(void *, unsigned int, ...) noexcept nogil

# unicorn.h: uc_hook_type, uc_control_type, UC_CTL(type, count, direction)
cdef enum:
    HOOK_INTR = 1
    HOOK_INSN = 2
    HOOK_BLOCK = 8
    HOOK_INSN_INVALID = 1 << 14
    HOOK_EDGE_GENERATED = 1 << 15
    CTL_WRITE = 1
    CTL_READ = 2
    CTL_USE_EXITS = 4
    CTL_EXITS = 6
    CTL_TB_REQUEST_CACHE = 8
    CTL_TB_REMOVE_CACHE = 9
    CTL_TB_FLUSH = 10
    CTL_TLB_FLUSH = 11

cdef inline unsigned int ctl_word(int kind, int count, int direction) noexcept nogil:
    return kind | (count << 26) | (<unsigned int>direction << 30)


cdef struct BlockCount:
    uint64_t address
    uint32_t size
    uint32_t count


cdef struct Clock:
    # Instructions executed before the block in progress.
    uint64_t instructions
    # The block in progress: its first address, bytes, instructions (0: none).
    uint64_t address
    uint32_t size
    uint32_t count
    # Count at the start of the last canonical block; what devices see.
    uint64_t canonical
    uint64_t skew
    # Stop at the first canonical block start at or after this virtual time.
    uint64_t deadline
    # Stop where fewer instructions than a block has are left to this count.
    uint64_t limit
    # An interrupt is pending: stop at a block start where the mask allows it.
    bint pending
    int mask_register
    uint64_t mask_bits
    uint64_t mask_value
    # Second gate of a pending interrupt (riscv64 sie): any of these bits set; 0 bits: no gate.
    int gate_register
    uint64_t gate_bits
    # First byte behind the block before this one; no interrupt before the next block (STI).
    uint64_t previous_end
    bint shadow
    # The next block starts after a probe, not where the unprobed guest would start one.
    bint resumed
    # Probe code runs: no time passes, no event is due.
    bint frozen
    # Time goes on at a block that starts here; whether that start is a canonical one.
    uint64_t thaw
    bint thaw_resumed
    # The trampoline in use, and how often a block was entered at its first instruction.
    uint64_t slot
    uint64_t slot_entries
    uint64_t frozen_blocks
    # Why the last run ended.
    int stop
    uint32_t vector
    uint64_t blocks
    # Fixed instruction length in bytes, or 0 to look block sizes up.
    uint32_t fixed
    # Block address and size -> instruction count, open addressing.
    BlockCount *table
    uint64_t table_mask
    uint64_t table_used
    void *uc
    void *engine
    emu_stop_fn emu_stop
    reg_fn reg_read
    uint64_t unknown_address
    uint32_t unknown_size
    uint64_t exits[256]
    size_t exit_count

# Why ``Engine.run`` returned.
STOP_NONE = 0          # the CPU stopped by itself: halted, or at an exit address
STOP_DEADLINE = 1      # the clock reached ``deadline``
STOP_INTERRUPT = 2     # a pending interrupt became deliverable
STOP_EXCEPTION = 3     # the CPU raised exception ``vector``
STOP_INVALID = 4       # an instruction the model does not know (amd64), EBREAK (riscv64)
STOP_LIMIT = 5         # fewer instructions are left to ``limit`` than the block has
STOP_UNCOUNTED = 6     # a block of unknown instruction count
STOP_REQUEST = 7       # a device callback raised
STOP_ERROR = 8         # libunicorn reported an error


cdef inline uint64_t block_hash(uint64_t address, uint32_t size) noexcept nogil:
    cdef uint64_t h = (address ^ (<uint64_t>size << 48)) * <uint64_t>0x9E3779B97F4A7C15
    return h >> 20


cdef uint32_t table_find(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    cdef uint64_t i = block_hash(address, size) & c.table_mask
    while c.table[i].count:
        if c.table[i].address == address and c.table[i].size == size:
            return c.table[i].count
        i = (i + 1) & c.table_mask
    return 0


cdef int table_put(Clock *c, uint64_t address, uint32_t size, uint32_t count) noexcept nogil:
    cdef uint64_t i, j, old_size
    cdef BlockCount *old
    if c.table_used * 2 > c.table_mask:
        old = c.table
        old_size = c.table_mask + 1
        c.table = <BlockCount *>calloc(old_size * 2, sizeof(BlockCount))
        if c.table == NULL:
            c.table = old
            return -1
        c.table_mask = old_size * 2 - 1
        c.table_used = 0
        for j in range(old_size):
            if old[j].count:
                table_put(c, old[j].address, old[j].size, old[j].count)
        free(old)
    i = block_hash(address, size) & c.table_mask
    while c.table[i].count:
        if c.table[i].address == address and c.table[i].size == size:
            c.table[i].count = count
            return 0
        i = (i + 1) & c.table_mask
    c.table[i].address = address
    c.table[i].size = size
    c.table[i].count = count
    c.table_used += 1
    return 0


cdef inline bint gate_open(Clock *c) noexcept nogil:
    cdef uint64_t enabled = 0
    if c.gate_bits == 0:
        return True
    c.reg_read(c.uc, c.gate_register, &enabled)
    return enabled & c.gate_bits != 0


cdef void check_signals(Clock *c) noexcept with gil:
    # Ctrl-C must end a guest that never enters Python.
    try:
        PyErr_CheckSignals()
    except BaseException as error:
        (<Engine>c.engine).failed(error)


cdef void block_hook(void *uc, uint64_t address, uint32_t size, void *data) noexcept nogil:
    cdef Clock *c = <Clock *>data
    cdef uint32_t n
    cdef uint64_t flags
    # A stop already asked for in this run has its effect only behind this hook.
    c.instructions += c.count
    c.count = 0
    if c.address != address:
        c.previous_end = c.address + c.size
    c.address = address
    c.size = size
    if c.frozen:
        c.frozen_blocks += 1
        if c.frozen_blocks & 0xFFFFF == 0:
            check_signals(c)
        if address == c.slot:
            c.slot_entries += 1  # a REP instruction enters its block for every repetition
        if address != c.thaw:
            return
        # The displaced instruction is done: the guest goes on behind it.
        c.frozen = False
        c.resumed = c.thaw_resumed
        c.instructions += c.slot_entries if c.slot_entries else 1
    if c.fixed:
        n = size // c.fixed
    else:
        n = table_find(c, address, size)
        if n == 0:
            c.unknown_address = address
            c.unknown_size = size
            c.stop = STOP_UNCOUNTED_C
            c.emu_stop(uc)
            return
    c.blocks += 1
    if c.blocks & 0xFFFFF == 0:
        check_signals(c)
    if c.resumed:
        c.resumed = False
    else:
        c.canonical = c.instructions
        if c.instructions + c.skew >= c.deadline:
            c.stop = STOP_DEADLINE_C
            c.emu_stop(uc)
            return
        if c.shadow:
            c.shadow = False
            c.previous_end = 0
        elif c.pending:
            flags = 0
            c.reg_read(uc, c.mask_register, &flags)
            if flags & c.mask_bits == c.mask_value and gate_open(c):
                c.stop = STOP_INTERRUPT_C
                c.emu_stop(uc)
                return
    if c.instructions + n > c.limit:
        c.stop = STOP_LIMIT_C
        c.emu_stop(uc)
        return
    c.count = n

cdef enum:
    STOP_DEADLINE_C = 1
    STOP_INTERRUPT_C = 2
    STOP_EXCEPTION_C = 3
    STOP_INVALID_C = 4
    STOP_LIMIT_C = 5
    STOP_UNCOUNTED_C = 6
    STOP_REQUEST_C = 7


# unicorn.h: uc_tb
cdef struct UcTb:
    uint64_t pc
    uint16_t icount
    uint16_t size


cdef void edge_hook(void *uc, UcTb *current, UcTb *previous, void *data) noexcept nogil:
    cdef Clock *c = <Clock *>data
    cdef size_t i
    # Where translation was cut by an exit address, Unicorn counts the exit as an instruction:
    # such a block is left to the decoder (STOP_UNCOUNTED).
    for i in range(c.exit_count):
        if current.pc + current.size == c.exits[i]:
            return
    table_put(c, current.pc, current.size, current.icount)


cdef void interrupt_hook(void *uc, uint32_t vector, void *data) noexcept nogil:
    cdef Clock *c = <Clock *>data
    c.stop = STOP_EXCEPTION_C
    c.vector = vector
    c.emu_stop(uc)


cdef bint invalid_hook(void *uc, void *data) noexcept nogil:
    cdef Clock *c = <Clock *>data
    c.stop = STOP_INVALID_C
    c.emu_stop(uc)
    return True


cdef class _Window:
    """One memory-mapped device window: its callbacks and the engine they report errors to."""

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


cdef uint32_t port_read(void *uc, uint32_t port, int size, void *data) noexcept with gil:
    cdef Engine engine = <Engine>data
    try:
        return <uint32_t>(engine.port_in(port, size) & 0xFFFFFFFF)
    except BaseException as error:
        engine.failed(error)
        return 0


cdef void port_write(void *uc, uint32_t port, int size, uint32_t value,
                     void *data) noexcept with gil:
    cdef Engine engine = <Engine>data
    try:
        engine.port_out(port, size, value)
    except BaseException as error:
        engine.failed(error)


# What a clock-reading instruction does to the registers, natively: it is executed by the million.
cdef struct ClockRead:
    Clock *clock
    reg_fn reg_write
    uint64_t cost
    uint64_t numerator
    uint64_t denominator
    int low
    int high
    int third
    uint64_t third_value


cdef inline uint64_t ticks(ClockRead *r) noexcept nogil:
    r.clock.skew += r.cost
    return (r.clock.canonical + r.clock.skew) * r.numerator // r.denominator


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


# unicorn.h: uc_arm64_cp_reg, as the system-instruction hook and UC_ARM64_REG_CP_REG take it
cdef struct CpReg:
    uint32_t crn
    uint32_t crm
    uint32_t op0
    uint32_t op1
    uint32_t op2
    uint64_t val


cdef struct MsrReg:
    uint32_t rid
    uint64_t value


# Which system registers are answered here (arm64), by key; the rest is left to the model.
cdef struct SystemRegisters:
    ClockRead counter
    uint8_t counters[65536]
    uint8_t known[65536]
    void *engine


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


class EngineError(Exception):
    """libunicorn refused a call: ``code`` is its uc_err."""

    def __init__(self, what, code):
        super().__init__(f"{what}: libunicorn error {code}")
        self.code = code


cdef class Engine:
    """Native access to one Unicorn engine.

    :param handle: ``uc_engine *`` as an integer.
    :param symbols: addresses of the libunicorn functions named in ``Engine.FUNCTIONS``.
    :param fixed: instruction length in bytes where all are alike (arm64: 4), else 0.
    :raises EngineError: when libunicorn refuses a call.
    """

    FUNCTIONS = ("uc_emu_start", "uc_emu_stop", "uc_reg_read", "uc_reg_write", "uc_mem_map_ptr",
                 "uc_mmio_map", "uc_hook_add", "uc_ctl")

    cdef void *uc
    cdef Clock clock
    cdef ClockRead counter
    cdef ClockRead rdtscp
    cdef emu_start_fn emu_start_fn_
    cdef reg_fn reg_read_fn
    cdef reg_fn reg_write_fn
    cdef map_ptr_fn map_ptr
    cdef mmio_map_fn mmio_map
    cdef kinst_hook_add_fn hook_add
    cdef kinst_ctl_fn ctl
    cdef list windows
    cdef object port_in
    cdef object port_out
    cdef object system_in
    cdef object system_out
    cdef SystemRegisters system
    cdef public object error
    cdef int pc_register

    def __cinit__(self):
        memset(&self.clock, 0, sizeof(Clock))
        self.clock.table = <BlockCount *>calloc(1 << 16, sizeof(BlockCount))
        if self.clock.table == NULL:
            raise MemoryError
        self.clock.table_mask = (1 << 16) - 1

    def __dealloc__(self):
        free(self.clock.table)

    def __init__(self, uintptr_t handle, dict symbols, int pc_register, uint32_t fixed):
        cdef size_t hook = 0
        self.uc = <void *>handle
        self.emu_start_fn_ = <emu_start_fn><uintptr_t>symbols["uc_emu_start"]
        self.reg_read_fn = <reg_fn><uintptr_t>symbols["uc_reg_read"]
        self.reg_write_fn = <reg_fn><uintptr_t>symbols["uc_reg_write"]
        self.map_ptr = <map_ptr_fn><uintptr_t>symbols["uc_mem_map_ptr"]
        self.mmio_map = <mmio_map_fn><uintptr_t>symbols["uc_mmio_map"]
        self.hook_add = <kinst_hook_add_fn><uintptr_t>symbols["uc_hook_add"]
        self.ctl = <kinst_ctl_fn><uintptr_t>symbols["uc_ctl"]
        self.clock.uc = self.uc
        self.clock.engine = <void *>self
        self.clock.emu_stop = <emu_stop_fn><uintptr_t>symbols["uc_emu_stop"]
        self.clock.reg_read = self.reg_read_fn
        self.clock.deadline = 0xFFFFFFFFFFFFFFFF
        self.clock.limit = 0xFFFFFFFFFFFFFFFF
        self.clock.fixed = fixed
        self.pc_register = pc_register
        self.windows = []
        self.error = None
        memset(&self.system, 0, sizeof(self.system))
        self._ok("use exits", self.ctl(self.uc, ctl_word(CTL_USE_EXITS, 1, CTL_WRITE), 1))
        self._hook(HOOK_BLOCK, <void *>block_hook)
        self._hook(HOOK_INTR, <void *>interrupt_hook)
        self._hook(HOOK_INSN_INVALID, <void *>invalid_hook)
        if not fixed:
            self._hook(HOOK_EDGE_GENERATED, <void *>edge_hook)

    cdef int _ok(self, what, int code) except -1:
        if code != 0:
            raise EngineError(what, code)
        return 0

    cdef int _hook(self, int kind, void *callback) except -1:
        cdef size_t hook = 0
        return self._ok("hook", self.hook_add(self.uc, &hook, kind, callback, &self.clock,
                                              <uint64_t>1, <uint64_t>0))

    cdef void failed(self, error):
        """A device callback raised: remember it and stop; ``run`` raises it."""
        if self.error is None:
            self.error = error
        self.clock.stop = STOP_REQUEST_C
        self.clock.emu_stop(self.uc)

    # -- what the engine is wired to ----------------------------------------------------------

    def map_ram(self, uint64_t address, uint64_t size, uintptr_t host, uint32_t perms=7):
        """Map ``size`` bytes of host memory at guest physical ``address``."""
        self._ok(f"map RAM at {address:#x}",
                 self.map_ptr(self.uc, address, size, perms, <void *>host))

    def map_device(self, uint64_t address, uint64_t size, read, write):
        """Call ``read(offset, size)`` and ``write(offset, size, value)`` for a physical window."""
        cdef _Window w = _Window()
        w.engine = self
        w.read = read
        w.write = write
        self.windows.append(w)
        self._ok(f"map device at {address:#x}",
                 self.mmio_map(self.uc, address, size, <void *>window_read, <void *>w,
                               <void *>window_write, <void *>w))

    def hook_ports(self, int insn_in, int insn_out, port_in, port_out):
        """Call ``port_in(port, size)`` and ``port_out(port, size, value)`` for IN and OUT."""
        cdef size_t hook = 0
        self.port_in = port_in
        self.port_out = port_out
        self._ok("hook IN", self.hook_add(self.uc, &hook, HOOK_INSN, <void *>port_read,
                                          <void *>self, <uint64_t>1, <uint64_t>0, insn_in))
        self._ok("hook OUT", self.hook_add(self.uc, &hook, HOOK_INSN, <void *>port_write,
                                           <void *>self, <uint64_t>1, <uint64_t>0, insn_out))

    def hook_tsc(self, int rdtsc, int rdtscp, int low, int high, int aux, uint64_t cost,
                 uint64_t numerator, uint64_t denominator):
        """Answer RDTSC and RDTSCP from the virtual clock; each read costs ``cost`` ns."""
        cdef size_t hook = 0
        self._set_counter(&self.counter, cost, numerator, denominator)
        self.counter.low = low
        self.counter.high = high
        self.rdtscp = self.counter
        self.rdtscp.third = aux
        self._ok("hook RDTSC", self.hook_add(self.uc, &hook, HOOK_INSN, <void *>tsc_read,
                                             &self.counter, <uint64_t>1, <uint64_t>0, rdtsc))
        self._ok("hook RDTSCP", self.hook_add(self.uc, &hook, HOOK_INSN, <void *>tsc_read,
                                              &self.rdtscp, <uint64_t>1, <uint64_t>0, rdtscp))

    cdef void _set_counter(self, ClockRead *r, uint64_t cost, uint64_t numerator,
                           uint64_t denominator):
        memset(r, 0, sizeof(ClockRead))
        r.clock = &self.clock
        r.reg_write = self.reg_write_fn
        r.cost = cost
        r.numerator = numerator
        r.denominator = denominator

    def hook_system(self, int mrs, int msr, counters, known, read, write, uint64_t cost,
                    uint64_t numerator, uint64_t denominator):
        """Answer MRS and MSR (arm64).

        :param counters: keys read as the virtual counter, natively.
        :param known: keys given to ``read(key)`` and ``write(key, value)``.
        A key is op0 << 14 | op1 << 11 | CRn << 7 | CRm << 3 | op2.
        """
        cdef size_t hook = 0
        self._set_counter(&self.system.counter, cost, numerator, denominator)
        self.system.engine = <void *>self
        for key in counters:
            self.system.counters[<uint32_t>key & 0xFFFF] = 1
        for key in known:
            self.system.known[<uint32_t>key & 0xFFFF] = 1
        self.system_in = read
        self.system_out = write
        self._ok("hook MRS", self.hook_add(self.uc, &hook, HOOK_INSN, <void *>system_read,
                                           &self.system, <uint64_t>1, <uint64_t>0, mrs))
        self._ok("hook MSR", self.hook_add(self.uc, &hook, HOOK_INSN, <void *>system_write,
                                           &self.system, <uint64_t>1, <uint64_t>0, msr))

    def set_interrupt_mask(self, int register, uint64_t bits, uint64_t value):
        """Interrupts are taken while ``register & bits == value``."""
        self.clock.mask_register = register
        self.clock.mask_bits = bits
        self.clock.mask_value = value

    def set_interrupt_gate(self, int register, uint64_t bits):
        """A pending interrupt also needs one of ``bits`` set in ``register``; 0: no such gate."""
        self.clock.gate_register = register
        self.clock.gate_bits = bits

    # -- registers ----------------------------------------------------------------------------

    def read(self, int register):
        """A register of at most 64 bits, by Unicorn's number."""
        cdef uint64_t value = 0
        self._ok(f"read register {register}", self.reg_read_fn(self.uc, register, &value))
        return value

    def write(self, int register, uint64_t value):
        """Set a register of at most 64 bits."""
        self._ok(f"write register {register}", self.reg_write_fn(self.uc, register, &value))

    def read_bytes(self, int register, int size):
        """A wide register (vector, descriptor table) as bytes; at most 256."""
        cdef uint8_t buffer[256]
        if not 0 < size <= 256:
            raise ValueError("register size out of range")
        memset(buffer, 0, 256)
        self._ok(f"read register {register}", self.reg_read_fn(self.uc, register, buffer))
        return bytes(buffer[:size])

    def write_bytes(self, int register, bytes value):
        """Set a wide register from bytes."""
        cdef uint8_t buffer[256]
        cdef int i
        if len(value) > 256:
            raise ValueError("register size out of range")
        memset(buffer, 0, 256)
        for i in range(len(value)):
            buffer[i] = value[i]
        self._ok(f"write register {register}", self.reg_write_fn(self.uc, register, buffer))

    def read_system(self, int register, int op0, int op1, int crn, int crm, int op2):
        """An arm64 system register; ``register`` is UC_ARM64_REG_CP_REG."""
        cdef CpReg cp = CpReg(crn, crm, op0, op1, op2, 0)
        self._ok(f"read S{op0}_{op1}_C{crn}_C{crm}_{op2}",
                 self.reg_read_fn(self.uc, register, &cp))
        return cp.val

    def write_system(self, int register, int op0, int op1, int crn, int crm, int op2,
                     uint64_t value):
        cdef CpReg cp = CpReg(crn, crm, op0, op1, op2, value)
        self._ok(f"write S{op0}_{op1}_C{crn}_C{crm}_{op2}",
                 self.reg_write_fn(self.uc, register, &cp))

    def read_msr(self, int register, uint32_t number):
        """An amd64 model-specific register; ``register`` is UC_X86_REG_MSR."""
        cdef MsrReg msr = MsrReg(number, 0)
        self._ok(f"read MSR {number:#x}", self.reg_read_fn(self.uc, register, &msr))
        return msr.value

    def write_msr(self, int register, uint32_t number, uint64_t value):
        cdef MsrReg msr = MsrReg(number, value)
        self._ok(f"write MSR {number:#x}", self.reg_write_fn(self.uc, register, &msr))

    # -- running ------------------------------------------------------------------------------

    def run(self, uint64_t pc):
        """Run from ``pc`` until something stops the CPU.

        :return: ``(stop, detail)``; detail is the exception vector of STOP_EXCEPTION, libunicorn's
            error of STOP_ERROR, else 0.
        :raises: what a device callback raised.
        """
        cdef int code
        self.clock.stop = 0
        with nogil:
            code = self.emu_start_fn_(self.uc, pc, 0, 0, 0)
        if self.error is not None:
            error = self.error
            self.error = None
            raise error
        if self.clock.stop == STOP_EXCEPTION_C:
            return STOP_EXCEPTION, self.clock.vector
        if self.clock.stop:
            return self.clock.stop, 0
        if code:
            return STOP_ERROR, code
        return STOP_NONE, 0

    def settle(self, count=None):
        """End the block in progress.

        :param count: instructions of it that were executed; None: all of them.
        """
        if count is not None:
            if count > self.clock.count and not self.clock.frozen:
                raise ValueError("more instructions than the block has")
            if self.clock.count:
                self.clock.count = count
        self.clock.instructions += self.clock.count
        self.clock.count = 0

    def synchronize(self):
        """Make the next block start canonical and let devices see the present count."""
        self.clock.canonical = self.clock.instructions

    def learn(self, uint64_t address, uint32_t size, uint32_t count):
        """Tell the instruction count of a block that the translation did not report."""
        if count == 0:
            raise ValueError("a block has at least one instruction")
        if table_put(&self.clock, address, size, count) != 0:
            raise MemoryError

    def block_count(self, uint64_t address, uint32_t size):
        """Instructions of a block as they are known, or None."""
        return table_find(&self.clock, address, size) or None

    def set_exits(self, addresses):
        """Addresses before whose execution the CPU stops (STOP_NONE)."""
        cdef size_t n = len(addresses)
        cdef size_t i
        if n > 256:
            raise ValueError("at most 256 exit addresses")
        for i in range(n):
            self.clock.exits[i] = addresses[i]
        self.clock.exit_count = n
        self._ok("set exits", self.ctl(self.uc, ctl_word(CTL_EXITS, 2, CTL_WRITE),
                                       <void *>self.clock.exits, n))

    def remove_translations(self, uint64_t begin, uint64_t end):
        """Drop translations of code at virtual [begin, end); the pages must be mapped."""
        self._ok("remove translations",
                 self.ctl(self.uc, ctl_word(CTL_TB_REMOVE_CACHE, 2, CTL_WRITE), begin, end))

    def flush_translations(self):
        self._ok("flush translations", self.ctl(self.uc, ctl_word(CTL_TB_FLUSH, 0, CTL_WRITE)))

    def flush_tlb(self):
        self._ok("flush TLB", self.ctl(self.uc, ctl_word(CTL_TLB_FLUSH, 0, CTL_WRITE)))

    # -- the clock ----------------------------------------------------------------------------

    @property
    def now(self):
        """Virtual nanoseconds, as devices see them."""
        return self.clock.canonical + self.clock.skew

    @property
    def instructions(self):
        return self.clock.instructions

    @instructions.setter
    def instructions(self, uint64_t value):
        self.clock.instructions = value
        self.clock.canonical = value
        self.clock.count = 0

    @property
    def canonical(self):
        """Instructions at the start of the last canonical block."""
        return self.clock.canonical

    @canonical.setter
    def canonical(self, uint64_t value):
        self.clock.canonical = value

    @property
    def skew(self):
        return self.clock.skew

    @skew.setter
    def skew(self, uint64_t value):
        self.clock.skew = value

    @property
    def deadline(self):
        return self.clock.deadline

    @deadline.setter
    def deadline(self, uint64_t value):
        self.clock.deadline = value

    @property
    def limit(self):
        return self.clock.limit

    @limit.setter
    def limit(self, uint64_t value):
        self.clock.limit = value

    @property
    def pending(self):
        return self.clock.pending

    @pending.setter
    def pending(self, bint value):
        self.clock.pending = value

    @property
    def frozen(self):
        return self.clock.frozen

    @frozen.setter
    def frozen(self, bint value):
        self.clock.frozen = value

    def thaw_at(self, uint64_t address, bint canonical):
        """While frozen: time goes on at ``address``, one instruction later than it stopped.

        :param canonical: a block would have started there without the probe, too.
        """
        self.clock.thaw = address
        self.clock.thaw_resumed = not canonical

    def use_trampoline(self, uint64_t address):
        """While frozen: the displaced instruction is executed at ``address``; 0: nowhere."""
        self.clock.slot = address
        self.clock.slot_entries = 0

    def thaw(self):
        """Forget all about a probe in progress: time goes on."""
        self.clock.frozen = False
        self.clock.resumed = False
        self.clock.shadow = False
        self.clock.thaw = 0
        self.clock.slot = 0
        self.clock.slot_entries = 0

    def thaw_if_at(self, uint64_t address):
        """The same, where the CPU was stopped before a block at ``address`` could start."""
        if self.clock.frozen and self.clock.thaw == address:
            self.clock.frozen = False
            self.clock.resumed = self.clock.thaw_resumed
            self.clock.instructions += self.clock.slot_entries or 1

    @property
    def shadow(self):
        """No interrupt is taken before the next block."""
        return self.clock.shadow

    @shadow.setter
    def shadow(self, bint value):
        self.clock.shadow = value

    @property
    def previous_end(self):
        """The first address behind the block that ran before the one in progress."""
        return self.clock.previous_end

    @property
    def resumed(self):
        return self.clock.resumed

    @resumed.setter
    def resumed(self, bint value):
        self.clock.resumed = value

    @property
    def blocks(self):
        """Blocks entered since the engine was made."""
        return self.clock.blocks

    @property
    def block(self):
        """The block in progress: (address, bytes, instructions)."""
        return self.clock.address, self.clock.size, self.clock.count

    @property
    def unknown_block(self):
        """The block of STOP_UNCOUNTED: (address, bytes)."""
        return self.clock.unknown_address, self.clock.unknown_size
