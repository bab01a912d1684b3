"""Table of known blocks by the ``code_key`` of their address (included by ``_engine.pyx``)."""


cdef inline uint64_t block_hash(uint64_t address, uint32_t size) noexcept nogil:
    cdef uint64_t h = (address ^ (<uint64_t>size << 48)) * <uint64_t>0x9E3779B97F4A7C15
    return h >> 20


cdef BlockCount *table_entry(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    cdef uint64_t i = block_hash(address, size) & c.table_mask
    while c.table[i].count:
        if c.table[i].address == address and c.table[i].size == size:
            return &c.table[i]
        i = (i + 1) & c.table_mask
    return NULL


cdef inline uint32_t table_find(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    cdef BlockCount *entry = &c.table[block_hash(address, size) & c.table_mask]
    if entry.address != address or entry.size != size:
        entry = table_entry(c, address, size)
    return entry.count if entry != NULL else 0


cdef int table_put(Clock *c, uint64_t address, uint32_t size, uint32_t count) noexcept nogil:
    """Add a block to the table or replace its entry, with an unknown kind of block end."""
    cdef uint64_t i, j, old_size
    cdef BlockCount *old
    if c.table_used * 2 > c.table_mask:
        old = c.table
        old_size = c.table_mask + 1
        c.table = <BlockCount *>calloc(old_size * 2, sizeof(BlockCount))
        if c.table == NULL:
            c.table = old
            return -1
        c.table_mask = old_size * 2 - 1
        c.table_used = 0
        for j in range(old_size):
            if old[j].count:
                i = block_hash(old[j].address, old[j].size) & c.table_mask
                while c.table[i].count:
                    i = (i + 1) & c.table_mask
                c.table[i] = old[j]
                c.table_used += 1
        free(old)
    i = block_hash(address, size) & c.table_mask
    while c.table[i].count:
        if c.table[i].address == address and c.table[i].size == size:
            c.table[i].count = count
            c.table[i].end = END_UNKNOWN
            c.table[i].trapped = TRAPPED_UNKNOWN
            c.table[i].yields = YIELDS_UNKNOWN
            return 0
        i = (i + 1) & c.table_mask
    c.table[i].address = address
    c.table[i].size = size
    c.table[i].count = count
    c.table[i].end = END_UNKNOWN
    c.table[i].trapped = TRAPPED_UNKNOWN
    c.table[i].yields = YIELDS_UNKNOWN
    c.table_used += 1
    return 0
