"""The amd64 CPU: exceptions through the IDT, and interrupts from its local APIC.

See SDM volume 3, chapter 6.
"""

import ctypes
import functools
import struct
from dataclasses import replace
from typing import Any

import unicorn
import unicorn.x86_const as uc

import emu.amd64._layout as _layout
import emu.unicorn.amd64._cpu as _cpu
from emu.amd64 import registers
from emu.amd64.arch import FRAME, LARGE, PRESENT
from emu.amd64.registers import RFLAGS_IF, RFLAGS_NT, RFLAGS_RF, RFLAGS_TF, RFLAGS_VM
from emu.devices.lapic import LocalApic
from emu.host.errors import MachineError, MemoryAccessError
from emu.machine.machine import Stop, StopReason
from emu.unicorn.amd64.gate import Gate
from emu.unicorn.cpu import Cpu, CpuModel
from emu.unicorn.engine_probe import (
    CODE,
    CODE_SIZE,
    BlockEnds,
    Scratch,
    StateFields,
    context_bytes,
    find_field,
)
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.new_engine import new_engine

NON_MASKABLE, BREAKPOINT, INVALID_OPCODE = 2, 3, 6
DOUBLE_FAULT, GENERAL_PROTECTION, PAGE_FAULT = 8, 13, 14
WRITE, RESERVED_BIT = 2, 8  # bits of a page fault's error code; WRITE is also in page table entries
NO_EXECUTE = 1 << 63  # page table entry bit
MASK = (1 << 64) - 1
RESERVED = 0xFFF << 40  # reserved bits of an entry: the CPU model has 40-bit physical addresses
WITH_ERROR_CODE = {8, 10, 11, 12, 13, 14, 17, 21}
STI = 0xFB
INT3 = b"\xcc"
PAUSE = b"\xf3\x90"
# Conditional branches, as in Engine.set_branches: Jcc rel8 and Jcc rel32.
BRANCHES = ((2, 0xF0, 0x70), (6, 0xF0FF, 0x800F))
NMI_MASKED = 1 << 2  # bit of QEMU's hflags2 (HF2_NMI_MASK)
HLT = 0xF4
PREFIXES = bytes((0x66, 0x67, 0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, 0xF2, 0xF3, *range(0x40, 0x50)))
MWAIT = b"\x0f\x01\xc9"
CR4_OSFXSR = 1 << 9
SEGMENT_CACHE = 24  # size of QEMU's SegmentCache in bytes
CPL, INHIBIT, SS32, CS64 = 3, 1 << 3, 1 << 5, 1 << 15  # bits of QEMU's hflags (HF_CPL, ...)
SYSCALL = 256  # exception vector that the engine passes for a SYSCALL instruction
TSS_RSP0, TSS_IST = 4, 28  # offsets in the TSS (SDM volume 3); IST n is at TSS_IST + 8 * n
CR4_PAE, CR0_PE, CR0_PG, CR0_WP = 1 << 5, 1 << 0, 1 << 31, 1 << 16
EFER_SCE, EFER_LME, EFER_LMA = 1 << 0, 1 << 8, 1 << 10
MMR = struct.Struct("<H6xQII")  # layout of Unicorn's uc_x86_mmr


