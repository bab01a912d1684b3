# cython: language_level=3
"""C declarations of the layout of an amd64 instruction, for other native modules."""

from libc.stdint cimport uint8_t, uint32_t

# Attributes of an opcode, such as the operand bytes that follow the opcode.
cdef enum:
    MODRM = 1
    IMM8 = 2
    REL8 = 16
    REL32 = 32
    KEEP = 64  # the immediate determines which operation the instruction performs

cdef struct Layout:
    uint32_t opcode_at  # offset of the first opcode byte, after the prefixes
    # Opcode map: 0, 1 (0F), 2 (0F 38), 3 (0F 3A), or the number in a VEX, EVEX, XOP or REX2 prefix.
    uint32_t map
    uint32_t opcode
    uint32_t attributes
    bint vector  # whether the instruction has a VEX, EVEX or XOP prefix
    uint8_t modrm
    bint memory  # whether ModRM selects a memory operand
    bint relative  # whether the memory operand is relative to RIP
    uint32_t operands  # offset of displacement and immediate, which follow opcode, ModRM and SIB
    uint32_t displacement  # size of the displacement in bytes
    uint32_t immediate  # size in bytes of the immediate, or of a direct jump's displacement

cdef uint32_t lay_out(const uint8_t *code, uint32_t available, Layout *layout) noexcept nogil
