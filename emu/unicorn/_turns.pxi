"""Several CPUs in one engine: which of them runs, and what time it is then; part of the engine
(``_engine.pyx`` includes it).

A CPU is a register file (a context of Unicorn's) and what the clock knows of it (``CpuPart``); it is in
the engine while it has its turn.  The CPUs of a round run at the same virtual time: a turn begins when
the one before it did, and time goes on where a CPU has run longer than all before it in the round.  To
everybody who looks, time stands still until then, and never goes back.
"""


cdef uint64_t MAX_TURN = <uint64_t>1 << 40  # instructions


cdef inline bint gives_away(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    """Whether the block ends with an instruction of a CPU that waits for another one (PAUSE): its
    turn ends there."""
    if c.cpus == 1:
        return False
    return ends_with_yield(c, address, size)


cdef inline void give_away(Clock *c, uint64_t count) noexcept nogil:
    """The CPU says behind ``count`` instructions that it waits for another one."""
    if c.passed_by_at == count:
        return  # it was told before: the run was cut there
    c.passed_by_at = count
    if c.passed_by:
        c.passed_by -= 1
    else:
        c.turn_end = count


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


cdef void begin_turn(Clock *c, uint64_t count, uint64_t longest) noexcept nogil:
    """A turn begins behind ``count`` instructions.

    :param longest: instructions of the longest turn before it in its round.
    """
    cdef uint64_t now = time_at(c, count)
    c.longest = longest
    c.still = count + longest
    c.skew = now - c.still
    c.turn_began = count
    c.turn_end = count + c.turn_length if c.cpus > 1 else NEVER
    c.horizon = 0


cdef bint turn_over(Clock *c, uint64_t count) noexcept nogil:
    """The turn's end has come: whether somebody must say who is next.  Where no other CPU can run
    the next turn is the same one's, in a round of its own."""
    if c.others or c.slow:
        return True
    begin_turn(c, count, 0)
    return False


@cython.no_gc_clear
cdef class Turns:
    """The CPUs' registers, and whose turn it is.

    :param count: how many there are; made when the engine is, where all registers are what they are
        at power-on.
    :param length: instructions of a turn.
    :param yields: the instructions with which a CPU gives its turn away; each ends its block.
    :param monitor: where a context holds the address that an exclusive access has reserved: it is
        lost with the turn, as another CPU may store there; 0: there is no such thing.
    """

    cdef Engine engine
    cdef void *fresh  # the registers as they are at power-on
    cdef uint8_t fresh_traps

    def __init__(self, Engine engine not None, uint32_t count, uint64_t length, yields=(),
                 size_t monitor=0):
        cdef uint32_t i
        cdef Clock *c = &engine.clock
        engine._still()
        if c.cpus != 1 or self.engine is not None:
            raise RuntimeError("CPUs are made once")
        if not 1 <= count <= MAX_CPUS or not 0 < length <= MAX_TURN or len(yields) > MAX_YIELDS:
            raise ValueError(f"1 to {MAX_CPUS} CPUs are possible, and turns of an instruction or more")
        if monitor and not CONTEXT_HEADER <= monitor <= engine.context_size(engine.uc) - 8:
            raise ValueError("the monitor lies outside the context")
        c.monitor_place = <uint32_t>monitor
        for i in range(count if count > 1 else 0):
            engine._ok("context", engine.context_alloc(engine.uc, &c.parts[i].context))
            engine._ok("context", c.context_save(engine.uc, c.parts[i].context))
            c.parts[i].program_traps = c.program_traps
        self.fresh_traps = c.program_traps
        if count > 1:
            engine._ok("context", engine.context_alloc(engine.uc, &self.fresh))
            engine._ok("context", c.context_save(engine.uc, self.fresh))
        for code in yields:
            if not 0 < len(code) <= 4:
                raise ValueError("an instruction of at most four bytes")
            c.yields[c.yield_count] = Yield(<uint32_t>len(code), int.from_bytes(code, "little"))
            c.yield_count += 1
        self.engine = engine
        c.turn_length = length
        c.cpus = count
        c.others = count > 1
        begin_turn(c, c.instructions, 0)

    cdef int _made(self) except -1:
        if self.engine is None:
            raise RuntimeError("CPUs that were not made")
        return 0

    cdef int _ready(self, uint32_t number) except -1:
        self._made()
        self.engine._still()
        if number >= self.engine.clock.cpus:
            raise ValueError(f"there is no CPU {number}")
        if self.engine.clock.frozen:
            raise MachineError("a probe is firing: no other CPU can run meanwhile")
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
        c.calling = False  # of the other one
        c.cpu = number
        c.exceptions = 0
        c.turns[0] += 1
        if c.exchanging != NULL:
            c.exchanging(c.exchanging_data, True)
        return 0

    def power_on(self, uint32_t number):
        """Another CPU's registers are what they are at power-on, and in the engine: as ``look_at``."""
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
        """Have another CPU's registers in the engine, to read or to set them; the guest does not run
        before they are its own again."""
        self._ready(number)
        self._load(number)

    def give(self, uint32_t number, uint64_t longest):
        """It is another CPU's turn, or the same one's again.

        :param longest: instructions of the longest turn so far in this round; 0: a new round.
        """
        cdef Clock *c = &self.engine.clock
        self._ready(number)
        if c.count:
            raise RuntimeError("a block is in progress")
        cdef uint32_t before = c.cpu
        if number != before:
            self._load(number)
            if c.monitor_place:
                (<uint64_t *>(<uint8_t *>c.parts[before].context + c.monitor_place))[0] = NEVER
            self.engine._ok("flush TLB", c.ctl(c.uc, ctl_word(CTL_TLB_FLUSH, 0, CTL_WRITE)))
        begin_turn(c, c.instructions, longest)
        c.canonical = c.instructions
        c.others = c.cpus > 1

    @property
    def patience(self):
        """How often the CPU may still say that it waits for another one, and its turn goes on; and
        at which count of instructions it has last said so."""
        self._made()
        return self.engine.clock.passed_by, self.engine.clock.passed_by_at

    @patience.setter
    def patience(self, value):
        self._made()
        self.engine.clock.passed_by, self.engine.clock.passed_by_at = value

    def alone(self):
        """No other CPU has anything to do, until an interrupt line changes."""
        self._made()
        self.engine.clock.others = False

    def others_may_run(self):
        """An interrupt line has changed, or a CPU was started."""
        self._made()
        self.engine.clock.others = self.engine.clock.cpus > 1

    @property
    def begun(self):
        """Whether the CPU has executed something in its turn."""
        self._made()
        return self.engine.clock.instructions > self.engine.clock.turn_began

    def end_here(self):
        """The turn is over at the next canonical block start."""
        self._made()
        self.engine.clock.turn_end = self.engine.clock.instructions
        self.engine.clock.horizon = 0

    @property
    def longest(self):
        """Instructions of the longest turn of this round, the present one among them."""
        self._made()
        cdef Clock *c = &self.engine.clock
        return max(c.longest, c.instructions - c.turn_began)

    @property
    def clock(self):
        """What a snapshot has to keep of the turn: (began, end, longest before it, instructions of
        one that is not given away)."""
        self._made()
        cdef Clock *c = &self.engine.clock
        return c.turn_began, c.turn_end, c.longest, c.turn_length

    @clock.setter
    def clock(self, value):
        """Behind the count of instructions, and the skew."""
        self._made()
        cdef Clock *c = &self.engine.clock
        began, end, longest, length = value
        if not 0 < length <= MAX_TURN or end < began or longest > MAX_TURN:
            raise ValueError("a turn of no kind")
        c.turn_began, c.turn_end, c.longest, c.turn_length = began, end, longest, length
        c.still = c.turn_began + c.longest
        c.others = c.cpus > 1
        c.horizon = 0

    @property
    def stands(self):
        """Of the CPU in the engine: whether it stands in a block, or what is due there was done; and
        whether no interrupt is taken before its next one."""
        self._made()
        return bool(self.engine.clock.resumed), self.engine.clock.resume_at, bool(
            self.engine.clock.shadow)

    @stands.setter
    def stands(self, value):
        self._made()
        self.engine.clock.resumed, self.engine.clock.resume_at, self.engine.clock.shadow = value


cdef void watch_code(Clock *c) noexcept nogil:
    """From now on it is noted what code is translated of."""
    c.asks_translated = True


@cython.no_gc_clear
cdef class Moment:
    """All that the engine is at one moment, but memory: the registers of all CPUs, the clock and the turn.
    It is a good deal faster than to read and write registers by their names."""

    cdef Engine engine
    cdef void *contexts[MAX_CPUS]
    cdef CpuPart parts[MAX_CPUS]
    cdef uint64_t numbers[12]

    def __init__(self, Engine engine not None):
        cdef Clock *c = &engine.clock
        cdef uint32_t i
        if self.engine is not None:
            raise RuntimeError("a moment is kept once")
        engine._still()
        if c.frozen or c.count:
            raise MachineError("the machine is in the middle of an instruction")
        self.engine = engine
        for i in range(c.cpus):
            engine._ok("context", engine.context_alloc(engine.uc, &self.contexts[i]))
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
        """The engine is what it was; its memory is so already."""
        cdef Clock *c = &self.engine.clock
        cdef CpuPart *own
        cdef uint32_t i
        cdef void *context
        if self.engine is None:
            raise RuntimeError("a moment that was not kept")
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
        c.cut_at = c.horizon = c.heard = 0
        c.others = c.cpus > 1
        c.turns[0] += 1
        self.engine._ok("flush TLB", c.ctl(c.uc, ctl_word(CTL_TLB_FLUSH, 0, CTL_WRITE)))

    def translated_since(self):
        """Physical addresses of the pages of which code was translated since some moment was kept, or
        this was asked: where they were written to since, that is to be dropped."""
        cdef Clock *c = &self.engine.clock
        cdef Region *region
        cdef uint32_t i
        if self.engine is None:
            raise RuntimeError("a moment that was not kept")
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
