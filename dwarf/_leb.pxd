# cython: language_level=3
"""Readers for integers in DWARF data (DWARF 5, 7.6).

Each reads from ``data`` at offset ``at``, never at or past ``end``, and advances ``at``.  It
returns 0 if the integer is truncated, or if a LEB128 encoding is longer than 10 bytes.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef inline int read_number(const uint8_t *data, uint64_t end, uint64_t *at, int size,
                            uint64_t *out) noexcept nogil:
    """Read an unsigned little-endian integer of ``size`` bytes."""
    cdef int i
    cdef uint64_t value = 0
    if at[0] > end or <uint64_t>size > end - at[0]:
        return 0
    for i in range(size):
        value |= <uint64_t>data[at[0] + i] << 8 * i
    at[0] += size
    out[0] = value
    return 1


cdef inline int read_leb(const uint8_t *data, uint64_t end, uint64_t *at, bint is_signed,
                         uint64_t *out) noexcept nogil:
    """Read a LEB128 integer into ``out``, in two's complement if ``is_signed``."""
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at[0] < end and shift < 70:
        byte = data[at[0]]
        at[0] += 1
        if shift < 64:
            value |= <uint64_t>(byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            if is_signed and byte & 0x40 and shift < 64:
                value |= ~<uint64_t>0 << shift
            out[0] = value
            return 1
    return 0
