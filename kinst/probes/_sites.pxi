"""Sites and probes, as they are added and removed; part of the dispatcher (``_dispatch.pyx`` includes it)."""


@cython.no_gc_clear  # the engine is needed to the end, to be told that nobody listens
cdef class ProbeSites(CodeReader):
    """Sites and probes of one machine.

    :param engine: the machine's.
    :param shape: what the architecture is like (``kinst/relocation/shape.py``).
    :param classify: gives the number of a template for (bytes, length, displacement).
    """

    cdef Dispatch d
    cdef Engine engine
    cdef object shape
    cdef public object fire
    cdef public object recursion
    cdef public object sink  # is called when there are many records
    cdef list drained
    cdef object action  # keeps what is called
    cdef list program_hooks
    cdef object failure

    def __cinit__(self):
        memset(&self.d, 0, sizeof(Dispatch))
        self.d.templates = &self.templates

    def __dealloc__(self):
        if self.engine is not None and self.program_hooks:  # they lead here
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

    def __init__(self, Engine engine, shape, classify):
        cdef Dispatch *d = &self.d
        cdef int i
        if d.owner != NULL:
            raise RuntimeError("a dispatcher is made once")
        self.engine = engine  # None: to look at code, not to probe it
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
            raise ValueError("a trap frame is of at most 4096 bytes")
        for i, (number, place, restored) in enumerate(shape.registers):
            d.number[i] = number
            d.place[i] = place
            d.restored[i] = restored
            if not -1 <= place <= d.frame_size - 8:
                raise ValueError("a register lies outside the trap frame")
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
            raise ValueError("too many flags")
        d.flag_count = len(shape.flag_bits)
        for i in range(d.flag_count):
            d.flag_bits[i] = shape.flag_bits[i]
        d.linked = shape.linked
        d.called = shape.called
        d.frame_bias = shape.frame_bias
        if len(shape.effects) > MAX_EFFECTS:
            raise ValueError("too many kernel effects")
        for code, answer, base, change, returns, stores, loads in shape.effects:
            if len(code) != 1:
                raise ValueError("an instruction with a kernel effect has one byte")
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
            raise ValueError("too long a jump")
        d.jump_length = len(shape.jump)
        for i in range(len(shape.jump)):
            d.jump[i] = shape.jump[i]
        self.shape = shape
        self.choose(GUEST)
        for i in range(len(shape.short_nop)):
            d.short_nop[i] = shape.short_nop[i]

    def choose(self, int path):
        """The breakpoints of a path: 0 guest, 1 direct, 2 double."""
        cdef Dispatch *d = &self.d
        cdef int i
        self.unchanging()
        if path not in (GUEST, DIRECT, DOUBLE):
            raise ValueError("a path is 0, 1 or 2")
        if self.d.clock != NULL and self.d.clock.trap_data == <void *>&self.d:
            raise RuntimeError("breakpoints are answered: deafen the dispatcher first")
        kind = self.shape.breakpoints[path == DIRECT]
        if not 0 < len(kind.code) <= 4 or len(kind.short) > 2:
            raise ValueError("a breakpoint is of one to four bytes, a short one of at most two")
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
        """A probe on one instruction.

        :return: its number, or -1 when the instruction is refused.
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
        """A static probe, which has no tracepoint yet.

        :param declared: which of those that are declared.
        :return: its number; asked for again, another one.
        """
        self.unchanging()
        return table_new_probe(&self.d, NONE, declared, STATIC)

    def add_tracepoint(self, uint32_t probe, uint64_t address, bytes code, uint64_t target):
        """One of a static probe's.

        :param code: the instruction there.
        :param target: where the kernel makes the arguments, on the way to a gate.
        """
        self.unchanging()
        cdef Dispatch *d = &self.d
        cdef uint32_t i, site
        if probe >= d.probe_count or d.probes[probe].site != NONE or not target:
            raise ValueError("no static probe, or no place where its arguments are made")
        site = self._site(address, code)
        i = table_probe_at(d, site, d.probes[probe].function, STATIC)
        d.probes[i].primary = probe
        d.sites[site].target = target

    def add_guard(self, uint64_t address, bytes code, uint64_t target, uint64_t otherwise,
                  bytes there):
        """A branch, which tests whether static probes are enabled, to code with a tracepoint.

        :param target: where it leads when they are; ``otherwise`` else: the same code may come there
            without a tracepoint.
        :param there: the instruction there.
        """
        self.unchanging()
        if not target or not otherwise:
            raise ValueError("a guard leads to two places")
        cdef uint32_t site = self._site(address, code)
        cdef const Template *t = &self.templates.all[self.d.sites[site].template]
        if not (t.op == BRANCH_FLAGS or t.op == BRANCH_COMPARE or t.op == BRANCH_BIT
                or t.op == BRANCH_COUNT and not t.n):
            raise ValueError(f"{address:#x}: a guard is a branch that changes nothing")
        cdef uint32_t join = self._site(otherwise, there)
        self.d.sites[site].target, self.d.sites[site].otherwise = target, otherwise
        self.d.sites[join].join = True

    def add_gate(self, uint64_t address, bytes code, int arguments):
        """Where static probes' arguments are in the registers: so many, behind a first one."""
        self.unchanging()
        if not 0 < arguments <= GIVEN_ARGUMENTS:
            raise ValueError(f"a gate is given at most {GIVEN_ARGUMENTS} arguments")
        cdef uint32_t site = self._site(address, code)
        self.d.sites[site].gate = <uint8_t>arguments

    def use_calls(self, int per_cpu, *, uint64_t arguments, uint64_t entry, uint64_t value,
                  uint64_t error, uint64_t flags, uint32_t error_set):
        """Where a thread has what it says of its system call: offsets.

        :param per_cpu: Unicorn's number of the register that leads to the thread.
        :param error_set: of its flags, says that the call has set the error itself.
        """
        self.unchanging()
        if not self.is_narrow(per_cpu):
            raise ValueError(f"register {per_cpu} has more than 64 bits")
        cdef Calls *c = &self.d.calls
        c.per_cpu, c.arguments, c.entry, c.value = per_cpu, arguments, entry, value
        c.error, c.flags, c.error_set = error, flags, error_set

    def add_call_table(self, uint64_t base, uint64_t size, uint32_t count):
        """A table of system calls, of entries of ``size`` bytes; its number."""
        self.unchanging()
        return syscall_add_table(&self.d, base, size, count)

    def add_call_site(self, uint64_t address, bytes code, bint returns):
        """Where the kernel calls a system call's function, or where that has returned."""
        self.unchanging()
        cdef uint32_t site = self._site(address, code)
        self.d.sites[site].call = CALL_ENDS if returns else CALL_BEGINS

    def add_operation(self):
        """A function that is inline in its callers, whose calls are to be probed; its number."""
        self.unchanging()
        cdef Dispatch *d = &self.d
        if d.operation_count == MAX_OPERATIONS:
            raise ValueError(f"more than {MAX_OPERATIONS} operations")
        d.operations[d.operation_count] = Operation(NONE, NONE)
        d.operation_count += 1
        return d.operation_count - 1

    def add_operation_call(self, uint32_t operation, uint64_t address, bytes code, bint returned):
        """Where an operation is called, or has returned."""
        self.unchanging()
        if operation >= <uint32_t>self.d.operation_count:
            raise ValueError("no such operation")
        cdef uint32_t site = self._site(address, code)
        cdef uint32_t here = 2 * operation + returned + 1
        if self.d.sites[site].operation not in (0, here):
            raise ValueError("two operations are called there")
        self.d.sites[site].operation = here

    def set_operation(self, uint32_t operation, uint32_t probe, bint returned):
        """A static probe is that of an operation, before it or where it has returned."""
        self.unchanging()
        cdef Dispatch *d = &self.d
        if operation >= <uint32_t>d.operation_count or probe >= d.probe_count or (
                d.probes[probe].site != NONE):
            raise ValueError("no such operation, or no static probe")
        if returned:
            d.operations[operation].returns = probe
        else:
            d.operations[operation].entry = probe

    def add_call(self, int table, uint32_t index, bint returns, uint32_t probe, widths):
        """A static probe is that of a system call.

        :param widths: of its arguments, bits; negative: with a sign, 0: all as they are.
        """
        self.unchanging()
        cdef Dispatch *d = &self.d
        cdef CallTable *t
        if not 0 <= table < d.calls.table_count or index >= d.calls.tables[table].count or (
                probe >= d.probe_count or d.probes[probe].site != NONE):
            raise ValueError("no such table, no such system call in it, or no static probe")
        if len(widths) > CALL_ARGUMENTS or any(not -64 < bits < 64 for bits in widths):
            raise ValueError(f"a system call has at most {CALL_ARGUMENTS} arguments of 64 bits")
        t = &d.calls.tables[table]
        t.probes[2 * index + returns] = probe
        for k, bits in enumerate(widths):
            t.widths[CALL_ARGUMENTS * index + k] = bits

    def use_programs(self, *, uint64_t process, uint64_t number, uint64_t flags, uint32_t executed,
                     uint64_t name):
        """Where a thread has its process, and that its number, flags and name: offsets.

        :param executed: of the flags, says that it has executed a program since it was made.
        """
        self.unchanging()
        cdef Programs *p = &self.d.programs
        p.process, p.number, p.flags, p.executed, p.name = process, number, flags, executed, name

    def add_program(self, uint32_t process, bytes name, bint executed):
        """A process while it runs a program; its number, from 1.

        :param name: of the process, then.
        :param executed: only from when it has executed it; not where it was made as a copy.
        """
        self.unchanging()
        cdef Programs *p = &self.d.programs
        cdef Program *one
        if p.count == MAX_PROGRAMS:
            raise ValueError(f"at most {MAX_PROGRAMS} programs have probes at once")
        one = &p.all[p.count]
        memset(one, 0, sizeof(Program))
        one.process, one.executed = process, executed
        for i, byte in enumerate(name[: COMM - 1]):
            one.name[i] = byte
        p.count += 1
        return p.count

    def add_in_program(self, int program, uint64_t address, bytes code, uint32_t function, int kind):
        """A probe on an instruction of a program.

        :return: its number, or -1 when it is no instruction.
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
        """A probe fires only where the guest then leaves the function, of ``size`` bytes."""
        self.unchanging()
        if probe >= self.d.probe_count or self.d.probes[probe].site == NONE:
            raise IndexError(probe)
        self.leaves_by(probe, self.d.sites[self.d.probes[probe].site].template)
        table_leaves_only(&self.d, probe, address, size)

    def fire_behind(self, uint32_t probe):
        """A probe at a jump fires when the function that is jumped to has returned."""
        self.unchanging()
        if probe >= self.d.probe_count or self.d.probes[probe].site == NONE:
            raise IndexError(probe)
        self.leaves_by(probe, self.d.sites[self.d.probes[probe].site].template)

    def leaves(self, uint32_t probe):
        """The function [begin, end) that a probe fires only on leaving; None: it fires always."""
        if probe >= self.d.probe_count:
            raise IndexError(probe)
        cdef Probe p = self.d.probes[probe]
        return (p.low, p.high) if p.high else None

    def add_all_in_program(self, int program, uint64_t address, bytes code, uint32_t function,
                           int kind):
        """Probes on all instructions of a program's function; their numbers."""
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
        """The number of the program that a probe is in; 0: the kernel."""
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
            raise ValueError(f"{address:#x}: no instruction there can be displaced")
        return table_site_at(&self.d, address, <uint32_t>template, code, length, relative)

    def add_all(self, uint64_t address, const uint8_t[::1] code, uint64_t start, uint64_t size,
                uint32_t function, int provider):
        """Probes on all instructions of a function that are not refused.

        :param code: memory that holds the function at ``start``.
        :return: their numbers.
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
        """A return is at an instruction that returns, or at a jump that is a tail call."""
        self.d.probes[probe].tail = not self.templates.all[template].flags & RETURNS

    def remove(self, uint32_t probe):
        """Take a probe away; its breakpoint must not be in memory."""
        self.unchanging()
        cdef Dispatch *d = &self.d
        cdef uint32_t i
        cdef Site *s
        if probe >= d.probe_count:
            raise IndexError(probe)
        if d.probes[probe].removed:
            return
        if d.probes[probe].site == NONE or d.probes[probe].primary != probe:
            raise ValueError("static probes are taken away all together")
        if d.sites[d.probes[probe].site].patched:
            raise RuntimeError("its breakpoint is in memory: disable the probes first")
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
        """Take all probes away, and give their memory back."""
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
        d.operation_count = d.pending_count = 0
        program_forget_left(&d.programs)
        syscall_forget_calls(d)
        return_forget_tails(d)
        d.copy_count = d.range_count = 0

    def __len__(self):
        return self.d.probe_count

    def probe(self, uint32_t number):
        """Address, code, function, provider, firings, and whether it was removed."""
        if number >= self.d.probe_count:
            raise IndexError(number)
        cdef Probe p = self.d.probes[number]
        if p.site == NONE:
            return 0, b"", p.function, p.provider, p.count, bool(p.removed)
        cdef Site *s = &self.d.sites[p.site]
        return program_place_of(s), bytes(s.code[:s.length]), p.function, p.provider, p.count, bool(p.removed)

    def template(self, uint64_t address):
        """The operation at a site: (op, trampoline's address or 0), or None."""
        cdef uint32_t i = table_find(&self.d, address)
        if i == NONE:
            return None
        cdef Site *s = &self.d.sites[i]
        return (self.templates.all[s.template].op,
                0 if s.slot == NONE else self.d.slot_base + <uint64_t>s.slot * SLOT)

    def __contains__(self, uint64_t address):
        """Whether one of our breakpoints is there, in code or in a trampoline."""
        cdef uint32_t i = table_find(&self.d, address)
        return i != NONE and self.d.sites[i].patched or table_find_second(&self.d, address) != NONE

    def displaced(self, uint64_t address):
        """The bytes a breakpoint stands over."""
        cdef uint32_t i = table_find(&self.d, address)
        if i == NONE:
            return b""
        return bytes(self.d.sites[i].code[:self.d.sites[i].length])

    def second(self, uint64_t address):
        """The address of the site whose trampoline's second breakpoint this is, or None."""
        cdef uint32_t i = table_find_second(&self.d, address)
        return None if i == NONE else self.d.sites[i].address

    def probes_at(self, uint64_t address):
        """The numbers of the probes at a site, in the order they fire."""
        cdef uint32_t i = table_find(&self.d, address)
        found = []
        if i != NONE:
            i = self.d.sites[i].first
            while i != NONE:
                found.append(self.d.probes[i].primary)
                i = self.d.probes[i].next
        return found

    cdef int unchanging(self) except -1:
        """Tables and memory stay as they are while a firing uses them."""
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
