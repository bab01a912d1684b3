# cython: language_level=3
"""C interface of the code reader for other native modules: templates and pieces of a function."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    MAX_CODE = 16
    MAX_REGISTERS = 128

cdef struct Template:
    uint8_t op
    uint8_t a
    uint8_t b
    uint8_t c
    uint8_t n
    uint8_t relative
    uint8_t flags
    uint8_t code_length
    uint8_t has_data
    uint8_t code[MAX_CODE]
    uint32_t truth
    uint64_t target
    uint64_t extra

cdef struct Templates:
    Template *all
    uint32_t count
    uint32_t room

# One instruction of a function.
cdef struct Piece:
    uint64_t at
    uint32_t template
    int32_t relative
    uint32_t length

# Cached template of an encoding.
cdef struct Known:
    uint32_t template
    uint8_t length
    uint8_t key_length  # length of ``key`` in bytes, or 0 for an unused entry
    uint8_t key[MAX_CODE]

# Split an instruction and return its length, or 0 if it is invalid. ``key`` receives the bytes that
# determine the verdict, without the displacement; ``relative`` receives the displacement.
ctypedef uint32_t (*split_fn)(const uint8_t *code, uint32_t available, uint8_t *key,
                              uint32_t *key_length, int32_t *relative) noexcept nogil


cdef class CodeReader:
    cdef Templates templates
    cdef int registers  # number of registers that a template can name
    cdef split_fn split
    cdef object classify
    cdef dict known
    cdef Known *recent  # cache of recent entries of ``known``, indexed by a hash of the key
    cdef public object literal  # function that finds PC-relative data (``Instructions.literal``)
    cdef uint64_t rest  # number of bytes after the last function's last instruction

    cdef int made(self) except -1
    cdef int known_register(self, int register) except -1
    cdef int64_t template_of(self, const uint8_t *code, uint32_t available, uint64_t address,
                             uint32_t *length, int32_t *relative) except -2
    cdef uint64_t pieces(self, uint64_t address, const uint8_t[::1] code, uint64_t start,
                         uint64_t size, Piece **found, list data) except? <uint64_t>-1
    cdef uint64_t walk(self, uint64_t address, const uint8_t[::1] code, uint64_t start,
                       uint64_t size, Piece **found, list data, list ranges) except? <uint64_t>-1
    cdef int read_at(self, uint64_t address, uint64_t size, uint64_t at, bytes code,
                     list ranges) except -1
