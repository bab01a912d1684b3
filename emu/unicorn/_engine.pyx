# cython: language_level=3, boundscheck=True, cdivision=True
"""The native part of the machine: block clock, register access and hooks of one Unicorn engine.

The public C interface of libunicorn (``unicorn/unicorn.h``) is called through addresses that
the Python package hands over, so that this module and the package share one library.

The clock is counted in guest instructions.  A translated block adds its instructions when it is
entered; ``settle`` takes back those behind the program counter when the block was left early.
``now`` is what devices see: the count at the last *canonical* block start, plus ``skew`` (idle time
skipped, and the cost of polling a clock), in virtual nanoseconds.

A block start is canonical when the guest's own code makes it one: it follows an instruction that
ends a block by itself (a jump, a change of what interrupts are taken), or an exception.  Only there
is an event due or an interrupt taken.  Blocks also begin where a probe, a stop or the CPU model's
own limits (a page, too many instructions) have cut one: these starts are none, so that a run does
not depend on who looked at it.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer

from emu.host.errors import MachineError

# unicorn.h: uc_hook_type, uc_control_type, UC_CTL(type, count, direction)
cdef enum:
    HOOK_INTR = 1
    HOOK_INSN = 2
    HOOK_CODE = 4
    HOOK_BLOCK = 8
    HOOK_MEM_READ = 1 << 10
    HOOK_MEM_WRITE = 1 << 11
    UC_MEM_WRITE = 17
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
    CTL_TLB_TYPE = 12
    TLB_CPU = 0
    TLB_VIRTUAL = 1
    PROT_READ = 1
    UC_ERR_EXCEPTION = 21

cdef uint64_t NEVER = 0xFFFFFFFFFFFFFFFF


cdef inline unsigned int ctl_word(int kind, int count, int direction) noexcept nogil:
    return kind | (count << 26) | (<unsigned int>direction << 30)



cdef inline uint64_t code_key(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    """What the block at a virtual address is known by.  At low addresses each process has its own
    code: there it is the physical one, and the frame of a second page (physical addresses have no
    more than 37 bits: 64 GiB of RAM)."""
    cdef uint64_t second
    if address >> 63:
        return address
    if (address ^ (address + size - 1)) >> 12 == 0 or size == 0:
        return low_code(c, address)
    second = low_code(c, (address | 4095) + 1)
    return low_code(c, address) | (second >> 12) << 38


cdef inline uint64_t low_code(Clock *c, uint64_t address) noexcept nogil:
    cdef CodePage *known = &c.code_pages[address >> 12 & CODE_PAGES - 1]
    if known.turn != c.turns[0] or known.page != address >> 12:
        known.page = address >> 12
        known.frame = frame_of_code(c, address)
        known.turn = c.turns[0]
    return known.frame | address & 4095


cdef uint64_t frame_of_code(Clock *c, uint64_t address) noexcept nogil:
    cdef uint64_t physical = 0
    if not c.walk(c, address, &physical):
        physical = address  # nothing is executed there
    return physical & ~<uint64_t>4095


cdef inline FastBlock *fast_block(Clock *c, uint64_t address) noexcept nogil:
    return &c.fast[(address >> 1 ^ address >> 13) & FAST_BLOCKS - 1]


include "_awaited.pxi"


# Blocks are found by ``code_key`` of their address.

cdef inline uint64_t block_hash(uint64_t address, uint32_t size) noexcept nogil:
    cdef uint64_t h = (address ^ (<uint64_t>size << 48)) * <uint64_t>0x9E3779B97F4A7C15
    return h >> 20


cdef BlockCount *table_entry(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    cdef uint64_t i = block_hash(address, size) & c.table_mask
    while c.table[i].count:
        if c.table[i].address == address and c.table[i].size == size:
            return &c.table[i]
        i = (i + 1) & c.table_mask
    return NULL


cdef inline uint32_t table_find(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    cdef BlockCount *entry = &c.table[block_hash(address, size) & c.table_mask]
    if entry.address != address or entry.size != size:
        entry = table_entry(c, address, size)
    return entry.count if entry != NULL else 0


cdef int table_put(Clock *c, uint64_t address, uint32_t size, uint32_t count) noexcept nogil:
    """Add a block, or replace it: how it ends is then unknown."""
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
                i = block_hash(old[j].address, old[j].size) & c.table_mask
                while c.table[i].count:
                    i = (i + 1) & c.table_mask
                c.table[i] = old[j]
                c.table_used += 1
        free(old)
    i = block_hash(address, size) & c.table_mask
    while c.table[i].count:
        if c.table[i].address == address and c.table[i].size == size:
            c.table[i].count = count
            c.table[i].end = END_UNKNOWN
            c.table[i].trapped = TRAPPED_UNKNOWN
            return 0
        i = (i + 1) & c.table_mask
    c.table[i].address = address
    c.table[i].size = size
    c.table[i].count = count
    c.table[i].end = END_UNKNOWN
    c.table[i].trapped = TRAPPED_UNKNOWN
    c.table_used += 1
    return 0


cdef inline bint in_user_mode(Clock *c) noexcept nogil:
    return (c.level_register != 0
            and register_read(c, c.level_register) & c.level_bits == c.level_value)


cdef bint interruptible(Clock *c) noexcept nogil:
    """Whether a pending interrupt is taken."""
    cdef uint64_t value = 0
    if c.urgent:
        c.context_save(c.uc, c.context)
        if not word_in_context(c, c.urgent_place)[0] & c.urgent_masked:
            return True
    if c.gate_place and in_user_mode(c):  # no mask counts
        c.context_save(c.uc, c.context)
        return in_context(c, c.gate_place)[0] & c.gate_bits != 0
    c.reg_read(c.uc, c.mask_register, &value)
    if value & c.mask_bits != c.mask_value:
        return False
    if c.gate_bits == 0:
        return True
    c.reg_read(c.uc, c.gate_register, &value)
    return value & c.gate_bits != 0


cdef void check_signals(Clock *c) noexcept with gil:
    # Ctrl-C must end a guest that never enters Python.
    try:
        PyErr_CheckSignals()
    except BaseException as error:
        (<Engine>c.engine).failed(error)


# -- guest memory and registers, for native code ------------------------------------------------

cdef Region *region_of(Clock *c, uint64_t physical, uint64_t size) noexcept nogil:
    """The RAM that holds a piece; NULL when none does."""
    cdef int i
    for i in range(c.region_count):
        if (physical >= c.regions[i].physical
                and physical - c.regions[i].physical < c.regions[i].size
                and size <= c.regions[i].size - (physical - c.regions[i].physical)):
            return &c.regions[i]
    return NULL


cdef uint8_t *host_physical(Clock *c, uint64_t physical, uint64_t size) noexcept nogil:
    """The host's address of a piece of RAM; NULL when it is none."""
    cdef Region *region = region_of(c, physical, size)
    return NULL if region == NULL else region.host + (physical - region.physical)


cdef bint flat(Clock *c, uint64_t address, uint64_t *physical) noexcept nogil:
    """The translation of an engine without page tables."""
    c.walked_count = 0
    physical[0] = address
    return True


# -- what was made of memory ----------------------------------------------------------------------
# The guest's own stores are seen by the CPU model.  Whoever else writes RAM tells ``written``.

cdef void note_translated(Clock *c, Region *region, uint64_t physical) noexcept nogil:
    cdef uint8_t *code = &region.code[(physical - region.physical) >> 12]
    if code[0] != CODE_NEW:
        code[0] = CODE_NEW
        if c.translated_used < MAX_TRANSLATED:
            c.translated[c.translated_used] = physical & ~<uint64_t>4095
            c.translated_used += 1


