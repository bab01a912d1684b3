# cython: language_level=3, boundscheck=True, cdivision=True
"""The way that the guest takes through its code.

Collected are pieces of straight code: an address, and how many instructions from there on were
executed before the guest went on elsewhere, or something made it begin a new block.  What happens
while time stands still (probe code) is none of it.
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
    FLOW_PIECE = 0  # value: an address; count: instructions
    FLOW_THREAD = 1  # value: what the watched word holds from here on
    FLOW_SKEW = 2  # value: virtual nanoseconds that are beyond the instructions, from here on
    FLOW_TAKEN = 3  # an exception or an interrupt was delivered here, or answered

cdef enum:
    FLOW_ENTRIES = 1 << 16  # collected before they are given away


cdef struct FlowEntry:
    uint64_t value
    uint32_t count
    uint32_t kind


cdef struct FlowState:
    Clock *clock
    void *flow
    uint64_t address  # of the piece in progress
    uint64_t begun  # instructions at its start
    const uint8_t *words[MAX_CPUS]  # of each CPU, watched; NULL: nothing is
    bint watched  # some word is
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
    """A block begins; ``block_hook`` has counted the one before it."""
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
    """Collects the flow of the guest from now on, until it is closed.

    :param sink: is given bytes now and then: entries of u64 value, u32 count, u32 kind (FlowKind),
        in the host's order (little-endian).
    :param words: of each CPU, the physical address of eight bytes of RAM that are looked at; None:
        none are.
    :raises ValueError: when that is not RAM.
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
            raise RuntimeError("a flow is collected once")
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
            raise ValueError("more words than CPUs")
        for i in range(<int>len(words)):
            if words[i] is not None:
                hosts[i] = host_physical(&engine.clock, words[i], 8)
                if hosts[i] == NULL:
                    raise ValueError("not RAM")
        memcpy(self.f.words, hosts, sizeof(hosts))
        self.f.watched = any(word is not None for word in words)
        self.f.thread = 0
        return 0

    def watch_words(self, words):
        """Look at other words from now on; the machine stands still."""
        if self.engine is None:
            raise RuntimeError("a flow that is not collected")
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
        """Give away what there is, up to where the machine stands still."""
        if self.engine is None:
            raise RuntimeError("a flow that is not collected")
        self.engine._still()
        if self.engine.clock.instructions > self.f.begun:
            flow_put(self.f, self.f.address,
                     <uint32_t>(self.engine.clock.instructions - self.f.begun), FLOW_PIECE)
        self.f.begun = self.engine.clock.instructions
        self.give()

    def close(self):
        """Collect no longer, and give away what there is; the machine stands still."""
        if self.open:
            self.flush()
            self.open = False
            self.engine.unhook(self.hook)

    def __dealloc__(self):
        if self.open:  # its hook leads here: the engine must not run again
            self.engine.hook_del(self.engine.uc, self.hook)
        free(self.f)
