"""The riscv64 computer: RAM at 2 GiB, SBI firmware, PLIC, 16550, as QEMU's ``virt`` has them.

Exceptions and interrupts: privileged manual, chapter "Supervisor-Level ISA".
"""

import contextlib
import functools
import re
from collections.abc import Iterator
from typing import Any

import unicorn
import unicorn.riscv_const as uc

from emu.device import Line
from emu.devices.ns16550 import Ns16550
from emu.devices.plic import Plic
from emu.devicetree import Node, cells64, flatten
from emu.elf import Image
from emu.errors import ImageError
from emu.machine import Stop, StopReason
from emu.records import METADATA, load_behind, u64
from emu.riscv64 import _breakpoint, _page_walk, registers
from emu.riscv64.effective_address import effective_address
from emu.riscv64.sbi import Sbi
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

RAM_BASE, KERNEL_BASE = 0x80000000, 0x80200000
TREE_LIMIT = 3 << 30
DTBP, BOOT_HARTID = 0x1001, 0x1004  # of the loader's metadata (riscv's machine/metadata.h)
UART_BASE, PLIC_BASE = 0x10000000, 0x0C000000
UART_IRQ = 10
TIMEBASE = 10_000_000  # Hz: a tick is 100 ns
TICK = 1_000_000_000 // TIMEBASE
CLOCK_READ_COST = 200  # ns: a loop that polls the clock ends soon

SIE, SPIE, SPP, FS_INITIAL = 1 << 1, 1 << 5, 1 << 8, 1 << 13
SSI, STI, SEI = 1, 5, 9
INTERRUPT = 1 << 63
WFI = (0x10500073).to_bytes(4, "little")
NOP = (0x00000013).to_bytes(4, "little")
MAY_END_BLOCK = (0x63, 0x67, 0x6F, 0x73, 0x0F)  # branches, JALR, JAL, SYSTEM, MISC-MEM
LR = (0x1005B52F).to_bytes(4, "little")  # lr.d a0, (a1)
BREAKPOINT, ILLEGAL, ECALL_U, ECALL_S = 3, 2, 8, 9
MACHINE_MODE = 3
FETCH_FAULT, LOAD_FAULT, STORE_FAULT = 12, 13, 15
LOAD_MISALIGNED, LOAD_ACCESS, STORE_MISALIGNED, STORE_ACCESS = 4, 5, 6, 7
# csrrs rd, cycle, x0 and csrrs rd, instret, x0, as bytes in memory
CYCLE_READ = re.compile(rb"[\x73\xf3][\x20-\x2f][\x00\x20]\xc0", re.DOTALL)
CYCLE_READ_ENDS = b"\x00\xc0", b"\x20\xc0"
CSR_CYCLE, CSR_TIME, CSR_INSTRET = 0xC00, 0xC01, 0xC02


def scratch() -> unicorn.Uc:
    """S-mode without address translation, floating point enabled."""
    engine = unicorn.Uc(unicorn.UC_ARCH_RISCV, unicorn.UC_MODE_RISCV64)
    engine.ctl_set_cpu_model(uc.UC_CPU_RISCV64_SIFIVE_U54)
    engine.mem_map(CODE, CODE_SIZE)
    engine.reg_write(uc.UC_RISCV_REG_PRIV, 1)
    engine.reg_write(uc.UC_RISCV_REG_SSTATUS, FS_INITIAL)
    return engine


@functools.cache
def _exception_places() -> dict[str, int]:
    """Where a context holds the registers of an exception."""
    wanted = {"pc": uc.UC_RISCV_REG_PC, "sepc": uc.UC_RISCV_REG_SEPC,
              "scause": uc.UC_RISCV_REG_SCAUSE, "stval": uc.UC_RISCV_REG_STVAL,
              "stvec": uc.UC_RISCV_REG_STVEC, "mstatus": uc.UC_RISCV_REG_MSTATUS}
    engine = scratch()
    engine.reg_write(uc.UC_RISCV_REG_PRIV, MACHINE_MODE)  # mstatus can be reached from there only
    states, held = [], []
    for seed in (0x1357_9BDF_0246_8AC0, 0x0F1E_2D3C_4B5A_6980):
        for i, (name, register) in enumerate(wanted.items()):
            value = FS_INITIAL | SPIE | (SPP if seed & SPP else 0)
            engine.reg_write(register, value if name == "mstatus" else seed + 0x1000 * i)
        states.append(context_bytes(engine))
        held.append({name: engine.reg_read(register) for name, register in wanted.items()})
    return {name: find_field(states, [h[name] for h in held], "<Q", f"{name} of riscv64")
            for name in wanted}


