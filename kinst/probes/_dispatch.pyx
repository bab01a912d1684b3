# cython: language_level=3, boundscheck=True, cdivision=True
"""Native part of the providers: holds all sites and probes, and handles firings.

A *site* is an instruction that can carry a breakpoint; *probes* are chained to it.
``kinst/code/_reader.pyx`` decodes the instructions.  ``Dispatcher`` handles the engine's breakpoint
exceptions: it finds the site, records the firing, executes the operation of the site's template and
lets the guest continue: on the *direct* path at the breakpoint, on the *guest* path at the kernel's
seam.

The Python counterpart of the operations is ``Emulate.next_pc``; of the trampolines, the
architecture's ``GuestTrap.trampoline``; of the seam, its ``enter`` and ``leave``.

This file contains ``Dispatcher``, the interface for Python.  The files included below are part of
the same module, so that the compiler can optimize a firing as a whole.
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
    # number of bytes above sp that are saved while the guest computes a probe's arguments
    ABOVE = 2048
    GIVEN_ARGUMENTS = 6  # maximum number of a gate's arguments after the first argument
    MAX_FLAGS = 5  # ``truth`` has 32 bits, one for each combination of flags
    MAX_THREADS = 1024
    STACK_PAGE = 4096
    MAX_TABLES = 4  # maximum number of system call tables
    MAX_OPERATIONS = 512
    MAX_LOCKS = 16  # maximum number of kinds of locks
    MAX_LOCK_SWAPS = 1 << 20
    MAX_PASSING = 64
    MAX_PENDING = 4096  # maximum number of vnode operation calls in progress
    MAX_CALLS = 1 << 16  # maximum number of system calls per table
    CALL_ARGUMENTS = 8  # maximum number of arguments of a system call
    CALL_BEGINS = 1
    CALL_ENDS = 2
    MANY = 64  # number of patches above which all translations are dropped at once
    # maximum number of a thread's pending tail calls, and of its active inline copies
    MAX_TAILS = 1 << 20
    ELSEWHERE = -2  # result of ``flow_of``: the branch target is computed at run time
    MAX_ALL_TAILS = 1 << 22  # maximum number of pending tail calls and active inline copies
    MAX_TAIL_THREADS = 1 << 16
    # number of bits of a thread's key that hold the program number (at most MAX_PROGRAMS)
    PROGRAM_BITS = 8
    # Reasons why a return cannot be awaited, in addition to the results 0 to 2 of ``await_address``
    TOO_MANY_OF_THREAD = 3
    TOO_MANY_OF_ALL = 4
    # maximum distance in bytes between two stack pointers into the same stack
    STACK_REACH = 1 << 20
    PROGRAM_STACK_REACH = 8192  # the same in programs, whose stacks may be small

cdef uint32_t NONE = 0xFFFFFFFF

cdef int GUEST = TrapPath.GUEST
cdef int DIRECT = TrapPath.DIRECT
cdef int DOUBLE = TrapPath.DOUBLE
cdef int AT_RETURN = ProbeKind.RETURN
cdef int STATIC = ProbeKind.STATIC
cdef int PROGRAM_RETURN = ProbeKind.PROGRAM_RETURN
cdef int PROGRAM_STATIC = ProbeKind.PROGRAM_STATIC
cdef int PROGRAM_ASKED = ProbeKind.PROGRAM_ASKED

include "_structures.pxi"

include "_tables.pxi"
include "_operations.pxi"
include "_tracepoint.pxi"
include "_system_call.pxi"
include "_operation.pxi"
include "_lock.pxi"
include "_allocation.pxi"
include "_program.pxi"
include "_program_static.pxi"
include "_returns.pxi"
include "_inline.pxi"
include "_firing.pxi"
include "_patches.pxi"
include "_sites.pxi"
include "_boundaries.pxi"


@cython.no_gc_clear  # __dealloc__ unregisters callbacks from the engine
cdef class Dispatcher(ProbeBoundaries):
    """Native dispatcher that holds the sites and probes of one machine and handles firings."""

    def changed(self):
        """Return the address of a site whose code has changed since it was added, or None."""
        self.live()
        return patch_find_changed(&self.d)

    def use_slots(self, uint64_t base, uint64_t physical, uint64_t size, uint64_t reserved,
                  bint threads):
        """Set the guest memory that trampolines use.

        :param base: its virtual address, ``physical`` its physical address.
        :param size: in bytes.
        :param reserved: slots at its start that are not used for trampolines.
        :param threads: use one trampoline for each thread, not for each probe.
        """
        self.unchanging()
        self.live()
        cdef Dispatch *d = &self.d
        cdef uint64_t count = size // SLOT
        if reserved > count or (threads and count - reserved < MAX_THREADS + 1) or (
                count >= NONE):
            raise ValueError("the trampoline area has too few or too many slots")
        self.unpatched()
        patch_make_slots(&self.d, base, physical, size, reserved, threads)

    def slots_needed(self):
        """Return the maximum number of slots that ``enable`` uses, excluding reserved slots."""
        cdef Dispatch *d = &self.d
        cdef uint32_t i
        cdef uint64_t n = MAX_THREADS + 1
        for i in range(d.site_count):
            n += patch_taken(&d.sites[i]) and not op_emulated(
                &d.templates.all[d.sites[i].template])
        return n

    @property
    def slots_used(self):
        """Number of slots that are marked as used."""
        cdef uint64_t i
        cdef uint64_t n = 0
        if self.d.slot_used != NULL:
            for i in range(self.d.slot_count):
                n += self.d.slot_used[i // 64] >> i % 64 & 1
        return n

    def enable(self):
        """Write the trampolines and the breakpoints; requires that ``changed`` returned None."""
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
        """Restore the original code and free the trampolines."""
        self.unchanging()
        self.live()
        self.d.lock_passing_count = 0
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
        """Start handling breakpoint exceptions.

        :param seam: the address to which the guest's breakpoint handler leads, on the guest path.
        :param scratch: address of a word that the kernel's path overwrites and that is reset to
            ``scratch_value``.
        :param trap_stack: top of the stack that breakpoint exceptions switch to; 0: they use the
            interrupted stack.
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
        """Stop handling breakpoint exceptions."""
        self.unchanging()
        self.live()
        self.engine.unhook_seam()
        self.d.clock.trap = NULL
        self.d.clock.trap_data = NULL

    def record(self, how):
        """Select whether firings are only counted, recorded, or reported to Python.

        :param how: ``"count"``: only count it; ``"record"``: also keep a record, even if an action
            handles it natively; ``"tell"``: call ``fire(number)``.
        """
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
        """Return the records of all firings since the last call.

        :return: tuples of the probe's number, CPU number, instructions executed, virtual time in
            nanoseconds, and five arguments.
        """
        self.drain()
        found = self.drained
        self.drained = []
        return found

    def tell_also(self, uint32_t probe):
        """Call ``fire`` when a probe fires, even if an action handles the firings natively."""
        if probe >= self.d.probe_count:
            raise ValueError("no probe has this number")
        self.d.probes[probe].told = True

    def act_by(self, action, failure):
        """Install a native action that handles firings.

        :param action: capsule "kinst.action" of an ``Action``; None: remove the action.
        :param failure: returns the exception of an action that failed.
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
        """Report that the kernel's own breakpoint handling has hit a breakpoint."""
        try:
            self.recursion(pc)
        except BaseException as error:
            self.engine.failed(error)

    @property
    def firings(self):
        """Number of firings so far."""
        return self.d.firings

    @property
    def made(self):
        """The arguments of the static, system call or program's own probe that is firing.

        :raises RuntimeError: when no such probe is firing.
        """
        if not self.d.firing or not self.d.making:
            raise RuntimeError("no static probe is firing")
        return tuple(self.d.made[k] for k in range(DECLARED_ARGUMENTS))

    cdef int in_firing(self, int register) except -1:
        self.live()
        if not 0 <= register < self.d.count:
            raise IndexError(f"no register has index {register}")
        if self.d.wide[register]:
            raise ValueError(f"register {register} has more than 64 bits: read and write it "
                             "through the machine")
        if not self.d.firing:
            raise RuntimeError("registers can be accessed only while a probe fires")
        return 0

    def get(self, int register):
        """Return the value of an interrupted register during a firing, by index in the shape."""
        self.in_firing(register)
        return op_get(&self.d, <uint8_t>register)

    def set(self, int register, uint64_t value):
        """Set an interrupted register during a firing, by index in the shape."""
        self.in_firing(register)
        if self.d.framed and self.d.place[register] < 0:
            raise ValueError(f"register {register} cannot be set: it is not in the trap frame")
        op_put(&self.d, <uint8_t>register, value)
