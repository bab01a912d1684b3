# cython: language_level=3
"""Sv39, Sv48 and Sv57, walked without a trace: privileged manual, "Virtual Address Translation
Process".

The CPU model sets accessed bits; this does not.  The Python twin is ``Riscv64.translate``.
"""

from libc.stdint cimport uint64_t

import unicorn.riscv_const as uc

from emu.unicorn._engine cimport Clock, host_physical, native, register_read

cdef int SATP = uc.UC_RISCV_REG_SATP

cdef enum:
    VALID = 1
    LEAF = 0xE  # R, W, X

cdef uint64_t PPN = (<uint64_t>1 << 44) - 1


cdef bint walk(Clock *c, uint64_t address, uint64_t *physical) noexcept nogil:
    cdef uint64_t satp = register_read(c, SATP)
    cdef uint64_t mode = satp >> 60
    cdef uint64_t table, entry, offset, top
    cdef uint64_t *place
    cdef int level, levels
    c.walked_count = 0
    if mode < 8 or mode > 10:
        physical[0] = address
        return True
    levels = <int>mode - 5
    top = address >> (11 + 9 * levels)
    if top != 0 and top != (<uint64_t>1 << (53 - 9 * levels)) - 1:
        return False  # not a sign-extended address
    table = (satp & PPN) << 12
    for level in range(levels - 1, -1, -1):
        place = <uint64_t *>host_physical(c, table + 8 * (address >> (12 + 9 * level) & 0x1FF), 8)
        if place == NULL:
            return False
        entry = place[0]
        if not entry & VALID:
            return False
        c.walked[c.walked_count] = place
        c.walked_count += 1
        table = (entry >> 10 & PPN) << 12
        if entry & LEAF:
            offset = (<uint64_t>1 << (12 + 9 * level)) - 1
            physical[0] = table & ~offset | address & offset
            return True
    return False


WALK = native(<void *>walk, "emu.walk")
