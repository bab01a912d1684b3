# cython: language_level=3
"""4-level paging, walked without a trace: SDM volume 3, "4-Level Paging and 5-Level Paging".

The CPU model sets accessed bits, and CR2 where nothing is mapped; this does not.  The Python twin is
``Amd64.translate``.
"""

from libc.stdint cimport uint64_t

import unicorn.x86_const as uc

from emu.unicorn._engine cimport Clock, host_physical, native, register_read

cdef int CR0 = uc.UC_X86_REG_CR0
cdef int CR3 = uc.UC_X86_REG_CR3

cdef enum:
    PRESENT = 1
    LARGE = 1 << 7
    LEVELS = 4

cdef uint64_t FRAME = 0xFFFFFFFFFF000


cdef bint walk(Clock *c, uint64_t address, uint64_t *physical) noexcept nogil:
    cdef uint64_t table, entry, offset
    cdef uint64_t *place
    cdef int level
    cdef int shift = 39
    c.walked_count = 0
    table = register_read(c, CR3) & FRAME
    # In 64-bit mode there is paging: a CPU without it has not been given tables yet.
    if table == 0 and not register_read(c, CR0) >> 31 & 1:
        physical[0] = address
        return True
    if address >> 47 != 0 and address >> 47 != 0x1FFFF:
        return False
    for level in range(LEVELS):
        place = <uint64_t *>host_physical(c, table + 8 * (address >> shift & 0x1FF), 8)
        if place == NULL:
            return False
        entry = place[0]
        if not entry & PRESENT:
            return False
        c.walked[c.walked_count] = place
        c.walked_count += 1
        if shift == 12 or (entry & LARGE and shift != 39):
            offset = (<uint64_t>1 << shift) - 1
            physical[0] = entry & FRAME & ~offset | address & offset
            return True
        table = entry & FRAME
        shift -= 9
    return False


WALK = native(<void *>walk, "emu.walk")
