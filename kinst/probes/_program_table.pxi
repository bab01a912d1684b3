"""Which processes run programs with probes; part of the dispatcher (``_dispatch.pyx`` includes it)."""

cdef enum:
    MAX_PROGRAMS = 16
    MAX_PROGRAM_HOOKS = 48  # ranges of addresses: each is looked at for every instruction translated
    NEAR = 64  # bytes between probes that are no reason for another range
    PROGRAM_SHIFT = 56
    MAX_LEFT = 64  # threads in the middle of an instruction that has faulted
    COMM = 20  # bytes of a process's name

cdef struct Program:
    uint32_t process
    bint executed  # only what it has executed itself: not what it was made from
    uint8_t name[COMM]

# An instruction in the middle of which a thread has left.
cdef struct Left:
    uint64_t thread
    uint32_t site
    bint repeats
    uint64_t rest  # repetitions, when the last of them began

cdef struct Programs:
    int count
    Program all[MAX_PROGRAMS]
    # In the thread, where its process is; in that: its number, its flags, its name.
    uint64_t process
    uint64_t number
    uint64_t flags
    uint32_t executed  # of these flags
    uint64_t name
    # The one that runs, and of which turn of ``Clock.turns`` that is true.
    uint64_t turn
    int running
    # When an instruction was last come to: time that goes back makes what is known here void.
    uint64_t latest
    # The site that was come to last, in which block; and those that threads have left before they
    # were executed to their end, to come back.
    uint32_t met
    uint64_t met_block
    uint64_t met_base
    int left
    Left broken[MAX_LEFT]
    # What repeats itself, and the instructions before it.
    uint32_t repeating
    uint64_t repeated_at
