"""What a program works on, as structures, and the numbers that Python gives names; part of the
runtime (``_runtime.pyx`` includes it)."""

cdef enum:
    MAX_REGIONS = 16
    MAX_DEPTH = 8
    FRAMES = 17  # of two runs, one inside the other (ERROR), and one spare
    MAX_HELPER = 256
    TEXT = 1 << 16  # bytes of a string that is looked at
    PARAMETERS = 4
    PAGE = 4096
    MAX_SPECULATIONS = 4096
    WALK = 4  # steps from the thread to a variable
    WALKS = 64
    PLACES = 64
    BUDGET = 1 << 24  # instructions of one run, by what jumps back and calls can repeat
    WALKED = 40  # registers that a walk up the stack knows
    SAVED = 16  # of a frame
    STEP_BITS = 15
    STEPS = 1 << STEP_BITS
    STEP_FREE = 0
    MAX_FRAMES = 1000
    NAMES = 64  # of processes
    NAME_BYTES = 32  # ``LONGEST_NAME`` of layout.py
    ANCESTORS = 64
    HEAD = 24  # of a record: clause and size, time, size as DTrace counts and number of the CPU

cdef struct Code:
    uint8_t op
    uint8_t to
    uint8_t source
    bint immediate
    int32_t jump  # the number of the instruction that it leads to
    int64_t offset
    uint64_t value

cdef struct RegionData:
    uint8_t *data
    uint64_t size
    bint writable

cdef struct Variable:
    uint32_t size
    uint8_t text  # 0: a number, 1: a string, 2: bytes
    bint thread

cdef struct Function:
    int kind
    uint32_t count
    uint64_t size  # of one, as DTrace counts; 0: it is not counted so
    int64_t parameter[PARAMETERS]

# A value of an associative array: in a chunk of the dynamic region, the key behind it.
cdef struct Chunk:
    uint64_t hash
    uint32_t next
    uint32_t variable
    uint32_t key_size
    bint used

cdef struct Entry:
    uint64_t hash
    uint32_t next
    uint32_t function
    uint32_t key_size
    uint64_t at  # in the arena: values, then the key

# A variable that lies in the guest: a walk from the thread on, by offsets.
cdef struct Walk:
    bint known
    bint text  # the last offset leads to a string, not to a number
    uint32_t size  # of the number
    uint32_t steps
    uint64_t offset[WALK]

# Where a register is saved: by its number on the walk, so many bytes from the caller's frame.
cdef struct SavedRegister:
    uint8_t register
    uint8_t size  # bytes; 0: it is nowhere
    int32_t offset

# How to go from the code at an address to the caller: ``FrameStep`` of ``dtrace/stacks/stack.py``.
cdef struct KnownStep:
    uint64_t address
    uint8_t how
    bint is_return
    bint above
    uint8_t count
    int8_t link
    uint8_t base
    int32_t offset
    int32_t floor
    SavedRegister saved[SAVED]

cdef struct ProcessName:
    uint8_t text[NAME_BYTES]
    int64_t number

# What is known of stacks; by ``Runtime.walk_stacks``.
cdef struct Walker:
    KnownStep *step
    uint32_t steps
    int16_t place[WALKED]  # of a register on the walk among those of the dispatcher
    int pc  # on the walk; -1: nothing is known
    int sp
    uint64_t low  # the kernel's code is from there to below ``high``
    uint64_t high
    uint64_t entry  # where injected calls return to
    bint programs  # they may run
    uint64_t skip  # frames of the probe that fires
    bint after  # the function that fires has returned: the first frame is its caller
    uint64_t marks  # bits of an address that say what it is
    uint64_t own_mark
    uint64_t caller_mark
    SavedRegister trap[WALKED]
    int trap_count
    # the program: where a thread has its trap frame, what that and a frame record hold
    bint frames_known
    uint64_t thread_frame
    SavedRegister user[PLACES]  # by the numbers of uregs[]
    SavedRegister user_pc
    SavedRegister user_frame
    int32_t record_saved
    int32_t record_return
    uint64_t name_variable
    uint32_t name_size
    ProcessName name[NAMES]
    uint32_t names
    # a process's number and parent
    bint family_known
    uint64_t process
    uint64_t process_number
    uint64_t parent
    # the numbers of variables
    uint64_t stackdepth
    uint64_t ustackdepth
    uint64_t caller
    uint64_t ucaller

# What the program of a kernel's probe is given, beside its arguments.
cdef struct Entered:
    bint enabled
    uint8_t kind
    uint8_t wanted  # arguments that its program reads, from the first
    uint8_t own_frames  # at the beginning of the stack, which stack() leaves out
    uint32_t entry
    uint64_t number
    uint64_t first
    uint64_t offset
    uint64_t text[4]

cdef struct Speculated:
    uint8_t *data
    uint64_t used
    uint64_t counted
    int state

ctypedef bint (*read_fn)(void *, uint64_t, void *, uint32_t) noexcept nogil

