# cython: language_level=3, boundscheck=True
"""Rows of a symbol table (System V gABI, "Symbol Table"), a hundred thousand at a time.

``emu.elf.symbols.SYMBOL`` is the slower truth that a test holds this to.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    SIZE = 24  # Elf64_Sym


def rows(const uint8_t[::1] raw, uint64_t strings, kinds, bint sized):
    """(value, size, st_name, type) of what is defined, in table order.

    :param strings: bytes of the string table, which names lie in.
    :param kinds: STT_ numbers of the types that are wanted.
    :param sized: only what has a size.
    """
    cdef uint32_t wanted = 0
    cdef uint32_t name
    cdef uint16_t section
    cdef uint64_t value, size
    cdef uint8_t kind
    cdef Py_ssize_t at
    for number in kinds:
        wanted |= <uint32_t>1 << <uint32_t>number
    found = []
    for at in range(0, raw.shape[0] // SIZE * SIZE, SIZE):
        kind = raw[at + 4] & 15
        if not wanted >> kind & 1:
            continue
        memcpy(&name, &raw[at], 4)
        memcpy(&section, &raw[at + 6], 2)
        memcpy(&value, &raw[at + 8], 8)
        memcpy(&size, &raw[at + 16], 8)
        if section and name < strings and (size or not sized):
            found.append((value, size, name, kind))
    return found
