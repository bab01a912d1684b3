# cython: language_level=3, boundscheck=True
"""Native parser for large ELF symbol tables (System V gABI, "Symbol Table").

A test compares its results with the slower ``emu.elf.symbols.SYMBOL``.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    SIZE = 24  # size of Elf64_Sym in bytes


def rows(const uint8_t[::1] raw, uint64_t strings, kinds, bint sized):
    """Return (value, size, st_name, type) of the defined symbols, in table order.

    :param raw: bytes of the symbol table.
    :param strings: size in bytes of the string table; symbols with names outside it are skipped.
    :param kinds: STT_ numbers of the symbol types to return.
    :param sized: whether to skip symbols of size 0.
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
