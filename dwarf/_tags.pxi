"""Tags, attributes and operations that the scan interprets (DWARF 5, 7.5.3, 7.5.4, 7.7.1).

``_scan.pyx`` and ``_entries.pyx`` include this file.
"""

# DW_TAG and DW_AT codes
cdef enum:
    TAG_ENUMERATION_TYPE = 0x04
    TAG_MEMBER = 0x0D
    TAG_COMPILE_UNIT = 0x11
    TAG_STRUCTURE_TYPE = 0x13
    TAG_TYPEDEF = 0x16
    TAG_UNION_TYPE = 0x17
    TAG_INLINED_SUBROUTINE = 0x1D
    TAG_BASE_TYPE = 0x24
    TAG_ENUMERATOR = 0x28
    TAG_SUBPROGRAM = 0x2E
    TAG_VARIABLE = 0x34
    TAG_PARTIAL_UNIT = 0x3C
    TAG_TYPE_UNIT = 0x41
    TAG_SKELETON_UNIT = 0x4A
    AT_LOCATION = 0x02
    AT_NAME = 0x03
    AT_BYTE_SIZE = 0x0B
    AT_STMT_LIST = 0x10
    AT_LOW_PC = 0x11
    AT_HIGH_PC = 0x12
    AT_COMP_DIR = 0x1B
    AT_CONST_VALUE = 0x1C
    AT_INLINE = 0x20
    AT_ABSTRACT_ORIGIN = 0x31
    AT_DATA_MEMBER_LOCATION = 0x38
    AT_DECL_FILE = 0x3A
    AT_DECL_LINE = 0x3B
    AT_DECLARATION = 0x3C
    AT_SPECIFICATION = 0x47
    AT_TYPE = 0x49
    AT_RANGES = 0x55
    AT_ENTRY_PC = 0x52
    AT_CALL_COLUMN = 0x57
    AT_CALL_FILE = 0x58
    AT_CALL_LINE = 0x59
    AT_STR_OFFSETS_BASE = 0x72
    AT_ADDR_BASE = 0x73
    AT_RNGLISTS_BASE = 0x74
    AT_DWO_NAME = 0x76
    AT_GNU_DWO_NAME = 0x2130

# DW_OP codes of location expressions that consist of an address (DWARF 5, 2.5.1.1)
cdef enum:
    OP_ADDR = 0x03
    OP_ADDRX = 0xA1

# Attribute specification in an abbreviation
cdef struct Attribute:
    uint16_t name
    uint16_t form
    int64_t implicit

# Abbreviation; ``first`` and ``count`` select its attribute specifications
cdef struct Abbrev:
    uint64_t code
    uint32_t tag
    uint32_t first
    uint32_t count
    int fixed  # size in bytes of an entry's attribute values, or -1 if the size varies
    bint children
