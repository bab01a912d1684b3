# cython: language_level=3, boundscheck=True, cdivision=True
"""The native part of the providers: sites and probes by the million, and what a firing does.

A *site* is an instruction that may carry a breakpoint; *probes* are chained to it.  A *template* is
a verdict lowered to one operation (``kinst/code/verdict.py``, ``Op``), shared by all sites of one
encoding.  ``Dispatcher`` answers the engine's breakpoint exceptions: it finds the site, records the
firing, carries out the operation and sends the guest on, on the *direct* path at the breakpoint,
on the *guest* path at the kernel's seam.

The Python twin of the operations is ``Emulate.next_pc``; of the trampolines, the architecture's
``GuestTrap.trampoline``; of the seam, its ``enter`` and ``leave``.
"""

from bisect import bisect_left

cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from emu.unicorn._engine import EngineError
from emu.errors import MachineError
from kinst.code.shared import MAX_ROUNDS as _MAX_ROUNDS
from kinst.code.shared import NO_REGISTER as _NO_REGISTER
from kinst.code.shared import Relative, Trait
from kinst.shared import ProbeKind, TrapPath
from kinst.code.verdict import Op

from emu.unicorn._engine cimport (
    SLOT, STOP_IN_PLACE, Clock, Engine, defer, drop_translations, freeze, go_to, guest_read, guest_write,
    host_physical, host_stack, host_virtual, keep_footprint, native, register_read, register_write,
    request_stop, resume, wipe_footprint,
)

from kinst._action cimport ARGUMENTS, REGISTER, Action

cdef uint64_t NO_DATA = <uint64_t>-1 - 16

cdef enum:
    NEAR = 2048
    MAX_REGISTERS = 128
    MAX_CODE = 16
    RECENT = 1 << 14
    RECORDS = 1 << 16
    MAX_FLAGS = 5  # their combinations are bits of a 32-bit truth
    MAX_THREADS = 1024
    MANY = 64  # more patches than this drop all translations at once

cdef uint32_t NONE = 0xFFFFFFFF

# The numbers are Python's.
cdef int REFUSE = Op.REFUSE
cdef int COPY = Op.COPY
cdef int REWRITE = Op.REWRITE
cdef int JUMP = Op.JUMP
cdef int BRANCH_FLAGS = Op.BRANCH_FLAGS
cdef int BRANCH_COMPARE = Op.BRANCH_COMPARE
cdef int BRANCH_BIT = Op.BRANCH_BIT
cdef int BRANCH_COUNT = Op.BRANCH_COUNT
cdef int SET = Op.SET
cdef int NEXT = Op.NEXT
cdef int LINK = Op.LINK
cdef int CALL = Op.CALL
cdef int INDIRECT = Op.INDIRECT
cdef int RETURN = Op.RETURN
cdef int CHANGE_FLAGS = Op.CHANGE_FLAGS
cdef int READ_FLAGS = Op.READ_FLAGS
cdef int WRITE_FLAGS = Op.WRITE_FLAGS
cdef int LOAD_VECTOR = Op.LOAD_VECTOR

cdef int ABSOLUTE = Relative.ABSOLUTE
cdef int RELATIVE = Relative.RELATIVE
cdef int PAGE_RELATIVE = Relative.PAGE_RELATIVE
cdef int DISPLACEMENT = Relative.DISPLACEMENT

cdef int MAX_ROUNDS = _MAX_ROUNDS
cdef int ENDS_BLOCK = Trait.ENDS_BLOCK
cdef int STARTS_EXCLUSIVE = Trait.STARTS_EXCLUSIVE
cdef int ENDS_EXCLUSIVE = Trait.ENDS_EXCLUSIVE
cdef int PROLOGUE = Trait.PROLOGUE
cdef int RETURNS = Trait.RETURNS
cdef int LANDING = Trait.LANDING

cdef int GUEST = TrapPath.GUEST
cdef int DIRECT = TrapPath.DIRECT
cdef int DOUBLE = TrapPath.DOUBLE
cdef int AT_RETURN = ProbeKind.RETURN
cdef uint8_t NO_REGISTER = _NO_REGISTER

cdef struct Template:
    uint8_t op
    uint8_t a
    uint8_t b
    uint8_t c
    uint8_t n
    uint8_t relative
    uint8_t flags
    uint8_t code_length
    uint8_t has_data
    uint8_t code[MAX_CODE]
    uint32_t truth
    uint64_t target
    uint64_t extra

cdef struct Site:
    uint64_t address
    uint32_t template
    uint32_t first
    uint32_t slot  # index of its trampoline, or NONE
    int32_t relative  # of an encoding whose template leaves the displacement out
    uint8_t length
    uint8_t second  # offset of the trampoline's second breakpoint
    uint8_t patched
    uint8_t code[MAX_CODE]

cdef struct Probe:
    uint64_t count
    uint32_t site
    uint32_t next
    uint32_t function
    uint8_t provider
    uint8_t removed
    uint8_t told  # Python is told of its firings, whatever is done natively

# An instruction of a function that is looked at.
cdef struct Piece:
    uint64_t at
    uint32_t template
    int32_t relative
    uint32_t length


# What a key was found to be.
cdef struct Known:
    uint32_t template
    uint8_t length
    uint8_t key_length  # 0: nothing
    uint8_t key[MAX_CODE]

cdef struct Record:
    uint64_t time
    uint64_t skew  # virtual time beyond the instructions
    uint64_t arguments[ARGUMENTS]
    uint32_t probe

# How a decoder splits an instruction: its length, 0 when it is none; ``key`` gets what decides the
# verdict, ``relative`` the displacement that was left out of the key.
ctypedef uint32_t (*split_fn)(const uint8_t *code, uint32_t available, uint8_t *key,
                              uint32_t *key_length, int32_t *relative) noexcept nogil

cdef struct Dispatch:
    Clock *clock
    void *owner
    int path
    bint counting_only
    # registers: Unicorn's numbers, place in the trap frame (-1: none), restored by the kernel
    int count
    int number[MAX_REGISTERS]
    int place[MAX_REGISTERS]
    bint restored[MAX_REGISTERS]
    bint wide[MAX_REGISTERS]  # more than 64 bits: LOAD_VECTOR's only
    uint8_t arguments[ARGUMENTS]
    uint8_t pc
    uint8_t sp
    uint8_t status
    uint8_t link
    uint8_t result
    uint8_t frame_register
    uint8_t segment
    int flag_bits[8]
    int flag_count
    # the breakpoint
    uint32_t vector
    uint32_t bias
    bint called  # the seam is called and returns 0; else registers are set from the frame
    uint64_t frame_mask  # of the frame's status register, to mask interrupts in the trampoline
    bint mask_sets
    uint64_t cpu_mask  # the same of the CPU's
    uint64_t saved_mask
    int frame_size
    uint64_t seam
    uint64_t scratch  # a word that the kernel's path writes: its address and content
    uint64_t scratch_value
    uint64_t flags_if  # amd64: RFLAGS.IF, to choose a per-thread trampoline
    # trampolines
    uint8_t *slots
    uint64_t slot_base
    uint64_t slot_count
    uint32_t *slot_site
    uint64_t *slot_used
    uint64_t slot_hint
    bint threads
    uint64_t thread[MAX_THREADS]
    uint32_t thread_count
    uint32_t thread_slot
    bint returns_by_jump
    uint8_t jump[8]  # to the address behind it
    uint32_t jump_length
    uint8_t breakpoint[4]
    uint32_t breakpoint_length
    uint8_t short_breakpoint[2]
    uint8_t short_nop[2]
    # tables
    Template *templates
    uint32_t template_count
    uint32_t template_room
    Site *sites
    uint32_t site_count
    uint32_t site_room
    Probe *probes
    uint32_t probe_count
    uint32_t probe_room
    uint32_t *hash
    uint64_t hash_mask
    # firings
    Record *records
    uint32_t record_count
    uint64_t firings
    Action action
    # the firing in progress
    uint8_t *frame[2]
    uint32_t frame_split
    bint framed
    uint64_t at
    bint firing  # Python is told of it
    bint stop  # that failed: the instruction is not carried out


# -- registers of the interrupted code ---------------------------------------------------------

cdef inline uint64_t *field(Dispatch *d, int place) noexcept nogil:
    if <uint32_t>place < d.frame_split:
        return <uint64_t *>(d.frame[0] + place)
    return <uint64_t *>(d.frame[1] + (<uint32_t>place - d.frame_split))


