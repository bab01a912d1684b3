# cython: language_level=3, boundscheck=True, cdivision=True
"""Listener for the memory accesses of all CPUs, in the order in which they happen.

Accesses of probe code, during which virtual time stands still, are left out.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from emu.unicorn._engine cimport (
    HOOK_BLOCK,
    HOOK_CODE,
    HOOK_MEM_READ,
    HOOK_MEM_WRITE,
    MAX_CPUS,
    UC_MEM_WRITE,
    Clock,
    Engine,
    host_physical,
    interruptible,
)

cpdef enum AccessKind:  # bit flags
    ACCESS_LOAD = 0
    ACCESS_STORE = 1
    ACCESS_HELD = 2  # the CPU could not have switched to another thread at this access

cpdef enum AccessLimit:
    ACCESS_SIZE = 48  # size of an entry in bytes

cdef enum:
    ACCESS_ENTRIES = 1 << 16


cdef struct AccessEntry:
    uint64_t position  # instruction count before the accessing instruction
    uint64_t pc
    uint64_t physical
    uint64_t value  # first eight bytes at the accessed address, after the access
    uint32_t size
    uint16_t kind
    uint16_t cpu  # CPU number, or thread number if threads are observed
    uint64_t open  # position of the latest access without ACCESS_HELD, possibly of this access


cdef struct AccessState:
    Clock *clock
    void *accesses
    uint64_t begun
    uint64_t index
    uint64_t pc
    uint64_t used
    bint away  # whether observation is suspended
    bint shared  # whether the threads share one CPU
    uint32_t thread_count
    uint64_t threads[MAX_CPUS]
    uint32_t *nesting[MAX_CPUS]
    uint64_t opened
    AccessEntry entries[ACCESS_ENTRIES]


cdef void access_block(void *uc, uint64_t address, uint32_t size, void *data) noexcept nogil:
    cdef AccessState *s = <AccessState *>data
    s.begun, s.index = s.clock.instructions, 0


cdef void access_code(void *uc, uint64_t address, uint32_t size, void *data) noexcept nogil:
    cdef AccessState *s = <AccessState *>data
    s.pc = address
    s.index += 1


cdef void access_memory(void *uc, int kind, uint64_t address, int size, int64_t value, void *data
                       ) noexcept nogil:
    cdef AccessState *s = <AccessState *>data
    cdef AccessEntry *entry
    cdef uint8_t *host
    cdef uint64_t thread, position = s.begun + s.index - 1
    cdef uint32_t who = s.clock.cpu
    cdef bint held = False
    if s.clock.frozen or s.index == 0 or s.away:
        return
    if s.thread_count:
        thread = s.clock.thread_word[0] if s.clock.thread_word != NULL else 0
        who = 0
        while who < s.thread_count and s.threads[who] != thread:
            who += 1
        if who == s.thread_count:
            return
        if s.shared:
            held = ((s.nesting[who] != NULL and s.nesting[who][0] != 0)
                    or not interruptible(s.clock))
            if not held:
                s.opened = position
    host = host_physical(s.clock, address, <uint64_t>size)
    if host == NULL:
        return  # the address belongs to a device, not to memory
    entry = &s.entries[s.used]
    entry.position, entry.pc, entry.physical = position, s.pc, address
    entry.size, entry.cpu = <uint32_t>size, <uint16_t>who
    entry.kind = ACCESS_STORE if kind == UC_MEM_WRITE else ACCESS_LOAD
    if held:
        entry.kind |= ACCESS_HELD
    entry.value = <uint64_t>value
    entry.open = s.opened if held else position
    if kind != UC_MEM_WRITE:
        entry.value = 0
        memcpy(&entry.value, host, <size_t>(size if size < 8 else 8))
    s.used += 1
    if s.used == ACCESS_ENTRIES:
        access_give(s.accesses)


cdef void access_give(void *accesses) noexcept with gil:
    cdef Accesses it = <Accesses>accesses
    try:
        it.give()
    except BaseException as error:
        it.engine.failed(error)


cdef enum:
    PLACE_BITS = 3  # log2 of the size of a memory location in bytes
    MOST_ACCESSED = 64  # maximum size of an access in bytes

cdef uint32_t STORED = <uint32_t>1 << 31  # flag in ``PlaceUse.users``: at least one store


cdef struct PlaceUse:
    uint64_t place  # index of the location plus 1, or 0 in a free entry
    uint32_t users


cdef PlaceUse *use_of(PlaceUse *table, uint64_t mask, uint64_t place) noexcept nogil:
    cdef uint64_t i = place * <uint64_t>0x9E3779B97F4A7C15 >> 20 & mask
    while table[i].place and table[i].place != place + 1:
        i = (i + 1) & mask
    return &table[i]


cdef inline uint64_t last_place(const AccessEntry *entry) noexcept nogil:
    return (entry.physical + entry.size - 1 if entry.size else entry.physical) >> PLACE_BITS


def shared_entries(bytes entries not None):
    """Return the entries for memory locations that several CPUs access and at least one CPU writes.

    :param entries: bytes that an ``Accesses`` object passed to its sink.
    :raises ValueError: malformed entries.
    """
    cdef uint64_t count = <uint64_t>len(entries) // sizeof(AccessEntry)
    cdef const AccessEntry *all_ = <const AccessEntry *>PyBytes_AS_STRING(entries)
    cdef uint64_t size = 64
    cdef uint64_t i, place, last, used, places = 0
    cdef uint32_t users
    cdef PlaceUse *table
    cdef PlaceUse *use
    cdef AccessEntry *kept
    if len(entries) % sizeof(AccessEntry):
        raise ValueError(f"{len(entries)} bytes: not a whole number of access entries")
    for i in range(count):
        if (all_[i].size > MOST_ACCESSED or all_[i].cpu >= MAX_CPUS
                or all_[i].physical >> 56):
            raise ValueError(f"entry {i}: not a valid access entry")
        places += last_place(&all_[i]) - (all_[i].physical >> PLACE_BITS) + 1
    while size < 2 * places:
        size *= 2
    table = <PlaceUse *>calloc(size, sizeof(PlaceUse))
    kept = <AccessEntry *>calloc(count + 1, sizeof(AccessEntry))
    if table == NULL or kept == NULL:
        free(table)
        free(kept)
        raise MemoryError
    used = 0
    with nogil:
        for i in range(count):
            last = last_place(&all_[i])
            place = all_[i].physical >> PLACE_BITS
            while place <= last:
                use = use_of(table, size - 1, place)
                use.place = place + 1
                use.users |= <uint32_t>1 << all_[i].cpu
                if all_[i].kind & ACCESS_STORE:
                    use.users |= STORED
                place += 1
        for i in range(count):
            last = last_place(&all_[i])
            place = all_[i].physical >> PLACE_BITS
            while place <= last:
                users = use_of(table, size - 1, place).users
                if users & STORED and users & ~STORED & (users & ~STORED) - 1:
                    kept[used] = all_[i]
                    used += 1
                    break
                place += 1
    found = PyBytes_FromStringAndSize(<char *>kept, used * sizeof(AccessEntry))
    free(table)
    free(kept)
    return found


@cython.no_gc_clear
cdef class Accesses:
    """Listener that reports every memory access until ``close`` is called.

    An entry has ACCESS_SIZE bytes in the host's byte order: u64 position, pc, physical address,
    value; u32 size; u16 kind (AccessKind), CPU; u64 open.

    :param sink: called now and then with the bytes of several entries.
    :param threads: addresses of the threads to observe; their entries contain the thread's number
        in place of the CPU's. Empty: observe everything.
    :param nesting: for each thread, the physical address of a C int that is nonzero while its CPU
        cannot switch to another thread; the threads share one CPU. Empty: each has its own CPU.
    :raises ValueError: too many threads, or a word outside RAM.
    """

    cdef Engine engine
    cdef AccessState *s
    cdef object sink
    cdef size_t hooks[3]
    cdef bint open

    def __cinit__(self):
        self.s = <AccessState *>calloc(1, sizeof(AccessState))
        if self.s == NULL:
            raise MemoryError

    def __init__(self, Engine engine not None, sink, threads=(), nesting=()):
        cdef void *calls[3]
        cdef int i
        cdef uint8_t *host
        if self.engine is not None:
            raise RuntimeError("this Accesses object is already initialized")
        engine._still()
        if len(threads) > MAX_CPUS or len(nesting) not in (0, len(threads)):
            raise ValueError(f"at most {MAX_CPUS} threads, with a nesting word for each or none")
        for i, thread in enumerate(threads):
            self.s.threads[i] = thread
        for i, physical in enumerate(nesting):
            host = host_physical(&engine.clock, physical, 4)
            if host == NULL or physical % 4:
                raise ValueError(f"nesting word {physical:#x}: not an aligned 4-byte word of RAM")
            self.s.nesting[i] = <uint32_t *>host
        self.s.thread_count, self.s.shared = <uint32_t>len(threads), len(nesting) > 0
        self.s.clock = &engine.clock
        self.s.accesses = <void *>self
        self.engine, self.sink = engine, sink
        kinds = (HOOK_BLOCK, HOOK_CODE, HOOK_MEM_WRITE | HOOK_MEM_READ)
        calls[0], calls[1], calls[2] = <void *>access_block, <void *>access_code, <void *>access_memory
        self.open = True
        engine.clock.observed += 1
        for i in range(3):
            engine._ok("observe accesses", engine.hook_add(
                engine.uc, &self.hooks[i], kinds[i], calls[i], self.s, <uint64_t>1, <uint64_t>0))
        engine.flush_translations()

    cdef int give(self) except -1:
        cdef uint64_t used = self.s.used
        self.s.used = 0
        if used:
            self.sink(PyBytes_FromStringAndSize(<char *>self.s.entries, used * sizeof(AccessEntry)))
        return 0

    @property
    def away(self):
        """Whether observation is suspended; setting it moves ``open`` to the current position."""
        return bool(self.s.away)

    @away.setter
    def away(self, bint value):
        self.s.away = value
        self.s.opened = self.s.clock.instructions if self.s.clock != NULL else 0

    def flush(self):
        """Pass the collected entries to the sink."""
        if self.engine is None:
            raise RuntimeError("this Accesses object was not initialized")
        self.engine._still()
        self.give()

    def close(self):
        """Stop observing and pass the remaining entries to the sink; the machine must not run."""
        cdef int i
        if self.open:
            self.engine._still()
            self.open = False
            self.engine.clock.observed -= 1
            try:
                self.give()
            finally:
                for i in range(3):
                    self.engine.unhook(self.hooks[i])

    def __dealloc__(self):
        cdef int i
        if self.open:  # the hooks point to this object, which is about to be freed
            self.engine.clock.observed -= 1
            for i in range(3):
                if self.hooks[i]:
                    self.engine.hook_del(self.engine.uc, self.hooks[i])
        free(self.s)
