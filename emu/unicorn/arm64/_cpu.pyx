# cython: language_level=3
"""Native part of the arm64 CPU: page walks and delivery of exceptions.

Stage 1, EL1&0, 4 KiB granule: Arm ARM, "The AArch64 Virtual Memory System".  The CPU model
translates without side effects, but at EL0 it refuses addresses that only EL1 may read.  The
Python version is ``Arm64.translate``.

Exceptions: Arm ARM, "Exception entry".  The Python version, ``ArmCpu._enter``, handles all of them.
``enter`` handles only BRK at EL1 with SP_EL1, which each firing causes; ``deliver`` handles the
exceptions that are frequent in programs and, while no probe of ours is in memory, the kernel's own.
"""

from libc.stdint cimport uint32_t, uint64_t

import unicorn.arm64_const as uc

from emu.arm64 import registers
from emu.unicorn._engine cimport (
    DECLINED,
    DELIVERED,
    Answer,
    Clock,
    CpReg,
    go_to,
    guest_read,
    host_physical,
    in_context,
    native,
    register_read,
    register_write,
    word_in_context,
)

cdef int PSTATE = uc.UC_ARM64_REG_PSTATE
cdef int CP_REG = uc.UC_ARM64_REG_CP_REG
cdef int SP = uc.UC_ARM64_REG_SP

cdef enum:
    ESR = 0
    SPSR = 1
    ELR = 2
    VBAR = 3
    SCTLR = 4
    TCR = 5
    TTBR0 = 6
    TTBR1 = 7
    FAR = 8
    SP_EL0 = 9
    SP_EL1 = 10
    NAMES = 11
    EL0T = 0
    EL1H = 5
    MASKED = 0x3C0 | EL1H  # the DAIF bits
    SYNC = 0x200
    LOWER = 0x400  # offset of the vectors for exceptions from EL0
    EC_BRK = 0x3C
    SVC = 2  # exception numbers of Unicorn
    PREFETCH_ABORT = 3
    BKPT = 7
    DATA_ABORT = 4

# Context fields whose offsets the engine needs: the last exception, and the A64 execution state.
EXCEPTION_PLACES = ("syndrome", "fault address", "aarch64")

cdef enum:
    SYNDROME = 0
    ADDRESS = 1
    AARCH64 = 2

cdef uint64_t OUTPUT = 0xFFFFFFFFF000  # address bits of a page table entry and of TTBRn

cdef CpReg NAMED[NAMES]
for _i, _name in enumerate(("esr_el1", "spsr_el1", "elr_el1", "vbar_el1", "sctlr_el1", "tcr_el1",
                            "ttbr0_el1", "ttbr1_el1", "far_el1", "sp_el0", "sp_el1")):
    _op0, _op1, _crn, _crm, _op2 = registers.SYSTEM[_name]
    NAMED[_i] = CpReg(_crn, _crm, _op0, _op1, _op2, 0)


# Unicorn's own numbers of some of them, which are read and written without a lookup in a hash table.
cdef int NUMBERED[NAMES]
for _i in range(NAMES):
    NUMBERED[_i] = 0
NUMBERED[ESR], NUMBERED[ELR] = uc.UC_ARM64_REG_ESR_EL1, uc.UC_ARM64_REG_ELR_EL1
NUMBERED[VBAR], NUMBERED[FAR] = uc.UC_ARM64_REG_VBAR_EL1, uc.UC_ARM64_REG_FAR_EL1
NUMBERED[TTBR0], NUMBERED[TTBR1] = uc.UC_ARM64_REG_TTBR0_EL1, uc.UC_ARM64_REG_TTBR1_EL1


cdef uint64_t get(Clock *c, int which) noexcept nogil:
    cdef CpReg r
    if NUMBERED[which]:
        return register_read(c, NUMBERED[which])
    r = NAMED[which]
    c.reg_read(c.uc, CP_REG, &r)
    return r.val


cdef void put(Clock *c, int which, uint64_t value) noexcept nogil:
    cdef CpReg r
    if NUMBERED[which]:
        register_write(c, NUMBERED[which], value)
        return
    r = NAMED[which]
    r.val = value
    c.reg_write(c.uc, CP_REG, &r)


