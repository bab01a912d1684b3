"""Data structures of the dispatcher: sites, probes, calls in progress, and the complete state.

This file is part of the dispatcher; ``_dispatch.pyx`` includes it.
"""

# Large members come first, so that the compiler inserts no padding between them: there may be
# millions of these.
cdef struct Site:
    uint64_t address
    uint64_t block
    # at a tracepoint, address of the code that computes its arguments; at a guard,
    # address of the guarded code
    uint64_t target
    # at a guard, address to which the branch jumps while no static probe is enabled
    uint64_t otherwise
    uint32_t template
    uint32_t first
    uint32_t slot  # index of the trampoline's slot, or NONE
    int32_t relative  # displacement operand, which is not in the template
    # 2 * n + 1 at the call of vnode operation n, 2 * n + 2 at the operation's return; elsewhere 0
    uint32_t operation
    uint32_t lock  # number of the lock's swap before this instruction, plus 1; elsewhere 0
    uint32_t behind  # in a program, number of instructions that precede this one in its ``block``
    uint8_t length
    uint8_t second  # offset of the trampoline's second breakpoint
    uint8_t patched
    uint8_t gate  # at a gate, the number of its arguments after the first argument; elsewhere 0
    uint8_t call  # CALL_BEGINS or CALL_ENDS if system calls begin or return here, else 0
    uint8_t allocation  # number of the ``AllocationSite`` before this instruction, plus 1; else 0
    # whether this is a program's repeated instruction (amd64 REP); each repetition is counted
    uint8_t repeats
    uint8_t join  # whether a guard's branch jumps to this site to skip a tracepoint
    uint8_t code[MAX_CODE]

cdef struct Probe:
    uint64_t count
    # Bounds [low, high) of the function, or high = 0 if the probe fires unconditionally.  A return
    # probe at a conditional or computed jump fires only if the jump leaves the bounds or goes to
    # the start of the function.
    uint64_t low
    uint64_t high
    uint32_t site  # NONE for a static probe, which may have many sites
    uint32_t primary  # probe that counts the firings: a tracepoint's static probe, or this probe
    uint32_t next
    uint32_t function
    uint32_t copy
    int32_t lower  # at an entry of a copy: number of bytes by which the stack pointer is lowered
    # for a probe that a program declares, the index of its arguments' ``Sources``
    uint32_t sources
    uint8_t provider
    uint8_t removed
    uint8_t told  # whether Python is notified of firings that an action handles natively
    # role in an inline copy: ENTERS, WAY_OUT or CALLS_OUT, or 0 if the probe has no role
    uint8_t role
    uint8_t silent  # whether the probe only tracks its inline copy and never fires
    uint8_t loops  # at the entry of an inline copy: whether the copy's own code may lead back there
    # for a return probe at a jump, whether it fires when the jump's target function has returned
    uint8_t tail

# The entry and return probes of a vnode operation, or NONE for a probe that is not enabled.
cdef struct Operation:
    uint32_t entry
    uint32_t returns
    # address that the first word of the operation's argument structure holds; 0 if unknown
    uint64_t descriptor

# A kind of lock.
cdef struct LockState:
    uint64_t word  # offset of the word in the lock
    uint64_t flags  # bits of the word that belong to neither the owner nor the sharers
    uint64_t shared  # bits that are set while the lock is shared; 0 if threads cannot share it
    uint32_t sharers  # number of the lowest bit that counts the sharers
    uint64_t kind_at  # offset in the lock of the 32-bit word that contains the kind's number
    uint32_t shift
    uint32_t mask
    uint32_t number

# A swap of a lock's word.  It was successful if the bits ``result_mask`` of the register ``result``
# are those of the register ``equal`` or, if there is none, of ``value``.
cdef struct LockSwap:
    uint64_t result_mask
    uint64_t value
    uint64_t scale
    uint64_t offset
    uint64_t merges  # address of the site of another swap to which this one's site jumps, or 0
    uint32_t kind
    uint32_t probe
    uint8_t result
    uint8_t equal
    uint8_t base
    uint8_t index
    uint8_t old
    uint8_t new
    bint acquires
    bint uncertain  # whether it may swap the word of something else

# A thread that comes to the site of a swap from another swap, which has fired already.
cdef struct Passing:
    uint64_t thread
    uint64_t sp
    uint64_t address