@functools.cache
def _reservation() -> StateFields:
    """Where the CPU state holds what LR has reserved: a chosen address and word tell."""
    states = []
    addresses = CODE + 0x1230, CODE + 0x1670
    words = 0x1357_9BDF_0246_8ACE, 0x0F1E_2D3C_4B5A_6978
    for address, word in zip(addresses, words, strict=True):
        engine = scratch()
        engine.mem_write(CODE, LR)
        engine.mem_write(address, word.to_bytes(8, "little"))
        engine.reg_write(uc.UC_RISCV_REG_A1, address)
        engine.emu_start(CODE, CODE + 4)
        for register in (uc.UC_RISCV_REG_A0, uc.UC_RISCV_REG_A1):
            engine.reg_write(register, 0)
        states.append(context_bytes(engine))
    return StateFields({
        name: (find_field(states, values, "<Q", "the reservation of riscv64"), "<Q")
        for name, values in (("load_res", addresses), ("load_val", words))
    })


def _entry(physical: int, flags: int) -> bytes:
    """A page table entry."""
    return (physical >> 12 << 10 | flags).to_bytes(8, "little")


def _places(data: bytes) -> Iterator[int]:
    """Where the pattern is; its constant bytes are looked for first: a search for
    the pattern takes 80 ms of a boot."""
    for end in CYCLE_READ_ENDS:
        at = data.find(end, 2)
        while at >= 0:
            if CYCLE_READ.match(data, at - 2):
                yield at - 2
            at = data.find(end, at + 1)


def cycle_reads(image: Image) -> list[int]:
    """Where the image's functions read the cycle or instruction counter."""
    found = []
    for virtual, data in image.code():
        for at in _places(data):
            address = virtual + at
            function = image.symbols.function_at(address)
            if address % 2 == 0 and function is not None:
                before = image.virtual_to_file(function.address, address - function.address)
                at = 0
                while at < len(before):  # only where an instruction begins
                    at += 4 if before[at] & 3 == 3 else 2
                if at == len(before):
                    found.append(address)
    return found


