"""Part of the dispatcher that adds and removes sites and probes; ``_dispatch.pyx`` includes it."""


@cython.no_gc_clear  # __dealloc__ unregisters callbacks from the engine
cdef class ProbeSites(CodeReader):
    """Part of the dispatcher that holds the sites and probes of one machine.

    :param engine: engine of the machine; None: only read code, without probing it.
    :param shape: registers, trap frame and breakpoints (``kinst/relocation/shape.py``).
    :param classify: returns (template number, length) for (bytes, length, displacement).
    """

    cdef Dispatch d
    cdef Engine engine
    cdef object shape
    cdef public object fire
    cdef public object recursion
    cdef public object sink  # called when the record buffer is full
    cdef list drained
    cdef object action  # reference that keeps the action's capsule alive
    cdef list program_hooks
    cdef object failure

    def __cinit__(self):
        memset(&self.d, 0, sizeof(Dispatch))
        self.d.templates = &self.templates

    def __dealloc__(self):
        if self.engine is not None and self.program_hooks:  # the hooks point to this object
            for hook in self.program_hooks:
                self.engine.hook_del(self.engine.uc, hook)
        if self.engine is not None and self.engine.clock.trap_data == <void *>&self.d:
            self.engine.clock.trap = NULL
            self.engine.clock.seam_call = NULL
        if self.engine is not None and self.engine.clock.arrived_data == <void *>&self.d:
            await_nothing(&self.engine.clock)
        return_forget_tails(&self.d)
        free(self.d.copies)
        free(self.d.ranges)
        syscall_forget_calls(&self.d)
        free(self.d.sites)
        free(self.d.probes)
        free(self.d.hash)
        free(self.d.records)
        free(self.d.slot_site)
        free(self.d.slot_used)
        free(self.d.lock_swaps)
        free(self.d.allocations.types)
        free(self.d.sources)

    def __init__(self, Engine engine, shape, classify):
        cdef Dispatch *d = &self.d
        cdef int i
        if d.owner != NULL:
            raise RuntimeError("the dispatcher is already initialized")
        self.engine = engine  # None if this dispatcher only reads code
        self.drained = []
        self.program_hooks = []
        CodeReader.__init__(self, shape, classify)
        if engine is not None:
            d.clock = &engine.clock
        d.owner = <void *>self
        d.visiting = d.reached = NONE
        d.split = self.split
        program_forget_left(&d.programs)
        d.count = self.registers
        d.frame_size = shape.frame_size
        if not 0 < d.frame_size <= 4096:
            raise ValueError("the trap frame must have 1 to 4096 bytes")
        for i, (number, place, restored) in enumerate(shape.registers):
            d.number[i] = number
            d.place[i] = place
            d.restored[i] = restored
            if not -1 <= place <= d.frame_size - 8:
                raise ValueError("the offset of a register is outside the trap frame")
            if engine is not None:
                d.wide[i] = not self.is_narrow(number)
        for i in range(ARGUMENTS):
            d.arguments[i] = self.known_register(shape.arguments[i])
        for register in shape.untold:
            d.untold[self.known_register(register)] = True
        for i in range(GIVEN_ARGUMENTS):
            d.made_in[i] = NO_REGISTER if shape.made[i] is None else self.known_register(shape.made[i])
        d.made_stack = shape.made_stack
        d.pc, d.sp, d.status = (
            self.known_register(r) for r in (shape.pc, shape.sp, shape.status))
        d.link, d.result, d.frame_register = (
            self.known_register(r) for r in (shape.link, shape.result, shape.frame))
        d.segment = self.known_register(shape.segment)
        d.counter = self.known_register(shape.repeat_counter)
        if len(shape.flag_bits) > MAX_FLAGS or any(not 0 <= b < 64 for b in shape.flag_bits):
            raise ValueError("there are too many condition flags, or the bit of a flag exceeds 63")
        d.flag_count = len(shape.flag_bits)
        for i in range(d.flag_count):
            d.flag_bits[i] = shape.flag_bits[i]
        d.linked = shape.linked
        d.called = shape.called
        d.frame_bias = shape.frame_bias
        if len(shape.effects) > MAX_EFFECTS:
            raise ValueError("the kernel's breakpoint handler emulates too many instructions")
        for code, answer, base, change, returns, stores, loads in shape.effects:
            if len(code) != 1:
                raise ValueError("an instruction with a kernel effect must have exactly one byte")
            d.effects[d.effect_count].code = code[0]
            d.effects[d.effect_count].answer = answer
            d.effects[d.effect_count].base = self.known_register(base)
            d.effects[d.effect_count].change = change
            d.effects[d.effect_count].returns = returns
            d.effects[d.effect_count].stores = (
                NO_REGISTER if stores == NO_REGISTER else self.known_register(stores))
            d.effects[d.effect_count].loads = (
                NO_REGISTER if loads == NO_REGISTER else self.known_register(loads))
            d.effect_count += 1
        if d.called and (d.place[d.pc] < 0 or d.place[d.sp] < 0 or d.place[d.status] < 0):
            raise ValueError("the trap frame lacks pc, sp or status")
        d.frame_mask, d.mask_sets, d.cpu_mask = shape.frame_mask, shape.mask_sets, shape.cpu_mask
        d.flags_if = shape.flags_if
        d.returns_by_jump = not shape.second_breakpoint
        if len(shape.jump) > 8 or len(shape.short_nop) > 2:
            raise ValueError("the jump or the short no-op of the trampolines is too long")
        d.jump_length = len(shape.jump)
        for i in range(len(shape.jump)):
            d.jump[i] = shape.jump[i]
        self.shape = shape
        self.choose(GUEST)
        for i in range(len(shape.short_nop)):
            d.short_nop[i] = shape.short_nop[i]

    def choose(self, int path):
        """Select the trap path of all breakpoints: 0 guest, 1 direct, 2 double."""
        cdef Dispatch *d = &self.d
        cdef int i
        self.unchanging()
        if path not in (GUEST, DIRECT, DOUBLE):
            raise ValueError("the path must be 0 (guest), 1 (direct) or 2 (double)")
        if self.d.clock != NULL and self.d.clock.trap_data == <void *>&self.d:
            raise RuntimeError("the dispatcher is handling breakpoints: call deafen() first")
        kind = self.shape.breakpoints[path == DIRECT]
        if not 0 < len(kind.code) <= 4 or len(kind.short) > 2:
            raise ValueError("a breakpoint must have one to four bytes, a short one at most two")
        d.path = path
        d.vector = kind.vector
        d.bias = kind.bias
        d.breakpoint_length = len(kind.code)
        for i in range(len(kind.code)):
            d.breakpoint[i] = kind.code[i]
        for i in range(len(kind.short)):
            d.short_breakpoint[i] = kind.short[i]

    cdef bint is_narrow(self, int number) except? False:
        """Whether a register has at most 64 bits."""
        try:
            self.engine.read(number)
        except EngineError:
            return False
        return True

    def add(self, uint64_t address, bytes code, uint32_t function, int provider):
        """Add a probe to an instruction.

        :return: the probe's number, or -1 if the instruction is refused.
        """
        self.unchanging()
        cdef uint32_t length = 0
        cdef int32_t relative = 0
        cdef int64_t template = self.template_of(code, len(code), address, &length, &relative)
        if template < 0 or self.templates.all[template].op == REFUSE:
            return -1
        return table_probe_at(
            &self.d, table_site_at(&self.d, address, <uint32_t>template, code, length, relative),
            function, provider)

    def add_static(self, uint32_t declared):
        """Add a static probe that has no tracepoints yet.

        :param declared: its index among the declared probes.
        :return: the probe's number; each call adds another probe.
        """
        self.unchanging()
        return table_new_probe(&self.d, NONE, declared, STATIC)

    def add_static_in_program(self, uint32_t declared, sources, int needed):
        """Add a probe that a program declares, which has no instructions yet; return its number.

        :param declared: its index among the declared probes.
        :param needed: number of the first arguments without which it cannot fire; others are 0 if
            they cannot be read.
        :param sources: for each argument, (True, index of a register) or (False, index of an
            eight-byte word, counted from the stack pointer).
        """
        self.unchanging()
        cdef Sources found
        cdef int i
        memset(&found, 0, sizeof(Sources))
        if len(sources) > DECLARED_ARGUMENTS:
            raise ValueError(f"a probe can have at most {DECLARED_ARGUMENTS} arguments")
        found.count, found.declared = len(sources), needed
        for i, (is_register, place) in enumerate(sources):
            if not is_register and not 0 <= place < MOST_ON_STACK:
                raise ValueError(f"an argument must be in the first {MOST_ON_STACK} words")
            found.place[i] = self.known_register(place) if is_register else ON_STACK + place
        return program_static_add(&self.d, declared, &found)

    def add_static_site(self, uint32_t probe, int program, uint64_t address, bytes code, bint asked):
        """Add an instruction to a probe that a program declares.

        :param asked: whether the program asks there if the probe is enabled.
        :raises ValueError: if the bytes are not an instruction.
        """
        self.unchanging()
        cdef uint32_t length = 0
        cdef int32_t relative = 0
        cdef uint32_t site, i
        cdef int64_t template
        if probe >= self.d.probe_count or self.d.probes[probe].provider != PROGRAM_STATIC or (
                self.d.probes[probe].site != NONE):
            raise ValueError("the probe is not one that a program declares")
        template = self.template_of(code, len(code), address, &length, &relative)
        if template < 0:
            raise ValueError(f"{address:#x}: no instruction")
        site = program_site(&self.d, program, address, <uint32_t>template, code, length, relative)
        i = table_probe_at(&self.d, site, self.d.probes[probe].function,
                           PROGRAM_ASKED if asked else PROGRAM_STATIC)
        self.d.probes[i].primary = probe

    def add_tracepoint(self, uint32_t probe, uint64_t address, bytes code, uint64_t target):
        """Add a tracepoint to a static probe.

        :param address: of the tracepoint's instruction, whose bytes are ``code``.
        :param target: address of the kernel's code that computes the arguments and calls a gate.
        """
        self.unchanging()
        cdef Dispatch *d = &self.d
        cdef uint32_t i, site
        if probe >= d.probe_count or d.probes[probe].site != NONE or not target:
            raise ValueError("the probe is not a static probe, or the target address is 0")
        site = self._site(address, code)
        i = table_probe_at(d, site, d.probes[probe].function, STATIC)
        d.probes[i].primary = probe
        d.sites[site].target = target

    def add_guard(self, uint64_t address, bytes code, uint64_t target, uint64_t otherwise,
                  bytes there):
        """Add a guard: a branch that skips a tracepoint while no static probe is enabled.

        :param target: where the branch leads while static probes are enabled.
        :param otherwise: where it leads otherwise; the code at ``target`` may also lead there
            without passing a tracepoint.
        :param there: the instruction at ``otherwise``.
        """
        self.unchanging()
        if not target or not otherwise:
            raise ValueError("a guard needs the addresses of both branch directions")
        cdef uint32_t site = self._site(address, code)
        cdef const Template *t = &self.templates.all[self.d.sites[site].template]
        if not (t.op == BRANCH_FLAGS or t.op == BRANCH_COMPARE or t.op == BRANCH_BIT
                or t.op == BRANCH_COUNT and not t.n):
            raise ValueError(f"{address:#x}: a guard must be a branch that changes no register")
        cdef uint32_t join = self._site(otherwise, there)
        self.d.sites[site].target, self.d.sites[site].otherwise = target, otherwise
        self.d.sites[join].join = True

    def add_gate(self, uint64_t address, bytes code, int arguments):
        """Add a gate: a function whose arguments, after the first, are those of a static probe."""
        self.unchanging()
        if not 0 < arguments <= GIVEN_ARGUMENTS:
            raise ValueError(f"a gate must receive 1 to {GIVEN_ARGUMENTS} arguments")
        cdef uint32_t site = self._site(address, code)
        self.d.sites[site].gate = <uint8_t>arguments

    def use_calls(self, int per_cpu, *, uint64_t arguments, uint64_t entry, uint64_t value,
                  uint64_t error, uint64_t flags, uint32_t error_set):
        """Set the offsets of the thread members that describe a system call.

        :param per_cpu: Unicorn's identifier of the register that points to the thread's pointer.
        :param error_set: flag which means that the system call has set the error itself.
        """
        self.unchanging()
        if not self.is_narrow(per_cpu):
            raise ValueError(f"register {per_cpu} has more than 64 bits")
        cdef Calls *c = &self.d.calls
        c.per_cpu, c.arguments, c.entry, c.value = per_cpu, arguments, entry, value
        c.error, c.flags, c.error_set = error, flags, error_set

    def add_call_table(self, uint64_t base, uint64_t size, uint32_t count):
        """Add a table of system calls with entries of ``size`` bytes; return the table's number."""
        self.unchanging()
        return syscall_add_table(&self.d, base, size, count)

    def add_call_site(self, uint64_t address, bytes code, bint returns):
        """Add a site at the kernel's call of a system call's function, or after this call."""
        self.unchanging()
        cdef uint32_t site = self._site(address, code)
        self.d.sites[site].call = CALL_ENDS if returns else CALL_BEGINS

    def add_operation(self, uint64_t descriptor=0):
        """Add a vnode operation, whose inlined calls can be probed; return its number.

        :param descriptor: the first word of the operation's argument structure; with 0, each of its
            sites belongs to this operation only.
        """
        self.unchanging()
        cdef Dispatch *d = &self.d
        if d.operation_count == MAX_OPERATIONS:
            raise ValueError(f"there can be at most {MAX_OPERATIONS} operations")
        d.operations[d.operation_count] = Operation(NONE, NONE, descriptor)
        d.operation_count += 1
        return d.operation_count - 1

    def add_operation_call(self, uint32_t operation, uint64_t address, bytes code, bint returned):
        """Add a site at a call of a vnode operation, or at the instruction after this call.

        Operations with descriptors may share a call: the compiler merges equal code.
        """
        self.unchanging()
        if operation >= <uint32_t>self.d.operation_count:
            raise ValueError("no operation has this number")
        cdef uint32_t site = self._site(address, code)
        cdef uint32_t here = 2 * operation + returned + 1
        cdef uint32_t there = self.d.sites[site].operation
        if there in (0, here):
            self.d.sites[site].operation = here
        elif (there - 1) & 1 != returned or not (
                self.d.operations[operation].descriptor
                and self.d.operations[(there - 1) >> 1].descriptor):
            raise ValueError("another operation is already called or returns at this address")

    def set_operation(self, uint32_t operation, uint32_t probe, bint returned):
        """Make a static probe fire at the calls of a vnode operation, or at their returns."""
        self.unchanging()
        cdef Dispatch *d = &self.d
        if operation >= <uint32_t>d.operation_count or probe >= d.probe_count or (
                d.probes[probe].site != NONE):
            raise ValueError("no operation has this number, or the probe is not a static probe")
        if returned:
            d.operations[operation].returns = probe
        else:
            d.operations[operation].entry = probe

    def add_lock(self, *, uint64_t word, uint64_t flags, uint64_t shared, uint32_t sharers,
                 uint64_t kind_at, uint32_t shift, uint32_t mask, uint32_t number):
        """Add a kind of lock (``LockState`` in ``_structures.pxi``); return its number."""
        self.unchanging()
        cdef Dispatch *d = &self.d
        if d.lock_count == MAX_LOCKS:
            raise ValueError(f"there can be at most {MAX_LOCKS} kinds of locks")
        if sharers >= 64 or shift >= 32:
            raise ValueError("the sharers are in a word of 64 bits, the kind in one of 32 bits")
        d.locks[d.lock_count] = LockState(word, flags, shared, sharers, kind_at, shift, mask,
                                          number)
        d.lock_count += 1
        return d.lock_count - 1

    def add_lock_swap(self, uint32_t probe, uint32_t kind, uint64_t address, bytes code, *,
                      bint acquires, bint uncertain, uint8_t result, uint64_t result_mask,
                      uint8_t equal, uint64_t value, uint8_t base, uint8_t index, uint64_t scale,
                      int64_t offset, uint8_t old, uint8_t new, uint64_t merges):
        """Make a static probe fire after a swap of a lock's word (``LockSwap``).

        :param kind: number of the lock's kind.
        :param address: address of the instruction after the swap.
        :raises ValueError: if no probe can be at that instruction.
        """
        self.unchanging()
        cdef Dispatch *d = &self.d
        cdef LockSwap *more
        cdef uint32_t room
        if kind >= <uint32_t>d.lock_count or probe >= d.probe_count or d.probes[probe].site != NONE:
            raise ValueError("no kind of lock has this number, or the probe is not a static probe")
        for r in (result, equal, base, index, old, new):
            if r != NO_REGISTER and r >= d.count:
                raise ValueError(f"there is no register {r}")
        if d.lock_swap_count == d.lock_swap_room:
            room = max(1024, 2 * d.lock_swap_room)
            if room > MAX_LOCK_SWAPS:
                raise ValueError(f"there can be at most {MAX_LOCK_SWAPS} swaps of locks")
            more = <LockSwap *>realloc(d.lock_swaps, room * sizeof(LockSwap))
            if more == NULL:
                raise MemoryError
            d.lock_swaps, d.lock_swap_room = more, room
        cdef uint32_t site = self._site(address, code)
        if d.sites[site].lock:
            raise ValueError("another lock is acquired or released at this address")
        d.lock_swaps[d.lock_swap_count] = LockSwap(
            result_mask, value, scale, <uint64_t>offset, merges, kind, probe, result, equal, base,
            index, old, new, acquires, uncertain)
        d.lock_swap_count += 1
        d.sites[site].lock = d.lock_swap_count

    def use_allocations(self, int per_cpu, *, uint64_t of_cpu, uint64_t internal,
                        uint64_t statistics):
        """Set where the probes of allocations find their arguments (``Allocations``).

        :param per_cpu: Unicorn's identifier of the register that points to the CPU's structure.
        """
        self.unchanging()
        if not self.is_narrow(per_cpu):
            raise ValueError(f"register {per_cpu} has more than 64 bits")
        cdef Allocations *a = &self.d.allocations
        a.per_cpu, a.of_cpu, a.internal, a.statistics = per_cpu, of_cpu, internal, statistics

    def add_allocation_site(self, uint64_t address, bytes code, bint frees, *, uint8_t kind,
                            uint8_t size, uint64_t size_value, uint8_t zone, uint64_t zone_value):
        """Add a site at which the kernel has allocated or freed memory (``AllocationSite``).

        :raises ValueError: if no probe can be at that instruction, or there are too many sites.
        """
        self.unchanging()
        cdef Allocations *a = &self.d.allocations
        if kind >= self.d.count or any(
                r != NO_REGISTER and r >= self.d.count for r in (size, zone)):
            raise ValueError("there is no such register")
        if a.site_count == MAX_ALLOCATION_SITES:
            raise ValueError(f"memory is allocated at more than {MAX_ALLOCATION_SITES} places")
        cdef uint32_t site = self._site(address, code)
        if self.d.sites[site].allocation:
            raise ValueError(f"{address:#x}: this is a site of allocations already")
        a.sites[a.site_count] = AllocationSite(size_value, zone_value, kind, size, zone, frees)
        a.site_count += 1
        self.d.sites[site].allocation = a.site_count

    def add_allocation(self, uint64_t kind, bint frees, uint32_t probe):
        """Make a static probe fire when memory of a type is allocated or freed.

        :param kind: address of the type's structure.
        """
        self.unchanging()
        if probe >= self.d.probe_count or self.d.probes[probe].site != NONE:
            raise ValueError("the probe is not a static probe")
        allocation_add_type(&self.d, kind, frees, probe)

    def add_call(self, int table, uint32_t index, bint returns, uint32_t probe, widths):
        """Make a static probe fire when a system call begins or has returned.

        :param widths: width of each argument in bits: negative if signed, 0 for a full register.
        """
        self.unchanging()
        cdef Dispatch *d = &self.d
        cdef CallTable *t
        if not 0 <= table < d.calls.table_count or index >= d.calls.tables[table].count or (
                probe >= d.probe_count or d.probes[probe].site != NONE):
            raise ValueError("the table or system call does not exist, or the probe is not static")
        if len(widths) > CALL_ARGUMENTS or any(not -64 < bits < 64 for bits in widths):
            raise ValueError(f"a system call can have at most {CALL_ARGUMENTS} 64-bit arguments")
        t = &d.calls.tables[table]
        t.probes[2 * index + returns] = probe
        for k, bits in enumerate(widths):
            t.widths[CALL_ARGUMENTS * index + k] = bits

    def use_programs(self, *, uint64_t process, uint64_t number, uint64_t flags, uint32_t executed,
                     uint64_t name, uint64_t parent, uint64_t space):
        """Set the offsets of the members that identify a thread's process.

        :param process: offset of the process in the thread.
        :param number: offset of the process ID in the process; likewise ``flags`` and ``name``,
            and ``parent`` and ``space``, which point to its parent and its address space.
        :param executed: flag of a process that has executed a program since it was created.
        """
        self.unchanging()
        cdef Programs *p = &self.d.programs
        p.process, p.number, p.flags, p.executed, p.name = process, number, flags, executed, name
        p.parent, p.space = parent, space

    def add_program(self, uint32_t process, bytes name, bint executed, bint several=False):
        """Add a program that a process runs; return the program's number, from 1.

        If there is one with the same process and name, it also matches when the new one would.

        :param process: the process ID.
        :param name: the process's name while it runs the program.
        :param executed: match only a process that has executed a program since fork().
        :param several: whether the process also runs other programs of this name; its probes then
            do not fire where the code is not the expected one.
        """
        self.unchanging()
        cdef Programs *p = &self.d.programs
        cdef Program *one
        cdef Program made
        cdef int number
        memset(&made, 0, sizeof(Program))
        made.process, made.executed, made.several = process, executed, several
        for i, byte in enumerate(name[: COMM - 1]):
            made.name[i] = byte
        for number in range(p.count):
            one = &p.all[number]
            if one.process == process and program_same_name(one.name, made.name):
                one.executed = one.executed and executed
                one.several = one.several or several
                return number + 1
        if p.count == MAX_PROGRAMS:
            raise ValueError(f"at most {MAX_PROGRAMS} programs can have probes at the same time")
        p.all[p.count] = made
        p.count += 1
        return p.count

    def add_in_program(self, int program, uint64_t address, bytes code, uint32_t function, int kind):
        """Add a probe to an instruction of a program.

        :return: the probe's number, or -1 if the bytes are not an instruction.
        """
        self.unchanging()
        cdef uint32_t length = 0
        cdef int32_t relative = 0
        cdef int64_t template = self.template_of(code, len(code), address, &length, &relative)
        if template < 0:
            return -1
        return table_probe_at(&self.d, program_site(&self.d, program, address, <uint32_t>template, code,
                                                 length, relative), function, kind)

    def fire_leaving(self, uint32_t probe, uint64_t address, uint64_t size):
        """Make a return probe at a jump fire only if the jump leaves the function.

        :param address: of the function, which has ``size`` bytes.
        """
        self.unchanging()
        if probe >= self.d.probe_count or self.d.probes[probe].site == NONE:
            raise IndexError(probe)
        self.leaves_by(probe, self.d.sites[self.d.probes[probe].site].template)
        table_leaves_only(&self.d, probe, address, size)

    def fire_behind(self, uint32_t probe):
        """Make the return probe of a tail call fire when the called function has returned."""
        self.unchanging()
        if probe >= self.d.probe_count or self.d.probes[probe].site == NONE:
            raise IndexError(probe)
        self.leaves_by(probe, self.d.sites[self.d.probes[probe].site].template)

    def leaves(self, uint32_t probe):
        """Return [begin, end) if a probe fires only when control leaves this range, else None."""
        if probe >= self.d.probe_count:
            raise IndexError(probe)
        cdef Probe p = self.d.probes[probe]
        return (p.low, p.high) if p.high else None

    def add_all_in_program(self, int program, uint64_t address, bytes code, uint32_t function,
                           int kind):
        """Add a probe to each instruction of a program's function; return the probes' numbers."""
        self.unchanging()
        cdef Piece *pieces = NULL
        cdef uint64_t i, count
        cdef const uint8_t[::1] content = code
        made = []
        try:
            count = self.pieces(address, content, 0, len(code), &pieces, [])
            for i in range(count):
                made.append(table_probe_at(&self.d, program_site(
                    &self.d, program, address + pieces[i].at, pieces[i].template,
                    &content[pieces[i].at], pieces[i].length, pieces[i].relative), function, kind))
        finally:
            free(pieces)
        return made

    def program(self, uint32_t probe):
        """Return the number of the program that a probe is in, or 0 for the kernel."""
        if probe >= self.d.probe_count:
            raise IndexError(probe)
        if self.d.probes[probe].site == NONE or not program_owns(&self.d.sites[self.d.probes[probe].site]):
            return 0
        return self.d.sites[self.d.probes[probe].site].address >> PROGRAM_SHIFT

    cdef int hook_programs(self) except -1:
        self.d.programs.turn = 0
        for begin, end in program_ranges(&self.d):
            self.program_hooks.append(self.engine.hook_range(
                begin, end, <void *>on_instruction, &self.d))
        if self.program_hooks:
            self.engine.flush_translations()
        return 0

    cdef int unhook_programs(self) except -1:
        while self.program_hooks:
            self.engine.unhook(self.program_hooks[len(self.program_hooks) - 1])
            self.program_hooks.pop()
        return 0

    cdef uint32_t _site(self, uint64_t address, bytes code) except? 0xFFFFFFFF:
        cdef uint32_t length = 0
        cdef int32_t relative = 0
        cdef int64_t template = self.template_of(code, len(code), address, &length, &relative)
        if template < 0 or self.templates.all[template].op == REFUSE:
            raise ValueError(f"{address:#x}: no breakpoint can be set on this instruction")
        return table_site_at(&self.d, address, <uint32_t>template, code, length, relative)

    def add_all(self, uint64_t address, const uint8_t[::1] code, uint64_t start, uint64_t size,
                uint32_t function, int provider):
        """Add a probe to every instruction of a function except refused instructions.

        :param code: memory that holds the function at offset ``start``.
        :return: the probes' numbers.
        """
        self.unchanging()
        cdef Piece *pieces = NULL
        cdef uint64_t i, count
        cdef bint exclusive = False
        cdef const Template *t
        made = []
        try:
            count = self.pieces(address, code, start, size, &pieces, [])
            for i in range(count):
                t = &self.templates.all[pieces[i].template]
                exclusive = exclusive or t.flags & STARTS_EXCLUSIVE
                if not exclusive and t.op != REFUSE:
                    made.append(table_probe_at(
                        &self.d,
                        table_site_at(&self.d, address + pieces[i].at, pieces[i].template,
                                &code[start + pieces[i].at], pieces[i].length,
                                pieces[i].relative),
                        function, provider))
                if t.flags & ENDS_EXCLUSIVE:
                    exclusive = False
        finally:
            free(pieces)
        return made

    cdef void leaves_by(self, uint32_t probe, uint32_t template):
        """Record whether a return probe is at a tail call rather than at a return instruction."""
        self.d.probes[probe].tail = not self.templates.all[template].flags & RETURNS

    def remove(self, uint32_t probe):
        """Remove a probe; the probe's breakpoint must not be in memory."""
        self.unchanging()
        cdef Dispatch *d = &self.d
        cdef uint32_t i
        cdef Site *s
        if probe >= d.probe_count:
            raise IndexError(probe)
        if d.probes[probe].removed:
            return
        if d.probes[probe].site == NONE or d.probes[probe].primary != probe:
            raise ValueError("a static probe cannot be removed alone: remove all probes")
        if d.sites[d.probes[probe].site].patched:
            raise RuntimeError("the breakpoint is in memory: disable the probes first")
        d.probes[probe].removed = True
        s = &d.sites[d.probes[probe].site]
        if s.first == probe:
            s.first = d.probes[probe].next
            return
        i = s.first
        while i != NONE:
            if d.probes[i].next == probe:
                d.probes[i].next = d.probes[probe].next
                return
            i = d.probes[i].next

    def clear(self):
        """Remove all probes and free their memory."""
        self.unchanging()
        self.unpatched()
        cdef Dispatch *d = &self.d
        if d.site_room > 4096:
            free(d.sites)
            free(d.probes)
            free(d.hash)
            d.sites, d.probes, d.hash = NULL, NULL, NULL
            d.site_room = d.probe_room = 0
            d.hash_mask = 0
        elif d.hash != NULL:
            memset(d.hash, 0xFF, (d.hash_mask + 1) * sizeof(uint32_t))
        d.site_count = d.probe_count = 0
        d.programs.count = 0
        d.source_count = 0
        d.operation_count = d.pending_count = 0
        d.lock_count = d.lock_swap_count = 0
        d.allocations.site_count = d.allocations.type_count = 0
        d.lock_passing_count = 0
        program_forget_left(&d.programs)
        syscall_forget_calls(d)
        return_forget_tails(d)
        d.copy_count = d.range_count = 0

    def __len__(self):
        return self.d.probe_count

    def probe(self, uint32_t number):
        """Return a probe's address, code, function, provider, firing count, and removed flag."""
        if number >= self.d.probe_count:
            raise IndexError(number)
        cdef Probe p = self.d.probes[number]
        if p.site == NONE:
            return 0, b"", p.function, p.provider, p.count, bool(p.removed)
        cdef Site *s = &self.d.sites[p.site]
        return program_place_of(s), bytes(s.code[:s.length]), p.function, p.provider, p.count, bool(p.removed)

    def columns(self, const uint32_t[::1] probes):
        """Return the addresses of many probes in code, and where each function's probes begin.

        :return: 8-byte integers in the machine's byte order, and (function, index of its first
            probe) for each run of probes in one function.
        :raises IndexError: if there is no such probe, or it is not in code.
        """
        cdef Py_ssize_t count = probes.shape[0]
        cdef Py_ssize_t i
        cdef uint32_t site, function
        cdef uint32_t before = NONE
        cdef bytearray addresses = bytearray(8 * count)
        cdef uint64_t *at = <uint64_t *><char *>addresses
        cdef list runs = []
        for i in range(count):
            if probes[i] >= self.d.probe_count:
                raise IndexError(probes[i])
            site = self.d.probes[probes[i]].site
            if site == NONE:
                raise IndexError(probes[i])
            at[i] = program_place_of(&self.d.sites[site])
            function = self.d.probes[probes[i]].function
            if function != before:
                runs.append((function, i))
                before = function
        return addresses, runs

    def template(self, uint64_t address):
        """Return (operation, trampoline address or 0) of a site, or None if there is no site."""
        cdef uint32_t i = table_find(&self.d, address)
        if i == NONE:
            return None
        cdef Site *s = &self.d.sites[i]
        return (self.templates.all[s.template].op,
                0 if s.slot == NONE else self.d.slot_base + <uint64_t>s.slot * SLOT)

    def __contains__(self, uint64_t address):
        """Whether this dispatcher has a breakpoint at an address, in code or in a trampoline."""
        cdef uint32_t i = table_find(&self.d, address)
        return i != NONE and self.d.sites[i].patched or table_find_second(&self.d, address) != NONE

    def displaced(self, uint64_t address):
        """Return the original bytes of the instruction at a site, or b"" if there is no site."""
        cdef uint32_t i = table_find(&self.d, address)
        if i == NONE:
            return b""
        return bytes(self.d.sites[i].code[:self.d.sites[i].length])

    def second(self, uint64_t address):
        """Return the site whose trampoline has its second breakpoint at an address, or None."""
        cdef uint32_t i = table_find_second(&self.d, address)
        return None if i == NONE else self.d.sites[i].address

    def probes_at(self, uint64_t address):
        """Return the numbers of the probes at a site, in the order in which they fire."""
        cdef uint32_t i = table_find(&self.d, address)
        found = []
        if i != NONE:
            i = self.d.sites[i].first
            while i != NONE:
                found.append(self.d.probes[i].primary)
                i = self.d.probes[i].next
        return found

    cdef int unchanging(self) except -1:
        """Raise an error if a probe is firing, because a firing uses the tables and the memory."""
        if self.d.firing:
            raise RuntimeError("probes cannot be changed while one fires")
        return 0

    cdef int live(self) except -1:
        if self.d.clock == NULL:
            raise RuntimeError("this dispatcher has no machine: it only reads code")
        return 0

    cdef int unpatched(self) except -1:
        cdef uint32_t i
        for i in range(self.d.site_count):
            if self.d.sites[i].patched:
                raise RuntimeError("breakpoints are in memory: disable the probes first")
        if self.program_hooks:
            raise RuntimeError("probes in programs are enabled: disable the probes first")
        return 0
