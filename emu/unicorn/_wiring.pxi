"""What the engine is connected to; part of it (``_engine.pyx`` includes it)."""

cdef class EngineWiring:
    """What one Unicorn engine is connected to: memory, devices, exceptions, registers.

    :param owner: the ``unicorn.Uc`` it belongs to.
    :param symbols: addresses of the libunicorn functions named in ``FUNCTIONS``.
    :param fixed: instruction length in bytes where all are alike (arm64: 4), else 0.
    :raises EngineError: when libunicorn refuses a call.
    """

    FUNCTIONS = ("uc_emu_start", "uc_emu_stop", "uc_reg_read", "uc_reg_write",
                 "uc_reg_read2", "uc_reg_write2", "uc_mem_map_ptr",
                 "uc_mmio_map", "uc_hook_add", "uc_hook_del", "uc_ctl", "uc_vmem_translate",
                 "uc_context_alloc", "uc_context_save", "uc_context_restore",
                 "uc_context_size", "uc_context_free")

    def __cinit__(self):
        memset(&self.clock, 0, sizeof(Clock))
        self.clock.table = <BlockCount *>calloc(1 << 16, sizeof(BlockCount))
        if self.clock.table == NULL:
            raise MemoryError
        self.clock.table_mask = (1 << 16) - 1

    def __dealloc__(self):
        cdef int i
        free(self.clock.table)
        free(self.clock.prefixes)
        free(self.clock.awaited)
        for i in range(self.clock.region_count):
            free(self.clock.regions[i].code)
        if self.clock.context != NULL:
            self.clock.context_free(self.clock.context)
        for i in range(MAX_CPUS):
            if self.clock.parts[i].context != NULL:
                self.clock.context_free(self.clock.parts[i].context)

    def __init__(self, owner, dict symbols, int pc_register, uint32_t fixed):
        cdef uintptr_t handle = owner._uch.value or 0
        if self.uc != NULL:
            raise RuntimeError("an engine is made once")
        if handle == 0:
            raise ValueError("the engine was closed")
        for name in self.FUNCTIONS:
            if not symbols.get(name):
                raise ValueError(f"libunicorn has no {name}: version 2.1.4 is known to work")
        self.owner = owner
        owner.hooked_by = self  # whoever holds it can run it, and the hooks are this engine's
        self.memory = []
        self.emu_start_fn_ = <emu_start_fn><uintptr_t>symbols["uc_emu_start"]
        self.reg_read_fn = <reg2_fn><uintptr_t>symbols["uc_reg_read2"]
        self.reg_write_fn = <reg2_fn><uintptr_t>symbols["uc_reg_write2"]
        self.map_ptr = <map_ptr_fn><uintptr_t>symbols["uc_mem_map_ptr"]
        self.mmio_map = <mmio_map_fn><uintptr_t>symbols["uc_mmio_map"]
        self.hook_add = <kinst_hook_add_fn><uintptr_t>symbols["uc_hook_add"]
        self.hook_del = <hook_del_fn><uintptr_t>symbols["uc_hook_del"]
        self.clock.walk = ask_model
        self.clock.untold = True
        self.ctl = <kinst_ctl_fn><uintptr_t>symbols["uc_ctl"]
        self.uc = <void *>handle
        self.clock.uc = self.uc
        self.clock.engine = <void *>self
        self.clock.emu_stop = <emu_stop_fn><uintptr_t>symbols["uc_emu_stop"]
        self.clock.reg_read = <reg_fn><uintptr_t>symbols["uc_reg_read"]
        self.clock.reg_write = <reg_fn><uintptr_t>symbols["uc_reg_write"]
        self.clock.vmem_translate = <translate_fn><uintptr_t>symbols["uc_vmem_translate"]
        self.clock.ctl = self.ctl
        self.clock.pc_register = pc_register
        self.clock.begin = begin_block
        self.clock.unusual = unusual_block
        self.context_alloc = <context_alloc_fn><uintptr_t>symbols["uc_context_alloc"]
        self.clock.context_save = <context_fn><uintptr_t>symbols["uc_context_save"]
        self.clock.context_restore = <context_fn><uintptr_t>symbols["uc_context_restore"]
        self.context_size = <context_size_fn><uintptr_t>symbols["uc_context_size"]
        self.clock.context_free = <context_free_fn><uintptr_t>symbols["uc_context_free"]
        self.clock.deadline = 0xFFFFFFFFFFFFFFFF
        self.clock.limit = self.clock.turn_end = 0xFFFFFFFFFFFFFFFF
        self.clock.cpus = 1
        if fixed not in (0, 4):
            raise ValueError("instructions are of four bytes, or of different lengths (0)")
        self.clock.fixed = fixed
        self.clock.fixed_bits = 2
        self.clock.page_bits = NO_PAGES
        self.pc_register = pc_register
        self.windows = []
        self.seam_hooks = {}
        self.left_hooks = {}
        self.most_left = MAX_STOPS
        self.error = None
        memset(&self.system, 0, sizeof(self.system))
        self._ok("use exits", self.ctl(self.uc, ctl_word(CTL_USE_EXITS, 1, CTL_WRITE), 1))
        self._hook(HOOK_BLOCK, <void *>block_hook)
        self._hook(HOOK_INTR, <void *>interrupt_hook)
        self._hook(HOOK_INSN_INVALID, <void *>invalid_hook)
        self._hook(HOOK_EDGE_GENERATED, <void *>edge_hook)

    cdef int _made(self) except -1:
        if self.uc == NULL:
            raise RuntimeError("the engine was not made")
        return 0

    cdef int _still(self) except -1:
        """What would pull the ground from under translated code is not done while it runs."""
        self._made()
        if self.clock.running:
            raise RuntimeError("the engine is running: this cannot be done from inside its run")
        return 0

    cdef int _ok(self, what, int code) except -1:
        if code != 0:
            raise EngineError(what, code)
        return 0

    cdef int _hook(self, int kind, void *callback) except -1:
        cdef size_t hook = 0
        return self._ok("hook", self.hook_add(self.uc, &hook, kind, callback, &self.clock,
                                              <uint64_t>1, <uint64_t>0))

    cdef void failed(self, error):
        """A device callback raised: remember it and stop; ``run`` raises it."""
        if self.error is None:
            self.error = error
        self.clock.stop = STOP_REQUEST
        self.clock.emu_stop(self.uc)

    # -- what the engine is wired to ----------------------------------------------------------

    def map_ram(self, uint64_t address, memory, uint32_t perms=7):
        """Map host memory (a writable buffer, which is kept) at guest physical ``address``;
        not while the CPU runs, which goes on with what it has looked up before."""
        cdef int i = self.clock.region_count
        cdef Py_buffer buffer
        cdef void *host
        cdef uint8_t *code
        cdef uint64_t size
        self._still()
        if i == MAX_REGIONS:
            raise ValueError("too many pieces of RAM")
        PyObject_GetBuffer(memory, &buffer, PyBUF_SIMPLE | PyBUF_WRITABLE)
        host, size = buffer.buf, <uint64_t>buffer.len
        PyBuffer_Release(&buffer)
        self._ok(f"map RAM at {address:#x}", self.map_ptr(self.uc, address, size, perms, host))
        self.memory.append(memoryview(memory))  # a buffer that is exported is not resized
        code = <uint8_t *>calloc((size >> 12) + 1, 1)
        if code == NULL:
            raise MemoryError
        self.clock.regions[i] = Region(address, size, <uint8_t *>host, code)
        self.clock.region_count = i + 1

    def map_device(self, uint64_t address, uint64_t size, read, write):
        """Call ``read(offset, size)`` and ``write(offset, size, value)`` for a physical window."""
        self._still()
        cdef _Window w = _Window()
        w.engine = self
        w.read = read
        w.write = write
        self.windows.append(w)
        self._ok(f"map device at {address:#x}",
                 self.mmio_map(self.uc, address, size, <void *>window_read, <void *>w,
                               <void *>window_write, <void *>w))

    def hook_ports(self, int insn_in, int insn_out, port_in, port_out, port_refused):
        """Call ``port_in(port, size)`` and ``port_out(port, size, value)`` for IN and OUT, in a program
        ``port_refused()`` before: whether it must not."""
        self._still()
        self.port_refused = port_refused
        cdef size_t hook = 0
        self.port_in = port_in
        self.port_out = port_out
        self._ok("hook IN", self.hook_add(self.uc, &hook, HOOK_INSN, <void *>port_read,
                                          <void *>self, <uint64_t>1, <uint64_t>0, insn_in))
        self._ok("hook OUT", self.hook_add(self.uc, &hook, HOOK_INSN, <void *>port_write,
                                           <void *>self, <uint64_t>1, <uint64_t>0, insn_out))

    def hook_system_call(self, int insn, uint32_t vector):
        """End at an instruction that the model leaves to its host, as at exception ``vector``."""
        self._still()
        cdef size_t hook = 0
        self.clock.system_call = vector
        self._ok("hook SYSCALL", self.hook_add(self.uc, &hook, HOOK_INSN, <void *>system_call_hook,
                                               &self.clock, <uint64_t>1, <uint64_t>0, insn))

    def hook_tsc(self, int rdtsc, int rdtscp, int low, int high, int aux, uint64_t cost,
                 uint64_t numerator, uint64_t denominator):
        """Answer RDTSC and RDTSCP from the virtual clock; each read costs ``cost`` ns."""
        self._still()
        cdef size_t hook = 0
        self._set_counter(&self.counter, cost, numerator, denominator)
        self.counter.low = low
        self.counter.high = high
        self.rdtscp = self.counter
        self.rdtscp.third = aux
        self._ok("hook RDTSC", self.hook_add(self.uc, &hook, HOOK_INSN, <void *>tsc_read,
                                             &self.counter, <uint64_t>1, <uint64_t>0, rdtsc))
        self._ok("hook RDTSCP", self.hook_add(self.uc, &hook, HOOK_INSN, <void *>tsc_read,
                                              &self.rdtscp, <uint64_t>1, <uint64_t>0, rdtscp))

    def set_counter_port(self, uint32_t port, uint64_t mask, uint64_t cost, uint64_t numerator,
                         uint64_t denominator):
        """A 32-bit port that is read as the virtual clock, natively; each read costs ``cost`` ns.
        Behind ``hook_ports``."""
        self._set_counter(&self.port_counter, cost, numerator, denominator)
        self.counter_port, self.counter_mask = port, mask

    cdef void _set_counter(self, ClockRead *r, uint64_t cost, uint64_t numerator,
                           uint64_t denominator):
        memset(r, 0, sizeof(ClockRead))
        r.clock = &self.clock
        r.reg_write = self.clock.reg_write
        r.cost = cost
        r.numerator = numerator
        r.denominator = denominator

    def hook_system(self, int mrs, int msr, counters, known, read, write, uint64_t cost,
                    uint64_t numerator, uint64_t denominator):
        """Answer MRS and MSR (arm64).

        :param counters: keys read as the virtual counter, natively.
        :param known: keys given to ``read(key)`` and ``write(key, value)``.
        A key is op0 << 14 | op1 << 11 | CRn << 7 | CRm << 3 | op2.
        """
        self._still()
        cdef size_t hook = 0
        self._set_counter(&self.system.counter, cost, numerator, denominator)
        self.system.engine = <void *>self
        for key in counters:
            self.system.counters[<uint32_t>key & 0xFFFF] = 1
        for key in known:
            self.system.known[<uint32_t>key & 0xFFFF] = 1
        self.system_in = read
        self.system_out = write
        self._ok("hook MRS", self.hook_add(self.uc, &hook, HOOK_INSN, <void *>system_read,
                                           &self.system, <uint64_t>1, <uint64_t>0, mrs))
        self._ok("hook MSR", self.hook_add(self.uc, &hook, HOOK_INSN, <void *>system_write,
                                           &self.system, <uint64_t>1, <uint64_t>0, msr))

    def trap_in_programs(self, codes, uint32_t key=0, uint64_t bits=0):
        """In programs, the CPU model carries out instructions that are to be trapped: a block with
        one ends the run instead (STOP_TRAPPED), where it begins.

        :param codes: (mask, value) of the instructions, all of them words.
        :param key: of the system register where they are not trapped while ``bits`` are set; no
            bits: they always are.
        """
        if len(codes) > MAX_TRAPPED:
            raise ValueError("too many kinds of instructions")
        self.system.trap_key, self.system.trap_bits = key, bits
        for i, (mask, value) in enumerate(codes):
            self.clock.trapped[i][0], self.clock.trapped[i][1] = mask, value
        self.clock.trapped_count = <int>len(codes)
        self.clock.program_traps = not bits

    def set_program_traps(self, uint64_t value):
        """The register of ``trap_in_programs`` was written past the guest."""
        self.clock.program_traps = value & self.system.trap_bits != self.system.trap_bits

    def set_interrupt_mask(self, int register, uint64_t bits, uint64_t value):
        """Interrupts are taken while ``register & bits == value``."""
        self.clock.mask_register = register
        self.clock.mask_bits = bits
        self.clock.mask_value = value

    def set_interrupt_gate(self, int register, uint64_t bits):
        """A pending interrupt also needs one of ``bits`` set in ``register``; 0: no such gate."""
        self.clock.gate_register = register
        self.clock.gate_bits = bits

    def set_unmaskable(self, size_t place, uint32_t masked):
        """Interrupts of which ``urgent`` says that one waits are taken unless these bits of a word in
        a context are set.  Behind ``set_breakpoint_exception``, which makes the context."""
        if not CONTEXT_HEADER <= place <= self.context_size(self.uc) - 8 or place % 4:
            raise ValueError("the place is not in a context")
        self._context(place)
        self.clock.urgent_place, self.clock.urgent_masked = <uint32_t>place, masked

    def set_user_mode(self, int level_register, uint64_t bits, uint64_t value):
        """The CPU is in user mode where ``level_register & bits == value``."""
        self.clock.level_register = level_register
        self.clock.level_bits = bits
        self.clock.level_value = value

    def set_user_gate(self, size_t gate_place):
        """In user mode interrupts are not masked, and the model does not tell of control registers:
        what gates interrupts is read at a place of a context.  Behind ``set_breakpoint_exception``,
        which makes the context."""
        if self.clock.context == NULL or gate_place + 8 > self.context_size(self.uc):
            raise ValueError("the place is not in a context")
        self._context(gate_place)
        self.clock.gate_place = gate_place

    # -- registers ----------------------------------------------------------------------------

    cdef int _read(self, what, int register, void *value, size_t size) except -1:
        self._made()
        return self._ok(what, self.reg_read_fn(self.uc, register, value, &size))

    cdef int _write(self, what, int register, const void *value, size_t size) except -1:
        self._made()
        return self._ok(what, self.reg_write_fn(self.uc, register, <void *>value, &size))

    def read(self, int register):
        """A register of at most 64 bits, by Unicorn's number."""
        cdef uint64_t value = 0
        self._read(f"read register {register}", register, &value, 8)
        return value

    def write(self, int register, uint64_t value):
        """Set a register of at most 64 bits."""
        self._write(f"write register {register}", register, &value, 8)

    def read_bytes(self, int register, int size):
        """A wide register (vector, descriptor table) as bytes; at most 256."""
        cdef uint8_t buffer[256]
        if not 0 < size <= 256:
            raise ValueError("register size out of range")
        memset(buffer, 0, 256)
        self._read(f"read register {register}", register, buffer, 256)
        return bytes(buffer[:size])

    def write_bytes(self, int register, bytes value):
        """Set a wide register from bytes."""
        cdef uint8_t buffer[256]
        cdef int i
        if len(value) > 256:
            raise ValueError("register size out of range")
        memset(buffer, 0, 256)
        for i in range(len(value)):
            buffer[i] = value[i]
        self._write(f"write register {register}", register, buffer, 256)

    def read_system(self, int register, int op0, int op1, int crn, int crm, int op2):
        """An arm64 system register; ``register`` is UC_ARM64_REG_CP_REG."""
        cdef CpReg cp = CpReg(crn, crm, op0, op1, op2, 0)
        self._read(f"read S{op0}_{op1}_C{crn}_C{crm}_{op2}", register, &cp, sizeof(CpReg))
        return cp.val

    def write_system(self, int register, int op0, int op1, int crn, int crm, int op2,
                     uint64_t value):
        cdef CpReg cp = CpReg(crn, crm, op0, op1, op2, value)
        self._write(f"write S{op0}_{op1}_C{crn}_C{crm}_{op2}", register, &cp, sizeof(CpReg))

    def read_msr(self, int register, uint32_t number):
        """An amd64 model-specific register; ``register`` is UC_X86_REG_MSR."""
        cdef MsrReg msr = MsrReg(number, 0)
        self._read(f"read MSR {number:#x}", register, &msr, sizeof(MsrReg))
        return msr.value

    def write_msr(self, int register, uint32_t number, uint64_t value):
        cdef MsrReg msr = MsrReg(number, value)
        self._write(f"write MSR {number:#x}", register, &msr, sizeof(MsrReg))

    # -- exceptions and blocks of the architecture ----------------------------------------------------

    def set_breakpoint_exception(self, module, uint32_t pc_place=0, places=()):
        """The architecture's native breakpoint exception, once: its ``KEEP``, ``ENTER`` and
        ``FORGET``, how many bytes of stack a kernel's way through it uses (``FOOTPRINT``), and the
        registers that it uses in a saved context (``PLACES``).

        With such registers breakpoints come as invalid instructions, where writing the program
        counter ends the run: it is written in a context, too.

        :param pc_place: where a context holds the program counter, a u64.
        :param places: where it holds the others.
        """
        self._still()
        wanted = getattr(module, "PLACES", ())
        if self.clock.keep != NULL:
            raise RuntimeError("the breakpoint exception is told once")
        if not 0 < module.FOOTPRINT <= MAX_FOOTPRINT:
            raise ValueError(f"a footprint is of at most {MAX_FOOTPRINT} bytes")
        if len(places) != len(wanted) or len(wanted) > MAX_PLACES:
            raise ValueError(f"a place is wanted of each of {', '.join(wanted) or 'no registers'}")
        keep = <forget_fn>PyCapsule_GetPointer(module.KEEP, "emu.keep")
        enter = <enter_fn>PyCapsule_GetPointer(module.ENTER, "emu.enter")
        forget = <forget_fn>PyCapsule_GetPointer(module.FORGET, "emu.forget")
        if wanted:
            size = self.context_size(self.uc)
            for at in (pc_place, *places):
                if not CONTEXT_HEADER <= at <= size - 8 or at % 8:
                    raise ValueError("a register lies outside the context")
            for i, at in enumerate(places):
                self.clock.places[i] = at
            self.clock.pc_place = pc_place
            for at in (pc_place, *places):
                self._context(at)
        self.clock.detour.stack_wanted = <uint32_t>module.FOOTPRINT + GUARD
        self.clock.enter, self.clock.forget = enter, forget
        self.clock.keep = keep

    cdef int _context(self, size_t place) except -1:
        """The context of the native exceptions holds a place.  It is as long as that needs: Unicorn
        copies as much as a context says that it has."""
        cdef size_t whole = self.context_size(self.uc) - CONTEXT_HEADER
        if self.clock.context == NULL:
            self._ok("context", self.context_alloc(self.uc, &self.clock.context))
            if context_length(&self.clock)[0] != whole:
                raise RuntimeError("a context of this version of Unicorn does not begin with its "
                                   "length; version 2.1.4 is known to work")
            context_length(&self.clock)[0] = 0
        context_length(&self.clock)[0] = max(context_length(&self.clock)[0],
                                             place + 8 - CONTEXT_HEADER)
        return 0

    def set_exceptions(self, module, places=(), uint32_t pc_ahead=0):
        """The architecture's native exceptions, once: its ``DELIVER``.

        :param places: where a context holds what ``EXCEPTION_PLACES`` names.
        :param pc_ahead: bytes that the CPU model adds to the pc of an exception.
        """
        self._still()
        wanted = module.EXCEPTION_PLACES
        if self.clock.deliver != NULL:
            raise RuntimeError("the exceptions are told once")
        if len(places) != len(wanted) or len(wanted) > MAX_PLACES:
            raise ValueError(f"a place is wanted of each of {', '.join(wanted)}")
        size = self.context_size(self.uc)
        for i, at in enumerate(places):
            if not CONTEXT_HEADER <= at <= size - 8 or at % 4:
                raise ValueError("a field lies outside the context")
            self.clock.exception_places[i] = at
            self._context(at)
        if not self.clock.fixed and self.clock.prefixes == NULL:
            self.clock.prefixes = <BlockPrefix *>calloc(PREFIXES, sizeof(BlockPrefix))
            if self.clock.prefixes == NULL:
                raise MemoryError
        self.clock.pc_ahead = pc_ahead
        self.clock.deliver = <deliver_fn>PyCapsule_GetPointer(module.DELIVER, "emu.deliver")

    def set_flat(self):
        """Virtual addresses are physical ones: there are no page tables."""
        self.clock.walk = flat

    def set_page_walk(self, module):
        """The architecture's native page walk: the address of its ``WALK``."""
        self.clock.walk = <walk_fn>PyCapsule_GetPointer(module.WALK, "emu.walk")

    def set_page_blocks(self, int bits):
        """The CPU model ends a block with the first instruction that reaches the end of a page of
        ``1 << bits`` bytes (its own smallest page, not the guest's)."""
        if not 0 < bits < 64:
            raise ValueError("not a page size")
        self.clock.page_bits = bits

    def set_block_ends(self, uint32_t mask, uint32_t value):
        """Where all instructions are words: none ends a block by itself but those whose bits
        ``mask`` are ``value``."""
        if not self.clock.fixed:
            raise ValueError("instructions are of different lengths")
        self.clock.end_mask = mask
        self.clock.end_value = value

    def set_last_address(self, int register):
        """A register where the CPU keeps the address of an instruction it has executed (x87's
        FIP): a trampoline's is replaced by the displaced instruction's."""
        self.clock.last_address = register
