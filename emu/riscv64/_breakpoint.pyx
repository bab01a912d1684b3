# cython: language_level=3
"""EBREAK delivered natively: privileged manual, chapter "Supervisor-Level ISA", from S-mode.

The board's ``_trap`` is the same in Python, for every cause; this is for the one that a probe
takes at each firing.  The registers are read and written in a saved context: as control and status
registers of the CPU model's interface they cost as much again as the kernel's whole path.
"""

from libc.stdint cimport uint64_t

import unicorn.riscv_const as uc

from emu.unicorn._engine cimport Clock, in_context, native, register_read

cdef int PRIV = uc.UC_RISCV_REG_PRIV

# Of these the engine is told the places, in this order; sstatus is a part of mstatus.
PLACES = ("sepc", "scause", "stval", "mstatus", "stvec")

cdef enum:
    SEPC = 0
    SCAUSE = 1
    STVAL = 2
    MSTATUS = 3
    STVEC = 4

cdef enum:
    BREAKPOINT = 3
    SIE = 1 << 1
    SPIE = 1 << 5
    SPP = 1 << 8


cdef inline uint64_t *place(Clock *c, int register) noexcept nogil:
    return in_context(c, c.places[register])


cdef void keep(Clock *c) noexcept nogil:
    cdef int i
    c.context_save(c.uc, c.context)
    for i in range(MSTATUS + 1):
        c.detour.kept[i] = place(c, i)[0]


cdef bint enter(Clock *c, uint64_t pc) noexcept nogil:
    """Called directly behind ``keep``, whose context it uses."""
    cdef uint64_t vectors = place(c, STVEC)[0] & ~<uint64_t>3
    cdef uint64_t status = c.detour.kept[MSTATUS]
    if vectors == 0 or register_read(c, PRIV) != 1:
        return False
    place(c, MSTATUS)[0] = (status & ~<uint64_t>(SIE | SPIE) | SPP
                            | (SPIE if status & SIE else 0))
    place(c, SEPC)[0] = pc
    place(c, SCAUSE)[0] = BREAKPOINT
    place(c, STVAL)[0] = pc
    in_context(c, c.pc_place)[0] = vectors
    c.context_restore(c.uc, c.context)
    return True


cdef void forget(Clock *c) noexcept nogil:
    c.context_save(c.uc, c.context)
    place(c, SEPC)[0] = c.detour.kept[SEPC]
    place(c, SCAUSE)[0] = c.detour.kept[SCAUSE]
    place(c, STVAL)[0] = c.detour.kept[STVAL]
    place(c, MSTATUS)[0] = (place(c, MSTATUS)[0] & ~<uint64_t>(SPIE | SPP)
                            | c.detour.kept[MSTATUS] & (SPIE | SPP))
    c.context_restore(c.uc, c.context)


# The teaching kernel's way uses 304 bytes, GENERIC's 320.
FOOTPRINT = 2048
KEEP = native(<void *>keep, "emu.keep")
ENTER = native(<void *>enter, "emu.enter")
FORGET = native(<void *>forget, "emu.forget")
