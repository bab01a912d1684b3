# cython: language_level=3
"""C interface of the engine for other native modules: clock, registers and guest memory."""

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
# uc_hook_add and uc_ctl are variadic. On x86-64 and AArch64 Linux, their integer arguments are in
# the same registers as those of other functions, but only a call through a variadic prototype sets
# the number of vector registers (AL on x86-64).
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
    HOOK_MEM_FETCH_PROT = 1 << 9
    HOOK_MEM_READ = 1 << 10
    HOOK_MEM_WRITE = 1 << 11
    UC_MEM_WRITE = 17
    HOOK_INSN_INVALID = 1 << 14
    HOOK_EDGE_GENERATED = 1 << 15

# Handle an exception; return True if this succeeded, or False to leave the exception to Python.
ctypedef bint (*trap_fn)(void *data, uint32_t vector) noexcept nogil
# Deliver a breakpoint exception at ``pc`` to the guest; return False if no handler can take it.
ctypedef bint (*enter_fn)(Clock *c, uint64_t pc) noexcept nogil
cdef enum:
    # Added to the vector of an external interrupt, to distinguish it from an exception
    EXTERNAL = 1 << 16

# Deliver exception ``vector``, raised at ``pc`` after ``Clock.moment`` instructions.
# For a system call that the CPU model leaves to its host, ``pc`` is the next instruction's address.
ctypedef Answer (*deliver_fn)(Clock *c, uint32_t vector, uint64_t pc) noexcept nogil
# Save or restore the registers that describe the last exception.
ctypedef void (*forget_fn)(Clock *c) noexcept nogil

# Callback before the guest executes the instruction at the seam.
ctypedef void (*seam_fn)(void *data) noexcept nogil
# Callback before and after another CPU's registers are loaded into the engine.
ctypedef void (*exchanging_fn)(void *data, bint after) noexcept nogil
# Callback when a block begins at an awaited address after ``Clock.instructions`` instructions.
# The callback returns False on failure; the block is then not executed.
ctypedef bint (*arrived_fn)(void *data, uint64_t address) noexcept nogil
# Callback when a block begins and the previous block may have ended with a call that returns to the
# awaited address ``back``.
ctypedef void (*called_fn)(void *data, uint64_t back) noexcept nogil
ctypedef void (*begin_fn)(Clock *c, uint64_t address, uint32_t size) noexcept nogil
ctypedef void (*unusual_fn)(Clock *c, uint64_t address, uint32_t size) noexcept nogil

# Translate a virtual address by the guest's current page tables, without side effects.
# ``Clock.walked`` then holds the entries that were read. Return False if the address is not mapped.
ctypedef bint (*walk_fn)(Clock *c, uint64_t address, uint64_t *physical) noexcept nogil

# Return how many instructions ``code`` holds, and set ``last`` to the offset of the last one, or
# return 0 if that is not certain.
ctypedef uint32_t (*split_fn)(const uint8_t *code, uint32_t size, uint32_t *last) noexcept nogil

# Wrap a function pointer in a capsule for other native modules; ``kind`` names its type.
cdef inline object native(void *function, const char *kind):
    return PyCapsule_New(function, kind, NULL)


cdef enum Answer:
    DECLINED = 0  # nothing was changed: Python must handle the exception
    DELIVERED = 1
    EXECUTED = 2  # no exception is needed: the instruction was emulated, and the pc is after it


# Reasons why a run ended (also exported to Python).
cpdef enum EngineStop:
    STOP_NONE = 0  # the CPU stopped by itself: it halted or reached an exit address
    STOP_DEADLINE = 1  # the clock reached ``deadline``
    STOP_INTERRUPT = 2  # a pending interrupt became deliverable
    STOP_EXCEPTION = 3  # the CPU raised exception ``vector``
    STOP_INVALID = 4  # an instruction unknown to the CPU model (amd64), or EBREAK (riscv64)
    STOP_LIMIT = 5  # the next block has more instructions than are left before ``limit``
    STOP_UNCOUNTED = 6  # the instruction count of a block is unknown
    STOP_REQUEST = 7  # a callback raised an exception
    STOP_ERROR = 8  # libunicorn reported an error
    STOP_IN_PLACE = 9  # the instruction under a breakpoint must be executed in place
    STOP_UNSURE = 10  # it is not yet known whether the CPU model cut the previous block
    STOP_ADDRESS = 11  # the instruction at a stop address is about to be executed
    STOP_TRAPPED = 12  # a user-mode block has an instruction that must trap (``Clock.trapped``)
    STOP_TURN = 13  # the CPU's turn is over and another CPU may be able to run

