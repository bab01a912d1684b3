"""Template constants shared with Python, and the target of an instruction.

Each module that uses templates includes this file, so that the compiler can inline its code.
"""

from kinst.relocation.template import NO_REGISTER as _NO_REGISTER
from kinst.relocation.template import Trait
from kinst.relocation.verdict import Op, Relative

cdef int REFUSE = Op.REFUSE
cdef int COPY = Op.COPY
cdef int REWRITE = Op.REWRITE
cdef int JUMP = Op.JUMP
cdef int BRANCH_FLAGS = Op.BRANCH_FLAGS
cdef int BRANCH_COMPARE = Op.BRANCH_COMPARE
cdef int BRANCH_BIT = Op.BRANCH_BIT
cdef int BRANCH_COUNT = Op.BRANCH_COUNT
cdef int SET = Op.SET
cdef int NEXT = Op.NEXT
cdef int LINK = Op.LINK
cdef int CALL = Op.CALL
cdef int INDIRECT = Op.INDIRECT
cdef int RETURN = Op.RETURN
cdef int CHANGE_FLAGS = Op.CHANGE_FLAGS
cdef int READ_FLAGS = Op.READ_FLAGS
cdef int WRITE_FLAGS = Op.WRITE_FLAGS
cdef int LOAD_VECTOR = Op.LOAD_VECTOR

cdef int ABSOLUTE = Relative.ABSOLUTE
cdef int RELATIVE = Relative.RELATIVE
cdef int PAGE_RELATIVE = Relative.PAGE_RELATIVE
cdef int DISPLACEMENT = Relative.DISPLACEMENT

cdef int ENDS_BLOCK = Trait.ENDS_BLOCK
cdef int STARTS_EXCLUSIVE = Trait.STARTS_EXCLUSIVE
cdef int ENDS_EXCLUSIVE = Trait.ENDS_EXCLUSIVE
cdef int PROLOGUE = Trait.PROLOGUE
cdef int RETURNS = Trait.RETURNS
cdef int LANDING = Trait.LANDING
cdef int REPEATS = Trait.REPEATS
cdef uint8_t NO_REGISTER = _NO_REGISTER


cdef inline uint64_t target_of(const Template *t, uint64_t address, int32_t relative) noexcept nogil:
    """Return the target of an instruction with template ``t`` at an address.

    :param relative: the displacement in the instruction, which the template does not contain.
    """
    if t.relative == RELATIVE:
        return t.target + address + <int64_t>relative
    if t.relative == PAGE_RELATIVE:
        return t.target + (address & ~<uint64_t>0xFFF) + <int64_t>relative
    if t.relative == DISPLACEMENT:
        return t.target + <int64_t>relative
    return t.target
