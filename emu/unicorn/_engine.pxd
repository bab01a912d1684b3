# cython: language_level=3
"""What other native modules may know of the engine: its clock, registers and memory."""

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t

ctypedef int (*emu_start_fn)(void *uc, uint64_t begin, uint64_t until, uint64_t timeout,
                             size_t count) noexcept nogil
ctypedef int (*emu_stop_fn)(void *uc) noexcept nogil
ctypedef int (*reg_fn)(void *uc, int regid, void *value) noexcept nogil
ctypedef int (*map_ptr_fn)(void *uc, uint64_t address, uint64_t size, uint32_t perms,
                           void *ptr) noexcept nogil
ctypedef int (*mmio_map_fn)(void *uc, uint64_t address, uint64_t size, void *read_cb, void *read_ud,
                            void *write_cb, void *write_ud) noexcept nogil
ctypedef int (*context_alloc_fn)(void *uc, void **context) noexcept nogil
ctypedef int (*context_fn)(void *uc, void *context) noexcept nogil
ctypedef size_t (*context_size_fn)(void *uc) noexcept nogil
ctypedef int (*context_free_fn)(void *context) noexcept nogil
ctypedef int (*translate_fn)(void *uc, uint64_t address, int prot, uint64_t *physical) noexcept nogil
ctypedef int (*reg2_fn)(void *uc, int regid, void *value, size_t *size) noexcept nogil
ctypedef int (*hook_del_fn)(void *uc, size_t hook) noexcept nogil
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

# unicorn.h: uc_hook_type, uc_mem_type
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

# An exception came: answered here (True), or for the board.
ctypedef bint (*trap_fn)(void *data, uint32_t vector) noexcept nogil
# Deliver a breakpoint exception at ``pc`` to the guest; false: it has nowhere to go.
ctypedef bint (*enter_fn)(Clock *c, uint64_t pc) noexcept nogil
# Deliver exception ``vector``, which happened at ``pc``, when ``Clock.moment`` instructions were executed;
# of a system call that the model leaves to its host, ``pc`` is behind it.
ctypedef Answer (*deliver_fn)(Clock *c, uint32_t vector, uint64_t pc) noexcept nogil
# Keep the registers that describe the last exception; make them what they were.
ctypedef void (*forget_fn)(Clock *c) noexcept nogil

# The guest is about to execute the instruction at the seam.
ctypedef void (*seam_fn)(void *data) noexcept nogil
# Another CPU's registers come into the engine: before, and after.
ctypedef void (*exchanging_fn)(void *data, bint after) noexcept nogil
# A block begins at an awaited address, and ``Clock.instructions`` were executed before it. False: who is
# told has failed, and the block is not to be executed.
ctypedef bint (*arrived_fn)(void *data, uint64_t address) noexcept nogil
# The first block begins behind an instruction that ends at an awaited address: it may have been a call.
ctypedef void (*called_fn)(void *data, uint64_t back) noexcept nogil
ctypedef void (*begin_fn)(Clock *c, uint64_t address, uint32_t size) noexcept nogil
ctypedef void (*unusual_fn)(Clock *c, uint64_t address, uint32_t size) noexcept nogil

# The physical address of a virtual one, by the guest's present page tables, leaving no trace; the
# entries that were read are then in ``Clock.walked``.  False: it is not mapped.
ctypedef bint (*walk_fn)(Clock *c, uint64_t address, uint64_t *physical) noexcept nogil

# What one native module gives another: a function, under a name that says its type.
cdef inline object native(void *function, const char *kind):
    return PyCapsule_New(function, kind, NULL)


cdef enum Answer:
    DECLINED = 0  # it is left to Python, and nothing has changed
    DELIVERED = 1
    EXECUTED = 2  # no exception: the instruction was carried out, and the model is behind it


# Why a run ended, and a size: for Python, too.
cpdef enum EngineStop:
    STOP_NONE = 0  # the CPU stopped by itself: halted, or at an exit address
    STOP_DEADLINE = 1  # the clock reached ``deadline``
    STOP_INTERRUPT = 2  # a pending interrupt became deliverable
    STOP_EXCEPTION = 3  # the CPU raised exception ``vector``
    STOP_INVALID = 4  # an instruction the model does not know (amd64), EBREAK (riscv64)
    STOP_LIMIT = 5  # fewer instructions are left to ``limit`` than the block has
    STOP_UNCOUNTED = 6  # a block of unknown instruction count
    STOP_REQUEST = 7  # a device callback raised
    STOP_ERROR = 8  # libunicorn reported an error
    STOP_IN_PLACE = 9  # the instruction under a breakpoint is to be executed where it is
    STOP_UNSURE = 10  # whether the block before this one ended by itself is not known yet
    STOP_ADDRESS = 11  # the instruction at a stop address is about to be executed
    STOP_TRAPPED = 12  # a program's block has an instruction that is trapped, and the model lets pass
    STOP_TURN = 13  # the CPU's turn is over, and another one may have something to do

