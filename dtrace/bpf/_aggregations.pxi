"""Aggregations, their keys and their buckets (included by ``_runtime.pyx``)."""

cdef int A_COUNT = Aggregate.COUNT
cdef int A_SUM = Aggregate.SUM
cdef int A_MIN = Aggregate.MIN
cdef int A_MAX = Aggregate.MAX
cdef int A_AVG = Aggregate.AVG
cdef int A_STDDEV = Aggregate.STDDEV
cdef int A_QUANTIZE = Aggregate.QUANTIZE
cdef int A_LQUANTIZE = Aggregate.LQUANTIZE
cdef int A_LLQUANTIZE = Aggregate.LLQUANTIZE
cdef int ZERO_BUCKET = layout.QUANTIZE_ZERO


cdef uint64_t llquantize_bucket(const Function *f, int64_t value) noexcept nogil:
    """Return the index of the ``llquantize()`` bucket that counts a value.

    Each range between two powers of the factor is divided into steps.
    """
    cdef int64_t factor = f.parameter[0]
    cdef int64_t low = f.parameter[1]
    cdef int64_t high = f.parameter[2]
    cdef int64_t steps = f.parameter[3]
    cdef int64_t power = 1
    cdef int64_t last, buckets, order
    cdef uint64_t base = 1
    for order in range(low):
        power *= factor
    if value < power:
        return 0
    last = power
    power *= factor
    for order in range(low, high + 1):
        buckets = steps if power > steps else power
        if value < power:
            return base + <uint64_t>((value - last) / (power / buckets))
        base += <uint64_t>(buckets - buckets / factor)
        last = power
        if power > (<int64_t>1 << 62) / factor:
            power = <int64_t>((<uint64_t>1 << 63) - 1)
        else:
            power *= factor
    return base


cdef uint64_t quantize_bucket(int64_t value) noexcept nogil:
    cdef uint64_t magnitude = <uint64_t>0 - <uint64_t>value if value < 0 else <uint64_t>value
    cdef int n = 0
    if value == 0:
        return ZERO_BUCKET
    while magnitude > 1:
        magnitude >>= 1
        n += 1
    if value < 0:
        return ZERO_BUCKET - 1 - n if n < ZERO_BUCKET else 0
    return ZERO_BUCKET + 1 + n


cdef uint64_t lquantize_bucket(const Function *f, int64_t wide) noexcept nogil:
    cdef int64_t value = <int32_t>wide
    cdef int64_t base = f.parameter[0]
    cdef int64_t step = f.parameter[1]
    cdef uint64_t levels = <uint64_t>f.parameter[2]
    cdef uint64_t level
    if value < base:
        return 0
    level = (<uint64_t>value - <uint64_t>base) / <uint64_t>step
    return level + 1 if level < levels else levels + 1


cdef void update(Function *f, int64_t *v, int64_t value, int64_t increment) noexcept nogil:
    cdef int kind = f.kind
    cdef uint64_t bucket, low, high, square, carry, magnitude
    if kind == A_COUNT:
        v[0] += 1
    elif kind == A_SUM:
        v[0] = <int64_t>(<uint64_t>v[0] + <uint64_t>value)
    elif kind == A_MIN:
        if value < v[0]:
            v[0] = value
    elif kind == A_MAX:
        if value > v[0]:
            v[0] = value
    elif kind == A_AVG:
        v[0] += 1
        v[1] = <int64_t>(<uint64_t>v[1] + <uint64_t>value)
    elif kind == A_STDDEV:
        v[0] += 1
        v[1] = <int64_t>(<uint64_t>v[1] + <uint64_t>value)
        magnitude = <uint64_t>0 - <uint64_t>value if value < 0 else <uint64_t>value
        low = magnitude & LOW32
        high = magnitude >> 32
        square = low * low
        carry = low * high  # the square contains this product twice, shifted left by 32 bits
        low = square + (carry << 33)
        high = high * high + (carry >> 31) + (low < square)
        square = <uint64_t>v[2]
        v[2] = <int64_t>(square + low)
        v[3] = <int64_t>(<uint64_t>v[3] + high + (<uint64_t>v[2] < square))
    else:
        if kind == A_QUANTIZE:
            bucket = quantize_bucket(value)
        elif kind == A_LQUANTIZE:
            bucket = lquantize_bucket(f, value)
        else:
            bucket = llquantize_bucket(f, value)
        if bucket < f.count:
            v[bucket] = <int64_t>(<uint64_t>v[bucket] + <uint64_t>increment)


cdef bint grow_entries(Machine *m) noexcept nogil:
    """Make room for more aggregation entries; return False if the host is out of memory."""
    cdef uint32_t room = m.entry_room * 2 if m.entry_room else 1024
    cdef uint32_t buckets = room * 2
    cdef uint32_t i, at
    cdef void *more = realloc(m.entry, room * sizeof(Entry))
    cdef uint32_t *table
    if more == NULL:
        return False
    m.entry = <Entry *>more
    table = <uint32_t *>malloc(buckets * sizeof(uint32_t))
    if table == NULL:
        return False
    m.entry_room = room
    memset(table, 0xFF, buckets * sizeof(uint32_t))
    for i in range(m.entry_count):
        at = m.entry[i].hash & (buckets - 1)
        m.entry[i].next = table[at]
        table[at] = i
    free(m.entry_bucket)
    m.entry_bucket = table
    m.entry_buckets = buckets
    return True


