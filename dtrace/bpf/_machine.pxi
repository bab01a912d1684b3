"""C structures for a program's state; C copies of constants (included by ``_runtime.pyx``)."""

cdef enum:
    MAX_REGIONS = 16
    MAX_DEPTH = 8
    FRAMES = 17  # number of stack frames: 8 for a program, 8 for the ERROR probe's program, 1 spare
    MAX_HELPER = 256
    TEXT = 1 << 16  # maximum size of a string in bytes
    PARAMETERS = 4
    PAGE = 4096
    MAX_SPECULATIONS = 4096
    WALK = 4  # maximum number of offsets to follow from the current thread to a variable
    WALKS = 64
    PLACES = 64
    BUDGET = 1 << 24  # maximum total distance of backward jumps and calls, in instructions
    WALKED = 40  # maximum number of registers that a stack walk tracks
    SAVED = 16  # maximum number of registers saved in one frame
    STEP_BITS = 15
    STEPS = 1 << STEP_BITS
    STEP_FREE = 0
    MAX_FRAMES = 1000
    NAMES = 64  # maximum number of cached process names
    # number of bytes of a process name that are compared (``LONGEST_NAME`` in layout.py)
    NAME_BYTES = 32
    ANCESTORS = 64
    HEAD = 24  # size of a record's header in bytes: clause, size, time, DTrace's record size, CPU

cdef struct Code:
    uint8_t op
    uint8_t to
    uint8_t source
    bint immediate
    int32_t jump  # index of the target instruction
    int64_t offset
    uint64_t value

cdef struct RegionData:
    uint8_t *data
    uint64_t size
    bint writable
    # for each 8-byte word, the offset of the end of the variable that has it, or 0; NULL: one piece
    uint32_t *end

cdef struct Variable:
    uint32_t size
    uint32_t room  # size rounded up to words: the key follows
    uint8_t text  # type of the value: 0 for a number, 1 for a string, 2 for other bytes
    bint thread

cdef struct Function:
    int kind
    uint32_t count
    uint64_t size  # size of an entry in DTrace's aggregation buffer, or 0 if unknown
    int64_t parameter[PARAMETERS]

# Header of a chunk in the dynamic region; the value and the key of a variable follow the header.
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
    uint64_t at  # arena offset of the values; the key follows the values

# Path to a D variable in guest memory: offsets to follow from the current thread.
cdef struct Walk:
    bint known
    bint text  # whether the variable is a string
    uint32_t size  # size of a numeric variable in bytes
    uint32_t steps
    uint64_t offset[WALK]

# Location of a saved register: index of the register in the walk, offset from the caller's frame.
cdef struct SavedRegister:
    uint8_t register
    uint8_t size  # size in bytes, or 0 if the register is not saved
    int32_t offset

# Cached step from a code address to the caller (``FrameStep`` of ``dtrace/stacks/stack.py``).
cdef struct KnownStep:
    uint64_t address
    uint8_t how
    bint is_return
    bint above
    bint called  # of a program: whether the instruction before the address is a call
    uint8_t count
    int8_t link
    uint8_t base
    int32_t offset
    int32_t floor
    SavedRegister saved[SAVED]

cdef struct ProcessName:
    uint8_t text[NAME_BYTES]
    int64_t number
    uint64_t process  # the process's ID, or 0 if unknown
    uint64_t space  # address of its address space
    uint64_t changes  # number of changes of the address space's map

# Stack layout of the kernel and its programs; set by ``Runtime.walk_stacks``.
cdef struct Walker:
    KnownStep *step
    uint32_t steps
    uint32_t user_steps  # number of them in programs
    int16_t place[WALKED]  # for each register of a walk, its index in the dispatcher's registers
    int pc  # index of the program counter in the walk, or -1 if native stack walks are disabled
    int sp
    uint64_t low  # start of the kernel's code
    uint64_t high  # end of the kernel's code
    uint64_t entry  # return address of injected calls
    bint programs  # whether probes may interrupt user code
    uint64_t skip  # number of innermost frames that stack() omits
    bint after  # whether the function has returned, so that its caller is the first frame
    uint64_t marks  # bit mask of the two marks in a frame's address
    uint64_t own_mark
    uint64_t caller_mark
    SavedRegister trap[WALKED]
    int trap_count
    # for user stacks: location and layout of the trap frame, layout of frame records
    bint frames_known
    uint64_t thread_frame
    SavedRegister user[PLACES]  # locations of the user registers, indexed like uregs[]
    SavedRegister entered[WALKED]  # the same for each register of a walk
    int frame  # index of the frame pointer in the walk
    SavedRegister signal[WALKED]  # where a signal frame has the registers of the interrupted code
    int signal_count
    int32_t record_saved
    int32_t record_return
    uint64_t name_variable
    uint32_t name_size
    ProcessName name[NAMES]
    uint32_t names
    # Offsets of a thread's process, of its ID and its address space, and in this of the number of
    # changes of its map and of the map's lock. No thread holds it alone if the bits ``shared`` are
    # set.
    bint spaces_known
    uint64_t space_process
    uint64_t space_number
    uint64_t space
    uint64_t changes
    uint64_t map_lock
    uint64_t map_shared
    # offsets of the members that hold a thread's process, a process's ID and a process's parent
    bint family_known
    uint64_t process
    uint64_t process_number
    uint64_t parent
    # IDs of these D variables
    uint64_t stackdepth
    uint64_t ustackdepth
    uint64_t caller
    uint64_t ucaller