cpdef enum TrampolineSize:
    SLOT = 32  # bytes

cpdef enum StopLimit:
    MAX_STOPS = 256  # addresses at once

cpdef enum CpuLimit:
    MAX_CPUS = 8


cdef enum:
    MAX_FOOTPRINT = 2048  # bytes of stack that a kernel's breakpoint path may use,
    GUARD = 256  # and below them those in which it is seen that it has used more
    MAX_REGIONS = 72
    MAX_DEFERRED = 128  # as many as an architecture may name
    INVALID = 0xFFFFFFFF  # the vector of what comes as an invalid instruction
    MAX_WALK = 8  # levels of page tables
    MAX_PLACES = 8
    MAX_TRAPPED = 4
    MAX_YIELDS = 4
    MAX_TRANSLATED = 1024  # pages of code that are told as translated of late
    CODE_KNOWN = 1  # of a page: code was translated of it,
    CODE_NEW = 2  # since it was last asked
    FAST_BLOCKS = 32768  # blocks that the short cut knows
    CODE_PAGES = 256  # of low addresses whose frame is remembered
    PREFIXES = 4096  # beginnings of blocks whose instructions were counted, and
    PREFIX_BYTES = 248  # how long one may be
    CONTEXT_HEADER = 40  # bytes before the CPU state in a context (uc_priv.h, struct uc_context)
    NO_PAGES = 63  # as page_bits: blocks do not end with a page

cdef struct BlockCount:
    uint64_t address
    uint32_t size
    uint16_t count
    uint8_t end
    uint8_t trapped  # whether it has an instruction of ``Clock.trapped``: 0, not known yet


# The page frame of a page of code at a low address, where every process has its own code.
cdef struct CodePage:
    uint64_t page
    uint64_t frame
    uint64_t turn  # of ``Clock.turns`` at which it was looked up


# A block as the short cut knows it, by its address: instructions, none of them trapped.
cdef struct FastBlock:
    uint64_t address
    uint64_t turn  # of ``Clock.turns`` for its half of the addresses
    uint64_t cut_at  # see ``Clock.cut_at``
    uint32_t size
    uint16_t count
    uint16_t end  # how it ends, as far as it is known


# How many instructions are in these bytes.
cdef struct BlockPrefix:
    uint32_t size  # 0: nothing is here
    uint32_t count
    uint8_t code[PREFIX_BYTES]


cdef struct Region:
    uint64_t physical
    uint64_t size
    uint8_t *host
    uint8_t *code  # a byte a page: whether code was translated of it since the last flush (CODE_KNOWN)


# unicorn.h: uc_arm64_cp_reg, as the system-instruction hook and UC_ARM64_REG_CP_REG take it
cdef struct CpReg:
    uint32_t crn
    uint32_t crm
    uint32_t op0
    uint32_t op1
    uint32_t op2
    uint64_t val


# The way of a probed instruction: from its breakpoint to the instruction behind it no time passes
# (``Clock.frozen``), and what was on the way is put back.
cdef struct DetourState:
    # Time goes on at a block that starts here; whether that start is a canonical one.
    uint64_t at
    bint resumed
    # The stack pointer there, where the kernel's own return path leads to it (0: no such path):
    # that may itself run through the address.
    int sp_register
    uint64_t sp
    # The trampoline in use, the displaced instruction's own address and length, how often a block
    # was entered at the trampoline's first instruction, and whether one was behind it.
    uint64_t slot
    uint64_t site
    uint32_t site_length
    bint slot_ended
    uint64_t slot_entries
    bint slot_shared  # a thread's trampoline: what happens there is seen to happen there
    # While the trampoline runs: what interrupts were masked by, to be put back after a fault.
    int status_register
    uint64_t status_bits
    uint64_t status_value
    # Stack below the interrupted stack pointer, and exception registers, as they were.
    bint footprint
    uint64_t stack_at
    uint32_t stack_size
    uint8_t stack[MAX_FOOTPRINT + GUARD]
    uint32_t stack_wanted  # the architecture's footprint and the guard
    uint8_t *stack_host[2]  # where it is on the host: it may lie on two pages
    uint64_t stack_physical[2]
    uint32_t stack_split  # bytes on the first
    uint64_t kept[8]
    # Registers that the guest's return path does not restore: written when time goes on.
    int deferred
    int deferred_register[MAX_DEFERRED]
    uint64_t deferred_value[MAX_DEFERRED]
    uint64_t frozen_blocks  # entered on the way
    bint gives_away  # the displaced instruction ends the CPU's turn


