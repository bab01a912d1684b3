# cython: language_level=3, boundscheck=True
"""Layout of amd64 instructions: prefixes, opcode, ModRM and SIB, displacement, immediate.

Follows the Intel SDM, volume 2, appendix A, "Opcode Map", 64-bit mode, and the APX architecture
specification, chapter "Instruction Format".  The tests compare the results with Capstone, which
does not decode APX; they list the other differences.
"""

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport uint8_t, uint32_t

cdef enum:
    IMMZ = 4  # immediate: 16 bits with an operand-size prefix, otherwise 32 bits
    IMM16 = 8
    BAD = 128
    IMM32 = 256

cdef uint8_t ONE[256]  # attributes of the opcodes in the one-byte map
cdef uint8_t TWO[256]  # attributes of the opcodes in map 0F
cdef uint8_t FOUR[256]  # attributes of the opcodes in EVEX map 4 (APX) whose length is certain


def fill(table, rows):
    """Fill a table with the attributes of 256 opcodes from rows of (opcode ranges, attributes)."""
    for opcodes, attributes in rows:
        for word in opcodes.split():
            first, _dash, last = word.partition("-")
            for opcode in range(int(first, 16), int(last or first, 16) + 1):
                table[opcode] = attributes
    return table


cdef _tables():
    one, two = fill([0] * 256, (
        ("00-03 08-0b 10-13 18-1b 20-23 28-2b 30-33 38-3b", MODRM),
        ("04 0c 14 1c 24 2c 34 3c", IMM8), ("05 0d 15 1d 25 2d 35 3d", IMMZ),
        ("06 07 0e 16 17 1e 1f 27 2f 37 3f 60 61 82 9a ce d4 d5 ea", BAD),
        ("63 84-8f d0-d3 d8-df f6 f7 fe ff", MODRM),
        ("68 a9", IMMZ), ("69 81 c7", MODRM | IMMZ),
        ("6a a8 b0-b7 e4-e7", IMM8), ("6b 80 83 c0 c1 c6", MODRM | IMM8),
        ("70-7f e0-e3 eb", REL8), ("e8 e9", REL32),
        ("c2 ca", IMM16 | KEEP), ("c8", IMM16 | IMM8), ("cd", IMM8 | KEEP),
    )), fill([MODRM] * 256, (
        # ff: UD0 has a ModRM byte on Intel but not on AMD, so its length is unknown.
        ("04 0a 0c 24-27 36 39 3b-3f ff", BAD),
        ("05-09 0b 0e 30-35 37 77 a0-a2 a8-aa c8-cf", 0),
        ("0f", MODRM | IMM8 | KEEP), ("70-73 a4 ac ba c2 c4-c6", MODRM | IMM8),
        ("80-8f", REL32),
    ))
    four = fill([BAD] * 256, (
        ("00-03 08-0b 10-13 18-1b 20-23 28-2b 30-33 38-3b 40-4f 60 61 65 66 84 85 88 8f a5 ad af",
         MODRM),
        ("d0-d3 d8-df f0-f2 f4-f9 fc fe ff", MODRM),
        ("24 2c 6b 80 83 c0 c1 d4", MODRM | IMM8), ("69 81", MODRM | IMMZ),
    ))
    for i in range(256):
        ONE[i] = one[i]
        FOUR[i] = four[i]
        TWO[i] = two[i]


_tables()


