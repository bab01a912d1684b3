"""The table of processes whose programs have probes; part of the dispatcher (``_dispatch.pyx``
includes it)."""

cdef enum:
    MAX_PROGRAMS = 16
    MAX_PROGRAM_HOOKS = 48  # address ranges; each is checked for every instruction translated
    NEAR = 64  # bytes between probes up to which they share a range
    PROGRAM_SHIFT = 56
    MAX_LEFT = 64  # threads that have left an instruction before it was complete
    COMM = 20  # bytes of a process's name

cdef struct Program:
    uint32_t process
    bint executed  # match only after it has executed the program, not as a copy of its parent
    uint8_t name[COMM]

# An instruction that a thread has left before it was complete.
cdef struct Left:
    uint64_t thread
    uint32_t site
    bint repeats
    uint64_t rest  # repetitions left when the last one began

cdef struct Programs:
    int count
    Program all[MAX_PROGRAMS]
    # Offsets: of the process in a thread; of its number, flags and name in the process
    uint64_t process
    uint64_t number
    uint64_t flags
    uint32_t executed  # the flag of a process that has executed a program
    uint64_t name
    # The program that runs, and the value of ``Clock.turns`` for which this is valid
    uint64_t turn
    int running
    # Instruction count when a site was last reached; going back in time voids the fields below.
    uint64_t latest
    # The site reached last, with its block, and the instructions that threads have left before
    # they were complete
    uint32_t met
    uint64_t met_block
    uint64_t met_base
    int left
    Left broken[MAX_LEFT]
    # The repeated instruction in progress, and the instruction count at its last repetition
    uint32_t repeating
    uint64_t repeated_at