# What belongs to one of several CPUs, while another has its turn.
cdef struct CpuPart:
    void *context  # its registers
    uint8_t shadow
    uint8_t resumed
    uint8_t program_traps
    uint64_t resume_at
    uint64_t address  # of its last block, which is settled
    uint32_t size
    uint64_t program_began
    uint64_t *thread_word


# The last instruction of a block, with which a CPU gives its turn away: its last bytes.
cdef struct Yield:
    uint32_t size
    uint32_t value


cdef struct Clock:
    # What makes a block start more than a step of the clock, eight bytes read as one:
    # probe code runs (no time passes, no event is due);
    uint8_t frozen
    # a block that starts at ``resume_at`` next does so after a probe, a stop or a cut, not where the
    # guest's own code starts one, or what is due at its canonical start was done;
    uint8_t resumed
    # the block that starts at ``piece`` may be longer than ``limit`` allows: a stop ends it;
    uint8_t in_piece
    # no interrupt before the next block (STI);
    uint8_t shadow
    # an interrupt is pending: stop at a block start where the mask allows it;
    uint8_t pending
    # the short cut is not to be taken: for tests;
    uint8_t slow
    # Unicorn tells of a translation only when a block was left by a jump before, and has told of
    # one: it has not yet, and what is entered is what was translated;
    uint8_t untold
    # the block in progress ends with what may be a call that returns to an awaited address.
    uint8_t calling
    # No deadline, limit or look at signals before this count of instructions.
    uint64_t horizon
    # A block that starts here may be one that the model has cut off from the block in progress.
    uint64_t cut_at
    unusual_fn unusual  # a block that the short cut is not for; a pointer keeps it out of line
    # The number of the CPU whose turn it is: whose registers the engine has; and how many there are.
    uint32_t cpu
    uint32_t cpus
    # The turn is over at the first canonical block start at or after this count of instructions; it
    # began at another one, and is as long as ``turn_length`` when the CPU does not give it away.
    uint64_t turn_end
    uint64_t turn_began
    uint64_t turn_length
    # Until this count time stands still: another CPU has run as long in this round, at that time.
    uint64_t still
    # Instructions of the longest turn before this one in the round.
    uint64_t longest
    # An interrupt waits that is taken whatever masks it, but where a word of a context has a bit.
    bint urgent
    uint32_t urgent_place
    uint32_t urgent_masked
    exchanging_fn exchanging  # somebody who looks at registers is told; NULL: nobody
    void *exchanging_data
    # Where a context holds what an exclusive access has reserved; 0: it holds no such thing.
    uint32_t monitor_place
    uint64_t passed_by_at  # count of instructions at which it has last said so
    uint64_t passed_by  # times that the CPU may still say that it waits, and its turn goes on
    bint others  # another CPU may have something to do
    CpuPart parts[MAX_CPUS]
    int yield_count
    Yield yields[MAX_YIELDS]
    # Instructions executed before the block in progress.
    uint64_t instructions
    uint64_t history  # changes when the count is set: another state was restored
    # The block in progress: its first address, bytes, instructions (0: none).
    uint64_t address
    uint32_t size
    uint32_t count
    # Count at the start of the last canonical block; what devices see.
    uint64_t canonical
    # Fixed instruction length in bytes, or 0 to look block sizes up.
    uint32_t fixed
    int fixed_bits  # the power of two it is
    int page_bits  # blocks end with the first instruction that reaches such a page's end
    uint64_t blocks
    # Block address and size -> instruction count, open addressing.
    BlockCount *table
    uint64_t table_mask
    uint64_t table_used
    begin_fn begin
    uint64_t skew
    # Stop at the first canonical block start at or after this virtual time.
    uint64_t deadline
    # Stop where fewer instructions than a block has are left to this count.
    uint64_t limit
    int mask_register
    uint64_t mask_bits
    uint64_t mask_value
    # Second gate of a pending interrupt (riscv64 sie): any of these bits set; 0 bits: no gate.
    int gate_register
    uint64_t gate_bits
    # User mode: where these bits of the register are the value.  Where the model hides control
    # registers then, a context has the gate.
    int level_register
    uint64_t level_bits
    uint64_t level_value
    uint32_t gate_place
    uint32_t system_call  # what comes as ``vector`` for such an instruction
    uint64_t resume_at
    uint64_t piece
    # The block before this one, when how it ended is asked.
    uint64_t before
    uint32_t before_size
    # Instructions of fixed length: only words whose bits ``end_mask`` are ``end_value`` end a block by
    # themselves.
    uint32_t end_mask
    uint32_t end_value
    # In programs, instructions with one of these bits (mask, value) are trapped while this is set.
    uint8_t program_traps
    int trapped_count
    uint32_t trapped[MAX_TRAPPED][2]
    int last_address
    # Where the guest must be set to when the run has ended; 0: where it is.
    uint64_t moved
    # Unicorn ends its run when the program counter is written and EBREAK (riscv64) has been
    # executed: there it is written into a saved context instead, which is then restored.
    int pc_register
    bint by_context
    uint32_t pc_place  # its offset in a context, and those of what ``enter`` and ``forget`` use
    uint32_t places[MAX_PLACES]
    bint answered
    void *context
    context_fn context_save
    context_fn context_restore
    context_free_fn context_free
    uint64_t heard  # when to look at signals next, in instructions
    DetourState detour
    # Why the last run ended.
    int stop
    bint running
    bint started  # code was run: there may be translations to drop
    uint32_t vector
    void *uc
    void *engine
    emu_stop_fn emu_stop
    reg_fn reg_read
    reg_fn reg_write
    translate_fn vmem_translate
    kinst_ctl_fn ctl
    walk_fn walk
    CodePage code_pages[CODE_PAGES]
    # Of the guest in user mode, or of a run: low addresses are of one address space meanwhile.  High
    # ones always are.
    uint64_t turns[2]
    # Instructions executed when the guest last went from the kernel to a program.
    uint64_t program_began
    FastBlock fast[FAST_BLOCKS]
    uint64_t no_execute  # of these entries
    uint64_t *walked[MAX_WALK]
    int walked_count
    # Guest RAM on the host.
    Region regions[MAX_REGIONS]
    int region_count
    # The pages of CODE_NEW, where somebody asks for them.
    bint asks_translated
    uint32_t translated_used
    uint64_t translated[MAX_TRANSLATED]
    # Code was translated of a page that could not be told.
    bint code_anywhere
    # The owner of breakpoints, and the architecture's breakpoint exception.
    trap_fn trap
    void *trap_data
    enter_fn enter
    # The architecture's other exceptions, and the places in a context that they use.
    deliver_fn deliver
    uint32_t exception_places[MAX_PLACES]
    uint32_t pc_ahead  # bytes that the CPU model adds to the pc of an exception
    uint64_t moment
    uint64_t exception_at  # exceptions, and no instruction between them
    uint32_t exceptions
    BlockPrefix *prefixes
    # Called before the instruction at ``seam``; NULL: nothing is.
    seam_fn seam_call
    uint64_t seam
    forget_fn keep
    forget_fn forget
    uint64_t unknown_address
    uint32_t unknown_size
    uint64_t exits[MAX_STOPS]
    size_t exit_count
    # Addresses before whose execution the CPU stops, and their hooks.
    uint64_t stops[MAX_STOPS]
    size_t stop_hooks[MAX_STOPS]
    int stop_count
    # The stop at this address is passed by, once.
    bint passing
    uint64_t pass_by
    # The one that was passed by last, and the instructions before its block.
    uint64_t passed
    uint64_t passed_at
    uint64_t taken  # exceptions and interrupts that were delivered, or answered
    # Awaited block starts: open addressing, 0 is free.
    uint64_t *awaited
    uint64_t awaited_mask
    uint64_t awaited_count
    arrived_fn arrived
    called_fn called
    uint64_t calls_back  # where the call of ``calling`` returns to
    void *arrived_data
    # Which thread runs, in RAM (the first word of the CPU's own data); NULL: it is not known.
    uint64_t *thread_word


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