cdef bint walk(Clock *c, uint64_t address, uint64_t *physical) noexcept nogil:
    cdef uint64_t control, table, entry, offset
    cdef uint64_t *place
    cdef bint upper = address >> 63
    cdef int size, level, shift
    c.walked_count = 0
    if not get(c, SCTLR) & 1:
        physical[0] = address
        return True
    control = get(c, TCR)
    if control >> 30 & 1 if upper else control >> 14 & 3:  # not the granule of 4 KiB
        return False
    size = 64 - <int>((control >> 16 if upper else control) & 63)
    if size < 25 or size > 48:
        return False
    if address >> size != ((<uint64_t>1 << (64 - size)) - 1 if upper else 0):
        return False
    table = get(c, TTBR1 if upper else TTBR0) & OUTPUT
    for level in range(3 - (size - 13) // 9, 4):
        shift = 12 + 9 * (3 - level)
        place = <uint64_t *>host_physical(
            c, table + 8 * ((address & (<uint64_t>1 << size) - 1) >> shift & 0x1FF), 8)
        if place == NULL:
            return False
        entry = place[0]
        if not entry & 1 or (level == 3 and not entry & 2):
            return False
        table = entry & OUTPUT
        if level == 3 or not entry & 2:
            offset = (<uint64_t>1 << shift) - 1
            physical[0] = table & ~offset | address & offset
            return True
    return False


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
    # Unicorn updates its cached translation flags only when a system register is written, so write
    # PSTATE first.
    register_write(c, PSTATE, MASKED)
    put(c, SPSR, state)
    put(c, ELR, pc)
    put(c, ESR, <uint64_t>EC_BRK << 26 | 1 << 25 | code >> 5 & 0xFFFF)
    go_to(c, vectors + SYNC)
    return True


cdef Answer deliver(Clock *c, uint32_t vector, uint64_t pc) noexcept nogil:
    cdef uint64_t vectors, state, sp
    cdef bint user
    if vector == BKPT:
        # Python handles breakpoints while those of probes are in memory: it may be one of them.
        if c.patched:
            return DECLINED
    elif vector not in (SVC, PREFETCH_ABORT, DATA_ABORT):
        return DECLINED
    vectors = get(c, VBAR)
    state = register_read(c, PSTATE)
    user = state & 0x1F == EL0T
    if vectors == 0 or (not user and state & 0x1F != EL1H):
        return DECLINED
    c.context_save(c.uc, c.context)
    if word_in_context(c, c.exception_places[AARCH64])[0] != 1:
        return DECLINED
    sp = register_read(c, SP)
    # Unicorn updates its cached translation flags only when a system register is written, so write
    # PSTATE first. Writing PSTATE does not switch the stack pointer.
    register_write(c, PSTATE, MASKED)
    if user:
        put(c, SP_EL0, sp)
        sp = get(c, SP_EL1)
    if vector not in (SVC, BKPT):
        put(c, FAR, in_context(c, c.exception_places[ADDRESS])[0])
    put(c, SPSR, state)
    put(c, ELR, pc)
    put(c, ESR, word_in_context(c, c.exception_places[SYNDROME])[0])
    register_write(c, SP, sp)
    go_to(c, vectors + (LOWER if user else SYNC))
    return DELIVERED


cdef void forget(Clock *c) noexcept nogil:
    put(c, SPSR, c.detour.kept[SPSR])
    put(c, ELR, c.detour.kept[ELR])
    put(c, ESR, c.detour.kept[ESR])


WALK = native(<void *>walk, "emu.walk")
# Maximum number of stack bytes that a kernel's breakpoint path may use.  The teaching kernel uses
# 448, and GENERIC uses 480.
FOOTPRINT = 2048
KEEP = native(<void *>keep, "emu.keep")
ENTER = native(<void *>enter, "emu.enter")
DELIVER = native(<void *>deliver, "emu.deliver")
FORGET = native(<void *>forget, "emu.forget")
