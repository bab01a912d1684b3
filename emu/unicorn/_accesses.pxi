"""What the CPUs read and write, one access behind the other; part of the engine (``_engine.pyx`` includes
it).  What happens while time stands still (probe code) is none of it."""

cpdef enum AccessKind:
    ACCESS_LOAD = 0
    ACCESS_STORE = 1

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
    uint16_t cpu
    uint64_t thread  # struct thread *, where it is known


cdef struct AccessState:
    Clock *clock
    void *accesses
    uint64_t begun
    uint64_t index
    uint64_t pc
    uint64_t used
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
    if s.clock.frozen or s.index == 0:
        return
    entry = &s.entries[s.used]
    entry.position, entry.pc, entry.physical = s.begun + s.index - 1, s.pc, address
    entry.size, entry.cpu = <uint32_t>size, <uint16_t>s.clock.cpu
    entry.kind = ACCESS_STORE if kind == UC_MEM_WRITE else ACCESS_LOAD
    entry.value = <uint64_t>value
    entry.thread = s.clock.thread_word[0] if s.clock.thread_word != NULL else 0
    if kind != UC_MEM_WRITE:
        entry.value = 0
        host = host_physical(s.clock, address, <uint64_t>size)
        if host == NULL:
            return  # a device's register is nobody's memory
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


@cython.no_gc_clear
cdef class Accesses:
    """Looks at every access to memory from now on, until it is closed.

    :param sink: is given bytes now and then, entries of ACCESS_SIZE bytes: u64 position, pc, physical
        address, value; u32 size; u16 kind (AccessKind), CPU; u64 thread; in the host's order.
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

    def __init__(self, Engine engine not None, sink):
        cdef void *calls[3]
        cdef int i
        if self.engine is not None:
            raise RuntimeError("accesses are looked at once")
        engine._still()
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
            self.flush()
            self.open = False
            for i in range(3):
                self.engine.unhook(self.hooks[i])

    def __dealloc__(self):
        cdef int i
        if self.open:  # its hooks lead here: the engine must not run again
            for i in range(3):
                if self.hooks[i]:
                    self.engine.hook_del(self.engine.uc, self.hooks[i])
        free(self.s)
