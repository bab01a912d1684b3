# cython: language_level=3
"""Rows of (mask, value) for the native decoders, of which the first that fits counts: where a row's
verdict does not depend on the other bits, its number stands for all of its instructions."""

from libc.stdint cimport uint8_t, uint32_t

cdef enum:
    MAX_ROWS = 128  # a key of one byte has their number

cdef struct Rows:
    uint32_t count
    uint32_t mask[MAX_ROWS]
    uint32_t value[MAX_ROWS]
    uint8_t plain[MAX_ROWS]


cdef inline int plain_row(const Rows *rows, uint32_t word) noexcept nogil:
    """The number of an instruction's row where that is all that decides; else -1."""
    cdef uint32_t i
    for i in range(rows.count):
        if word & rows.mask[i] == rows.value[i]:
            return <int>i if rows.plain[i] else -1
    return -1


cdef inline int fill(Rows *rows, table) except -1:
    """:param table: (mask, value, whether nothing else decides), from the verdicts' own."""
    cdef uint32_t n = 0
    if len(table) > MAX_ROWS:
        raise ValueError(f"at most {MAX_ROWS} rows")
    rows.count = 0
    for mask, value, plain in table:
        rows.mask[n], rows.value[n], rows.plain[n] = mask, value, plain
        n += 1
    rows.count = n
    return 0