# Which system registers are answered here (arm64), by key; the rest is left to the model.
cdef struct SystemRegisters:
    ClockRead counter
    uint8_t counters[65536]
    uint8_t known[65536]
    uint32_t trap_key  # the register that says whether programs' floating point is trapped:
    uint64_t trap_bits  # it is not where these bits are set
    void *engine


cdef inline uint64_t time_at(Clock *c, uint64_t count) noexcept nogil:
    """Virtual nanoseconds when so many instructions were executed, of the present turn."""
    return (count if count > c.still else c.still) + c.skew


cdef uint8_t *host_physical(Clock *c, uint64_t physical, uint64_t size) noexcept nogil
cdef uint8_t *host_virtual(Clock *c, uint64_t address) noexcept nogil
cdef uint8_t *host_stack(Clock *c, uint64_t address) noexcept nogil
cdef bint guest_read(Clock *c, uint64_t address, void *data, uint32_t size) noexcept nogil
cdef bint guest_write(Clock *c, uint64_t address, const void *data, uint32_t size) noexcept nogil
cdef void written(Clock *c, uint64_t physical, uint64_t size) noexcept nogil
cdef uint64_t register_read(Clock *c, int register) noexcept nogil
cdef inline uint64_t *in_context(Clock *c, uint32_t place) noexcept nogil:
    return <uint64_t *>(<uint8_t *>c.context + place)


