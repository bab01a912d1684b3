"""Attribute forms (DWARF 4, 7.5.4; DWARF 5, 7.5.6) and unit headers.

``_scan.pyx``, ``_join.pyx`` and ``_entries.pyx`` include this file.
"""

cdef uint64_t NOTHING = 0xFFFFFFFFFFFFFFFF
# Value that marks 64-bit DWARF in a length field, and a base address entry in a range list
cdef uint64_t ESCAPE = 0xFFFFFFFF

# Meaning of the number in a ``Value``
cdef enum:
    PLAIN = 0
    IN_STR = 1
    IN_LINE_STR = 2
    IN_INFO = 3
    STRING_INDEX = 4
    ADDRESS_INDEX = 5
    REFERENCE = 6
    LIST_INDEX = 7
    ADDRESS = 8
    BLOCK = 9  # the number is the offset of the block's first byte

# Unit types (DW_UT; DWARF 5, 7.5.1)
cdef enum:
    UT_TYPE = 2
    UT_SKELETON = 4
    UT_SPLIT_COMPILE = 5
    UT_SPLIT_TYPE = 6

cdef struct Unit:
    uint64_t offset
    uint64_t end
    uint64_t abbrevs
    uint64_t low
    uint64_t strings
    uint64_t addresses
    uint64_t lists
    uint64_t line_table
    uint64_t directory
    uint64_t name
    uint32_t version
    uint8_t address_size
    uint8_t offset_size

cdef struct Value:
    int kind
    uint64_t number

cdef struct Section:
    const uint8_t *data
    uint64_t size


cdef void set_section(Section *s, const uint8_t[::1] data):
    s.size = <uint64_t>data.shape[0]
    s.data = &data[0] if s.size else NULL


cdef inline int number(const Section *s, uint64_t *p, int size, uint64_t *out) noexcept nogil:
    return read_number(s.data, s.size, p, size, out)


cdef inline int uleb(const Section *s, uint64_t *p, uint64_t *out) noexcept nogil:
    return read_leb(s.data, s.size, p, False, out)


cdef inline int sleb(const Section *s, uint64_t *p, int64_t *out) noexcept nogil:
    return read_leb(s.data, s.size, p, True, <uint64_t *>out)


cdef const char *unit_header(const Section *info, uint64_t *p, Unit *u, uint64_t *kind
                             ) noexcept nogil:
    """Read a unit header (DWARF 4, 7.5.1; DWARF 5, 7.5.1), and advance ``p`` past it.

    Return an error message, or NULL.  ``kind`` is set to the DW_UT of a version 5 unit, and to 1
    for earlier versions.
    """
    cdef uint64_t length = 0
    cdef uint64_t value = 0
    memset(u, 0, sizeof(Unit))
    kind[0] = 1
    u.offset = p[0]
    u.offset_size = 4
    u.strings = u.addresses = u.lists = u.line_table = u.directory = u.name = NOTHING
    if not number(info, p, 4, &length):
        return b"truncated unit header"
    if length == ESCAPE:
        u.offset_size = 8
        if not number(info, p, 8, &length):
            return b"truncated unit header"
    if length > info.size - p[0] or length < 7:
        return b"unit is longer than its section or shorter than its header"
    u.end = p[0] + length
    if not number(info, p, 2, &value):
        return b"truncated unit header"
    u.version = <uint32_t>value
    if u.version < 2 or u.version > 5:
        return b"DWARF version of a unit is not 2 to 5"
    if u.version >= 5:
        if not (number(info, p, 1, kind) and number(info, p, 1, &value)
                and number(info, p, u.offset_size, &u.abbrevs)):
            return b"truncated unit header"
        if kind[0] == UT_SKELETON or kind[0] == UT_SPLIT_COMPILE:  # skip the unit ID
            p[0] += 8
        elif kind[0] == UT_TYPE or kind[0] == UT_SPLIT_TYPE:  # skip type signature and offset
            p[0] += 8 + u.offset_size
    elif not (number(info, p, u.offset_size, &u.abbrevs) and number(info, p, 1, &value)):
        return b"truncated unit header"
    if value != 4 and value != 8:
        return b"address size of a unit is neither 4 nor 8 bytes"
    u.address_size = <uint8_t>value
    if p[0] > u.end:
        return b"truncated unit header"
    return NULL


