# cython: language_level=3
"""BRK delivered natively: Arm ARM, "Exception entry", from EL1 with its own stack pointer.

The board's ``_enter`` is the same in Python, for every exception; this is for the one that a
probe takes at each firing.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

import unicorn.arm64_const as uc

from emu.arm64 import registers
from emu.unicorn._engine cimport Clock, CpReg, go_to, guest_read, native, register_read, register_write

cdef int PSTATE = uc.UC_ARM64_REG_PSTATE
cdef int CP_REG = uc.UC_ARM64_REG_CP_REG

cdef enum:
    ESR = 0
    SPSR = 1
    ELR = 2
    VBAR = 3
    EL1H = 5
    MASKED = 0x3C0 | EL1H  # D A I F
    SYNC = 0x200
    EC_BRK = 0x3C

cdef CpReg NAMED[4]
for _i, _name in enumerate(("esr_el1", "spsr_el1", "elr_el1", "vbar_el1")):
    _op0, _op1, _crn, _crm, _op2 = registers.SYSTEM[_name]
    NAMED[_i] = CpReg(_crn, _crm, _op0, _op1, _op2, 0)


cdef uint64_t get(Clock *c, int which) noexcept nogil:
    cdef CpReg r = NAMED[which]
    c.reg_read(c.uc, CP_REG, &r)
    return r.val


cdef void put(Clock *c, int which, uint64_t value) noexcept nogil:
    cdef CpReg r = NAMED[which]
    r.val = value
    c.reg_write(c.uc, CP_REG, &r)


cdef void keep(Clock *c) noexcept nogil:
    c.detour.kept[ESR] = get(c, ESR)
    c.detour.kept[SPSR] = get(c, SPSR)
    c.detour.kept[ELR] = get(c, ELR)


cdef bint enter(Clock *c, uint64_t pc) noexcept nogil:
    cdef uint64_t vectors = get(c, VBAR)
    cdef uint64_t state = register_read(c, PSTATE)
    cdef uint32_t code = 0
    if vectors == 0 or state & 0xF != EL1H or not guest_read(c, pc, &code, 4):
        return False
    # Unicorn computes its cached translation flags anew only with a system register: PSTATE first.
    register_write(c, PSTATE, MASKED)
    put(c, SPSR, state)
    put(c, ELR, pc)
    put(c, ESR, <uint64_t>EC_BRK << 26 | 1 << 25 | code >> 5 & 0xFFFF)
    go_to(c, vectors + SYNC)
    return True


cdef void forget(Clock *c) noexcept nogil:
    put(c, SPSR, c.detour.kept[SPSR])
    put(c, ELR, c.detour.kept[ELR])
    put(c, ESR, c.detour.kept[ESR])


# The teaching kernel's way uses 448 bytes, GENERIC's 480.
FOOTPRINT = 2048
KEEP = native(<void *>keep, "emu.keep")
ENTER = native(<void *>enter, "emu.enter")
FORGET = native(<void *>forget, "emu.forget")
