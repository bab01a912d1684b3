"""The amd64 computer: a PC with serial port, APICs and ACPI.

Interrupt delivery: SDM volume 3, chapter "Interrupt and Exception Handling", 64-bit mode.
"""

import ctypes
import functools
import itertools
import struct
from typing import Any

import unicorn
import unicorn.x86_const as uc

from emu.amd64 import _breakpoint, _page_walk, acpi, loader, registers
from emu.amd64.registers import RFLAGS_IF, RFLAGS_NT, RFLAGS_RF, RFLAGS_TF, RFLAGS_VM
from emu.device import Device, Line
from emu.devices import lapic
from emu.devices.acpi_power import AcpiPower
from emu.devices.cmos import Cmos
from emu.devices.i8254 import I8254
from emu.devices.i8259 import I8259
from emu.devices.ioapic import IoApic
from emu.devices.lapic import LocalApic
from emu.devices.ns16550 import Ns16550
from emu.devices.pci_configuration import PciConfiguration
from emu.elf import Image
from emu.errors import ImageError, MachineError, MemoryAccessError
from emu.machine import Stop, StopReason
from emu.unicorn import board
from emu.unicorn.board import Board
from emu.unicorn.engine_probe import (
    CODE,
    CODE_SIZE,
    BlockEnds,
    StateFields,
    context_bytes,
    find_field,
)
from emu.unicorn.machine import UnicornMachine

UART_PORT, UART_IRQ = 0x3F8, 4
PORT_COST = 500  # ns of a port access: an ISA cycle
TSC_COST = 20  # ns
BREAKPOINT, INVALID_OPCODE = 3, 6
WITH_ERROR_CODE = {8, 10, 11, 12, 13, 14, 17, 21}
STI = 0xFB
HLT = 0xF4
PREFIXES = bytes((0x66, 0x67, 0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, 0xF2, 0xF3, *range(0x40, 0x50)))
MWAIT = b"\x0f\x01\xc9"
CR4_OSFXSR = 1 << 9
SEGMENT_CACHE = 24  # bytes
INHIBIT, SS32 = 1 << 3, 1 << 5  # of QEMU's hflags: HF_INHIBIT_IRQ, HF_SS32
CR4_PAE, CR0_PG, CR0_WP = 1 << 5, 1 << 31, 1 << 16
EFER_LME, EFER_LMA = 1 << 8, 1 << 10
MMR = struct.Struct("<H6xQII")  # uc_x86_mmr


def scratch() -> unicorn.Uc:
    """Long mode without paging, SSE enabled."""
    engine = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    engine.ctl_set_cpu_model(uc.UC_CPU_X86_QEMU64)
    engine.mem_map(CODE, CODE_SIZE)
    engine.reg_write(uc.UC_X86_REG_CR4, CR4_OSFXSR)
    return engine


