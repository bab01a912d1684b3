# cython: language_level=3
"""Rows of (mask, value) for the native decoders; the first row that matches applies.

If a row's verdict does not depend on other bits, the row number represents all its instructions.
"""

from libc.stdint cimport uint8_t, uint32_t

cdef enum:
    MAX_ROWS = 128  # row numbers are used as keys of one byte

cdef struct Rows:
    uint32_t count
    uint32_t mask[MAX_ROWS]
    uint32_t value[MAX_ROWS]
    uint8_t plain[MAX_ROWS]


cdef inline int plain_row(const Rows *rows, uint32_t word) noexcept nogil:
    """Return the number of the matching row if this row alone determines the verdict, else -1."""
    cdef uint32_t i
    for i in range(rows.count):
        if word & rows.mask[i] == rows.value[i]:
            return <int>i if rows.plain[i] else -1
    return -1


cdef inline int fill(Rows *rows, table) except -1:
    """Fill ``rows`` from a table of (mask, value, whether nothing else determines the verdict)."""
    cdef uint32_t n = 0
    if len(table) > MAX_ROWS:
        raise ValueError(f"{len(table)} rows: at most {MAX_ROWS} are possible")
    rows.count = 0
    for mask, value, plain in table:
        rows.mask[n], rows.value[n], rows.plain[n] = mask, value, plain
        n += 1
    rows.count = n
    return 0