cdef uint64_t h_aggregate(Machine *m, uint64_t *r) noexcept nogil:
    cdef Function *f
    cdef uint8_t *key = NULL
    cdef uint64_t h, need, room
    cdef uint32_t e
    cdef Entry *x
    cdef void *more
    cdef int64_t *v
    if r[1] >= m.function_count:
        return bad(m, ILLEGAL_OPERATION, 0)
    f = &m.function[r[1]]
    if r[3]:
        key = resolve(m, r[2], r[3], False)
        if key == NULL:
            return bad(m, TUPLE_OVERFLOW, 0)
    h = hashed(key, r[3], r[1])
    e = NONE
    if m.entry_buckets:
        e = m.entry_bucket[h & (m.entry_buckets - 1)]
        while e != NONE:
            x = &m.entry[e]
            if (x.hash == h and x.function == r[1] and x.key_size == r[3]
                    and (r[3] == 0 or memcmp(
                        m.arena + x.at + 8 * <uint64_t>f.count, key, r[3]) == 0)):
                break
            e = x.next
    if e == NONE:
        need = 8 * <uint64_t>f.count + ((r[3] + 7) & ~<uint64_t>7)
        if f.size > m.arena_size or (
                m.arena_used + need + <uint64_t>m.entry_count * sizeof(Entry) > m.arena_size):
            m.aggregation_drops += 1
            return 0
        if m.arena_used + need > m.arena_room:
            room = max(2 * m.arena_room, m.arena_used + need, <uint64_t>65536)
            more = realloc(m.arena, room)
            if more == NULL:
                m.aggregation_drops += 1
                return 0
            m.arena = <uint8_t *>more
            m.arena_room = room
        if m.entry_count == m.entry_room and not grow_entries(m):
            m.aggregation_drops += 1
            return 0
        e = m.entry_count
        x = &m.entry[e]
        x.hash, x.function, x.key_size, x.at = h, <uint32_t>r[1], <uint32_t>r[3], m.arena_used
        x.next = m.entry_bucket[h & (m.entry_buckets - 1)]
        m.entry_bucket[h & (m.entry_buckets - 1)] = e
        m.entry_count += 1
        m.arena_used += need
        v = <int64_t *>(m.arena + x.at)
        memset(v, 0, need)
        if f.kind == A_MIN:
            v[0] = <int64_t>((<uint64_t>1 << 63) - 1)
        elif f.kind == A_MAX:
            v[0] = <int64_t>(<uint64_t>1 << 63)
        if r[3]:
            memcpy(m.arena + x.at + 8 * <uint64_t>f.count, key, r[3])
    update(f, <int64_t *>(m.arena + m.entry[e].at), <int64_t>r[4], <int64_t>r[5])
    return 0


cdef int make_functions(Machine *m, functions) except -1:
    """Note the aggregating functions: (kind, number of values, parameters[, entry size]).

    :raises ValueError: for parameters that are not allowed.
    """
    m.function_count = len(functions)
    m.function = <Function *>calloc(max(len(functions), 1), sizeof(Function))
    if m.function == NULL:
        raise MemoryError
    for n, (kind, count, parameters, *size) in enumerate(functions):
        if not 0 < count <= 1 << 20 or len(parameters) > PARAMETERS:
            raise ValueError("an aggregation may have at most 1048576 values and 4 parameters")
        check_function(kind, count, tuple(parameters))
        m.function[n].kind, m.function[n].count = kind, count
        m.function[n].size = size[0] if size else 0
        for k, parameter in enumerate(parameters):
            m.function[n].parameter[k] = parameter
    return 0


cdef int check_function(int kind, uint32_t count, tuple parameters) except -1:
    """Check that an aggregation's parameters are valid for its function."""
    good = count >= {A_AVG: 2, A_STDDEV: 4}.get(kind, 1)
    if kind == A_LQUANTIZE:
        good = len(parameters) == 3 and parameters[1] > 0 and parameters[2] >= 0
    elif kind == A_LLQUANTIZE:
        good = len(parameters) == 4
        if good:
            factor, low, high, steps = parameters
            good = (factor >= 2 and 0 <= low < high < 64 and steps >= factor
                    and factor ** (high + 1) < 1 << 63)
    elif not A_COUNT <= kind <= A_LLQUANTIZE:
        good = False
    if not good:
        raise ValueError("the parameters of an aggregation are not valid for its function")
    return 0


cdef list take_aggregations(Machine *m):
    """Return all aggregations as (number, key, values) in order of first use, and clear them."""
    cdef uint32_t e
    cdef uint32_t count, k
    cdef int64_t *v
    found = []
    for e in range(m.entry_count):
        count = m.function[m.entry[e].function].count
        v = <int64_t *>(m.arena + m.entry[e].at)
        key = (<const char *>(v + count))[: m.entry[e].key_size]
        found.append((m.entry[e].function, key, [v[k] for k in range(count)]))
    m.entry_count, m.arena_used = 0, 0
    if m.entry_buckets:
        memset(m.entry_bucket, 0xFF, m.entry_buckets * sizeof(uint32_t))
    return found
