"""Table of processes whose programs have probes.

This file is part of the dispatcher; ``_dispatch.pyx`` includes it.
"""

cdef enum:
    MAX_PROGRAMS = 250
    MAX_PROGRAM_HOOKS = 48  # maximum number of hooked ranges, all of which each translation checks
    NEAR = 64  # maximum distance in bytes between probes that share a hooked range
    PROGRAM_SHIFT = 56
    MAX_LEFT = 64  # maximum number of threads with an incomplete instruction
    ON_STACK = 256  # more than any index of a register
    MOST_ON_STACK = 256  # maximum number of words of the stack that hold arguments
    MOST_SOURCES = 1 << 20  # maximum number of probes that programs declare
    COMM = 20  # size of a process's name in bytes
    MOST_SHARING = 64  # maximum number of processes, each the parent of the next, that share memory

# Where a probe that a program declares finds its arguments: an index of a register, or ON_STACK plus
# the number of an eight-byte word, counted from the stack pointer.
cdef struct Sources:
    int count
    int declared  # number of the first arguments that the program declares
    uint32_t place[DECLARED_ARGUMENTS]

cdef struct Program:
    uint32_t process
    bint executed  # whether only processes that have called execve() since their fork() match
    bint several  # whether a process runs several programs of the name, so code may differ
    uint8_t name[COMM]

# An instruction that a thread left incomplete
cdef struct Left:
    uint64_t thread
    uint32_t site
    bint repeats
    uint64_t rest  # number of repetitions that remained at the start of the latest repetition

cdef struct Programs:
    int count
    Program all[MAX_PROGRAMS]
    # Offset of the process pointer in struct thread; offsets of ID, flags and name in struct proc
    uint64_t process
    uint64_t number
    uint64_t flags
    uint32_t executed  # process flag: the process has called execve() since its fork()
    uint64_t name
    uint64_t parent
    uint64_t space
    # Index of the running program, and the value of ``Clock.turns`` for which the index is valid
    uint64_t turn
    int running
    # Instruction count at the most recent site; a decrease invalidates the fields below.
    uint64_t latest
    # The most recent site and its block; the instructions that threads left incomplete
    uint32_t met
    uint64_t met_block
    uint64_t met_base
    int left
    Left broken[MAX_LEFT]
    # The repeated instruction in progress, and the instruction count at its last repetition
    uint32_t repeating
    uint64_t repeated_at
