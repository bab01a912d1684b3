# cython: language_level=3, boundscheck=True, cdivision=True
"""Concatenation of debug data from several places into one .debug_info section.

The sources are type units (DWARF 4, 7.5.1.2; DWARF 5, 7.5.1.3) and the supplementary files that dwz
makes (DWARF 5, 7.3.6).  No entry changes its size: a reference from one part to another becomes
DW_FORM_ref_addr in place, and string offsets are adjusted to the joined sections.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memset

from dwarf._leb cimport read_leb, read_number

cdef enum:
    MAX_ABBREVS = 1 << 18  # maximum number of abbreviations in a table
    MAX_ATTRIBUTES = 1 << 22
    ABBREV_WORK = 8
    WORK_PER_BYTE = 16
    WORK = 1 << 24
    AT_STMT_LIST = 0x10
    AT_STR_OFFSETS_BASE = 0x72
    AT_ADDR_BASE = 0x73
    AT_RNGLISTS_BASE = 0x74
    AT_LOCLISTS_BASE = 0x8C
    FORM_STRP = 0x0E
    FORM_REF_ADDR = 0x10
    FORM_REF1 = 0x11
    FORM_REF8 = 0x14
    FORM_REF_UDATA = 0x15
    FORM_INDIRECT = 0x16
    FORM_SEC_OFFSET = 0x17
    FORM_REF_SUP4 = 0x1C
    FORM_STRP_SUP = 0x1D
    FORM_LINE_STRP = 0x1F
    FORM_REF_SIG8 = 0x20
    FORM_REF_SUP8 = 0x24
    FORM_GNU_REF_ALT = 0x1F20
    FORM_GNU_STRP_ALT = 0x1F21

include "_forms.pxi"


class JoinError(Exception):
    """Inconsistent debug data; the message includes the offset in the joined .debug_info."""

    def __init__(self, what, offset):
        super().__init__(f"{what} at .debug_info+{offset:#x}")


class UnreadError(JoinError):
    """Debug data in a layout that is not supported."""


cdef struct Form:
    uint32_t name
    uint32_t form
    uint64_t place  # offset of the form code in .debug_abbrev
    uint32_t length  # length of the form code in bytes


# Amounts to add to the offsets in a part's entries
cdef struct Bases:
    uint64_t abbrevs
    uint64_t info
    uint64_t strings
    uint64_t line_strings
    uint64_t lines
    # Amounts to add to offsets into the part's supplementary file, or NOTHING without such a file
    uint64_t other_info
    uint64_t other_strings


cdef class Join:
    """Concatenated sections whose offsets are being adjusted.

    :param info: .debug_info of all parts, changed in place.
    :param abbrev: .debug_abbrev of all parts, changed in place.
    """

    cdef uint8_t[::1] info_bytes, abbrev_bytes
    cdef Section info, abbrev
    cdef Form *forms
    cdef uint32_t form_count, form_room
    cdef uint64_t forms_of
    cdef dict codes  # abbreviation code -> (index in ``forms``, number of attributes)
    cdef dict signatures  # type signature -> offset of the type's entry
    cdef set tables  # offsets of the abbreviation tables in use
    cdef uint64_t work, most_work
    cdef uint64_t at

    def __cinit__(self):
        self.forms_of = NOTHING

    def __dealloc__(self):
        free(self.forms)

    def __init__(self, bytearray info, bytearray abbrev):
        self.info_bytes, self.abbrev_bytes = info, abbrev
        set_section(&self.info, self.info_bytes)
        set_section(&self.abbrev, self.abbrev_bytes)
        self.signatures, self.tables = {}, set()
        self.work, self.most_work = 0, WORK + WORK_PER_BYTE * (self.info.size + self.abbrev.size)

    cdef int wrong(self, str what) except -1:
        raise JoinError(what, self.at)

    cdef int unread(self, str what) except -1:
        raise UnreadError(what, self.at)

    cdef int spend(self, uint64_t work) except -1:
        self.work += work
        if self.work > self.most_work:
            self.wrong("too much work for sections of this size")
        return 0

    cdef Section section(self, uint64_t begin, uint64_t end) except *:
        cdef Section s
        if begin > end or end > self.info.size:
            raise ValueError("part lies outside .debug_info")
        s.data, s.size = self.info.data, end
        return s

    cdef uint64_t header(self, const Section *s, uint64_t at, Unit *u, uint64_t *kind) except *:
        """Read a unit header, and return the offset of the unit's first entry."""
        cdef uint64_t p = at
        cdef const char *wrong
        self.at = at
        self.spend(1)
        wrong = unit_header(s, &p, u, kind)
        if wrong != NULL:
            self.wrong((<bytes>wrong).decode())
        return p

    # -- headers --------------------------------------------------------------------------------

    def find_types(self, uint64_t begin, uint64_t end):
        """Register the DWARF 5 type units in [begin, end), and return their number."""
        cdef Section s = self.section(begin, end)
        cdef uint64_t at = begin
        cdef uint64_t p
        cdef uint64_t kind = 0
        cdef Unit u
        cdef int count = 0
        while at < end:
            p = self.header(&s, at, &u, &kind)
            if kind == UT_TYPE:
                self.type_unit(&s, at, p - 8 - u.offset_size, &u)
                count += 1
            at = u.end
        return count

    cdef int type_unit(self, const Section *s, uint64_t at, uint64_t p, const Unit *u) except -1:
        """Register the type whose signature and type offset are stored at ``p``."""
        cdef uint64_t signature = 0
        cdef uint64_t offset = 0
        if not number(s, &p, 8, &signature) or not number(s, &p, u.offset_size, &offset):
            self.wrong("truncated unit header")
        if offset > u.end - at:
            self.wrong("type offset is outside its unit")
        self.signatures.setdefault(signature, at + offset)
        return 0

    def make_plain(self, uint64_t begin, uint64_t end):
        """Turn the DWARF 4 type units (.debug_types) in [begin, end) into ordinary units.

        The new headers are shorter, since they have no signature and no type offset; an empty unit
        before each new unit fills the gap.

        :return: (offset of the new unit, size of the gap in bytes) of each.
        """
        cdef Section s = self.section(begin, end)
        cdef uint64_t at = begin
        cdef uint64_t p, shift
        cdef uint64_t kind = 0
        cdef Unit u
        cdef int header
        cdef list made = []
        while at < end:
            p = self.header(&s, at, &u, &kind)
            if u.version != 4:
                self.wrong("unit in .debug_types is not of version 4")
            self.type_unit(&s, at, p, &u)
            shift = 8 + u.offset_size
            header = <int>(p - at)
            if p + shift > u.end:
                self.wrong("truncated unit header")
            content = bytes(self.info_bytes[at : p])
            length_size = 4 if u.offset_size == 4 else 12
            # An empty unit: length, version, abbreviation table offset, address size
            filler = ((<int>shift - 4).to_bytes(4, "little") + b"\4\0"
                      + (u.abbrevs & 0xFFFFFFFF).to_bytes(4, "little") + b"\10").ljust(shift, b"\0")
            length = (u.end - at - shift - length_size).to_bytes(u.offset_size, "little")
            new = filler + content[: length_size - u.offset_size] + length + content[length_size:]
            for i in range(len(new)):
                self.info_bytes[at + i] = new[i]
            made.append((at + shift, shift))
            at = u.end
        return made

    # -- entries --------------------------------------------------------------------------------

    def fit(self, uint64_t begin, uint64_t end, tuple bases, dict shifts):
        """Adjust the section offsets in the units at [begin, end) to the joined sections.

        :param bases: amounts to add, in the order of ``Bases``; None without a supplementary file.
        :param shifts: unit offset -> bytes by which the unit's header became shorter.
        """
        cdef Section s = self.section(begin, end)
        cdef Bases b
        cdef uint64_t at = begin
        cdef uint64_t p
        cdef uint64_t kind = 0
        cdef Unit u
        b.abbrevs, b.info, b.strings, b.line_strings, b.lines = bases[:5]
        b.other_info, b.other_strings = (NOTHING if n is None else n for n in bases[5:])
        while at < end:
            p = self.header(&s, at, &u, &kind)
            if b.abbrevs:
                # In versions up to 4, the abbreviation table offset precedes the address size.
                self.add(at + (6 if u.version < 5 else 8) + (8 if u.offset_size == 8 else 0),
                         u.offset_size, b.abbrevs)
                u.abbrevs += b.abbrevs
            self.entries(&u, p, &b, shifts.get(at, 0))
            PyErr_CheckSignals()
            at = u.end

    cdef int add(self, uint64_t at, int size, uint64_t more) except -1:
        """Add an amount to an integer in .debug_info."""
        cdef uint64_t value = 0
        cdef uint64_t p = at
        if not number(&self.info, &p, size, &value):
            self.wrong("truncated attribute")
        return self.put(at, size, value + more)

    cdef int put(self, uint64_t at, int size, uint64_t value) except -1:
        cdef int i
        if size < 8 and value >> 8 * size:
            self.wrong("joined sections are larger than 4 GiB")
        for i in range(size):
            self.info_bytes[at + i] = <uint8_t>(value >> 8 * i & 0xFF)
        return 0

    cdef int entries(self, Unit *u, uint64_t p, const Bases *b, uint64_t shift) except -1:
        cdef Section s
        cdef uint64_t code = 0
        cdef uint32_t i
        s.data, s.size = self.info.data, u.end
        if u.abbrevs != self.forms_of:
            self.read_forms(u.abbrevs)
        while p < u.end:
            self.at = p
            if not uleb(&s, &p, &code):
                self.wrong("truncated entry")
            if code == 0:
                continue
            found = self.codes.get(code)
            if found is None:
                self.wrong("entry with an undefined abbreviation code")
            self.spend(1)
            first, count = found
            for i in range(<uint32_t>first, <uint32_t>first + <uint32_t>count):
                self.attribute(&s, &p, u, &self.forms[i], b, shift)
        return 0

    cdef int attribute(self, const Section *s, uint64_t *p, const Unit *u, const Form *f,
                       const Bases *b, uint64_t shift) except -1:
        cdef uint64_t at = p[0]
        cdef uint64_t value = 0
        cdef uint32_t form = f.form
        cdef int size
        self.spend(1)
        if form == FORM_INDIRECT:
            if not uleb(s, p, &value):
                self.wrong("truncated attribute")
            form = <uint32_t>(value if value < 0x10000 else 0xFFFF)
            if changed_to(form) or form == FORM_INDIRECT:
                self.unread("reference to another part in DW_FORM_indirect")
            at = p[0]
        if u.version < 3 and changed_to(form):
            self.unread("reference to another part in a DWARF 2 unit")
        if form == FORM_REF_SIG8:
            size = 8
        elif form == FORM_REF_SUP8:
            self.unread("8-byte reference to a supplementary file")
        else:
            size = fixed_size(form, u)
        if form == FORM_REF_SIG8:
            if not number(s, p, 8, &value):
                self.wrong("truncated attribute")
            return self.refer(at, u, value)
        if not skip(s, p, form, u):
            self.wrong("truncated attribute or unknown form")
        if (b.abbrevs and (f.name == AT_STR_OFFSETS_BASE or f.name == AT_ADDR_BASE
                           or f.name == AT_RNGLISTS_BASE or f.name == AT_LOCLISTS_BASE)):
            self.unread("supplementary file with base attributes (such as DW_AT_addr_base)")
        if form == FORM_GNU_REF_ALT or form == FORM_REF_SUP4:
            if b.other_info == NOTHING or form == FORM_REF_SUP4 and u.offset_size != 4:
                self.wrong("reference to a missing supplementary file")
            return self.add(at, size, b.other_info)
        if form == FORM_GNU_STRP_ALT or form == FORM_STRP_SUP:
            if b.other_strings == NOTHING:
                self.wrong("reference to a missing supplementary file")
            return self.add(at, size, b.other_strings)
        if form == FORM_REF_ADDR and b.info:
            return self.add(at, size, b.info)
        if form == FORM_STRP and b.strings:
            return self.add(at, size, b.strings)
        if form == FORM_LINE_STRP and b.line_strings:
            return self.add(at, size, b.line_strings)
        if f.name == AT_STMT_LIST and b.lines and size > 0:
            return self.add(at, size, b.lines)
        if shift and FORM_REF1 <= form <= FORM_REF8:
            return self.less(at, size, shift)
        if shift and form == FORM_REF_UDATA:
            return self.less_uleb(at, p[0], shift)
        return 0

    cdef int less(self, uint64_t at, int size, uint64_t shift) except -1:
        cdef uint64_t value = 0
        cdef uint64_t p = at
        number(&self.info, &p, size, &value)
        if value < shift:
            self.wrong("reference into a unit header")
        return self.put(at, size, value - shift)

    cdef int less_uleb(self, uint64_t at, uint64_t end, uint64_t shift) except -1:
        """Subtract an amount from a ULEB128 integer without changing its encoded length."""
        cdef uint64_t value = 0
        cdef uint64_t p = at
        uleb(&self.info, &p, &value)
        if value < shift:
            self.wrong("reference into a unit header")
        self.put_uleb(self.info_bytes, at, end - at, value - shift)
        return 0

    cdef int put_uleb(self, uint8_t[::1] into, uint64_t at, uint64_t length, uint64_t value
                      ) except -1:
        cdef uint64_t i
        for i in range(length):
            into[at + i] = <uint8_t>(value & 0x7F | (0x80 if i + 1 < length else 0))
            value >>= 7
        return 0

    cdef int refer(self, uint64_t at, const Unit *u, uint64_t signature) except -1:
        """Replace an 8-byte type signature with DW_FORM_ref_addr and an offset (4 bytes each)."""
        found = self.signatures.get(signature)
        if found is None:
            self.wrong(f"no unit defines the type with signature {signature:#018x}, referenced")
        if u.offset_size != 4:
            self.unread("type signature in a unit in the 64-bit DWARF format")
        self.put_uleb(self.info_bytes, at, 4, FORM_REF_ADDR)
        return self.put(at + 4, 4, found)

    # -- abbreviations --------------------------------------------------------------------------

    cdef int read_forms(self, uint64_t table) except -1:
        cdef uint64_t p = table
        cdef uint64_t code = 0
        cdef uint64_t tag = 0
        cdef uint64_t children = 0
        cdef uint64_t name = 0
        cdef uint64_t form = 0
        cdef uint64_t place
        cdef uint32_t length, first
        cdef int64_t implicit = 0
        self.form_count = 0
        self.codes = {}
        self.forms_of = NOTHING
        while True:
            if not uleb(&self.abbrev, &p, &code):
                self.wrong("truncated abbreviation table")
            if code == 0:
                break
            self.spend(ABBREV_WORK)
            if len(self.codes) == MAX_ABBREVS:
                self.wrong("too many abbreviations in a table")
            if not (uleb(&self.abbrev, &p, &tag) and number(&self.abbrev, &p, 1, &children)):
                self.wrong("truncated abbreviation table")
            first = self.form_count
            while True:
                if not uleb(&self.abbrev, &p, &name):
                    self.wrong("truncated abbreviation table")
                place = p
                if not uleb(&self.abbrev, &p, &form):
                    self.wrong("truncated abbreviation table")
                length = <uint32_t>(p - place)
                if form == 0x21 and not sleb(&self.abbrev, &p, &implicit):
                    self.wrong("truncated abbreviation table")
                if name == 0 and form == 0:
                    break
                self.keep(Form(<uint32_t>(name if name < 0x10000 else 0xFFFF),
                               <uint32_t>(form if form < 0x10000 else 0xFFFF), place, length))
            self.codes.setdefault(code, (first, self.form_count - first))
        self.forms_of = table
        self.tables.add(table)
        return 0

    cdef int keep(self, Form form) except -1:
        cdef void *more
        cdef uint64_t room
        self.spend(1)
        if self.form_count == self.form_room:
            room = <uint64_t>self.form_room * 2 + 256
            if room > MAX_ATTRIBUTES:
                self.wrong("too many attributes in an abbreviation table")
            more = realloc(self.forms, room * sizeof(Form))
            if more == NULL:
                raise MemoryError
            self.forms, self.form_room = <Form *>more, <uint32_t>room
        self.forms[self.form_count] = form
        self.form_count += 1
        return 0

    def finish(self):
        """Write the changed form codes into the abbreviation tables in use."""
        cdef uint32_t i, new
        cdef uint64_t table
        for table in self.tables:
            self.read_forms(table)
            for i in range(self.form_count):
                new = changed_to(self.forms[i].form)
                if new:
                    self.put_uleb(self.abbrev_bytes, self.forms[i].place, self.forms[i].length, new)


def has_type_units(const uint8_t[::1] info):
    """Return whether .debug_info has DWARF 5 type units before the first damaged unit header."""
    cdef Section s
    cdef Unit u
    cdef uint64_t at = 0
    cdef uint64_t p = 0
    cdef uint64_t kind = 0
    set_section(&s, info)
    with nogil:
        while at < s.size:
            p = at
            if unit_header(&s, &p, &u, &kind) != NULL:
                break
            if kind == UT_TYPE:
                with gil:
                    return True
            at = u.end
    return False


cdef uint32_t changed_to(uint32_t form) noexcept nogil:
    """Return the form that replaces ``form`` in references between parts, or 0 for other forms."""
    if form == FORM_REF_SIG8:
        return FORM_INDIRECT
    if form == FORM_GNU_REF_ALT or form == FORM_REF_SUP4:
        return FORM_REF_ADDR
    if form == FORM_GNU_STRP_ALT or form == FORM_STRP_SUP:
        return FORM_STRP
    return 0
