# cython: language_level=3, boundscheck=True, cdivision=True
"""Watchpoints on physical memory.

Stores are detected when Unicorn executes them, even if they do not change the value.  Other writes
(DC ZVA, a page walk that sets bits of an entry, a device) are detected when the next block
starts, and only if they have changed the bytes.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

cimport cython

from emu.unicorn._engine cimport (
    HOOK_BLOCK,
    HOOK_MEM_READ,
    HOOK_MEM_WRITE,
    Clock,
    Engine,
    Region,
)

cpdef enum WatchLimit:
    MAX_WATCHED = 64  # maximum number of watched bytes

cdef enum:
    LONGEST_STORE = 64


cdef struct WatchState:
    Clock *clock
    uint64_t physical
    uint64_t size
    const uint8_t *host
    uint8_t known[MAX_WATCHED]
    uint64_t at_block  # instruction count at the start of the current block
    uint64_t writes
    # The last write was made by one of the instructions numbered [low, high), counted from 0.
    uint64_t low
    uint64_t high
    # The first write was made by one of the instructions numbered [first_low, first_high).
    uint64_t first_low
    uint64_t first_high
    bint stores
    bint loads


cdef void seen(WatchState *w, uint64_t low, uint64_t high) noexcept nogil:
    if not w.writes:
        w.first_low, w.first_high = low, high
    w.writes += 1
    w.low, w.high = low, high


cdef void noticed(WatchState *w, uint64_t low, uint64_t high) noexcept nogil:
    if w.stores:
        seen(w, low, high)
    memcpy(w.known, w.host, w.size)


cdef void watch_store(void *uc, int kind, uint64_t address, int size, int64_t value, void *data
                      ) noexcept nogil:
    """Handle a store (or a load, if loads are watched) before it is executed."""
    cdef WatchState *w = <WatchState *>data
    if address < w.physical + w.size and address + <uint64_t>size > w.physical:
        seen(w, w.clock.instructions, w.clock.instructions + w.clock.count)


cdef void watch_block(void *uc, uint64_t address, uint32_t size, void *data) noexcept nogil:
    """Handle a block start; ``block_hook`` has already counted the previous block."""
    cdef WatchState *w = <WatchState *>data
    if memcmp(w.known, w.host, w.size) != 0:
        if w.writes and w.high > w.at_block and not w.loads:
            memcpy(w.known, w.host, w.size)  # this write was already reported
        else:
            noticed(w, w.at_block, w.clock.instructions)
    w.at_block = w.clock.instructions


@cython.no_gc_clear
cdef class WriteWatch:
    """Watchpoint on a range of RAM, active until ``close`` is called.

    :param physical: physical address of the watched bytes.
    :param size: 1 to 64 bytes, within one page.
    :param stores: whether to detect stores.
    :param loads: whether to detect loads.
    :raises ValueError: the range is not RAM, too large, or spans two pages.
    """

    cdef Engine engine
    cdef WatchState w
    cdef size_t store_hook
    cdef size_t block_hook_
    cdef bint open

    def __cinit__(self):
        memset(&self.w, 0, sizeof(WatchState))

    def __init__(self, Engine engine not None, uint64_t physical, uint64_t size,
                 bint stores=True, bint loads=False):
        cdef int i
        cdef Region *r
        if self.engine is not None:
            raise RuntimeError("this watchpoint is already initialized")
        if not 0 < size <= MAX_WATCHED or (physical & 4095) + size > 4096:
            raise ValueError(f"{size} bytes at {physical:#x}: 1 to 64 on one page can be watched")
        engine._still()
        for i in range(engine.clock.region_count):
            r = &engine.clock.regions[i]
            if (r.physical <= physical and physical - r.physical < r.size
                    and size <= r.size - (physical - r.physical)):
                self.w.host = r.host + (physical - r.physical)
        if self.w.host == NULL:
            raise ValueError(f"physical {physical:#x}: not RAM")
        self.engine = engine
        self.w.clock = &engine.clock
        self.w.physical, self.w.size = physical, size
        self.w.stores, self.w.loads = stores, loads
        self.w.at_block = engine.clock.instructions
        memcpy(self.w.known, self.w.host, size)
        engine._ok("watch stores", engine.hook_add(
            engine.uc, &self.store_hook, (HOOK_MEM_WRITE if stores else 0) | (
                HOOK_MEM_READ if loads else 0), <void *>watch_store, &self.w,
            <uint64_t>max(physical, LONGEST_STORE) - LONGEST_STORE, physical + size))
        engine._ok("watch blocks", engine.hook_add(
            engine.uc, &self.block_hook_, HOOK_BLOCK, <void *>watch_block, &self.w,
            <uint64_t>1, <uint64_t>0))
        self.open = True
        engine.clock.observed += 1
        engine.flush_translations()

    def close(self):
        """Stop watching."""
        if self.open:
            self.engine._still()
            self.open = False
            self.engine.clock.observed -= 1
            self.engine.unhook(self.store_hook)
            self.engine.unhook(self.block_hook_)

    def __dealloc__(self):
        if self.open:  # the hooks point to this object, which is about to be freed
            self.engine.clock.observed -= 1
            self.engine.hook_del(self.engine.uc, self.store_hook)
            self.engine.hook_del(self.engine.uc, self.block_hook_)

    def look(self):
        """Detect writes since the start of the last block; the machine must be stopped."""
        if self.engine is None:
            raise RuntimeError("this watchpoint was not initialized")
        watch_block(NULL, 0, 0, &self.w)

    def forget(self):
        """Ignore changes made by the host since the last check."""
        if self.engine is None:
            raise RuntimeError("this watchpoint was not initialized")
        memcpy(self.w.known, self.w.host, self.w.size)

    @property
    def writes(self):
        """Number of detected accesses."""
        return self.w.writes

    @property
    def first(self):
        """Position of the first detected access, as (low, high); see ``last``."""
        return self.w.first_low, self.w.first_high

    @property
    def last(self):
        """Position of the most recent detected access, as (low, high).

        The access was made by one of the instructions numbered [low, high), counted from 0.
        """
        return self.w.low, self.w.high
