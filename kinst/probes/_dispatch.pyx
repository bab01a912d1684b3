# cython: language_level=3, boundscheck=True, cdivision=True
"""The native part of the providers: sites and probes by the million, and what a firing does.

A *site* is an instruction that may carry a breakpoint; *probes* are chained to it.  What an
instruction is, is read by ``kinst/code/_reader.pyx``.  ``Dispatcher`` answers the engine's breakpoint
exceptions: it finds the site, records the firing, carries out the operation of the site's template and
sends the guest on, on the *direct* path at the breakpoint, on the *guest* path at the kernel's seam.

The Python twin of the operations is ``Emulate.next_pc``; of the trampolines, the architecture's
``GuestTrap.trampoline``; of the seam, its ``enter`` and ``leave``.

Here is ``Dispatcher``, what Python sees, and the structures.  It is one module with the files that are
included below, so that the compiler sees all that a firing does at once.
"""

from bisect import bisect_left

cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from emu.unicorn._engine import EngineError
from emu.host.errors import MachineError
from kinst.probes.kinds import ProbeKind, TrapPath

from emu.unicorn._engine cimport (
    SLOT,
    STOP_IN_PLACE,
    Clock,
    Engine,
    MAX_AWAITED,
    NO_MEMORY,
    TOO_MANY_AWAITED,
    await_address,
    await_nothing,
    defer,
    drop_translations,
    freeze,
    go_to,
    guest_read,
    guest_write,
    host_physical,
    host_stack,
    host_virtual,
    keep_footprint,
    register_read,
    register_write,
    request_stop,
    resume,
    stops_at,
    time_at,
    wipe_footprint,
)

from kinst.probes._action cimport AFTER, ARGUMENTS, DECLARED, DECLARED_ARGUMENTS, REGISTER, Action
from kinst.code._reader cimport (
    MAX_CODE,
    MAX_REGISTERS,
    CodeReader,
    Piece,
    Template,
    Templates,
    split_fn,
)

include "../relocation/_template.pxi"

cdef enum:
    RECORDS = 1 << 16
    ABOVE = 2048  # bytes of a frame in which the way to a gate may spill registers
    GIVEN_ARGUMENTS = 6  # that a gate can be given behind its first
    MAX_FLAGS = 5  # their combinations are bits of a 32-bit truth
    MAX_THREADS = 1024
    STACK_PAGE = 4096
    MAX_TABLES = 4  # of system calls
    MAX_OPERATIONS = 512
    MAX_PENDING = 4096  # calls of operations in progress
    MAX_CALLS = 1 << 16  # in one
    CALL_ARGUMENTS = 8  # of one
    CALL_BEGINS = 1
    CALL_ENDS = 2
    MANY = 64  # more patches than this drop all translations at once
    MAX_TAILS = 1 << 20  # functions of one thread that have left by tail calls
    ELSEWHERE = -2  # of flow_of
    MAX_ALL_TAILS = 1 << 22  # of all threads, and the copies that they are in
    MAX_TAIL_THREADS = 1 << 16
    PROGRAM_BITS = 5  # of a key, for a number up to MAX_PROGRAMS
    # Why a call cannot be noted; see ``await_address`` for the first ones.
    TOO_MANY_OF_THREAD = 3
    TOO_MANY_OF_ALL = 4
    STACK_REACH = 1 << 20  # bytes: stack pointers that are further apart are of different stacks

cdef uint32_t NONE = 0xFFFFFFFF

cdef int GUEST = TrapPath.GUEST
cdef int DIRECT = TrapPath.DIRECT
cdef int DOUBLE = TrapPath.DOUBLE
cdef int AT_RETURN = ProbeKind.RETURN
cdef int STATIC = ProbeKind.STATIC
cdef int PROGRAM_RETURN = ProbeKind.PROGRAM_RETURN

include "_structures.pxi"

