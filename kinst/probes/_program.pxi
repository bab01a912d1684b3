"""Probes in user programs, which fire without breakpoints before an instruction is executed.

No breakpoint is written, because the page of the instruction is shared by all processes that run or
read the file.  A private page for the traced process would either be unknown to the kernel or be
missing for the others.  Instead, the CPU model calls ``on_instruction`` before the instructions of
an address range, and this function determines the process.

The address of a site in a program has the program's number in its highest byte, where an address in
the kernel has 0xff.

This file is part of the dispatcher; ``_dispatch.pyx`` includes it.
"""

cdef inline bint program_owns(const Site *s) noexcept nogil:
    return 0 < s.address >> PROGRAM_SHIFT <= MAX_PROGRAMS


cdef inline int program_number_of(const Site *s) noexcept nogil:
    """Return the number of a site's program, or 0 if the site is in the kernel."""
    return <int>(s.address >> PROGRAM_SHIFT) if program_owns(s) else 0


cdef inline uint64_t program_place_of(const Site *s) noexcept nogil:
    """Return the virtual address of a site, without the number of its program."""
    return s.address & (<uint64_t>1 << PROGRAM_SHIFT) - 1 if program_owns(s) else s.address


cdef int program_running(Dispatch *d) noexcept nogil:
    """Return the number, from 1, of the probed program that runs in user mode, or 0."""
    cdef Programs *p = &d.programs
    cdef Clock *c = d.clock
    cdef uint64_t process = 0
    cdef uint32_t number = 0
    cdef uint32_t flags = 0
    cdef uint8_t name[COMM]
    cdef int i
    if p.turn == c.turns[0]:
        return p.running
    p.turn, p.running = c.turns[0], 0
    if c.thread_word == NULL or not guest_read(
            c, c.thread_word[0] + p.process, &process, 8):
        return 0
    process = program_process(d, process)
    if not guest_read(
            c, process + p.number, &number, 4) or not guest_read(
            c, process + p.flags, &flags, 4) or not guest_read(c, process + p.name, name, COMM):
        return 0
    for i in range(p.count):
        if p.all[i].process == number and (flags & p.executed or not p.all[i].executed) and (
                program_same_name(name, p.all[i].name)):
            p.running = i + 1
            break
    return p.running


cdef uint64_t program_process(Dispatch *d, uint64_t process) noexcept nogil:
    """Return the process itself, or the ancestor whose memory it shares, as after vfork(2)."""
    cdef Programs *p = &d.programs
    cdef uint64_t space = 0
    cdef uint64_t parent = 0
    cdef uint64_t other = 0
    cdef int i
    for i in range(MOST_SHARING):
        if not (guest_read(d.clock, process + p.space, &space, 8) and
                guest_read(d.clock, process + p.parent, &parent, 8) and parent and
                guest_read(d.clock, parent + p.space, &other, 8)) or space != other:
            break
        process = parent
    return process


cdef bint program_same_name(const uint8_t *a, const uint8_t *b) noexcept nogil:
    cdef int i
    for i in range(COMM):
        if a[i] != b[i]:
            return False
        if a[i] == 0:
            break
    return True


cdef uint32_t program_behind_start(Dispatch *d, Site *s, uint64_t address) noexcept nogil:
    """Return the number of instructions before an address in the block in progress."""
    cdef Clock *c = d.clock
    cdef uint64_t at = c.address
    cdef uint32_t count = 0
    cdef uint32_t length, key_length
    cdef int32_t relative
    cdef uint8_t code[MAX_CODE]
    cdef uint8_t key[MAX_CODE]
    if at == address or c.count == 0:
        return 0
    if c.fixed:
        return <uint32_t>(address - at >> c.fixed_bits)
    if s.block == at:
        return s.behind
    while at < address and count < c.count:
        length = <uint32_t>min(MAX_CODE, address - at)
        if not guest_read(c, at, code, length):
            return 0
        memset(code + length, 0, MAX_CODE - length)
        length = d.split(code, MAX_CODE - 1, key, &key_length, &relative)
        if length == 0:
            return 0
        at += length
        count += 1
    if at != address:
        return 0  # the CPU model decodes the block differently: use the time at the block's start
    s.block, s.behind = c.address, count
    return count


cdef bint program_repeated(Dispatch *d, uint32_t site, uint64_t now) noexcept nogil:
    """Whether this is a repetition of a repeated instruction after the first repetition."""
    cdef Programs *p = &d.programs
    cdef bint again = p.repeating == site and now == p.repeated_at + 1
    p.repeating, p.repeated_at = site, now
    return again


cdef void program_left(Dispatch *d) noexcept nogil:
    """Record an instruction that an exception interrupts, so that its probes do not fire again.

    The instruction reached last is recorded, unless another one raised the exception.
    """
    cdef Programs *p = &d.programs
    cdef Clock *c = d.clock
    cdef uint64_t pc = register_read(c, c.pc_register) - c.pc_ahead
    if p.met == NONE or c.address != p.met_block or c.instructions != p.met_base or (
            pc != program_place_of(&d.sites[p.met])) or c.thread_word == NULL:
        return
    program_left_at(p, Left(c.thread_word[0], p.met, False, 0))
    p.met = NONE


cdef void program_left_at(Programs *p, Left left) noexcept nogil:
    """Record that a thread may leave an instruction before completing the instruction."""
    program_come_back_to(p, left.thread)
    if p.left == MAX_LEFT:
        memmove(&p.broken[0], &p.broken[1], (MAX_LEFT - 1) * sizeof(Left))
        p.left -= 1
    p.broken[p.left] = left
    p.left += 1