cpdef enum TrampolineSize:
    SLOT = 32  # size of a trampoline slot in bytes

cpdef enum StopLimit:
    MAX_STOPS = 256  # maximum number of stop addresses

cpdef enum CpuLimit:
    MAX_CPUS = 8


cdef enum:
    MAX_FOOTPRINT = 2048  # maximum number of stack bytes that a kernel's breakpoint path may use
    GUARD = 256  # size in bytes of the area below the footprint; a change there reveals an overrun
    MAX_REGIONS = 72
    MAX_DEFERRED = 128  # maximum number of registers of an architecture
    INVALID = 0xFFFFFFFF  # pseudo-vector for exceptions that arrive as invalid instructions
    MAX_WALK = 8  # maximum number of page table levels
    MAX_PLACES = 8
    MAX_TRAPPED = 4
    MAX_BRANCHES = 4
    MAX_YIELDS = 4
    MAX_TRANSLATED = 1024  # maximum number of recorded pages with recently translated code
    CODE_KNOWN = 1  # page state: code on the page was translated
    CODE_NEW = 2  # page state: code on the page was translated since the last query
    MAX_GUARDS = 64  # maximum number of ranges of RAM that are guarded because of their code
    MAX_IMAGE_CODE = 64  # maximum number of ranges of the image's code that are guarded as a whole
    HOOK_WORDS = 8  # number of words at the beginning of a hook that contain its range
    FAST_BLOCKS = 32768  # number of entries in the fast path's table of blocks
    CODE_PAGES = 256  # number of cached address translations of code pages at low addresses
    PREFIXES = 4096  # number of cached instruction counts of block prefixes
    PREFIX_BYTES = 248  # maximum length of a block prefix in bytes
    CONTEXT_HEADER = 40  # size in bytes of the header of a context (uc_priv.h, struct uc_context)
    NO_PAGES = 63  # value of ``page_bits`` if page boundaries do not end blocks

cdef struct BlockCount:
    uint64_t address
    uint16_t size
    uint16_t count
    uint8_t end
    uint8_t trapped  # whether the block contains an instruction of ``Clock.trapped`` (TRAPPED_*)
    uint8_t yields  # whether the block ends with an instruction of ``Clock.yields`` (YIELDS_*)


# Cached frame of a code page at a low address, where each process has its own mapping.
cdef struct CodePage:
    uint64_t page
    uint64_t frame
    uint64_t turn  # value of ``Clock.turns`` at the time of the lookup


# A block that the fast path may handle, because it has no trapped instruction; looked up by
# address.
cdef struct FastBlock:
    uint64_t address
    uint64_t turn  # value of ``Clock.turns`` for the block's half of the address space
    uint64_t cut_at  # value of ``Clock.cut_at`` for the block
    uint32_t size
    uint16_t count
    uint16_t end  # how the block ends (END_*), if known


# Instruction count of the first bytes of a block.
cdef struct BlockPrefix:
    uint32_t size  # number of bytes, or 0 in an unused entry
    uint32_t count
    uint8_t code[PREFIX_BYTES]


# A form of conditional branches: they have ``size`` bytes, and the first four match.
cdef struct BranchForm:
    uint32_t size
    uint32_t mask
    uint32_t value


# A range of RAM in which Unicorn looks at all stores of the guest.
cdef struct Guard:
    uint64_t begin
    uint64_t last
    size_t hook
    uint64_t *range  # the range in the hook, or NULL: there is no hook yet


cdef struct Region:
    uint64_t physical
    uint64_t size
    uint8_t *host
    uint8_t *code  # one byte per page: whether code on the page was translated since the last flush


# uc_arm64_cp_reg of unicorn.h, for the system-instruction hook and UC_ARM64_REG_CP_REG
cdef struct CpReg:
    uint32_t crn
    uint32_t crm
    uint32_t op0
    uint32_t op1
    uint32_t op2
    uint64_t val