cdef struct Machine:
    RegionData region[MAX_REGIONS]
    Code *code
    uint32_t code_count
    uint32_t code_room
    int depth
    # the fault in progress
    int fault
    uint64_t fault_value
    uint32_t fault_at
    uint32_t error_entry
    bint in_error
    uint64_t serial  # of the firing in progress; the ERROR probe's are odd
    uint8_t error_context[256]
    uint64_t error_faults
    # the guest
    read_fn read
    void *read_data
    uint64_t thread
    bint numbered  # threads have a number, and a process that has one, there:
    uint64_t number_at
    uint64_t process_at
    uint64_t process_number_at
    bint thread_known  # it is looked up once a firing
    argument_fn read_register  # in a firing; NULL: none is
    void *interrupted
    int16_t place[PLACES]  # of regs[n] among the registers; -1: the host is asked
    # scratch
    uint64_t scratch_at
    uint64_t string_size
    uint8_t *compared[2]  # room for two strings
    # dynamic variables
    Variable *variable
    uint32_t variable_count
    Chunk *chunk
    uint32_t chunk_count
    uint32_t chunk_size
    uint32_t chunk_free
    uint32_t *bucket
    uint32_t bucket_count
    uint64_t dynamic_drops
    # aggregations
    Function *function
    uint32_t function_count
    Entry *entry
    uint32_t entry_count
    uint32_t entry_room
    uint32_t *entry_bucket
    uint32_t entry_buckets
    uint8_t *arena
    uint64_t arena_used
    uint64_t arena_size
    uint64_t arena_room
    uint64_t aggregation_drops
    # records
    uint8_t *buffer
    uint64_t buffer_size
    uint64_t buffer_used
    uint64_t buffer_room  # what was allocated; a record takes more here than DTrace counts
    uint64_t counted
    uint64_t buffer_begin  # of a ring: the oldest record
    uint64_t buffer_end  # of a ring: behind the last record before the wrap
    bint wrapped
    int policy
    uint64_t drops
    uint64_t record_clause
    uint64_t record_size
    uint64_t record_counted
    bint record_open
    bint filled
    # speculations
    Speculated *speculated
    uint32_t speculation_count
    uint64_t speculation_size
    uint64_t speculation_room
    uint64_t speculation_drops
    uint64_t speculation_unavailable
    uint64_t speculating
    bint stopped
    bint told  # that tracing has ended
    # a kernel's probes
    Clock *clock
    Entered *entered
    uint32_t entered_count
    int per_cpu
    uint64_t look  # the time at which the consumer wants to look
    bint failing
    Walk walk[WALKS]
    Walker walker
    void *owner

ctypedef uint64_t (*helper_fn)(Machine *, uint64_t *) noexcept nogil

cdef uint64_t BASE = layout.BASE >> layout.REGION_SHIFT

cdef uint64_t LAST_FAULT = max(Fault)
cdef int BAD_ADDRESS = Fault.BAD_ADDRESS
cdef int BAD_ALIGNMENT = Fault.BAD_ALIGNMENT
cdef int ILLEGAL_OPERATION = Fault.ILLEGAL_OPERATION
cdef int NO_SCRATCH = Fault.NO_SCRATCH
cdef int TUPLE_OVERFLOW = Fault.TUPLE_OVERFLOW
cdef int R_STACK = Region.STACK
cdef int R_CONTEXT = Region.CONTEXT
cdef int R_RECORD = Region.RECORD
cdef int R_SCRATCH = Region.SCRATCH
cdef int R_DYNAMIC = Region.DYNAMIC
cdef int R_STATE = Region.STATE
cdef int CONTEXT_SIZE = layout.ContextOffset.END
cdef int CONTEXT_TIMESTAMP = layout.ContextOffset.TIMESTAMP
cdef int CONTEXT_CLAUSE = layout.ContextOffset.CLAUSE
cdef int CONTEXT_ARGUMENTS = layout.ContextOffset.ARGUMENTS
cdef int CONTEXT_FIRST = layout.ContextOffset.FIRST
cdef int CONTEXT_PROVIDER = layout.ContextOffset.PROVIDER
cdef int VARIABLE = Helper.VARIABLE
cdef uint64_t REGS = layout.REGS
cdef uint64_t UREGS = layout.UREGS
cdef int STEP_ON = StepKind.ON
cdef int STEP_TRAP = StepKind.TRAP
cdef int STEP_LAST = StepKind.LAST
cdef int STEP_OUTSIDE = StepKind.OUTSIDE
cdef uint64_t MAX_USER_FRAMES = layout.MAX_USER_FRAMES
cdef int STACK_HELPER = Helper.STACK
cdef int PROGENYOF = Helper.PROGENYOF
cdef int CONTEXT_PROBE = layout.ContextOffset.PROBE
cdef int FRAME_BYTES = STACK

cdef uint32_t NONE = 0xFFFFFFFF
cdef uint64_t LOW32 = 0xFFFFFFFF
cdef uint64_t USER_ADDRESS = (<uint64_t>1 << 48) - 1  # a program's lie below that
