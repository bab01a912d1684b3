# cython: language_level=3
"""Native part of the amd64 CPU: page walks without side effects, and delivery of exceptions.

4-level paging: SDM volume 3, "4-Level Paging and 5-Level Paging".  Unlike the CPU model, the walk
sets neither accessed bits nor CR2.  The Python version is ``Amd64.translate``.

Exceptions: SDM volume 3, chapter "Interrupt and Exception Handling", 64-bit mode.  The Python
version, ``Amd64Cpu._enter``, handles every vector and every failure.  ``enter`` handles only the
breakpoint exception of each firing; ``deliver`` handles SYSCALL, the exceptions that are frequent
in programs, and the guest's own breakpoints: those of its DTrace fire millions of times.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

import unicorn.x86_const as uc

from emu.amd64 import registers
from emu.unicorn._engine cimport (
    DECLINED,
    DELIVERED,
    EXTERNAL,
    INVALID,
    Answer,
    CONTEXT_HEADER,
    Clock,
    context_length,
    go_to,
    guest_read,
    guest_write,
    host_physical,
    host_stack,
    in_context,
    native,
    register_read,
    register_write,
    word_in_context,
)

cdef int CR0 = uc.UC_X86_REG_CR0
cdef int CR3 = uc.UC_X86_REG_CR3

cdef enum:
    PRESENT = 1
    PROTECTED = 1  # CR0.PE
    LARGE = 1 << 7
    LEVELS = 4

cdef uint64_t FRAME = 0xFFFFFFFFFF000


cdef bint walk(Clock *c, uint64_t address, uint64_t *physical) noexcept nogil:
    cdef uint64_t table, entry, offset, control
    cdef uint64_t *place
    cdef int level
    cdef int shift = 39
    c.walked_count = 0
    table = register_read(c, CR3) & FRAME
    # In protected mode, addresses are physical only until the kernel sets CR3 or enables paging.
    # In real mode, in which the other CPUs start, addresses are physical even if CR3 is set.
    control = register_read(c, CR0)
    if not control & PROTECTED or table == 0 and not control >> 31 & 1:
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


cdef int RSP = uc.UC_X86_REG_RSP
cdef int RFLAGS = uc.UC_X86_REG_RFLAGS
cdef int CS = uc.UC_X86_REG_CS
cdef int CR2 = uc.UC_X86_REG_CR2
cdef int SS = uc.UC_X86_REG_SS
cdef int IDTR = uc.UC_X86_REG_IDTR
cdef int TR = uc.UC_X86_REG_TR
cdef int MSR = uc.UC_X86_REG_MSR
cdef uint32_t EFER = registers.MSRS["efer"]
cdef uint32_t STAR = registers.MSRS["star"]
cdef uint32_t LSTAR = registers.MSRS["lstar"]
cdef uint32_t SFMASK = registers.MSRS["sfmask"]

cdef enum:
    VECTOR = 3
    INTERRUPT_GATE = 0xE
    TRAP_GATE = 0xF
    INTERRUPT_FLAG = 1 << 9
    CLEARED = 1 << 8 | 1 << 14 | 1 << 16 | 1 << 17  # flags TF, NT, RF and VM

# Unicorn's struct uc_x86_mmr (unicorn/x86.h)
cdef struct Mmr:
    uint16_t selector
    uint64_t base
    uint32_t limit
    uint32_t flags


cdef bint enter(Clock *c, uint64_t pc) noexcept nogil:
    """Enter the handler of the kernel's breakpoint gate; return False if this is not possible."""
    cdef Mmr idtr
    cdef uint32_t ist
    cdef uint64_t gate[2]
    cdef uint64_t frame[5]
    cdef uint64_t cs = register_read(c, CS) & 0xFFFF
    cdef uint64_t top, flags
    cdef uint32_t kind
    cdef uint8_t *kept
    c.reg_read(c.uc, IDTR, &idtr)
    if cs & 3 or idtr.limit < 16 * VECTOR + 15:
        return False
    if not guest_read(c, idtr.base + 16 * VECTOR, gate, 16):
        return False
    kind = <uint32_t>(gate[0] >> 40 & 0x1F)
    if not gate[0] >> 47 & 1 or kind not in (INTERRUPT_GATE, TRAP_GATE):
        return False
    if gate[0] >> 16 & 0xFFFF != cs:
        return False
    flags = register_read(c, RFLAGS)
    frame[0] = pc + 1
    frame[1] = cs
    frame[2] = flags
    frame[3] = register_read(c, RSP)
    frame[4] = register_read(c, SS) & 0xFFFF
    top = frame[3]
    ist = <uint32_t>(gate[0] >> 32 & 7)
    if ist:
        c.reg_read(c.uc, TR, &idtr)
        if not guest_read(c, idtr.base + IST + 8 * ist, &top, 8):
            return False
    top = (top & ~<uint64_t>15) - 40
    kept = host_stack(c, top)
    if kept != NULL and host_stack(c, top + 39) == kept + 39:
        memcpy(kept, frame, 40)
    elif not guest_write(c, top, frame, 40):
        return False
    flags &= ~<uint64_t>CLEARED
    if kind == INTERRUPT_GATE:
        flags &= ~<uint64_t>INTERRUPT_FLAG
    register_write(c, RFLAGS, flags)
    register_write(c, RSP, top)
    go_to(c, gate[0] & 0xFFFF | gate[0] >> 48 << 16 | gate[1] << 32)
    return True