cdef inline size_t *context_length(Clock *c) noexcept nogil:
    """How much of the CPU's state a context has (uc_priv.h, the first of struct uc_context)."""
    return <size_t *>c.context


cdef inline uint32_t *word_in_context(Clock *c, uint32_t place) noexcept nogil:
    return <uint32_t *>(<uint8_t *>c.context + place)


cdef void go_to(Clock *c, uint64_t pc) noexcept nogil
cdef int await_address(Clock *c, uint64_t address) noexcept nogil
cdef enum:  # its answers
    AWAITED = 0
    TOO_MANY_AWAITED = 1
    NO_MEMORY = 2
    MAX_AWAITED = 1 << 20  # addresses
cdef void await_nothing(Clock *c) noexcept nogil
cdef void register_write(Clock *c, int register, uint64_t value) noexcept nogil
cdef bint stops_at(Clock *c, uint64_t address) noexcept nogil
cdef void freeze(Clock *c) noexcept nogil
cdef void keep_footprint(Clock *c, uint64_t sp) noexcept nogil
cdef void wipe_footprint(Clock *c) noexcept nogil
cdef void thaw_now(Clock *c) noexcept nogil
cdef bint defer(Clock *c, int register, uint64_t value) noexcept nogil
cdef bint drop_translations(Clock *c, uint64_t begin, uint64_t end) noexcept nogil
cdef void request_stop(Clock *c, int why) noexcept nogil
cdef bint interruptible(Clock *c) noexcept nogil
cdef void resume(Clock *c, uint64_t address) noexcept nogil


cdef class EngineWiring:
    cdef void *uc
    cdef Clock clock
    cdef ClockRead counter
    cdef ClockRead rdtscp
    cdef ClockRead port_counter
    cdef uint32_t counter_port
    cdef uint64_t counter_mask
    cdef emu_start_fn emu_start_fn_
    cdef reg2_fn reg_read_fn
    cdef reg2_fn reg_write_fn
    cdef object owner  # Unicorn's own object: the engine lives as long
    cdef list memory  # what RAM is backed by
    cdef map_ptr_fn map_ptr
    cdef mmio_map_fn mmio_map
    cdef kinst_hook_add_fn hook_add
    cdef kinst_ctl_fn ctl
    cdef context_alloc_fn context_alloc
    cdef context_size_fn context_size
    cdef hook_del_fn hook_del
    cdef list windows
    cdef dict seam_hooks  # their numbers, by address
    cdef dict left_hooks  # of stops that could not be removed, likewise
    cdef int most_left  # of them, before they are looked through
    cdef object port_in
    cdef object port_out
    cdef object port_refused
    cdef object system_in
    cdef object system_out
    cdef SystemRegisters system
    cdef public object error
    cdef int pc_register

    cdef int _ok(self, what, int code) except -1
    cdef int _made(self) except -1
    cdef int _still(self) except -1
    cdef int _context(self, size_t place) except -1
    cdef int _read(self, what, int register, void *value, size_t size) except -1
    cdef int _write(self, what, int register, const void *value, size_t size) except -1
    cdef int _hook(self, int kind, void *callback) except -1
    cdef void failed(self, error)
    cdef void _set_counter(self, ClockRead *r, uint64_t cost, uint64_t numerator,
                           uint64_t denominator)


cdef class Engine(EngineWiring):
    cdef int _has_breakpoint(self) except -1
    cdef int hook_seam(self, uint64_t address, seam_fn call) except -1
    cdef int unhook_seam(self) except -1
    cdef size_t hook_range(self, uint64_t begin, uint64_t end, void *call, void *data) except? 0
    cdef int _remove_hook(self, uint64_t address, size_t hook) except -1
    cdef int _unhook(self, size_t hook) noexcept
    cdef int _drop(self, uint64_t begin, uint64_t end) except -1