cdef uint64_t get(Dispatch *d, uint8_t r) noexcept nogil:
    if r == NO_REGISTER:
        return 0
    if r == d.pc:
        return d.at
    if d.wide[r]:
        return 0
    if d.framed and d.place[r] >= 0:
        return field(d, d.place[r])[0]
    return register_read(d.clock, d.number[r])


cdef void put(Dispatch *d, uint8_t r, uint64_t value) noexcept nogil:
    cdef Clock *c = d.clock
    if r == NO_REGISTER or d.wide[r]:
        return
    if not d.framed:
        register_write(c, d.number[r], value)
    elif d.place[r] < 0:
        return  # riscv64's zero
    elif d.restored[r]:
        field(d, d.place[r])[0] = value
    else:
        defer(c, d.number[r], value)  # there is room for all that have a number here


cdef bint set_frame(Dispatch *d, uint64_t address) noexcept nogil:
    """Find the trap frame on the host; it may lie on two pages."""
    cdef uint32_t room = <uint32_t>(4096 - (address & 4095))
    d.frame[0] = host_stack(d.clock, address)
    if d.frame[0] == NULL:
        d.frame[0] = host_virtual(d.clock, address)
    d.frame[1] = NULL
    d.frame_split = room
    if d.frame[0] == NULL:
        return False
    if room < <uint32_t>d.frame_size:
        d.frame[1] = host_stack(d.clock, address + room)
        if d.frame[1] == NULL:
            d.frame[1] = host_virtual(d.clock, address + room)
        return d.frame[1] != NULL
    return True


# -- operations ------------------------------------------------------------------------------------

cdef inline uint64_t target_of(const Template *t, const Site *s) noexcept nogil:
    if t.relative == RELATIVE:
        return t.target + s.address + <int64_t>s.relative
    if t.relative == PAGE_RELATIVE:
        return t.target + (s.address & ~<uint64_t>0xFFF) + <int64_t>s.relative
    if t.relative == DISPLACEMENT:
        return t.target + <int64_t>s.relative
    return t.target


cdef bint flag_truth(Dispatch *d, uint32_t truth) noexcept nogil:
    cdef uint64_t flags = get(d, d.status)
    cdef int i
    cdef uint32_t index = 0
    for i in range(d.flag_count):
        index |= <uint32_t>(flags >> d.flag_bits[i] & 1) << i
    return truth >> index & 1


cdef bint compared(Dispatch *d, const Template *t) noexcept nogil:
    cdef uint64_t mask = ~<uint64_t>0 if t.extra == 64 else (<uint64_t>1 << t.extra) - 1
    cdef uint64_t x = get(d, t.a) & mask
    cdef uint64_t y = get(d, t.b) & mask
    cdef bint truth
    if t.n < 2:
        truth = x == y
    elif t.n < 6:
        truth = <int64_t>x < <int64_t>y
    else:
        truth = x < y
    return truth != (t.n & 1)


cdef bint push(Dispatch *d, uint64_t value) noexcept nogil:
    cdef uint64_t sp = get(d, d.sp) - 8
    if not guest_write(d.clock, sp, &value, 8):
        return False
    put(d, d.sp, sp)
    return True


cdef bint carry_out(Dispatch *d, const Template *t, const Site *s, uint64_t *pc) noexcept nogil:
    """Emulate: change registers and memory, give the next pc; false: memory cannot be reached, and
    nothing was changed."""
    cdef uint64_t after = s.address + s.length
    cdef uint64_t target = target_of(t, s)
    cdef uint64_t value, mask
    cdef uint8_t vector[16]
    if t.op == JUMP:
        pc[0] = target
    elif t.op == BRANCH_FLAGS:
        pc[0] = target if flag_truth(d, t.truth) else after
    elif t.op == BRANCH_COMPARE:
        pc[0] = target if compared(d, t) else after
    elif t.op == BRANCH_BIT:
        pc[0] = target if (get(d, t.a) >> t.n & 1) == t.extra else after
    elif t.op == BRANCH_COUNT:
        mask = ~<uint64_t>0 if t.extra == 64 else (<uint64_t>1 << t.extra) - 1
        value = get(d, t.a) & mask
        if t.n:
            value = (value - 1) & mask
            put(d, t.a, value)
            pc[0] = target if value != 0 and flag_truth(d, t.truth) else after
        else:
            pc[0] = target if value == 0 else after
    elif t.op == SET:
        put(d, t.a, target)
        pc[0] = after
    elif t.op == NEXT:
        pc[0] = after
    elif t.op == LINK:
        if t.b != NO_REGISTER:
            target = get(d, t.b) + t.extra
        pc[0] = target & ~<uint64_t>1 if t.n else target
        put(d, t.a, after)
    elif t.op == CALL:
        if not push(d, after):
            return False
        pc[0] = target
    elif t.op == INDIRECT:
        if t.extra:  # a register, not memory
            target = get(d, t.a)
        else:
            target += get(d, t.a) + get(d, t.b) * t.n + get(d, t.c)
            if not guest_read(d.clock, target, &target, 8):
                return False
        if t.truth and not push(d, after):
            return False
        pc[0] = target
    elif t.op == RETURN:
        value = get(d, d.sp)
        if not guest_read(d.clock, value, pc, 8):
            return False
        put(d, d.sp, value + 8 + t.extra)
    elif t.op == CHANGE_FLAGS:
        put(d, d.status, (get(d, d.status) | t.target) & ~t.extra)
        pc[0] = after
    elif t.op == READ_FLAGS:
        put(d, t.a, get(d, d.status) & t.extra)
        pc[0] = after
    elif t.op == WRITE_FLAGS:
        put(d, d.status, get(d, d.status) & ~t.extra | get(d, t.a) & t.extra)
        pc[0] = after
    elif t.op == LOAD_VECTOR:
        memset(vector, 0, sizeof(vector))
        if not guest_read(d.clock, target, vector, t.n):
            return False
        if t.a != NO_REGISTER:  # the kernel's breakpoint path leaves vectors alone
            d.clock.reg_write(d.clock.uc, d.number[t.a], vector)
        pc[0] = after
    else:
        return False
    return True


# -- trampolines -----------------------------------------------------------------------------------

cdef uint32_t build(Dispatch *d, Site *s, uint64_t at, uint8_t *out) noexcept nogil:
    """A trampoline for address ``at``; the offset of its end, where the second breakpoint is."""
    cdef const Template *t = &d.templates[s.template]
    cdef uint32_t n = s.length
    cdef uint32_t data
    cdef int32_t displacement
    cdef uint64_t value
    cdef uint32_t i
    for i in range(SLOT):
        out[i] = d.breakpoint[i % d.breakpoint_length]
    if t.op == REWRITE and t.code_length:
        n = t.code_length
        memcpy(out, t.code, n)
    else:
        memcpy(out, s.code, n)
        if t.op == REWRITE:
            displacement = <int32_t>(target_of(t, s) - (at + n))
            memcpy(out + t.n, &displacement, 4)
    if d.returns_by_jump:
        memcpy(out + n, d.jump, d.jump_length)
        value = s.address + s.length
        memcpy(out + n + d.jump_length, &value, 8)
        return n
    if n == 2:
        memcpy(out + 2, d.short_nop, 2)
        n = 4
    memcpy(out + n, d.breakpoint, d.breakpoint_length)
    if t.has_data:
        data = (n + 4 + 7) & ~<uint32_t>7
        memset(out + n + 4, 0, data - n - 4)
        value = target_of(t, s)
        memcpy(out + data, &value, 8)
    return n


cdef uint64_t thread_slot(Dispatch *d) noexcept nogil:
    """FreeBSD's own: the trampoline of the thread, or the CPU's when interrupts are off."""
    cdef uint64_t thread = 0
    cdef uint32_t i
    if not get(d, d.status) & d.flags_if:
        return d.thread_slot
    guest_read(d.clock, get(d, d.segment), &thread, 8)
    for i in range(d.thread_count):
        if d.thread[i] == thread:
            return d.thread_slot + 1 + i
    if d.thread_count == MAX_THREADS:
        crowded(d)
        return d.thread_slot
    d.thread[d.thread_count] = thread
    d.thread_count += 1
    return d.thread_slot + d.thread_count


cdef uint64_t trampoline(Dispatch *d, Site *s) noexcept nogil:
    """Where the displaced instruction is to be executed."""
    cdef uint8_t code[SLOT]
    cdef uint64_t slot, at
    if not d.threads:
        return d.slot_base + <uint64_t>s.slot * SLOT
    slot = thread_slot(d)
    at = d.slot_base + slot * SLOT
    build(d, s, at, code)
    if memcmp(d.slots + slot * SLOT, code, SLOT) != 0:
        memcpy(d.slots + slot * SLOT, code, SLOT)
        drop_translations(d.clock, at, at + SLOT)
    return at


