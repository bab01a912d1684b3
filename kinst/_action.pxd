# cython: language_level=3
"""What is done at a firing without entering Python: the way from the dispatcher to its rooms above."""

from libc.stdint cimport uint32_t, uint64_t

# The probe's number, the first arguments of the calling convention (of a return, the second is the
# value returned), the virtual time; not 0: it failed, and the dispatcher's ``failure`` says how.
ctypedef int (*action_fn)(void *data, uint32_t probe, const uint64_t *arguments,
                          uint64_t time) noexcept nogil

cdef struct Action:
    action_fn run
    void *data