def new_scratch() -> unicorn.Uc:
    """Return a scratch engine in long mode without paging, with SSE enabled."""
    engine = new_engine(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    engine.ctl_set_cpu_model(uc.UC_CPU_X86_QEMU64)
    engine.mem_map(CODE, CODE_SIZE)
    engine.reg_write(uc.UC_X86_REG_CR4, CR4_OSFXSR)
    return engine


scratch = Scratch(new_scratch)


@functools.cache
def _shadow_field() -> StateFields:
    """Locate the flags that hold the interrupt shadow (QEMU's ``hflags``) in the CPU state.

    The interrupt shadow blocks interrupts for one instruction after STI.  One engine executes STI
    and another NOP in its place, both with interrupts enabled.  The hook of the next block stops
    them; at that point a single bit of their states differs.
    """
    states = []
    for code in (bytes((STI,)), b"\x90"):
        engine = scratch()
        engine.mem_write(CODE, code + b"\xeb\x00" * (code == b"\x90") + b"\x90\x90\xeb\xfe")
        engine.reg_write(uc.UC_X86_REG_EFLAGS, RFLAGS_IF | 2)
        seen: list[bytes] = []

        def block(e: unicorn.Uc, at: int, _n: int, _d: object, seen: list[bytes] = seen) -> None:
            if at != CODE:
                seen.append(context_bytes(e))
                e.emu_stop()

        hook = engine.hook_add(unicorn.UC_HOOK_BLOCK, block)
        engine.emu_start(CODE, CODE + CODE_SIZE - 1)
        engine.hook_del(hook)
        states.append(seen[0])
    with_, without = (struct.unpack(f"<{len(s) // 4}I", s[: len(s) // 4 * 4]) for s in states)
    places = [4 * i for i, (a, b) in enumerate(zip(with_, without, strict=True))
             if a == b | INHIBIT and not b & INHIBIT]
    if len(places) != 1:
        raise MachineError(
            f"Unicorn {unicorn.__version__} is not supported: {len(places) or 'no'} offsets in its "
            "CPU state hold the interrupt shadow of amd64; use version 2.1.4"
        )
    return StateFields({"hflags": (places[0], "<I"), "hflags2": (places[0] + 4, "<I")})


@functools.cache
def _segment_fields() -> StateFields:
    """Locate the hidden parts of the segment registers in the CPU state.

    Chosen bases of FS and GS, which are adjacent, reveal them.  The segments are in the order of
    their encoding, each a ``SegmentCache`` of QEMU: u32 selector, u64 base, u32 limit, u32 flags.
    """
    states = []
    bases = {uc.UC_X86_REG_FS_BASE: (0x1357_9BDF_0000, 0x0246_8ACE_1000),
             uc.UC_X86_REG_GS_BASE: (0x0F1E_2D3C_0000, 0x4B5A_6978_1000)}
    for i in range(2):
        engine = scratch()
        for register, values in bases.items():
            engine.reg_write(register, values[i])
        states.append(context_bytes(engine))
    fs, gs = (find_field(states, values, "<Q", "the segment bases of amd64")
              for values in bases.values())
    if gs - fs != SEGMENT_CACHE:
        raise MachineError(f"Unicorn {unicorn.__version__} is not supported: its CPU state stores "
                           "amd64 segments in another layout; use version 2.1.4")
    fields: dict[str, tuple[int, str]] = {}
    for i, name in enumerate(("es", "cs", "ss", "ds", "fs", "gs")):
        base = fs + (i - 4) * SEGMENT_CACHE
        fields |= {f"{name}_hidden_base": (base, "<Q"), f"{name}_limit": (base + 8, "<I"),
                   f"{name}_flags": (base + 12, "<I")}
    return StateFields(fields)


@functools.cache
def _selector_fields() -> StateFields:
    """Locate the selectors in the segment registers; see ``_segment_fields``."""
    fields = _segment_fields().fields
    return StateFields({name: (fields[f"{name}_hidden_base"][0] - 8, "<I")
                        for name in registers.SEGMENTS})


@functools.cache
def _register_places() -> list[int]:
    """Locate the CPU state fields of the registers that exceptions and SYSCALL write."""
    written = (uc.UC_X86_REG_RIP, uc.UC_X86_REG_RCX, uc.UC_X86_REG_R11, uc.UC_X86_REG_RSP)
    states, seeds = [], (0x1357_9BDF_0246_8ACE, 0x0F1E_2D3C_4B5A_6978)
    for seed in seeds:
        engine = scratch()
        for i, register in enumerate(written):
            engine.reg_write(register, seed + 0x1111 * i)
        states.append(context_bytes(engine))
    return [find_field(states, [seed + 0x1111 * i for seed in seeds], "<Q",
                       "a general register of amd64") for i in range(len(written))]


@functools.cache
def _exception_fields() -> tuple[int, int]:
    """Locate the CPU state fields of the error code and the exception in flight.

    Loading a selector beyond the descriptor table raises #GP with the selector as error code.
    Unicorn never completes an exception, so a second page fault would become a double fault;
    therefore the exception in flight is reset to none (-1).
    """
    before, after, codes = [], [], (0x1230, 0x5678)
    for code in codes:
        engine = scratch()
        engine.mem_write(CODE, b"\x8e\xe0")  # mov fs, eax
        hook = engine.hook_add(unicorn.UC_HOOK_INTR, lambda e, _n, _d: e.emu_stop())
        engine.reg_write(uc.UC_X86_REG_RAX, 0x7F7F0000 | code)  # MOV loads the low 16 bits into FS
        before.append(context_bytes(engine))
        engine.emu_start(CODE, CODE + 2)
        engine.hook_del(hook)
        after.append(context_bytes(engine))
    error = find_field(after, codes, "<i", "the error code of an amd64 exception")
    # The next field says whether INT n raised the exception (QEMU's ``exception_is_int``).
    engine = scratch()
    engine.mem_write(CODE, b"\xcd\x0d")
    hook = engine.hook_add(unicorn.UC_HOOK_INTR, lambda e, _n, _d: e.emu_stop())
    engine.emu_start(CODE, CODE + 2)
    engine.hook_del(hook)
    raised = [struct.unpack_from("<i", state, error + 4)[0]
              for state in (*after, context_bytes(engine))]
    if raised != [0, 0, 1]:
        raise MachineError(f"Unicorn {unicorn.__version__} is not supported: it does not "
                           "distinguish INT n from an exception on amd64; use version 2.1.4")
    flight = find_field([*before, *after], [-1, -1, 13, 13], "<i",
                        "the amd64 exception in flight")
    return error, flight


class Amd64Cpu(Cpu):
    """An amd64 CPU with its local APIC."""

    model = CpuModel(
        unicorn.UC_ARCH_X86, unicorn.UC_MODE_64, uc.UC_CPU_X86_QEMU64, 0, registers.UNICORN
    )
    wakes_masked = False
    yields = (PAUSE,)

    def __init__(self, machine: UnicornMachine, number: int, lapic: LocalApic) -> None:
        super().__init__(number)
        self.machine, self.lapic = machine, lapic

    @classmethod
    def prepare(cls, machine: UnicornMachine) -> None:
        """Create the engine for amd64 CPUs."""
        machine.make_engine(cls.model, uc.UC_X86_REG_RIP)
        native = machine.engine
        native.set_breakpoint_exception(_cpu)
        native.set_exceptions(
            _cpu, [*_exception_fields(), _shadow_field().fields["hflags"][0], *_register_places()])
        native.set_page_walk(_cpu)
        native.set_branches(_layout, BRANCHES)
        native.set_no_execute(NO_EXECUTE)
        native.set_last_address(uc.UC_X86_REG_FIP)
        native.hook_system_call(uc.UC_X86_INS_SYSCALL, SYSCALL)
        native.set_user_mode(uc.UC_X86_REG_CS, CPL, CPL)
        native.set_interrupt_mask(uc.UC_X86_REG_EFLAGS, RFLAGS_IF, RFLAGS_IF)
        native.set_unmaskable(_shadow_field().fields["hflags2"][0], NMI_MASKED)
        _segment_fields()  # while there is a scratch engine
        scratch.release()

    def reset(self) -> None:
        """Leave the CPU as created; the boot loader enters long mode."""

    def start(self, address: int, argument: int) -> None:
        """Start the CPU in real mode, as after INIT and a start-up message.

        See SDM volume 3, "MP Initialization Protocol".  An engine created for 64-bit mode enters
        real mode by restoring the context of an engine created for real mode.
        """
        engine = new_engine(unicorn.UC_ARCH_X86, unicorn.UC_MODE_16)
        engine.ctl_set_cpu_model(self.model.cpu_model)
        engine.reg_write(uc.UC_X86_REG_CS, address >> 4)
        engine.reg_write(uc.UC_X86_REG_IP, 0)
        self.machine.uc.context_restore(engine.context_save())
        self.machine.engine.write_bytes(
            uc.UC_X86_REG_IDTR, MMR.pack(0, 0, 0x3FF, 0))

    # -- system registers -------------------------------------------------------------------------

    def read_system(self, name: str) -> int:
        """Read a model-specific register by name."""
        if name not in registers.MSRS:
            raise MachineError(f"amd64 has no register '{name}'")
        return self.machine.engine.read_msr(uc.UC_X86_REG_MSR, registers.MSRS[name])

    def write_system(self, name: str, value: int) -> None:
        """Write a model-specific register by name, or the GDTR."""
        if name == "gdtr":  # operand of LGDT (SDM volume 3, "Memory-Management Registers")
            self.machine.engine.write_bytes(
                uc.UC_X86_REG_GDTR, MMR.pack(0, value >> 16, value & 0xFFFF, 0))
            return
        if name not in registers.MSRS:
            raise MachineError(f"amd64 has no register '{name}'")
        self.machine.engine.write_msr(uc.UC_X86_REG_MSR, registers.MSRS[name], value)

    # -- exceptions -------------------------------------------------------------------------------

    def exception(self, vector: int) -> str | None:
        """Deliver an exception or execute SYSCALL."""
        machine = self.machine
        pc = machine.pc
        if vector == SYSCALL:
            return self._system_call(machine.left_at(pc))
        if vector != BREAKPOINT or not machine.at_breakpoint(pc - 1):
            pc = machine.left_at(pc)
        code, software = self._finish_exception()
        # INT3 and INT n trap after the instruction.  A fault during delivery is reported at the
        # start of the instruction.
        began = pc
        if software:
            is_int3 = vector == BREAKPOINT and machine.read(pc - 1, 1) == INT3
            began -= 1 if is_int3 else 2
        # INT n pushes no error code (SDM volume 3, 6.13).
        has_code = vector in WITH_ERROR_CODE and not software
        return self._enter(vector, pc, code if has_code else None, began)

    def invalid(self) -> str | None:
        """Deliver an invalid opcode exception."""
        pc = self.machine.left_at(self.machine.pc)
        return self._enter(INVALID_OPCODE, pc, None)

    def bus_error(self, code: int) -> str | None:
        """Report an access to a physical address without RAM or device."""
        pc = self.machine.pc
        return f"libunicorn error {code}: no device at the physical address accessed at {pc:#x}"

    def _finish_exception(self) -> tuple[int, bool]:
        """Mark the current exception as handled in Unicorn's CPU state.

        :return: its error code, and whether INT n raised it.
        """
        error, flight = _exception_fields()
        engine = self.machine.uc
        context = engine.context_save()
        address = ctypes.cast(context.context, ctypes.c_void_p).value or 0
        code, software = struct.unpack("<ii", ctypes.string_at(address + error, 8))
        ctypes.memmove(address + flight, struct.pack("<i", -1), 4)
        engine.context_restore(context)
        return int(code), software != 0

    def _enter(self, vector: int, pc: int, code: int | None,
               began: int | None = None) -> str | None:
        """Deliver an exception.

        :param code: error code to push, or None for an exception without error code.
        :param began: address of the instruction that raised the exception (default: ``pc``).
        :return: None, or why the exception cannot be delivered.
        """
        try:
            return self._through_gate(vector, pc, code, began)
        except MemoryAccessError as error:
            return f"exception {vector}: {error}"

    def entry_described(self, vector: int, left: int, reached: int) -> str:
        """Return sentences that describe the gate of an exception vector and the stack switch."""
        gate = self._gate(vector)
        return "" if gate is None else gate.described(left, reached)

    def _gate(self, vector: int) -> Gate | None:
        """Return the gate of a vector, or None if it cannot be read."""
        m = self.machine
        _sel, base, limit, _flags = MMR.unpack(
            m.engine.read_bytes(uc.UC_X86_REG_IDTR, MMR.size))
        at = base + 16 * vector
        if 16 * vector + 15 > limit or not self._mapped(at, 16):
            return None
        gate = Gate.parse(vector, at, *struct.unpack("<QQ", m.read(at, 16)))
        if not gate.stack:
            return gate
        _sel, task, _limit, _flags = MMR.unpack(m.engine.read_bytes(uc.UC_X86_REG_TR, MMR.size))
        stack_pointer_address = task + TSS_IST + 8 * gate.stack
        if not self._mapped(stack_pointer_address, 8):
            return None
        return replace(gate, task=task, top=m.read_u64(stack_pointer_address))

    def _through_gate(self, vector: int, pc: int, code: int | None,
                      began: int | None = None) -> str | None:
        """Deliver an exception through the IDT; the arguments are those of ``_enter``.

        If the frame cannot be pushed, a page fault of the instruction or a double fault is
        delivered instead (SDM volume 3, 6.15, "Interrupt 8").
        """
        m = self.machine
        began = pc if began is None else began
        _sel, base, limit, _flags = MMR.unpack(
            m.engine.read_bytes(uc.UC_X86_REG_IDTR, MMR.size)
        )
        if 16 * vector + 15 > limit:
            return f"exception {vector} before the IDT is set"
        if not self._mapped(base + 16 * vector, 16):
            return f"exception {vector}: the IDT at {base:#x} is not mapped (triple fault)"
        low, high = struct.unpack("<QQ", m.read(base + 16 * vector, 16))
        if not low >> 47 & 1:
            return f"exception {vector}: its IDT gate is not present (triple fault)"
        user = m.read_register("cs") & 3 != 0
        if user and pc > began and not low >> 46 & 1:
            # The gate's privilege level forbids INT n in programs (SDM volume 3, 6.12.1.2).
            return self._enter(GENERAL_PROTECTION, began, 8 * vector | 2)
        gate = Gate.parse(vector, base + 16 * vector, low, high)
        target, kind, ist = gate.target, gate.kind, gate.stack
        sp, flags = m.read_register("rsp"), m.read_register("rflags")
        top = sp
        if ist or user:
            _sel, task, _limit, _flags = MMR.unpack(
                m.engine.read_bytes(uc.UC_X86_REG_TR, MMR.size)
            )
            at = task + (TSS_IST + 8 * ist if ist else TSS_RSP0)
            if not self._mapped(at, 8):
                return f"exception {vector}: the TSS at {task:#x} is not mapped (triple fault)"
            top = m.read_u64(at)
        frame = [pc, m.read_register("cs"), flags, sp, m.read_register("ss")]
        if code is not None:
            frame.insert(0, code & 0xFFFFFFFF)
        top &= ~15
        pieces = [word.to_bytes(8, "little") for word in reversed(frame)]
        if (top - 8) >> 12 == (top - 8 * len(frame)) >> 12:  # the frame is in one page
            pieces = [b"".join(reversed(pieces))]
        for piece in pieces:
            fault = self._push_fault(top - 8 & MASK)
            if fault is not None:
                top = top - 8 & MASK
                m.write_register("cr2", top)
                if vector == DOUBLE_FAULT:
                    return f"double fault with no stack at {top:#x} (triple fault)"
                if vector == PAGE_FAULT:
                    return self._enter(DOUBLE_FAULT, pc, 0)
                return self._enter(PAGE_FAULT, began, fault)
            top = top - len(piece) & MASK
            m.store(top, piece)
        flags &= ~(RFLAGS_TF | RFLAGS_NT | RFLAGS_RF | RFLAGS_VM)
        if kind == 0xE:
            flags &= ~RFLAGS_IF
        m.write_register("rflags", flags)
        m.write_register("rsp", top)
        if user:
            self._to_ring_0()
        m.write_register("cs", gate.selector)
        if user:
            m.write_register("ss", 0)
        m.pc = target
        return None

    def _to_ring_0(self) -> None:
        """Set the CPU model's privilege level to 0; writing a selector alone does not set it."""
        hidden = _shadow_field()
        hidden.write(self.machine.uc, {"hflags": hidden.read(self.machine.uc)["hflags"] & ~CPL})

    def _system_call(self, behind: int) -> str | None:
        """Execute SYSCALL without reading segment descriptors (SDM volume 2).

        :param behind: address of the next instruction.
        """
        m = self.machine
        flags = _shadow_field().read(m.uc)["hflags"]
        if not self.read_system("efer") & EFER_SCE:
            return self._enter(INVALID_OPCODE, behind - 2, None)
        if not flags & CS64:
            return "SYSCALL from 32-bit code is not supported"
        rflags, selector = m.read_register("rflags"), self.read_system("star") >> 32 & 0xFFFC
        m.write_register("rcx", behind)
        m.write_register("r11", rflags & ~RFLAGS_RF)
        m.write_register("rflags", rflags & ~(self.read_system("sfmask") | RFLAGS_RF))
        self._to_ring_0()
        m.write_register("cs", selector)
        m.write_register("ss", selector + 8)
        m.pc = self.read_system("lstar")
        return None

    def _mapped(self, address: int, size: int) -> bool:
        return None not in (self.machine.translate(address),
                            self.machine.translate(address + size - 1))

    def _push_fault(self, address: int) -> int | None:
        """Return the error code of the page fault that a push in ring 0 raises, or None.

        See SDM volume 3, 4.6 and 4.7.
        """
        m = self.machine
        table, writable = m.read_register("cr3") & FRAME, True
        for shift in (39, 30, 21, 12):
            at = table + 8 * (address >> shift & 0x1FF)
            try:
                entry = int.from_bytes(m.read_physical(at, 8), "little")
            except MemoryAccessError:  # the page table lies outside RAM
                return WRITE
            if not entry & PRESENT:
                return WRITE
            if entry & RESERVED:
                return WRITE | PRESENT | RESERVED_BIT
            writable &= bool(entry & WRITE)
            if 12 < shift < 39 and entry & LARGE:
                break
            table = entry & FRAME
        return None if writable or not m.read_register("cr0") & CR0_WP else WRITE | PRESENT

    # -- interrupts -------------------------------------------------------------------------------

    def interrupt_pending(self) -> bool:
        """Return whether an NMI or a local APIC interrupt is pending."""
        return self.lapic.urgent or self.lapic.pending() is not None

    def masks_interrupts(self) -> bool:
        """Return whether the IF flag is clear, so that maskable interrupts are masked."""
        return not self.machine.read_register("rflags") & RFLAGS_IF

    def wakes(self) -> bool:
        """Return whether a pending NMI or unmasked interrupt ends the CPU's wait."""
        return self.lapic.urgent or super().wakes()

    def unmaskable(self) -> bool:
        """Return whether an NMI is pending."""
        return self.lapic.urgent

    def ring_timer(self) -> None:
        """Make the local APIC timer expire now."""
        self.lapic.ring()

    def deliver_interrupt(self) -> bool:
        """Enter the handler of a pending NMI or interrupt if the CPU would take it now."""
        m = self.machine
        if self.lapic.urgent and not _shadow_field().read(m.uc)["hflags2"] & NMI_MASKED:
            return self._deliver_nmi()
        if self.lapic.pending() is None or not m.read_register("rflags") & RFLAGS_IF:
            return False
        pc = m.pc
        if self.in_shadow():
            m.engine.shadow = True  # the instruction after STI must be executed first
            return False
        vector = self.lapic.acknowledge()
        trouble = None if m.engine.interrupt(vector, pc) else self._enter(vector, pc, None)
        if trouble is not None:
            m.request_stop(Stop(StopReason.UNHANDLED, pc, trouble))
        return True

    def _deliver_nmi(self) -> bool:
        """Deliver an NMI; the CPU model masks further NMIs until IRET."""
        self.lapic.urgent = False
        fields = _shadow_field()
        fields.write(self.machine.uc, {
            "hflags2": fields.read(self.machine.uc)["hflags2"] | NMI_MASKED})
        trouble = self._enter(NON_MASKABLE, self.machine.pc, None)
        if trouble is not None:
            self.machine.request_stop(Stop(StopReason.UNHANDLED, self.machine.pc, trouble))
        return True

    # -- instructions -----------------------------------------------------------------------------

    _block_ends = BlockEnds(new_scratch, b"\x90")

    def ends_block(self, code: bytes) -> bool:
        """Return whether an instruction always ends the CPU model's translated block."""
        return self._block_ends(code)

    def is_wait(self, code: bytes) -> bool:
        """Return whether an instruction is HLT or MWAIT."""
        bare = code.lstrip(PREFIXES)
        return bare == bytes((HLT,)) or bare == MWAIT

    def in_shadow(self) -> bool:
        """Return whether interrupts are blocked for one instruction, as after STI."""
        return bool(_shadow_field().read(self.machine.uc)["hflags"] & INHIBIT)

    # -- snapshots --------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return all CPU state that a snapshot stores, as JSON-compatible values."""
        m = self.machine
        state: dict[str, Any] = {name: m.read_register(name) for name in registers.UNICORN}
        state |= {name: self.read_system(name) for name in registers.MSRS}
        for name, number in registers.WIDE.items():
            state[name] = m.engine.read_bytes(number, registers.WIDE_SIZE).hex()
        for name, number in registers.FLOATING_POINT.items():
            state[name] = m.engine.read(number)
        for i in range(8):
            state[f"fp{i}"] = m.engine.read_bytes(uc.UC_X86_REG_FP0 + i, 10).hex()
        for i in range(16):
            state[f"xmm{i}"] = m.engine.read_bytes(uc.UC_X86_REG_XMM0 + i, 16).hex()
        state |= _segment_fields().read(m.uc)
        flags = _shadow_field().read(m.uc)["hflags"]
        state["interrupt_shadow"], state["stack_32"] = bool(flags & INHIBIT), bool(flags & SS32)
        # Store all flags, because other CPUs may be in real mode or in an NMI handler.
        if m.schedule.several:
            state |= _shadow_field().read(m.uc)
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Set the CPU to a state returned by ``state``."""
        m = self.machine
        self._to_ring_0()  # ring 0 can write all registers that are set below
        for name, number in registers.WIDE.items():
            m.engine.write_bytes(number, bytes.fromhex(state[name]))
        self.write_system("efer", state["efer"])
        for name in ("cr4", "cr3", "cr0", "cr2", "cr8"):
            m.write_register(name, state[name])
        for name in registers.MSRS:
            self.write_system(name, state[name])
        for name, number in registers.FLOATING_POINT.items():
            m.engine.write(number, state[name])
        for i in range(8):
            m.engine.write_bytes(uc.UC_X86_REG_FP0 + i, bytes.fromhex(state[f"fp{i}"]))
        for i in range(16):
            m.engine.write_bytes(uc.UC_X86_REG_XMM0 + i, bytes.fromhex(state[f"xmm{i}"]))
        unreadable = self._unreadable(state)
        for name in [*registers.SEGMENTS, "fs_base", "gs_base", *registers.DEBUG,
                     *registers.NAMES]:
            if name not in unreadable:
                m.write_register(name, state[name])
        hidden = _segment_fields()
        hidden.write(m.uc, {name: state[name] for name in hidden.fields})
        if unreadable:
            _selector_fields().write(m.uc, {name: state[name] for name in unreadable})
        # Writing a selector does not change the CPU model's privilege level.
        flags = _shadow_field().read(m.uc)["hflags"] & ~(SS32 | INHIBIT | CPL) | state["cs"] & CPL
        for name, bit in (("interrupt_shadow", INHIBIT), ("stack_32", SS32)):
            flags |= bit if state[name] else 0
        if m.schedule.several:
            _shadow_field().write(m.uc, {name: state[name] for name in ("hflags", "hflags2")})
        else:
            _shadow_field().write(m.uc, {"hflags": flags})


    def _unreadable(self, state: dict[str, Any]) -> list[str]:
        """Return the segment registers whose descriptors cannot be read.

        Loading a selector reads its descriptor; a page fault there would end the host process.  A
        CPU that has loaded the GDTR may still use selectors of the table before it.

        :raises ValueError: if CS is one of them on a machine with one CPU, where loading CS sets
            the mode of the CPU; the state of a machine with several CPUs contains the mode.
        """
        _selector, base, limit, _flags = MMR.unpack(
            self.machine.engine.read_bytes(uc.UC_X86_REG_GDTR, MMR.size))
        if not state["cr0"] & CR0_PE:
            return []
        found = [name for name in registers.SEGMENTS
                 if (at := state[name] & ~7) and not (
                     at + 7 <= limit and self._mapped(base + at, 8))]
        if "cs" in found and not self.machine.schedule.several:
            raise ValueError("the segment descriptor of cs cannot be read")
        return found


CPU = Amd64Cpu