# -- firing ----------------------------------------------------------------------------------------

cdef inline uint32_t find(Dispatch *d, uint64_t address) noexcept nogil:
    cdef uint64_t i
    if d.hash == NULL:
        return NONE
    i = (address * <uint64_t>0x9E3779B97F4A7C15 >> 24) & d.hash_mask
    while d.hash[i] != NONE:
        if d.sites[d.hash[i]].address == address:
            return d.hash[i]
        i = (i + 1) & d.hash_mask
    return NONE


cdef inline uint32_t find_second(Dispatch *d, uint64_t address) noexcept nogil:
    """The site whose trampoline ends in the breakpoint at ``address``."""
    cdef uint64_t slot
    cdef uint32_t i
    if address < d.slot_base or d.slots == NULL:
        return NONE
    slot = (address - d.slot_base) // SLOT
    if slot >= d.slot_count or d.returns_by_jump:
        return NONE
    i = d.slot_site[slot]
    if i == NONE or address != d.slot_base + slot * SLOT + d.sites[i].second:
        return NONE
    return i


cdef void full(Dispatch *d) noexcept with gil:
    (<Dispatcher>d.owner).spill()


cdef void tell(Dispatch *d, uint32_t probe) noexcept with gil:
    (<Dispatcher>d.owner).told(probe)


cdef void crowded(Dispatch *d) noexcept with gil:
    (<Dispatcher>d.owner).engine.failed(MachineError(
        f"more than {MAX_THREADS} threads take breakpoints: there is no trampoline for another; "
        "give --trampolines=probe"))


cdef void unreadable(Dispatch *d) noexcept with gil:
    (<Dispatcher>d.owner).engine.failed(MachineError(
        f"the kernel's word at {d.scratch:#x}, where a breakpoint that is no probe's goes on, "
        "cannot be read"))


cdef uint64_t argument(void *source, uint32_t number) noexcept nogil:
    """An argument of the function that is interrupted, or what it returns."""
    cdef Dispatch *d = <Dispatch *>source
    if number >= REGISTER:
        return get(d, <uint8_t>(number - REGISTER)) if number - REGISTER < <uint32_t>d.count else 0
    return get(d, d.arguments[number] if number < ARGUMENTS else d.result)


cdef void act(Dispatch *d, uint32_t probe) noexcept nogil:
    """Carry the action of a firing out, without Python."""
    d.firing = True
    if d.action.run(d.action.data, probe, argument, d, d.clock.instructions + d.clock.skew):
        action_failed(d)
    d.firing = False


cdef void action_failed(Dispatch *d) noexcept with gil:
    (<Dispatcher>d.owner).acted()


cdef void keep(Dispatch *d, uint32_t probe) noexcept nogil:
    """Record a firing."""
    cdef Record *r = &d.records[d.record_count]
    cdef uint32_t k
    r.probe = probe
    r.time = d.clock.instructions
    r.skew = d.clock.skew
    for k in range(ARGUMENTS):
        r.arguments[k] = get(d, d.arguments[k])
    if d.probes[probe].provider == AT_RETURN:
        r.arguments[1] = get(d, d.result)
    d.record_count += 1
    if d.record_count == RECORDS:
        full(d)


cdef void fire(Dispatch *d, const Site *s) noexcept nogil:
    cdef uint32_t i = s.first
    while i != NONE:
        d.probes[i].count += 1
        d.firings += 1
        if d.action.run != NULL:
            if d.records != NULL:
                keep(d, i)
            act(d, i)
            if d.probes[i].told:
                tell(d, i)
        elif not d.counting_only:
            if d.records != NULL:
                keep(d, i)
            else:
                tell(d, i)
        i = d.probes[i].next


cdef bint emulated(const Template *t) noexcept nogil:
    return t.op > REWRITE


cdef void displaced(Dispatch *d, Site *s, uint64_t slot) noexcept nogil:
    """Tell the clock that the instruction will be executed in a trampoline."""
    cdef Clock *c = d.clock
    c.detour.slot = slot
    c.detour.site = s.address
    c.detour.slot_shared = d.threads
    c.detour.slot_ended = False
    c.detour.site_length = s.length
    c.detour.slot_entries = 0
    c.detour.at = s.address + s.length if d.returns_by_jump else 0
    c.detour.resumed = True


cdef void in_place(Dispatch *d, const Site *s) noexcept nogil:
    """The instruction cannot be emulated (it will fault): execute it where it is."""
    cdef Clock *c = d.clock
    c.frozen = False
    c.moved = s.address
    resume(c, s.address)
    request_stop(c, STOP_IN_PLACE)


cdef void go_on(Dispatch *d, uint32_t index) noexcept nogil:
    """Fire, and send the guest on: registers are the CPU's."""
    cdef Clock *c = d.clock
    cdef Site *s = &d.sites[index]
    cdef const Template *t = &d.templates[s.template]
    cdef uint64_t pc = 0
    d.framed = False
    d.at = s.address
    fire(d, s)
    s = &d.sites[index]  # Python was told, and may have made a template
    t = &d.templates[s.template]
    if d.stop:
        d.stop = False
        c.frozen = False
        c.moved = s.address
        resume(c, s.address)
        return
    if emulated(t):
        if not carry_out(d, t, s, &pc):
            in_place(d, s)
            return
        c.detour.slot = 0
        c.detour.site = s.address
        c.detour.at = pc
        c.detour.resumed = not t.flags & ENDS_BLOCK
    else:
        pc = trampoline(d, s)
        displaced(d, s, pc)
    go_to(c, pc)


cdef void behind(Dispatch *d, const Site *s) noexcept nogil:
    """The displaced instruction is done, and its trampoline's breakpoint is handled where it is."""
    cdef Clock *c = d.clock
    c.detour.at = s.address + s.length
    c.detour.sp_register = 0  # no return path of the kernel's leads there
    c.detour.resumed = True
    go_to(c, c.detour.at)


cdef bint at_direct(Dispatch *d, uint64_t pc) noexcept nogil:
    cdef Clock *c = d.clock
    cdef uint32_t i = find(d, pc)
    if i == NONE or not d.sites[i].patched:
        return False
    freeze(c)
    go_on(d, i)
    return True


cdef void answer(Dispatch *d, uint64_t value) noexcept nogil:
    """What the function at the seam gives back; its own instruction returns."""
    register_write(d.clock, d.number[d.result], value)


cdef void decline(Dispatch *d) noexcept nogil:
    """Not ours: the kernel does what it does without us."""
    cdef uint64_t pc = 0
    if d.called:
        answer(d, 1)
    elif guest_read(d.clock, d.scratch, &pc, 8):
        go_to(d.clock, pc)
    else:
        unreadable(d)


cdef void unwind(Dispatch *d) noexcept nogil:
    """Make the CPU's registers those of the trap frame, as before the breakpoint."""
    cdef int r
    for r in range(d.count):
        if d.place[r] >= 0 and r != d.pc:
            register_write(d.clock, d.number[r], field(d, d.place[r])[0])
    wipe_footprint(d.clock)


cdef void mask(Dispatch *d) noexcept nogil:
    """Mask interrupts in the trampoline, until its breakpoint has come to the seam."""
    cdef Clock *c = d.clock
    cdef uint64_t *status = field(d, d.place[d.status])
    d.saved_mask = status[0] & d.frame_mask
    status[0] = status[0] | d.frame_mask if d.mask_sets else status[0] & ~d.frame_mask
    c.detour.status_register = d.number[d.status]
    c.detour.status_bits = d.cpu_mask
    c.detour.status_value = d.cpu_mask if d.saved_mask else 0


cdef void at_seam_called(Dispatch *d) noexcept nogil:
    cdef Clock *c = d.clock
    cdef uint64_t pc = field(d, d.place[d.pc])[0]
    cdef uint64_t *status
    cdef uint32_t i = find_second(d, pc)
    cdef Site *s
    cdef const Template *t
    d.framed = True
    d.at = pc
    c.detour.sp_register = d.number[d.sp]
    c.detour.sp = field(d, d.place[d.sp])[0]
    if i != NONE:  # on the double path only
        s = &d.sites[i]
        status = field(d, d.place[d.status])
        status[0] = status[0] & ~d.frame_mask | d.saved_mask
        pc = s.address + s.length
        c.detour.at = pc
        c.detour.resumed = True
        c.detour.status_bits = 0
    else:
        i = find(d, pc)
        if i == NONE or not d.sites[i].patched:
            decline(d)
            return
        fire(d, &d.sites[i])
        s = &d.sites[i]  # Python was told, and may have made a template
        t = &d.templates[s.template]
        if d.stop:
            d.stop = False
            unwind(d)
            c.frozen = False
            c.moved = s.address
            resume(c, s.address)
            return
        if emulated(t):
            c.detour.slot = 0
            c.detour.site = s.address
            if not carry_out(d, t, s, &pc):
                unwind(d)
                in_place(d, s)
                return
            c.detour.at = pc
            c.detour.resumed = not t.flags & ENDS_BLOCK
        else:
            pc = d.slot_base + <uint64_t>s.slot * SLOT
            displaced(d, s, pc)
            if d.path == DOUBLE:
                mask(d)
    field(d, d.place[d.pc])[0] = pc
    answer(d, 0)


