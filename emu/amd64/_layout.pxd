# cython: language_level=3
"""C interface for other native modules: the layout of an amd64 instruction."""

from libc.stdint cimport uint8_t, uint32_t

# Attributes of an opcode: what follows it.
cdef enum:
    MODRM = 1
    IMM8 = 2
    REL8 = 16
    REL32 = 32
    KEEP = 64  # the immediate determines the operation

cdef struct Layout:
    uint32_t opcode_at  # offset of the first opcode byte, after the prefixes
    uint32_t map  # opcode map: 0, 1 (0F), 2 (0F 38), 3 (0F 3A), or that of VEX, EVEX, XOP or REX2
    uint32_t opcode
    uint32_t attributes
    bint vector  # has a VEX, EVEX or XOP prefix
    uint8_t modrm
    bint memory  # ModRM selects a memory operand
    bint relative  # the memory operand is relative to RIP
    uint32_t operands  # offset of displacement and immediate, after opcode, ModRM and SIB
    uint32_t displacement  # size in bytes
    uint32_t immediate  # size in bytes; for a direct jump or call, that of its displacement

cdef uint32_t lay_out(const uint8_t *code, uint32_t available, Layout *layout) noexcept nogil
