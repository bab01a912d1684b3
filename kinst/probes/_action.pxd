# cython: language_level=3
"""What is done at a firing without entering Python: the way from the dispatcher to its rooms above."""

from libc.stdint cimport uint32_t, uint64_t

# The first arguments of the calling convention by their numbers from 0; behind them RESULT, what a
# function returns; from DECLARED on what a static probe was given, or a system call; from REGISTER on the
# registers, by their places in the shape.  They are read when they are asked for: each takes as long
# as a firing itself.
# AFTER: whether the function that fires has returned already, to its caller.
cdef enum:
    ARGUMENTS = 5
    RESULT = ARGUMENTS
    AFTER = 6
    DECLARED = 16
    DECLARED_ARGUMENTS = 8
    REGISTER = 64

ctypedef uint64_t (*argument_fn)(void *source, uint32_t number) noexcept nogil

# The probe's number, what reads its arguments from ``source``, the virtual time; not 0: it failed,
# and the dispatcher's ``failure`` says how.
ctypedef int (*action_fn)(void *data, uint32_t probe, argument_fn read, void *source,
                          uint64_t time) noexcept nogil

cdef struct Action:
    action_fn run
    void *data
