# cython: language_level=3
"""What other native modules may know of how an amd64 instruction is laid out."""

from libc.stdint cimport uint8_t, uint32_t

# What an opcode has behind it.
cdef enum:
    MODRM = 1
    IMM8 = 2
    REL8 = 16
    REL32 = 32
    KEEP = 64  # the immediate decides what the instruction is

cdef struct Layout:
    uint32_t opcode_at  # of its first byte, behind the prefixes
    uint32_t map  # 0, 1 (0F), 2 (0F 38), 3 (0F 3A), or as VEX, EVEX, XOP and REX2 say
    uint32_t opcode
    uint32_t attributes
    bint vector  # VEX, EVEX or XOP
    uint8_t modrm
    bint memory  # ModRM names a place in memory
    bint relative  # relative to RIP
    uint32_t operands  # where displacement and immediate begin: behind opcode, ModRM and SIB
    uint32_t displacement  # bytes
    uint32_t immediate  # bytes; of a direct jump or call, its displacement

cdef uint32_t lay_out(const uint8_t *code, uint32_t available, Layout *layout) noexcept nogil
