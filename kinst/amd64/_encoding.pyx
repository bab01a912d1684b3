# cython: language_level=3, boundscheck=True
"""Native decoder that splits amd64 instructions into a key for the verdict and a displacement."""

from libc.stdint cimport int8_t, int32_t, uint8_t, uint32_t
from libc.string cimport memcpy

from emu.amd64._layout cimport KEEP, MODRM, REL8, REL32, Layout, lay_out
from emu.amd64._layout import fill
from emu.unicorn._engine cimport native

cdef enum:
    ANY = 1
    GROUP = 2
    FIRST = 3

# Parts of ModRM that affect the verdict.  ANY: whether the operand is memory, and whether it is
# RIP-relative.  GROUP: also the middle field, which extends the opcode.  FIRST: like GROUP if
# this field is 0 or 1, otherwise all of ModRM.
cdef uint8_t ONE_PLAIN[256]
cdef uint8_t TWO_PLAIN[256]


cdef _tables():
    one_plain, two_plain = fill([0] * 256, (
        ("00-03 08-0b 10-13 18-1b 20-23 28-2b 30-33 38-3b 63 69 6b 84-8b 8d", ANY),
        ("80 81 83 c0 c1 d0-d3 f6 f7", GROUP), ("c6 c7 fe ff", FIRST),
    )), fill([0] * 256, (
        ("10 11 14-16 28 29 2e 2f 40-4f 51 54-59 5c-5f 60-6b 6e-70 74-76 7e 7f 90-9f a3-a5 ab-ad af",
         ANY),
        ("b0 b1 b3 b6 b7 bb-bf c0 c1 d1-d5 d8-df e0-e5 e8-ef f1-f6 f8-fe", ANY), ("ba", GROUP),
    ))
    for i in range(256):
        ONE_PLAIN[i] = one_plain[i]
        TWO_PLAIN[i] = two_plain[i]


_tables()


cdef uint32_t split(const uint8_t *code, uint32_t available, uint8_t *key, uint32_t *key_length,
                    int32_t *relative) noexcept nogil:
    """Split an instruction into its key and its displacement (``split_fn`` in ``_reader.pxd``).

    The key contains prefixes, opcode, ModRM and SIB.  If the registers do not affect the verdict,
    the key omits them and ends with the length.
    """
    cdef Layout layout
    cdef uint32_t length = lay_out(code, available, &layout)
    cdef uint32_t at, kept
    cdef uint8_t plain = 0
    relative[0] = 0
    if length == 0:
        return 0
    at = kept = layout.operands
    memcpy(key, code, kept)
    if layout.relative or layout.attributes & REL32:
        memcpy(relative, code + at, 4)
    elif layout.attributes & REL8:
        relative[0] = <int8_t>code[at]
    if layout.attributes & MODRM and (
            code[layout.opcode_at] == 0x0F if layout.map == 1 else layout.map == 0
            and code[layout.opcode_at] == layout.opcode and not layout.vector):
        plain = TWO_PLAIN[layout.opcode] if layout.map else ONE_PLAIN[layout.opcode]
        if plain == FIRST and layout.modrm >> 3 & 7 > 1:
            plain = 0
    if plain:
        # REX takes effect only directly before the opcode; its bits R, X and B select registers.
        if layout.opcode_at and key[layout.opcode_at - 1] & 0xF0 == 0x40:
            key[layout.opcode_at - 1] &= 0x48
        kept = layout.opcode_at + 1 + layout.map
        key[kept] = 5 if layout.relative else 0 if layout.memory else 0xC0
        if plain != ANY:
            key[kept] |= layout.modrm & 0x38
        key[kept + 1] = <uint8_t>length
        key_length[0] = kept + 2
        return length
    if layout.map == 0 and layout.opcode == 0xFF and not layout.relative:
        # Displacement of an indirect jump or call; other instructions with opcode FF ignore it.
        if layout.displacement == 1:
            relative[0] = <int8_t>code[at]
        elif layout.displacement == 4:
            memcpy(relative, code + at, 4)
    if layout.attributes & KEEP:
        memcpy(key + kept, code + at + layout.displacement, layout.immediate)
        kept += layout.immediate
    key_length[0] = kept
    return length


SPLIT = native(<void *>split, "kinst.split")
