"""What the dispatcher keeps: sites, probes, calls in progress, and all of it as one structure; part of it
(``_dispatch.pyx`` includes it).
"""

cdef struct Site:
    uint64_t address
    uint32_t template
    uint32_t first
    uint32_t slot  # index of its trampoline, or NONE
    int32_t relative  # of an encoding whose template leaves the displacement out
    uint8_t length
    uint8_t second  # offset of the trampoline's second breakpoint
    uint8_t patched
    uint8_t gate  # how many arguments of a static probe are there when the guest comes here
    uint8_t call  # a system call begins here, or has returned (CALL_BEGINS, CALL_ENDS)
    uint32_t operation  # one of them is called here, or has returned; 0: none
    uint8_t repeats  # in a program: counted as often as it repeats itself
    uint32_t behind  # in a program: instructions before it in a block that starts at ``block``
    uint64_t block
    uint8_t join  # a guard's way without a tracepoint leads here
    uint64_t target  # where a static probe's arguments are made; of a guard: what it guards
    uint64_t otherwise  # of a guard: where it leads else
    uint8_t code[MAX_CODE]

cdef struct Probe:
    uint64_t count
    uint32_t site  # NONE: of a static probe, which may have many
    uint32_t primary  # whose firings these are: of one of a static probe's sites, that probe; or itself
    uint32_t next
    uint32_t function
    uint8_t provider
    uint8_t removed
    uint64_t low  # a return that a condition or an address decides: it fires where the next
    uint64_t high  # instruction is not behind the first of [low, high), the function; 0: always
    uint8_t told  # Python is told of its firings, whatever is done natively
    uint8_t role  # of an inline copy: ENTERS, WAY_OUT or CALLS_OUT
    uint8_t silent  # it only follows the copy
    uint32_t copy
    int32_t lower  # at an entry of a copy: bytes that the stack pointer is lowered by there
    uint8_t tail  # a return at a jump: it fires when the function that is jumped to has returned

# The probes of an operation; NONE: it is not enabled.
cdef struct Operation:
    uint32_t entry
    uint32_t returns

# A call of one that is in progress.
cdef struct Pending:
    uint64_t sp
    const Operation *operation
    uint64_t arguments

cdef struct Record:
    uint64_t time
    uint64_t skew  # virtual time beyond the instructions
    uint64_t arguments[ARGUMENTS]
    uint32_t probe
    uint32_t cpu

# An instruction that the kernel's vectors do: what they are told, and where the stack pointer is then.
cdef struct Effect:
    uint64_t answer
    int64_t change  # from the register ``base``
    uint8_t base
    uint8_t code
    bint returns
    uint8_t stores  # at the new stack pointer; NO_REGISTER: nothing
    uint8_t loads  # from where ``base`` leads to

cdef enum:
    MAX_EFFECTS = 8

cdef struct CallTable:
    uint64_t base
    uint64_t size  # of an entry, in bytes
    uint32_t count
    uint32_t *probes  # entry and return of each; NONE: there is none
    int8_t *widths  # of each call's arguments: so many bits, negative ones with a sign; 0: as it is

cdef struct Calls:
    int per_cpu  # the register that leads to the thread
    # In the thread: the call's arguments, its entry, what it returns, its error; its flags, of which
    # one says that the call itself has set the error.
    uint64_t arguments
    uint64_t entry
    uint64_t value
    uint64_t error
    uint64_t flags
    uint32_t error_set
    int table_count
    CallTable tables[MAX_TABLES]

# A function that has left by a tail call, and has not returned.
cdef struct Tail:
    uint64_t sp  # the stack pointer when it has returned
    uint64_t back
    uint32_t probe
    bint calls  # the call that it waits for has not been executed yet

# An inline copy that a thread is in.
cdef struct ActiveCopy:
    uint64_t sp  # when it was entered
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
    uint32_t first  # of its ranges
    uint32_t count

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
    TailThread *threads  # open addressing
    uint64_t mask
    uint64_t count
    uint64_t room  # of all threads
    uint64_t history  # of the clock: when it changes, another state was restored

include "_program_table.pxi"


cdef struct Dispatch:
    Clock *clock
    Operation operations[MAX_OPERATIONS]
    int operation_count
    Pending pending[MAX_PENDING]
    uint64_t latest  # when one of them was called last: time that goes back makes them void
    int pending_count
    void *owner
    int path
    bint counting_only
    # registers: Unicorn's numbers, place in the trap frame (-1: none), restored by the kernel
    int count
    int number[MAX_REGISTERS]
    int place[MAX_REGISTERS]
    bint restored[MAX_REGISTERS]
    bint untold[MAX_REGISTERS]  # the frame does not have it as it was, and no compiled code changes it
    bint wide[MAX_REGISTERS]  # more than 64 bits: LOAD_VECTOR's only
    uint8_t arguments[ARGUMENTS]
    uint8_t pc
    uint8_t sp
    uint8_t status
    uint8_t link
    uint8_t result
    uint8_t frame_register
    uint8_t segment
    uint8_t counter  # of what repeats itself
    int flag_bits[8]
    int flag_count
    # the breakpoint
    uint32_t vector
    uint32_t bias
    bint called  # the seam is called and returns 0; else registers are set from the frame
    # Instructions that the kernel's vectors do themselves, when they are told.
    Effect effects[MAX_EFFECTS]
    int effect_count
    uint64_t frame_bias
    uint64_t trap_stack  # what breakpoints come on; 0: the interrupted stack
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
    const Templates *templates
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
    # a static probe's arguments on the way: from the site, with the registers there
    uint32_t visiting
    uint32_t reached  # from a guard: the tracepoint
    uint64_t before[MAX_REGISTERS]
    uint8_t above[ABOVE]  # the stack, from its pointer on
    uint64_t above_at
    uint64_t above_size
    uint8_t made_in[GIVEN_ARGUMENTS]  # NO_REGISTER: the stack, so far above its pointer
    uint64_t made_stack
    uint64_t made[DECLARED_ARGUMENTS]
    split_fn split
    Programs programs
    bint making  # what fires is a static probe, or a system call's
    Calls calls
    Tails tails
    InlineCopy *copies
    uint32_t copy_count
    uint32_t copy_room
    CodeRange *ranges
    uint32_t range_count
    uint32_t range_room
    bint after  # the function that fires has returned
    bint linked  # calls leave their return address in ``link``, not on the stack
    int per_cpu  # Unicorn's number of the register that leads to the thread; 0: it is not known
    uint64_t thread_begins  # where new threads begin; 0: it is not known
    bint stop  # that failed: the instruction is not carried out
