# cython: language_level=3, boundscheck=True, cdivision=True
"""Native decoder for line number programs (DWARF 4 and 5, 6.2).

Every read is checked against the end of the section; a damaged program raises LineError.
"""

from libc.stdint cimport int8_t, int64_t, uint8_t, uint32_t, uint64_t

from dwarf._leb cimport read_leb, read_number

cdef enum:
    MAX_ROWS = 1 << 22

cdef struct Program:
    const uint8_t *data
    uint64_t size
    uint64_t at
    uint64_t end  # end offset of the line number program
    uint32_t version
    uint8_t offset_size
    uint8_t minimum
    uint8_t operations
    int8_t base
    uint8_t range
    uint8_t opcode_base
    uint8_t lengths[256]

cdef struct Row:
    uint64_t address
    uint32_t file
    uint32_t line
    bint ends


class LineError(Exception):
    """Damaged line number program; the message includes the offset in .debug_line."""

    def __init__(self, what, offset):
        super().__init__(f"{what} at .debug_line+{offset:#x}")


cdef inline int number(Program *p, int size, uint64_t *out) noexcept nogil:
    return read_number(p.data, p.end, &p.at, size, out)


cdef inline int uleb(Program *p, uint64_t *out) noexcept nogil:
    return read_leb(p.data, p.end, &p.at, False, out)


cdef inline int sleb(Program *p, int64_t *out) noexcept nogil:
    return read_leb(p.data, p.end, &p.at, True, <uint64_t *>out)


cdef int header(Program *p, uint64_t *after) noexcept nogil:
    """Read the header, and set ``p.at`` to the first opcode; return 0 if the header is invalid."""
    cdef uint64_t value = 0
    cdef uint64_t length = 0
    cdef uint64_t start
    cdef int i
    p.end = p.size
    p.offset_size = 4
    if not number(p, 4, &length):
        return 0
    if length >> 32 == 0 and length == (<uint64_t>1 << 32) - 1:
        p.offset_size = 8
        if not number(p, 8, &length):
            return 0
    if length > p.size - p.at:
        return 0
    p.end = p.at + length
    after[0] = p.end
    if not number(p, 2, &value) or value < 2 or value > 5:
        return 0
    p.version = <uint32_t>value
    if p.version >= 5 and not number(p, 2, &value):
        return 0
    if not number(p, p.offset_size, &length) or length > p.end - p.at:
        return 0
    start = p.at + length
    if not number(p, 1, &value):
        return 0
    p.minimum = <uint8_t>value
    p.operations = 1
    if p.version >= 4:
        if not number(p, 1, &value):
            return 0
        p.operations = <uint8_t>(value if value else 1)
    if not number(p, 1, &value) or not number(p, 1, &value):
        return 0
    p.base = <int8_t><uint8_t>value
    if not number(p, 1, &value) or value == 0:
        return 0
    p.range = <uint8_t>value
    if not number(p, 1, &value) or value == 0:
        return 0
    p.opcode_base = <uint8_t>value
    for i in range(1, p.opcode_base):
        if not number(p, 1, &value):
            return 0
        p.lengths[i] = <uint8_t>value
    p.at = start
    return 1


cdef int step(Program *p, Row *state, Row *row) noexcept nogil:
    """Run the program to the next row; return 1 for a row, 0 at the end, or -1 for damage."""
    cdef uint64_t opcode = 0
    cdef uint64_t value = 0
    cdef uint64_t length = 0
    cdef uint64_t after
    cdef int64_t signed_value = 0
    cdef int i
    while p.at < p.end:
        if not number(p, 1, &opcode):
            return -1
        if opcode >= p.opcode_base:
            opcode -= p.opcode_base
            state.address += opcode // p.range * p.minimum
            state.line += <uint32_t>(p.base + <int>(opcode % p.range))
            row[0] = state[0]
            return 1
        if opcode == 0:
            if not uleb(p, &length) or length == 0 or length > p.end - p.at:
                return -1
            after = p.at + length
            if not number(p, 1, &opcode):
                return -1
            if opcode == 1:  # end of sequence
                row[0] = state[0]
                row.ends = True
                state.address = 0
                state.file = 1
                state.line = 1
                p.at = after
                return 1
            if opcode == 2:  # set address
                if length - 1 not in (4, 8) or not number(p, <int>(length - 1), &state.address):
                    return -1
            p.at = after
        elif opcode == 1:  # copy
            row[0] = state[0]
            return 1
        elif opcode == 2:  # advance pc
            if not uleb(p, &value):
                return -1
            state.address += value * p.minimum
        elif opcode == 3:  # advance line
            if not sleb(p, &signed_value):
                return -1
            state.line = <uint32_t>(<int64_t>state.line + signed_value)
        elif opcode == 4:  # set file
            if not uleb(p, &value):
                return -1
            state.file = <uint32_t>value
        elif opcode == 8:  # const add pc
            state.address += <uint64_t>(255 - p.opcode_base) // p.range * p.minimum
        elif opcode == 9:  # fixed advance pc
            if not number(p, 2, &value):
                return -1
            state.address += value
        else:
            for i in range(p.lengths[opcode]):
                if not uleb(p, &value):
                    return -1
    return 0