cdef void translated(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    """Code was translated of the virtual [address, address + size): at most two pages."""
    cdef uint64_t physical = 0
    cdef uint64_t last = address + (size if size else 1) - 1
    cdef Region *region
    while True:
        region = region_of(c, physical, 1) if c.walk(c, address, &physical) else NULL
        if region == NULL:
            c.code_anywhere = True
        else:
            if c.asks_translated:
                note_translated(c, region, physical)
            else:
                region.code[(physical - region.physical) >> 12] = CODE_KNOWN
        if (address ^ last) >> 12 == 0:
            return
        address = last


cdef bint holds_code(Clock *c, uint64_t physical, uint64_t size) noexcept nogil:
    """Whether code may have been translated of a page there."""
    cdef Region *region = region_of(c, physical, size)
    cdef uint64_t page
    if region == NULL:
        return False  # no RAM
    if c.code_anywhere:
        return True
    physical -= region.physical
    for page in range(physical >> 12, (physical + size - 1 >> 12) + 1):
        if region.code[page]:
            return True
    return False


cdef void written(Clock *c, uint64_t physical, uint64_t size) noexcept nogil:
    """RAM was written past the CPU model, in one region: what was translated of it is dropped.

    Unicorn drops by virtual address, as the guest would fetch there: with accessed bits set, and
    where the guest could not, with nothing dropped and a page fault begun.  Meanwhile virtual
    addresses are physical ones.
    """
    cdef uint64_t offset = physical - c.regions[0].physical
    if offset < c.regions[0].size and (offset & 4095) + size <= 4096 and not (
            c.code_anywhere or c.regions[0].code[offset >> 12]):
        return  # on a page of RAM, as most is that a firing writes
    if not c.started or size == 0 or not holds_code(c, physical, size):
        return
    flatten(c, True)
    c.ctl(c.uc, ctl_word(CTL_TB_REMOVE_CACHE, 2, CTL_WRITE), physical, physical + size)
    flatten(c, False)


cdef void flatten(Clock *c, bint physical) noexcept nogil:
    """Make virtual addresses physical ones, or what they were."""
    if c.walk != flat:
        c.ctl(c.uc, ctl_word(CTL_TLB_TYPE, 1, CTL_WRITE),
              <int>(TLB_VIRTUAL if physical else TLB_CPU))
        c.ctl(c.uc, ctl_word(CTL_TLB_FLUSH, 0, CTL_WRITE))


cdef bint ask_model(Clock *c, uint64_t address, uint64_t *physical) noexcept nogil:
    """The CPU model's own translation, until the architecture's walk is set."""
    c.walked_count = 0
    return c.vmem_translate(c.uc, address, PROT_READ, physical) == 0


cdef bint drop_translations(Clock *c, uint64_t begin, uint64_t end) noexcept nogil:
    """Drop what was translated of the code at virtual [begin, end), for somebody who only looks: the
    guest's page tables and what is kept of them stay what they are.  False: a page is not mapped,
    and all must be dropped."""
    cdef uint64_t last
    cdef uint64_t physical = 0
    cdef uint64_t content[MAX_WALK]
    cdef bint changed = False
    if begin < end and end - begin > MANY_PAGES:
        return False
    while begin < end:
        last = (begin | 4095) + 1
        if last > end or last == 0:
            last = end
        if not c.walk(c, begin, &physical):
            return False
        if c.started and holds_code(c, physical, last - begin):
            if fetchable(c, begin):
                keep_walked(c, content)
                c.ctl(c.uc, ctl_word(CTL_TB_REMOVE_CACHE, 2, CTL_WRITE), begin, last)
                changed |= put_walked(c, content)
            else:
                written(c, physical, last - begin)
        begin = last
    if changed:
        c.ctl(c.uc, ctl_word(CTL_TLB_FLUSH, 0, CTL_WRITE))
    return True


cdef inline bint fetchable(Clock *c, uint64_t address) noexcept nogil:
    """Whether the guest could fetch from the page that was walked to: else Unicorn, who drops as the
    guest would fetch, begins a page fault.  In user mode it may be the kernel's; in the kernel it
    may be a program's, at low addresses."""
    cdef int i
    if not address >> 63 or in_user_mode(c):
        return False
    for i in range(c.walked_count):
        if c.walked[i][0] & c.no_execute:
            return False
    return True


cdef void keep_walked(Clock *c, uint64_t *content) noexcept nogil:
    cdef int i
    for i in range(c.walked_count):
        content[i] = c.walked[i][0]


cdef bint put_walked(Clock *c, uint64_t *content) noexcept nogil:
    """The entries that were walked become what they were; whether one was not."""
    cdef int i
    cdef bint changed = False
    for i in range(c.walked_count):
        if c.walked[i][0] != content[i]:
            c.walked[i][0] = content[i]
            changed = True
    return changed


cdef uint8_t *host_page(Clock *c, uint64_t address, uint64_t *physical) noexcept nogil:
    """The host's address of a virtual one, as far as the end of its page, and the physical one."""
    if not c.walk(c, address, physical):
        return NULL
    return host_physical(c, physical[0], 4096 - (address & 4095))


cdef uint8_t *host_virtual(Clock *c, uint64_t address) noexcept nogil:
    cdef uint64_t physical = 0
    return host_page(c, address, &physical)


cdef bint guest_read(Clock *c, uint64_t address, void *data, uint32_t size) noexcept nogil:
    """Virtual memory; false when a page is not mapped."""
    cdef uint8_t *to = <uint8_t *>data
    cdef uint8_t *host
    cdef uint32_t room
    while size:
        host = host_virtual(c, address)
        if host == NULL:
            return False
        room = <uint32_t>(4096 - (address & 4095))
        if room > size:
            room = size
        memcpy(to, host, room)
        to += room
        address += room
        size -= room
    return True


cdef bint guest_write(Clock *c, uint64_t address, const void *data, uint32_t size) noexcept nogil:
    """Virtual memory; false when a page is not mapped, and nothing is written then."""
    cdef const uint8_t *source = <const uint8_t *>data
    cdef uint64_t at = 0
    cdef uint64_t behind = 0
    cdef uint32_t room = <uint32_t>(4096 - (address & 4095))
    cdef uint8_t *first = host_page(c, address, &at)
    cdef uint8_t *second
    if first == NULL or size > 4096:
        return False
    if room < size:
        second = host_page(c, address + room, &behind)
        if second == NULL:
            return False
        memcpy(second, source + room, size - room)
        written(c, behind, size - room)
        size = room
    memcpy(first, source, size)
    written(c, at, size)
    return True


cdef uint64_t register_read(Clock *c, int register) noexcept nogil:
    cdef uint64_t value = 0
    c.reg_read(c.uc, register, &value)
    return value


cdef void register_write(Clock *c, int register, uint64_t value) noexcept nogil:
    c.reg_write(c.uc, register, &value)


cdef void go_to(Clock *c, uint64_t pc) noexcept nogil:
    """Set the program counter, from a hook."""
    if c.by_context:
        c.context_save(c.uc, c.context)
        in_context(c, c.pc_place)[0] = pc
        c.context_restore(c.uc, c.context)
    else:
        c.reg_write(c.uc, c.pc_register, &pc)


include "_turns.pxi"


include "_detour.pxi"


cdef void request_stop(Clock *c, int why) noexcept nogil:
    c.stop = why
    c.emu_stop(c.uc)


cdef int block_end(Clock *c) noexcept nogil:
    """How the block before this one ended; it is one that the CPU model may have cut."""
    cdef BlockCount *entry = table_entry(c, code_key(c, c.before, c.before_size), c.before_size)
    cdef uint32_t last = 0
    if entry != NULL and entry.end != END_UNKNOWN:
        return entry.end
    if c.end_mask and guest_read(c, c.before + c.before_size - 4, &last, 4):
        if last & c.end_mask != c.end_value:
            set_block_end(c, c.before, c.before_size, c.before_size >> 2, END_CUT)
            return END_CUT
    return END_UNKNOWN


cdef int set_block_end(Clock *c, uint64_t address, uint32_t size, uint32_t count,
                       int end) noexcept nogil:
    cdef uint64_t key = code_key(c, address, size)
    if table_entry(c, key, size) == NULL and table_put(c, key, size, count) != 0:
        return -1
    table_entry(c, key, size).end = end
    fast_block(c, address).size = 0
    return 0


cdef bint holds_trapped(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    """Whether the block has an instruction that is trapped, or bytes that are one."""
    cdef uint64_t key = code_key(c, address, size)
    cdef BlockCount *entry = table_entry(c, key, size)
    cdef uint32_t code = 0
    cdef uint32_t at
    cdef int i
    cdef bint found = False
    if entry != NULL and entry.trapped != TRAPPED_UNKNOWN:
        return entry.trapped == TRAPPED_SOME
    at = 0
    while at < size and guest_read(c, address + at, &code, 4):
        for i in range(c.trapped_count):
            found |= code & c.trapped[i][0] == c.trapped[i][1]
        at += 4 if c.fixed else 2
    if entry != NULL or c.fixed and table_put(c, key, size, size >> 2) == 0:
        table_entry(c, key, size).trapped = TRAPPED_SOME if found else TRAPPED_NONE
    return found


cdef inline void resume(Clock *c, uint64_t address) noexcept nogil:
    """A block that starts at ``address`` next is no canonical one."""
    c.resumed = True
    c.resume_at = address


cdef inline int canonical_start(Clock *c) noexcept nogil:
    """The guest has come to a canonical block start: what is to be done first, or STOP_NONE."""
    c.canonical = c.instructions
    if time_at(c, c.instructions) >= c.deadline:
        return STOP_DEADLINE
    if c.instructions >= c.turn_end and turn_over(c, c.instructions):
        return STOP_TURN
    if c.shadow:
        c.shadow = False
    elif c.pending:
        if interruptible(c):
            return STOP_INTERRUPT
    return 0


cdef void block_hook(void *uc, uint64_t address, uint32_t size, void *data) noexcept nogil:
    """The short cut of ``unusual_block``: nothing but time passes."""
    cdef Clock *c = <Clock *>data
    cdef FastBlock *fast = fast_block(c, address)
    cdef uint64_t unusual
    cdef uint64_t total = c.instructions + c.count
    memcpy(&unusual, c, sizeof(unusual))
    if (unusual or address == c.cut_at or fast.address != address or fast.size != size
            or fast.turn != c.turns[address >> 63] or total + fast.count > c.horizon):
        c.unusual(c, address, size)
        return
    c.instructions = c.canonical = total
    c.address = address
    c.size = size
    c.count = fast.count
    c.cut_at = fast.cut_at
    c.blocks += 1


cdef void unusual_block(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    """A block that the short cut does not know, or is not for."""
    cdef FastBlock *fast = fast_block(c, address)
    cdef uint64_t total = c.instructions + c.count
    cdef uint64_t unusual, last
    cdef uint32_t n = 0
    # A program's first block behind the kernel is of another turn, so it always comes here.
    if c.address >> 63 and not address >> 63:
        c.program_began = total
    memcpy(&unusual, c, sizeof(unusual))
    if not unusual and goes_on(c, fast, address, size, total):
        return
    unusual |= may_be_cut(c, address)
    if not unusual and not (c.program_traps and not address >> 63 and holds_trapped(c, address, size)
                            ) and not gives_away(c, address, size):
        n = size >> c.fixed_bits if c.fixed else table_find(c, code_key(c, address, size), size)
    if c.awaited_count and (is_awaited(c, address) or is_awaited(c, address + size)):
        n = 0  # ``begin`` tells of it, also where a probe's way ends
    last = address + size
    c.cut_at = last
    if n == 0 or total + n > c.horizon:
        if c.untold:
            translated(c, address, size)
        if (c.frozen and not c.count and address != c.detour.at
                and address - c.detour.slot > c.detour.site_length
                and c.detour.frozen_blocks + 1 & 0xFFFFF and not c.slow):
            c.detour.frozen_blocks += 1  # the kernel's own way to the seam and back
            c.address = address
            c.size = size
            return
        c.begin(c, address, size)
        return
    fast.address, fast.turn = address, c.turns[address >> 63]
    fast.size, fast.count = size, <uint16_t>n
    know_end(c, fast)
    c.cut_at = fast.cut_at
    c.instructions = c.canonical = total
    c.address = address
    c.size = size
    c.count = n
    c.blocks += 1


cdef bint goes_on(Clock *c, FastBlock *fast, uint64_t address, uint32_t size, uint64_t total
                 ) noexcept nogil:
    """Whether the block is a known one that goes on with what the model has cut: it does not begin
    where the guest's own code begins one."""
    cdef FastBlock *before = fast_block(c, c.address)
    if (c.count == 0 or address != c.cut_at or before.end != END_CUT
            or before.address != c.address or before.size != c.size
            or before.turn != c.turns[c.address >> 63]
            or fast.address != address or fast.size != size
            or fast.turn != c.turns[address >> 63] or total + fast.count > c.horizon):
        return False
    c.instructions = total
    c.address = address
    c.size = size
    c.count = fast.count
    c.cut_at = fast.cut_at
    c.blocks += 1
    return True


cdef void know_end(Clock *c, FastBlock *fast) noexcept nogil:
    """How a block ends, and so where one may begin that the model has cut off."""
    cdef uint64_t last = fast.address + fast.size
    cdef BlockCount *entry
    fast.cut_at = 0
    fast.end = END_ITSELF
    if fast.count >= LONG_BLOCK or (fast.address ^ last) >> c.page_bits != 0:
        entry = table_entry(c, code_key(c, fast.address, fast.size), fast.size)
        fast.end = END_UNKNOWN if entry == NULL else entry.end
        if fast.end != END_ITSELF:
            fast.cut_at = last


cdef inline bint may_be_cut(Clock *c, uint64_t address) noexcept nogil:
    """Whether the guest came to ``address`` without a jump, from a block that a page's end or its
    length may have cut.  Branches would be mispredicted here."""
    return (address - c.address == c.size) & (
        (c.count >= LONG_BLOCK) | ((c.address ^ address) >> c.page_bits != 0))


cdef void look_ahead(Clock *c) noexcept nogil:
    """How far nothing but time passes, from the block in progress on."""
    c.horizon = c.instructions + SIGNALS
    if c.limit < c.horizon:
        c.horizon = c.limit
    cdef uint64_t now = time_at(c, c.instructions)
    if c.turn_end <= c.horizon:
        c.horizon = c.turn_end - 1 if c.turn_end else 0
    if c.deadline <= now:
        c.horizon = 0
    elif c.deadline != NEVER and c.deadline - c.skew - 1 < c.horizon:
        c.horizon = c.deadline - c.skew - 1


cdef void begin_block(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    cdef uint32_t n
    cdef int why
    cdef bint resumed
    cdef bint doubtful
    # A stop already asked for in this run has its effect only behind this hook.
    doubtful = may_be_cut(c, address) and c.count != 0
    if doubtful:
        c.before = c.address
        c.before_size = c.size
    c.instructions += c.count
    c.count = 0
    c.address = address
    c.size = size
    if c.frozen:
        c.detour.frozen_blocks += 1
        if c.detour.frozen_blocks & 0xFFFFF == 0:
            check_signals(c)
        if address == c.detour.slot:
            c.detour.slot_entries += 1  # a REP instruction enters its block for every repetition
            if c.detour.slot_entries == 1:
                c.detour.gives_away = gives_away(c, address, size)
                wipe_footprint(c)
            elif repetition_due(c):
                return
        elif address == c.detour.slot + c.detour.site_length:
            c.detour.slot_ended = True
        if not thaws_at(c, address):
            return
        thaw_now(c)  # the displaced instruction is done: the guest goes on behind it
    tell_call(c, address)
    if is_awaited(c, address) and c.arrived != NULL and not c.arrived(c.arrived_data, address):
        request_stop(c, STOP_REQUEST)
        return
    resumed = c.resumed
    if resumed:
        c.resumed = False
        resumed = c.resume_at == address
    elif doubtful:
        why = block_end(c)
        if why == END_UNKNOWN:
            request_stop(c, STOP_UNSURE)
            return
        resumed = why == END_CUT
    if c.fixed:
        n = size >> c.fixed_bits
    else:
        n = table_find(c, code_key(c, address, size), size)
        if n == 0:
            if resumed:
                resume(c, address)
            c.unknown_address = address
            c.unknown_size = size
            request_stop(c, STOP_UNCOUNTED)
            return
    c.blocks += 1
    if c.instructions >= c.heard:
        c.heard = c.instructions + SIGNALS
        check_signals(c)
    if not resumed:
        why = canonical_start(c)
        if why:
            request_stop(c, why)
            return
    if c.in_piece and c.piece == address:
        c.in_piece = False
    elif (c.program_traps and not address >> 63 and holds_trapped(c, address, size)
            and in_user_mode(c)):
        resume(c, address)
        request_stop(c, STOP_TRAPPED)
        return
    elif c.instructions + n > c.limit:
        resume(c, address)  # the guest has come here, and a part of the block is run
        request_stop(c, STOP_LIMIT)
        return
    c.count = n
    note_call(c, address, size)
    if gives_away(c, address, size):
        give_away(c, c.instructions + n)
    look_ahead(c)


cdef enum:
    # Instructions of a block that the CPU model may have cut for its length: its translation ends
    # at 512 of them or at 4000 operations (TCG_MAX_INSNS, tcg_op_buf_full), and no instruction has
    # 250 of these.
    LONG_BLOCK = 16
    SIGNALS = 1 << 20  # instructions between two looks at the host's signals
    MANY_PAGES = 1 << 20  # bytes of code of which translations are dropped page by page
    END_UNKNOWN = 0  # how a block ends: it was not asked yet,
    END_ITSELF = 1  # by its last instruction,
    END_CUT = 2  # it was cut behind it
    TRAPPED_UNKNOWN = 0
    TRAPPED_NONE = 1
    TRAPPED_SOME = 2


# unicorn.h: uc_tb
cdef struct UcTb:
    uint64_t pc
    uint16_t icount
    uint16_t size


cdef void edge_hook(void *uc, UcTb *current, UcTb *previous, void *data) noexcept nogil:
    cdef Clock *c = <Clock *>data
    cdef size_t i
    cdef uint64_t key = code_key(c, current.pc, current.size)
    fast_block(c, current.pc).size = 0
    # Where translation was cut by an exit address, Unicorn counts the exit as an instruction:
    # such a block is left to the decoder (STOP_UNCOUNTED).
    c.untold = False
    translated(c, current.pc, current.size)
    for i in range(c.exit_count):
        if current.pc + current.size == c.exits[i]:
            return
    if not c.fixed or table_entry(c, key, current.size) != NULL:
        table_put(c, key, current.size, current.icount)


cdef void stop_hook(void *uc, uint64_t address, uint32_t size, void *data) noexcept nogil:
    cdef Clock *c = <Clock *>data
    cdef int i
    for i in range(c.stop_count):
        if c.stops[i] == address:
            break
    else:
        return  # code translated when there was one
    if c.passing and c.pass_by == address:
        c.passing = False
        c.passed, c.passed_at = address, c.instructions
        return
    request_stop(c, STOP_ADDRESS)


cdef bint stops_at(Clock *c, uint64_t address) noexcept nogil:
    """Whether the run ends before the instruction at ``address``, of which other hooks are told: this
    one's, or those called before or behind it."""
    cdef int i
    if c.stop:
        return True
    for i in range(c.stop_count):
        if c.stops[i] == address:
            return not (c.passing and c.pass_by == address) and not (
                c.passed == address and c.passed_at == c.instructions)
    return False


cdef void seam_hook(void *uc, uint64_t address, uint32_t size, void *data) noexcept nogil:
    cdef Clock *c = <Clock *>data
    if c.seam_call != NULL and c.seam == address:
        c.seam_call(c.trap_data)


include "_exceptions.pxi"


cdef void interrupt_hook(void *uc, uint32_t vector, void *data) noexcept nogil:
    cdef Clock *c = <Clock *>data
    cdef uint64_t pc
    c.turns[0] += 1
    if c.trap != NULL and c.trap(c.trap_data, vector):
        return
    if delivers(c):
        pc = register_read(c, c.pc_register) - c.pc_ahead
        if delivered(c, vector, pc, executed(c, pc)):
            return
    c.stop = STOP_EXCEPTION
    c.vector = vector
    c.emu_stop(uc)


cdef void system_call_hook(void *uc, void *data) noexcept nogil:
    """An instruction that calls the kernel, which the model leaves to its host: it ends there."""
    cdef Clock *c = <Clock *>data
    c.turns[0] += 1
    # To ask the model for the pc costs as much as the rest: the instruction ends its block.
    if delivers(c) and c.count and delivered(c, c.system_call, c.address + c.size, c.count):
        return
    c.stop = STOP_EXCEPTION
    c.vector = c.system_call
    c.emu_stop(uc)


cdef bint invalid_hook(void *uc, void *data) noexcept nogil:
    cdef Clock *c = <Clock *>data
    c.turns[0] += 1
    if c.trap != NULL:
        c.by_context = c.pc_place != 0
        c.answered = c.trap(c.trap_data, INVALID)
        c.by_context = False
        if c.answered:
            return True
    c.stop = STOP_INVALID
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


cdef uint32_t port_read(void *uc, uint32_t port, int size, void *data) noexcept nogil:
    cdef ClockRead *r = port_clock(data, port, size)
    if r != NULL:
        return <uint32_t>(ticks(r) & port_mask(data))
    return port_ask(uc, port, size, data)


cdef ClockRead *port_clock(void *data, uint32_t port, int size) noexcept nogil:
    """The counter that is read at a port, by the kernel."""
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


class EngineError(MachineError):
    """libunicorn refused a call: ``code`` is its uc_err."""

    def __init__(self, what, code):
        super().__init__(f"{what}: libunicorn error {code}")
        self.code = code


cdef void count_from(Clock *c, uint64_t instructions) noexcept nogil:
    """So many instructions were executed, and no block is in progress."""
    c.instructions = c.canonical = instructions
    c.horizon = c.heard = 0
    c.count = 0
    c.calling = False


cdef class Engine:
    """Native access to one Unicorn engine.

    :param owner: the ``unicorn.Uc`` it belongs to.
    :param symbols: addresses of the libunicorn functions named in ``Engine.FUNCTIONS``.
    :param fixed: instruction length in bytes where all are alike (arm64: 4), else 0.
    :raises EngineError: when libunicorn refuses a call.
    """

    FUNCTIONS = ("uc_emu_start", "uc_emu_stop", "uc_reg_read", "uc_reg_write",
                 "uc_reg_read2", "uc_reg_write2", "uc_mem_map_ptr",
                 "uc_mmio_map", "uc_hook_add", "uc_hook_del", "uc_ctl", "uc_vmem_translate",
                 "uc_context_alloc", "uc_context_save", "uc_context_restore",
                 "uc_context_size", "uc_context_free")

    def __cinit__(self):
        memset(&self.clock, 0, sizeof(Clock))
        self.clock.table = <BlockCount *>calloc(1 << 16, sizeof(BlockCount))
        if self.clock.table == NULL:
            raise MemoryError
        self.clock.table_mask = (1 << 16) - 1

    def __dealloc__(self):
        cdef int i
        free(self.clock.table)
        free(self.clock.prefixes)
        free(self.clock.awaited)
        for i in range(self.clock.region_count):
            free(self.clock.regions[i].code)
        if self.clock.context != NULL:
            self.clock.context_free(self.clock.context)
        for i in range(MAX_CPUS):
            if self.clock.parts[i].context != NULL:
                self.clock.context_free(self.clock.parts[i].context)

    def __init__(self, owner, dict symbols, int pc_register, uint32_t fixed):
        cdef uintptr_t handle = owner._uch.value or 0
        if self.uc != NULL:
            raise RuntimeError("an engine is made once")
        if handle == 0:
            raise ValueError("the engine was closed")
        for name in self.FUNCTIONS:
            if not symbols.get(name):
                raise ValueError(f"libunicorn has no {name}: version 2.1.4 is known to work")
        self.owner = owner
        owner.hooked_by = self  # whoever holds it can run it, and the hooks are this engine's
        self.memory = []
        self.emu_start_fn_ = <emu_start_fn><uintptr_t>symbols["uc_emu_start"]
        self.reg_read_fn = <reg2_fn><uintptr_t>symbols["uc_reg_read2"]
        self.reg_write_fn = <reg2_fn><uintptr_t>symbols["uc_reg_write2"]
        self.map_ptr = <map_ptr_fn><uintptr_t>symbols["uc_mem_map_ptr"]
        self.mmio_map = <mmio_map_fn><uintptr_t>symbols["uc_mmio_map"]
        self.hook_add = <kinst_hook_add_fn><uintptr_t>symbols["uc_hook_add"]
        self.hook_del = <hook_del_fn><uintptr_t>symbols["uc_hook_del"]
        self.clock.walk = ask_model
        self.clock.untold = True
        self.ctl = <kinst_ctl_fn><uintptr_t>symbols["uc_ctl"]
        self.uc = <void *>handle
        self.clock.uc = self.uc
        self.clock.engine = <void *>self
        self.clock.emu_stop = <emu_stop_fn><uintptr_t>symbols["uc_emu_stop"]
        self.clock.reg_read = <reg_fn><uintptr_t>symbols["uc_reg_read"]
        self.clock.reg_write = <reg_fn><uintptr_t>symbols["uc_reg_write"]
        self.clock.vmem_translate = <translate_fn><uintptr_t>symbols["uc_vmem_translate"]
        self.clock.ctl = self.ctl
        self.clock.pc_register = pc_register
        self.clock.begin = begin_block
        self.clock.unusual = unusual_block
        self.context_alloc = <context_alloc_fn><uintptr_t>symbols["uc_context_alloc"]
        self.clock.context_save = <context_fn><uintptr_t>symbols["uc_context_save"]
        self.clock.context_restore = <context_fn><uintptr_t>symbols["uc_context_restore"]
        self.context_size = <context_size_fn><uintptr_t>symbols["uc_context_size"]
        self.clock.context_free = <context_free_fn><uintptr_t>symbols["uc_context_free"]
        self.clock.deadline = 0xFFFFFFFFFFFFFFFF
        self.clock.limit = self.clock.turn_end = 0xFFFFFFFFFFFFFFFF
        self.clock.cpus = 1
        if fixed not in (0, 4):
            raise ValueError("instructions are of four bytes, or of different lengths (0)")
        self.clock.fixed = fixed
        self.clock.fixed_bits = 2
        self.clock.page_bits = NO_PAGES
        self.pc_register = pc_register
        self.windows = []
        self.seam_hooks = {}
        self.left_hooks = {}
        self.most_left = MAX_STOPS
        self.error = None
        memset(&self.system, 0, sizeof(self.system))
        self._ok("use exits", self.ctl(self.uc, ctl_word(CTL_USE_EXITS, 1, CTL_WRITE), 1))
        self._hook(HOOK_BLOCK, <void *>block_hook)
        self._hook(HOOK_INTR, <void *>interrupt_hook)
        self._hook(HOOK_INSN_INVALID, <void *>invalid_hook)
        self._hook(HOOK_EDGE_GENERATED, <void *>edge_hook)

    cdef int _made(self) except -1:
        if self.uc == NULL:
            raise RuntimeError("the engine was not made")
        return 0

    cdef int _still(self) except -1:
        """What would pull the ground from under translated code is not done while it runs."""
        self._made()
        if self.clock.running:
            raise RuntimeError("the engine is running: this cannot be done from inside its run")
        return 0

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
        self.clock.stop = STOP_REQUEST
        self.clock.emu_stop(self.uc)

    # -- what the engine is wired to ----------------------------------------------------------

    def map_ram(self, uint64_t address, memory, uint32_t perms=7):
        """Map host memory (a writable buffer, which is kept) at guest physical ``address``;
        not while the CPU runs, which goes on with what it has looked up before."""
        cdef int i = self.clock.region_count
        cdef Py_buffer buffer
        cdef void *host
        cdef uint8_t *code
        cdef uint64_t size
        self._still()
        if i == MAX_REGIONS:
            raise ValueError("too many pieces of RAM")
        PyObject_GetBuffer(memory, &buffer, PyBUF_SIMPLE | PyBUF_WRITABLE)
        host, size = buffer.buf, <uint64_t>buffer.len
        PyBuffer_Release(&buffer)
        self._ok(f"map RAM at {address:#x}", self.map_ptr(self.uc, address, size, perms, host))
        self.memory.append(memoryview(memory))  # a buffer that is exported is not resized
        code = <uint8_t *>calloc((size >> 12) + 1, 1)
        if code == NULL:
            raise MemoryError
        self.clock.regions[i] = Region(address, size, <uint8_t *>host, code)
        self.clock.region_count = i + 1

    def map_device(self, uint64_t address, uint64_t size, read, write):
        """Call ``read(offset, size)`` and ``write(offset, size, value)`` for a physical window."""
        self._still()
        cdef _Window w = _Window()
        w.engine = self
        w.read = read
        w.write = write
        self.windows.append(w)
        self._ok(f"map device at {address:#x}",
                 self.mmio_map(self.uc, address, size, <void *>window_read, <void *>w,
                               <void *>window_write, <void *>w))

    def hook_ports(self, int insn_in, int insn_out, port_in, port_out, port_refused):
        """Call ``port_in(port, size)`` and ``port_out(port, size, value)`` for IN and OUT, in a program
        ``port_refused()`` before: whether it must not."""
        self._still()
        self.port_refused = port_refused
        cdef size_t hook = 0
        self.port_in = port_in
        self.port_out = port_out
        self._ok("hook IN", self.hook_add(self.uc, &hook, HOOK_INSN, <void *>port_read,
                                          <void *>self, <uint64_t>1, <uint64_t>0, insn_in))
        self._ok("hook OUT", self.hook_add(self.uc, &hook, HOOK_INSN, <void *>port_write,
                                           <void *>self, <uint64_t>1, <uint64_t>0, insn_out))

    def hook_system_call(self, int insn, uint32_t vector):
        """End at an instruction that the model leaves to its host, as at exception ``vector``."""
        self._still()
        cdef size_t hook = 0
        self.clock.system_call = vector
        self._ok("hook SYSCALL", self.hook_add(self.uc, &hook, HOOK_INSN, <void *>system_call_hook,
                                               &self.clock, <uint64_t>1, <uint64_t>0, insn))

    def hook_tsc(self, int rdtsc, int rdtscp, int low, int high, int aux, uint64_t cost,
                 uint64_t numerator, uint64_t denominator):
        """Answer RDTSC and RDTSCP from the virtual clock; each read costs ``cost`` ns."""
        self._still()
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

    def set_counter_port(self, uint32_t port, uint64_t mask, uint64_t cost, uint64_t numerator,
                         uint64_t denominator):
        """A 32-bit port that is read as the virtual clock, natively; each read costs ``cost`` ns.
        Behind ``hook_ports``."""
        self._set_counter(&self.port_counter, cost, numerator, denominator)
        self.counter_port, self.counter_mask = port, mask

    cdef void _set_counter(self, ClockRead *r, uint64_t cost, uint64_t numerator,
                           uint64_t denominator):
        memset(r, 0, sizeof(ClockRead))
        r.clock = &self.clock
        r.reg_write = self.clock.reg_write
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
        self._still()
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

    def trap_in_programs(self, codes, uint32_t key=0, uint64_t bits=0):
        """In programs, the CPU model carries out instructions that are to be trapped: a block with
        one ends the run instead (STOP_TRAPPED), where it begins.

        :param codes: (mask, value) of the instructions, all of them words.
        :param key: of the system register where they are not trapped while ``bits`` are set; no
            bits: they always are.
        """
        if len(codes) > MAX_TRAPPED:
            raise ValueError("too many kinds of instructions")
        self.system.trap_key, self.system.trap_bits = key, bits
        for i, (mask, value) in enumerate(codes):
            self.clock.trapped[i][0], self.clock.trapped[i][1] = mask, value
        self.clock.trapped_count = <int>len(codes)
        self.clock.program_traps = not bits

    def set_program_traps(self, uint64_t value):
        """The register of ``trap_in_programs`` was written past the guest."""
        self.clock.program_traps = value & self.system.trap_bits != self.system.trap_bits

    def set_interrupt_mask(self, int register, uint64_t bits, uint64_t value):
        """Interrupts are taken while ``register & bits == value``."""
        self.clock.mask_register = register
        self.clock.mask_bits = bits
        self.clock.mask_value = value

    def set_interrupt_gate(self, int register, uint64_t bits):
        """A pending interrupt also needs one of ``bits`` set in ``register``; 0: no such gate."""
        self.clock.gate_register = register
        self.clock.gate_bits = bits

    def set_unmaskable(self, size_t place, uint32_t masked):
        """Interrupts of which ``urgent`` says that one waits are taken unless these bits of a word in
        a context are set.  Behind ``set_breakpoint_exception``, which makes the context."""
        if not CONTEXT_HEADER <= place <= self.context_size(self.uc) - 8 or place % 4:
            raise ValueError("the place is not in a context")
        self._context(place)
        self.clock.urgent_place, self.clock.urgent_masked = <uint32_t>place, masked

    def set_user_mode(self, int level_register, uint64_t bits, uint64_t value):
        """The CPU is in user mode where ``level_register & bits == value``."""
        self.clock.level_register = level_register
        self.clock.level_bits = bits
        self.clock.level_value = value

    def set_user_gate(self, size_t gate_place):
        """In user mode interrupts are not masked, and the model does not tell of control registers:
        what gates interrupts is read at a place of a context.  Behind ``set_breakpoint_exception``,
        which makes the context."""
        if self.clock.context == NULL or gate_place + 8 > self.context_size(self.uc):
            raise ValueError("the place is not in a context")
        self._context(gate_place)
        self.clock.gate_place = gate_place

    # -- registers ----------------------------------------------------------------------------

    cdef int _read(self, what, int register, void *value, size_t size) except -1:
        self._made()
        return self._ok(what, self.reg_read_fn(self.uc, register, value, &size))

    cdef int _write(self, what, int register, const void *value, size_t size) except -1:
        self._made()
        return self._ok(what, self.reg_write_fn(self.uc, register, <void *>value, &size))

    def read(self, int register):
        """A register of at most 64 bits, by Unicorn's number."""
        cdef uint64_t value = 0
        self._read(f"read register {register}", register, &value, 8)
        return value

    def write(self, int register, uint64_t value):
        """Set a register of at most 64 bits."""
        self._write(f"write register {register}", register, &value, 8)

    def read_bytes(self, int register, int size):
        """A wide register (vector, descriptor table) as bytes; at most 256."""
        cdef uint8_t buffer[256]
        if not 0 < size <= 256:
            raise ValueError("register size out of range")
        memset(buffer, 0, 256)
        self._read(f"read register {register}", register, buffer, 256)
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
        self._write(f"write register {register}", register, buffer, 256)

    def read_system(self, int register, int op0, int op1, int crn, int crm, int op2):
        """An arm64 system register; ``register`` is UC_ARM64_REG_CP_REG."""
        cdef CpReg cp = CpReg(crn, crm, op0, op1, op2, 0)
        self._read(f"read S{op0}_{op1}_C{crn}_C{crm}_{op2}", register, &cp, sizeof(CpReg))
        return cp.val

    def write_system(self, int register, int op0, int op1, int crn, int crm, int op2,
                     uint64_t value):
        cdef CpReg cp = CpReg(crn, crm, op0, op1, op2, value)
        self._write(f"write S{op0}_{op1}_C{crn}_C{crm}_{op2}", register, &cp, sizeof(CpReg))

    def read_msr(self, int register, uint32_t number):
        """An amd64 model-specific register; ``register`` is UC_X86_REG_MSR."""
        cdef MsrReg msr = MsrReg(number, 0)
        self._read(f"read MSR {number:#x}", register, &msr, sizeof(MsrReg))
        return msr.value

    def write_msr(self, int register, uint32_t number, uint64_t value):
        cdef MsrReg msr = MsrReg(number, value)
        self._write(f"write MSR {number:#x}", register, &msr, sizeof(MsrReg))

    # -- running ------------------------------------------------------------------------------

    def run(self, uint64_t pc, bint piece=False):
        """Run from ``pc`` until something stops the CPU.  A stop address that is ``pc`` itself does
        not.

        :param piece: the block that starts at ``pc`` may have more instructions than are left to
            ``limit``: a stop address ends it in time.
        :return: ``(stop, detail)``; detail is the exception vector of STOP_EXCEPTION, libunicorn's
            error of STOP_ERROR; of STOP_NONE, whether it may have been an error that a breakpoint
            hides: the next run from there tells.
        :raises: what a device callback raised.
        """
        cdef int code
        self._still()
        self.clock.stop = 0
        self.clock.turns[0] += 1
        self.clock.passing = True
        self.clock.passed_at = ~<uint64_t>0
        self.clock.pass_by = pc
        self.clock.in_piece = piece
        self.clock.piece = pc
        self.clock.running = self.clock.started = True
        with nogil:
            code = self.emu_start_fn_(self.uc, pc, 0, 0, 0)
        self.clock.running = False
        masked = code == UC_ERR_EXCEPTION and self.clock.answered
        self.clock.answered = False
        if masked:
            code = 0  # what Unicorn remembers of an EBREAK that was answered
            if self.clock.frozen and self.clock.detour.slot_entries:
                self.clock.detour.slot_entries -= 1  # it is entered again
        if self.clock.moved:
            register_write(&self.clock, self.pc_register, self.clock.moved)
            self.clock.moved = 0
        if self.error is not None:
            error = self.error
            self.error = None
            raise error
        if self.clock.stop == STOP_EXCEPTION:
            return STOP_EXCEPTION, self.clock.vector
        if self.clock.stop:
            return self.clock.stop, 0
        if code:
            return STOP_ERROR, code
        return STOP_NONE, int(masked)

    def settle(self, count=None):
        """End the block in progress.  ``resume`` or ``synchronize`` then says what comes next.

        :param count: instructions of it that were executed; None: all of them.
        """
        if count is not None:
            if count > self.clock.count and not self.clock.frozen:
                raise ValueError("more instructions than the block has")
            if self.clock.count:
                self.clock.count = count
        self.clock.instructions += self.clock.count
        self.clock.count = 0

    def watch_thread(self, physical):
        """Tell where in RAM it says which thread runs, eight bytes; None: it is not known.

        :raises ValueError: when that is not RAM.
        """
        cdef uint8_t *host = NULL
        if physical is not None:
            host = host_physical(&self.clock, physical, 8)
            if host == NULL or physical % 8:
                raise ValueError("not a word of RAM")
        self.clock.thread_word = <uint64_t *>host

    @property
    def watches_thread(self):
        """Whether it was told of the CPU whose turn it is."""
        return self.clock.thread_word != NULL

    def taken(self):
        """An exception or an interrupt was delivered, or answered."""
        self.clock.taken += 1

    def endless(self):
        """One more exception; whether they follow each other with no instruction between them."""
        return one_more(&self.clock, self.clock.instructions)

    def forget_exceptions(self):
        """Of exceptions upon exceptions, none has been yet."""
        self.clock.exceptions = 0

    def learn_prefix(self, bytes code, uint32_t count):
        """Tell how many instructions these bytes are, with which a block was left."""
        if not 0 < count <= len(code):
            raise ValueError("an instruction has at least one byte")
        learn_prefix(&self.clock, code, <uint32_t>min(len(code), PREFIX_BYTES + 1), count)

    def synchronize(self):
        """Make the next block start canonical and let devices see the present count."""
        self.clock.canonical = self.clock.instructions
        self.clock.resumed = False

    def arrive(self, uint64_t pc):
        """The guest is about to execute ``pc``, and is stopped there.  Where a canonical block
        starts, what is due there comes first; done once, it is not done again.

        :return: STOP_NONE when the guest can go on at ``pc``; else STOP_DEADLINE or STOP_INTERRUPT.
        :raises: what somebody raises who has awaited the guest there.
        """
        self._made()
        cdef Clock *c = &self.clock
        cdef int why
        if not c.frozen and is_awaited(c, pc) and c.arrived != NULL:
            if not c.arrived(c.arrived_data, pc) and self.error is not None:
                error = self.error
                self.error = None
                raise error
        if c.frozen or c.resumed and c.resume_at == pc:
            return STOP_NONE
        why = canonical_start(c)
        if why == 0:
            resume(c, pc)
        return why

    def resume(self, uint64_t pc):
        """The guest stands at ``pc`` in the middle of a block, or what is due there was done."""
        resume(&self.clock, pc)

    def stands_at(self, uint64_t pc):
        """Whether it does."""
        return bool(self.clock.resumed and self.clock.resume_at == pc)

    def learn_end(self, uint64_t address, uint32_t size, uint32_t count, bint cut):
        """Tell how a block of ``count`` instructions ends.

        :param cut: the CPU model cut it; else its last instruction ends a block.
        """
        if not 0 < count <= 0xFFFF:
            raise ValueError("a block has at least one instruction, and at most 65535")
        if set_block_end(&self.clock, address, size, count, END_CUT if cut else END_ITSELF) != 0:
            raise MemoryError

    def learn(self, uint64_t address, uint32_t size, uint32_t count):
        """Tell the instruction count of a block that the translation did not report."""
        if not 0 < count <= 0xFFFF:
            raise ValueError("a block has at least one instruction, and at most 65535")
        fast_block(&self.clock, address).size = 0
        if table_put(&self.clock, code_key(&self.clock, address, size), size, count) != 0:
            raise MemoryError

    def block_count(self, uint64_t address, uint32_t size):
        """Instructions of a block as they are known, or None."""
        return table_find(&self.clock, code_key(&self.clock, address, size), size) or None

    def set_stops(self, addresses):
        """Addresses before whose execution the CPU stops (STOP_ADDRESS); no block is cut there."""
        cdef Clock *c = &self.clock
        cdef size_t hook = 0
        cdef uint64_t address
        cdef int i
        self._still()
        wanted = set(addresses)
        if len(wanted) > MAX_STOPS:
            raise ValueError(f"at most {MAX_STOPS} stop addresses")
        if <int>len(self.left_hooks) > self.most_left:
            # Unicorn asks all hooks for each instruction that it translates.
            for address in list(self.left_hooks):
                if self._remove_hook(address, self.left_hooks[address]):
                    del self.left_hooks[address]
            self.most_left = 2 * <int>len(self.left_hooks) + MAX_STOPS
        i = 0
        while i < c.stop_count:
            address = c.stops[i]
            if address in wanted:
                wanted.discard(address)
                i += 1
                continue
            if not self._remove_hook(address, c.stop_hooks[i]):
                self.left_hooks[address] = c.stop_hooks[i]
            c.stop_count -= 1
            c.stops[i] = c.stops[c.stop_count]
            c.stop_hooks[i] = c.stop_hooks[c.stop_count]
            self._drop(address, address + 1)
        for address in sorted(wanted):
            if address in self.left_hooks:
                hook = self.left_hooks.pop(address)
            else:
                self._ok("set a stop", self.hook_add(
                    self.uc, &hook, HOOK_CODE, <void *>stop_hook, c, address, address))
            c.stops[c.stop_count] = address
            c.stop_hooks[c.stop_count] = hook
            c.stop_count += 1
            self._drop(address, address + 1)

    cdef int hook_seam(self, uint64_t address, seam_fn call) except -1:
        """Call ``call`` with the breakpoints' owner before each execution of ``address``."""
        cdef size_t hook = 0
        self.unhook_seam()
        if address not in self.seam_hooks:  # one that could not be removed serves again
            self._ok("hook the seam", self.hook_add(
                self.uc, &hook, HOOK_CODE, <void *>seam_hook, &self.clock, address, address))
            self.seam_hooks[address] = hook
            self._drop(address, address + 1)
        self.clock.seam = address
        self.clock.seam_call = call
        return 0

    cdef size_t hook_range(self, uint64_t begin, uint64_t end, void *call, void *data) except? 0:
        """Have a function called before each instruction at [begin, end] of what is translated from
        now on; gives the hook's number."""
        cdef size_t hook = 0
        self._still()
        self._ok("hook instructions", self.hook_add(self.uc, &hook, HOOK_CODE, call, data, begin, end))
        return hook

    cdef int unhook_seam(self) except -1:
        self._still()
        if self.clock.seam_call != NULL:
            self.clock.seam_call = NULL
            address = self.clock.seam
            if self._remove_hook(address, self.seam_hooks[address]):
                del self.seam_hooks[address]
                self._drop(address, address + 1)
        return 0

    cdef int _remove_hook(self, uint64_t address, size_t hook) except -1:
        """Unicorn looks up the code that a hook was in: what is not mapped any more keeps its hook,
        which asks ``stops``, and page table entries stay what they are.

        :return: whether it was removed.
        """
        cdef Clock *c = &self.clock
        cdef uint64_t content[MAX_WALK]
        cdef uint64_t physical = 0
        cdef int code
        if not c.walk(c, address, &physical):
            return 0
        if fetchable(c, address) and region_of(c, physical, 1) != NULL:
            keep_walked(c, content)
            code = self.hook_del(self.uc, hook)
            if put_walked(c, content):
                self.flush_tlb()
        else:
            written(c, physical, 1)
            code = self._unhook(hook)
        self._ok("remove a stop", code)
        return 1

    cdef int _drop(self, uint64_t begin, uint64_t end) except -1:
        self._made()
        if self.clock.started and not drop_translations(&self.clock, begin, end):
            self.flush_translations()
        return 0

    def set_exits(self, addresses):
        """Addresses where every block is cut, and before whose execution the CPU stops (STOP_NONE).
        The CPU model looks them up at the end of each run: not for a guest with page tables."""
        self._still()
        cdef size_t n = len(addresses)
        cdef size_t i
        if n > MAX_STOPS:
            raise ValueError(f"at most {MAX_STOPS} exit addresses")
        for i in range(n):
            self.clock.exits[i] = addresses[i]
        self.clock.exit_count = n
        self._ok("set exits", self.ctl(self.uc, ctl_word(CTL_EXITS, 2, CTL_WRITE),
                                       <void *>self.clock.exits, n))

    def remove_translations(self, uint64_t begin, uint64_t end):
        """Drop translations of code at virtual [begin, end)."""
        self._drop(begin, end)

    def unhook(self, size_t hook):
        """Remove a hook and all translations.  Unicorn looks up the code that a hook was in, as the
        guest would now: in a program that is a page fault, which leaves its address in CR2."""
        self._still()
        self._ok("remove a hook", self._unhook(hook))
        self.flush_translations()

    cdef int _unhook(self, size_t hook) noexcept:
        flatten(&self.clock, True)
        cdef int code = self.hook_del(self.uc, hook)
        flatten(&self.clock, False)
        return code

    def flush_translations(self):
        """Drop all translations; what is known of a block is renewed with its translation."""
        cdef int i
        self._still()
        self._ok("flush translations", self.ctl(self.uc, ctl_word(CTL_TB_FLUSH, 0, CTL_WRITE)))
        for i in range(self.clock.region_count):
            memset(self.clock.regions[i].code, 0, self.clock.regions[i].size >> 12)
        self.clock.code_anywhere = False

    def set_no_execute(self, uint64_t bit):
        """The bit of a page table's entry that forbids to fetch, and with which Unicorn's own
        looking up is seen by the guest; 0: there is none."""
        self.clock.no_execute = bit

    def written(self, uint64_t physical, uint64_t size, bint outside=True):
        """RAM at physical [physical, physical + size) was written past the CPU model: what was
        translated of it is dropped.

        :param outside: not by the computer itself: what is kept of page tables is dropped, too.
        """
        self._made()
        if self.clock.started:
            if self.clock.code_anywhere and not self.clock.running:
                self.flush_translations()
            written(&self.clock, physical, size)
            if outside and self.clock.walk != flat:
                self._ok("flush TLB", self.ctl(self.uc, ctl_word(CTL_TLB_FLUSH, 0, CTL_WRITE)))

    def flush_tlb(self):
        self._still()
        self._ok("flush TLB", self.ctl(self.uc, ctl_word(CTL_TLB_FLUSH, 0, CTL_WRITE)))

    # -- the clock ----------------------------------------------------------------------------

    @property
    def stops_left(self):
        """Stops that are not wanted any more and could not be removed: not mapped meanwhile."""
        return len(self.left_hooks)

    @property
    def now(self):
        """Virtual nanoseconds, as devices see them."""
        return time_at(&self.clock, self.clock.canonical)

    @property
    def time(self):
        """Virtual nanoseconds behind the instructions that were executed."""
        return time_at(&self.clock, self.clock.instructions)

    @property
    def cpu(self):
        """The number of the CPU whose turn it is."""
        return self.clock.cpu

    @property
    def instructions(self):
        return self.clock.instructions

    @instructions.setter
    def instructions(self, uint64_t value):
        """Other instructions were executed before: another state has been restored."""
        self.clock.history += 1
        count_from(&self.clock, value)

    def executed_one(self):
        """Count an instruction that was executed for the guest, by the host."""
        count_from(&self.clock, self.clock.instructions + 1)

    @property
    def canonical(self):
        """Instructions at the start of the last canonical block."""
        return self.clock.canonical

    @canonical.setter
    def canonical(self, uint64_t value):
        self.clock.canonical = value

    @property
    def skew(self):
        """What time is ahead of the instructions by, modulo 2^64: where several CPUs run, it is
        behind them."""
        return self.clock.skew

    @skew.setter
    def skew(self, value):
        self.clock.skew = <uint64_t>(value & 0xFFFFFFFFFFFFFFFF)
        self.clock.horizon = 0

    @property
    def deadline(self):
        return self.clock.deadline

    @deadline.setter
    def deadline(self, uint64_t value):
        self.clock.deadline = value
        self.clock.horizon = 0

    @property
    def limit(self):
        return self.clock.limit

    @limit.setter
    def limit(self, uint64_t value):
        self.clock.limit = value
        self.clock.horizon = 0

    @property
    def pending(self):
        return bool(self.clock.pending)

    @pending.setter
    def pending(self, bint value):
        self.clock.pending = value

    @property
    def urgent(self):
        """An interrupt waits that cannot be masked (``set_unmaskable``)."""
        return bool(self.clock.urgent)

    @urgent.setter
    def urgent(self, bint value):
        if value and not self.clock.urgent_place:
            raise ValueError("there are no such interrupts")
        self.clock.urgent = value

    @property
    def frozen(self):
        return bool(self.clock.frozen)

    @property
    def detour(self):
        """The way of a probed instruction, while one is on it."""
        return Detour(self)

    @property
    def slow(self):
        """Every block start goes the long way, which the short cut is held to."""
        return bool(self.clock.slow)

    @slow.setter
    def slow(self, bint value):
        self.clock.slow = value

    def set_breakpoint_exception(self, module, uint32_t pc_place=0, places=()):
        """The architecture's native breakpoint exception, once: its ``KEEP``, ``ENTER`` and
        ``FORGET``, how many bytes of stack a kernel's way through it uses (``FOOTPRINT``), and the
        registers that it uses in a saved context (``PLACES``).

        With such registers breakpoints come as invalid instructions, where writing the program
        counter ends the run: it is written in a context, too.

        :param pc_place: where a context holds the program counter, a u64.
        :param places: where it holds the others.
        """
        self._still()
        wanted = getattr(module, "PLACES", ())
        if self.clock.keep != NULL:
            raise RuntimeError("the breakpoint exception is told once")
        if not 0 < module.FOOTPRINT <= MAX_FOOTPRINT:
            raise ValueError(f"a footprint is of at most {MAX_FOOTPRINT} bytes")
        if len(places) != len(wanted) or len(wanted) > MAX_PLACES:
            raise ValueError(f"a place is wanted of each of {', '.join(wanted) or 'no registers'}")
        keep = <forget_fn>PyCapsule_GetPointer(module.KEEP, "emu.keep")
        enter = <enter_fn>PyCapsule_GetPointer(module.ENTER, "emu.enter")
        forget = <forget_fn>PyCapsule_GetPointer(module.FORGET, "emu.forget")
        if wanted:
            size = self.context_size(self.uc)
            for at in (pc_place, *places):
                if not CONTEXT_HEADER <= at <= size - 8 or at % 8:
                    raise ValueError("a register lies outside the context")
            for i, at in enumerate(places):
                self.clock.places[i] = at
            self.clock.pc_place = pc_place
            for at in (pc_place, *places):
                self._context(at)
        self.clock.detour.stack_wanted = <uint32_t>module.FOOTPRINT + GUARD
        self.clock.enter, self.clock.forget = enter, forget
        self.clock.keep = keep

    cdef int _context(self, size_t place) except -1:
        """The context of the native exceptions holds a place.  It is as long as that needs: Unicorn
        copies as much as a context says that it has."""
        cdef size_t whole = self.context_size(self.uc) - CONTEXT_HEADER
        if self.clock.context == NULL:
            self._ok("context", self.context_alloc(self.uc, &self.clock.context))
            if context_length(&self.clock)[0] != whole:
                raise RuntimeError("a context of this version of Unicorn does not begin with its "
                                   "length; version 2.1.4 is known to work")
            context_length(&self.clock)[0] = 0
        context_length(&self.clock)[0] = max(context_length(&self.clock)[0],
                                             place + 8 - CONTEXT_HEADER)
        return 0

    def set_exceptions(self, module, places=(), uint32_t pc_ahead=0):
        """The architecture's native exceptions, once: its ``DELIVER``.

        :param places: where a context holds what ``EXCEPTION_PLACES`` names.
        :param pc_ahead: bytes that the CPU model adds to the pc of an exception.
        """
        self._still()
        wanted = module.EXCEPTION_PLACES
        if self.clock.deliver != NULL:
            raise RuntimeError("the exceptions are told once")
        if len(places) != len(wanted) or len(wanted) > MAX_PLACES:
            raise ValueError(f"a place is wanted of each of {', '.join(wanted)}")
        size = self.context_size(self.uc)
        for i, at in enumerate(places):
            if not CONTEXT_HEADER <= at <= size - 8 or at % 4:
                raise ValueError("a field lies outside the context")
            self.clock.exception_places[i] = at
            self._context(at)
        if not self.clock.fixed and self.clock.prefixes == NULL:
            self.clock.prefixes = <BlockPrefix *>calloc(PREFIXES, sizeof(BlockPrefix))
            if self.clock.prefixes == NULL:
                raise MemoryError
        self.clock.pc_ahead = pc_ahead
        self.clock.deliver = <deliver_fn>PyCapsule_GetPointer(module.DELIVER, "emu.deliver")

    def set_flat(self):
        """Virtual addresses are physical ones: there are no page tables."""
        self.clock.walk = flat

    def set_page_walk(self, module):
        """The architecture's native page walk: the address of its ``WALK``."""
        self.clock.walk = <walk_fn>PyCapsule_GetPointer(module.WALK, "emu.walk")

    def set_page_blocks(self, int bits):
        """The CPU model ends a block with the first instruction that reaches the end of a page of
        ``1 << bits`` bytes (its own smallest page, not the guest's)."""
        if not 0 < bits < 64:
            raise ValueError("not a page size")
        self.clock.page_bits = bits

    def set_block_ends(self, uint32_t mask, uint32_t value):
        """Where all instructions are words: none ends a block by itself but those whose bits
        ``mask`` are ``value``."""
        if not self.clock.fixed:
            raise ValueError("instructions are of different lengths")
        self.clock.end_mask = mask
        self.clock.end_value = value

    def set_last_address(self, int register):
        """A register where the CPU keeps the address of an instruction it has executed (x87's
        FIP): a trampoline's is replaced by the displaced instruction's."""
        self.clock.last_address = register

    cdef int _has_breakpoint(self) except -1:
        self._made()
        if self.clock.keep == NULL:
            raise RuntimeError("the engine was not told of the breakpoint exception")
        return 0

    def read_memory(self, uint64_t address, uint32_t size):
        """RAM at a virtual address, or None where it is not mapped or something else."""
        self._made()
        data = PyBytes_FromStringAndSize(NULL, size)
        if not guest_read(&self.clock, address, PyBytes_AS_STRING(data), size):
            return None
        return data

    @property
    def shadow(self):
        """No interrupt is taken before the next block."""
        return bool(self.clock.shadow)

    @shadow.setter
    def shadow(self, bint value):
        self.clock.shadow = value

    @property
    def before(self):
        """At STOP_UNSURE: the block that ran before the one in progress: (address, bytes)."""
        return self.clock.before, self.clock.before_size

    @property
    def running(self):
        """Whether the CPU runs: the caller is a callback of its."""
        return self.clock.running

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


include "_watch.pxi"


include "_flow.pxi"


include "_steps.pxi"


include "_accesses.pxi"
