# cython: language_level=3, boundscheck=True
"""Search for reads of the cycle and instruction counters (RISC-V unprivileged manual, "Zicntr")."""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

cdef enum:
    MASK = 0xFFFFF07F  # all bits except rd
    RDCYCLE = 0xC0002073
    RDINSTRET = 0xC0202073


def counter_reads(const uint8_t[::1] code):
    """Return the byte offsets of possible RDCYCLE and RDINSTRET instructions.

    Every halfword is checked, including those in the middle of an instruction.  They encode
    ``csrrs rd, cycle, x0`` and ``csrrs rd, instret, x0``.
    """
    cdef uint32_t word
    cdef Py_ssize_t at
    found = []
    for at in range(0, code.shape[0] - 3, 2):
        memcpy(&word, &code[at], 4)
        word &= MASK
        if word == <uint32_t>RDCYCLE or word == <uint32_t>RDINSTRET:
            found.append(at)
    return found
