# cython: language_level=3
"""Native part of the riscv64 CPU: page walks without side effects, and delivery of exceptions.

Sv39, Sv48 and Sv57: privileged manual, "Virtual Address Translation Process".  Unlike the CPU
model, the walk sets no accessed bits.  The Python version is ``Riscv64.translate``.

Exceptions: privileged manual, chapter "Supervisor-Level ISA".  The Python version,
``RiscvCpu._trap``, handles every cause.  ``enter`` handles only the breakpoint exception of each
firing; ``deliver`` handles the exceptions that are frequent in programs and, while no probe of ours
is in memory, the kernel's own breakpoints.  Both access registers in a saved context: accessing
them as control and status registers through Unicorn would take as long as the kernel's whole
breakpoint path.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

import unicorn.riscv_const as uc

from emu.riscv64 import registers
from emu.unicorn._engine cimport (
    DECLINED,
    DELIVERED,
    EXECUTED,
    INVALID,
    Answer,
    Clock,
    guest_read,
    host_physical,
    in_context,
    native,
    register_read,
    register_write,
    time_at,
)

cdef int SATP = uc.UC_RISCV_REG_SATP
cdef int PRIV = uc.UC_RISCV_REG_PRIV
cdef int X0 = uc.UC_RISCV_REG_X0
cdef uint32_t RDTIME = 0xC0102073  # CSRRS rd, time, x0; rd is bits 11:7
cdef uint64_t COST = registers.CLOCK_READ_COST
cdef uint64_t TICK = registers.TICK
cdef uint64_t PPN = (<uint64_t>1 << 44) - 1

cdef enum:  # bits of a page table entry
    VALID = 1
    LEAF = 0xE  # bits R, W and X; all are 0 in a pointer to the next table

# Context fields whose offsets the engine needs, in this order; sstatus is a part of mstatus.
PLACES = ("sepc", "scause", "stval", "mstatus", "stvec", "satp")

cdef enum:
    SEPC = 0
    SCAUSE = 1
    STVAL = 2
    MSTATUS = 3
    STVEC = 4
    SATP_PLACE = 5

# Context field that ``deliver`` needs in addition to PLACES: the value for stval.
EXCEPTION_PLACES = ("badaddr",)

cdef enum:
    ILLEGAL = 2
    BREAKPOINT = 3
    ECALL_U = 8
    ECALL_S = 9
    SIE = 1 << 1
    SPIE = 1 << 5
    SPP = 1 << 8


cdef uint64_t page_tables(Clock *c) noexcept nogil:
    """Return satp; in user mode, where the CPU model hides the register, read a context."""
    if register_read(c, PRIV) != 0 or c.context == NULL:
        return register_read(c, SATP)
    c.context_save(c.uc, c.context)
    return in_context(c, c.places[SATP_PLACE])[0]


cdef bint walk(Clock *c, uint64_t address, uint64_t *physical) noexcept nogil:
    cdef uint64_t satp = page_tables(c)
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
        return False  # invalid: the address is not sign-extended
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


cdef inline uint64_t *place(Clock *c, int register) noexcept nogil:
    return in_context(c, c.places[register])


cdef void keep(Clock *c) noexcept nogil:
    cdef int i
    c.context_save(c.uc, c.context)
    for i in range(MSTATUS + 1):
        c.detour.kept[i] = place(c, i)[0]


cdef void take(Clock *c, uint64_t vectors, uint64_t cause, uint64_t pc, uint64_t value, bint user
              ) noexcept nogil:
    """Take the exception in the saved context, and load the context into the CPU."""
    cdef uint64_t status = place(c, MSTATUS)[0]
    place(c, MSTATUS)[0] = (status & ~<uint64_t>(SIE | SPIE | SPP) | (0 if user else SPP)
                            | (SPIE if status & SIE else 0))
    place(c, SEPC)[0] = pc
    place(c, SCAUSE)[0] = cause
    place(c, STVAL)[0] = value
    in_context(c, c.pc_place)[0] = vectors
    c.context_restore(c.uc, c.context)


cdef bint enter(Clock *c, uint64_t pc) noexcept nogil:
    """Enter the breakpoint vector, using the context that ``keep`` saved directly before."""
    cdef uint64_t vectors = place(c, STVEC)[0] & ~<uint64_t>3
    if vectors == 0 or register_read(c, PRIV) != 1:
        return False
    take(c, vectors, BREAKPOINT, pc, pc, False)
    return True


cdef inline bint tells_address(uint32_t cause) noexcept nogil:
    """Return whether an exception sets stval to an address (misaligned access or access fault)."""
    return 4 <= cause <= 7 or cause in (0, 1, 12, 13, 15)


cdef Answer read_time(Clock *c, uint64_t pc) noexcept nogil:
    """Emulate RDTIME, which the CPU model does not execute; see ``RiscvCpu._counter_read``."""
    cdef uint32_t code = 0
    if not guest_read(c, pc, &code, 4) or code & ~<uint32_t>(31 << 7) != RDTIME:
        return DECLINED
    c.skew += COST
    c.horizon = 0
    if code >> 7 & 31:
        register_write(c, X0 + <int>(code >> 7 & 31), time_at(c, c.moment) // TICK)
    return EXECUTED


cdef Answer deliver(Clock *c, uint32_t cause, uint64_t pc) noexcept nogil:
    cdef bint user = register_read(c, PRIV) == 0
    cdef uint64_t vectors, value
    if cause in (ECALL_U, ECALL_S):  # Unicorn does not report the mode of an ECALL
        if not user:
            return DECLINED  # Python handles calls to the firmware
        cause = ECALL_U
    elif cause == ILLEGAL:
        return read_time(c, pc)
    elif cause == INVALID and not c.patched:  # EBREAK, and no probe's
        cause = BREAKPOINT
    elif not tells_address(cause):
        return DECLINED
    if user:  # set the privilege level before the context is saved
        register_write(c, PRIV, 1)
    c.context_save(c.uc, c.context)
    vectors = place(c, STVEC)[0] & ~<uint64_t>3
    if vectors == 0:
        if user:
            register_write(c, PRIV, 0)
        return DECLINED
    if cause == ECALL_U:
        value = 0
    else:
        value = pc if cause == BREAKPOINT else in_context(c, c.exception_places[0])[0]
    take(c, vectors, cause, pc, value, user)
    return DELIVERED


cdef void forget(Clock *c) noexcept nogil:
    c.context_save(c.uc, c.context)
    place(c, SEPC)[0] = c.detour.kept[SEPC]
    place(c, SCAUSE)[0] = c.detour.kept[SCAUSE]
    place(c, STVAL)[0] = c.detour.kept[STVAL]
    place(c, MSTATUS)[0] = (place(c, MSTATUS)[0] & ~<uint64_t>(SPIE | SPP)
                            | c.detour.kept[MSTATUS] & (SPIE | SPP))
    c.context_restore(c.uc, c.context)


cdef uint32_t split(const uint8_t *code, uint32_t size, uint32_t *last) noexcept nogil:
    """Return how many instructions ``code`` holds, or 0 if the last one is incomplete.

    :param last: receives the offset of the last one.
    """
    cdef uint32_t at = 0
    cdef uint32_t count = 0
    while at < size:
        last[0] = at
        at += 4 if code[at] & 3 == 3 else 2
        count += 1
    return count if at == size else 0


WALK = native(<void *>walk, "emu.walk")
# Maximum number of stack bytes that a kernel's breakpoint path may use.  The teaching kernel uses
# 304, and GENERIC uses 320.
FOOTPRINT = 2048
KEEP = native(<void *>keep, "emu.keep")
ENTER = native(<void *>enter, "emu.enter")
SPLIT = native(<void *>split, "emu.split")
DELIVER = native(<void *>deliver, "emu.deliver")
FORGET = native(<void *>forget, "emu.forget")
