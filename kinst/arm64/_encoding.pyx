# cython: language_level=3
"""Native decoder that splits arm64 instructions into a key for the verdict and a displacement.

The key does not contain the displacement of branches, ADR and ADRP (Arm ARM, C4.1.93 and C6.2), so
all direct calls share one key, wherever they lead.  The Python counterpart is the table in
``classify.py``, which needs no keys; ``know`` receives its rows.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcpy

from emu.unicorn._engine cimport native
from kinst.code._rows cimport Rows, fill, plain_row

cdef enum:
    ROWS = 4

# (mask, value) of a branch; lowest bit and width of the displacement field, which counts words
cdef uint32_t[ROWS][4] TABLE = [
    [0x7C000000, 0x14000000, 0, 26],  # B, BL
    [0xFF000000, 0x54000000, 5, 19],  # B.cond, BC.cond
    [0x7E000000, 0x34000000, 5, 19],  # CBZ, CBNZ
    [0x7E000000, 0x36000000, 5, 14],  # TBZ, TBNZ
]

cdef Rows KNOWN


def know(table):
    """Set the rows of the decoding table, in the form that ``fill`` in ``_rows.pxd`` requires."""
    fill(&KNOWN, table)


cdef uint32_t split(const uint8_t *code, uint32_t available, uint8_t *key, uint32_t *key_length,
                    int32_t *relative) noexcept nogil:
    cdef uint32_t word, field, row, at, bits
    cdef int plain
    cdef int32_t displacement
    relative[0] = 0
    if available < 4:
        return 0
    memcpy(&word, code, 4)
    plain = plain_row(&KNOWN, word)
    if plain >= 0:
        key[0] = <uint8_t>plain
        key_length[0] = 1
        return 4
    for row in range(ROWS):
        if word & TABLE[row][0] == TABLE[row][1]:
            at, bits = TABLE[row][2], TABLE[row][3]
            field = word >> at & ((<uint32_t>1 << bits) - 1)
            # The highest bit of the field is the sign.
            relative[0] = (<int32_t>(field << (32 - bits)) >> (32 - bits)) * 4
            word ^= field << at
            break
    if word & 0x1F000000 == 0x10000000:  # ADR, ADRP
        displacement = <int32_t>((word >> 3 & 0x1FFFFC | word >> 29 & 3) << 11) >> 11
        # a displacement of ADRP that does not fit into ``relative`` remains in the key
        if word >> 31 == 0 or -(1 << 19) <= displacement < 1 << 19:
            relative[0] = displacement * (4096 if word >> 31 else 1)
            word &= <uint32_t>0x9F00001F
    memcpy(key, &word, 4)
    key_length[0] = 4
    return 4


SPLIT = native(<void *>split, "kinst.split")