include "_tables.pxi"
include "_operations.pxi"
include "_tracepoint.pxi"
include "_system_call.pxi"
include "_operation.pxi"
include "_program.pxi"
include "_returns.pxi"
include "_inline.pxi"
include "_firing.pxi"
include "_patches.pxi"
include "_sites.pxi"
include "_boundaries.pxi"


@cython.no_gc_clear  # the engine is needed to the end, to be told that nobody listens
cdef class Dispatcher(ProbeBoundaries):
    """Sites and probes of one machine, which fire."""

    def changed(self):
        """The address of a site whose code in memory is not what it was; None: there is none."""
        self.live()
        return patch_find_changed(&self.d)

    def use_slots(self, uint64_t base, uint64_t physical, uint64_t size, uint64_t reserved,
                  bint threads):
        """Trampolines live at virtual ``base``; the first ``reserved`` slots are not ours."""
        self.unchanging()
        self.live()
        cdef Dispatch *d = &self.d
        cdef uint64_t count = size // SLOT
        if reserved > count or (threads and count - reserved < MAX_THREADS + 1) or (
                count >= NONE):
            raise ValueError("no such number of trampolines")
        self.unpatched()
        patch_make_slots(&self.d, base, physical, size, reserved, threads)

    def slots_needed(self):
        """How many slots ``enable`` will take, beside the reserved ones."""
        cdef Dispatch *d = &self.d
        cdef uint32_t i
        cdef uint64_t n = MAX_THREADS + 1
        for i in range(d.site_count):
            n += patch_taken(&d.sites[i]) and not op_emulated(
                &d.templates.all[d.sites[i].template])
        return n

    @property
    def slots_used(self):
        """Bits set in the map of slots."""
        cdef uint64_t i
        cdef uint64_t n = 0
        if self.d.slot_used != NULL:
            for i in range(self.d.slot_count):
                n += self.d.slot_used[i // 64] >> i % 64 & 1
        return n

    def enable(self):
        """Make trampolines, write breakpoints.  ``changed`` must have said that all is well."""
        self.unchanging()
        self.live()
        cdef bint one_by_one = self.d.site_count <= MANY
        patch_all(&self.d, one_by_one)
        if not one_by_one:
            self.engine.flush_translations()
        self.hook_programs()
        if return_has_tails(&self.d):
            return_forget_tails(&self.d)
            self.d.clock.arrived_data, self.d.clock.arrived = &self.d, on_arrived
            self.d.clock.called = on_called
            await_address(self.d.clock, self.d.thread_begins)

    def disable(self):
        """Write the original bytes back and free the trampolines."""
        self.unchanging()
        self.live()
        cdef bint one_by_one = self.d.site_count <= MANY
        if self.d.clock.arrived_data == <void *>&self.d:
            await_nothing(self.d.clock)
            self.d.clock.arrived_data = NULL
        try:
            self.unhook_programs()
        finally:
            patch_unpatch_all(&self.d, one_by_one)
        if not one_by_one:
            self.engine.flush_translations()

    def listen(self, uint64_t seam, uint64_t scratch, uint64_t scratch_value,
               uint64_t trap_stack=0):
        """Answer breakpoints from now on.

        :param seam: where the guest's vectors lead to, on the guest path.
        :param trap_stack: the top of the stack that breakpoints come on; 0: the interrupted one.
        :param scratch: a word that the kernel's path writes, to be kept at ``scratch_value``.
        """
        self.unchanging()
        self.live()
        cdef Dispatch *d = &self.d
        if d.path != DIRECT or table_has_gate(d):
            self.engine._has_breakpoint()
        d.visiting = d.reached = NONE
        d.seam = seam
        d.scratch = scratch
        d.scratch_value = scratch_value
        d.trap_stack = trap_stack
        d.clock.trap_data = d
        d.clock.trap = on_trap
        if d.path != DIRECT and d.called:
            try:
                self.engine.hook_seam(seam, on_seam)
            except BaseException:
                d.clock.seam_call = NULL
                d.clock.trap = NULL
                d.clock.trap_data = NULL
                raise

    def deafen(self):
        """Answer none."""
        self.unchanging()
        self.live()
        self.engine.unhook_seam()
        self.d.clock.trap = NULL
        self.d.clock.trap_data = NULL

    def record(self, how):
        """What a firing does: ``"count"`` only counts, ``"record"`` keeps a record, also where it
        is handled natively, ``"tell"`` calls ``fire(number, dispatcher)``."""
        self.unchanging()
        cdef Dispatch *d = &self.d
        free(d.records)
        d.records = NULL
        d.record_count = 0
        d.counting_only = how == "count"
        if how == "record":
            d.records = <Record *>malloc(RECORDS * sizeof(Record))
            if d.records == NULL:
                raise MemoryError

    cdef int drain(self) except -1:
        cdef uint32_t i
        cdef Record *r
        for i in range(self.d.record_count):
            r = &self.d.records[i]
            self.drained.append((r.probe, r.cpu, r.time, r.time + r.skew,
                                 r.arguments[0], r.arguments[1], r.arguments[2], r.arguments[3],
                                 r.arguments[4]))
        self.d.record_count = 0
        return 0

    cdef void spill(self):
        self.d.firing = True
        try:
            self.drain()
            if self.sink is not None:
                self.sink()
        except BaseException as error:
            self.d.record_count = 0
            self.d.stop = True
            self.engine.failed(error)
        self.d.firing = False

    def records(self):
        """The records since the last time: (probe, number of the CPU, instructions executed,
        virtual time, five arguments)."""
        self.drain()
        found = self.drained
        self.drained = []
        return found

    def tell_also(self, uint32_t probe):
        """Tell Python of a probe's firings also where they are handled natively."""
        if probe >= self.d.probe_count:
            raise ValueError("there is no such probe")
        self.d.probes[probe].told = True

    def act_by(self, action, failure):
        """Let firings be handled natively.

        :param action: a capsule, "kinst.action"; None: no more.
        :param failure: gives the exception of an action that failed.
        """
        cdef Action *given
        self.unchanging()
        if action is None:
            self.d.action.run = NULL
        else:
            given = <Action *>PyCapsule_GetPointer(action, "kinst.action")
            self.d.action = given[0]
        self.action, self.failure = action, failure

    cdef void acted(self):
        self.d.stop = True
        try:
            self.engine.failed(self.failure())
        except BaseException as error:
            self.engine.failed(error)

    cdef void told(self, uint32_t probe):
        self.d.firing = True
        try:
            self.fire(probe)
        except BaseException as error:
            self.d.stop = True
            self.engine.failed(error)
        self.d.firing = False

    cdef void stuck(self, uint64_t pc):
        """A breakpoint on the way of a breakpoint."""
        try:
            self.recursion(pc)
        except BaseException as error:
            self.engine.failed(error)

    @property
    def firings(self):
        return self.d.firings

    @property
    def made(self):
        """In a static probe's firing, or a system call's: its arguments, eight numbers."""
        if not self.d.firing or not self.d.making:
            raise RuntimeError("no static probe fires")
        return tuple(self.d.made[k] for k in range(DECLARED_ARGUMENTS))

    cdef int in_firing(self, int register) except -1:
        self.live()
        if not 0 <= register < self.d.count:
            raise IndexError(f"there is no register {register}")
        if self.d.wide[register]:
            raise ValueError(f"register {register} has more than 64 bits: it is read and set "
                             "through the machine")
        if not self.d.firing:
            raise RuntimeError("no probe fires: there is no interrupted code")
        return 0

    def get(self, int register):
        """A register of the interrupted code, in a firing, by its place in the shape."""
        self.in_firing(register)
        return op_get(&self.d, <uint8_t>register)

    def set(self, int register, uint64_t value):
        self.in_firing(register)
        if self.d.framed and self.d.place[register] < 0:
            raise ValueError(f"register {register} is not in the trap frame")
        op_put(&self.d, <uint8_t>register, value)