# Context fields whose offsets the engine needs: exception state, cached flags and registers.
EXCEPTION_PLACES = ("error code", "exception in flight", "hflags", "rip", "rcx", "r11", "rsp")

cdef enum:
    ERROR_CODE = 0
    IN_FLIGHT = 1
    HFLAGS = 2
    RIP_PLACE = 3
    RCX_PLACE = 4
    R11_PLACE = 5
    RSP_PLACE = 6
    CPL = 3  # mask of the privilege level in hflags and in a selector
    CS64 = 1 << 15
    WRITABLE = 2
    RSP0 = 4  # offset of RSP0 in the TSS
    IST = 28  # interrupt stack pointer n is at offset IST + 8 * n of the TSS
    SYSCALL = 256
    SYSCALL_BYTES = 2
    RESUME_FLAG = 1 << 16
    SCE = 1

cdef uint64_t RESERVED = <uint64_t>0xFFF << 40  # reserved bits of a page table entry
cdef uint32_t FAULTS = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 13 | 1 << 14 | 1 << 16 | 1 << 19
cdef uint32_t WITH_ERROR_CODE = 1 << 13 | 1 << 14

# Unicorn's struct uc_x86_msr (unicorn/x86.h)
cdef struct Msr:
    uint32_t number
    uint64_t value


cdef uint64_t msr(Clock *c, uint32_t number) noexcept nogil:
    cdef Msr it = Msr(number, 0)
    c.reg_read(c.uc, MSR, &it)
    return it.value


cdef bint writable(Clock *c, uint64_t address, uint64_t size) noexcept nogil:
    """Return whether ring 0 can push ``size`` bytes to ``address``, all on one page."""
    cdef uint64_t physical = 0
    cdef int i
    if (address ^ (address + size - 1)) >> 12 or not walk(c, address, &physical):
        return False
    for i in range(c.walked_count):
        if not c.walked[i][0] & WRITABLE or c.walked[i][0] & RESERVED:
            return False
    return c.walked_count != 0 and host_physical(c, physical, size) != NULL


cdef inline uint64_t *place(Clock *c, int which) noexcept nogil:
    return in_context(c, c.exception_places[which])


cdef void to_ring_0(Clock *c) noexcept nogil:
    """Set ring 0 in the context, because writing a selector does not change the model's ring."""
    word_in_context(c, c.exception_places[HFLAGS])[0] &= ~<uint32_t>CPL


cdef Answer system_call(Clock *c, uint64_t behind) noexcept nogil:
    """Execute SYSCALL (SDM volume 2); the CPU is still at the instruction."""
    cdef size_t whole
    cdef Answer answer
    if not msr(c, EFER) & SCE:
        return DECLINED
    whole = context_length(c)[0]
    context_length(c)[0] = brief(c)  # copy only the part of the context that changes
    answer = enter_kernel(c, behind)
    context_length(c)[0] = whole
    return answer


cdef inline size_t brief(Clock *c) noexcept nogil:
    """Return how many bytes of a context cover everything that SYSCALL changes."""
    return max(max(c.exception_places[HFLAGS], c.exception_places[RIP_PLACE]),
               max(c.exception_places[RCX_PLACE], c.exception_places[R11_PLACE])
               ) + 8 - CONTEXT_HEADER


cdef Answer enter_kernel(Clock *c, uint64_t behind) noexcept nogil:
    cdef uint64_t flags, selector
    c.context_save(c.uc, c.context)
    if not word_in_context(c, c.exception_places[HFLAGS])[0] & CS64:
        return DECLINED
    flags = register_read(c, RFLAGS)
    selector = msr(c, STAR) >> 32 & 0xFFFC
    to_ring_0(c)
    place(c, RCX_PLACE)[0] = behind
    place(c, R11_PLACE)[0] = flags & ~<uint64_t>RESUME_FLAG
    # Subtract the length of SYSCALL, which the CPU model adds to RIP afterwards. Set RIP in the
    # context, because writing the register ends the run.
    place(c, RIP_PLACE)[0] = msr(c, LSTAR) - SYSCALL_BYTES
    c.context_restore(c.uc, c.context)
    register_write(c, RFLAGS, flags & ~(msr(c, SFMASK) | RESUME_FLAG))
    register_write(c, CS, selector)
    register_write(c, SS, selector + 8)
    return DELIVERED


