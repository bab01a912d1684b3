# cython: language_level=3, boundscheck=True, cdivision=True
"""Analysis of code without a machine: templates, data within functions, entries and exits.

A *template* is a verdict lowered to one operation (``kinst/relocation/verdict.py``, ``Op``); all
instructions with the same encoding share it.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from cpython.pycapsule cimport PyCapsule_GetPointer

from emu.unicorn._engine cimport SLOT

from kinst.relocation.template import MAX_ROUNDS as _MAX_ROUNDS

include "../relocation/_template.pxi"

cdef enum:
    NEAR = 2048
    RECENT = 1 << 14

cdef uint64_t NO_DATA = <uint64_t>-1 - 16
cdef int MAX_ROUNDS = _MAX_ROUNDS


cdef list merged(list ranges):
    out = []
    for begin, end in sorted(ranges):
        if out and begin <= out[-1][1]:
            out[-1] = out[-1][0], max(end, out[-1][1])
        else:
            out.append((begin, end))
    return out


cdef class CodeReader:
    """Reader for the code of one architecture.

    :param shape: description of the architecture (``kinst/relocation/shape.py``).
    :param classify: returns (template number, length) for (bytes, length, displacement).
    """

    def __cinit__(self):
        memset(&self.templates, 0, sizeof(Templates))
        self.recent = <Known *>calloc(RECENT, sizeof(Known))
        if self.recent == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.recent)
        free(self.templates.all)

    def __init__(self, shape, classify):
        if self.split != NULL:
            raise RuntimeError("this CodeReader is already initialized")
        self.classify = classify
        self.known = {}
        self.split = <split_fn>PyCapsule_GetPointer(shape.split, "kinst.split")
        if not 0 < len(shape.registers) <= MAX_REGISTERS:
            raise ValueError(f"{len(shape.registers)} registers: needs 1 to {MAX_REGISTERS}")
        self.registers = len(shape.registers)

    cdef int made(self) except -1:
        if self.split == NULL:
            raise RuntimeError(f"this {type(self).__name__} was not initialized")
        return 0

    cdef int known_register(self, int register) except -1:
        if not 0 <= register < self.registers:
            raise ValueError(f"register {register} does not exist")
        return register

    # -- templates ----------------------------------------------------------------------------

    def add_template(self, int op, int a, int b, int c, int n, int relative, int flags,
                     uint32_t truth, uint64_t target, uint64_t extra, bytes code, bint has_data):
        """Add a template and return its number."""
        cdef Templates *ts = &self.templates
        cdef Template *t
        cdef void *more
        cdef uint64_t room
        if ts.count == ts.room:
            room = ts.room * 2 if ts.room else 1024
            more = realloc(ts.all, room * sizeof(Template))
            if more == NULL:
                raise MemoryError
            ts.all = <Template *>more
            ts.room = <uint32_t>room
        if len(code) > MAX_CODE:
            raise ValueError(f"template code of {len(code)} bytes: at most {MAX_CODE} are possible")
        for register in (a, b, c):
            if register != NO_REGISTER:
                self.known_register(register)
        if not REFUSE <= op <= LOAD_VECTOR or not ABSOLUTE <= relative <= DISPLACEMENT:
            raise ValueError(f"invalid template: operation {op}, relative {relative}")
        if op == LOAD_VECTOR and not 0 <= n <= 16 or op == BRANCH_BIT and not 0 <= n < 64 or (
                op == REWRITE and len(code) and n + 4 > SLOT) or not 0 <= n <= 0xFF:
            raise ValueError(f"invalid template: operation {op} with operand n={n}")
        if op in (BRANCH_COMPARE, BRANCH_COUNT) and not 0 < extra <= 64:
            raise ValueError(f"invalid template: comparison of {extra} bits, not 1 to 64")
        t = &ts.all[ts.count]
        memset(t, 0, sizeof(Template))
        t.op, t.a, t.b, t.c, t.n = op, a, b, c, n
        t.relative, t.flags, t.truth, t.target, t.extra = relative, flags, truth, target, extra
        t.code_length = len(code)
        t.has_data = has_data
        memcpy(t.code, <const char *>code, len(code))
        ts.count += 1
        return ts.count - 1

    cdef int64_t template_of(self, const uint8_t *code, uint32_t available, uint64_t address,
                             uint32_t *length, int32_t *relative) except -2:
        """Return the template number of an instruction, or -1 for invalid bytes."""
        cdef uint8_t key[MAX_CODE]
        cdef uint32_t key_length = 0
        cdef uint32_t hashed = 2166136261  # FNV-1a
        cdef uint32_t i
        cdef Known *recent
        cdef bytes k
        self.made()
        length[0] = self.split(code, available, key, &key_length, relative)
        if length[0] == 0:
            return -1
        for i in range(key_length):
            hashed = (hashed ^ key[i]) * 16777619
        recent = &self.recent[(hashed ^ hashed >> 15) % RECENT]
        if recent.key_length == key_length and memcmp(recent.key, key, key_length) == 0:
            length[0] = recent.length
            return recent.template if recent.length <= available else -1
        k = key[:key_length]
        found = self.known.get(k)
        if found is None:
            found = self.classify(bytes(code[:min(available, 15)]), length[0], relative[0])
            self.known[k] = found
        if not 0 <= found[0] < self.templates.count or not 0 < found[1] <= 15:
            raise ValueError(f"classify returned an invalid template or length: {found!r}")
        length[0] = found[1]
        recent.template, recent.length, recent.key_length = found[0], length[0], key_length
        memcpy(recent.key, key, key_length)
        return found[0] if length[0] <= available else -1

    # -- functions ----------------------------------------------------------------------------

    cdef uint64_t pieces(self, uint64_t address, const uint8_t[::1] code, uint64_t start,
                         uint64_t size, Piece **found, list data) except? <uint64_t>-1:
        """Decode the instructions of a function and skip the data that they read.

        The Python version is in ``kinst/code/listing.py``.

        :param found: receives an array of instructions, which the caller must free.
        :param data: receives the [begin, end) offsets of the data.
        :return: the number of instructions.
        """
        cdef uint64_t count
        cdef int round_
        if size > <uint64_t>code.shape[0] or start > <uint64_t>code.shape[0] - size:
            raise ValueError("the function is not completely in the given memory")
        before = []
        for round_ in range(MAX_ROUNDS):
            ranges = []
            count = self.walk(address, code, start, size, found, data, ranges)
            before = list(data)
            data[:] = merged(ranges)
            if data == before:
                return count
        data[:] = merged(before + data)
        return self.walk(address, code, start, size, found, data, [])

    cdef uint64_t walk(self, uint64_t address, const uint8_t[::1] code, uint64_t start,
                       uint64_t size, Piece **found, list data, list ranges) except? <uint64_t>-1:
        """Decode the instructions outside ``data``; ``ranges`` receives the data that they read."""
        cdef Piece *pieces
        cdef void *more
        cdef uint64_t count = 0
        cdef uint64_t room = 64
        cdef uint64_t at = 0
        cdef uint64_t begin, end, target
        cdef uint32_t length = 0
        cdef int32_t relative = 0
        cdef int64_t template
        cdef const Template *t
        cdef bint asks
        free(found[0])
        pieces = found[0] = <Piece *>malloc(room * sizeof(Piece))
        if pieces == NULL:
            raise MemoryError
        number = 0
        begin, end = data[0] if data else (NO_DATA, NO_DATA)
        while at < size:
            template = self.template_of(&code[start + at], <uint32_t>min(size - at, 15),
                                        address + at, &length, &relative)
            while end <= at:
                number += 1
                begin, end = data[number] if number < len(data) else (NO_DATA, NO_DATA)
            if at + (length if template >= 0 else 1) > begin:
                at = end
                continue
            if template < 0:
                break
            if count == room:
                room *= 2
                more = realloc(pieces, room * sizeof(Piece))
                if more == NULL:
                    raise MemoryError
                pieces = found[0] = <Piece *>more
            pieces[count] = Piece(at, <uint32_t>template, relative, length)
            count += 1
            t = &self.templates.all[template]
            asks = t.op == REFUSE and relative != 0
            if (t.relative == RELATIVE or t.relative == PAGE_RELATIVE) and (
                    t.op == REWRITE or t.op == LOAD_VECTOR or t.op == SET or t.op == NEXT
                    or t.op == INDIRECT):
                target = target_of(t, address + at, relative)
                # The next instruction may add an offset of up to NEAR bytes to the target.
                asks = target + NEAR - address < size + 2 * NEAR
            if asks:
                self.read_at(address, size, at, bytes(
                    code[start + at : min(start + at + 16, start + size)]), ranges)
            at += length
        self.rest = size - at if at < size else 0
        return count

    cdef int read_at(self, uint64_t address, uint64_t size, uint64_t at, bytes code,
                     list ranges) except -1:
        """Add the data that an instruction reads to ``ranges``, if the data is in the function."""
        cdef uint64_t begin
        read = None if self.literal is None else self.literal(code, address + at)
        if read is not None and address <= read[0] < address + size:
            begin = read[0] - address
            ranges.append((begin, min(begin + <uint64_t>read[1], size)))
        return 0

    def boundaries(self, uint64_t address, const uint8_t[::1] code, uint64_t start, uint64_t size):
        """Find the instructions at which a function is entered and left.

        The Python version is in ``kinst/providers/fbt.py``.

        :return: (offset of the entry or -1, offsets of the returns, whether there is a prologue,
            offsets of instructions that leave the function conditionally or to a computed address).
        """
        cdef Piece *pieces = NULL
        cdef uint64_t i, count, at, target
        cdef bint exclusive = False
        cdef bint searching = True
        cdef bint framed = False
        cdef const Template *t
        cdef Template before
        cdef uint64_t before_target = 0
        cdef int64_t entry = -1
        memset(&before, 0, sizeof(Template))
        returns, leaving, targets = [], [], set()
        leads = []  # offsets of the instructions up to the prologue or the end of the search
        first_refused = True
        try:
            count = self.pieces(address, code, start, size, &pieces, [])
            for i in range(count):
                at = pieces[i].at
                t = &self.templates.all[pieces[i].template]
                target = target_of(t, address + at, pieces[i].relative)
                exclusive = exclusive or t.flags & STARTS_EXCLUSIVE
                if at == 0:
                    first_refused = exclusive or t.op == REFUSE
                if t.op == JUMP or t.op == BRANCH_FLAGS or t.op == BRANCH_COMPARE or (
                        t.op == BRANCH_BIT or t.op == BRANCH_COUNT):
                    targets.add(target)
                framed = framed or t.flags & PROLOGUE
                if searching:
                    if exclusive or t.op == REFUSE:
                        searching = False
                    else:
                        leads.append(at)
                        if t.flags & PROLOGUE:
                            entry = at
                            searching = False
                        elif t.flags & ENDS_BLOCK and not t.flags & LANDING:
                            searching = False
                if not exclusive and t.op != REFUSE:
                    if t.flags & RETURNS:
                        returns.append(at)
                    elif t.op == JUMP and not address <= target < address + size:
                        returns.append(at)
                    elif (t.op == LINK and t.a == NO_REGISTER and before.op == SET
                            and before.a == t.b):
                        # A far jump, whose target address is split between two instructions
                        target = (before_target + t.extra) & ~<uint64_t>1
                        if not address <= target < address + size:
                            returns.append(at)
                    elif t.op == BRANCH_FLAGS or t.op == BRANCH_COMPARE or t.op == BRANCH_BIT:
                        if not address <= target < address + size:
                            leaving.append(at)
                    elif t.op == LINK and t.a == NO_REGISTER and t.b != NO_REGISTER or (
                            t.op == INDIRECT and not t.truth):
                        leaving.append(at)
                if t.flags & ENDS_EXCLUSIVE:
                    exclusive = False
                before = t[0]
                before_target = target_of(t, address + at, pieces[i].relative)
        finally:
            free(pieces)
        for lead in leads:
            if address + lead in targets:
                entry = -1
                break
            if lead == entry:
                return entry, returns, framed, leaving
        if not leads or first_refused or address in targets:
            return -1, returns, framed, leaving
        return 0, returns, framed, leaving

    def tally(self, uint64_t address, const uint8_t[::1] code, uint64_t start, uint64_t size,
              dict encodings, place, list counts):
        """Count the instructions of a function.

        :param encodings: receives ``place`` and the offset for each encoding that it lacks.
        :param counts: number of instructions for each template; extended as needed.
        :return: (instructions in exclusive accesses, bytes that are not instructions, number of
            data ranges).
        """
        cdef Piece *pieces = NULL
        cdef uint64_t i, count
        cdef uint32_t exclusives = 0
        cdef bint exclusive = False
        cdef uint8_t flags
        cdef const uint8_t *p
        data = []
        try:
            count = self.pieces(address, code, start, size, &pieces, data)
            for i in range(count):
                flags = self.templates.all[pieces[i].template].flags
                exclusive = exclusive or flags & STARTS_EXCLUSIVE
                if exclusive:
                    exclusives += 1
                else:
                    while <uint64_t>len(counts) <= pieces[i].template:
                        counts.append(0)
                    counts[pieces[i].template] += 1
                if flags & ENDS_EXCLUSIVE:
                    exclusive = False
                p = &code[start + pieces[i].at]
                encoding = p[:pieces[i].length]
                if encoding not in encodings:
                    encodings[encoding] = (place, pieces[i].at)
        finally:
            free(pieces)
        return exclusives, self.rest, len(data)

    def key(self, const uint8_t[::1] code):
        """Split the first instruction of ``code`` with the native decoder.

        :return: (length, or 0 if the instruction is invalid; the bytes that determine the verdict;
            the displacement, which they do not contain).
        """
        cdef uint8_t key[MAX_CODE]
        cdef uint32_t key_length = 0
        cdef int32_t relative = 0
        cdef uint32_t length = 0
        self.made()
        if code.shape[0]:
            length = self.split(&code[0], <uint32_t>min(code.shape[0], 15), key, &key_length,
                                &relative)
        return length, key[:key_length] if length else b"", relative

    def step(self, const uint8_t[::1] code, uint64_t address):
        """Return where the first instruction of ``code`` leads.

        :return: (length, or 0 if the instruction is invalid; its operation; the operation's target,
            registers a and b, and number ``extra``; whether it returns to the caller, or calls).
        """
        cdef uint32_t length = 0
        cdef int32_t relative = 0
        cdef int64_t number = -1
        cdef const Template *t
        if code.shape[0]:
            number = self.template_of(&code[0], <uint32_t>min(code.shape[0], 15), address, &length,
                                      &relative)
        if number < 0:
            return 0, REFUSE, 0, NO_REGISTER, NO_REGISTER, 0, False, False
        t = &self.templates.all[number]
        return (length, t.op, target_of(t, address, relative), t.a, t.b, t.extra,
                t.op == RETURN or bool(t.flags & RETURNS),
                t.op == CALL or t.op == LINK and t.a != NO_REGISTER or t.op == INDIRECT and t.truth)

    def lengths(self, const uint8_t[::1] code):
        """Return the lengths of the instructions in ``code``, up to the first invalid one."""
        cdef uint8_t key[MAX_CODE]
        cdef uint32_t key_length = 0
        cdef int32_t relative = 0
        cdef uint64_t at = 0
        cdef uint32_t n
        self.made()
        found = []
        while at < <uint64_t>code.shape[0]:
            n = self.split(&code[at], <uint32_t>min(code.shape[0] - at, 15), key, &key_length,
                           &relative)
            if n == 0:
                break
            found.append(n)
            at += n
        return found