# A kernel probe's program, and the program's context without the arguments.
cdef struct Entered:
    uint8_t enabled
    uint8_t kind
    uint8_t wanted  # number of leading arguments that the program reads
    uint8_t own_frames  # number of innermost frames that stack() omits
    uint32_t entry
    uint32_t number
    uint32_t first
    uint32_t offset
    uint32_t text[5]  # offsets of the names from the region of string constants, and the ID

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
    # the current fault
    int fault
    uint64_t fault_value
    uint32_t fault_at
    uint32_t error_entry
    bint in_error
    uint64_t serial  # serial number of the current firing; odd for the ERROR probe
    uint8_t error_context[256]
    uint64_t error_faults
    # access to the guest
    read_fn read
    void *read_data
    uint64_t thread
    bint in_tracer  # whether the firing probe belongs to the tracer's own thread
    bint numbered  # whether the three offsets below are known
    uint64_t number_at
    uint64_t process_at
    uint64_t process_number_at
    bint thread_known  # whether ``thread`` is valid; the thread is looked up once per firing
    argument_fn read_register  # callback that reads registers; NULL outside of a firing
    void *interrupted
    int16_t place[PLACES]  # index of regs[n] in the dispatcher's registers, or -1 to ask the host
    # scratch memory
    uint64_t scratch_at
    uint64_t string_size
    uint8_t *compared[2]  # buffers for comparing two strings
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
    uint64_t buffer_room  # number of allocated bytes; records need more space than DTrace counts
    uint64_t counted
    uint64_t buffer_begin  # in a ring buffer: start of the oldest record
    uint64_t buffer_end  # in a ring buffer: end of the last record before the wrap-around
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
    bint told  # whether the consumer was notified that tracing has ended
    # kernel probes
    Clock *clock
    Entered *entered
    uint32_t entered_count
    int per_cpu
    uint64_t look  # time of the next ``look`` callback in nanoseconds
    bint failing
    Walk walk[WALKS]
    Walker walker
    void *owner

ctypedef uint64_t (*helper_fn)(Machine *, uint64_t *) noexcept nogil

cdef uint64_t BASE = layout.BASE >> layout.REGION_SHIFT

cdef uint64_t CONSTANTS = layout.Region.STRINGS.address
cdef uint64_t LAST_FAULT = max(Fault)
cdef int BAD_ADDRESS = Fault.BAD_ADDRESS
cdef int BAD_ALIGNMENT = Fault.BAD_ALIGNMENT
cdef int ILLEGAL_OPERATION = Fault.ILLEGAL_OPERATION
cdef int NO_SCRATCH = Fault.NO_SCRATCH
cdef int TUPLE_OVERFLOW = Fault.TUPLE_OVERFLOW
cdef int R_STACK = Region.STACK
cdef int R_CONTEXT = Region.CONTEXT
cdef int R_WORK = Region.WORK
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
cdef int STEP_RECORD = StepKind.RECORD
cdef int STEP_SIGNAL = StepKind.SIGNAL
cdef int STEP_GUESS = StepKind.GUESS
cdef uint64_t MAX_USER_FRAMES = layout.MAX_USER_FRAMES
cdef int STACK_HELPER = Helper.STACK
cdef int PROGENYOF = Helper.PROGENYOF
cdef int CONTEXT_PROBE = layout.ContextOffset.PROBE
cdef int FRAME_BYTES = STACK

cdef uint32_t NONE = 0xFFFFFFFF
cdef uint64_t LOW32 = 0xFFFFFFFF
cdef uint64_t USER_ADDRESS = (<uint64_t>1 << 48) - 1  # highest user address