cdef void at_seam_jumped(Dispatch *d) noexcept nogil:
    """The registers are set from the frame, as a module's code behind the seam would do."""
    cdef Clock *c = d.clock
    cdef uint32_t i = find(d, field(d, d.place[d.pc])[0] - d.bias)
    if i == NONE or not d.sites[i].patched:
        decline(d)
        return
    unwind(d)
    guest_write(c, d.scratch, &d.scratch_value, 8)
    go_on(d, i)


cdef void recursion(Dispatch *d, uint64_t pc) noexcept with gil:
    d.clock.frozen = False
    d.clock.detour.footprint = False
    (<Dispatcher>d.owner).stuck(pc)


cdef bint framed(Dispatch *d) noexcept nogil:
    """At the seam: find the trap frame; false: there is none."""
    d.framed = False
    d.at = d.seam
    return set_frame(d, register_read(d.clock, d.number[d.frame_register]))


cdef void on_seam(void *data) noexcept nogil:
    """The kernel has called the seam."""
    cdef Dispatch *d = <Dispatch *>data
    if framed(d):
        at_seam_called(d)
    else:
        answer(d, 1)


cdef bint at_guest(Dispatch *d, uint64_t pc) noexcept nogil:
    cdef Clock *c = d.clock
    cdef uint32_t i
    if pc == d.seam and not d.called:
        if not framed(d):
            return False
        at_seam_jumped(d)
        return True
    i = find(d, pc)
    if i != NONE and d.sites[i].patched:
        if c.frozen:
            recursion(d, pc)
            return True
        freeze(c)
    elif find_second(d, pc) == NONE:
        return False
    keep_footprint(c, register_read(c, d.number[d.sp]))
    return c.enter(c, pc)


cdef bint on_trap(void *data, uint32_t vector) noexcept nogil:
    """The engine's breakpoint exception."""
    cdef Dispatch *d = <Dispatch *>data
    cdef uint64_t pc
    cdef uint32_t second
    if vector != d.vector:
        return False
    pc = register_read(d.clock, d.number[d.pc]) - d.bias
    second = find_second(d, pc)
    if second != NONE and d.path != DOUBLE:
        behind(d, &d.sites[second])
        return True
    return at_direct(d, pc) if d.path == DIRECT else at_guest(d, pc)


cdef list merged(list ranges):
    out = []
    for begin, end in sorted(ranges):
        if out and begin <= out[-1][1]:
            out[-1] = out[-1][0], max(end, out[-1][1])
        else:
            out.append((begin, end))
    return out


