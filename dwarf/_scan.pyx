# cython: language_level=3, boundscheck=True, cdivision=True
"""Single pass over .debug_info that finds functions, inline copies, types and variables.

It reads DWARF 4 (7.5, 2.17.3) and DWARF 5 (7.5, 2.17.3, 7.25).  Every read is checked against the
end of its section; malformed data ends the scan with an error that includes the offset.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from cpython.exc cimport PyErr_CheckSignals
from libc.string cimport memchr, memset

from dwarf._leb cimport read_leb, read_number

cdef enum:
    MAX_DEPTH = 256
    MAX_ABBREVS = 1 << 20
    MAX_RECORDS = 1 << 22
    MAX_SHORT_NAME = 64  # maximum number of bytes of a DW_FORM_string name in a digest
    # The work limit is WORK + WORK_PER_BYTE * section bytes; a kernel needs about 1 unit per byte.
    WORK_PER_BYTE = 16
    WORK = 1 << 24
    SIGNALS = 1 << 12  # number of DWARF units read between checks for signals (Ctrl-C)

cdef uint32_t NO_RECORD = 0xFFFFFFFF
cdef uint64_t SPREAD2 = 0xBF58476D1CE4E5B9  # multiplier of SplitMix64
cdef uint64_t SPREAD = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio
cdef uint64_t IN_SECTION = (<uint64_t>1 << 60) - 1

include "_tags.pxi"

include "_forms.pxi"


cdef struct Record:
    uint64_t offset
    uint64_t origin
    uint64_t name
    uint32_t parent
    uint32_t unit
    uint32_t first_piece
    uint32_t pieces
    uint32_t call_file
    uint32_t call_line
    uint32_t call_column
    uint32_t decl_file
    uint32_t decl_line
    uint32_t subject
    uint8_t tag
    uint8_t inlined
    uint8_t declaration
    uint8_t padding[5]
    uint64_t begins  # DW_AT_entry_pc, or NOTHING

cdef struct Piece:
    uint64_t low
    uint64_t high

# A type or a variable; ``value`` is the type's size in bytes or the variable's address.  The
# digest covers a type's members, or the type that a typedef names.
cdef struct Declared:
    uint64_t offset
    uint64_t name
    uint64_t value
    uint64_t digest
    uint32_t unit
    uint32_t line
    uint32_t tag
    uint32_t padding

# Attributes of an entry that another entry refers to
cdef struct Target:
    uint64_t name
    uint64_t origin
    uint64_t type
    uint32_t tag

RECORD_SIZE = sizeof(Record)
RECORD_FORMAT = "<QQQIIIIIIIIIIBBB5xQ"
PIECE_FORMAT = "<QQ"
UNIT_FORMAT = "<QQQQQQQQQQIBB2x"
DECLARED_FORMAT = "<QQQQIII4x"


class ScanError(Exception):
    """Inconsistent debug data; the message includes the offset in .debug_info."""

    def __init__(self, what, offset):
        super().__init__(f"{what} at .debug_info+{offset:#x}")


class SplitError(ScanError):
    """Split debug data: the entries of a unit are in another file (.dwo, .dwp)."""


include "_abbreviations.pxi"


cdef class Scan(Abbreviations):
    """Scan of a file's debug sections, any of which may be empty.

    :param limit: maximum number of records, of address ranges, and of types and variables.
    :raises ScanError: if the sections are inconsistent.
    """

    cdef Section info, ranges, rnglists, addr, str_offsets
    cdef object keep  # keeps the buffers of the sections alive
    cdef Record *records
    cdef uint32_t record_count, record_room
    cdef Piece *pieces
    cdef uint32_t piece_count, piece_room
    cdef Unit *units
    cdef uint32_t unit_count, unit_room
    cdef Declared *declared
    cdef uint32_t declared_count, declared_room
    cdef uint32_t *known  # hash table of types: index in ``declared`` plus 1, or 0
    cdef uint32_t known_room
    cdef uint64_t limit
    cdef uint64_t at  # offset of the current entry, for error messages
    cdef bint split

    def __dealloc__(self):
        free(self.records)
        free(self.pieces)
        free(self.units)
        free(self.declared)
        free(self.known)

    def __init__(self, const uint8_t[::1] info, const uint8_t[::1] abbrev,
                 const uint8_t[::1] ranges, const uint8_t[::1] rnglists, const uint8_t[::1] addr,
                 const uint8_t[::1] str_offsets, uint64_t limit=MAX_RECORDS):
        cdef int ok
        cdef uint64_t at = 0
        self.keep = (info, abbrev, ranges, rnglists, addr, str_offsets)
        self.limit = min(limit, <uint64_t>info.shape[0] // 4 + 64)
        self.work = 0
        self.most_work = WORK + WORK_PER_BYTE * (
            <uint64_t>info.shape[0] + abbrev.shape[0] + ranges.shape[0] + rnglists.shape[0])
        set_section(&self.info, info)
        set_section(&self.abbrev, abbrev)
        set_section(&self.ranges, ranges)
        set_section(&self.rnglists, rnglists)
        set_section(&self.addr, addr)
        set_section(&self.str_offsets, str_offsets)
        ok = 1
        while ok and at < self.info.size:
            with nogil:
                ok = self.some_units(&at)
            PyErr_CheckSignals()
        if ok:
            with nogil:
                self.resolve()
        if self.split:
            raise SplitError("split debug data", self.at)
        if not ok:
            raise ScanError((<bytes>self.wrong).decode(), self.at)

    # -- reading --------------------------------------------------------------------------------

    cdef int some_units(self, uint64_t *at) noexcept nogil:
        cdef Unit u
        cdef uint32_t i
        cdef uint64_t start = self.work
        for i in range(SIGNALS):
            if at[0] >= self.info.size or self.work - start > WORK:
                break
            if not self.unit(at[0], &u):
                return 0
            at[0] = u.end
        return 1

    cdef int unit(self, uint64_t at, Unit *u) noexcept nogil:
        cdef uint64_t p = at
        cdef uint64_t kind = 0
        cdef const char *wrong
        self.at = at
        wrong = unit_header(&self.info, &p, u, &kind)
        if wrong != NULL:
            return self.fail(wrong)
        if (u.abbrevs != self.abbrevs_of or u.version != self.abbrevs_version
                or u.address_size != self.abbrevs_address_size
                or u.offset_size != self.abbrevs_offset_size) and not self.read_abbrevs(u):
            return 0
        return self.spend(1) and self.entries(u, p)

    cdef int entries(self, Unit *u, uint64_t p) noexcept nogil:
        """Read all entries of a unit."""
        cdef uint64_t code = 0
        cdef int depth = 0
        cdef uint32_t parents[MAX_DEPTH]
        cdef Declared types[MAX_DEPTH]  # at each depth, the type whose members are being read
        cdef bint open_[MAX_DEPTH]
        cdef bint opens
        cdef uint32_t made, i
        cdef uint32_t number_of_unit = self.unit_count
        cdef const Abbrev *a
        cdef Section unit_info
        cdef bint kept = False
        cdef void *more
        unit_info.data = self.info.data
        unit_info.size = u.end
        parents[0] = NO_RECORD
        open_[0] = False
        while p < u.end:
            self.at = p
            if not uleb(&unit_info, &p, &code):
                return self.fail(b"truncated entry")
            if code == 0:
                if depth == 0:
                    continue  # padding
                if open_[depth] and not self.declare_once(&types[depth]):
                    return 0
                depth -= 1
                continue
            a = self.find_abbrev(code)
            if a == NULL:
                return self.fail(b"entry with an undefined abbreviation code")
            made = parents[depth]
            opens = False
            if not self.spend(1 + a.count):
                return 0
            if a.tag == TAG_SUBPROGRAM or a.tag == TAG_INLINED_SUBROUTINE:
                if not self.function(&unit_info, u, number_of_unit, a, &p, parents[depth], &made):
                    return 0
            elif not kept and (a.tag == TAG_COMPILE_UNIT or a.tag == TAG_PARTIAL_UNIT
                               or a.tag == TAG_TYPE_UNIT or a.tag == TAG_SKELETON_UNIT):
                if not self.unit_entry(&unit_info, u, a, &p):
                    return 0
                kept = True
            elif (a.tag == TAG_VARIABLE or a.tag == TAG_TYPEDEF or a.tag == TAG_STRUCTURE_TYPE
                  or a.tag == TAG_UNION_TYPE or a.tag == TAG_ENUMERATION_TYPE
                  or a.tag == TAG_BASE_TYPE):
                if not self.declaration(&unit_info, u, number_of_unit, a, &p, &types[depth + 1],
                                        &opens):
                    return 0
                if opens and not a.children:
                    if not self.declare_once(&types[depth + 1]):
                        return 0
                    opens = False
            elif open_[depth] and (a.tag == TAG_MEMBER or a.tag == TAG_ENUMERATOR):
                if not self.member(&unit_info, u, a, &p, &types[depth].digest):
                    return 0
            elif a.fixed >= 0:
                p += <uint64_t>a.fixed
                if p > u.end:
                    return self.fail(b"truncated entry")
            else:
                for i in range(a.count):
                    if not skip(&unit_info, &p, self.attributes[a.first + i].form, u):
                        return self.fail(b"truncated attribute or unknown form")
            if a.children:
                depth += 1
                if depth == MAX_DEPTH - 1:
                    return self.fail(b"entries nested too deeply")
                parents[depth] = made
                open_[depth] = opens
        if self.unit_count == self.unit_room:
            more = realloc(self.units, (<uint64_t>self.unit_room * 2 + 64) * sizeof(Unit))
            if more == NULL:
                return self.fail(b"out of memory")
            self.units = <Unit *>more
            self.unit_room = self.unit_room * 2 + 64
        self.units[self.unit_count] = u[0]
        self.unit_count += 1
        return 1

    cdef int unit_entry(self, const Section *s, Unit *u, const Abbrev *a,
                        uint64_t *p) noexcept nogil:
        cdef uint32_t i
        cdef Value v
        cdef Value low, name, directory
        cdef const Attribute *t
        low.kind = name.kind = directory.kind = PLAIN
        low.number = 0
        name.number = directory.number = NOTHING
        for i in range(a.count):
            t = &self.attributes[a.first + i]
            if not read(s, p, t.form, t.implicit, u, &v):
                return self.fail(b"truncated attribute or unknown form")
            if t.name == AT_LOW_PC:
                low = v
            elif t.name == AT_NAME:
                name = v
            elif t.name == AT_COMP_DIR:
                directory = v
            elif t.name == AT_STMT_LIST:
                u.line_table = v.number
            elif t.name == AT_STR_OFFSETS_BASE:
                u.strings = v.number
            elif t.name == AT_ADDR_BASE:
                u.addresses = v.number
            elif t.name == AT_RNGLISTS_BASE:
                u.lists = v.number
            elif t.name == AT_DWO_NAME or t.name == AT_GNU_DWO_NAME:
                self.split = True
                return self.fail(b"split debug data")
        # Base attributes (DW_AT_addr_base) may follow the attributes that depend on them.
        return (self.address(u, &low, &u.low) and self.string(u, &name, &u.name)
                and self.string(u, &directory, &u.directory))

    cdef int address(self, const Unit *u, const Value *v, uint64_t *out) noexcept nogil:
        cdef uint64_t p
        if v.kind != ADDRESS_INDEX:
            out[0] = v.number
            return 1
        if u.addresses == NOTHING or v.number > self.addr.size or u.addresses > self.addr.size:
            return self.fail(b"invalid address index")
        p = u.addresses + v.number * u.address_size
        if not number(&self.addr, &p, u.address_size, out):
            return self.fail(b"invalid address index")
        return 1

    cdef int string(self, const Unit *u, const Value *v, uint64_t *out) noexcept nogil:
        """Store a string's section in the top 4 bits of ``out``, and its offset in the rest."""
        cdef uint64_t p
        cdef uint64_t offset = 0
        if v.kind == STRING_INDEX:
            if (u.strings == NOTHING or v.number > self.str_offsets.size
                    or u.strings > self.str_offsets.size):
                return self.fail(b"invalid string index")
            p = u.strings + v.number * u.offset_size
            if not number(&self.str_offsets, &p, u.offset_size, &offset):
                return self.fail(b"invalid string index")
            out[0] = offset & IN_SECTION
        elif v.kind == IN_STR:
            out[0] = v.number & IN_SECTION
        elif v.kind == IN_LINE_STR:
            out[0] = v.number & IN_SECTION | <uint64_t>1 << 60
        elif v.kind == IN_INFO:
            out[0] = v.number | <uint64_t>2 << 60
        else:
            out[0] = NOTHING
        return 1

    cdef int function(self, const Section *s, const Unit *u, uint32_t unit, const Abbrev *a,
                      uint64_t *p, uint32_t parent, uint32_t *made) noexcept nogil:
        """Read a subprogram or an inlined subroutine."""
        cdef uint32_t i
        cdef Value v
        cdef Value low, high, ranges, name, begins
        cdef const Attribute *t
        cdef Record *r
        cdef uint64_t begin = 0
        cdef uint64_t end = 0
        cdef void *more
        if self.record_count == self.record_room:
            if self.record_count >= self.limit:
                return self.fail(b"too many functions")
            more = realloc(self.records, (<uint64_t>self.record_room * 2 + 4096) * sizeof(Record))
            if more == NULL:
                return self.fail(b"out of memory")
            self.records = <Record *>more
            self.record_room = self.record_room * 2 + 4096
        r = &self.records[self.record_count]
        memset(r, 0, sizeof(Record))
        r.offset = self.at
        r.origin = NOTHING
        r.parent = parent
        r.unit = unit
        r.subject = NO_RECORD
        r.tag = <uint8_t>a.tag
        r.first_piece = self.piece_count
        low.kind = high.kind = ranges.kind = name.kind = begins.kind = -1
        r.begins = NOTHING
        name.number = NOTHING
        for i in range(a.count):
            t = &self.attributes[a.first + i]
            if not read(s, p, t.form, t.implicit, u, &v):
                return self.fail(b"truncated attribute or unknown form")
            if t.name == AT_NAME:
                name = v
            elif t.name == AT_LOW_PC:
                low = v
            elif t.name == AT_HIGH_PC:
                high = v
            elif t.name == AT_RANGES:
                ranges = v
            elif t.name == AT_ENTRY_PC:
                begins = v
            elif t.name == AT_ABSTRACT_ORIGIN or t.name == AT_SPECIFICATION:
                if v.kind == REFERENCE:
                    r.origin = v.number
            elif t.name == AT_INLINE:
                r.inlined = <uint8_t>v.number
            elif t.name == AT_CALL_FILE:
                r.call_file = <uint32_t>v.number
            elif t.name == AT_CALL_LINE:
                r.call_line = <uint32_t>v.number
            elif t.name == AT_CALL_COLUMN:
                r.call_column = <uint32_t>v.number
            elif t.name == AT_DECL_FILE:
                r.decl_file = <uint32_t>v.number
            elif t.name == AT_DECL_LINE:
                r.decl_line = <uint32_t>v.number
            elif t.name == AT_DECLARATION:
                r.declaration = v.number != 0
        if not self.string(u, &name, &r.name):
            return 0
        if ranges.kind >= 0:
            if not self.list(u, &ranges):
                return 0
        elif low.kind >= 0 and high.kind >= 0:
            if not self.address(u, &low, &begin):
                return 0
            if high.kind == ADDRESS or high.kind == ADDRESS_INDEX:
                if not self.address(u, &high, &end):
                    return 0
            else:
                end = begin + high.number
            if not self.piece(begin, end):
                return 0
        r.pieces = self.piece_count - r.first_piece
        if begins.kind == ADDRESS or begins.kind == ADDRESS_INDEX:
            if not self.address(u, &begins, &r.begins):
                return 0
        elif begins.kind == PLAIN and r.pieces:  # offset from the base address (DWARF 5, 2.18)
            r.begins = self.pieces[r.first_piece].low + begins.number
        made[0] = self.record_count
        self.record_count += 1
        return 1

    cdef int target(self, const Section *s, const Unit *u, uint64_t offset,
                    Target *out) noexcept nogil:
        """Read the entry at an offset if it is in this unit; otherwise, leave ``out`` empty."""
        cdef uint64_t p = offset
        cdef uint64_t code = 0
        cdef uint32_t i
        cdef Value v
        cdef const Abbrev *a
        cdef const Attribute *t
        memset(out, 0, sizeof(Target))
        out.name = out.origin = out.type = NOTHING
        if offset <= u.offset or offset >= u.end:
            return 1
        if not uleb(s, &p, &code):
            return self.fail(b"reference to a truncated entry")
        a = self.find_abbrev(code)
        if a == NULL:
            return self.fail(b"reference to an entry with an undefined abbreviation code")
        if not self.spend(1 + a.count):
            return 0
        out.tag = a.tag
        for i in range(a.count):
            t = &self.attributes[a.first + i]
            if not read(s, &p, t.form, t.implicit, u, &v):
                return self.fail(b"truncated attribute or unknown form in a referenced entry")
            if t.name == AT_NAME:
                if not self.string(u, &v, &out.name):
                    return 0
            elif v.kind == REFERENCE and (t.name == AT_SPECIFICATION
                                          or t.name == AT_ABSTRACT_ORIGIN):
                out.origin = v.number
            elif v.kind == REFERENCE and t.name == AT_TYPE:
                out.type = v.number
        return 1

    cdef uint64_t name_digest(self, uint64_t name) noexcept nogil:
        """Return a digest of a name: its location, or a hash of the start of a DW_FORM_string."""
        cdef uint64_t at = name & IN_SECTION
        cdef uint64_t value = 0
        cdef int i
        if name >> 60 != 2:
            return name
        for i in range(MAX_SHORT_NAME):
            if at + i >= self.info.size or self.info.data[at + i] == 0:
                break
            value = (value + self.info.data[at + i]) * SPREAD
        return value

    cdef int type_digest(self, const Section *s, const Unit *u, uint64_t offset,
                         uint64_t *digest) noexcept nogil:
        """Mix a type's tags and names into a digest, following at most four references."""
        # The digest omits sizes, because the target of a pointer is complete only in some units.
        cdef Target t
        cdef int i
        for i in range(4):
            if not self.target(s, u, offset, &t):
                return 0
            digest[0] = mix(digest[0], t.tag)
            digest[0] = mix(digest[0], self.name_digest(t.name))
            if t.name != NOTHING or t.type == NOTHING:
                return 1
            offset = t.type
        return 1

    cdef int member(self, const Section *s, const Unit *u, const Abbrev *a, uint64_t *p,
                    uint64_t *digest) noexcept nogil:
        """Mix a member or an enumerator into the digest of its type."""
        cdef uint32_t i
        cdef Value v
        cdef uint64_t name = 0
        cdef const Attribute *t
        for i in range(a.count):
            t = &self.attributes[a.first + i]
            if not read(s, p, t.form, t.implicit, u, &v):
                return self.fail(b"truncated attribute or unknown form")
            if t.name == AT_NAME:
                if not self.string(u, &v, &name):
                    return 0
                digest[0] = mix(digest[0], self.name_digest(name))
            elif t.name == AT_DATA_MEMBER_LOCATION or t.name == AT_CONST_VALUE:
                if v.kind == PLAIN:
                    digest[0] = mix(digest[0], v.number)
            elif t.name == AT_TYPE and v.kind == REFERENCE:
                if not self.type_digest(s, u, v.number, digest):
                    return 0
        return 1

    cdef int declaration(self, const Section *s, const Unit *u, uint32_t unit, const Abbrev *a,
                         uint64_t *p, Declared *d, bint *opens) noexcept nogil:
        """Read a named, complete type (and set ``opens``), or a variable that has an address."""
        # The caller adds a type to the table once its members are known.
        cdef uint32_t i
        cdef int steps
        cdef Value v
        cdef Value name, address
        cdef const Attribute *t
        cdef Target other
        cdef uint64_t at
        cdef uint64_t operation = 0
        cdef uint64_t origin = NOTHING
        cdef uint64_t kind = NOTHING
        cdef bint complete = True
        cdef bint sized = False
        memset(d, 0, sizeof(Declared))
        d.offset = self.at
        d.unit = unit
        d.tag = a.tag
        d.name = NOTHING
        name.kind = address.kind = -1
        name.number = address.number = 0
        for i in range(a.count):
            t = &self.attributes[a.first + i]
            if not read(s, p, t.form, t.implicit, u, &v):
                return self.fail(b"truncated attribute or unknown form")
            if t.name == AT_NAME:
                name = v
            elif t.name == AT_BYTE_SIZE and v.kind == PLAIN:
                d.value = v.number
                sized = True
            elif t.name == AT_DECL_LINE:
                d.line = <uint32_t>v.number
            elif t.name == AT_DECLARATION:
                complete = v.number == 0
            elif v.kind == REFERENCE and (t.name == AT_SPECIFICATION
                                          or t.name == AT_ABSTRACT_ORIGIN):
                origin = v.number
            elif v.kind == REFERENCE and t.name == AT_TYPE:
                kind = v.number
            elif t.name == AT_LOCATION and v.kind == BLOCK:
                at = v.number
                if at == p[0]:
                    continue  # empty location: the variable was optimized out
                if not number(s, &at, 1, &operation):
                    return self.fail(b"truncated location expression")
                if operation == OP_ADDR:
                    address.kind = ADDRESS
                    if not number(s, &at, u.address_size, &address.number):
                        return self.fail(b"truncated location expression")
                elif operation == OP_ADDRX:
                    address.kind = ADDRESS_INDEX
                    if not uleb(s, &at, &address.number):
                        return self.fail(b"truncated location expression")
                if address.kind >= 0 and at != p[0]:
                    address.kind = -1  # operations follow the address, as for thread-local data
        if a.tag == TAG_VARIABLE and address.kind < 0:
            return 1
        if not self.string(u, &name, &d.name):
            return 0
        if a.tag == TAG_VARIABLE:
            for steps in range(4):
                if d.name != NOTHING or origin == NOTHING:
                    break
                if not self.target(s, u, origin, &other):
                    return 0
                d.name, origin = other.name, other.origin
            return self.address(u, &address, &d.value) and self.declare(d)
        if d.name == NOTHING or not complete:
            return 1
        if a.tag == TAG_TYPEDEF:
            if kind != NOTHING and not self.type_digest(s, u, kind, &d.digest):
                return 0
        elif not sized:
            return 1  # a declaration without DW_AT_declaration
        opens[0] = True
        return 1

    cdef int declare_once(self, const Declared *d) noexcept nogil:
        """Add a type to the table, unless an earlier unit had an equal copy."""
        if self.known_room != 0 and self.known[self.slot(d)] != 0:
            return 1
        return self.declare(d)

    cdef int declare(self, const Declared *d) noexcept nogil:
        cdef void *more
        if self.declared_count == self.declared_room:
            if self.declared_count >= self.limit:
                return self.fail(b"too many types and variables")
            more = realloc(self.declared,
                           (<uint64_t>self.declared_room * 2 + 4096) * sizeof(Declared))
            if more == NULL:
                return self.fail(b"out of memory")
            self.declared = <Declared *>more
            self.declared_room = self.declared_room * 2 + 4096
        self.declared[self.declared_count] = d[0]
        self.declared_count += 1
        if self.declared_count * <uint64_t>2 > self.known_room:
            return self.rehash()
        if d.tag != TAG_VARIABLE:
            self.known[self.slot(d)] = self.declared_count
        return 1

    cdef uint64_t slot(self, const Declared *d) noexcept nogil:
        """Return the hash table slot of a type, or the free slot where it belongs."""
        cdef uint64_t at = mix(mix(mix(mix(d.name, d.value), d.line), d.tag), d.digest)
        cdef const Declared *other
        while True:
            at &= self.known_room - 1
            if self.known[at] == 0:
                return at
            other = &self.declared[self.known[at] - 1]
            if (other.name == d.name and other.value == d.value and other.line == d.line
                    and other.tag == d.tag and other.digest == d.digest):
                return at
            at += 1
            self.work += 1

    cdef int rehash(self) noexcept nogil:
        cdef uint32_t i
        cdef uint64_t room = <uint64_t>self.known_room * 2 if self.known_room else 16384
        cdef void *more
        if room > <uint64_t>1 << 31:
            return self.fail(b"too many types and variables")
        more = realloc(self.known, room * sizeof(uint32_t))
        if more == NULL:
            return self.fail(b"out of memory")
        self.known = <uint32_t *>more
        self.known_room = <uint32_t>room
        memset(self.known, 0, room * sizeof(uint32_t))
        for i in range(self.declared_count):
            if self.declared[i].tag != TAG_VARIABLE:
                self.known[self.slot(&self.declared[i])] = i + 1
        return 1

    cdef int piece(self, uint64_t low, uint64_t high) noexcept nogil:
        cdef void *more
        if low >= high:
            return 1
        if self.piece_count == self.piece_room:
            if self.piece_count >= self.limit:
                return self.fail(b"too many address ranges")
            more = realloc(self.pieces, (<uint64_t>self.piece_room * 2 + 4096) * sizeof(Piece))
            if more == NULL:
                return self.fail(b"out of memory")
            self.pieces = <Piece *>more
            self.piece_room = self.piece_room * 2 + 4096
        self.pieces[self.piece_count].low = low
        self.pieces[self.piece_count].high = high
        self.piece_count += 1
        return 1

    cdef int list(self, const Unit *u, const Value *v) noexcept nogil:
        """Read a range list, and add its address ranges."""
        cdef uint64_t p = v.number
        cdef uint64_t base = u.low
        cdef uint64_t begin = 0
        cdef uint64_t end = 0
        cdef uint64_t kind = 0
        cdef uint64_t highest = ESCAPE if u.address_size == 4 else NOTHING
        cdef Value index
        if u.version < 5:
            while True:
                if not self.spend(1):
                    return 0
                if not (number(&self.ranges, &p, u.address_size, &begin)
                        and number(&self.ranges, &p, u.address_size, &end)):
                    return self.fail(b"truncated range list")
                if begin == 0 and end == 0:
                    return 1
                if begin == highest:
                    base = end
                elif not self.piece(base + begin, base + end):
                    return 0
        if v.kind == LIST_INDEX:
            if (u.lists == NOTHING or v.number > self.rnglists.size
                    or u.lists > self.rnglists.size):
                return self.fail(b"invalid range list index")
            p = u.lists + v.number * u.offset_size
            if not number(&self.rnglists, &p, u.offset_size, &begin):
                return self.fail(b"invalid range list index")
            p = u.lists + begin
        index.kind = ADDRESS_INDEX
        while True:
            if not self.spend(1):
                return 0
            if not number(&self.rnglists, &p, 1, &kind):
                return self.fail(b"truncated range list")
            if kind == 0:
                return 1
            if kind == 1:  # base_addressx
                if not uleb(&self.rnglists, &p, &index.number):
                    return self.fail(b"truncated range list")
                if not self.address(u, &index, &base):
                    return 0
                continue
            if kind == 5:  # base_address
                if not number(&self.rnglists, &p, u.address_size, &base):
                    return self.fail(b"truncated range list")
                continue
            if kind == 2 or kind == 3:  # DW_RLE_startx_endx, DW_RLE_startx_length
                if not uleb(&self.rnglists, &p, &index.number):
                    return self.fail(b"truncated range list")
                if not self.address(u, &index, &begin):
                    return 0
                if not uleb(&self.rnglists, &p, &end):
                    return self.fail(b"truncated range list")
                if kind == 2:
                    index.number = end
                    if not self.address(u, &index, &end):
                        return 0
                else:
                    end += begin
            elif kind == 4:  # offset_pair
                if not (uleb(&self.rnglists, &p, &begin) and uleb(&self.rnglists, &p, &end)):
                    return self.fail(b"truncated range list")
                begin += base
                end += base
            elif kind == 6 or kind == 7:  # start_end, start_length
                if not number(&self.rnglists, &p, u.address_size, &begin):
                    return self.fail(b"truncated range list")
                if kind == 6:
                    if not number(&self.rnglists, &p, u.address_size, &end):
                        return self.fail(b"truncated range list")
                else:
                    if not uleb(&self.rnglists, &p, &end):
                        return self.fail(b"truncated range list")
                    end += begin
            else:
                return self.fail(b"range list entry of an unknown kind")
            if not self.piece(begin, end):
                return 0

    # -- references between records -------------------------------------------------------------

    cdef uint32_t record_of(self, uint64_t offset) noexcept nogil:
        """Return the record of the entry at an offset (records are sorted by offset)."""
        cdef uint32_t low = 0
        cdef uint32_t high = self.record_count
        cdef uint32_t middle
        while low < high:
            middle = low + (high - low) // 2
            if self.records[middle].offset < offset:
                low = middle + 1
            else:
                high = middle
        if low < self.record_count and self.records[low].offset == offset:
            return low
        return NO_RECORD

    cdef void resolve(self) noexcept nogil:
        """Set each record's subject: the record with the name, at most eight references away."""
        cdef uint32_t i, at
        cdef int steps
        for i in range(self.record_count):
            at = i
            for steps in range(8):
                if self.records[at].origin == NOTHING:
                    break
                at = self.record_of(self.records[at].origin)
                if at == NO_RECORD:
                    break
            self.records[i].subject = at

    # -- results --------------------------------------------------------------------------------

    def tables(self):
        """Return four packed tables: records; address ranges; units; types and variables.

        Their formats are ``RECORD_FORMAT``, ``PIECE_FORMAT``, ``UNIT_FORMAT`` and
        ``DECLARED_FORMAT``.
        """
        return (
            b"" if self.records == NULL else
            (<const char *>self.records)[:<uint64_t>self.record_count * sizeof(Record)],
            b"" if self.pieces == NULL else
            (<const char *>self.pieces)[:<uint64_t>self.piece_count * sizeof(Piece)],
            b"" if self.units == NULL else
            (<const char *>self.units)[:<uint64_t>self.unit_count * sizeof(Unit)],
            b"" if self.declared == NULL else
            (<const char *>self.declared)[:<uint64_t>self.declared_count * sizeof(Declared)],
        )


cdef inline uint64_t mix(uint64_t one, uint64_t other) noexcept nogil:
    """Return a hash of two values, each bit of which depends on both values."""
    one = (one ^ other) * SPREAD
    one ^= one >> 29
    one *= SPREAD2
    return one ^ one >> 32
