"""Several CPUs in one engine: which of them runs, and what time it is then; part of the engine
(``_engine.pyx`` includes it).

A CPU is a register file (a context of Unicorn's) and what the clock knows of it (``CpuPart``); it is in
the engine while it has its turn.  The CPUs of a round run at the same virtual time: a turn begins when
the one before it did, and time goes on where a CPU has run longer than all before it in the round.  To
everybody who looks, time stands still until then, and never goes back.
"""


cdef inline bint gives_away(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    """Whether the block ends with an instruction of a CPU that waits for another one (PAUSE): its
    turn ends there."""
    if c.cpus == 1:
        return False
    return ends_with_yield(c, address, size)


cdef bint ends_with_yield(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    cdef int i
    cdef uint32_t word
    cdef uint64_t end = address + size
    if end & 4095 == 0:
        return False  # the model may have cut it there
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
    """

    cdef Engine engine

    def __init__(self, Engine engine not None, uint32_t count, uint64_t length, yields=()):
        cdef uint32_t i
        cdef Clock *c = &engine.clock
        engine._still()
        if c.cpus != 1 or self.engine is not None:
            raise RuntimeError("CPUs are made once")
        if not 1 <= count <= MAX_CPUS or not 0 < length < 1 << 40 or len(yields) > MAX_YIELDS:
            raise ValueError(f"1 to {MAX_CPUS} CPUs are possible, and turns of an instruction or more")
        for i in range(count if count > 1 else 0):
            engine._ok("context", engine.context_alloc(engine.uc, &c.parts[i].context))
            engine._ok("context", c.context_save(engine.uc, c.parts[i].context))
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

    cdef int _ready(self, uint32_t number) except -1:
        if self.engine is None:
            raise RuntimeError("CPUs that were not made")
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
        c.cpu = number
        c.exceptions = 0
        c.turns[0] += 1
        if c.exchanging != NULL:
            c.exchanging(c.exchanging_data, True)
        return 0

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
        if number != c.cpu:
            self._load(number)
            self.engine._ok("flush TLB", c.ctl(c.uc, ctl_word(CTL_TLB_FLUSH, 0, CTL_WRITE)))
        begin_turn(c, c.instructions, longest)
        c.canonical = c.instructions
        c.others = c.cpus > 1

    def alone(self):
        """No other CPU has anything to do, until an interrupt line changes."""
        self.engine.clock.others = False

    def others_may_run(self):
        """An interrupt line has changed, or a CPU was started."""
        self.engine.clock.others = self.engine.clock.cpus > 1

    @property
    def begun(self):
        """Whether the CPU has executed something in its turn."""
        return self.engine.clock.instructions > self.engine.clock.turn_began

    def end_here(self):
        """The turn is over at the next canonical block start."""
        self.engine.clock.turn_end = self.engine.clock.instructions
        self.engine.clock.horizon = 0

    @property
    def longest(self):
        """Instructions of the longest turn of this round, the present one among them."""
        cdef Clock *c = &self.engine.clock
        return max(c.longest, c.instructions - c.turn_began)

    @property
    def clock(self):
        """What a snapshot has to keep of the turn: (began, end, longest before it)."""
        cdef Clock *c = &self.engine.clock
        return c.turn_began, c.turn_end, c.longest

    @clock.setter
    def clock(self, value):
        """Behind the count of instructions, and the skew."""
        cdef Clock *c = &self.engine.clock
        c.turn_began, c.turn_end, c.longest = value
        c.still = c.turn_began + c.longest
        c.others = c.cpus > 1
        c.horizon = 0

    @property
    def stands(self):
        """Of the CPU in the engine: whether it stands in a block, or what is due there was done; and
        whether no interrupt is taken before its next one."""
        return bool(self.engine.clock.resumed), self.engine.clock.resume_at, bool(
            self.engine.clock.shadow)

    @stands.setter
    def stands(self, value):
        self.engine.clock.resumed, self.engine.clock.resume_at, self.engine.clock.shadow = value