@functools.cache
def _shadow_field() -> StateFields:
    """Where the CPU state holds what keeps interrupts away behind STI (QEMU's ``hflags``).

    STI, and NOP in its place, are executed with interrupts enabled; the engine is stopped by the
    hook of the block behind, where one bit differs.
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

        engine.hook_add(unicorn.UC_HOOK_BLOCK, block)
        engine.emu_start(CODE, CODE + CODE_SIZE - 1)
        states.append(seen[0])
    with_, without = (struct.unpack(f"<{len(s) // 4}I", s[: len(s) // 4 * 4]) for s in states)
    found = [4 * i for i, (a, b) in enumerate(zip(with_, without, strict=True))
             if a == b | INHIBIT and not b & INHIBIT]
    if len(found) != 1:
        raise MachineError(
            f"this version of Unicorn ({unicorn.__version__}) keeps the interrupt shadow of amd64 "
            f"in {len(found) or 'no'} places; version 2.1.4 is known to work"
        )
    return StateFields({"hflags": (found[0], "<I")})


@functools.cache
def _segment_fields() -> StateFields:
    """Where the CPU state holds the hidden parts of the segment registers: chosen bases of FS and
    GS, which are neighbours, tell (QEMU's ``SegmentCache``: u32 selector, u64 base, u32 limit, u32
    flags, in the order of the encoding)."""
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
        raise MachineError(f"this version of Unicorn ({unicorn.__version__}) keeps the segments of "
                           "amd64 otherwise; version 2.1.4 is known to work")
    fields: dict[str, tuple[int, str]] = {}
    for i, name in enumerate(("es", "cs", "ss", "ds", "fs", "gs")):
        base = fs + (i - 4) * SEGMENT_CACHE
        fields |= {f"{name}_hidden_base": (base, "<Q"), f"{name}_limit": (base + 8, "<I"),
                   f"{name}_flags": (base + 12, "<I")}
    return StateFields(fields)


@functools.cache
def _exception_fields() -> tuple[int, int]:
    """Where the CPU state holds the error code, and the exception in flight.

    Loading a selector beyond the descriptor table raises #GP with the selector as error code.
    Unicorn never finishes an exception, so that the second page fault would be a double fault;
    the field of the exception in flight is put back to none (-1).
    """
    before, after, codes = [], [], (0x1230, 0x5678)
    for code in codes:
        engine = scratch()
        engine.mem_write(CODE, b"\x8e\xe0")  # mov fs, eax
        engine.hook_add(unicorn.UC_HOOK_INTR, lambda e, _n, _d: e.emu_stop())
        engine.reg_write(uc.UC_X86_REG_RAX, 0x7F7F0000 | code)  # FS takes the low half
        before.append(context_bytes(engine))
        engine.emu_start(CODE, CODE + 2)
        after.append(context_bytes(engine))
    error = find_field(after, codes, "<i", "the error code of an amd64 exception")
    flight = find_field([*before, *after], [-1, -1, 13, 13], "<i",
                        "the amd64 exception in flight")
    return error, flight


class Amd64Board(Board):
    cpu = board.CpuModel(
        unicorn.UC_ARCH_X86, unicorn.UC_MODE_64, uc.UC_CPU_X86_QEMU64, 0, registers.UNICORN
    )
    ram_base = 0
    hidden_base = 0xE0000000
    wakes_masked = False
    max_memory = 3 << 30

    def __init__(self, machine: UnicornMachine) -> None:
        self.machine = machine
        if machine.memory > self.max_memory:
            raise MachineError("amd64 takes at most 3072 MiB of memory: devices lie above")
        e = self.cpu
        machine.make_engine(e.arch, e.mode, e.cpu_model, uc.UC_X86_REG_RIP, e.fixed_length)
        native = machine.engine
        native.set_breakpoint_exception(_breakpoint)
        native.set_page_walk(_page_walk)
        native.set_last_address(uc.UC_X86_REG_FIP)
        native.set_interrupt_mask(uc.UC_X86_REG_EFLAGS, RFLAGS_IF, RFLAGS_IF)
        self.lapic = LocalApic(machine)
        self.ioapic = IoApic(self.lapic.request, acpi.IOAPIC_ID)
        pin = self.ioapic.set_line
        self.uart = Ns16550(machine, Line(pin, UART_IRQ), needs_out2=True)
        self.pit = I8254(machine, Line(pin, 2))
        self.cmos = Cmos(machine)
        self.power = AcpiPower(
            machine, lambda: machine.request_stop(Stop(StopReason.POWER_OFF, 0))
        )
        self.pci = PciConfiguration(machine)
        self.pics = I8259(), I8259()
        self.devices = {
            "lapic": self.lapic, "ioapic": self.ioapic, "uart": self.uart, "pit": self.pit,
            "cmos": self.cmos, "power": self.power, "pic0": self.pics[0], "pic1": self.pics[1],
            "pci": self.pci,
        }
        ports: list[tuple[int, Device]] = [
            (UART_PORT, self.uart), (0x40, self.pit), (0x70, self.cmos),
            (0xCF8, self.pci), (acpi.PM1_EVENT, self.power), (0x20, self.pics[0]),
            (0xA0, self.pics[1]),
        ]
        self._ports = {
            base + i: (device, i) for base, device in ports for i in range(device.size)
        }
        native.map_device(acpi.LAPIC_BASE, 0x1000, self.lapic.read, self._lapic_write)
        native.map_device(acpi.IOAPIC_BASE, 0x1000, self.ioapic.read, self.ioapic.write)
        native.hook_ports(uc.UC_X86_INS_IN, uc.UC_X86_INS_OUT, self._port_read, self._port_write)
        native.hook_tsc(
            uc.UC_X86_INS_RDTSC, uc.UC_X86_INS_RDTSCP, uc.UC_X86_REG_RAX, uc.UC_X86_REG_RDX,
            uc.UC_X86_REG_RCX, TSC_COST, 1, 1,
        )

    # -- ports --------------------------------------------------------------------------------

    def _port_read(self, port: int, size: int) -> int:
        found = self._ports.get(port)
        if found is not None:
            return found[0].read(found[1], size)
        if port == 0x61:
            return self.pit.gate()
        self.machine.spend(PORT_COST)
        return (1 << 8 * size) - 1  # nothing there: an empty PCI bus among it

    def _port_write(self, port: int, size: int, value: int) -> None:
        found = self._ports.get(port)
        if (port == 0xCF9 and size == 1 and value & 4) or (port == 0x64 and value == 0xFE):
            self.machine.request_stop(Stop(StopReason.RESET, 0))  # reset control; the 8042
        elif found is not None:
            found[0].write(found[1], size, value)
        elif port == 0x61:
            self.pit.set_gate(value)
        else:
            self.machine.spend(PORT_COST)

    def _lapic_write(self, offset: int, size: int, value: int) -> None:
        if offset & ~15 == lapic.EOI and self.lapic.isr:
            self.ioapic.end_of_interrupt(self.lapic.isr.bit_length() - 1)
        self.lapic.write(offset, size, value)

    # -- boot ---------------------------------------------------------------------------------

    def load(self, image: Image) -> None:
        machine = self.machine
        ordered = sorted(image.segments, key=lambda s: s.physical)
        for one, next_ in itertools.pairwise(ordered):
            if one.physical_end > next_.physical:
                raise ImageError(
                    f"{image.path}: segments overlap at physical {next_.physical:#x}: not a "
                    "usable kernel image"
                )
        for segment in image.segments:
            if segment.physical < 0x200000 or segment.physical_end > machine.memory - (1 << 20):
                raise ImageError(
                    f"{image.path}: segment at physical {segment.physical:#x} does not fit "
                    f"{machine.memory >> 20} MiB of memory"
                )
            machine.write_physical(segment.physical, bytes(segment.data))
        module, at, data, kernend = loader.metadata(image, loader.memory_map(machine.memory))
        if kernend > machine.memory - (1 << 20):
            raise ImageError(f"{image.path}: with its modules it does not fit "
                             f"{machine.memory >> 20} MiB of memory")
        for address, content in loader.modules(image):
            machine.write_physical(address, content)
        machine.write_physical(at, data)
        machine.write_physical(acpi.RSDP_BASE, acpi.tables())
        machine.write_physical(loader.PML4, loader.page_tables())
        machine.write_physical(loader.GDT, loader.GDT_ENTRIES)
        sp, words = loader.stack(module, kernend)
        machine.write_physical(sp, words)
        native = machine.engine
        limit = len(loader.GDT_ENTRIES) - 1
        native.write_bytes(uc.UC_X86_REG_GDTR, MMR.pack(0, loader.GDT, limit, 0))
        self.write_system("efer", EFER_LME | EFER_LMA)
        for name, value in (("cr4", CR4_PAE | 1 << 9), ("cr3", loader.PML4),
                            ("cr0", CR0_PG | CR0_WP | 0x13), ("rflags", 2), ("rsp", sp),
                            ("rip", image.entry), ("cs", 8), ("ss", 16)):
            machine.write_register(name, value)

    def place(self, image: Image) -> None:
        """The loader's page tables map all there is."""
        self.load(image)
        # The loader's stack page is for its few words; calls get the end of memory.
        self.machine.write_register("rsp", self.machine.memory - (1 << 20) | loader.KERNBASE)

    # -- system registers ---------------------------------------------------------------------

    def read_system(self, name: str) -> int:
        if name not in registers.MSRS:
            raise MachineError(f"amd64 has no register '{name}'")
        return self.machine.engine.read_msr(uc.UC_X86_REG_MSR, registers.MSRS[name])

    def write_system(self, name: str, value: int) -> None:
        if name not in registers.MSRS:
            raise MachineError(f"amd64 has no register '{name}'")
        self.machine.engine.write_msr(uc.UC_X86_REG_MSR, registers.MSRS[name], value)

    # -- exceptions ---------------------------------------------------------------------------

    def exception(self, vector: int) -> str | None:
        machine = self.machine
        pc = machine.pc
        if vector != BREAKPOINT or not machine.at_breakpoint(pc - 1):
            pc = machine.left_at(pc)
        code = self._finish_exception()
        return self._enter(vector, pc, code if vector in WITH_ERROR_CODE else None)

    def invalid(self) -> str | None:
        pc = self.machine.left_at(self.machine.pc)
        return self._enter(INVALID_OPCODE, pc, None)

    def bus_error(self, code: int) -> str | None:
        pc = self.machine.pc
        return f"libunicorn error {code}: no device at the physical address that {pc:#x} uses"

    def _finish_exception(self) -> int:
        """The error code; afterwards Unicorn takes the exception for handled."""
        error, flight = _exception_fields()
        engine = self.machine.uc
        context = engine.context_save()
        address = ctypes.cast(context.context, ctypes.c_void_p).value or 0
        code = struct.unpack("<i", ctypes.string_at(address + error, 4))[0]
        ctypes.memmove(address + flight, struct.pack("<i", -1), 4)
        engine.context_restore(context)
        return int(code)

    def _enter(self, vector: int, pc: int, code: int | None) -> str | None:
        """Through the IDT, from ring 0."""
        m = self.machine
        _sel, base, limit, _flags = MMR.unpack(
            m.engine.read_bytes(uc.UC_X86_REG_IDTR, MMR.size)
        )
        if 16 * vector + 15 > limit:
            return f"exception {vector} before the IDT is set"
        if m.read_register("cs") & 3:
            return f"exception {vector} from user mode: not run here"
        low, high = struct.unpack("<QQ", m.read(base + 16 * vector, 16))
        if not low >> 47 & 1:
            return f"exception {vector}: its IDT gate is not present (triple fault)"
        target = low & 0xFFFF | low >> 48 << 16 | (high & 0xFFFFFFFF) << 32
        kind, ist = low >> 40 & 0xF, low >> 32 & 7
        sp, flags = m.read_register("rsp"), m.read_register("rflags")
        top = sp
        if ist:
            _sel, task, _limit, _flags = MMR.unpack(
                m.engine.read_bytes(uc.UC_X86_REG_TR, MMR.size)
            )
            top = m.read_u64(task + 28 + 8 * ist)
        frame = [pc, m.read_register("cs"), flags, sp, m.read_register("ss")]
        if code is not None:
            frame.insert(0, code & 0xFFFFFFFF)
        top = (top & ~15) - 8 * len(frame)
        try:
            m.write(top, struct.pack(f"<{len(frame)}Q", *frame))
        except MemoryAccessError:
            return f"exception {vector} with no stack at {top:#x} (double fault)"
        flags &= ~(RFLAGS_TF | RFLAGS_NT | RFLAGS_RF | RFLAGS_VM)
        if kind == 0xE:
            flags &= ~RFLAGS_IF
        m.write_register("rflags", flags)
        m.write_register("rsp", top)
        m.write_register("cs", low >> 16 & 0xFFFF)
        m.pc = target
        return None

    # -- interrupts ---------------------------------------------------------------------------

    def interrupt_pending(self) -> bool:
        return self.lapic.pending() is not None

    def deliver_interrupt(self) -> bool:
        m = self.machine
        if self.lapic.pending() is None or not m.read_register("rflags") & RFLAGS_IF:
            return False
        pc = m.pc
        if self.in_shadow():
            m.engine.shadow = True  # the instruction after STI runs first
            return False
        trouble = self._enter(self.lapic.acknowledge(), pc, None)
        if trouble is not None:
            m.request_stop(Stop(StopReason.UNHANDLED, pc, trouble))
        return True

    # -- instructions -------------------------------------------------------------------------

    _block_ends = BlockEnds(scratch, b"\x90")

    def ends_block(self, code: bytes) -> bool:
        return self._block_ends(code)

    def is_wait(self, code: bytes) -> bool:
        bare = code.lstrip(PREFIXES)
        return bare == bytes((HLT,)) or bare == MWAIT

    def in_shadow(self) -> bool:
        return bool(_shadow_field().read(self.machine.uc)["hflags"] & INHIBIT)

    def type(self, data: bytes) -> None:
        self.uart.type(data)

    # -- snapshots ----------------------------------------------------------------------------

    def cpu_state(self) -> dict[str, Any]:
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
        return state

    def restore_cpu(self, state: dict[str, Any]) -> None:
        m = self.machine
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
        for name in [*registers.SEGMENTS, "fs_base", "gs_base", *registers.DEBUG,
                     *registers.NAMES]:
            m.write_register(name, state[name])
        hidden = _segment_fields()
        hidden.write(m.uc, {name: state[name] for name in hidden.fields})
        flags = _shadow_field().read(m.uc)["hflags"] & ~(SS32 | INHIBIT)
        for name, bit in (("interrupt_shadow", INHIBIT), ("stack_32", SS32)):
            flags |= bit if state[name] else 0
        _shadow_field().write(m.uc, {"hflags": flags})