class RiscvBoard(Board):
    cpu = board.CpuModel(
        unicorn.UC_ARCH_RISCV, unicorn.UC_MODE_RISCV64, uc.UC_CPU_RISCV64_SIFIVE_U54, 0,
        registers.UNICORN,
    )
    ram_base = RAM_BASE
    hidden_base = 0x40000000
    wakes_masked = True

    def __init__(self, machine: UnicornMachine) -> None:
        self.machine = machine
        e = self.cpu
        machine.make_engine(e.arch, e.mode, e.cpu_model, uc.UC_RISCV_REG_PC, e.fixed_length)
        machine.engine.set_page_walk(_page_walk)
        machine.engine.set_page_blocks(12)
        places = _exception_places()
        machine.engine.set_breakpoint_exception(
            _breakpoint, places["pc"], [places[n] for n in _breakpoint.PLACES])
        machine.engine.set_interrupt_mask(uc.UC_RISCV_REG_SSTATUS, SIE, SIE)
        self.plic = Plic(machine.interrupts_changed)
        self.uart = Ns16550(machine, Line(self.plic.set_line, UART_IRQ))
        self.devices = {"plic": self.plic, "uart": self.uart}
        machine.engine.map_device(PLIC_BASE, self.plic.size, self.plic.read, self.plic.write)
        machine.engine.map_device(UART_BASE, 0x1000, self.uart.read, self.uart.write)
        self.timer = machine.timer("sbi", machine.interrupts_changed)
        self.timer_at = (1 << 64) - 1  # ns
        self._cycle_reads: list[int] | None = None  # of the image, once they are looked for
        self.sbi = Sbi(self._set_timer, machine.output, lambda: -1, self._shutdown)

    # -- boot ---------------------------------------------------------------------------------

    def load(self, image: Image) -> None:
        """FreeBSD's locore enters at the first byte of the image with a0 = hart, a1 = tree; where
        there are modules, at the ELF entry, with a0 = virtual address of the loader's records."""
        machine = self.machine
        self._copy(image)
        tree = flatten(self.device_tree())
        if image.modules:
            self._load_modules(image, tree)
            return
        # At the end of memory but below 3 GiB: the kernel's early mapping of the tree reaches no
        # further, and firmware puts it there, too.
        at = min(RAM_BASE + machine.memory, TREE_LIMIT) - (2 << 20)
        machine.write_physical(at, tree)
        self._enter_supervisor()
        machine.write_register("a0", 0)
        machine.write_register("a1", at)
        machine.write_register("pc", KERNEL_BASE)
        self._watch_cycle_reads(image)

    def _load_modules(self, image: Image, tree: bytes) -> None:
        machine, low = self.machine, min(s.virtual for s in image.segments)
        at = load_behind(machine, image, KERNEL_BASE, RAM_BASE + machine.memory - (4 << 20),
                         (DTBP, tree), [u64(METADATA | BOOT_HARTID, 0)])
        self._enter_supervisor()
        machine.write_register("a0", at)
        machine.write_register("pc", KERNEL_BASE + image.entry - low)
        self._watch_cycle_reads(image)

    def _copy(self, image: Image) -> None:
        """The ELF's physical addresses are those of a link base; the first byte goes to ours."""
        machine = self.machine
        low = min(s.virtual for s in image.segments)
        for segment in image.segments:
            at = KERNEL_BASE + segment.virtual - low
            if at + segment.memory_size > RAM_BASE + machine.memory - (4 << 20):
                raise ImageError(f"{image.path}: does not fit {machine.memory >> 20} MiB of memory")
            machine.write_physical(at, bytes(segment.data))

    def place(self, image: Image) -> None:
        """Sv39: the kernel by 2 MiB pages, RAM at its physical address by 1 GiB pages."""
        machine = self.machine
        self._copy(image)
        low = min(s.virtual for s in image.segments)
        top = RAM_BASE + machine.memory
        root, kernel = top - (2 << 20), top - (2 << 20) + 4096
        leaf = 0xCF  # V R W X A D
        for at in range(RAM_BASE, top, 1 << 30):
            machine.write_physical(root + 8 * (at >> 30), _entry(at, leaf))
        machine.write_physical(root + 8 * (low >> 30 & 0x1FF), _entry(kernel, 1))
        for i in range(512 - (low >> 21 & 0x1FF)):
            if KERNEL_BASE + (i << 21) < top:
                at = kernel + 8 * ((low >> 21 & 0x1FF) + i)
                machine.write_physical(at, _entry(KERNEL_BASE + (i << 21), leaf))
        self._enter_supervisor()
        machine.write_register("satp", 8 << 60 | root >> 12)
        machine.write_register("sp", top - (3 << 20))
        machine.pc = image.entry
        self._watch_cycle_reads(image)

    def _watch_cycle_reads(self, image: Image) -> None:
        """The model answers RDCYCLE and RDINSTRET from the host's clock and cannot be told to
        trap: the image's own ones are stopped at, and answered from the virtual clock."""
        if self._cycle_reads is None:
            self._cycle_reads = cycle_reads(image)
        for address in self._cycle_reads:
            self.machine.handle(address, self._cycle_read)

    def _cycle_read(self) -> None:
        pc = self.machine.pc
        self._counter_read(pc, self._code(pc))

    def _enter_supervisor(self) -> None:
        """What firmware does in M-mode, where the CPU model starts, before it enters the kernel."""
        m = self.machine
        m.write_register("priv", 3)
        m.write_register("mideleg", 1 << SSI | 1 << STI | 1 << SEI)
        m.write_register("medeleg", 0xB1FF)
        m.write_register("mcounteren", 7)
        m.write_register("priv", 1)

    def device_tree(self) -> Node:
        cpu, plic = 1, 2  # phandles
        root = Node("", N_address_cells=2, N_size_cells=2, compatible="riscv-virtio",
                    model="kinst,riscv64")
        controller = Node("interrupt-controller", N_interrupt_cells=1, interrupt_controller=None,
                          compatible="riscv,cpu-intc", phandle=cpu)
        root.add(
            Node("chosen", stdout_path=f"/soc/serial@{UART_BASE:x}"),
            Node(f"memory@{RAM_BASE:x}", device_type="memory",
                 reg=cells64(RAM_BASE, self.machine.memory)),
            Node("cpus", N_address_cells=1, N_size_cells=0, timebase_frequency=TIMEBASE).add(
                Node("cpu@0", device_type="cpu", reg=0, status="okay", compatible="riscv",
                     riscv__isa="rv64imafdc", mmu_type="riscv,sv39").add(controller)
            ),
            Node("soc", N_address_cells=2, N_size_cells=2, compatible="simple-bus",
                 ranges=None).add(
                Node(f"plic@{PLIC_BASE:x}", compatible=["sifive,plic-1.0.0", "riscv,plic0"],
                     reg=cells64(PLIC_BASE, self.plic.size), N_interrupt_cells=1,
                     N_address_cells=0, interrupt_controller=None, riscv__ndev=63, phandle=plic,
                     interrupts_extended=[cpu, 11, cpu, 9]),
                Node(f"serial@{UART_BASE:x}", compatible="ns16550a",
                     reg=cells64(UART_BASE, 0x100), clock_frequency=3686400,
                     interrupt_parent=plic, interrupts=UART_IRQ),
            ),
        )
        return root

    # -- exceptions ---------------------------------------------------------------------------

    def exception(self, vector: int) -> str | None:
        """Unicorn has advanced pc by 4."""
        machine = self.machine
        pc = machine.pc - 4 & (1 << 64) - 1
        at = pc  # in a trampoline, perhaps
        pc = machine.left_at(pc)
        machine.pc = pc
        if vector in (ECALL_U, ECALL_S):  # Unicorn does not tell the modes apart
            if machine.read_register("priv") == 1:
                return self._ecall(pc)
            return self._trap(ECALL_U, pc, 0)
        if vector == ILLEGAL:
            code = self._code(at)
            if self._counter_read(pc, code):
                return None
            return self._trap(vector, pc, code)
        if vector in (LOAD_FAULT, STORE_FAULT, LOAD_MISALIGNED, STORE_MISALIGNED,
                      LOAD_ACCESS, STORE_ACCESS):
            address = effective_address(
                self._code(at), lambda n: machine.read_register(registers.NAMES[n])
            )
            if address is None:
                return f"memory fault {vector} of an instruction that accesses none"
            if machine.translate(address) is not None and address % 4096 > 4088:
                address = (address | 4095) + 1  # the second page of an access that crosses
            return self._trap(vector, pc, address)
        if vector == FETCH_FAULT:
            crosses = pc % 4096 == 4094 and machine.translate(pc) is not None
            return self._trap(vector, pc, pc + 2 if crosses else pc)
        return self._trap(vector, pc, 0)

    def invalid(self) -> str | None:
        """EBREAK: pc is at it."""
        pc = self.machine.pc
        if not self.machine.at_breakpoint(pc):
            pc = self.machine.left_at(pc)
        return self._trap(BREAKPOINT, pc, pc)

    def bus_error(self, code: int) -> str | None:
        pc = self.machine.pc
        return f"libunicorn error {code}: no device at the physical address that {pc:#x} uses"

    def _code(self, pc: int) -> int:
        code = int.from_bytes(self.machine.read(pc, 2), "little")
        if code & 3 == 3:
            code |= int.from_bytes(self.machine.read(pc + 2, 2), "little") << 16
        return code

    def _trap(self, cause: int, pc: int, value: int) -> str | None:
        m = self.machine
        vector = m.read_register("stvec")
        base = vector & ~3
        if base == 0:
            return f"exception {cause} before stvec is set"
        status = m.read_register("sstatus")
        status &= ~(SPIE | SPP)
        if status & SIE:
            status |= SPIE
        if m.read_register("priv") == 1:
            status |= SPP
        else:
            m.write_register("priv", 1)
        m.write_register("sstatus", status & ~SIE)
        m.write_register("sepc", pc)
        m.write_register("scause", cause)
        m.write_register("stval", value)
        m.pc = base + 4 * (cause & 0xFF) if vector & 1 and cause & INTERRUPT else base
        return None

    def _ecall(self, pc: int) -> str | None:
        m = self.machine
        arguments = [m.read_register(f"a{i}") for i in range(8)]
        m.engine.instructions += 1
        m.pc = pc + 4
        error, value = self.sbi.call(arguments[7], arguments[6], arguments)
        m.write_register("a0", error)
        if value is not None:
            m.write_register("a1", value)
        return None

    def _counter_read(self, pc: int, code: int) -> bool:
        """``rdtime`` and its like: CSRRS rd, csr, x0."""
        csr = code >> 20
        if code & 0x7F != 0x73 or code >> 12 & 7 not in (2, 3, 6, 7) or code >> 15 & 31:
            return False
        m = self.machine
        if csr == CSR_TIME:
            m.spend(CLOCK_READ_COST)
            value = m.engine.instructions + m.engine.skew
            value //= TICK
        elif csr in (CSR_CYCLE, CSR_INSTRET):
            value = m.engine.instructions
        else:
            return False
        rd = code >> 7 & 31
        if rd:
            m.write_register(registers.NAMES[rd], value)
        m.engine.instructions += 1
        m.pc = pc + 4
        return True

    # -- interrupts ---------------------------------------------------------------------------

    def _set_timer(self, ticks: int) -> None:
        self.timer_at = min(ticks * TICK, (1 << 64) - 1)
        self.timer.set(self.timer_at)
        self.machine.interrupts_changed()

    def _lines(self) -> int:
        lines = 1 << STI if self.machine.now >= self.timer_at else 0
        return lines | (1 << SEI if self.plic.asserted else 0)

    def interrupt_pending(self) -> bool:
        lines = self._lines()
        self.machine.engine.set_interrupt_gate(uc.UC_RISCV_REG_SIE, lines)
        return lines != 0

    def deliver_interrupt(self) -> bool:
        m = self.machine
        lines = self._lines() & m.read_register("sie")
        if not lines:
            return False
        if m.read_register("priv") == 1 and not m.read_register("sstatus") & SIE:
            return False
        cause = SEI if lines >> SEI & 1 else STI
        trouble = self._trap(INTERRUPT | cause, m.pc, 0)
        if trouble is not None:
            m.request_stop(Stop(StopReason.UNHANDLED, m.pc, trouble))
        return True

    def _shutdown(self, again: bool) -> None:
        reason = StopReason.RESET if again else StopReason.POWER_OFF
        self.machine.request_stop(Stop(reason, 0))

    # -- instructions -------------------------------------------------------------------------

    _block_ends = BlockEnds(scratch, NOP)

    def ends_block(self, code: bytes) -> bool:
        """Of what works, only jumps, fences and system instructions can, and compressed jumps."""
        return (len(code) == 2 or code[0] & 0x7F in MAY_END_BLOCK) and self._block_ends(code)

    def is_wait(self, code: bytes) -> bool:
        return code == WFI

    def type(self, data: bytes) -> None:
        self.uart.type(data)

    # -- snapshots ----------------------------------------------------------------------------

    def cpu_state(self) -> dict[str, Any]:
        m = self.machine
        state: dict[str, Any] = {name: m.read_register(name) for name in registers.STATE}
        with self._float_unit():
            state["fcsr"] = m.read_register("fcsr")
        state |= _reservation().read(m.uc)
        state["timer_at"] = self.timer_at
        return state

    def restore_cpu(self, state: dict[str, Any]) -> None:
        m = self.machine
        self._enter_supervisor()
        with self._float_unit():
            m.write_register("fcsr", state["fcsr"])
        for name in registers.STATE:
            m.write_register(name, state[name])
        self._watch_cycle_reads(m.image)
        _reservation().write(m.uc, {name: state[name] for name in _reservation().fields})
        self.timer_at = state["timer_at"]

    @contextlib.contextmanager
    def _float_unit(self) -> Iterator[None]:
        """fcsr can be reached only while sstatus.FS is not off."""
        m = self.machine
        status = m.read_register("sstatus")
        m.write_register("sstatus", status | FS_INITIAL)
        yield
        m.write_register("sstatus", status)