cdef Answer deliver(Clock *c, uint32_t vector, uint64_t pc) noexcept nogil:
    cdef Mmr table
    cdef uint64_t gate[2]
    cdef uint64_t frame[6]
    cdef uint64_t top, sp, flags, cs
    cdef uint32_t kind, ist
    cdef int words = 0
    cdef bint user
    cdef bint external = vector >= EXTERNAL
    if vector == SYSCALL:
        return system_call(c, pc)
    if vector == INVALID:
        return DECLINED
    if external:
        vector -= EXTERNAL
    elif vector == VECTOR:
        # Python handles breakpoints while those of probes are in memory: it may be one of them.
        if c.patched:
            return DECLINED
    elif vector > 31 or not FAULTS >> vector & 1:
        return DECLINED
    c.reg_read(c.uc, IDTR, &table)
    if table.limit < 16 * vector + 15 or not guest_read(c, table.base + 16 * vector, gate, 16):
        return DECLINED
    kind = <uint32_t>(gate[0] >> 40 & 0x1F)
    ist = <uint32_t>(gate[0] >> 32 & 7)
    if not gate[0] >> 47 & 1 or kind not in (INTERRUPT_GATE, TRAP_GATE):
        return DECLINED
    cs = register_read(c, CS) & 0xFFFF
    user = cs & CPL != 0
    if vector == VECTOR and user and not gate[0] >> 46 & 1:
        return DECLINED  # the gate's privilege level forbids INT3 in programs
    sp = top = register_read(c, RSP)
    if ist or user:
        c.reg_read(c.uc, TR, &table)
        if not guest_read(c, table.base + (IST + 8 * ist if ist else RSP0), &top, 8):
            return DECLINED
    c.context_save(c.uc, c.context)
    if not external and vector != VECTOR and (
            word_in_context(c, c.exception_places[ERROR_CODE] + 4)[0]):
        return DECLINED  # a software interrupt (INT n)
    if not external and WITH_ERROR_CODE >> vector & 1:
        frame[0] = word_in_context(c, c.exception_places[ERROR_CODE])[0]
        words = 1
    flags = register_read(c, RFLAGS)
    frame[words] = pc
    frame[words + 1] = cs
    frame[words + 2] = flags
    frame[words + 3] = sp
    frame[words + 4] = register_read(c, SS) & 0xFFFF
    words += 5
    top = (top & ~<uint64_t>15) - 8 * words
    if not writable(c, top, 8 * words):
        return DECLINED
    guest_write(c, top, frame, 8 * words)
    word_in_context(c, c.exception_places[IN_FLIGHT])[0] = 0xFFFFFFFF
    if user:
        to_ring_0(c)
    place(c, RSP_PLACE)[0] = top
    place(c, RIP_PLACE)[0] = gate[0] & 0xFFFF | gate[0] >> 48 << 16 | gate[1] << 32
    c.context_restore(c.uc, c.context)
    flags &= ~<uint64_t>CLEARED
    if kind == INTERRUPT_GATE:
        flags &= ~<uint64_t>INTERRUPT_FLAG
    register_write(c, RFLAGS, flags)
    register_write(c, CS, gate[0] >> 16 & 0xFFFF)
    if user:
        register_write(c, SS, 0)
    return DELIVERED


cdef void keep(Clock *c) noexcept nogil:
    """Save CR2, because Unicorn writes CR2 when asked to translate an unmapped address.

    The breakpoint itself changes no registers that describe an exception.
    """
    c.detour.kept[0] = register_read(c, CR2)


cdef void forget(Clock *c) noexcept nogil:
    if register_read(c, CR2) != c.detour.kept[0]:
        register_write(c, CR2, c.detour.kept[0])


WALK = native(<void *>walk, "emu.walk")
# Maximum number of stack bytes that a kernel's breakpoint path may use.  The teaching kernel uses
# 200, and GENERIC uses 208.
FOOTPRINT = 768
KEEP = native(<void *>keep, "emu.keep")
ENTER = native(<void *>enter, "emu.enter")
DELIVER = native(<void *>deliver, "emu.deliver")
FORGET = native(<void *>forget, "emu.forget")
