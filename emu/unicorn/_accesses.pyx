# cython: language_level=3, boundscheck=True, cdivision=True
"""What the CPUs read and write, one access behind the other.  What happens while time stands still
(probe code) is none of it.
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

cpdef enum AccessKind:  # bits
    ACCESS_LOAD = 0
    ACCESS_STORE = 1
    ACCESS_HELD = 2  # its CPU would not have been given to another thread there

cpdef enum AccessLimit:
    ACCESS_SIZE = 48  # bytes of an entry

cdef enum:
    ACCESS_ENTRIES = 1 << 16


cdef struct AccessEntry:
    uint64_t position  # instructions before the one that does it
    uint64_t pc
    uint64_t physical
    uint64_t value  # of the first eight bytes, behind the access
    uint32_t size
    uint16_t kind
    uint16_t cpu  # or the number of the thread, where those of threads are looked at
    uint64_t open  # of one that is held, the last position before it where it was not; else its own


cdef struct AccessState:
    Clock *clock
    void *accesses
    uint64_t begun
    uint64_t index
    uint64_t pc
    uint64_t used
    bint away  # it is not looked at present
    bint shared  # the threads have one CPU
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
        return  # a device's register is nobody's memory
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
    PLACE_BITS = 3  # eight bytes are looked at as one place
    MOST_ACCESSED = 64  # bytes of an access

cdef uint32_t STORED = <uint32_t>1 << 31  # of a place's users


cdef struct PlaceUse:
    uint64_t place  # and one: 0 is no entry
    uint32_t users


cdef PlaceUse *use_of(PlaceUse *table, uint64_t mask, uint64_t place) noexcept nogil:
    cdef uint64_t i = place * <uint64_t>0x9E3779B97F4A7C15 >> 20 & mask
    while table[i].place and table[i].place != place + 1:
        i = (i + 1) & mask
    return &table[i]


cdef inline uint64_t last_place(const AccessEntry *entry) noexcept nogil:
    return (entry.physical + entry.size - 1 if entry.size else entry.physical) >> PLACE_BITS


def shared_entries(bytes entries not None):
    """Of entries, those of places that several CPUs use, one of them with a store.

    :param entries: as ``Accesses`` gives them.
    :raises ValueError: for what are none.
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
        raise ValueError("not whole entries")
    for i in range(count):
        if (all_[i].size > MOST_ACCESSED or all_[i].cpu >= MAX_CPUS
                or all_[i].physical >> 56):
            raise ValueError("not an entry")
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
    """Looks at every access to memory from now on, until it is closed.

    :param sink: is given bytes now and then, entries of ACCESS_SIZE bytes: u64 position, pc, physical
        address, value; u32 size; u16 kind (AccessKind), CPU; u64 open; in the host's order.
    :param threads: addresses of threads whose accesses are looked at; an entry has the thread's number
        in place of the CPU's.  None: those of all.
    :param nesting: of each, the physical address of a word (C int) that is not 0 while its CPU is not
        given to another thread: they share one CPU.  None: each has its own.
    :raises ValueError: for too many threads, or a word outside RAM.
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
            raise RuntimeError("accesses are looked at once")
        engine._still()
        if len(threads) > MAX_CPUS or len(nesting) not in (0, len(threads)):
            raise ValueError("too many threads, or not a word of each")
        for i, thread in enumerate(threads):
            self.s.threads[i] = thread
        for i, physical in enumerate(nesting):
            host = host_physical(&engine.clock, physical, 4)
            if host == NULL or physical % 4:
                raise ValueError("not a word of RAM")
            self.s.nesting[i] = <uint32_t *>host
        self.s.thread_count, self.s.shared = <uint32_t>len(threads), len(nesting) > 0
        self.s.clock = &engine.clock
        self.s.accesses = <void *>self
        self.engine, self.sink = engine, sink
        kinds = (HOOK_BLOCK, HOOK_CODE, HOOK_MEM_WRITE | HOOK_MEM_READ)
        calls[0], calls[1], calls[2] = <void *>access_block, <void *>access_code, <void *>access_memory
        self.open = True
        for i in range(3):
            engine._ok("look at accesses", engine.hook_add(
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
        """Whether accesses are left out for now; where that is set, a new stretch begins."""
        return bool(self.s.away)

    @away.setter
    def away(self, bint value):
        self.s.away = value
        self.s.opened = self.s.clock.instructions if self.s.clock != NULL else 0

    def flush(self):
        """Give away what there is."""
        if self.engine is None:
            raise RuntimeError("accesses that are not looked at")
        self.engine._still()
        self.give()

    def close(self):
        """Look no longer, and give away what there is; the machine stands still."""
        cdef int i
        if self.open:
            self.engine._still()
            self.open = False
            try:
                self.give()
            finally:
                for i in range(3):
                    self.engine.unhook(self.hooks[i])

    def __dealloc__(self):
        cdef int i
        if self.open:  # its hooks lead here: the engine must not run again
            for i in range(3):
                if self.hooks[i]:
                    self.engine.hook_del(self.engine.uc, self.hooks[i])
        free(self.s)
