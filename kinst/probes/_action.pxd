# cython: language_level=3
"""Interface of the native callback that runs a firing's action without entering Python."""

from libc.stdint cimport uint32_t, uint64_t

# Indexes of the values that an action reads with an ``argument_fn``: the first arguments of the
# calling convention (0 to ARGUMENTS - 1), the function's return value (RESULT), whether the
# function has already returned to its caller (AFTER), the arguments of a static probe, a system
# call or a program's own probe (from DECLARED on), and the registers by their index in the shape
# (from REGISTER on).
# Values are read only on demand, because reading one value takes as long as a whole firing.
cdef enum:
    ARGUMENTS = 5
    RESULT = ARGUMENTS
    AFTER = 6
    DECLARED = 16
    DECLARED_ARGUMENTS = 10
    REGISTER = 64

ctypedef uint64_t (*argument_fn)(void *source, uint32_t number) noexcept nogil

# Run the action of probe ``probe`` at a virtual time; ``read(source, n)`` returns value n.
# A nonzero result means that the action failed; the dispatcher's ``failure`` returns the exception.
ctypedef int (*action_fn)(void *data, uint32_t probe, argument_fn read, void *source,
                          uint64_t time) noexcept nogil

cdef struct Action:
    action_fn run
    void *data