cdef uint32_t lay_out(const uint8_t *code, uint32_t available, Layout *layout) noexcept nogil:
    """Determine the layout of the first instruction in ``code``.

    :return: the length; 0 if the bytes are not an instruction or if its length is not certain, and
        then ``layout`` is not set.
    """
    cdef uint32_t at = 0
    cdef uint32_t map_, opcode, attributes
    cdef uint32_t immediate = 0
    cdef uint32_t displacement = 0
    cdef bint wide = False
    cdef bint operand16 = False
    cdef bint repeat = False  # whether the instruction has a REPNE prefix
    cdef bint address32 = False
    cdef bint vector = False
    cdef bint rip = False
    cdef uint8_t modrm = 0
    cdef uint32_t at_opcode, rm
    cdef uint32_t mod = 3
    while at < available:
        if code[at] & 0xF0 == 0x40:
            wide = code[at] >> 3 & 1
        elif code[at] in (0xF0, 0xF2, 0xF3, 0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, 0x66, 0x67):
            operand16 |= code[at] == 0x66
            address32 |= code[at] == 0x67
            repeat |= code[at] == 0xF2
            wide = False  # REX has an effect only directly before the opcode
        else:
            break
        at += 1
        if at == 15:
            return 0
    if at >= available:
        return 0
    opcode = code[at]
    at_opcode = at
    at += 1
    map_ = 0
    if opcode == 0x0F:
        if at >= available:
            return 0
        opcode = code[at]
        at += 1
        map_ = 1
        if opcode == 0x38 or opcode == 0x3A:
            map_ = 2 if opcode == 0x38 else 3
            if at >= available:
                return 0
            opcode = code[at]
            at += 1
    elif opcode == 0xD5:
        # REX2 cannot follow a REX prefix, or precede a prefix, an escape byte or a short jump.
        if at + 1 >= available or at > 1 and code[at - 2] & 0xF0 == 0x40:
            return 0
        map_ = code[at] >> 7
        wide = code[at] >> 3 & 1
        opcode = code[at + 1]
        at += 2
        if map_ == 1:
            if opcode >> 4 == 3 or opcode >> 4 == 8:
                return 0
        elif opcode >> 4 in (4, 7, 0xA, 0xE) and opcode != 0xA1 or opcode in (
                0x0F, 0x26, 0x2E, 0x36, 0x3E, 0x62, 0x64, 0x65, 0x66, 0x67, 0xC4, 0xC5, 0xD5, 0xF0,
                0xF2, 0xF3):
            return 0
    elif opcode == 0xC4 or opcode == 0xC5 or opcode == 0x62 or (
            opcode == 0x8F and at < available and code[at] & 31 >= 8):
        vector = True
        if opcode == 0xC5:
            map_ = 1
            at += 1
        else:
            if at >= available:
                return 0
            map_ = code[at] & (7 if opcode == 0x62 else 31)
            if opcode == 0x62 and map_ == 4 and at + 1 < available:
                operand16 = code[at + 1] & 3 == 1
                wide = code[at + 1] >> 7
            at += 3 if opcode == 0x62 else 2
        if at >= available:
            return 0
        if opcode == 0x8F:
            if map_ > 10:
                return 0
        elif map_ < 1 or map_ > 3 and not (opcode == 0x62 and map_ < 7):
            return 0
        opcode = code[at]
        at += 1
    if map_ == 0:
        attributes = ONE[opcode]
    elif map_ == 1:
        attributes = TWO[opcode]
        if vector and attributes & (REL32 | BAD):
            attributes = MODRM  # these opcodes are mask register instructions
    elif map_ == 10:
        attributes = MODRM | IMM32
    elif map_ == 4:
        attributes = FOUR[opcode]
    else:
        attributes = MODRM | IMM8 if map_ == 3 or map_ == 8 else MODRM
    # A near jump with an operand-size prefix has 16 displacement bits on AMD and 32 on Intel.
    if attributes & BAD or attributes & REL32 and operand16 and not wide:
        return 0
    if attributes & MODRM:
        if at >= available:
            return 0
        modrm = code[at]
        at += 1
        mod, rm = modrm >> 6, modrm & 7
        if map_ == 1 and not vector and opcode & 0xFC == 0x20:
            mod = 3  # MOV to or from a control or debug register: ModRM has no memory operand
        if mod != 3:
            if rm == 4:
                if at >= available:
                    return 0
                if mod == 0 and code[at] & 7 == 5:
                    displacement = 4
                at += 1
            if mod == 1:
                displacement = 1
            elif mod == 2:
                displacement = 4
            elif rm == 5:
                displacement = 4
                rip = True
        if (map_ == 0 or map_ == 4) and opcode == 0xF6 and modrm >> 3 & 7 < 2:
            attributes |= IMM8
        elif (map_ == 0 or map_ == 4) and opcode == 0xF7 and modrm >> 3 & 7 < 2:
            attributes |= IMMZ
        elif map_ == 1 and opcode == 0x78 and not vector and mod == 3 and (operand16 or repeat):
            attributes |= IMM16  # EXTRQ, INSERTQ: two one-byte immediates (AMD APM volume 4)
    if attributes & IMM8:
        immediate += 1
    if attributes & IMM16:
        immediate += 2
    if attributes & IMMZ:
        immediate += 2 if operand16 and not wide else 4
    if attributes & IMM32:
        immediate += 4
    if attributes & REL8:
        immediate = 1
    elif attributes & REL32:
        immediate = 4
    if map_ == 0 and not vector:
        if opcode & 0xF8 == 0xB8:
            immediate = 8 if wide else 2 if operand16 else 4
        elif opcode & 0xFC == 0xA0:
            immediate = 4 if address32 else 8
    if at + displacement + immediate > available or at + displacement + immediate > 15:
        return 0
    layout.opcode_at = at_opcode
    layout.map = map_
    layout.opcode = opcode
    layout.attributes = attributes
    layout.vector = vector
    layout.modrm = modrm
    layout.memory = mod != 3
    layout.relative = rip
    layout.operands = at
    layout.displacement = displacement
    layout.immediate = immediate
    return at + displacement + immediate


def length(const uint8_t[::1] code):
    """Return the length in bytes of the first instruction in ``code``, or 0 if it is uncertain."""
    cdef Layout layout
    if code.shape[0] == 0:
        return 0
    return lay_out(&code[0], <uint32_t>min(code.shape[0], 15), &layout)


def lengths(const uint8_t[::1] code):
    """Return the lengths in bytes of the instructions in ``code``, up to the first invalid one."""
    cdef Layout layout
    cdef Py_ssize_t at = 0
    cdef uint32_t size
    found = []
    while at < code.shape[0]:
        size = lay_out(&code[at], <uint32_t>min(code.shape[0] - at, 15), &layout)
        if size == 0:
            break
        found.append(size)
        at += size
    return found


cdef uint32_t split(const uint8_t *code, uint32_t size, uint32_t *last) noexcept nogil:
    """Return how many instructions ``code`` holds, or 0 if one is invalid or incomplete.

    :param last: receives the offset of the last one.
    """
    cdef Layout layout
    cdef uint32_t at = 0
    cdef uint32_t count = 0
    cdef uint32_t length
    while at < size:
        length = lay_out(code + at, min(size - at, <uint32_t>15), &layout)
        if length == 0 or length > size - at:
            return 0
        last[0] = at
        at += length
        count += 1
    return count


# For ``Engine.set_branches``.
SPLIT = PyCapsule_New(<void *>split, "emu.split", NULL)