cdef class LineTable:
    """Line number programs of an ELF file.

    :param section: contents of .debug_line.
    """

    cdef const uint8_t[::1] section

    def __init__(self, const uint8_t[::1] section):
        self.section = section

    cdef Program program(self, uint64_t offset, uint64_t *after) except *:
        cdef Program p
        p.data = &self.section[0]
        p.size = self.section.shape[0]
        p.at = offset
        p.end = p.size
        if offset >= p.size or not header(&p, after):
            raise LineError("invalid line number program header", offset)
        return p

    def programs(self):
        """Return (offset, end of the header, end) of every line number program."""
        cdef uint64_t at = 0
        cdef uint64_t after = 0
        cdef Program p
        found = []
        while at < <uint64_t>self.section.shape[0]:
            p = self.program(at, &after)
            found.append((at, p.at, after))
            at = after
        return found

    def find(self, uint64_t address):
        """Return (program offset, file, line) of the row that covers an address, or None."""
        cdef uint64_t at = 0
        cdef uint64_t after = 0
        cdef Program p
        cdef Row state, row, before
        cdef bint known
        cdef int result
        while at < <uint64_t>self.section.shape[0]:
            p = self.program(at, &after)
            state.address = 0
            state.file = state.line = 1
            state.ends = False
            known = False
            while True:
                result = step(&p, &state, &row)
                if result < 0:
                    raise LineError("damaged line number program", p.at)
                if result == 0:
                    break
                if known and before.address <= address < row.address:
                    return at, before.file, before.line
                before = row
                known = not row.ends
            at = after
        return None

    def within(self, uint64_t low, uint64_t high):
        """Return the rows with code in [low, high), sorted by address and clipped to this range.

        Each is (first address, end, program offset, file, line).
        """
        cdef uint64_t at = 0
        cdef uint64_t after = 0
        cdef Program p
        cdef Row state, row, before
        cdef bint known
        cdef int result
        found = []
        while at < <uint64_t>self.section.shape[0]:
            p = self.program(at, &after)
            state.address = 0
            state.file = state.line = 1
            state.ends = False
            known = False
            while True:
                result = step(&p, &state, &row)
                if result < 0:
                    raise LineError("damaged line number program", p.at)
                if result == 0:
                    break
                if known and before.address < row.address and before.address < high and (
                        low < row.address) and len(found) < MAX_ROWS:
                    found.append((max(before.address, low), min(row.address, high), at,
                                  before.file, before.line))
                before = row
                known = not row.ends
            at = after
            with nogil:  # so that another thread can show progress
                pass
        return sorted(found)

    def rows(self, uint64_t offset):
        """Return the rows of a line number program as (address, file, line, end of sequence)."""
        cdef uint64_t after = 0
        cdef Program p
        cdef Row state, row
        cdef int result
        if not self.section.shape[0]:
            return []
        p = self.program(offset, &after)
        state.address = 0
        state.file = state.line = 1
        state.ends = False
        found = []
        while True:
            result = step(&p, &state, &row)
            if result < 0:
                raise LineError("damaged line number program", p.at)
            if result == 0 or len(found) == MAX_ROWS:
                return found
            found.append((row.address, row.file, row.line, bool(row.ends)))

    def pieces(self, uint64_t offset, wanted, uint32_t line):
        """Return the address ranges [low, high) of a line in the given files of a program.

        Adjacent ranges are merged.

        :param wanted: file numbers.
        """
        cdef uint64_t after = 0
        cdef Program p
        cdef Row state, row
        cdef uint64_t before = 0
        cdef bint open_ = False
        cdef int result
        found = []
        p = self.program(offset, &after)
        state.address = 0
        state.file = state.line = 1
        state.ends = False
        while True:
            result = step(&p, &state, &row)
            if result < 0:
                raise LineError("damaged line number program", p.at)
            if result == 0 or len(found) == MAX_ROWS:
                return found
            if open_ and before < row.address:
                if found and found[-1][1] == before:
                    found[-1] = (found[-1][0], row.address)
                else:
                    found.append((before, row.address))
            open_ = not row.ends and row.line == line and row.file in wanted
            before = row.address
