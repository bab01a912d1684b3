# cython: language_level=3, boundscheck=True, cdivision=True
"""Listener for the path that the guest takes through its code.

It collects pieces of straight code: an address, and how many instructions were executed from there
until the guest jumped or something else began a new block.  Probe code, during which virtual time
stands still, is left out.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize

from emu.unicorn._engine cimport (
    HOOK_BLOCK,
    MAX_CPUS,
    Clock,
    Engine,
    host_physical,
    time_at,
)

cpdef enum FlowKind:
    FLOW_PIECE = 0  # value: address of a piece; count: number of instructions executed from there
    FLOW_THREAD = 1  # value: value of the watched word, starting with the next piece
    FLOW_SKEW = 2  # value: virtual time in ns minus instruction count, starting with the next piece
    FLOW_TAKEN = 3  # an exception or interrupt was delivered or emulated before the next piece

cdef enum:
    FLOW_ENTRIES = 1 << 16  # number of entries that are passed to the sink at once


cdef struct FlowEntry:
    uint64_t value
    uint32_t count
    uint32_t kind


cdef struct FlowState:
    Clock *clock
    void *flow
    uint64_t address  # start of the piece in progress
    uint64_t begun  # instruction count at the start of the piece in progress
    const uint8_t *words[MAX_CPUS]  # the watched word of each CPU, or NULL
    bint watched  # whether any word is watched
    uint64_t thread
    uint64_t skew
    uint64_t taken
    uint64_t used
    FlowEntry entries[FLOW_ENTRIES]


cdef void flow_put(FlowState *f, uint64_t value, uint32_t count, uint32_t kind) noexcept nogil:
    cdef FlowEntry *entry = &f.entries[f.used]
    entry.value, entry.count, entry.kind = value, count, kind
    f.used += 1
    if f.used == FLOW_ENTRIES:
        flow_give(f.flow)


cdef void flow_give(void *flow) noexcept with gil:
    cdef Flow it = <Flow>flow
    try:
        it.give()
    except BaseException as error:
        it.engine.failed(error)


cdef void flow_block(void *uc, uint64_t address, uint32_t size, void *data) noexcept nogil:
    """Handle a block start; ``block_hook`` has already counted the previous block."""
    cdef FlowState *f = <FlowState *>data
    cdef uint64_t now = f.clock.instructions
    cdef uint64_t thread
    if f.clock.frozen:
        return
    if now > f.begun:
        flow_put(f, f.address, <uint32_t>(now - f.begun), FLOW_PIECE)
    f.begun = now
    f.address = address
    if f.clock.taken != f.taken:
        f.taken = f.clock.taken
        flow_put(f, 0, 0, FLOW_TAKEN)
    if f.watched:
        thread = 0
        if f.words[f.clock.cpu] != NULL:
            memcpy(&thread, f.words[f.clock.cpu], sizeof(thread))
        if thread != f.thread:
            f.thread = thread
            flow_put(f, thread, 0, FLOW_THREAD)
    cdef uint64_t skew = time_at(f.clock, now) - now
    if skew != f.skew:
        f.skew = skew
        flow_put(f, f.skew, 0, FLOW_SKEW)


@cython.no_gc_clear
cdef class Flow:
    """Listener that reports the guest's path through its code until ``close`` is called.

    An entry is u64 value, u32 count, u32 kind (FlowKind) in the host's byte order (little-endian).

    :param sink: called now and then with the bytes of several entries.
    :param words: for each CPU, the physical address of eight bytes of RAM to watch, or None.
    :raises ValueError: an address is not RAM.
    """

    cdef Engine engine
    cdef FlowState *f
    cdef object sink
    cdef size_t hook
    cdef bint open

    def __cinit__(self):
        self.f = <FlowState *>calloc(1, sizeof(FlowState))
        if self.f == NULL:
            raise MemoryError

    def __init__(self, Engine engine not None, sink, words=()):
        if self.engine is not None:
            raise RuntimeError("this Flow object is already initialized")
        engine._still()
        self.f.clock = &engine.clock
        self.f.flow = <void *>self
        self.watch(engine, words)
        self.engine, self.sink = engine, sink
        self.f.begun = engine.clock.instructions
        self.f.skew = ~<uint64_t>0
        self.f.taken = engine.clock.taken
        engine._ok("collect the flow", engine.hook_add(
            engine.uc, &self.hook, HOOK_BLOCK, <void *>flow_block, self.f,
            <uint64_t>1, <uint64_t>0))
        self.open = True
        engine.flush_translations()

    cdef int watch(self, Engine engine, words) except -1:
        cdef const uint8_t *hosts[MAX_CPUS]
        cdef int i
        memset(hosts, 0, sizeof(hosts))
        if len(words) > MAX_CPUS:
            raise ValueError(f"{len(words)} watched words: at most {MAX_CPUS}, one for each CPU")
        for i in range(<int>len(words)):
            if words[i] is not None:
                hosts[i] = host_physical(&engine.clock, words[i], 8)
                if hosts[i] == NULL:
                    raise ValueError(f"watched word {words[i]:#x}: not RAM")
        memcpy(self.f.words, hosts, sizeof(hosts))
        self.f.watched = any(word is not None for word in words)
        self.f.thread = 0
        return 0

    def watch_words(self, words):
        """Replace the watched words; the machine must be stopped."""
        if self.engine is None:
            raise RuntimeError("this Flow object was not initialized")
        self.engine._still()
        self.watch(self.engine, words)

    cdef int give(self) except -1:
        cdef uint64_t used = self.f.used
        self.f.used = 0
        if used:
            self.sink(PyBytes_FromStringAndSize(<char *>self.f.entries,
                                                used * sizeof(FlowEntry)))
        return 0

    def flush(self):
        """Pass the entries up to the current position to the sink; the machine must be stopped."""
        if self.engine is None:
            raise RuntimeError("this Flow object was not initialized")
        self.engine._still()
        if self.engine.clock.instructions > self.f.begun:
            flow_put(self.f, self.f.address,
                     <uint32_t>(self.engine.clock.instructions - self.f.begun), FLOW_PIECE)
        self.f.begun = self.engine.clock.instructions
        self.give()

    def close(self):
        """Stop collecting and pass all remaining entries to the sink; the machine must not run."""
        if self.open:
            self.flush()
            self.open = False
            self.engine.unhook(self.hook)

    def __dealloc__(self):
        if self.open:  # the hook points to this object, which is about to be freed
            self.engine.hook_del(self.engine.uc, self.hook)
        free(self.f)
