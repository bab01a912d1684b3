"""Access to the executor's regions, guest memory and strings (included by ``_runtime.pyx``)."""


cdef int make_regions(Machine *m, sizes, bytes constants) except -1:
    """Allocate the regions, all zero but for the constants.

    :raises ValueError: for a size that is not allowed.
    """
    for region, size in sizes.items():
        if not 0 <= size <= 1 << 31:
            raise ValueError(f"a region of {size} bytes: the size must be 0 to 2 GiB")
        m.region[<int>region].data = <uint8_t *>calloc(1, max(size, 1))
        if m.region[<int>region].data == NULL:
            raise MemoryError
        m.region[<int>region].size = size
        m.region[<int>region].writable = region != Region.STRINGS
    memcpy(m.region[<int>Region.STRINGS].data, <const char *>constants, len(constants))
    return 0


cdef int divide_region(Machine *m, int region, list variables) except -1:
    """Note where each variable, given by (offset, size in bytes), of a region ends.

    :raises ValueError: if the region is divided already, or if a variable is not inside.
    """
    cdef RegionData *r = &m.region[region]
    cdef uint64_t offset, size, word
    if r.end != NULL:
        raise ValueError(f"region {region} is divided already")
    cdef uint32_t *end = <uint32_t *>calloc(r.size // 8 + 1, sizeof(uint32_t))
    if end == NULL:
        raise MemoryError
    try:
        for offset, size in variables:
            if offset % 8 or offset > r.size or size > r.size - offset:
                raise ValueError(f"a variable of {size} bytes at {offset} is not in the region")
            for word in range(offset // 8, (offset + size + 7) // 8):
                end[word] = <uint32_t>(offset + size)
    except (ValueError, TypeError, OverflowError):
        free(end)
        raise
    r.end = end
    return 0


cdef inline uint64_t address_of(int region, uint64_t offset) noexcept nogil:
    return (BASE | <uint64_t>region) << 32 | offset


cdef inline uint8_t *resolve(Machine *m, uint64_t address, uint64_t size, bint write) noexcept nogil:
    """Return a pointer into the executor's own memory, or NULL if the access is not allowed."""
    cdef uint64_t number = (address >> 32) - BASE
    cdef uint64_t offset = address & LOW32
    cdef RegionData *r
    if number >= MAX_REGIONS:
        return NULL
    r = &m.region[number]
    if offset > r.size or size > r.size - offset or write and not r.writable:
        return NULL
    return r.data + offset


cdef inline bint own(uint64_t address) noexcept nogil:
    return (address >> 32) - BASE < MAX_REGIONS


cdef inline uint64_t bad(Machine *m, int fault, uint64_t value) noexcept nogil:
    if m.fault < 0:
        m.fault = fault
        m.fault_value = value
    return 0


cdef bint fetch(Machine *m, uint64_t address, void *to, uint64_t size) noexcept nogil:
    """Read memory of the executor or the guest; on failure, set a fault and return False."""
    cdef uint8_t *data
    cdef bint read = False
    if own(address):
        data = resolve(m, address, size, False)
        if data != NULL:
            memmove(to, data, size)
            return True
    elif m.read != NULL and size <= TEXT:
        read = m.read(m.read_data, address, to, <uint32_t>size)
        if read:
            return True
    bad(m, BAD_ADDRESS, address)
    return False


cdef int64_t text(Machine *m, uint64_t address, uint8_t *to, uint64_t limit) noexcept nogil:
    """Copy a string without the NUL; return the length of the string, or -1 after a fault."""
    cdef uint64_t n = 0
    cdef uint64_t part, i
    cdef uint8_t *data
    cdef RegionData *r
    if own(address):
        data = resolve(m, address, 0, False)
        if data != NULL:
            r = &m.region[(address >> 32) - BASE]
            part = r.size - (address & LOW32)
            if part and r.end != NULL:  # a string ends at the latest with its variable
                i = r.end[(address & LOW32) >> 3]
                part = i - (address & LOW32) if i > (address & LOW32) else 0
            elif part and (address >> 32) - BASE == <uint64_t>R_DYNAMIC and m.chunk_size:
                i = (address & LOW32) / m.chunk_size
                part = m.variable[m.chunk[i].variable].size if (
                    i < m.chunk_count and m.chunk[i].used) else 0
                i = (address & LOW32) % m.chunk_size
                part = part - i if part > i else 0
            while n < limit and n < part and data[n] != 0:
                to[n] = data[n]
                n += 1
            return <int64_t>n
        bad(m, BAD_ADDRESS, address)
        return -1
    while n < limit:
        part = PAGE - ((address + n) & (PAGE - 1))
        if part > limit - n:
            part = limit - n
        if part > 64:
            part = 64
        if not fetch(m, address + n, to + n, part):
            return -1
        for i in range(part):
            if to[n + i] == 0:
                return <int64_t>(n + i)
        n += part
    return <int64_t>n


cdef inline bint inside(Machine *m, uint64_t address, uint64_t size) noexcept nogil:
    """Whether an access stays within one variable, or is to other memory."""
    cdef uint64_t offset = address & LOW32
    cdef uint64_t region = (address >> 32) - BASE
    cdef uint64_t c
    if region < MAX_REGIONS and m.region[region].end != NULL and offset < m.region[region].size:
        return offset + size <= m.region[region].end[offset >> 3]
    if region != <uint64_t>R_DYNAMIC or m.chunk_size == 0:
        return True
    c = offset / m.chunk_size
    return (c < m.chunk_count and m.chunk[c].used and
            offset % m.chunk_size + size <= m.variable[m.chunk[c].variable].size)


cdef uint64_t h_load(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint64_t value = 0
    cdef uint8_t *data
    if r[2] > 8:
        return bad(m, ILLEGAL_OPERATION, 0)
    if not inside(m, r[1], r[2]):
        return bad(m, BAD_ADDRESS, r[1])
    data = resolve(m, r[1], r[2], False)
    if data != NULL:
        memcpy(&value, data, r[2])
    else:
        fetch(m, r[1], &value, r[2])
    return value


cdef uint64_t h_store(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint8_t *data
    if r[2] > 8:
        return bad(m, ILLEGAL_OPERATION, 0)
    data = resolve(m, r[1], r[2], True)
    if data == NULL or not inside(m, r[1], r[2]):
        return bad(m, BAD_ADDRESS, r[1])
    if r[2] and r[1] & (r[2] - 1):
        return bad(m, BAD_ALIGNMENT, r[1])
    memcpy(data, &r[3], r[2])
    return 0


cdef uint64_t h_copy(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint64_t n = 0
    cdef uint64_t part
    cdef uint8_t *data = resolve(m, r[1], r[3], True)
    if data == NULL or not inside(m, r[1], r[3]):
        return bad(m, BAD_ADDRESS, r[1])
    if own(r[2]):
        if not inside(m, r[2], r[3]):
            return bad(m, BAD_ADDRESS, r[2])
        fetch(m, r[2], data, r[3])
        return 0
    while n < r[3]:
        part = PAGE - ((r[2] + n) & (PAGE - 1))
        if part > r[3] - n:
            part = r[3] - n
        if not fetch(m, r[2] + n, data + n, part):
            m.fault_value = reported(m, r[1], r[2], r[3])
            return 0
        n += part
    return 0


cdef uint64_t h_bcopy(Machine *m, uint64_t *r) noexcept nogil:
    if not allocated(m, r[1], r[3]):
        return bad(m, BAD_ADDRESS, r[1])
    return h_copy(m, r)


cdef inline bint allocated(Machine *m, uint64_t address, uint64_t size) noexcept nogil:
    """Whether this is scratch memory that the clause has allocated."""
    cdef uint64_t offset = address & LOW32
    return ((address >> 32) - BASE == <uint64_t>R_SCRATCH and offset <= m.scratch_at
            and size <= m.scratch_at - offset)


cdef uint64_t reported(Machine *m, uint64_t to, uint64_t address, uint64_t size) noexcept nogil:
    """Return which unreadable address of a range DTrace reports: the one that it reads last.

    It copies records and keys from the first byte to the last. It copies to other memory of its
    own, which belongs to the kernel, from the last byte to the first if the range is lower.
    """
    cdef uint64_t region = (to >> 32) - BASE
    cdef uint64_t n = 0
    if region == <uint64_t>R_RECORD or region == <uint64_t>R_WORK or address >> 63:
        return last_unreadable(m, address, size)
    while n < size and readable(m, address + n):
        n += PAGE - ((address + n) & (PAGE - 1))
    return address + n if n < size else address


cdef uint64_t last_unreadable(Machine *m, uint64_t address, uint64_t size) noexcept nogil:
    cdef uint64_t n = size
    while n > 0 and readable(m, address + n - 1):
        n -= min(n, ((address + n - 1) & (PAGE - 1)) + 1)
    return address + n - 1 if n > 0 else address


cdef inline bint readable(Machine *m, uint64_t address) noexcept nogil:
    cdef uint8_t byte
    return m.read != NULL and m.read(m.read_data, address, &byte, 1)


cdef uint64_t h_copy_text(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint8_t *data = resolve(m, r[1], r[3], True)
    cdef uint8_t held[4096]
    cdef int64_t n
    if data == NULL or r[3] == 0 or not inside(m, r[1], r[3]):
        return bad(m, BAD_ADDRESS, r[1])
    if r[3] <= sizeof(held):  # source and destination may overlap
        n = text(m, r[2], held, r[3])
        if n < 0:
            return 0
        memcpy(data, held, n)
    else:
        n = text(m, r[2], data, r[3])
        if n < 0:
            return 0
    memset(data + n, 0, r[3] - n)
    return 0


cdef uint64_t h_key_text(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint64_t room
    cdef uint8_t *data = resolve(m, r[1], 8 + ((m.string_size + 7) & ~<uint64_t>7), True)
    cdef int64_t n
    if data == NULL:
        return bad(m, TUPLE_OVERFLOW, 0)
    n = text(m, r[2], data + 8, m.string_size)
    if n < 0:
        return r[1]
    memcpy(data, &n, 8)
    room = (<uint64_t>n + 7) & ~<uint64_t>7
    memset(data + 8 + n, 0, room - n)
    return r[1] + 8 + room


cdef uint64_t h_compare_text(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint8_t *a = m.compared[0]
    cdef uint8_t *b = m.compared[1]
    cdef uint64_t limit = m.string_size
    cdef int64_t n = text(m, r[1], a, limit) if r[1] else 0  # NULL compares like an empty string
    cdef int64_t k
    cdef int order
    if n < 0:
        return 0
    k = text(m, r[2], b, limit) if r[2] else 0
    if k < 0:
        return 0
    a[n] = 0
    b[k] = 0
    order = memcmp(a, b, min(n, k) + 1)
    return <uint64_t>(<int64_t>((order > 0) - (order < 0)))


cdef uint64_t h_allocate(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint64_t size = (r[1] + 7) & ~<uint64_t>7
    cdef uint64_t at = m.scratch_at
    if r[1] > m.region[R_SCRATCH].size or at + size > m.region[R_SCRATCH].size:
        return bad(m, NO_SCRATCH, 0)
    memset(m.region[R_SCRATCH].data + at, 0, size)
    m.scratch_at = at + size
    return address_of(R_SCRATCH, at)
