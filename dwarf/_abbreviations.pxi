"""Abbreviation table of a unit (DWARF 5, 7.5.3); included by ``_scan.pyx`` and ``_entries.pyx``."""


cdef class Abbreviations:
    """Abbreviation table of the most recently read unit, and the limit on the scan's work."""

    cdef Section abbrev
    cdef Abbrev *abbrevs
    cdef uint32_t abbrev_count, abbrev_room
    cdef Attribute *attributes
    cdef uint32_t attribute_count, attribute_room
    cdef uint64_t abbrevs_of
    cdef uint32_t abbrevs_version
    cdef uint8_t abbrevs_address_size, abbrevs_offset_size
    cdef uint64_t work, most_work
    cdef const char *wrong

    def __cinit__(self):
        self.abbrevs_of = NOTHING

    def __dealloc__(self):
        free(self.abbrevs)
        free(self.attributes)

    cdef int fail(self, const char *what) noexcept nogil:
        if self.wrong == NULL:
            self.wrong = what
        return 0

    cdef int spend(self, uint64_t work) noexcept nogil:
        """Add ``work`` to the work done so far; fail if the total exceeds the limit."""
        self.work += work
        if self.work > self.most_work:
            return self.fail(b"too much work for sections of this size")
        return 1

    cdef int read_abbrevs(self, const Unit *u) noexcept nogil:
        cdef uint64_t p = u.abbrevs
        cdef uint64_t code = 0
        cdef uint64_t tag = 0
        cdef uint64_t name = 0
        cdef uint64_t form = 0
        cdef uint64_t flag = 0
        cdef int64_t implicit = 0
        cdef int size
        cdef Abbrev *a
        cdef void *more
        self.abbrev_count = 0
        self.attribute_count = 0
        self.abbrevs_of = NOTHING
        while True:
            if not uleb(&self.abbrev, &p, &code):
                return self.fail(b"truncated abbreviation table")
            if code == 0:
                break
            if not (uleb(&self.abbrev, &p, &tag) and number(&self.abbrev, &p, 1, &flag)):
                return self.fail(b"truncated abbreviation table")
            if self.abbrev_count == MAX_ABBREVS:
                return self.fail(b"too many abbreviations in a table")
            if self.abbrev_count == self.abbrev_room:
                more = realloc(self.abbrevs, (self.abbrev_room * 2 + 64) * sizeof(Abbrev))
                if more == NULL:
                    return self.fail(b"out of memory")
                self.abbrevs = <Abbrev *>more
                self.abbrev_room = self.abbrev_room * 2 + 64
            a = &self.abbrevs[self.abbrev_count]
            self.abbrev_count += 1
            a.code = code
            a.tag = <uint32_t>(tag if tag < 0x10000 else 0)
            a.children = flag != 0
            a.first = self.attribute_count
            a.count = 0
            a.fixed = 0
            while True:
                implicit = 0
                if not (uleb(&self.abbrev, &p, &name) and uleb(&self.abbrev, &p, &form)):
                    return self.fail(b"truncated abbreviation table")
                if form == 0x21 and not sleb(&self.abbrev, &p, &implicit):
                    return self.fail(b"truncated abbreviation table")
                if name == 0 and form == 0:
                    break
                if self.attribute_count == self.attribute_room:
                    if self.attribute_room > MAX_ABBREVS * 16:
                        return self.fail(b"too many attributes in an abbreviation table")
                    more = realloc(self.attributes,
                                   (self.attribute_room * 2 + 256) * sizeof(Attribute))
                    if more == NULL:
                        return self.fail(b"out of memory")
                    self.attributes = <Attribute *>more
                    self.attribute_room = self.attribute_room * 2 + 256
                self.attributes[self.attribute_count].name = <uint16_t>(
                    name if name < 0x10000 else 0xFFFF)
                self.attributes[self.attribute_count].form = <uint16_t>(
                    form if form < 0x10000 else 0xFFFF)
                self.attributes[self.attribute_count].implicit = implicit
                self.attribute_count += 1
                a.count += 1
                if not self.spend(1):
                    return 0
                size = fixed_size(<uint32_t>(form if form < 0x10000 else 0xFFFF), u)
                a.fixed = -1 if size < 0 or a.fixed < 0 else a.fixed + size
        self.abbrevs_of = u.abbrevs
        self.abbrevs_version = u.version
        self.abbrevs_address_size = u.address_size
        self.abbrevs_offset_size = u.offset_size
        return 1

    cdef const Abbrev *find_abbrev(self, uint64_t code) noexcept nogil:
        cdef uint32_t i
        # Compilers number abbreviation codes from 1, so try the code as an index first.
        if 0 < code <= self.abbrev_count and self.abbrevs[code - 1].code == code:
            return &self.abbrevs[code - 1]
        for i in range(self.abbrev_count):  # rare: the codes are not consecutive
            if self.abbrevs[i].code == code:
                self.work += i
                return &self.abbrevs[i]
        self.work += self.abbrev_count
        return NULL