@cython.no_gc_clear  # the engine is needed to the end, to be told that nobody listens
cdef class Dispatcher:
    """Sites and probes of one machine.

    :param engine: the machine's.
    :param shape: what the architecture is like (``kinst/code/lowering.py``, ``Shape``).
    :param classify: gives the number of a template for (bytes, address).
    """

    cdef Dispatch d
    cdef Engine engine
    cdef split_fn split
    cdef object classify
    cdef dict known
    cdef Known *recent  # of ``known``, those met last, by a hash of the key
    cdef object shape
    cdef public object fire
    cdef public object recursion
    cdef public object literal  # what an instruction reads relative to itself (``GuestTrap.literal``)
    cdef public object sink  # is called when there are many records
    cdef list drained, drained_skews
    cdef readonly list skews  # of the records given last: virtual time beyond the instructions
    cdef object action  # keeps what is called
    cdef object failure
    cdef uint64_t rest  # bytes of the function looked at last that are no instruction

    def __cinit__(self):
        memset(&self.d, 0, sizeof(Dispatch))
        self.recent = <Known *>calloc(RECENT, sizeof(Known))
        if self.recent == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.engine is not None and self.engine.clock.trap_data == <void *>&self.d:
            self.engine.clock.trap = NULL
            self.engine.clock.seam_call = NULL
        free(self.recent)
        free(self.d.templates)
        free(self.d.sites)
        free(self.d.probes)
        free(self.d.hash)
        free(self.d.records)
        free(self.d.slot_site)
        free(self.d.slot_used)

    def __init__(self, Engine engine, shape, classify):
        cdef Dispatch *d = &self.d
        cdef int i
        if d.owner != NULL:
            raise RuntimeError("a dispatcher is made once")
        self.engine = engine  # None: to look at code, not to probe it
        self.classify = classify
        self.known = {}
        self.drained, self.drained_skews, self.skews = [], [], []
        self.split = <split_fn>PyCapsule_GetPointer(shape.split, "kinst.split")
        if engine is not None:
            d.clock = &engine.clock
        d.owner = <void *>self
        if not 0 < len(shape.registers) <= MAX_REGISTERS:
            raise ValueError("too many registers")
        d.count = len(shape.registers)
        d.frame_size = shape.frame_size
        if not 0 < d.frame_size <= 4096:
            raise ValueError("a trap frame is of at most 4096 bytes")
        for i, (number, place, restored) in enumerate(shape.registers):
            d.number[i] = number
            d.place[i] = place
            d.restored[i] = restored
            if not -1 <= place <= d.frame_size - 8:
                raise ValueError("a register lies outside the trap frame")
            if engine is not None:
                d.wide[i] = not self.is_narrow(number)
        for i in range(ARGUMENTS):
            d.arguments[i] = self.known_register(shape.arguments[i])
        d.pc, d.sp, d.status = (
            self.known_register(r) for r in (shape.pc, shape.sp, shape.status))
        d.link, d.result, d.frame_register = (
            self.known_register(r) for r in (shape.link, shape.result, shape.frame))
        d.segment = self.known_register(shape.segment)
        if len(shape.flag_bits) > MAX_FLAGS or any(not 0 <= b < 64 for b in shape.flag_bits):
            raise ValueError("too many flags")
        d.flag_count = len(shape.flag_bits)
        for i in range(d.flag_count):
            d.flag_bits[i] = shape.flag_bits[i]
        d.called = shape.called
        if d.called and (d.place[d.pc] < 0 or d.place[d.sp] < 0 or d.place[d.status] < 0):
            raise ValueError("the trap frame lacks pc, sp or status")
        d.frame_mask, d.mask_sets, d.cpu_mask = shape.frame_mask, shape.mask_sets, shape.cpu_mask
        d.flags_if = shape.flags_if
        d.returns_by_jump = not shape.second_breakpoint
        if len(shape.jump) > 8 or len(shape.short_nop) > 2:
            raise ValueError("too long a jump")
        d.jump_length = len(shape.jump)
        for i in range(len(shape.jump)):
            d.jump[i] = shape.jump[i]
        self.shape = shape
        self.choose(GUEST)
        for i in range(len(shape.short_nop)):
            d.short_nop[i] = shape.short_nop[i]

    def choose(self, int path):
        """The breakpoints of a path: 0 guest, 1 direct, 2 double."""
        cdef Dispatch *d = &self.d
        cdef int i
        self.unchanging()
        if path not in (GUEST, DIRECT, DOUBLE):
            raise ValueError("a path is 0, 1 or 2")
        if self.d.clock != NULL and self.d.clock.trap_data == <void *>&self.d:
            raise RuntimeError("breakpoints are answered: deafen the dispatcher first")
        kind = self.shape.breakpoints[path == DIRECT]
        if not 0 < len(kind.code) <= 4 or len(kind.short) > 2:
            raise ValueError("a breakpoint is of one to four bytes, a short one of at most two")
        d.path = path
        d.vector = kind.vector
        d.bias = kind.bias
        d.breakpoint_length = len(kind.code)
        for i in range(len(kind.code)):
            d.breakpoint[i] = kind.code[i]
        for i in range(len(kind.short)):
            d.short_breakpoint[i] = kind.short[i]

    cdef bint is_narrow(self, int number) except? False:
        """Whether a register has at most 64 bits."""
        try:
            self.engine.read(number)
        except EngineError:
            return False
        return True

    cdef int known_register(self, int register) except -1:
        if not 0 <= register < self.d.count:
            raise ValueError(f"there is no register {register}")
        return register

    # -- templates ----------------------------------------------------------------------------

    def add_template(self, int op, int a, int b, int c, int n, int relative, int flags,
                     uint32_t truth, uint64_t target, uint64_t extra, bytes code, bint has_data):
        """:return: its number."""
        cdef Dispatch *d = &self.d
        cdef Template *t
        cdef void *more
        cdef uint64_t room
        if d.template_count == d.template_room:
            room = d.template_room * 2 if d.template_room else 1024
            more = realloc(d.templates, room * sizeof(Template))
            if more == NULL:
                raise MemoryError
            d.templates = <Template *>more
            d.template_room = <uint32_t>room
        if len(code) > MAX_CODE:
            raise ValueError("too much code")
        for register in (a, b, c):
            if register != NO_REGISTER:
                self.known_register(register)
        if not REFUSE <= op <= LOAD_VECTOR or not ABSOLUTE <= relative <= DISPLACEMENT:
            raise ValueError("no such operation")
        if op == LOAD_VECTOR and not 0 <= n <= 16 or op == BRANCH_BIT and not 0 <= n < 64 or (
                op == REWRITE and len(code) and n + 4 > SLOT) or not 0 <= n <= 0xFF:
            raise ValueError("no such operand")
        if op in (BRANCH_COMPARE, BRANCH_COUNT) and not 0 < extra <= 64:
            raise ValueError("a comparison is of 1 to 64 bits")
        t = &d.templates[d.template_count]
        memset(t, 0, sizeof(Template))
        t.op, t.a, t.b, t.c, t.n = op, a, b, c, n
        t.relative, t.flags, t.truth, t.target, t.extra = relative, flags, truth, target, extra
        t.code_length = len(code)
        t.has_data = has_data
        memcpy(t.code, <const char *>code, len(code))
        d.template_count += 1
        return d.template_count - 1

    cdef int64_t template_of(self, const uint8_t *code, uint32_t available, uint64_t address,
                             uint32_t *length, int32_t *relative) except -2:
        """The number of the template of an instruction; -1: it is none."""
        cdef uint8_t key[MAX_CODE]
        cdef uint32_t key_length = 0
        cdef uint32_t hashed = 2166136261  # FNV-1a
        cdef uint32_t i
        cdef Known *recent
        cdef bytes k
        self.made()
        length[0] = self.split(code, available, key, &key_length, relative)
        if length[0] == 0:
            return -1
        for i in range(key_length):
            hashed = (hashed ^ key[i]) * 16777619
        recent = &self.recent[(hashed ^ hashed >> 15) % RECENT]
        if recent.key_length == key_length and memcmp(recent.key, key, key_length) == 0:
            length[0] = recent.length
            return recent.template if recent.length <= available else -1
        k = key[:key_length]
        found = self.known.get(k)
        if found is None:
            found = self.classify(bytes(code[:min(available, 15)]), length[0], relative[0])
            self.known[k] = found
        if not 0 <= found[0] < self.d.template_count or not 0 < found[1] <= 15:
            raise ValueError("the tables gave no template")
        length[0] = found[1]
        recent.template, recent.length, recent.key_length = found[0], length[0], key_length
        memcpy(recent.key, key, key_length)
        return found[0] if length[0] <= available else -1

    # -- functions ----------------------------------------------------------------------------

    cdef uint64_t pieces(self, uint64_t address, const uint8_t[::1] code, uint64_t start,
                         uint64_t size, Piece **found, list data) except? <uint64_t>-1:
        """The instructions of a function, around the data that they read (``kinst/code/listing.py`` says
        how, in Python).

        :param found: an array, to be freed.
        :param data: gets [begin, end) offsets of the data.
        :return: how many.
        """
        cdef uint64_t count
        cdef int round_
        if size > <uint64_t>code.shape[0] or start > <uint64_t>code.shape[0] - size:
            raise ValueError("the function lies outside the memory given")
        before = []
        for round_ in range(MAX_ROUNDS):
            ranges = []
            count = self.walk(address, code, start, size, found, data, ranges)
            before = list(data)
            data[:] = merged(ranges)
            if data == before:
                return count
        data[:] = merged(before + data)
        return self.walk(address, code, start, size, found, data, [])

    cdef uint64_t walk(self, uint64_t address, const uint8_t[::1] code, uint64_t start,
                       uint64_t size, Piece **found, list data, list ranges) except? <uint64_t>-1:
        """The instructions around ``data``; what they read becomes ``ranges``."""
        cdef Piece *pieces
        cdef void *more
        cdef uint64_t count = 0
        cdef uint64_t room = 64
        cdef uint64_t at = 0
        cdef uint64_t begin, end, target
        cdef uint32_t length = 0
        cdef int32_t relative = 0
        cdef int64_t template
        cdef Site s
        cdef const Template *t
        cdef bint asks
        free(found[0])
        pieces = found[0] = <Piece *>malloc(room * sizeof(Piece))
        if pieces == NULL:
            raise MemoryError
        number = 0
        begin, end = data[0] if data else (NO_DATA, NO_DATA)
        while at < size:
            template = self.template_of(&code[start + at], <uint32_t>min(size - at, 15),
                                        address + at, &length, &relative)
            while end <= at:
                number += 1
                begin, end = data[number] if number < len(data) else (NO_DATA, NO_DATA)
            if at + (length if template >= 0 else 1) > begin:
                at = end
                continue
            if template < 0:
                break
            if count == room:
                room *= 2
                more = realloc(pieces, room * sizeof(Piece))
                if more == NULL:
                    raise MemoryError
                pieces = found[0] = <Piece *>more
            pieces[count] = Piece(at, <uint32_t>template, relative, length)
            count += 1
            t = &self.d.templates[template]
            asks = t.op == REFUSE and relative != 0
            if (t.relative == RELATIVE or t.relative == PAGE_RELATIVE) and (
                    t.op == REWRITE or t.op == LOAD_VECTOR or t.op == SET or t.op == NEXT
                    or t.op == INDIRECT):
                s.address, s.relative = address + at, relative
                target = target_of(t, &s)
                # A part of the address may come from the next instruction.
                asks = target + NEAR - address < size + 2 * NEAR
            if asks:
                self.read_at(address, size, at, bytes(
                    code[start + at : min(start + at + 16, start + size)]), ranges)
            at += length
        self.rest = size - at if at < size else 0
        return count

    cdef int read_at(self, uint64_t address, uint64_t size, uint64_t at, bytes code,
                     list ranges) except -1:
        """Note the data that an instruction reads, where it lies in its function."""
        cdef uint64_t begin
        read = None if self.literal is None else self.literal(code, address + at)
        if read is not None and address <= read[0] < address + size:
            begin = read[0] - address
            ranges.append((begin, min(begin + <uint64_t>read[1], size)))
        return 0

    # -- sites and probes ---------------------------------------------------------------------

    cdef uint32_t site_at(self, uint64_t address, uint32_t template, const uint8_t *code,
                          uint32_t length, int32_t relative) except? 0xFFFFFFFF:
        """The site of an address, made if there is none."""
        cdef Dispatch *d = &self.d
        cdef uint32_t i = find(d, address)
        cdef uint64_t room
        cdef void *more
        cdef Site *s
        if i != NONE:
            return i
        if d.site_count == d.site_room:
            if d.site_room >= 1 << 30:
                raise MemoryError
            room = d.site_room * 2 if d.site_room else 1024
            more = realloc(d.sites, room * sizeof(Site))
            if more == NULL:
                raise MemoryError
            d.sites = <Site *>more
            d.site_room = <uint32_t>room
        if d.hash == NULL or d.site_count * 2 > d.hash_mask:
            self.rehash((d.hash_mask + 1) * 2 if d.hash != NULL else 4096)
        i = d.site_count
        s = &d.sites[i]
        memset(s, 0, sizeof(Site))
        s.address = address
        s.template = template
        s.first = NONE
        s.slot = NONE
        s.length = <uint8_t>length
        s.relative = relative
        memcpy(s.code, code, length)
        d.site_count += 1
        self.enter_hash(i)
        return i

    cdef void enter_hash(self, uint32_t index):
        cdef Dispatch *d = &self.d
        cdef uint64_t i
        i = (d.sites[index].address * <uint64_t>0x9E3779B97F4A7C15 >> 24) & d.hash_mask
        while d.hash[i] != NONE:
            i = (i + 1) & d.hash_mask
        d.hash[i] = index

    cdef int rehash(self, uint64_t size) except -1:
        cdef Dispatch *d = &self.d
        cdef uint32_t i
        cdef uint32_t *new = <uint32_t *>malloc(size * sizeof(uint32_t))
        if new == NULL:
            raise MemoryError
        memset(new, 0xFF, size * sizeof(uint32_t))
        free(d.hash)
        d.hash = new
        d.hash_mask = size - 1
        for i in range(d.site_count):
            self.enter_hash(i)
        return 0

    cdef uint32_t probe_at(self, uint32_t site, uint32_t function, int provider) except? 0xFFFFFFFF:
        """A probe; the one there is when it was asked for before."""
        cdef Dispatch *d = &self.d
        cdef uint32_t i = d.sites[site].first
        cdef uint32_t last = NONE
        cdef uint64_t room
        cdef void *more
        cdef Probe *p
        while i != NONE:
            if d.probes[i].function == function and d.probes[i].provider == provider:
                return i
            last = i
            i = d.probes[i].next
        if d.probe_count == d.probe_room:
            room = d.probe_room * 2 if d.probe_room else 1024
            more = realloc(d.probes, room * sizeof(Probe))
            if more == NULL:
                raise MemoryError
            d.probes = <Probe *>more
            d.probe_room = <uint32_t>room
        i = d.probe_count
        p = &d.probes[i]
        memset(p, 0, sizeof(Probe))
        p.site = site
        p.next = NONE
        p.function = function
        p.provider = <uint8_t>provider
        d.probe_count += 1
        if last == NONE:
            d.sites[site].first = i
        else:
            d.probes[last].next = i
        return i

    def add(self, uint64_t address, bytes code, uint32_t function, int provider):
        """A probe on one instruction.

        :return: its number, or -1 when the instruction is refused.
        """
        self.unchanging()
        cdef uint32_t length = 0
        cdef int32_t relative = 0
        cdef int64_t template = self.template_of(code, len(code), address, &length, &relative)
        if template < 0 or self.d.templates[template].op == REFUSE:
            return -1
        return self.probe_at(self.site_at(address, <uint32_t>template, code, length, relative),
                             function, provider)

    def add_all(self, uint64_t address, const uint8_t[::1] code, uint64_t start, uint64_t size,
                uint32_t function, int provider):
        """Probes on all instructions of a function that are not refused.

        :param code: memory that holds the function at ``start``.
        :return: their numbers.
        """
        self.unchanging()
        cdef Piece *pieces = NULL
        cdef uint64_t i, count
        cdef bint exclusive = False
        cdef const Template *t
        made = []
        try:
            count = self.pieces(address, code, start, size, &pieces, [])
            for i in range(count):
                t = &self.d.templates[pieces[i].template]
                exclusive = exclusive or t.flags & STARTS_EXCLUSIVE
                if not exclusive and t.op != REFUSE:
                    made.append(self.probe_at(
                        self.site_at(address + pieces[i].at, pieces[i].template,
                                     &code[start + pieces[i].at], pieces[i].length,
                                     pieces[i].relative),
                        function, provider))
                if t.flags & ENDS_EXCLUSIVE:
                    exclusive = False
        finally:
            free(pieces)
        return made

    def add_within(self, uint64_t address, const uint8_t[::1] code, uint64_t start, uint64_t size,
                   uint32_t function, int provider, ranges, bint last):
        """A probe in each of some parts of a function.

        :param ranges: [begin, end) of the parts, offsets.
        :param last: on a part's last instruction; else on the one that stands at its begin.
        :return: for each the instruction's offset, and the probe's number; -1: there is no
            instruction, -2: it is refused, -3: it lies in an exclusive access.
        """
        self.unchanging()
        cdef Piece *pieces = NULL
        cdef uint64_t i, count, begin, end
        cdef bint exclusive = False
        cdef const Template *t
        made, refused = [], {}
        try:
            count = self.pieces(address, code, start, size, &pieces, [])
            offsets = []
            for i in range(count):
                t = &self.d.templates[pieces[i].template]
                exclusive = exclusive or t.flags & STARTS_EXCLUSIVE
                if exclusive or t.op == REFUSE:
                    refused[i] = -3 if exclusive else -2
                if t.flags & ENDS_EXCLUSIVE:
                    exclusive = False
                offsets.append(pieces[i].at)
            for begin, end in ranges:
                found = bisect_left(offsets, end if last else begin) - last
                if not 0 <= found < count or not (
                        begin <= offsets[found] < end if last else offsets[found] == begin):
                    made.append((begin, -1))
                    continue
                i = found
                made.append((pieces[i].at, refused[i] if i in refused else self.probe_at(
                    self.site_at(address + pieces[i].at, pieces[i].template,
                                 &code[start + pieces[i].at], pieces[i].length,
                                 pieces[i].relative), function, provider)))
        finally:
            free(pieces)
        return made

    def add_boundaries(self, uint64_t address, const uint8_t[::1] code, uint64_t start,
                       uint64_t size, uint32_t function, entry, returns):
        """Probes where a function is entered and left.

        :param entry: their provider; None: none there.  So ``returns``.
        :return: their numbers.
        """
        self.unchanging()
        first, left, _framed = self.boundaries(address, code, start, size)
        wanted = [(first, entry)] if entry is not None and first >= 0 else []
        if returns is not None:
            wanted += [(at, returns) for at in left]
        cdef uint32_t length = 0
        cdef int32_t relative = 0
        cdef int64_t template
        cdef uint64_t at
        made = []
        for at, provider in wanted:
            template = self.template_of(&code[start + at], <uint32_t>min(size - at, 15),
                                        address + at, &length, &relative)
            if template < 0:
                raise ValueError("a boundary is no instruction")
            made.append(self.probe_at(
                self.site_at(address + at, <uint32_t>template, &code[start + at], length,
                             relative), function, provider))
        return made

    def boundaries(self, uint64_t address, const uint8_t[::1] code, uint64_t start, uint64_t size):
        """Where a function is entered and left (``kinst/fbt.py`` says how, in Python).

        :return: (offset of the entry or -1, offsets of the returns, whether it has a prologue).
        """
        cdef Piece *pieces = NULL
        cdef uint64_t i, count, at, target
        cdef bint exclusive = False
        cdef bint searching = True
        cdef bint framed = False
        cdef const Template *t
        cdef Template before
        cdef uint64_t before_target = 0
        cdef Site s
        cdef int64_t entry = -1
        memset(&before, 0, sizeof(Template))
        returns, targets = [], set()
        leads = []  # offsets of the instructions up to the prologue, or to where it cannot be
        first_refused = True
        try:
            count = self.pieces(address, code, start, size, &pieces, [])
            for i in range(count):
                at = pieces[i].at
                t = &self.d.templates[pieces[i].template]
                s.address = address + at
                s.relative = pieces[i].relative
                target = target_of(t, &s)
                exclusive = exclusive or t.flags & STARTS_EXCLUSIVE
                if at == 0:
                    first_refused = exclusive or t.op == REFUSE
                if t.op == JUMP or t.op == BRANCH_FLAGS or t.op == BRANCH_COMPARE or (
                        t.op == BRANCH_BIT or t.op == BRANCH_COUNT):
                    targets.add(target)
                framed = framed or t.flags & PROLOGUE
                if searching:
                    if exclusive or t.op == REFUSE:
                        searching = False
                    else:
                        leads.append(at)
                        if t.flags & PROLOGUE:
                            entry = at
                            searching = False
                        elif t.flags & ENDS_BLOCK and not t.flags & LANDING:
                            searching = False
                if not exclusive and t.op != REFUSE:
                    if t.flags & RETURNS:
                        returns.append(at)
                    elif t.op == JUMP and not address <= target < address + size:
                        returns.append(at)
                    elif (t.op == LINK and t.a == NO_REGISTER and before.op == SET
                            and before.a == t.b):
                        # The far form of a jump: the address in parts.
                        target = (before_target + t.extra) & ~<uint64_t>1
                        if not address <= target < address + size:
                            returns.append(at)
                if t.flags & ENDS_EXCLUSIVE:
                    exclusive = False
                before = t[0]
                before_target = target_of(t, &s)
        finally:
            free(pieces)
        for lead in leads:
            if address + lead in targets:
                entry = -1
                break
            if lead == entry:
                return entry, returns, framed
        if not leads or first_refused or address in targets:
            return -1, returns, framed
        return 0, returns, framed

    def tally(self, uint64_t address, const uint8_t[::1] code, uint64_t start, uint64_t size,
              dict encodings, place, list counts):
        """Count the instructions of a function.

        :param encodings: gets ``place`` and the offset for every encoding it has not yet.
        :param counts: of each template; made as long as is needed.
        :return: (instructions within exclusive accesses, bytes that are no instruction, pieces of
            data).
        """
        cdef Piece *pieces = NULL
        cdef uint64_t i, count
        cdef uint32_t exclusives = 0
        cdef bint exclusive = False
        cdef uint8_t flags
        cdef const uint8_t *p
        data = []
        try:
            count = self.pieces(address, code, start, size, &pieces, data)
            for i in range(count):
                flags = self.d.templates[pieces[i].template].flags
                exclusive = exclusive or flags & STARTS_EXCLUSIVE
                if exclusive:
                    exclusives += 1
                else:
                    while <uint64_t>len(counts) <= pieces[i].template:
                        counts.append(0)
                    counts[pieces[i].template] += 1
                if flags & ENDS_EXCLUSIVE:
                    exclusive = False
                p = &code[start + pieces[i].at]
                encoding = p[:pieces[i].length]
                if encoding not in encodings:
                    encodings[encoding] = (place, pieces[i].at)
        finally:
            free(pieces)
        return exclusives, self.rest, len(data)

    def key(self, const uint8_t[::1] code):
        """The first instruction of ``code`` as the native decoder splits it.

        :return: (length, 0 when it is none; what decides the verdict; the displacement left out).
        """
        cdef uint8_t key[MAX_CODE]
        cdef uint32_t key_length = 0
        cdef int32_t relative = 0
        cdef uint32_t length = 0
        self.made()
        if code.shape[0]:
            length = self.split(&code[0], <uint32_t>min(code.shape[0], 15), key, &key_length,
                                &relative)
        return length, key[:key_length] if length else b"", relative

    def lengths(self, const uint8_t[::1] code):
        """The lengths of the instructions in ``code``, as the native decoder sees them."""
        cdef uint8_t key[MAX_CODE]
        cdef uint32_t key_length = 0
        cdef int32_t relative = 0
        cdef uint64_t at = 0
        cdef uint32_t n
        self.made()
        found = []
        while at < <uint64_t>code.shape[0]:
            n = self.split(&code[at], <uint32_t>min(code.shape[0] - at, 15), key, &key_length,
                           &relative)
            if n == 0:
                break
            found.append(n)
            at += n
        return found

    def remove(self, uint32_t probe):
        """Take a probe away; its breakpoint must not be in memory."""
        self.unchanging()
        cdef Dispatch *d = &self.d
        cdef uint32_t i
        cdef Site *s
        if probe >= d.probe_count:
            raise IndexError(probe)
        if d.probes[probe].removed:
            return
        if d.sites[d.probes[probe].site].patched:
            raise RuntimeError("its breakpoint is in memory: disable the probes first")
        d.probes[probe].removed = True
        s = &d.sites[d.probes[probe].site]
        if s.first == probe:
            s.first = d.probes[probe].next
            return
        i = s.first
        while i != NONE:
            if d.probes[i].next == probe:
                d.probes[i].next = d.probes[probe].next
                return
            i = d.probes[i].next

    def clear(self):
        """Take all probes away, and give their memory back."""
        self.unchanging()
        self.unpatched()
        cdef Dispatch *d = &self.d
        if d.site_room > 4096:
            free(d.sites)
            free(d.probes)
            free(d.hash)
            d.sites, d.probes, d.hash = NULL, NULL, NULL
            d.site_room = d.probe_room = 0
            d.hash_mask = 0
        elif d.hash != NULL:
            memset(d.hash, 0xFF, (d.hash_mask + 1) * sizeof(uint32_t))
        d.site_count = d.probe_count = 0

    def __len__(self):
        return self.d.probe_count

    def probe(self, uint32_t number):
        """Address, code, function, provider, firings, and whether it was removed."""
        if number >= self.d.probe_count:
            raise IndexError(number)
        cdef Probe p = self.d.probes[number]
        cdef Site *s = &self.d.sites[p.site]
        return s.address, bytes(s.code[:s.length]), p.function, p.provider, p.count, bool(p.removed)

    def template(self, uint64_t address):
        """The operation at a site: (op, trampoline's address or 0), or None."""
        cdef uint32_t i = find(&self.d, address)
        if i == NONE:
            return None
        cdef Site *s = &self.d.sites[i]
        return (self.d.templates[s.template].op,
                0 if s.slot == NONE else self.d.slot_base + <uint64_t>s.slot * SLOT)

    def __contains__(self, uint64_t address):
        """Whether one of our breakpoints is there, in code or in a trampoline."""
        cdef uint32_t i = find(&self.d, address)
        return i != NONE and self.d.sites[i].patched or find_second(&self.d, address) != NONE

    def displaced(self, uint64_t address):
        """The bytes a breakpoint stands over."""
        cdef uint32_t i = find(&self.d, address)
        if i == NONE:
            return b""
        return bytes(self.d.sites[i].code[:self.d.sites[i].length])

    def second(self, uint64_t address):
        """The address of the site whose trampoline's second breakpoint this is, or None."""
        cdef uint32_t i = find_second(&self.d, address)
        return None if i == NONE else self.d.sites[i].address

    def probes_at(self, uint64_t address):
        """The numbers of the probes at a site, in the order they fire."""
        cdef uint32_t i = find(&self.d, address)
        found = []
        if i != NONE:
            i = self.d.sites[i].first
            while i != NONE:
                found.append(i)
                i = self.d.probes[i].next
        return found

    # -- enabling -----------------------------------------------------------------------------

    def changed(self):
        """The address of a site whose code in memory is not what it was; None: there is none."""
        self.live()
        return self.find_changed()

    cdef object find_changed(self):
        cdef Dispatch *d = &self.d
        cdef uint32_t i
        cdef Site *s
        cdef uint8_t now[MAX_CODE]
        cdef uint64_t page = 1
        cdef uint8_t *host = NULL
        for i in range(d.site_count):
            s = &d.sites[i]
            if s.first == NONE:
                continue
            if s.address & ~<uint64_t>4095 != page:
                page = s.address & ~<uint64_t>4095
                host = host_virtual(d.clock, page)
            if host == NULL:
                return s.address
            if (s.address & 4095) + s.length <= 4096:
                if memcmp(host + (s.address & 4095), s.code, s.length) != 0:
                    return s.address
            elif not guest_read(d.clock, s.address, now, s.length) or memcmp(
                    now, s.code, s.length) != 0:
                return s.address
        return None

    def use_slots(self, uint64_t base, uint64_t physical, uint64_t size, uint64_t reserved,
                  bint threads):
        """Trampolines live at virtual ``base``; the first ``reserved`` slots are not ours."""
        self.unchanging()
        self.live()
        cdef Dispatch *d = &self.d
        cdef uint64_t count = size // SLOT
        if reserved > count or (threads and count - reserved < MAX_THREADS + 1) or (
                count >= NONE):
            raise ValueError("no such number of trampolines")
        self.unpatched()
        free(d.slot_site)
        free(d.slot_used)
        d.slot_site = NULL
        d.slot_used = NULL
        d.slot_base = base
        d.slot_count = size // SLOT
        d.slots = host_physical(d.clock, physical, size)
        if d.slots == NULL:
            d.slot_count = 0
            raise ValueError("trampolines outside RAM")
        d.slot_site = <uint32_t *>malloc(d.slot_count * sizeof(uint32_t))
        d.slot_used = <uint64_t *>calloc(d.slot_count // 64 + 1, 8)
        if d.slot_site == NULL or d.slot_used == NULL:
            d.slots = NULL
            d.slot_count = 0
            raise MemoryError
        memset(d.slot_site, 0xFF, d.slot_count * sizeof(uint32_t))
        d.slot_hint = reserved
        d.threads = threads
        d.thread_count = 0
        d.thread_slot = <uint32_t>reserved
        for i in range(reserved + (MAX_THREADS + 1 if threads else 0)):
            d.slot_used[i // 64] |= <uint64_t>1 << i % 64

    def slots_needed(self):
        """How many slots ``enable`` will take, beside the reserved ones."""
        cdef Dispatch *d = &self.d
        cdef uint32_t i
        cdef uint64_t n = MAX_THREADS + 1
        for i in range(d.site_count):
            n += d.sites[i].first != NONE and not emulated(&d.templates[d.sites[i].template])
        return n

    @property
    def slots_used(self):
        """Bits set in the map of slots."""
        cdef uint64_t i
        cdef uint64_t n = 0
        if self.d.slot_used != NULL:
            for i in range(self.d.slot_count):
                n += self.d.slot_used[i // 64] >> i % 64 & 1
        return n

    cdef uint32_t take_slot(self) except? 0xFFFFFFFF:
        """The lowest free slot from the hint on."""
        cdef Dispatch *d = &self.d
        while d.slot_hint < d.slot_count:
            if d.slot_used[d.slot_hint // 64] >> d.slot_hint % 64 & 1 == 0:
                d.slot_used[d.slot_hint // 64] |= <uint64_t>1 << d.slot_hint % 64
                d.slot_hint += 1
                return <uint32_t>(d.slot_hint - 1)
            d.slot_hint += 1
        raise MemoryError("no trampoline is free")

    cdef int patch(self, Site *s, const uint8_t *code, bint one_by_one) except -1:
        """Write over the first bytes of a site."""
        cdef Dispatch *d = &self.d
        cdef uint32_t n = d.breakpoint_length if s.length >= d.breakpoint_length else s.length
        if not guest_write(d.clock, s.address, code, n):
            raise MemoryError(f"{s.address:#x} is not mapped")
        if one_by_one:
            drop_translations(d.clock, s.address, s.address + s.length)
        return 0

    cdef bint holds_breakpoint(self, Site *s):
        """Whether memory still has what ``enable`` wrote: a kernel may patch its own code."""
        cdef uint8_t now[4]
        cdef Dispatch *d = &self.d
        if s.length < d.breakpoint_length:
            return guest_read(d.clock, s.address, now, s.length) and memcmp(
                now, d.short_breakpoint, s.length) == 0
        return guest_read(d.clock, s.address, now, d.breakpoint_length) and memcmp(
            now, d.breakpoint, d.breakpoint_length) == 0

    def enable(self):
        """Make trampolines, write breakpoints.  ``changed`` must have said that all is well."""
        self.unchanging()
        self.live()
        cdef Dispatch *d = &self.d
        cdef uint32_t i
        cdef Site *s
        cdef bint one_by_one = d.site_count <= MANY
        for i in range(d.site_count):
            s = &d.sites[i]
            if s.first == NONE or s.patched:
                continue
            if not emulated(&d.templates[s.template]) and not d.threads:
                s.slot = self.take_slot()
                d.slot_site[s.slot] = i
                s.second = <uint8_t>build(d, s, d.slot_base + <uint64_t>s.slot * SLOT,
                                          d.slots + <uint64_t>s.slot * SLOT)
            if s.length < d.breakpoint_length:
                self.patch(s, d.short_breakpoint, one_by_one)
            else:
                self.patch(s, d.breakpoint, one_by_one)
            s.patched = True
        if not one_by_one:
            self.engine.flush_translations()

    def disable(self):
        """Write the original bytes back and free the trampolines."""
        self.unchanging()
        self.live()
        cdef Dispatch *d = &self.d
        cdef uint32_t i
        cdef uint32_t k
        cdef Site *s
        cdef bint one_by_one = d.site_count <= MANY
        for i in range(d.site_count):
            s = &d.sites[i]
            if not s.patched:
                continue
            if self.holds_breakpoint(s):
                self.patch(s, s.code, one_by_one)
            s.patched = False
            if s.slot != NONE:
                d.slot_used[s.slot // 64] &= ~(<uint64_t>1 << s.slot % 64)
                d.slot_site[s.slot] = NONE
                for k in range(SLOT):
                    d.slots[<uint64_t>s.slot * SLOT + k] = d.breakpoint[k % d.breakpoint_length]
                if s.slot < d.slot_hint:
                    d.slot_hint = s.slot
                s.slot = NONE
        if not one_by_one:
            self.engine.flush_translations()

    def listen(self, uint64_t seam, uint64_t scratch, uint64_t scratch_value):
        """Answer breakpoints from now on.

        :param seam: where the guest's vectors lead to, on the guest path.
        :param scratch: a word that the kernel's path writes, to be kept at ``scratch_value``.
        """
        self.unchanging()
        self.live()
        cdef Dispatch *d = &self.d
        if d.path != DIRECT:
            self.engine._has_breakpoint()
        d.seam = seam
        d.scratch = scratch
        d.scratch_value = scratch_value
        d.clock.trap_data = d
        d.clock.trap = on_trap
        if d.path != DIRECT and d.called:
            try:
                self.engine.hook_seam(seam, on_seam)
            except BaseException:
                d.clock.seam_call = NULL
                d.clock.trap = NULL
                d.clock.trap_data = NULL
                raise

    def deafen(self):
        """Answer none."""
        self.unchanging()
        self.live()
        self.engine.unhook_seam()
        self.d.clock.trap = NULL
        self.d.clock.trap_data = NULL

    # -- firings ------------------------------------------------------------------------------

    def record(self, how):
        """What a firing does: ``"count"`` only counts, ``"record"`` keeps a record, also where it
        is handled natively, ``"tell"`` calls ``fire(number, dispatcher)``."""
        self.unchanging()
        cdef Dispatch *d = &self.d
        free(d.records)
        d.records = NULL
        d.record_count = 0
        d.counting_only = how == "count"
        if how == "record":
            d.records = <Record *>malloc(RECORDS * sizeof(Record))
            if d.records == NULL:
                raise MemoryError

    cdef int drain(self) except -1:
        cdef uint32_t i
        cdef Record *r
        for i in range(self.d.record_count):
            r = &self.d.records[i]
            self.drained.append((r.probe, r.time, r.arguments[0], r.arguments[1], r.arguments[2],
                                 r.arguments[3], r.arguments[4]))
            self.drained_skews.append(r.skew)
        self.d.record_count = 0
        return 0

    cdef void spill(self):
        self.d.firing = True
        try:
            self.drain()
            if self.sink is not None:
                self.sink()
        except BaseException as error:
            self.d.record_count = 0
            self.d.stop = True
            self.engine.failed(error)
        self.d.firing = False

    def records(self):
        """The records since the last time: (probe, instructions executed, five arguments)."""
        self.drain()
        found = self.drained
        self.skews = self.drained_skews
        self.drained, self.drained_skews = [], []
        return found

    def tell_also(self, uint32_t probe):
        """Tell Python of a probe's firings also where they are handled natively."""
        if probe >= self.d.probe_count:
            raise ValueError("there is no such probe")
        self.d.probes[probe].told = True

    def act_by(self, action, failure):
        """Let firings be handled natively.

        :param action: a capsule, "kinst.action"; None: no more.
        :param failure: gives the exception of an action that failed.
        """
        cdef Action *given
        self.unchanging()
        if action is None:
            self.d.action.run = NULL
        else:
            given = <Action *>PyCapsule_GetPointer(action, "kinst.action")
            self.d.action = given[0]
        self.action, self.failure = action, failure

    cdef void acted(self):
        self.d.stop = True
        try:
            self.engine.failed(self.failure())
        except BaseException as error:
            self.engine.failed(error)

    cdef void told(self, uint32_t probe):
        self.d.firing = True
        try:
            self.fire(probe)
        except BaseException as error:
            self.d.stop = True
            self.engine.failed(error)
        self.d.firing = False

    cdef int unchanging(self) except -1:
        """Tables and memory stay as they are while a firing uses them."""
        if self.d.firing:
            raise RuntimeError("probes cannot be changed while one fires")
        return 0

    cdef int made(self) except -1:
        if self.split == NULL:
            raise RuntimeError("the dispatcher was not made")
        return 0

    cdef int live(self) except -1:
        if self.d.clock == NULL:
            raise RuntimeError("this dispatcher has no machine: it only reads code")
        return 0

    cdef int unpatched(self) except -1:
        cdef uint32_t i
        for i in range(self.d.site_count):
            if self.d.sites[i].patched:
                raise RuntimeError("breakpoints are in memory: disable the probes first")
        return 0

    cdef void stuck(self, uint64_t pc):
        """A breakpoint on the way of a breakpoint."""
        try:
            self.recursion(pc)
        except BaseException as error:
            self.engine.failed(error)

    @property
    def firings(self):
        return self.d.firings

    @property
    def firing_at(self):
        """The address of the instruction that fires."""
        return self.d.at

    cdef int in_firing(self, int register) except -1:
        self.live()
        if not 0 <= register < self.d.count:
            raise IndexError(f"there is no register {register}")
        if self.d.wide[register]:
            raise ValueError(f"register {register} has more than 64 bits: it is read and set "
                             "through the machine")
        if not self.d.firing:
            raise RuntimeError("no probe fires: there is no interrupted code")
        return 0

    def get(self, int register):
        """A register of the interrupted code, in a firing, by its place in the shape."""
        self.in_firing(register)
        return get(&self.d, <uint8_t>register)

    def set(self, int register, uint64_t value):
        self.in_firing(register)
        if self.d.framed and self.d.place[register] < 0:
            raise ValueError(f"register {register} is not in the trap frame")
        put(&self.d, <uint8_t>register, value)
