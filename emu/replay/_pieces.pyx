# cython: language_level=3, boundscheck=True, cdivision=True
"""Compression of the guest's control flow (``emu/unicorn/_flow.pyx``).

Each distinct piece of code (address, instructions) gets a number, in order of first appearance.
The next piece is predicted from the last two, and else from the last one: the prediction is the
piece that followed them the last time.  A chunk is a sequence of tokens:

    varint R: number of pieces that the last two predicted correctly; then a varint:
    0           end of the chunk
    1           new piece: zigzag(address - address of the previous piece), instructions
    2           new thread: its value
    3           new skew: zigzag(value - previous value)
    4           an exception or interrupt was delivered or emulated
    5           the piece predicted from the last one
    6 + n       piece number n

Varints have seven bits per byte, lowest bits first (LEB128).  The state is carried over from chunk
to chunk.  The prediction after two pieces, ``a`` and then ``b`` (piece number plus 1, or 0 for
none), is stored in the slot ((a << 32 | b) * 0x9E3779B97F4A7C15 mod 2**64) >> 46; a collision
overwrites the previous content.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

from emu.unicorn._flow import FlowKind

cpdef enum PieceLimit:
    MAX_PIECES = 1 << 26  # maximum number of distinct pieces
    MAX_INSTRUCTIONS = 1 << 20  # maximum number of instructions in a piece

cdef enum:
    GUESSES = 1 << 18
    ENTRY = 16  # size of an entry in bytes: u64 value, u32 count, u32 kind
    LONGEST_TOKEN = 40  # maximum size of a token in bytes
    OP_END = 0
    OP_NEW = 1
    OP_THREAD = 2
    OP_SKEW = 3
    OP_TAKEN = 4
    OP_LAST = 5
    OP_PIECE = 6

cdef uint32_t PIECE = FlowKind.FLOW_PIECE
cdef uint32_t THREAD = FlowKind.FLOW_THREAD
cdef uint32_t SKEW = FlowKind.FLOW_SKEW
cdef uint32_t TAKEN = FlowKind.FLOW_TAKEN


cdef struct Entry:
    uint64_t value
    uint32_t count
    uint32_t kind


cdef inline uint64_t zigzag(uint64_t difference) noexcept nogil:
    return difference << 1 ^ (0 - (difference >> 63))


cdef inline uint64_t unzigzag(uint64_t value) noexcept nogil:
    return value >> 1 ^ (0 - (value & 1))


cdef class _Known:
    """Numbered pieces and predictions, which the coder and the decoder update in the same way."""

    cdef Entry *pieces  # count and value of each piece
    cdef uint32_t *after_one  # index of a piece -> index plus 1 of the piece that followed it
    cdef uint32_t used
    cdef uint32_t room
    cdef uint32_t *after_two  # hash of two pieces -> index plus 1 of the next piece
    cdef uint32_t one  # index plus 1 of the latest piece, or 0 if there is none
    cdef uint32_t two  # index plus 1 of the piece before the latest one, or 0 if there is none
    cdef uint64_t skew

    def __cinit__(self):
        self.after_two = <uint32_t *>calloc(GUESSES, sizeof(uint32_t))
        if self.after_two == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.pieces)
        free(self.after_one)
        free(self.after_two)

    cdef int add(self, uint64_t address, uint32_t count) except -1:
        cdef uint32_t room
        cdef void *grown
        if self.used == self.room:
            room = self.room * 2 if self.room else 1 << 12
            if room > <uint32_t>MAX_PIECES:
                raise ValueError("too many distinct pieces of code")
            grown = realloc(self.pieces, room * sizeof(Entry))
            if grown == NULL:
                raise MemoryError
            self.pieces = <Entry *>grown
            grown = realloc(self.after_one, room * sizeof(uint32_t))
            if grown == NULL:
                raise MemoryError
            self.after_one = <uint32_t *>grown
            self.room = room
        self.pieces[self.used].value = address
        self.pieces[self.used].count = count
        self.pieces[self.used].kind = PIECE
        self.after_one[self.used] = 0
        self.used += 1
        return 0

    cdef inline uint32_t *by_two(self) noexcept nogil:
        cdef uint64_t h = (<uint64_t>self.two << 32 | self.one) * <uint64_t>0x9E3779B97F4A7C15
        return &self.after_two[h >> 46]

    cdef inline uint32_t by_one(self) noexcept nogil:
        return self.after_one[self.one - 1] if self.one else 0

    cdef inline void follow(self, uint32_t piece) noexcept nogil:
        """Update the predictions with the next piece, given as its number plus 1."""
        self.by_two()[0] = piece
        if self.one:
            self.after_one[self.one - 1] = piece
        self.two, self.one = self.one, piece

    cdef inline uint64_t last_address(self) noexcept nogil:
        return self.pieces[self.one - 1].value if self.one else 0


cdef class PieceCoder(_Known):
    """Coder that compresses a flow chunk by chunk."""

    cdef uint32_t *numbers  # hash table with open addressing: piece index plus 1, or 0 if free
    cdef uint64_t mask
    cdef public uint64_t instructions  # number of instructions coded so far

    def __cinit__(self):
        self.mask = (1 << 14) - 1
        self.numbers = <uint32_t *>calloc(self.mask + 1, sizeof(uint32_t))
        if self.numbers == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.numbers)

    cdef inline uint64_t place(self, uint64_t address, uint32_t count) noexcept nogil:
        cdef uint64_t i = (address ^ <uint64_t>count << 48) * <uint64_t>0x9E3779B97F4A7C15 >> 20
        cdef Entry *piece
        while True:
            i &= self.mask
            if not self.numbers[i]:
                return i
            piece = &self.pieces[self.numbers[i] - 1]
            if piece.value == address and piece.count == count:
                return i
            i += 1

    cdef int grow(self) except -1:
        cdef uint64_t mask = self.mask * 2 + 1
        cdef uint32_t *numbers = <uint32_t *>calloc(mask + 1, sizeof(uint32_t))
        cdef uint32_t n
        if numbers == NULL:
            raise MemoryError
        free(self.numbers)
        self.numbers, self.mask = numbers, mask
        for n in range(self.used):
            self.numbers[self.place(self.pieces[n].value, self.pieces[n].count)] = n + 1
        return 0

    def code(self, bytes entries not None):
        """Compress flow entries (16 bytes each) into a chunk.

        :raises ValueError: if the entries are invalid.
        """
        cdef Py_ssize_t total = len(entries) // ENTRY, i
        cdef const char *data = PyBytes_AS_STRING(entries)
        cdef Entry entry
        cdef uint64_t run = 0, at
        cdef uint32_t piece
        cdef bint new
        cdef uint8_t *out
        cdef uint8_t *w
        if len(entries) % ENTRY:
            raise ValueError("the length of flow entries must be a multiple of 16 bytes")
        out = w = <uint8_t *>calloc(total + 1, LONGEST_TOKEN)
        if out == NULL:
            raise MemoryError
        try:
            for i in range(total):
                memcpy(&entry, data + i * ENTRY, ENTRY)
                if entry.kind == THREAD:
                    w = self.put(self.put(self.put(w, run), OP_THREAD), entry.value)
                    run = 0
                    continue
                if entry.kind == SKEW:
                    w = self.put(self.put(self.put(w, run), OP_SKEW),
                                 zigzag(entry.value - self.skew))
                    self.skew = entry.value
                    run = 0
                    continue
                if entry.kind == TAKEN:
                    w = self.put(self.put(w, run), OP_TAKEN)
                    run = 0
                    continue
                if entry.kind != PIECE or not 0 < entry.count <= <uint32_t>MAX_INSTRUCTIONS:
                    raise ValueError("invalid flow entry")
                self.instructions += entry.count
                at = self.place(entry.value, entry.count)
                piece = self.numbers[at]
                new = not piece
                if new:
                    if self.used * 2 > self.mask:
                        self.grow()
                        at = self.place(entry.value, entry.count)
                    self.add(entry.value, entry.count)
                    piece = self.numbers[at] = self.used
                if piece == self.by_two()[0]:
                    run += 1
                else:
                    w = self.put(w, run)
                    run = 0
                    if new:
                        w = self.put(self.put(self.put(w, OP_NEW), zigzag(
                            entry.value - self.last_address())), entry.count)
                    elif piece == self.by_one():
                        w = self.put(w, OP_LAST)
                    else:
                        w = self.put(w, OP_PIECE + piece - 1)
                self.follow(piece)
            w = self.put(self.put(w, run), OP_END)
            return PyBytes_FromStringAndSize(<char *>out, w - out)
        finally:
            free(out)

    cdef inline uint8_t *put(self, uint8_t *w, uint64_t value) noexcept nogil:
        while value >= 0x80:
            w[0] = <uint8_t>(value | 0x80)
            value >>= 7
            w += 1
        w[0] = <uint8_t>value
        return w + 1


cdef class PieceDecoder(_Known):
    """Decoder for the chunks of a ``PieceCoder``; decode the chunks in their original order.

    After a ValueError nothing more can be decoded.
    """

    cdef const uint8_t[:] content
    cdef Py_ssize_t at

    cdef uint64_t take(self) except? 0xFFFFFFFFFFFFFFFF:
        cdef uint64_t value = 0
        cdef int shift = 0
        cdef uint8_t byte
        while True:
            if self.at >= self.content.shape[0] or shift > 63:
                raise ValueError("the chunk is truncated")
            byte = self.content[self.at]
            self.at += 1
            value |= <uint64_t>(byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def decode(self, bytes content not None, uint64_t most):
        """Return the entries of a chunk: u64 value, u32 count, u32 kind each.

        :param most: maximum number of entries.
        :raises ValueError: if the chunk has more entries or is invalid.
        """
        cdef uint64_t run, op, used = 0, room = 1 << 12, count
        cdef uint32_t piece
        cdef Entry *out = <Entry *>calloc(room, sizeof(Entry))
        cdef void *grown
        cdef uint64_t i
        self.content, self.at = content, 0
        try:
            if out == NULL:
                raise MemoryError
            while True:
                run, op = self.take(), self.take()
                if run >= most - used:
                    raise ValueError("the chunk has too many entries")
                if used + run + 1 > room:
                    while used + run + 1 > room:
                        room *= 2
                    grown = realloc(out, room * sizeof(Entry))
                    if grown == NULL:
                        raise MemoryError
                    out = <Entry *>grown
                for i in range(run):
                    piece = self.by_two()[0]
                    if not 0 < piece <= self.used:
                        raise ValueError("the chunk uses a prediction that does not exist")
                    out[used] = self.pieces[piece - 1]
                    used += 1
                    self.follow(piece)
                if op == OP_END:
                    if self.at != self.content.shape[0]:
                        raise ValueError("extra bytes after the end of the chunk")
                    return PyBytes_FromStringAndSize(<char *>out, used * sizeof(Entry))
                out[used].count = 0
                if op == OP_THREAD:
                    out[used].value, out[used].kind = self.take(), THREAD
                elif op == OP_SKEW:
                    self.skew += unzigzag(self.take())
                    out[used].value, out[used].kind = self.skew, SKEW
                elif op == OP_TAKEN:
                    out[used].value, out[used].kind = 0, TAKEN
                else:
                    if op == OP_NEW:
                        i = self.last_address() + unzigzag(self.take())
                        count = self.take()
                        if not 0 < count <= <uint64_t>MAX_INSTRUCTIONS:
                            raise ValueError("a piece has an invalid number of instructions")
                        self.add(i, <uint32_t>count)
                        piece = self.used
                    elif op == OP_LAST:
                        piece = self.by_one()
                    else:
                        piece = <uint32_t>(op - OP_PIECE) + 1 if op - OP_PIECE < self.used else 0
                    if not 0 < piece <= self.used:
                        raise ValueError("the chunk uses a piece that does not exist")
                    out[used] = self.pieces[piece - 1]
                    self.follow(piece)
                used += 1
        finally:
            self.content = None
            free(out)
