"""Dynamic variables: associative arrays and thread-local variables (in ``_runtime.pyx``).

A value is in a chunk of the dynamic region, and its key follows it. Chunks in the same hash bucket
are linked.
"""


cdef inline uint64_t hashed(const uint8_t *data, uint64_t size, uint64_t seed) noexcept nogil:
    cdef uint64_t h = seed * <uint64_t>0x9E3779B97F4A7C15 + size
    cdef uint64_t word
    cdef uint64_t i = 0
    while i + 8 <= size:
        memcpy(&word, data + i, 8)
        h = (h ^ word) * <uint64_t>0xFF51AFD7ED558CCD
        h ^= h >> 32
        i += 8
    if i < size:
        word = 0
        memcpy(&word, data + i, size - i)
        h = (h ^ word) * <uint64_t>0xFF51AFD7ED558CCD
        h ^= h >> 32
    return h


cdef inline uint8_t *value_of(Machine *m, uint32_t chunk) noexcept nogil:
    """Return a pointer to the value in a variable's chunk; the variable's key follows the value."""
    return m.region[R_DYNAMIC].data + <uint64_t>chunk * m.chunk_size


cdef uint32_t find_chunk(Machine *m, uint64_t variable, const uint8_t *key, uint64_t size,
                         uint64_t h) noexcept nogil:
    cdef uint32_t c
    cdef Chunk *x
    if m.bucket_count == 0:
        return NONE
    c = m.bucket[h & (m.bucket_count - 1)]
    while c != NONE:
        x = &m.chunk[c]
        if (x.hash == h and x.variable == variable and x.key_size == size
                and (size == 0
                     or memcmp(value_of(m, c) + m.variable[variable].room, key, size) == 0)):
            return c
        c = x.next
    return NONE


cdef bint key_at(Machine *m, uint64_t *r, uint8_t *held, const uint8_t **key,
                 uint64_t *size) noexcept nogil:
    """Get a variable's key from a helper's arguments; if it is thread-local, add the thread."""
    cdef uint8_t *data = NULL
    cdef uint64_t thread
    if r[1] >= m.variable_count:
        bad(m, ILLEGAL_OPERATION, 0)
        return False
    if r[3]:
        data = resolve(m, r[2], r[3], False)
        if data == NULL or r[3] > TEXT:
            bad(m, TUPLE_OVERFLOW, 0)
            return False
    key[0] = data
    size[0] = r[3]
    if m.variable[r[1]].thread:
        if r[3] > 4096:
            bad(m, TUPLE_OVERFLOW, 0)
            return False
        thread = thread_key(m)
        memcpy(held, &thread, 8)
        if r[3]:
            memcpy(held + 8, data, r[3])
        key[0] = held
        size[0] = r[3] + 8
    return True


cdef uint64_t h_find(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint8_t held[4104]
    cdef const uint8_t *key
    cdef uint64_t size
    cdef uint32_t c
    if not key_at(m, r, held, &key, &size):
        return 0
    c = find_chunk(m, r[1], key, size, hashed(key, size, r[1]))
    return 0 if c == NONE else address_of(R_DYNAMIC, <uint64_t>c * m.chunk_size)


cdef void drop_chunk(Machine *m, uint32_t c) noexcept nogil:
    cdef uint32_t *link = &m.bucket[m.chunk[c].hash & (m.bucket_count - 1)]
    while link[0] != c:
        link = &m.chunk[link[0]].next
    link[0] = m.chunk[c].next
    m.chunk[c].used = False
    m.chunk[c].next = m.chunk_free
    m.chunk_free = c


cdef uint64_t h_assign(Machine *m, uint64_t *r) noexcept nogil:
    """Assign a value to a dynamic variable; zero or a null string frees the variable's chunk."""
    cdef uint8_t held[4104]
    cdef const uint8_t *key
    cdef uint64_t size, h
    cdef uint64_t again[6]
    cdef uint32_t c
    cdef Chunk *x
    cdef Variable *v
    if not key_at(m, r, held, &key, &size):
        return 0
    v = &m.variable[r[1]]
    h = hashed(key, size, r[1])
    c = find_chunk(m, r[1], key, size, h)
    if r[4] == 0:
        if c != NONE:
            drop_chunk(m, c)
        return 0
    if c == NONE:
        if m.chunk_free == NONE or v.room + size > m.chunk_size:
            m.dynamic_drops += 1
            return 0
        c = m.chunk_free
        x = &m.chunk[c]
        m.chunk_free = x.next
        x.hash, x.variable, x.key_size, x.used = h, <uint32_t>r[1], <uint32_t>size, True
        x.next = m.bucket[h & (m.bucket_count - 1)]
        m.bucket[h & (m.bucket_count - 1)] = c
        memset(value_of(m, c), 0, v.room)
        if size:
            memcpy(value_of(m, c) + v.room, key, size)
    if v.text:
        again[1], again[2], again[3] = address_of(R_DYNAMIC, <uint64_t>c * m.chunk_size), r[4], v.size
        if v.text == 2:
            h_copy(m, again)
        else:
            h_copy_text(m, again)
    else:
        memcpy(value_of(m, c), &r[4], min(v.size, 8))
    return 0


cdef int make_variables(Machine *m, variables, uint64_t dynamic, dict sizes) except -1:
    """Create the table of variables and allocate chunks for their values.

    :param dynamic: bytes for values and keys.
    :param sizes: the sizes of the regions; that of the dynamic region is set.
    """
    cdef uint32_t i
    m.variable_count = len(variables)
    m.variable = <Variable *>calloc(max(len(variables), 1), sizeof(Variable))
    if m.variable == NULL:
        raise MemoryError
    largest = 0
    for n, (size, text_, thread, key_size) in enumerate(variables):
        m.variable[n].size, m.variable[n].text, m.variable[n].thread = size, text_, thread
        m.variable[n].room = (size + 7) // 8 * 8
        largest = max(largest, m.variable[n].room + key_size + 8 * thread)
    m.chunk_free = NONE
    if not largest:
        return 0
    if largest > 1 << 20:
        raise ValueError("a variable and its key may have at most 1 MiB")
    m.chunk_size = (largest + 15) & ~15
    m.chunk_count = max(1, min(dynamic // m.chunk_size, (1 << 31) // m.chunk_size))
    m.bucket_count = 1
    while m.bucket_count < m.chunk_count:
        m.bucket_count *= 2
    m.chunk = <Chunk *>calloc(m.chunk_count, sizeof(Chunk))
    m.bucket = <uint32_t *>malloc(m.bucket_count * sizeof(uint32_t))
    if m.chunk == NULL or m.bucket == NULL:
        raise MemoryError
    memset(m.bucket, 0xFF, m.bucket_count * sizeof(uint32_t))
    for i in range(m.chunk_count):
        m.chunk[i].next = i + 1 if i + 1 < m.chunk_count else NONE
    m.chunk_free = 0
    sizes[Region.DYNAMIC] = int(m.chunk_count) * int(m.chunk_size)
    return 0