# Detour of a probed instruction: no time passes between its breakpoint and the next instruction
# (``Clock.frozen``), and all changes made by the detour are undone.
cdef struct DetourState:
    # The address where time resumes, and whether a block start there is not canonical.
    uint64_t at
    bint resumed
    # The stack pointer expected at ``at`` if the kernel itself returns there; unchecked if
    # the register is 0. Without this check, code on that path at ``at`` would end the detour early.
    int sp_register
    uint64_t sp
    # The trampoline in use, the displaced instruction's original address and length, whether a
    # block began after it, and how often a block was entered at the trampoline's first instruction.
    uint64_t slot
    uint64_t site
    uint32_t site_length
    bint slot_ended
    uint64_t slot_entries
    const uint8_t *slot_code  # host address of the trampoline; NULL if it is unknown
    bint slot_shared  # whether exceptions report the address in the (per-thread) trampoline
    # Interrupt mask bits changed for the trampoline; a fault restores ``status_value``.
    int status_register
    uint64_t status_bits
    uint64_t status_value
    # Saved copies of the stack below the interrupted stack pointer and of the exception registers.
    bint footprint
    uint64_t stack_at
    uint32_t stack_size
    uint8_t stack[MAX_FOOTPRINT + GUARD]
    uint32_t stack_wanted  # number of bytes to save: the architecture's footprint plus the guard
    uint8_t *stack_host[2]  # host addresses; the saved stack may span two pages
    uint64_t stack_physical[2]
    uint32_t stack_split  # number of saved bytes on the first page
    uint64_t kept[8]
    # Registers that the guest's return path does not restore; they are written when time resumes.
    int deferred
    int deferred_register[MAX_DEFERRED]
    uint64_t deferred_value[MAX_DEFERRED]
    uint64_t frozen_blocks  # number of blocks entered during detours
    bint gives_away  # whether the displaced instruction yields the CPU's turn


# Saved state of one CPU while another CPU has its turn.
cdef struct CpuPart:
    void *context  # saved registers
    uint8_t shadow
    uint8_t resumed
    uint8_t program_traps
    uint64_t resume_at
    uint64_t address  # start address of the CPU's last block, whose instructions have been counted
    uint32_t size
    uint64_t program_began
    uint64_t *thread_word


# Encoding of an instruction with which a CPU yields its turn (PAUSE, WFE): length and value.
cdef struct Yield:
    uint32_t size
    uint32_t value


