"""Connections of the engine: memory, devices, exceptions (``_engine.pyx`` includes this file)."""

cdef class EngineWiring:
    """Connections of one Unicorn engine: memory, devices, exceptions and registers.

    :param owner: the ``unicorn.Uc`` object.
    :param symbols: addresses of the libunicorn functions named in ``FUNCTIONS``.
    :param pc_register: Unicorn's number of the program counter.
    :param fixed: length in bytes of every instruction (arm64: 4), or 0 if lengths vary.
    :raises EngineError: libunicorn refused a call.
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
            raise RuntimeError("this engine is already initialized")
        if handle == 0:
            raise ValueError("owner: the Unicorn engine was closed")
        for name in self.FUNCTIONS:
            if not symbols.get(name):
                raise ValueError(f"libunicorn has no {name}: version 2.1.4 is known to work")
        self.owner = owner
        owner.hooked_by = self  # the owner can run the hooks, so it must keep this object alive
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
        self.clock.hook_add, self.clock.hook_del = self.hook_add, self.hook_del
        self.clock.pc_register = pc_register
        self.clock.begin = begin_block
        self.clock.unusual = unusual_block
        self.context_alloc = <context_alloc_fn><uintptr_t>symbols["uc_context_alloc"]
        self.clock.context_save = <context_fn><uintptr_t>symbols["uc_context_save"]
        self.clock.context_restore = <context_fn><uintptr_t>symbols["uc_context_restore"]
        self.context_size = <context_size_fn><uintptr_t>symbols["uc_context_size"]
        self.clock.context_free = <context_free_fn><uintptr_t>symbols["uc_context_free"]
        self.clock.deadline = 0xFFFFFFFFFFFFFFFF
        self.clock.limit = self.clock.turn_end = self.clock.pause_end = NEVER
        self.clock.cpus = 1
        if fixed not in (0, 4):
            raise ValueError(f"instruction length {fixed}: must be 4, or 0 if lengths vary")
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
        self._ok("enable exits", self.ctl(self.uc, ctl_word(CTL_USE_EXITS, 1, CTL_WRITE), 1))
        self._hook(HOOK_BLOCK, <void *>block_hook)
        self._hook(HOOK_INTR, <void *>interrupt_hook)
        self._hook(HOOK_INSN_INVALID, <void *>invalid_hook)
        self._hook(HOOK_EDGE_GENERATED, <void *>edge_hook)

    cdef int _made(self) except -1:
        if self.uc == NULL:
            raise RuntimeError("this engine was not initialized")
        return 0

    cdef int _still(self) except -1:
        """Raise an error if the CPU is running, because its translated code is in use."""
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
        return self._ok("add a hook", self.hook_add(self.uc, &hook, kind, callback, &self.clock,
                                                    <uint64_t>1, <uint64_t>0))

    cdef void failed(self, error):
        """Store the exception of a callback and stop the CPU; ``run`` raises it."""
        if self.error is None:
            self.error = error
        self.clock.stop = STOP_REQUEST
        self.clock.emu_stop(self.uc)

    # -- connections --------------------------------------------------------------------------

    def map_ram(self, uint64_t address, memory, uint32_t perms=7):
        """Map host memory at guest physical ``address``.

        :param memory: a writable buffer; the engine keeps it alive.
        :raises RuntimeError: the CPU is running, and could continue with outdated lookups.
        """
        cdef int i = self.clock.region_count
        cdef Py_buffer buffer
        cdef void *host
        cdef uint8_t *code
        cdef uint64_t size
        self._still()
        if i == MAX_REGIONS:
            raise ValueError(f"at most {MAX_REGIONS} regions of RAM can be mapped")
        PyObject_GetBuffer(memory, &buffer, PyBUF_SIMPLE | PyBUF_WRITABLE)
        host, size = buffer.buf, <uint64_t>buffer.len
        PyBuffer_Release(&buffer)
        self._ok(f"map RAM at {address:#x}", self.map_ptr(self.uc, address, size, perms, host))
        self.memory.append(memoryview(memory))  # an exported buffer cannot be resized
        code = <uint8_t *>calloc((size >> 12) + 1, 1)
        if code == NULL:
            raise MemoryError
        self.clock.regions[i] = Region(address, size, <uint8_t *>host, code)
        self.clock.region_count = i + 1

    def map_device(self, uint64_t address, uint64_t size, read, write):
        """Map a device; accesses call ``read(offset, size)`` or ``write(offset, size, value)``."""
        self._still()
        cdef _Window w = _Window()
        w.engine = self
        w.read = read
        w.write = write
        self.windows.append(w)
        self._ok(f"map a device at {address:#x}",
                 self.mmio_map(self.uc, address, size, <void *>window_read, <void *>w,
                               <void *>window_write, <void *>w))

    def hook_ports(self, int insn_in, int insn_out, port_in, port_out, port_refused):
        """Call ``port_in(port, size)`` for IN and ``port_out(port, size, value)`` for OUT.

        In user mode, ``port_refused()`` is called first; if it returns True, the access is refused.
        """
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
        """Treat system calls, which the CPU model leaves to its host, as exception ``vector``."""
        self._still()
        cdef size_t hook = 0
        self.clock.system_call = vector
        self._ok("hook SYSCALL", self.hook_add(self.uc, &hook, HOOK_INSN, <void *>system_call_hook,
                                               &self.clock, <uint64_t>1, <uint64_t>0, insn))

    def hook_tsc(self, int rdtsc, int rdtscp, int low, int high, int aux, uint64_t cost,
                 uint64_t numerator, uint64_t denominator):
        """Let RDTSC and RDTSCP read the virtual clock; each read takes ``cost`` virtual ns."""
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
        """Let a 32-bit port return the virtual clock without Python; each read takes ``cost`` ns.

        Call this after ``hook_ports``.
        """
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
        """Handle the MRS and MSR instructions (arm64).

        A key is op0 << 14 | op1 << 11 | CRn << 7 | CRm << 3 | op2.

        :param counters: keys that are read as the virtual counter, natively.
        :param known: keys for which ``read(key)`` and ``write(key, value)`` are called.
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
        """End the run (STOP_TRAPPED) at a user-mode block with an instruction that must trap.

        Without this, the CPU model executes such instructions.

        :param codes: (mask, value) pairs that match the instructions, all of 32 bits.
        :param key: a system register; the instructions do not trap while all ``bits`` of it are
            set. If ``bits`` is 0, they always trap.
        """
        if len(codes) > MAX_TRAPPED:
            raise ValueError(f"{len(codes)} kinds of instructions: at most {MAX_TRAPPED} can trap")
        self.system.trap_key, self.system.trap_bits = key, bits
        for i, (mask, value) in enumerate(codes):
            self.clock.trapped[i][0], self.clock.trapped[i][1] = mask, value
        self.clock.trapped_count = <int>len(codes)
        self.clock.program_traps = not bits

    def set_program_traps(self, uint64_t value):
        """Record that the host set the register of ``trap_in_programs`` to ``value``."""
        self.clock.program_traps = value & self.system.trap_bits != self.system.trap_bits

    def set_interrupt_mask(self, int register, uint64_t bits, uint64_t value):
        """Set the interrupt mask: interrupts are taken while ``register & bits == value``."""
        self.clock.mask_register = register
        self.clock.mask_bits = bits
        self.clock.mask_value = value

    def set_interrupt_gate(self, int register, uint64_t bits):
        """Take pending interrupts only while one of ``bits`` is set in ``register`` (0: always)."""
        self.clock.gate_register = register
        self.clock.gate_bits = bits

    def set_unmaskable(self, size_t place, uint32_t masked):
        """Define the condition that blocks a non-maskable interrupt (``urgent``).

        :param place: offset of a 32-bit word in a context.
        :param masked: the interrupt is blocked while any of these bits of the word is set.
        """
        self._made()
        if not CONTEXT_HEADER <= place <= self.context_size(self.uc) - 8 or place % 4:
            raise ValueError(f"offset {place}: not a 32-bit field of a context")
        self._context(place)
        self.clock.urgent_place, self.clock.urgent_masked = <uint32_t>place, masked

    def set_user_mode(self, int level_register, uint64_t bits, uint64_t value):
        """Define user mode as the mode in which ``level_register & bits == value``."""
        self.clock.level_register = level_register
        self.clock.level_bits = bits
        self.clock.level_value = value

    def set_user_gate(self, size_t gate_place):
        """Set the offset in a context at which the interrupt gate is read in user mode.

        There interrupts are not masked, and the model does not reveal control registers. Call this
        after ``set_breakpoint_exception``, which allocates the context.
        """
        if self.clock.context == NULL or gate_place + 8 > self.context_size(self.uc):
            raise ValueError(f"offset {gate_place}: not a 64-bit field of a context")
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
        """Return a register of at most 64 bits, selected by Unicorn's number."""
        cdef uint64_t value = 0
        self._read(f"read register {register}", register, &value, 8)
        return value

    def write(self, int register, uint64_t value):
        """Set a register of at most 64 bits."""
        self._write(f"write register {register}", register, &value, 8)

    def read_bytes(self, int register, int size):
        """Return a wide register (vector, descriptor table) as bytes; ``size`` is at most 256."""
        cdef uint8_t buffer[256]
        if not 0 < size <= 256:
            raise ValueError(f"register size {size}: must be 1 to 256 bytes")
        memset(buffer, 0, 256)
        self._read(f"read register {register}", register, buffer, 256)
        return bytes(buffer[:size])

    def write_bytes(self, int register, bytes value):
        """Set a wide register from bytes."""
        cdef uint8_t buffer[256]
        cdef int i
        if len(value) > 256:
            raise ValueError(f"register value of {len(value)} bytes: must have at most 256")
        memset(buffer, 0, 256)
        for i in range(len(value)):
            buffer[i] = value[i]
        self._write(f"write register {register}", register, buffer, 256)

    def read_system(self, int register, int op0, int op1, int crn, int crm, int op2):
        """Return an arm64 system register; ``register`` is UC_ARM64_REG_CP_REG."""
        cdef CpReg cp = CpReg(crn, crm, op0, op1, op2, 0)
        self._read(f"read S{op0}_{op1}_C{crn}_C{crm}_{op2}", register, &cp, sizeof(CpReg))
        return cp.val

    def write_system(self, int register, int op0, int op1, int crn, int crm, int op2,
                     uint64_t value):
        """Set an arm64 system register; ``register`` is UC_ARM64_REG_CP_REG."""
        cdef CpReg cp = CpReg(crn, crm, op0, op1, op2, value)
        self._write(f"write S{op0}_{op1}_C{crn}_C{crm}_{op2}", register, &cp, sizeof(CpReg))

    def read_msr(self, int register, uint32_t number):
        """Return an amd64 model-specific register; ``register`` is UC_X86_REG_MSR."""
        cdef MsrReg msr = MsrReg(number, 0)
        self._read(f"read MSR {number:#x}", register, &msr, sizeof(MsrReg))
        return msr.value

    def write_msr(self, int register, uint32_t number, uint64_t value):
        """Set an amd64 model-specific register; ``register`` is UC_X86_REG_MSR."""
        cdef MsrReg msr = MsrReg(number, value)
        self._write(f"write MSR {number:#x}", register, &msr, sizeof(MsrReg))

    # -- exceptions and blocks of the architecture --------------------------------------------

    def set_breakpoint_exception(self, module, uint32_t pc_place=0, places=()):
        """Set the architecture's native breakpoint exception; may be called only once.

        With ``PLACES``, breakpoints arrive as invalid instructions, where writing the program
        counter ends the run. The program counter is therefore also written in a context.

        :param module: has the functions ``KEEP``, ``ENTER`` and ``FORGET``, the bytes of stack that
            a kernel uses to handle a breakpoint (``FOOTPRINT``), and optionally the registers that
            these functions access in a saved context (``PLACES``).
        :param pc_place: offset of the program counter (a u64) in a context.
        :param places: offsets of the other registers in a context.
        """
        self._still()
        wanted = getattr(module, "PLACES", ())
        if self.clock.keep != NULL:
            raise RuntimeError("the breakpoint exception can be set only once")
        if not 0 < module.FOOTPRINT <= MAX_FOOTPRINT:
            raise ValueError(f"FOOTPRINT is {module.FOOTPRINT}: must be 1 to {MAX_FOOTPRINT} bytes")
        if len(places) != len(wanted) or len(wanted) > MAX_PLACES:
            raise ValueError(f"needs one offset each for {', '.join(wanted) or 'no registers'}")
        keep = <forget_fn>PyCapsule_GetPointer(module.KEEP, "emu.keep")
        enter = <enter_fn>PyCapsule_GetPointer(module.ENTER, "emu.enter")
        forget = <forget_fn>PyCapsule_GetPointer(module.FORGET, "emu.forget")
        if wanted:
            size = self.context_size(self.uc)
            for at in (pc_place, *places):
                if not CONTEXT_HEADER <= at <= size - 8 or at % 8:
                    raise ValueError(f"offset {at}: not a 64-bit field of the context")
            for i, at in enumerate(places):
                self.clock.places[i] = at
            self.clock.pc_place = pc_place
            for at in (pc_place, *places):
                self._context(at)
        self.clock.detour.stack_wanted = <uint32_t>module.FOOTPRINT + GUARD
        self.clock.enter, self.clock.forget = enter, forget
        self.clock.keep = keep

    cdef int _context(self, size_t place) except -1:
        """Make the context that native code saves and restores long enough to include ``place``.

        The context stays as short as possible, since Unicorn copies only the declared length.
        """
        cdef size_t whole = self.context_size(self.uc) - CONTEXT_HEADER
        if self.clock.context == NULL:
            self._ok("allocate a context", self.context_alloc(self.uc, &self.clock.context))
            if context_length(&self.clock)[0] != whole:
                raise RuntimeError("this version of Unicorn does not store the length of a context "
                                   "at its start; version 2.1.4 is known to work")
            context_length(&self.clock)[0] = 0
        context_length(&self.clock)[0] = max(context_length(&self.clock)[0],
                                             place + 8 - CONTEXT_HEADER)
        return 0

    def set_exceptions(self, module, places=(), uint32_t pc_ahead=0):
        """Set the architecture's native exception handler, ``DELIVER`` of a module, only once.

        :param places: offsets in a context of the fields that ``EXCEPTION_PLACES`` names.
        :param pc_ahead: bytes that the CPU model adds to the pc of an exception.
        """
        self._still()
        wanted = module.EXCEPTION_PLACES
        if self.clock.deliver != NULL:
            raise RuntimeError("the exceptions can be set only once")
        if len(places) != len(wanted) or len(wanted) > MAX_PLACES:
            raise ValueError(f"needs one offset each for {', '.join(wanted)}")
        size = self.context_size(self.uc)
        for i, at in enumerate(places):
            if not CONTEXT_HEADER <= at <= size - 8 or at % 4:
                raise ValueError(f"offset {at}: not a 32-bit field of the context")
            self.clock.exception_places[i] = at
            self._context(at)
        if not self.clock.fixed and self.clock.prefixes == NULL:
            self.clock.prefixes = <BlockPrefix *>calloc(PREFIXES, sizeof(BlockPrefix))
            if self.clock.prefixes == NULL:
                raise MemoryError
        self.clock.pc_ahead = pc_ahead
        self.clock.deliver = <deliver_fn>PyCapsule_GetPointer(module.DELIVER, "emu.deliver")

    def set_flat(self):
        """Treat virtual addresses as physical ones: the guest has no page tables."""
        self.clock.walk = flat

    def set_page_walk(self, module):
        """Set the architecture's native page walk, the function ``WALK`` of a module."""
        self.clock.walk = <walk_fn>PyCapsule_GetPointer(module.WALK, "emu.walk")

    def set_page_blocks(self, int bits):
        """Set the page size at whose boundaries the CPU model ends blocks.

        A block ends with the first instruction that reaches the end of a page of ``1 << bits``
        bytes. This is the model's smallest page, not the guest's.
        """
        if not 0 < bits < 64:
            raise ValueError(f"page size of 2^{bits} bytes: the exponent must be 1 to 63")
        self.clock.page_bits = bits

    def set_block_ends(self, uint32_t mask, uint32_t value):
        """Set which fixed-length instructions can end a block: ``word & mask == value``."""
        if not self.clock.fixed:
            raise ValueError("block ends cannot be set: the instruction length is not fixed")
        self.clock.end_mask = mask
        self.clock.end_value = value

    def set_branches(self, module, branches):
        """Set the conditional branches, which always end a block by themselves.

        :param module: has the architecture's function ``SPLIT``; None: the length is fixed.
        :param branches: (size in bytes, mask, value) for each form; the first four bytes of such
            an instruction, in little-endian order, match the value where the mask has bits.
        """
        cdef int i = 0
        if module is None and not self.clock.fixed:
            raise ValueError("a module with SPLIT is needed: the instruction length is not fixed")
        if len(branches) > MAX_BRANCHES:
            raise ValueError(f"{len(branches)} forms of branches; the limit is {MAX_BRANCHES}")
        self.clock.branch_count = 0
        for size, mask, value in branches:
            self.clock.branches[i] = BranchForm(size, mask, value)
            i += 1
        if module is not None:
            self.clock.split = <split_fn>PyCapsule_GetPointer(module.SPLIT, "emu.split")
        self.clock.branch_count = i

    def split(self, const uint8_t[::1] code):
        """Return (number of instructions in ``code``, offset of the last), or None if uncertain."""
        cdef uint32_t last = 0
        cdef uint32_t count
        if not 0 < code.shape[0] <= PREFIX_BYTES:
            raise ValueError(f"{code.shape[0]} bytes of code: must be 1 to {PREFIX_BYTES}")
        count = split(&self.clock, &code[0], <uint32_t>code.shape[0], &last)
        return (count, last) if count else None

    def set_last_address(self, int register):
        """Set the register that holds the address of the last FPU instruction (x87 FIP).

        If that address is in a trampoline, it is replaced by the displaced instruction's address.
        """
        self.clock.last_address = register
