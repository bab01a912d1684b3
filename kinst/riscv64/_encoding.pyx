# cython: language_level=3
"""Native decoder that splits riscv64 instructions into a key for the verdict and a displacement.

The key does not contain the displacement of jumps, branches and AUIPC (unprivileged manual, 2.5 and
chapter "C"), so all calls with the same link register share one key, wherever they lead.  The
Python counterpart is the table in ``classify.py``, which needs no keys; ``know`` receives its rows.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcpy

from emu.unicorn._engine cimport native
from kinst.code._rows cimport Rows, fill, plain_row


cdef inline uint32_t bits(uint32_t word, int at, int count, int to) noexcept nogil:
    return (word >> at & ((<uint32_t>1 << count) - 1)) << to


cdef inline int32_t signed(uint32_t value, int width) noexcept nogil:
    return <int32_t>(value << (32 - width)) >> (32 - width)


cdef Rows KNOWN


def know(table):
    """Set the rows of the decoding table, in the form that ``fill`` in ``_rows.pxd`` requires."""
    fill(&KNOWN, table)


cdef uint32_t split(const uint8_t *code, uint32_t available, uint8_t *key, uint32_t *key_length,
                    int32_t *relative) noexcept nogil:
    """Split an instruction into its key and its displacement (``split_fn`` in ``_reader.pxd``).

    An instruction has four bytes if the lowest two bits of the first byte are set, else two.
    """
    cdef uint32_t size = 4 if available and code[0] & 3 == 3 else 2
    cdef uint32_t word = 0
    cdef int plain
    relative[0] = 0
    if available < size:
        return 0
    memcpy(&word, code, size)
    plain = plain_row(&KNOWN, word)
    if plain >= 0:
        key[0] = <uint8_t>plain
        key_length[0] = 1
        return size
    if word & 0x7F == 0x6F:  # JAL
        relative[0] = signed(bits(word, 31, 1, 20) | bits(word, 12, 8, 12) | bits(word, 20, 1, 11)
                             | bits(word, 21, 10, 1), 21)
        word &= 0xFFF
    elif word & 0x7F == 0x17 and word & 0xF80:  # AUIPC
        relative[0] = <int32_t>(word & <uint32_t>0xFFFFF000)
        word &= 0xFFF
    elif word & 0x7F == 0x63 and word & 0x6000 != 0x2000:  # branches, except reserved encodings
        relative[0] = signed(bits(word, 31, 1, 12) | bits(word, 7, 1, 11) | bits(word, 25, 6, 5)
                             | bits(word, 8, 4, 1), 13)
        word &= 0x1FFF07F
    elif size == 2 and word & 0xE003 == 0xA001:  # C.J
        relative[0] = signed(bits(word, 12, 1, 11) | bits(word, 11, 1, 4) | bits(word, 9, 2, 8)
                             | bits(word, 8, 1, 10) | bits(word, 7, 1, 6) | bits(word, 6, 1, 7)
                             | bits(word, 3, 3, 1) | bits(word, 2, 1, 5), 12)
        word &= 0xE003
    elif size == 2 and word & 0xC003 == 0xC001:  # C.BEQZ, C.BNEZ
        relative[0] = signed(bits(word, 12, 1, 8) | bits(word, 10, 2, 3) | bits(word, 5, 2, 6)
                             | bits(word, 3, 2, 1) | bits(word, 2, 1, 5), 9)
        word &= 0xE383
    memcpy(key, &word, size)
    key_length[0] = size
    return size


SPLIT = native(<void *>split, "kinst.split")
