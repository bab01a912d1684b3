# cython: language_level=3
"""EBREAK delivered natively: privileged manual, chapter "Supervisor-Level ISA", from S-mode.

The board's ``_trap`` is the same in Python, for every cause; this is for the one that a probe
takes at each firing.
"""

from libc.stdint cimport uint64_t

import unicorn.riscv_const as uc

from emu._engine cimport Clock, go_to, native, register_read, register_write

cdef int PRIV = uc.UC_RISCV_REG_PRIV
cdef int STVEC = uc.UC_RISCV_REG_STVEC
cdef int SSTATUS = uc.UC_RISCV_REG_SSTATUS
cdef int SEPC = uc.UC_RISCV_REG_SEPC
cdef int SCAUSE = uc.UC_RISCV_REG_SCAUSE
cdef int STVAL = uc.UC_RISCV_REG_STVAL

cdef enum:
    BREAKPOINT = 3
    SIE = 1 << 1
    SPIE = 1 << 5
    SPP = 1 << 8


cdef void keep(Clock *c) noexcept nogil:
    c.kept[0] = register_read(c, SEPC)
    c.kept[1] = register_read(c, SCAUSE)
    c.kept[2] = register_read(c, STVAL)
    c.kept[3] = register_read(c, SSTATUS)


cdef bint enter(Clock *c, uint64_t pc) noexcept nogil:
    cdef uint64_t vectors = register_read(c, STVEC) & ~<uint64_t>3
    cdef uint64_t status = c.kept[3]  # it was kept just now
    if vectors == 0 or register_read(c, PRIV) != 1:
        return False
    register_write(c, SSTATUS, status & ~<uint64_t>(SIE | SPIE) | SPP | (SPIE if status & SIE else 0))
    register_write(c, SEPC, pc)
    register_write(c, SCAUSE, BREAKPOINT)
    register_write(c, STVAL, pc)
    go_to(c, vectors)
    return True


cdef void forget(Clock *c) noexcept nogil:
    register_write(c, SEPC, c.kept[0])
    register_write(c, SCAUSE, c.kept[1])
    register_write(c, STVAL, c.kept[2])
    register_write(c, SSTATUS, register_read(c, SSTATUS) & ~<uint64_t>(SPIE | SPP)
                   | c.kept[3] & (SPIE | SPP))


KEEP = native(<void *>keep, "emu.keep")
ENTER = native(<void *>enter, "emu.enter")
FORGET = native(<void *>forget, "emu.forget")
