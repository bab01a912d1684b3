"""Turns of several CPUs in one engine, and the virtual time of each turn.

Part of the engine (``_engine.pyx`` includes this file).

A CPU is a register file (a Unicorn context) and some state of the clock (``CpuPart``); it is loaded
into the engine while it has its turn.  The CPUs of a round run at the same virtual time: a turn
begins at the time when the previous one began, and time advances only where a CPU runs longer than
all CPUs before it in the round.  To an observer, time stands still until then and never goes back.
"""


cdef uint64_t MAX_TURN = <uint64_t>1 << 40  # maximum length of a turn in instructions
cdef uint64_t PAUSE_TIME = 50  # nanoseconds that PAUSE or YIELD takes: 140 cycles at 2.8 GHz


cdef bint gives_away(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    """Return whether the block ends with an instruction that yields the CPU's turn (PAUSE)."""
    cdef uint64_t key
    cdef BlockCount *entry
    if c.yield_count == 0:
        return False
    key = code_key(c, address, size)
    entry = table_entry(c, key, size)
    if entry == NULL:
        if not c.fixed or table_put(c, key, size, size >> c.fixed_bits) != 0:
            return ends_with_yield(c, address, size)
        entry = table_entry(c, key, size)
    if entry.yields == YIELDS_UNKNOWN:
        entry.yields = YIELDS if ends_with_yield(c, address, size) else YIELDS_NOT
    return entry.yields == YIELDS


cdef inline void give_away(Clock *c, uint64_t count) noexcept nogil:
    """End the turn after ``count`` instructions unless the CPU may keep its turn after a yield."""
    if c.cpus == 1:
        c.pause_end = count
        return
    if c.passed_by_at == count:
        return  # this yield was handled before the run was interrupted
    c.passed_by_at = count
    if c.passed_by:
        c.passed_by -= 1
    else:
        c.turn_end = count


cdef inline void pause(Clock *c) noexcept nogil:
    """Let the time pass that a yield takes on the only CPU, at the end of a block.

    An idle kernel spins for a while before it halts the CPU; each PAUSE leaves the translated code,
    and would otherwise take no longer than any other instruction.  If an exception ended the block
    before its last instruction, no time passes.
    """
    if c.pause_end != NEVER:
        if c.instructions >= c.pause_end:
            c.skew += PAUSE_TIME
        c.pause_end = NEVER


cdef bint ends_with_yield(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    cdef int i
    cdef uint32_t word
    cdef uint64_t end = address + size
    for i in range(c.yield_count):
        word = 0
        if size >= c.yields[i].size and guest_read(
                c, end - c.yields[i].size, &word, c.yields[i].size) and word == c.yields[i].value:
            return True
    return False


cdef bint displaced_yields(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    """``ends_with_yield`` for a trampoline, whose host address saves the walk of the page tables."""
    cdef int i
    cdef uint32_t k, length
    cdef const uint8_t *code = c.detour.slot_code
    if code == NULL or size > SLOT:
        return ends_with_yield(c, address, size)
    for i in range(c.yield_count):
        length = c.yields[i].size
        if size < length:
            continue
        for k in range(length):  # a call of memcmp() would take longer
            if code[size - length + k] != (c.yields[i].value >> 8 * k & 0xFF):
                break
        else:
            return True
    return False


cdef void begin_turn(Clock *c, uint64_t count, uint64_t longest) noexcept nogil:
    """Begin a turn after ``count`` instructions.

    :param longest: length in instructions of the longest earlier turn in this round.
    """
    cdef uint64_t now = time_at(c, count)
    c.longest = longest
    c.still = count + longest
    c.skew = now - c.still
    c.turn_began = count
    c.turn_end = count + c.turn_length if c.cpus > 1 else NEVER
    c.horizon = 0


cdef bint turn_over(Clock *c, uint64_t count) noexcept nogil:
    """Return whether the scheduler must choose the next CPU now that a turn has ended.

    If no other CPU can run, the same CPU begins its next turn here, in a new round.
    """
    if c.others or c.slow:
        return True
    begin_turn(c, count, 0)
    return False


@cython.no_gc_clear
cdef class Turns:
    """Registers of all CPUs of an engine, and the turns in which the CPUs run.

    :param count: number of CPUs. Create this object together with the engine, while all registers
        have their power-on values.
    :param length: instructions of a turn.
    :param yields: encodings of the instructions with which a CPU yields its turn; each ends its
        block.
    :param monitor: offset in a context of the address reserved by an exclusive access (0: none).
        The reservation is lost at the end of a turn, since another CPU may store there.
    """

    cdef Engine engine
    cdef void *fresh  # the registers at power-on
    cdef uint8_t fresh_traps

    def __init__(self, Engine engine not None, uint32_t count, uint64_t length, yields=(),
                 size_t monitor=0):
        cdef uint32_t i
        cdef Clock *c = &engine.clock
        engine._still()
        if c.cpus != 1 or self.engine is not None:
            raise RuntimeError("the CPUs of this engine were already created")
        if not 1 <= count <= MAX_CPUS or not 0 < length <= MAX_TURN or len(yields) > MAX_YIELDS:
            raise ValueError(f"Turns: needs 1 to {MAX_CPUS} CPUs and a length of 1 to {MAX_TURN}")
        if monitor and not CONTEXT_HEADER <= monitor <= engine.context_size(engine.uc) - 8:
            raise ValueError(f"monitor: offset {monitor} is outside the context")
        c.monitor_place = <uint32_t>monitor
        for i in range(count if count > 1 else 0):
            engine._ok("allocate a context", engine.context_alloc(engine.uc, &c.parts[i].context))
            engine._ok("save the CPU", c.context_save(engine.uc, c.parts[i].context))
            c.parts[i].program_traps = c.program_traps
        self.fresh_traps = c.program_traps
        if count > 1:
            engine._ok("allocate a context", engine.context_alloc(engine.uc, &self.fresh))
            engine._ok("save the CPU", c.context_save(engine.uc, self.fresh))
        for code in yields:
            if not 0 < len(code) <= 4:
                raise ValueError(f"yield instruction of {len(code)} bytes: must have 1 to 4")
            c.yields[c.yield_count] = Yield(<uint32_t>len(code), int.from_bytes(code, "little"))
            c.yield_count += 1
        self.engine = engine
        c.turn_length = length
        c.cpus = count
        c.others = count > 1
        begin_turn(c, c.instructions, 0)

    cdef int _made(self) except -1:
        if self.engine is None:
            raise RuntimeError("this Turns object was not initialized")
        return 0

    cdef int _ready(self, uint32_t number) except -1:
        self._made()
        self.engine._still()
        if number >= self.engine.clock.cpus:
            raise ValueError(f"CPU {number} does not exist")
        if self.engine.clock.frozen:
            raise MachineError("a probe is firing: the CPU cannot be changed")
        return 0

    cdef int _load(self, uint32_t number) except -1:
        cdef Clock *c = &self.engine.clock
        cdef CpuPart *own = &c.parts[c.cpu]
        cdef CpuPart *other = &c.parts[number]
        if number == c.cpu:
            return 0
        if c.exchanging != NULL:
            c.exchanging(c.exchanging_data, False)
        self.engine._ok("save the CPU", c.context_save(c.uc, own.context))
        own.shadow, own.resumed, own.resume_at = c.shadow, c.resumed, c.resume_at
        own.program_traps, own.thread_word = c.program_traps, c.thread_word
        own.program_began, own.address, own.size = c.program_began, c.address, c.size
        self.engine._ok("restore a CPU", c.context_restore(c.uc, other.context))
        c.shadow, c.resumed, c.resume_at = other.shadow, other.resumed, other.resume_at
        c.program_traps, c.thread_word = other.program_traps, other.thread_word
        c.program_began, c.address, c.size = other.program_began, other.address, other.size
        c.count = 0
        c.cut_at = 0
        c.calling = False  # the pending call was made by the previous CPU
        c.cpu = number
        c.exceptions = 0
        c.turns[0] += 1
        if c.exchanging != NULL:
            c.exchanging(c.exchanging_data, True)
        return 0

    def power_on(self, uint32_t number):
        """Load a CPU into the engine like ``look_at``, and set its registers to power-on values."""
        cdef Clock *c = &self.engine.clock
        self._ready(number)
        self._load(number)
        if self.fresh != NULL:
            self.engine._ok("restore a CPU", c.context_restore(c.uc, self.fresh))
        c.shadow = c.resumed = False
        c.program_traps = self.fresh_traps
        c.thread_word = NULL

    def __dealloc__(self):
        if self.fresh != NULL:
            self.engine.clock.context_free(self.fresh)

    def look_at(self, uint32_t number):
        """Load another CPU's registers into the engine, to read or set them.

        The registers of the CPU whose turn it is must be loaded again before the guest runs.
        """
        self._ready(number)
        self._load(number)

    def give(self, uint32_t number, uint64_t longest):
        """Give the turn to a CPU, possibly the same one again.

        :param longest: length in instructions of the longest turn so far in this round; 0 begins a
            new round.
        """
        cdef Clock *c = &self.engine.clock
        self._ready(number)
        if c.count:
            raise RuntimeError("the turn cannot be given while a block is in progress")
        cdef uint32_t before = c.cpu
        if number != before:
            self._load(number)
            if c.monitor_place:
                (<uint64_t *>(<uint8_t *>c.parts[before].context + c.monitor_place))[0] = NEVER
            self.engine._ok("flush the TLB", c.ctl(c.uc, ctl_word(CTL_TLB_FLUSH, 0, CTL_WRITE)))
        begin_turn(c, c.instructions, longest)
        c.canonical = c.instructions
        c.others = c.cpus > 1

    @property
    def patience(self):
        """Number of yields that will not end the turn, and instruction count at the last yield."""
        self._made()
        return self.engine.clock.passed_by, self.engine.clock.passed_by_at

    @patience.setter
    def patience(self, value):
        self._made()
        self.engine.clock.passed_by, self.engine.clock.passed_by_at = value

    def alone(self):
        """Record that no other CPU can run until an interrupt line changes."""
        self._made()
        self.engine.clock.others = False

    def others_may_run(self):
        """Record that another CPU may be able to run after an interrupt change or a CPU start."""
        self._made()
        self.engine.clock.others = self.engine.clock.cpus > 1

    @property
    def begun(self):
        """Whether the CPU has executed at least one instruction in its turn."""
        self._made()
        return self.engine.clock.instructions > self.engine.clock.turn_began

    def end_here(self):
        """End the turn at the next canonical block start."""
        self._made()
        self.engine.clock.turn_end = self.engine.clock.instructions
        self.engine.clock.horizon = 0

    @property
    def longest(self):
        """Length in instructions of this round's longest turn, including the current one."""
        self._made()
        cdef Clock *c = &self.engine.clock
        return max(c.longest, c.instructions - c.turn_began)

    @property
    def clock(self):
        """State of the turn in a snapshot: (begin, end, longest earlier turn, length of a turn)."""
        self._made()
        cdef Clock *c = &self.engine.clock
        return c.turn_began, c.turn_end, c.longest, c.turn_length

    @clock.setter
    def clock(self, value):
        # The caller must set the instruction count and the skew first.
        self._made()
        cdef Clock *c = &self.engine.clock
        began, end, longest, length = value
        if not 0 < length <= MAX_TURN or end < began or longest > MAX_TURN:
            raise ValueError(f"invalid turn: {value!r}")
        c.turn_began, c.turn_end, c.longest, c.turn_length = began, end, longest, length
        c.still = c.turn_began + c.longest
        c.others = c.cpus > 1
        c.horizon = 0

    @property
    def stands(self):
        """Block state of the CPU in the engine: (resumed, resume address, interrupt shadow).

        ``resumed`` means that a block start at the address is not canonical. The interrupt shadow
        means that no interrupt is taken before the next block.
        """
        self._made()
        return bool(self.engine.clock.resumed), self.engine.clock.resume_at, bool(
            self.engine.clock.shadow)

    @stands.setter
    def stands(self, value):
        self._made()
        self.engine.clock.resumed, self.engine.clock.resume_at, self.engine.clock.shadow = value


cdef void watch_code(Clock *c) noexcept nogil:
    """Start to record the pages on which code is translated."""
    c.asks_translated = True


@cython.no_gc_clear
cdef class Moment:
    """Saved state of the engine except memory: the registers of all CPUs, the clock and the turn.

    Saving it is considerably faster than reading and writing registers by name.
    """

    cdef Engine engine
    cdef void *contexts[MAX_CPUS]
    cdef CpuPart parts[MAX_CPUS]
    cdef uint64_t numbers[12]

    def __init__(self, Engine engine not None):
        cdef Clock *c = &engine.clock
        cdef uint32_t i
        if self.engine is not None:
            raise RuntimeError("this moment was already saved")
        engine._still()
        if c.frozen or c.count:
            raise MachineError("the machine is in the middle of an instruction")
        self.engine = engine
        for i in range(c.cpus):
            engine._ok("allocate a context", engine.context_alloc(engine.uc, &self.contexts[i]))
            if i == c.cpu:
                engine._ok("save the CPU", c.context_save(engine.uc, self.contexts[i]))
            else:
                memcpy(self.contexts[i], c.parts[i].context, engine.context_size(engine.uc))
        memcpy(self.parts, c.parts, sizeof(c.parts))
        self.parts[c.cpu] = CpuPart(NULL, c.shadow, c.resumed, c.program_traps, c.resume_at,
                                    c.address, c.size, c.program_began, c.thread_word)
        self.numbers = [c.cpu, c.instructions, c.canonical, c.skew, c.turn_end, c.turn_began,
                        c.turn_length, c.still, c.longest, c.taken, c.passed_by,
                        c.passed_by_at]
        watch_code(c)

    def put_back(self):
        """Restore the saved state; the caller has already restored memory."""
        cdef Clock *c = &self.engine.clock
        cdef CpuPart *own
        cdef uint32_t i
        cdef void *context
        if self.engine is None:
            raise RuntimeError("this moment was not initialized")
        self.engine._still()
        if c.frozen:
            raise MachineError("a probe is firing: the machine cannot go back")
        for i in range(c.cpus):
            if i != <uint32_t>self.numbers[0]:
                context = c.parts[i].context
                c.parts[i] = self.parts[i]
                c.parts[i].context = context
                memcpy(context, self.contexts[i], self.engine.context_size(self.engine.uc))
        c.cpu = <uint32_t>self.numbers[0]
        own = &self.parts[c.cpu]
        self.engine._ok("restore a CPU", c.context_restore(c.uc, self.contexts[c.cpu]))
        c.shadow, c.resumed, c.resume_at = own.shadow, own.resumed, own.resume_at
        c.program_traps, c.thread_word = own.program_traps, own.thread_word
        c.program_began, c.address, c.size = own.program_began, own.address, own.size
        c.instructions, c.canonical, c.skew = self.numbers[1], self.numbers[2], self.numbers[3]
        c.turn_end, c.turn_began, c.turn_length = self.numbers[4], self.numbers[5], self.numbers[6]
        c.still, c.longest, c.taken = self.numbers[7], self.numbers[8], self.numbers[9]
        c.passed_by, c.passed_by_at = self.numbers[10], self.numbers[11]
        c.count = c.exceptions = 0
        c.pause_end = NEVER
        c.cut_at = c.horizon = c.heard = 0
        c.others = c.cpus > 1
        c.turns[0] += 1
        self.engine._ok("flush the TLB", c.ctl(c.uc, ctl_word(CTL_TLB_FLUSH, 0, CTL_WRITE)))

    def translated_since(self):
        """Return the physical addresses of pages on which code was translated since the last call.

        The first call counts from the first saved moment. If such a page was written since, its
        translations must be dropped. None means that the pages are unknown or too many.
        """
        cdef Clock *c = &self.engine.clock
        cdef Region *region
        cdef uint32_t i
        if self.engine is None:
            raise RuntimeError("this moment was not initialized")
        found = []
        for i in range(c.translated_used):
            region = region_of(c, c.translated[i], 1)
            if region != NULL:
                region.code[(c.translated[i] - region.physical) >> 12] = CODE_KNOWN
                found.append(c.translated[i])
        overflow = c.translated_used == MAX_TRANSLATED or c.code_anywhere
        c.translated_used = 0
        return None if overflow else found

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(MAX_CPUS):
            if self.contexts[i] != NULL:
                self.engine.clock.context_free(self.contexts[i])