cdef Left program_come_back_to(Programs *p, uint64_t thread) noexcept nogil:
    """Remove and return the record of a thread's incomplete instruction.

    The record has site NONE if the thread has no incomplete instruction.
    """
    cdef int i
    cdef Left found
    for i in range(p.left):
        if p.broken[i].thread == thread:
            found = p.broken[i]
            p.left -= 1
            p.broken[i] = p.broken[p.left]
            return found
    return Left(thread, NONE, False, 0)


cdef bint program_goes_on_here(Dispatch *d, uint32_t site, uint64_t rest) noexcept nogil:
    """Whether the thread resumes an instruction that the thread had left incomplete.

    It must be the first instruction after the kernel, and a repeated instruction must have the
    expected number of repetitions left.
    """
    cdef Clock *c = d.clock
    cdef Left left
    if d.programs.left == 0:
        return False
    left = program_come_back_to(&d.programs, c.thread_word[0])
    return (left.site == site and c.address == program_place_of(&d.sites[site]) and
            c.instructions == c.program_began and
            (not left.repeats or rest == left.rest or rest == left.rest - 1))


cdef void program_forget_left(Programs *p) noexcept nogil:
    p.repeating = p.met = NONE
    p.left = 0


cdef void program_differs(Dispatch *d, int program, uint64_t address) noexcept with gil:
    cdef const Program *one = &d.programs.all[program - 1]
    name = (<bytes>one.name[:COMM]).partition(b"\0")[0].decode("utf-8", "replace")
    (<Dispatcher>d.owner).engine.failed(MachineError(
        f"process {one.process} ({name}): the code at {address:#x} differs from the file that its "
        "probes were created from"))


cdef bint program_cannot_decide(Dispatch *d, const Site *s) noexcept nogil:
    """Whether a jump will fault, so that it is still unknown whether probes at it fire.

    The jump reads its target from memory that the kernel has yet to provide; then it is executed
    again.
    """
    cdef const Template *t = &d.templates.all[s.template]
    cdef uint32_t i = s.first
    cdef uint64_t pc = 0
    if t.op != INDIRECT or t.extra or op_way(d, t, s, &pc):
        return False
    while i != NONE:
        if d.probes[i].high or d.probes[i].role == WAY_OUT:
            return True
        i = d.probes[i].next
    return False


cdef void on_instruction(void *uc, uint64_t address, uint32_t size, void *data) noexcept nogil:
    """Engine callback: an instruction in an address range with probes is about to be executed."""
    cdef Dispatch *d = <Dispatch *>data
    cdef Clock *c = d.clock
    cdef uint32_t i, behind
    cdef int program
    cdef uint64_t rest = 0
    cdef bint again
    cdef Site *s
    cdef uint8_t code[MAX_CODE]
    if c.frozen:
        return
    program = program_running(d)
    if program == 0:
        return
    i = table_find(d, address | <uint64_t>program << PROGRAM_SHIFT)
    if i == NONE or stops_at(c, address):
        return
    s = &d.sites[i]
    if not guest_read(c, address, code, s.length) or memcmp(code, s.code, s.length) != 0:
        if d.programs.all[program - 1].several:
            return
        program_differs(d, program, address)
        program_left_in_block(c, address, program_behind_start(d, s, address))
        return
    d.framed = False
    d.at = address
    if program_cannot_decide(d, s):
        return
    if c.instructions < d.programs.latest:
        program_forget_left(&d.programs)
    d.programs.latest = c.instructions
    behind = program_behind_start(d, s, address)
    d.programs.met, d.programs.met_block, d.programs.met_base = i, c.address, c.instructions
    if s.repeats:
        rest = register_read(c, d.number[d.counter])
    again = program_goes_on_here(d, i, rest)
    if s.repeats:
        again |= program_repeated(d, i, c.instructions + behind)
        if rest > 1:  # an interrupt may come after this repetition
            program_left_at(&d.programs, Left(c.thread_word[0], i, True, rest))
    if again:
        return
    c.instructions += behind
    firing_fire(d, s)
    c.instructions -= behind
    if d.stop:  # the handler has failed, so the run ends before this instruction
        program_left_in_block(c, address, behind)
        d.stop = False


cdef void program_left_in_block(Clock *c, uint64_t address, uint32_t behind) noexcept nogil:
    """End the run before the instruction that follows ``behind`` instructions of a block."""
    c.instructions += behind
    c.count = 0
    resume(c, address)


cdef uint32_t program_site(Dispatch *d, int program, uint64_t address, uint32_t template,
                              const uint8_t *code, uint32_t length, int32_t relative
                              ) except? 0xFFFFFFFF:
    if not 0 < program <= d.programs.count or address >> PROGRAM_SHIFT:
        raise ValueError("no program has this number, or the address is not a user address")
    cdef uint32_t site = table_site_at(d, address | <uint64_t>program << PROGRAM_SHIFT, template, code,
                                 length, relative)
    d.sites[site].repeats = d.templates.all[template].flags & REPEATS != 0
    return site


cdef list program_ranges(Dispatch *d):
    """Return the address ranges [begin, end] to hook, at most MAX_PROGRAM_HOOKS of them."""
    cdef uint32_t i
    places = sorted({program_place_of(&d.sites[i]) for i in range(d.site_count)
                     if program_owns(&d.sites[i]) and d.sites[i].first != NONE})
    if not places:
        return []
    gaps = sorted(((b - a, a, b) for a, b in zip(places, places[1:])), reverse=True)
    cuts = sorted(gap[1:] for gap in gaps[: MAX_PROGRAM_HOOKS - 1] if gap[0] > NEAR)
    begins = [places[0], *(b for _a, b in cuts)]
    ends = [*(a for a, _b in cuts), places[len(places) - 1]]
    return list(zip(begins, ends))
