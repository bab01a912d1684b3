# cython: language_level=3, boundscheck=True, cdivision=True
"""Single debugging information entries (DWARF 5, 2.1 and 7.5) and their children.

Every read is checked against the end of its unit or section; malformed data is an error that
includes the offset.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memset

from dwarf._leb cimport read_leb, read_number

cdef enum:
    MAX_ABBREVS = 1 << 20
    MAX_CHILDREN = 1 << 16  # maximum number of descendants of an entry
    MAX_STRING = 4096  # maximum number of bytes of a string; longer strings are truncated
    WORK = 1 << 24  # maximum number of attributes in an abbreviation table
    MAX_TAGS = 16
    DATA16 = 0x1E
    SDATA = 0x0D
    IMPLICIT = 0x21
    INDIRECT = 0x16

include "_tags.pxi"

include "_forms.pxi"


class EntryError(ValueError):
    """Inconsistent debug data; the message includes the offset in .debug_info."""

    def __init__(self, what, offset):
        super().__init__(f"{what} at .debug_info+{offset:#x}")


include "_abbreviations.pxi"


cdef class Entry:
    """An entry and its attributes.

    :ivar unit: offset of its unit in .debug_info; ``end``: offset of the end of this unit.
    :ivar offset: its offset in .debug_info.
    :ivar tag: its DW_TAG code.
    :ivar attributes: DW_AT code -> value.  Numbers and addresses are integers, references are
        offsets in .debug_info, strings and blocks are bytes.  Indices into tables of addresses and
        of lists, and 16-byte numbers, are None.
    """

    cdef readonly uint64_t unit, end, offset
    cdef readonly uint32_t tag
    cdef readonly bint has_children
    cdef readonly dict attributes
    cdef uint64_t after


cdef class EntryReader(Abbreviations):
    """Reader of entries by their offsets.  The sections may be empty.

    :raises EntryError: from every method, if the debug data is damaged.
    """

    cdef Section info, strings, line_strings, str_offsets
    cdef object keep  # keeps the buffers of the sections alive
    cdef Unit unit
    cdef uint64_t begins  # offset of the unit's first entry
    cdef uint64_t work_of_sections

    def __init__(self, const uint8_t[::1] info, const uint8_t[::1] abbrev,
                 const uint8_t[::1] strings, const uint8_t[::1] line_strings,
                 const uint8_t[::1] str_offsets):
        self.keep = (info, abbrev, strings, line_strings, str_offsets)
        set_section(&self.info, info)
        set_section(&self.abbrev, abbrev)
        set_section(&self.strings, strings)
        set_section(&self.line_strings, line_strings)
        set_section(&self.str_offsets, str_offsets)
        self.unit.offset = NOTHING
        self.work_of_sections = WORK + <uint64_t>abbrev.shape[0]

    def entry(self, uint64_t unit, uint64_t offset):
        """Return the entry at an offset; ``unit`` is the offset of its unit."""
        self.enter(unit)
        cdef Entry found = self.read_entry(offset, unit)
        if found is None:
            raise EntryError("empty entry", offset)
        return found

    def children(self, Entry entry not None, *tags):
        """Return the children of an entry that have one of the given DW_TAG codes.

        :raises EntryError: also if the entry has more than 65,536 descendants.
        """
        cdef uint64_t p, at
        cdef uint64_t code = 0
        cdef uint32_t wanted[MAX_TAGS]
        cdef int n = len(tags)
        cdef int i
        cdef int depth = 1
        cdef int count
        cdef bint chosen
        cdef const Abbrev *a
        cdef Section s
        cdef list found = []
        if n > MAX_TAGS:
            raise ValueError(f"more than {MAX_TAGS} tags")
        for i in range(n):
            wanted[i] = tags[i]
        if not entry.has_children:
            return found
        self.enter(entry.unit)
        s.data, s.size = self.info.data, self.unit.end
        p = entry.after
        self.work = 0
        for count in range(MAX_CHILDREN):
            at = p
            if not uleb(&s, &p, &code):
                raise EntryError("truncated entry", at)
            if code == 0:
                depth -= 1
                if depth == 0:
                    return found
                continue
            a = self.find_abbrev(code)
            if a == NULL:
                raise EntryError("entry with an undefined abbreviation code", at)
            chosen = False
            if depth == 1:
                for i in range(n):
                    chosen = chosen or wanted[i] == a.tag
            self.work += 1 + (a.count if chosen or a.fixed < 0 else 0)
            if self.work > self.work_of_sections:
                raise EntryError("too much work for sections of this size", at)
            if chosen:
                found.append(self.read_entry(at, entry.unit))
                p = (<Entry>found[len(found) - 1]).after
            elif a.fixed >= 0:
                p += <uint64_t>a.fixed
                if p > s.size:
                    raise EntryError("truncated entry", at)
            else:
                for i in range(<int>a.count):
                    if not skip(&s, &p, self.attributes[a.first + i].form, &self.unit):
                        raise EntryError("truncated attribute or unknown form", at)
            depth += a.children
        raise EntryError(f"more than {MAX_CHILDREN} entries below the one", entry.offset)

    cdef int enter(self, uint64_t unit) except 0:
        """Read the header and the abbreviations of a unit, unless they are those known."""
        cdef uint64_t p = unit
        cdef uint64_t kind = 0
        cdef const char *wrong
        cdef Entry top
        cdef object base
        if self.unit.offset == unit:
            return 1
        self.unit.offset = NOTHING
        wrong = unit_header(&self.info, &p, &self.unit, &kind)
        self.unit.offset = NOTHING
        if wrong != NULL:
            raise EntryError((<bytes>wrong).decode(), unit)
        if (self.unit.abbrevs != self.abbrevs_of or self.unit.version != self.abbrevs_version
                or self.unit.address_size != self.abbrevs_address_size
                or self.unit.offset_size != self.abbrevs_offset_size):
            self.work, self.most_work, self.wrong = 0, self.work_of_sections, NULL
            if not self.read_abbrevs(&self.unit):
                raise EntryError((<bytes>self.wrong).decode(), unit)
        self.work = 0
        self.begins = p
        # The unit's first entry says where the strings are; its own may be unknown until then.
        top = self.read_entry(p, unit, True)
        base = None if top is None else top.attributes.get(AT_STR_OFFSETS_BASE)
        if base is not None and not (isinstance(base, int) and 0 <= base <= self.str_offsets.size):
            raise EntryError("invalid DW_AT_str_offsets_base", unit)
        self.unit.strings = NOTHING if base is None else base
        self.unit.offset = unit
        return 1

    cdef Entry read_entry(self, uint64_t offset, uint64_t unit, bint first=False):
        """Return the entry at an offset in the unit, or None for the end of a list of children.

        :param first: whether it is the unit's first entry, whose indexed strings are left out.
        """
        cdef uint64_t p = offset
        cdef uint64_t code = 0
        cdef uint64_t form = 0
        cdef uint32_t i
        cdef const Attribute *t
        cdef const Abbrev *a
        cdef Value v
        cdef Section s
        cdef Entry found
        cdef object value
        s.data, s.size = self.info.data, self.unit.end
        if not self.begins <= offset < s.size or not uleb(&s, &p, &code):
            raise EntryError("entry outside of its unit", offset)
        if code == 0:
            return None
        a = self.find_abbrev(code)
        if a == NULL:
            raise EntryError("entry with an undefined abbreviation code", offset)
        found = Entry.__new__(Entry)
        found.unit, found.end, found.offset = unit, self.unit.end, offset
        found.tag, found.has_children, found.attributes = a.tag, a.children, {}
        for i in range(a.count):
            t = &self.attributes[a.first + i]
            form = t.form
            if form == INDIRECT and (not uleb(&s, &p, &form) or form == INDIRECT
                                     or form == IMPLICIT or form > 0xFFFF):
                raise EntryError("truncated attribute or unknown form", offset)
            if not read(&s, &p, <uint32_t>form, t.implicit, &self.unit, &v):
                raise EntryError("truncated attribute or unknown form", offset)
            if form == SDATA or form == IMPLICIT:
                value = <int64_t>v.number
            elif form == DATA16 or v.kind == ADDRESS_INDEX or v.kind == LIST_INDEX:
                found.attributes[t.name] = None
                continue
            elif v.kind == BLOCK:
                value = s.data[v.number : p]
            elif v.kind == IN_INFO:
                value = text(&s, v.number)
            elif v.kind == IN_STR:
                value = text(&self.strings, v.number)
            elif v.kind == IN_LINE_STR:
                value = text(&self.line_strings, v.number)
            elif v.kind == STRING_INDEX:
                value = self.indexed(v.number)
            else:
                value = v.number
            if value is None:
                if first and v.kind == STRING_INDEX:
                    continue
                raise EntryError("string outside of its section", offset)
            found.attributes[t.name] = value
        found.after = p
        return found

    cdef object indexed(self, uint64_t index):
        """Return a string by its index in .debug_str_offsets, or None."""
        cdef uint64_t p
        cdef uint64_t offset = 0
        if (self.unit.strings == NOTHING or index > self.str_offsets.size
                or self.unit.strings > self.str_offsets.size):
            return None
        p = self.unit.strings + index * self.unit.offset_size
        if not number(&self.str_offsets, &p, self.unit.offset_size, &offset):
            return None
        return text(&self.strings, offset)


cdef object text(const Section *s, uint64_t offset):
    """Return a zero-terminated string as bytes, or None if it does not begin in its section."""
    cdef uint64_t room
    cdef const void *end
    if offset >= s.size:
        return None
    room = s.size - offset
    if room > MAX_STRING:
        room = MAX_STRING
    end = memchr(s.data + offset, 0, room)
    if end != NULL:
        room = <uint64_t>(<const uint8_t *>end - (s.data + offset))
    return s.data[offset : offset + room]
