# cython: language_level=3, boundscheck=True, cdivision=True
"""Native core of the emulated machine: block clock, register access and hooks of a Unicorn engine.

The public C interface of libunicorn (``unicorn/unicorn.h``) is called through addresses passed in
from Python, so that this module and the Python package share one copy of the library.

The clock counts guest instructions.  A translated block adds its instructions when it is entered;
if the block is left early, ``settle`` corrects the count.  Devices see the time ``now`` (virtual
ns): the count at the last *canonical* block start plus ``skew`` (idle time and clock polling).

A block start is canonical when the guest's own code causes it: it follows an instruction that ends
a block by itself (a jump, or a change of the interrupt mask) or an exception.  Events become due
and interrupts are taken only there.  Blocks also begin where a probe, a stop or a limit of the CPU
model (the end of a page, too many instructions) cut one.  These starts are not canonical, so that
observers do not influence a run.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer

from emu.host.errors import MachineError

# Values of uc_control_type and UC_CTL(type, count, direction) from unicorn.h
cdef enum:
    CTL_WRITE = 1
    CTL_READ = 2
    CTL_USE_EXITS = 4
    CTL_EXITS = 6
    CTL_TB_REQUEST_CACHE = 8
    CTL_TB_REMOVE_CACHE = 9
    CTL_TB_FLUSH = 10
    CTL_TLB_FLUSH = 11
    CTL_TLB_TYPE = 12
    TLB_CPU = 0
    TLB_VIRTUAL = 1
    PROT_READ = 1
    UC_ERR_EXCEPTION = 21

cdef uint64_t NEVER = 0xFFFFFFFFFFFFFFFF


cdef inline unsigned int ctl_word(int kind, int count, int direction) noexcept nogil:
    return kind | (count << 26) | (<unsigned int>direction << 30)


cdef inline uint64_t code_key(Clock *c, uint64_t address, uint32_t size) noexcept nogil:
    """Return the key under which the block at a virtual address is stored.

    At low addresses each process has its own code, so the key is the physical address, combined
    with the frame of the second page of a block that spans two (with 64 GiB of RAM, physical
    addresses have at most 37 bits).
    """
    cdef uint64_t second
    if address >> 63:
        return address
    if (address ^ (address + size - 1)) >> 12 == 0 or size == 0:
        return low_code(c, address)
    second = low_code(c, (address | 4095) + 1)
    return low_code(c, address) | (second >> 12) << 38


cdef inline uint64_t low_code(Clock *c, uint64_t address) noexcept nogil:
    cdef CodePage *known = &c.code_pages[address >> 12 & CODE_PAGES - 1]
    if known.turn != c.turns[0] or known.page != address >> 12:
        known.page = address >> 12
        known.frame = frame_of_code(c, address)
        known.turn = c.turns[0]
    return known.frame | address & 4095


cdef uint64_t frame_of_code(Clock *c, uint64_t address) noexcept nogil:
    cdef uint64_t physical = 0
    if not c.walk(c, address, &physical):
        physical = address  # no code can be executed at an unmapped address
    return physical & ~<uint64_t>4095


cdef inline FastBlock *fast_block(Clock *c, uint64_t address) noexcept nogil:
    return &c.fast[(address >> 1 ^ address >> 13) & FAST_BLOCKS - 1]


include "_awaited.pxi"


include "_block_table.pxi"


cdef inline bint in_user_mode(Clock *c) noexcept nogil:
    return (c.level_register != 0
            and register_read(c, c.level_register) & c.level_bits == c.level_value)


cdef bint interruptible(Clock *c) noexcept nogil:
    """Return whether a pending interrupt can be taken now."""
    cdef uint64_t value = 0
    if c.urgent:
        c.context_save(c.uc, c.context)
        if not word_in_context(c, c.urgent_place)[0] & c.urgent_masked:
            return True
    if c.gate_place and in_user_mode(c):  # user mode ignores the interrupt mask
        c.context_save(c.uc, c.context)
        return in_context(c, c.gate_place)[0] & c.gate_bits != 0
    c.reg_read(c.uc, c.mask_register, &value)
    if value & c.mask_bits != c.mask_value:
        return False
    if c.gate_bits == 0:
        return True
    c.reg_read(c.uc, c.gate_register, &value)
    return value & c.gate_bits != 0


cdef void check_signals(Clock *c) noexcept with gil:
    # Ctrl-C must work even if no callback into Python occurs.
    try:
        PyErr_CheckSignals()
    except BaseException as error:
        (<Engine>c.engine).failed(error)


include "_guards.pxi"


include "_memory.pxi"


include "_turns.pxi"


include "_detour.pxi"


include "_blocks.pxi"


include "_exceptions.pxi"


cdef void interrupt_hook(void *uc, uint32_t vector, void *data) noexcept nogil:
    cdef Clock *c = <Clock *>data
    cdef uint64_t pc
    c.turns[0] += 1
    if c.trap != NULL and c.trap(c.trap_data, vector):
        return
    # After a fault in a load that spans two pages, Unicorn calls no memory hooks until it is entered
    # again. An exception that is handled in Python enters it again.
    if delivers(c) and not c.observed:
        pc = register_read(c, c.pc_register) - c.pc_ahead
        if delivered(c, vector, pc, executed(c, pc)):
            return
    c.stop = STOP_EXCEPTION
    c.vector = vector
    c.emu_stop(uc)


cdef void system_call_hook(void *uc, void *data) noexcept nogil:
    """Handle a system call instruction; the CPU model leaves system calls to its host."""
    cdef Clock *c = <Clock *>data
    c.turns[0] += 1
    # The instruction ends its block, so computing the pc is cheaper than reading the register.
    if delivers(c) and c.count and delivered(c, c.system_call, c.address + c.size, c.count):
        return
    c.stop = STOP_EXCEPTION
    c.vector = c.system_call
    c.emu_stop(uc)


cdef bint invalid_hook(void *uc, void *data) noexcept nogil:
    cdef Clock *c = <Clock *>data
    cdef uint64_t pc
    c.turns[0] += 1
    if c.trap != NULL:
        c.by_context = c.pc_place != 0
        c.answered = c.trap(c.trap_data, INVALID)
        c.by_context = False
        if c.answered:
            return True
    elif delivers(c) and not c.observed:
        pc = register_read(c, c.pc_register)
        if delivered(c, INVALID, pc, executed(c, pc)):
            c.answered = True  # Unicorn reports an error all the same
            return True
    c.stop = STOP_INVALID
    c.emu_stop(uc)
    return True


include "_device_hooks.pxi"


class EngineError(MachineError):
    """Failed libunicorn call; ``code`` holds its uc_err value."""

    def __init__(self, what, code):
        super().__init__(f"cannot {what}: libunicorn error {code}")
        self.code = code


cdef void count_from(Clock *c, uint64_t instructions) noexcept nogil:
    """Set the instruction count while no block is in progress."""
    c.instructions = c.canonical = instructions
    c.horizon = c.heard = 0
    c.count = 0
    c.pause_end = NEVER
    c.calling = False


include "_wiring.pxi"


cdef class Engine(EngineWiring):
    """Native interface to one Unicorn engine, with the methods that run it."""

    # -- running ------------------------------------------------------------------------------

    def run(self, uint64_t pc, bint piece=False):
        """Run from ``pc`` until something stops the CPU; a stop address equal to ``pc`` is ignored.

        :param piece: allow the block at ``pc`` to have more instructions than are left before
            ``limit``; a stop address ends it in time.
        :return: ``(stop, detail)``. For STOP_EXCEPTION, ``detail`` is the vector; for STOP_ERROR,
            libunicorn's error code; for STOP_NONE, 1 if an emulated breakpoint may have hidden an
            error, which the next run from there reports.
        :raises: the exception that a callback raised.
        """
        cdef int code
        self._still()
        self.clock.stop = 0
        self.clock.turns[0] += 1
        self.clock.passing = True
        self.clock.passed_at = ~<uint64_t>0
        self.clock.pass_by = pc
        self.clock.in_piece = piece
        self.clock.piece = pc
        self.clock.running = self.clock.started = True
        with nogil:
            code = self.emu_start_fn_(self.uc, pc, 0, 0, 0)
        self.clock.running = False
        masked = code == UC_ERR_EXCEPTION and self.clock.answered
        self.clock.answered = False
        if masked:
            code = 0  # Unicorn still reports an EBREAK that was already handled
            if self.clock.frozen and self.clock.detour.slot_entries:
                self.clock.detour.slot_entries -= 1  # the trampoline will be entered again
        if self.clock.moved:
            register_write(&self.clock, self.pc_register, self.clock.moved)
            self.clock.moved = 0
        if self.error is not None:
            error = self.error
            self.error = None
            raise error
        if self.clock.stop == STOP_EXCEPTION:
            return STOP_EXCEPTION, self.clock.vector
        if self.clock.stop:
            return self.clock.stop, 0
        if code:
            return STOP_ERROR, code
        return STOP_NONE, int(masked)

    def settle(self, count=None):
        """End the block in progress; the caller must then call ``resume`` or ``synchronize``.

        :param count: number of its instructions that were executed (default: all).
        :raises ValueError: the block has fewer instructions.
        """
        if count is not None:
            if count > self.clock.count and not self.clock.frozen:
                raise ValueError(f"settle {count} instructions: the block has {self.clock.count}")
            if self.clock.count:
                self.clock.count = count
        self.clock.instructions += self.clock.count
        self.clock.count = 0
        pause(&self.clock)

    def watch_thread(self, physical):
        """Set the physical address of the 8-byte word that points to the current thread.

        :param physical: the address, or None if it is unknown.
        :raises ValueError: the address is not an aligned word of RAM.
        """
        cdef uint8_t *host = NULL
        if physical is not None:
            host = host_physical(&self.clock, physical, 8)
            if host == NULL or physical % 8:
                raise ValueError(f"thread word {physical:#x}: not an aligned 8-byte word of RAM")
        self.clock.thread_word = <uint64_t *>host

    @property
    def watches_thread(self):
        """Whether the current CPU's thread word is known (``watch_thread``)."""
        return self.clock.thread_word != NULL

    def interrupt(self, uint32_t vector, uint64_t pc):
        """Enter the handler of an external interrupt; return False if Python has to do it."""
        return vector < 256 and delivers(&self.clock) and self.clock.deliver(
            &self.clock, EXTERNAL + vector, pc) == DELIVERED

    def taken(self):
        """Count an exception or interrupt that was delivered or emulated."""
        self.clock.taken += 1

    def endless(self):
        """Count one more consecutive exception.

        :return: whether more than MAX_EXCEPTIONS occurred with no instruction between them.
        """
        return one_more(&self.clock, self.clock.instructions)

    def forget_exceptions(self):
        """Reset the count of consecutive exceptions."""
        self.clock.exceptions = 0

    def learn_prefix(self, bytes code, uint32_t count):
        """Store the number of instructions in ``code``, the executed first bytes of a block."""
        if not 0 < count <= len(code):
            raise ValueError(f"{len(code)} bytes cannot hold {count} instructions")
        learn_prefix(&self.clock, code, <uint32_t>min(len(code), PREFIX_BYTES + 1), count)

    def synchronize(self):
        """Make the next block start canonical and let devices see the current time."""
        self.clock.canonical = self.clock.instructions
        self.clock.resumed = False

    def arrive(self, uint64_t pc):
        """Handle the guest's arrival at ``pc``, where the CPU is stopped.

        At a canonical block start, due events and interrupts come first; they are reported only
        once.

        :return: STOP_NONE if the guest can continue at ``pc``; else STOP_DEADLINE, STOP_TURN or
            STOP_INTERRUPT.
        :raises: the exception of a callback that awaited this address.
        """
        self._made()
        cdef Clock *c = &self.clock
        cdef int why
        if not c.frozen and is_awaited(c, pc) and c.arrived != NULL:
            if not c.arrived(c.arrived_data, pc) and self.error is not None:
                error = self.error
                self.error = None
                raise error
        if c.frozen or c.resumed and c.resume_at == pc:
            return STOP_NONE
        why = canonical_start(c)
        if why == 0:
            resume(c, pc)
        return why

    def resume(self, uint64_t pc):
        """Mark the next block start at ``pc`` as not canonical.

        Used when the guest is in the middle of a block, or when the events due there were handled.
        """
        resume(&self.clock, pc)

    def stands_at(self, uint64_t pc):
        """Return whether the next block start at ``pc`` is marked as not canonical (``resume``)."""
        return bool(self.clock.resumed and self.clock.resume_at == pc)

    def learn_end(self, uint64_t address, uint32_t size, uint32_t count, bint cut):
        """Store how a block of ``count`` instructions ends.

        :param cut: whether the CPU model cut it; otherwise its last instruction ends it.
        """
        if not 0 < count <= 0xFFFF:
            raise ValueError(f"a block cannot have {count} instructions (1 to 65535)")
        if set_block_end(&self.clock, address, size, count, END_CUT if cut else END_ITSELF) != 0:
            raise MemoryError

    def learn(self, uint64_t address, uint32_t size, uint32_t count):
        """Store the instruction count of a block whose translation did not report a count."""
        if not 0 < count <= 0xFFFF:
            raise ValueError(f"a block cannot have {count} instructions (1 to 65535)")
        fast_block(&self.clock, address).size = 0
        if table_put(&self.clock, code_key(&self.clock, address, size), size, count) != 0:
            raise MemoryError

    def block_count(self, uint64_t address, uint32_t size):
        """Return the instruction count of a block, or None if it is unknown."""
        return table_find(&self.clock, code_key(&self.clock, address, size), size) or None

    def set_stops(self, addresses):
        """Set the addresses before which the CPU stops (STOP_ADDRESS), without cutting blocks."""
        cdef Clock *c = &self.clock
        cdef size_t hook = 0
        cdef uint64_t address
        cdef int i
        self._still()
        wanted = set(addresses)
        if len(wanted) > MAX_STOPS:
            raise ValueError(f"{len(wanted)} stop addresses: at most {MAX_STOPS} are supported")
        if <int>len(self.left_hooks) > self.most_left:
            # Remove unused hooks: Unicorn checks every hook for each translated instruction.
            for address in list(self.left_hooks):
                if self._remove_hook(address, self.left_hooks[address]):
                    del self.left_hooks[address]
            self.most_left = 2 * <int>len(self.left_hooks) + MAX_STOPS
        i = 0
        while i < c.stop_count:
            address = c.stops[i]
            if address in wanted:
                wanted.discard(address)
                i += 1
                continue
            if not self._remove_hook(address, c.stop_hooks[i]):
                self.left_hooks[address] = c.stop_hooks[i]
            c.stop_count -= 1
            c.stops[i] = c.stops[c.stop_count]
            c.stop_hooks[i] = c.stop_hooks[c.stop_count]
            self._drop(address, address + 1)
        for address in sorted(wanted):
            if address in self.left_hooks:
                hook = self.left_hooks.pop(address)
            else:
                self._ok("set a stop", self.hook_add(
                    self.uc, &hook, HOOK_CODE, <void *>stop_hook, c, address, address))
            c.stops[c.stop_count] = address
            c.stop_hooks[c.stop_count] = hook
            c.stop_count += 1
            self._drop(address, address + 1)

    cdef int hook_seam(self, uint64_t address, seam_fn call) except -1:
        """Call ``call(trap_data)`` before each execution of the instruction at ``address``."""
        cdef size_t hook = 0
        self.unhook_seam()
        if address not in self.seam_hooks:  # a hook that could not be removed is reused
            self._ok("hook the seam", self.hook_add(
                self.uc, &hook, HOOK_CODE, <void *>seam_hook, &self.clock, address, address))
            self.seam_hooks[address] = hook
            self._drop(address, address + 1)
        self.clock.seam = address
        self.clock.seam_call = call
        return 0

    cdef size_t hook_range(self, uint64_t begin, uint64_t end, void *call, void *data) except? 0:
        """Call a function before each instruction in [begin, end] that is translated from now on.

        :return: the number of the hook.
        """
        cdef size_t hook = 0
        self._still()
        self._ok("hook instructions", self.hook_add(self.uc, &hook, HOOK_CODE, call, data, begin, end))
        return hook

    cdef int unhook_seam(self) except -1:
        self._still()
        if self.clock.seam_call != NULL:
            self.clock.seam_call = NULL
            address = self.clock.seam
            if self._remove_hook(address, self.seam_hooks[address]):
                del self.seam_hooks[address]
                self._drop(address, address + 1)
        return 0

    cdef int _remove_hook(self, uint64_t address, size_t hook) except -1:
        """Remove the hook of a stop address, without changing page table entries.

        Unicorn looks up the hooked code by its virtual address. Code that is no longer mapped
        therefore keeps its hook, which then finds the address missing in ``stops``.

        :return: whether the hook was removed.
        """
        cdef Clock *c = &self.clock
        cdef uint64_t content[MAX_WALK]
        cdef uint64_t physical = 0
        cdef int code
        if not c.walk(c, address, &physical):
            return 0
        if fetchable(c, address) and region_of(c, physical, 1) != NULL:
            keep_walked(c, content)
            code = self.hook_del(self.uc, hook)
            if put_walked(c, content):
                self.flush_tlb()
        else:
            written(c, physical, 1)
            code = self._unhook(hook)
        self._ok("remove a stop", code)
        return 1

    cdef int _drop(self, uint64_t begin, uint64_t end) except -1:
        self._made()
        if self.clock.started and not drop_translations(&self.clock, begin, end):
            self.flush_translations()
        return 0

    def set_exits(self, addresses):
        """Set the exit addresses, which end blocks and before which the CPU stops (STOP_NONE).

        The CPU model looks these addresses up at the end of each run, so they are suitable only for
        a guest without page tables.
        """
        self._still()
        cdef size_t n = len(addresses)
        cdef size_t i
        if n > MAX_STOPS:
            raise ValueError(f"{n} exit addresses: at most {MAX_STOPS} are supported")
        for i in range(n):
            self.clock.exits[i] = addresses[i]
        self.clock.exit_count = n
        self._ok("set exits", self.ctl(self.uc, ctl_word(CTL_EXITS, 2, CTL_WRITE),
                                       <void *>self.clock.exits, n))

    def remove_translations(self, uint64_t begin, uint64_t end):
        """Drop the translations of code at virtual addresses [begin, end)."""
        self._drop(begin, end)

    def unhook(self, size_t hook):
        """Remove a hook and drop all translations.

        Unicorn looks up the hooked code as the guest would fetch it. In a program that could raise
        a page fault and change CR2, so virtual addresses are treated as physical ones meanwhile.
        """
        self._still()
        self._ok("remove a hook", self._unhook(hook))
        self.flush_translations()

    cdef int _unhook(self, size_t hook) noexcept:
        flatten(&self.clock, True)
        cdef int code = self.hook_del(self.uc, hook)
        flatten(&self.clock, False)
        return code

    def flush_translations(self):
        """Drop all translations; block counts are updated when the code is translated again."""
        cdef int i
        self._still()
        self._ok("flush translations", self.ctl(self.uc, ctl_word(CTL_TB_FLUSH, 0, CTL_WRITE)))
        for i in range(self.clock.region_count):
            memset(self.clock.regions[i].code, 0, self.clock.regions[i].size >> 12)
        self.clock.code_anywhere = False

    def set_image_code(self, ranges):
        """Set the virtual ranges [begin, end) of the image's code, which are guarded as a whole.

        Ranges beyond the first ``MAX_IMAGE_CODE`` are guarded page by page.
        """
        cdef int i
        ranges = list(ranges)[:MAX_IMAGE_CODE]
        for i in range(len(ranges)):
            self.clock.image_code[i][0], self.clock.image_code[i][1] = ranges[i]
        self.clock.image_code_count = len(ranges)

    @property
    def guards(self):
        """Physical ranges [begin, end) in which all stores of the guest are looked at."""
        cdef int i
        return sorted((self.clock.guards[i].begin, self.clock.guards[i].last + 1)
                      for i in range(self.clock.guard_count))

    def set_no_execute(self, uint64_t bit):
        """Set the no-execute bit of page table entries, or 0 if entries have no such bit.

        If Unicorn itself looked up code through an entry with this bit, the guest would see a page
        fault.
        """
        self.clock.no_execute = bit

    def written(self, uint64_t physical, uint64_t size, bint outside=True):
        """Drop translations of RAM at [physical, physical + size) after a write by the host.

        :param outside: whether the write came from outside the computer; the TLB is then flushed.
        """
        self._made()
        if self.clock.started:
            if self.clock.code_anywhere and not self.clock.running:
                self.flush_translations()
            written(&self.clock, physical, size)
            if outside and self.clock.walk != flat:
                self._ok("flush the TLB", self.ctl(self.uc, ctl_word(CTL_TLB_FLUSH, 0, CTL_WRITE)))

    def flush_tlb(self):
        """Flush the CPU model's TLB."""
        self._still()
        self._ok("flush the TLB", self.ctl(self.uc, ctl_word(CTL_TLB_FLUSH, 0, CTL_WRITE)))

    # -- the clock ----------------------------------------------------------------------------

    @property
    def stops_left(self):
        """Number of obsolete stops that could not be removed because their page was unmapped."""
        return len(self.left_hooks)

    @property
    def now(self):
        """Virtual time in nanoseconds, as devices see it."""
        return time_at(&self.clock, self.clock.canonical)

    @property
    def time(self):
        """Virtual time in nanoseconds after the instructions executed so far."""
        return time_at(&self.clock, self.clock.instructions)

    @property
    def cpu(self):
        """Number of the CPU whose turn it is."""
        return self.clock.cpu

    @property
    def instructions(self):
        """Number of instructions executed before the block in progress; set to restore a state."""
        return self.clock.instructions

    @instructions.setter
    def instructions(self, uint64_t value):
        self.clock.history += 1
        count_from(&self.clock, value)

    def executed_one(self):
        """Count one instruction that the host executed for the guest."""
        count_from(&self.clock, self.clock.instructions + 1)

    @property
    def canonical(self):
        """Instruction count at the start of the last canonical block."""
        return self.clock.canonical

    @canonical.setter
    def canonical(self, uint64_t value):
        self.clock.canonical = value

    @property
    def skew(self):
        """Nanoseconds by which virtual time is ahead of the instruction count, modulo 2^64.

        With several CPUs, time can lag behind the count.
        """
        return self.clock.skew

    @skew.setter
    def skew(self, value):
        self.clock.skew = <uint64_t>(value & 0xFFFFFFFFFFFFFFFF)
        self.clock.horizon = 0

    @property
    def deadline(self):
        """Virtual time in ns from which on the CPU stops at the next canonical block start."""
        return self.clock.deadline

    @deadline.setter
    def deadline(self, uint64_t value):
        self.clock.deadline = value
        self.clock.horizon = 0

    @property
    def limit(self):
        """Instruction count that the CPU must not exceed (STOP_LIMIT)."""
        return self.clock.limit

    @limit.setter
    def limit(self, uint64_t value):
        self.clock.limit = value
        self.clock.horizon = 0

    @property
    def pending(self):
        """Whether an interrupt is pending."""
        return bool(self.clock.pending)

    @pending.setter
    def pending(self, bint value):
        self.clock.pending = value

    @property
    def urgent(self):
        """Whether a non-maskable interrupt is pending (``set_unmaskable``)."""
        return bool(self.clock.urgent)

    @urgent.setter
    def urgent(self, bint value):
        if value and not self.clock.urgent_place:
            raise ValueError("urgent: this CPU has no non-maskable interrupts")
        self.clock.urgent = value

    @property
    def frozen(self):
        """Whether virtual time stands still because a probe is firing."""
        return bool(self.clock.frozen)

    @property
    def detour(self):
        """The detour of the probed instruction in progress."""
        return Detour(self)

    @property
    def patched(self):
        """Whether breakpoints of probes are in memory, so that not every breakpoint is the guest's."""
        return bool(self.clock.patched)

    @patched.setter
    def patched(self, bint value):
        self.clock.patched = value

    @property
    def slow(self):
        """Whether every block start takes the slow path, which tests compare with the fast path."""
        return bool(self.clock.slow)

    @slow.setter
    def slow(self, bint value):
        self.clock.slow = value

    cdef int _has_breakpoint(self) except -1:
        self._made()
        if self.clock.keep == NULL:
            raise RuntimeError("breakpoint exception not set: call set_breakpoint_exception first")
        return 0

    def read_memory(self, uint64_t address, uint32_t size):
        """Return RAM at a virtual address, or None if it is unmapped or not RAM."""
        self._made()
        data = PyBytes_FromStringAndSize(NULL, size)
        if not guest_read(&self.clock, address, PyBytes_AS_STRING(data), size):
            return None
        return data

    @property
    def shadow(self):
        """Whether interrupts are blocked until the next block starts."""
        return bool(self.clock.shadow)

    @shadow.setter
    def shadow(self, bint value):
        self.clock.shadow = value

    @property
    def before(self):
        """After STOP_UNSURE, (address, bytes) of the block before the block in progress."""
        return self.clock.before, self.clock.before_size

    @property
    def running(self):
        """Whether the CPU is running, in which case the caller is one of its callbacks."""
        return self.clock.running

    @property
    def blocks(self):
        """Number of blocks entered since the engine was created."""
        return self.clock.blocks

    @property
    def block(self):
        """The block in progress, as (address, size in bytes, number of instructions)."""
        return self.clock.address, self.clock.size, self.clock.count

    @property
    def unknown_block(self):
        """The block that caused STOP_UNCOUNTED, as (address, size in bytes)."""
        return self.clock.unknown_address, self.clock.unknown_size