cdef struct Clock:
    # These eight flags are read as one 64-bit word; if any is set, a block takes the slow path.
    # Probe code is running: no time passes and no event is due.
    uint8_t frozen
    # A block start at ``resume_at`` is not canonical: it follows a probe, a stop or a cut, or the
    # events due at its canonical start were already handled.
    uint8_t resumed
    # The block at ``piece`` may exceed ``limit``; a stop address ends the block in time.
    uint8_t in_piece
    # No interrupt is taken before the next block (STI).
    uint8_t shadow
    # An interrupt is pending: stop at a block start where the interrupt mask allows it.
    uint8_t pending
    # The fast path is disabled, for tests.
    uint8_t slow
    # The edge hook was not called yet. Unicorn calls it only for translations reached by jumps from
    # another block, so until the first call each block that is entered counts as translated.
    uint8_t untold
    # The block in progress ends with a possible call that returns to an awaited address.
    uint8_t calling
    # Up to this instruction count, no deadline, limit, end of turn or signal check is due.
    uint64_t horizon
    # If the next block starts here, the CPU model may have cut it off from the block in progress.
    uint64_t cut_at
    uint64_t observed  # number of listeners to memory accesses; see ``interrupt_hook``, ``invalid_hook``
    unusual_fn unusual  # slow path of a block start; a function pointer prevents inlining
    # Index of the CPU whose registers are in the engine, and the number of CPUs.
    uint32_t cpu
    uint32_t cpus
    # The turn ends at the first canonical block start at or after ``turn_end`` instructions.
    # The turn began at ``turn_began`` and lasts ``turn_length`` instructions unless the CPU yields.
    uint64_t turn_end
    uint64_t turn_began
    uint64_t turn_length
    # Virtual time stands still up to this instruction count: another CPU ran for longer this round.
    uint64_t still
    # Length in instructions of the longest earlier turn in this round.
    uint64_t longest
    # Whether a non-maskable interrupt is pending; these bits of a context word block the interrupt.
    bint urgent
    uint32_t urgent_place
    uint32_t urgent_masked
    exchanging_fn exchanging  # called when the CPU in the engine changes, or NULL
    void *exchanging_data
    # Offset in a context of the address reserved by an exclusive access, or 0.
    uint32_t monitor_place
    uint64_t pause_end  # instruction count after the yield that ends the block in progress, or NEVER
    uint64_t passed_by_at  # instruction count at the CPU's last yield instruction
    uint64_t passed_by  # number of yield instructions that do not end the turn
    bint others  # whether another CPU may be able to run
    CpuPart parts[MAX_CPUS]
    int yield_count
    Yield yields[MAX_YIELDS]
    # Number of instructions executed before the block in progress.
    uint64_t instructions
    uint64_t history  # incremented when another state is restored
    # Start address, size in bytes and instruction count of the block in progress, or count 0.
    uint64_t address
    uint32_t size
    uint32_t count
    # Instruction count at the start of the last canonical block; devices see this time.
    uint64_t canonical
    # Fixed instruction length in bytes, or 0 if instruction counts of blocks must be looked up.
    uint32_t fixed
    int fixed_bits  # log2 of the fixed instruction length
    int page_bits  # log2 of the page size at whose boundaries blocks end
    uint64_t blocks
    # Hash table (open addressing) from block address and size to instruction count.
    BlockCount *table
    uint64_t table_mask
    uint64_t table_used
    begin_fn begin
    uint64_t skew
    # Stop at the first canonical block start at or after this virtual time.
    uint64_t deadline
    # Stop before a block that would exceed this instruction count.
    uint64_t limit
    int mask_register
    uint64_t mask_bits
    uint64_t mask_value
    # A pending interrupt is taken only if one of these bits is set (riscv64 sie); 0 means always.
    int gate_register
    uint64_t gate_bits
    # The CPU is in user mode if the register's masked bits equal ``level_value``. Where the model
    # hides control registers in user mode, the gate is read from a context.
    int level_register
    uint64_t level_bits
    uint64_t level_value
    uint32_t gate_place
    uint32_t system_call  # vector reported for a system call instruction
    uint64_t resume_at
    uint64_t piece
    # The previous block, while its kind of end (END_*) is unknown.
    uint64_t before
    uint32_t before_size
    # With fixed-length instructions, only ``word & end_mask == end_value`` ends a block by itself.
    uint32_t end_mask
    uint32_t end_value
    # Instructions of a given size that match a (mask, value) pair always end a block by themselves.
    split_fn split
    int branch_count
    BranchForm branches[MAX_BRANCHES]
    # While this flag is set, instructions that match a (mask, value) pair below trap in user mode.
    uint8_t program_traps
    int trapped_count
    uint32_t trapped[MAX_TRAPPED][2]
    int last_address
    # Program counter to set after the run, or 0 to leave it unchanged.
    uint64_t moved
    # Unicorn ends a run when a hook writes the program counter after EBREAK (riscv64). The engine
    # therefore writes the program counter into a saved context and restores the context.
    int pc_register
    bint by_context
    uint32_t pc_place  # offset of the program counter in a context
    uint32_t places[MAX_PLACES]
    bint answered
    void *context
    context_fn context_save
    context_fn context_restore
    context_free_fn context_free
    uint64_t heard  # instruction count of the next signal check
    DetourState detour
    # Reason why the last run ended (STOP_*).
    int stop
    bint running
    bint started  # whether code was run, so that translations may exist
    uint32_t vector
    void *uc
    void *engine
    emu_stop_fn emu_stop
    reg_fn reg_read
    reg_fn reg_write
    translate_fn vmem_translate
    kinst_ctl_fn ctl
    kinst_hook_add_fn hook_add
    hook_del_fn hook_del
    walk_fn walk
    CodePage code_pages[CODE_PAGES]
    # Generation numbers for low and high addresses; cached code addresses are valid while the
    # number is unchanged. Only the number for low addresses changes, since each process maps these.
    uint64_t turns[2]
    # Instruction count when the guest last went from the kernel to a program.
    uint64_t program_began
    FastBlock fast[FAST_BLOCKS]
    uint64_t no_execute  # no-execute bit of page table entries
    uint64_t *walked[MAX_WALK]
    int walked_count
    # Guest RAM on the host.
    Region regions[MAX_REGIONS]
    int region_count
    # Pages in state CODE_NEW, recorded once ``asks_translated`` is set.
    bint asks_translated
    uint32_t translated_used
    uint64_t translated[MAX_TRANSLATED]
    # Whether code was translated on a page whose physical address is unknown.
    bint code_anywhere
    # Ranges of RAM in which all stores of the guest are looked at (``_guards.pxi``).
    Guard guards[MAX_GUARDS]
    int guard_count
    uint64_t image_code[MAX_IMAGE_CODE][2]  # virtual [begin, end) of code in the image
    int image_code_count
    bint guards_high  # whether any code at a high address is guarded
    # Callback of the breakpoints' owner, and the architecture's breakpoint exception.
    bint patched  # breakpoints of probes are in memory
    trap_fn trap
    void *trap_data
    enter_fn enter
    # Handler of the architecture's other exceptions, and the context offsets that the handler uses.
    deliver_fn deliver
    uint32_t exception_places[MAX_PLACES]
    uint32_t pc_ahead  # number of bytes that the CPU model adds to an exception's program counter
    uint64_t moment
    uint64_t exception_at  # instruction count at the last ``exceptions`` consecutive exceptions
    uint32_t exceptions
    BlockPrefix *prefixes
    # Callback before the instruction at ``seam``, or NULL.
    seam_fn seam_call
    uint64_t seam
    forget_fn keep
    forget_fn forget
    uint64_t unknown_address
    uint32_t unknown_size
    uint64_t exits[MAX_STOPS]
    size_t exit_count
    # Stop addresses, before which the CPU stops, and their hooks.
    uint64_t stops[MAX_STOPS]
    size_t stop_hooks[MAX_STOPS]
    int stop_count
    # The stop at this address is skipped once.
    bint passing
    uint64_t pass_by
    # The most recently skipped stop address, and the instruction count before its block.
    uint64_t passed
    uint64_t passed_at
    uint64_t taken  # number of exceptions and interrupts delivered or emulated
    # Awaited block starts: a hash table with open addressing, in which 0 is a free entry.
    uint64_t *awaited
    uint64_t awaited_mask
    uint64_t awaited_count
    arrived_fn arrived
    called_fn called
    uint64_t calls_back  # return address of the possible call that ``calling`` reports
    void *arrived_data
    # Host address of the guest word that points to the current thread, or NULL if unknown.
    uint64_t *thread_word