# A call of a vnode operation that is in progress.
cdef struct Pending:
    uint64_t sp
    const Operation *site  # that of the site of the call, and of the site where it returns
    const Operation *operation  # what was called
    uint64_t arguments

cdef struct Record:
    uint64_t time
    uint64_t skew  # virtual time minus the instruction count
    uint64_t arguments[ARGUMENTS]
    uint32_t probe
    uint32_t cpu

# An instruction that the kernel's breakpoint handler emulates, and its effect.
cdef struct Effect:
    uint64_t answer  # value that the seam returns to make the handler emulate this instruction
    int64_t change  # new stack pointer minus the value of the register ``base``
    uint8_t base
    uint8_t code
    bint returns
    uint8_t stores  # register that is stored at the new stack pointer, or NO_REGISTER
    uint8_t loads  # register that is loaded from the address in ``base``, or NO_REGISTER

cdef enum:
    MAX_EFFECTS = 8

cdef struct CallTable:
    uint64_t base
    uint64_t size  # size of an entry in bytes
    uint32_t count
    # entry and return probe of each system call, or NONE for a probe that is not enabled
    uint32_t *probes
    # width of each argument in bits, negative if the argument is signed; 0 for a full register
    int8_t *widths

cdef struct Calls:
    int per_cpu  # Unicorn's identifier of the register that points to the current thread's pointer
    # Offsets in struct thread of a system call's arguments, table entry, return value, error and
    # flags. The flag ``error_set`` means that the call has set the error itself.
    uint64_t arguments
    uint64_t entry
    uint64_t value
    uint64_t error
    uint64_t flags
    uint32_t error_set
    int table_count
    CallTable tables[MAX_TABLES]

# Where the kernel has updated the statistics of a type of memory.  The registers hold the type,
# the size and the number of the zone; NO_REGISTER: the size or number is a constant.
cdef struct AllocationSite:
    uint64_t size_value
    uint64_t zone_value
    uint8_t kind
    uint8_t size
    uint8_t zone
    uint8_t frees  # whether memory is freed instead of allocated

cdef struct AllocationType:
    uint64_t kind  # address of the type's structure
    uint32_t probes[2]  # its probes for allocating and freeing, or NONE

cdef enum:
    MAX_ALLOCATION_SITES = 64
    MOST_ALLOCATION_TYPES = 1 << 16

cdef struct Allocations:
    # Unicorn's identifier of the register that points to the CPU's structure, and the offset there
    # of the word that is added to the address of statistics
    int per_cpu
    uint64_t of_cpu
    # Offsets in a type of its internal structure, and of the address of its statistics
    uint64_t internal
    uint64_t statistics
    uint32_t site_count
    AllocationSite sites[MAX_ALLOCATION_SITES]
    AllocationType *types  # sorted by address
    uint32_t type_count
    uint32_t type_room

# Pending return of a function that left by a tail call, or of an inline copy that ends in a call.
cdef struct Tail:
    uint64_t sp  # the stack pointer after the return
    uint64_t back  # the return address
    uint32_t probe
    bint calls  # whether the call that returns to ``back`` has yet to be executed

# An inline copy that a thread is executing.
cdef struct ActiveCopy:
    uint64_t sp  # the stack pointer when the thread entered the copy
    uint32_t copy

cdef struct TailThread:
    uint64_t key
    bint used
    uint32_t count
    uint32_t room
    Tail *all
    uint32_t active_count
    uint32_t active_room
    ActiveCopy *active

cdef struct InlineCopy:
    uint32_t first  # index of the copy's first range
    uint32_t count
    uint64_t order  # lower than that of a copy inside this one

cdef struct CodeRange:
    uint64_t low
    uint64_t high

cdef enum:
    NO_WAY_OUT = 0
    ENTERS = 1
    WAY_OUT = 2
    CALLS_OUT = 3
    MAX_RANGES = 4096

cdef struct Tails:
    TailThread *threads  # hash table with open addressing
    uint64_t mask
    uint64_t count
    uint64_t room  # array elements allocated for all threads
    uint64_t history  # ``Clock.history``, which changes when another state is restored

include "_program_table.pxi"