cdef int fixed_size(uint32_t form, const Unit *u) noexcept nogil:
    """Return the size of a form's values in bytes, or -1 if the size varies."""
    if form == 0x01:
        return u.address_size
    if form in (0x0B, 0x0C, 0x11, 0x25, 0x29):
        return 1
    if form in (0x05, 0x12, 0x26, 0x2A):
        return 2
    if form in (0x27, 0x2B):
        return 3
    if form in (0x06, 0x13, 0x1C, 0x28, 0x2C):
        return 4
    if form in (0x07, 0x14, 0x20, 0x24):
        return 8
    if form == 0x1E:
        return 16
    if form in (0x0E, 0x17, 0x1D, 0x1F, 0x1F20, 0x1F21):
        return u.offset_size
    if form == 0x10:
        return u.address_size if u.version < 3 else u.offset_size
    if form in (0x19, 0x21):
        return 0
    return -1


cdef int skip(const Section *s, uint64_t *p, uint32_t form, const Unit *u) noexcept nogil:
    cdef Value v
    cdef int size = fixed_size(form, u)
    if size >= 0:
        if p[0] > s.size or <uint64_t>size > s.size - p[0]:
            return 0
        p[0] += size
        return 1
    return read(s, p, form, 0, u, &v)


cdef int read(const Section *s, uint64_t *p, uint32_t form, int64_t implicit, const Unit *u,
              Value *v) noexcept nogil:
    """Read an attribute value, and advance ``p`` past the value; return 0 if it is malformed."""
    cdef uint64_t length = 0
    cdef const void *end
    cdef int64_t signed_number = 0
    cdef int size = fixed_size(form, u)
    v.kind = PLAIN
    v.number = 0
    if form == 0x16:  # DW_FORM_indirect: the form precedes the value
        if not uleb(s, p, &length) or length == 0x16 or length == 0x21 or length > 0xFFFF:
            return 0
        return read(s, p, <uint32_t>length, 0, u, v)
    if form == 0x19:
        v.number = 1
        return 1
    if form == 0x21:
        v.number = <uint64_t>implicit
        return 1
    if form == 0x1E:
        if p[0] > s.size or 16 > s.size - p[0]:
            return 0
        p[0] += 16
        return 1
    if size >= 0:
        if not number(s, p, size, &v.number):
            return 0
        if form == 0x01:
            v.kind = ADDRESS
        elif form == 0x0E:
            v.kind = IN_STR
        elif form == 0x1F:
            v.kind = IN_LINE_STR
        elif 0x11 <= form <= 0x14:
            v.kind = REFERENCE
            v.number += u.offset
        elif form == 0x10:
            v.kind = REFERENCE
        elif 0x25 <= form <= 0x28:
            v.kind = STRING_INDEX
        elif 0x29 <= form <= 0x2C:
            v.kind = ADDRESS_INDEX
        return 1
    if form == 0x08:  # DW_FORM_string
        if p[0] >= s.size:
            return 0
        end = memchr(s.data + p[0], 0, s.size - p[0])
        if end == NULL:
            return 0
        v.kind = IN_INFO
        v.number = p[0]
        p[0] = <uint64_t>(<const uint8_t *>end - s.data) + 1
        return 1
    if form == 0x0D:
        if not sleb(s, p, &signed_number):
            return 0
        v.number = <uint64_t>signed_number
        return 1
    if form in (0x0F, 0x15, 0x1A, 0x1B, 0x22, 0x23, 0x1F01, 0x1F02):
        if not uleb(s, p, &v.number):
            return 0
        if form == 0x15:
            v.kind = REFERENCE
            v.number += u.offset
        elif form == 0x1A or form == 0x1F02:
            v.kind = STRING_INDEX
        elif form == 0x1B or form == 0x1F01:
            v.kind = ADDRESS_INDEX
        elif form == 0x23:
            v.kind = LIST_INDEX
        return 1
    if form == 0x03:
        size = 2
    elif form == 0x04:
        size = 4
    elif form == 0x0A:
        size = 1
    elif form == 0x09 or form == 0x18:
        size = 0
    else:
        return 0
    if size:
        if not number(s, p, size, &length):
            return 0
    elif not uleb(s, p, &length):
        return 0
    if p[0] > s.size or length > s.size - p[0]:
        return 0
    v.kind = BLOCK
    v.number = p[0]
    p[0] += length
    return 1