# Native handler for clock-reading instructions, which guests execute by the million.
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


# System registers answered natively (arm64), by key; the CPU model handles all others.
cdef struct SystemRegisters:
    ClockRead counter
    uint8_t counters[65536]
    uint8_t known[65536]
    uint32_t trap_key  # the register that controls floating-point traps in user mode
    uint64_t trap_bits  # floating point does not trap while all of these bits are set
    void *engine


cdef inline uint64_t time_at(Clock *c, uint64_t count) noexcept nogil:
    """Return the virtual time in ns after ``count`` instructions, within the current turn."""
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
    """Return a pointer to the length of a context's CPU state (struct uc_context, first field)."""
    return <size_t *>c.context


cdef inline uint32_t *word_in_context(Clock *c, uint32_t place) noexcept nogil:
    return <uint32_t *>(<uint8_t *>c.context + place)


cdef void go_to(Clock *c, uint64_t pc) noexcept nogil
cdef int await_address(Clock *c, uint64_t address) noexcept nogil
cdef enum:  # results of ``await_address``
    AWAITED = 0
    TOO_MANY_AWAITED = 1
    NO_MEMORY = 2
    MAX_AWAITED = 1 << 20  # maximum number of awaited addresses
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
    cdef object owner  # the unicorn.Uc object, which keeps the engine alive
    cdef list memory  # buffers that back guest RAM
    cdef map_ptr_fn map_ptr
    cdef mmio_map_fn mmio_map
    cdef kinst_hook_add_fn hook_add
    cdef kinst_ctl_fn ctl
    cdef context_alloc_fn context_alloc
    cdef context_size_fn context_size
    cdef hook_del_fn hook_del
    cdef list windows
    cdef dict seam_hooks  # Unicorn's hook handles of seams, keyed by address
    cdef dict left_hooks  # hook handles of stops that could not be removed, keyed by address
    cdef int most_left  # size of ``left_hooks`` at which removal is tried again
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
