"""Records: the trace buffer, ring buffers and speculations (included by ``_runtime.pyx``)."""

cdef int P_FILL = Policy.FILL
cdef int P_RING = Policy.RING


cdef bint room_for(Machine *m, uint64_t size, uint64_t counted) noexcept nogil:
    """Make room for a record; return False if the record must be dropped.

    :param counted: the record's size as DTrace counts it.
    """
    if m.policy != P_RING:
        if (m.filled or m.counted + counted > m.buffer_size
                or m.buffer_used + size > m.buffer_room):
            m.drops += 1
            if m.policy == P_FILL:
                m.filled = True
                m.stopped = True
            return False
        return True
    if counted > m.buffer_size or size > m.buffer_room:
        m.drops += 1
        return False
    while m.counted + counted > m.buffer_size:
        drop_oldest(m)
    if m.buffer_used + size > m.buffer_room:
        while m.wrapped:  # drop the records that were written before the previous wrap-around
            drop_oldest(m)
        m.buffer_end = m.buffer_used
        m.buffer_used = 0
        m.wrapped = m.buffer_begin < m.buffer_end
        if not m.wrapped:
            m.buffer_begin = 0
    while m.wrapped and m.buffer_begin < m.buffer_used + size:
        drop_oldest(m)
    return True


cdef void drop_oldest(Machine *m) noexcept nogil:
    """Drop the oldest record of a ring buffer."""
    cdef uint64_t head[3]
    if m.buffer_begin >= m.buffer_used and not m.wrapped:
        m.counted = 0
        return
    memcpy(head, m.buffer + m.buffer_begin, HEAD)
    m.buffer_begin += head[0] >> 32
    m.counted -= min(head[2] & LOW32, m.counted)
    if m.wrapped and m.buffer_begin >= m.buffer_end:  # the next record is at the buffer's start
        m.wrapped = False
        m.buffer_begin = 0


cdef uint64_t h_record(Machine *m, uint64_t *r) noexcept nogil:
    cdef Speculated *s
    cdef uint64_t size
    m.record_open = False
    if m.region[R_RECORD].size < HEAD + 8 or r[2] > m.region[R_RECORD].size - HEAD - 8:
        return bad(m, ILLEGAL_OPERATION, 0)
    size = HEAD + ((r[2] + 7) & ~<uint64_t>7)
    if m.speculating:
        s = &m.speculated[m.speculating - 1]
        if s.counted + r[3] > m.speculation_size or s.used + size > m.speculation_room:
            m.speculation_drops += 1
            return 0
    elif not room_for(m, size, r[3]):
        return 0
    m.record_counted = r[3]
    m.record_clause, m.record_size, m.record_open = r[1], size, True
    memset(m.region[R_RECORD].data, 0, size)
    return address_of(R_RECORD, HEAD)


cdef uint64_t h_commit(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint8_t *record = m.region[R_RECORD].data
    cdef uint64_t head
    cdef Speculated *s
    if not m.record_open:
        return 0
    m.record_open = False
    head = m.record_clause & LOW32 | m.record_size << 32
    memcpy(record, &head, 8)
    memcpy(record + 8, m.region[R_CONTEXT].data + CONTEXT_TIMESTAMP, 8)
    head = m.record_counted & LOW32 | (0 if m.clock == NULL else <uint64_t>m.clock.cpu << 32)
    memcpy(record + 16, &head, 8)
    if m.speculating:
        s = &m.speculated[m.speculating - 1]
        if s.data == NULL:
            s.data = <uint8_t *>malloc(m.speculation_room)
        if s.data == NULL:
            m.speculation_drops += 1
            return 0
        memcpy(s.data + s.used, record, m.record_size)
        s.used += m.record_size
        s.counted += m.record_counted
        return 0
    memcpy(m.buffer + m.buffer_used, record, m.record_size)
    m.buffer_used += m.record_size
    m.counted += m.record_counted
    return 0


cdef uint64_t h_speculation(Machine *m, uint64_t *r) noexcept nogil:
    cdef uint32_t i
    for i in range(m.speculation_count):
        if m.speculated[i].state == 0:
            m.speculated[i].state = 1
            m.speculated[i].used = 0
            m.speculated[i].counted = 0
            return i + 1
    m.speculation_unavailable += 1
    return 0


cdef Speculated *speculation(Machine *m, uint64_t number) noexcept nogil:
    if not 0 < number <= m.speculation_count or m.speculated[number - 1].state == 0:
        return NULL
    return &m.speculated[number - 1]


cdef uint64_t h_speculate(Machine *m, uint64_t *r) noexcept nogil:
    """Direct the clause's record to a speculation and return 1, or return 0 to end the clause."""
    if speculation(m, r[1]) == NULL:
        return 0
    if m.policy != P_RING and m.counted + r[2] > m.buffer_size:
        m.drops += 1
        return 0
    m.record_open = False  # drop the record that was opened for another destination
    m.speculating = r[1]
    return 1


cdef uint64_t h_discard_speculation(Machine *m, uint64_t *r) noexcept nogil:
    cdef Speculated *s = speculation(m, r[1])
    if r[1] > m.speculation_count:
        return bad(m, ILLEGAL_OPERATION, 0)
    if m.speculating and m.speculating == r[1]:
        m.record_open = False  # also discard the record of the running clause
    if s != NULL:
        s.state = 0
        s.used = 0
    return 0


cdef uint64_t h_commit_speculation(Machine *m, uint64_t *r) noexcept nogil:
    cdef Speculated *s = speculation(m, r[1])
    cdef uint64_t at = 0
    cdef uint64_t head[3]
    m.record_open = False
    if r[1] > m.speculation_count:
        return bad(m, ILLEGAL_OPERATION, 0)
    if s == NULL:
        return 0
    while at < s.used:
        memcpy(head, s.data + at, HEAD)
        if room_for(m, head[0] >> 32, head[2] & LOW32):
            memcpy(m.buffer + m.buffer_used, s.data + at, head[0] >> 32)
            m.buffer_used += head[0] >> 32
            m.counted += head[2] & LOW32
        at += head[0] >> 32
    s.state = 0
    s.used = 0
    return 0


cdef list take_records(Machine *m):
    """Return all records as (clause, CPU number, payload, time), oldest first; clear the buffer."""
    cdef uint64_t head[3]
    found = []
    spans = [(m.buffer_begin, m.buffer_used)]
    if m.wrapped:
        spans = [(m.buffer_begin, m.buffer_end), (0, m.buffer_used)]
    for begin, end in spans:
        at = begin
        while at < end:
            memcpy(head, m.buffer + <uint64_t>at, HEAD)
            size = head[0] >> 32
            found.append((head[0] & LOW32, head[2] >> 32,
                          (<const char *>m.buffer)[<uint64_t>at + HEAD : <uint64_t>at + <uint64_t>size],
                          head[1]))
            at += size
    m.buffer_used, m.buffer_begin, m.buffer_end, m.wrapped = 0, 0, 0, False
    m.counted = 0
    return found