cdef struct Dispatch:
    Clock *clock
    Operation operations[MAX_OPERATIONS]
    int operation_count
    Pending pending[MAX_PENDING]
    uint64_t latest  # instruction count at the latest call; a decrease invalidates ``pending``
    int pending_count
    Allocations allocations
    LockState locks[MAX_LOCKS]
    int lock_count
    LockSwap *lock_swaps
    uint32_t lock_swap_count
    uint32_t lock_swap_room
    # Threads that are about to pass the site of a swap after another swap
    Passing lock_passing[MAX_PASSING]
    int lock_passing_count
    uint64_t lock_history  # ``Clock.history`` when the latest of them was added
    void *owner
    int path
    bint counting_only
    # For each register: Unicorn's identifier, offset in the trap frame (-1 for a register outside
    # the frame), and whether the kernel restores the register
    int count
    int number[MAX_REGISTERS]
    int place[MAX_REGISTERS]
    bint restored[MAX_REGISTERS]
    # Registers whose interrupted value is not in the trap frame; compiled code never changes them
    bint untold[MAX_REGISTERS]
    # whether the register has more than 64 bits, so that only LOAD_VECTOR writes it
    bint wide[MAX_REGISTERS]
    uint8_t arguments[ARGUMENTS]
    uint8_t pc
    uint8_t sp
    uint8_t status
    uint8_t link
    uint8_t result
    uint8_t frame_register
    uint8_t segment
    uint8_t counter  # register that counts the repetitions of repeated instructions
    int flag_bits[8]
    int flag_count
    # Breakpoint
    uint32_t vector
    uint32_t bias
    bint called  # whether the kernel calls the seam, which then returns 0, instead of jumping to it
    # Instructions that the kernel's breakpoint handler emulates on request
    Effect effects[MAX_EFFECTS]
    int effect_count
    uint64_t frame_bias
    # stack to which breakpoint exceptions switch, or 0 if they stay on the interrupted stack
    uint64_t trap_stack
    uint64_t frame_mask  # bits of the frame's status register that mask interrupts
    bint mask_sets
    uint64_t cpu_mask  # bits of the CPU's status register that mask interrupts
    uint64_t saved_mask
    int frame_size
    uint64_t seam
    uint64_t scratch  # address of a word that the breakpoint path overwrites
    uint64_t scratch_value  # original value of the word at ``scratch``
    uint64_t flags_if  # amd64: RFLAGS.IF, which selects the thread's or the CPU's trampoline
    # Trampolines
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
    uint8_t jump[8]  # instruction that jumps to the address stored after it
    uint32_t jump_length
    uint8_t breakpoint[4]
    uint32_t breakpoint_length
    uint8_t short_breakpoint[2]
    uint8_t short_nop[2]
    # Tables
    const Templates *templates
    Site *sites
    uint32_t site_count
    uint32_t site_room
    Probe *probes
    uint32_t probe_count
    uint32_t probe_room
    uint32_t *hash
    uint64_t hash_mask
    # Recording and actions
    Record *records
    uint32_t record_count
    uint64_t firings
    Action action
    # The firing in progress
    uint8_t *frame[2]
    uint32_t frame_split
    bint framed
    uint64_t at
    bint firing  # whether a Python or native handler is running; if so, the tables must not change
    # The tracepoint whose arguments the guest is computing, and the registers at the tracepoint
    uint32_t visiting
    uint32_t reached  # the tracepoint that the guest has reached from the guard
    uint64_t before[MAX_REGISTERS]
    uint8_t above[ABOVE]  # contents of the stack from the stack pointer upward
    uint64_t above_at
    uint64_t above_size
    # Register that holds each argument of a gate; NO_REGISTER: it is ``made_stack`` bytes above sp
    uint8_t made_in[GIVEN_ARGUMENTS]
    uint64_t made_stack
    uint64_t made[DECLARED_ARGUMENTS]
    split_fn split
    Programs programs
    Sources *sources
    uint32_t source_count
    uint32_t source_room
    # whether ``made`` holds the firing probe's arguments (static, system call or program's own probe)
    bint making
    Calls calls
    Tails tails
    InlineCopy *copies
    uint32_t copy_count
    uint32_t copy_room
    CodeRange *ranges
    uint32_t range_count
    uint32_t range_room
    bint after  # whether the firing probe's function has already returned to its caller
    bint linked  # whether calls leave their return address in ``link``, not on the stack
    # Unicorn's identifier of the register that points to the current thread's pointer,
    # or 0 if unknown
    int per_cpu
    uint64_t thread_begins  # address of a new thread's first instruction, or 0 if unknown
    bint stop  # the handler has failed, so the instruction must not be executed
