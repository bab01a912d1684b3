# cython: language_level=3
"""Numbers as DWARF writes them (DWARF 5, 7.6): from ``data`` at ``at``, never at or behind ``end``.

Each gives 0 when the number is cut off, or longer than 64 bits can be.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef inline int read_number(const uint8_t *data, uint64_t end, uint64_t *at, int size,
                            uint64_t *out) noexcept nogil:
    """Unsigned, of ``size`` bytes, little-endian."""
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
    """LEB128; a signed one is given in two's complement."""
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
