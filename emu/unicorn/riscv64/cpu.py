"""The riscv64 CPU: supervisor mode, SBI calls and counters.

Exceptions and interrupts: privileged manual, chapter "Supervisor-Level ISA".
"""

import bisect
import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import unicorn
import unicorn.riscv_const as uc

import emu.unicorn.riscv64._cpu as _cpu
from emu.devices.device import number
from emu.devices.plic import Plic
from emu.elf.image import Image
from emu.machine.machine import Stop, StopReason
from emu.riscv64 import registers
from emu.riscv64.registers import CLOCK_READ_COST, TICK
from emu.unicorn.cpu import Cpu, CpuModel
from emu.unicorn.engine_probe import (
    CODE,
    CODE_SIZE,
    BlockEnds,
    Scratch,
    StateFields,
    context_bytes,
    context_field,
    find_field,
)
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.new_engine import new_engine
from emu.unicorn.riscv64._counters import counter_reads
from emu.unicorn.riscv64.sbi import (
    ALREADY_AVAILABLE,
    INVALID_PARAM,
    START_PENDING,
    STARTED,
    STOPPED,
    SUCCESS,
    Sbi,
)

SIE, SPIE, SPP, FS_INITIAL = 1 << 1, 1 << 5, 1 << 8, 1 << 13
SSI, STI, SEI = 1, 5, 9
INTERRUPT = 1 << 63
WFI = (0x10500073).to_bytes(4, "little")
NOP = (0x00000013).to_bytes(4, "little")
MAY_END_BLOCK = (0x63, 0x67, 0x6F, 0x73, 0x0F)  # opcodes: branches, JALR, JAL, SYSTEM, MISC-MEM
# Conditional branches, as in Engine.set_branches: BRANCH, C.BEQZ and C.BNEZ.
BRANCHES = ((4, 0x7F, 0x63), (2, 0xE003, 0xC001), (2, 0xE003, 0xE001))
LR = (0x1005B52F).to_bytes(4, "little")  # lr.d a0, (a1)
BREAKPOINT, ILLEGAL, ECALL_U, ECALL_S = 3, 2, 8, 9
USER_MODE, MACHINE_MODE = 0, 3
OF_FETCH = frozenset((0, 1, 12))
# Exception causes that set stval to an address: misalignment, access faults and page faults.
WITH_ADDRESS = frozenset((0, 1, 4, 5, 6, 7, 12, 13, 15))
MASK = (1 << 64) - 1
# Partial register -> (full register, mask of the part), from the privileged manual
SSTATUS = 1 << 63 | 1 << 19 | 1 << 18 | 3 << 13 | SPP | SPIE | SIE  # SD MXR SUM FS SPP SPIE SIE
PARTS = {"sstatus": ("mstatus", SSTATUS), "sie": ("mie", 1 << SSI | 1 << STI | 1 << SEI)}
CSR_CYCLE, CSR_TIME, CSR_INSTRET = 0xC00, 0xC01, 0xC02
HOST_COUNTERS = (CSR_CYCLE, CSR_INSTRET)  # counters that the CPU model reads from the host's clock
SYSTEM = 0x73  # major opcode of the CSR instructions


def new_scratch() -> unicorn.Uc:
    """Return a scratch engine in S-mode without address translation, with floating point on."""
    engine = new_engine(unicorn.UC_ARCH_RISCV, unicorn.UC_MODE_RISCV64)
    engine.ctl_set_cpu_model(uc.UC_CPU_RISCV64_SIFIVE_U54)
    engine.mem_map(CODE, CODE_SIZE)
    engine.reg_write(uc.UC_RISCV_REG_PRIV, 1)
    engine.reg_write(uc.UC_RISCV_REG_SSTATUS, FS_INITIAL)
    return engine


scratch = Scratch(new_scratch)


@functools.cache
def _control_places() -> dict[str, int]:
    """Locate the PC and the control and status registers in a context."""
    wanted = {name: registers.UNICORN[name] for name in ("pc", *registers.SUPERVISOR)}
    del wanted["sstatus"], wanted["sie"]  # sstatus and sie are parts of mstatus and mie
    wanted |= {"mstatus": uc.UC_RISCV_REG_MSTATUS, "mie": uc.UC_RISCV_REG_MIE}
    engine = scratch()
    engine.reg_write(uc.UC_RISCV_REG_PRIV, MACHINE_MODE)  # mstatus is accessible only in M-mode
    states, held = [], []
    for seed, interrupts in ((0x1357_9BDF_0246_8AC0, 0x222), (0x0F1E_2D3C_4B5A_6980, 0xAA0)):
        for i, (name, register) in enumerate(wanted.items()):
            value = {"mstatus": FS_INITIAL | SPIE | (SPP if seed & SPP else 0), "mie": interrupts,
                     "satp": 8 << 60 | seed >> 24}.get(name, seed + 0x1000 * i)
            engine.reg_write(register, value)
        states.append(context_bytes(engine))
        held.append({name: engine.reg_read(register) for name, register in wanted.items()})
    return {name: find_field(states, [h[name] for h in held], "<Q", f"{name} of riscv64")
            for name in wanted}


@functools.cache
def _software_field() -> StateFields:
    """Locate mip, the pending-interrupt bits, in a context; the guest clears some bits itself."""
    states, values = [], (0x222, 0x20, 0x202, 0x220)
    for value in values:
        engine = scratch()
        engine.reg_write(uc.UC_RISCV_REG_PRIV, MACHINE_MODE)
        engine.reg_write(uc.UC_RISCV_REG_MIDELEG, 0)
        engine.reg_write(uc.UC_RISCV_REG_MIP, value)
        states.append(context_bytes(engine))
    return StateFields({"mip": (find_field(states, values, "<I", "mip of riscv64"), "<I")})


@functools.cache
def _control_fields() -> StateFields:
    return StateFields({name: (at, "<Q") for name, at in _control_places().items()})


@functools.cache
def _reservation() -> StateFields:
    """Locate the address and the word of an LR reservation in the CPU state.

    Chosen values reveal where they are stored.
    """
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


@functools.cache
def _fault_address() -> int:
    """Locate the CPU state field of the value that stval will receive (QEMU's ``badaddr``).

    LR from a chosen, misaligned address reveals it.
    """
    states, addresses = [], (CODE + 0x1231, CODE + 0x1673)
    for address in addresses:
        engine = scratch()
        engine.mem_write(CODE, LR)
        hook = engine.hook_add(unicorn.UC_HOOK_INTR, lambda e, _n, _d: e.emu_stop())
        engine.reg_write(uc.UC_RISCV_REG_A1, address)
        with contextlib.suppress(unicorn.UcError):  # Unicorn reports the exception as an error
            engine.emu_start(CODE, CODE + 4)
        engine.hook_del(hook)
        engine.reg_write(uc.UC_RISCV_REG_A1, 0)
        states.append(context_bytes(engine))
    return find_field(states, addresses, "<Q", "the fault address of riscv64")


def cycle_reads(image: Image) -> list[int]:
    """Return the addresses of the instructions that read the cycle or instruction counter.

    A match counts only at an instruction boundary.  Boundaries are counted from the start of the
    nearest function below, because the static functions of a stripped kernel have no symbols.
    Padding between functions is instructions, or zeros, which count as instructions of 2 bytes.
    """
    addresses = []
    functions = image.symbols.function_addresses()
    for virtual, data in image.code():
        at = 0
        for match in counter_reads(data):
            known = bisect.bisect_right(functions, virtual + match) - 1
            if known >= 0:
                at = max(at, functions[known] - virtual)
            while at < match:
                at += 4 if data[at] & 3 == 3 else 2
            if at == match and virtual % 2 == 0:
                addresses.append(virtual + at)
    return addresses


class RiscvCpu(Cpu):
    """A riscv64 CPU (hart) with its SBI timer."""

    model = CpuModel(
        unicorn.UC_ARCH_RISCV, unicorn.UC_MODE_RISCV64, uc.UC_CPU_RISCV64_SIFIVE_U54, 0,
        registers.UNICORN,
    )
    wakes_masked = True
    guarded = frozenset(registers.SUPERVISOR)
    yields = ()  # PAUSE does not end a block, and FreeBSD's kernel does not use PAUSE
    spins_aloud = False

    def __init__(self, machine: UnicornMachine, number: int, plic: Plic) -> None:
        super().__init__(number)
        self.machine, self.plic = machine, plic
        self.timer = machine.timer(f"sbi{number or ''}", machine.interrupts_changed)
        self.told = False  # whether this hart's software interrupt must be raised at its next turn
        self.timer_at = (1 << 64) - 1  # deadline of the SBI timer in virtual ns
        # Addresses of instructions that read a counter, or None before the search.
        self._cycle_reads: list[int] | None = None
        self.sbi = Sbi(self._set_timer, machine.output, lambda: -1, self._shutdown, self._send,
                       self._start_hart, self._stop_hart, self._status,
                       machine.image.options.cpus)

    @classmethod
    def prepare(cls, machine: UnicornMachine) -> None:
        """Create the engine for riscv64 CPUs."""
        machine.make_engine(cls.model, uc.UC_RISCV_REG_PC)
        native, places = machine.engine, _control_places()
        native.set_page_walk(_cpu)
        native.set_page_blocks(12)
        native.set_branches(_cpu, BRANCHES)
        native.set_breakpoint_exception(
            _cpu, places["pc"], [places[n] for n in _cpu.PLACES])
        native.set_exceptions(_cpu, [_fault_address()], pc_ahead=4)
        native.set_interrupt_mask(uc.UC_RISCV_REG_SSTATUS, SIE, SIE)
        native.set_user_mode(uc.UC_RISCV_REG_PRIV, 3, USER_MODE)
        native.set_user_gate(places["mie"])
        native.trap_in_programs([(0xFFF0007F, csr << 20 | SYSTEM) for csr in HOST_COUNTERS])
        for locate in (_software_field, _reservation):
            locate()  # while there is a scratch engine
        scratch.release()

    def reset(self) -> None:
        """Set up the CPU in M-mode, where the CPU model starts, then enter S-mode like firmware."""
        m = self.machine
        m.write_register("priv", 3)
        m.write_register("mideleg", 1 << SSI | 1 << STI | 1 << SEI)
        m.write_register("medeleg", 0xB1FF)
        m.write_register("mcounteren", 7)
        m.write_register("priv", 1)

    def monitor_place(self) -> int:
        """Return the offset of LR's reservation address in a saved Unicorn context."""
        return _reservation().fields["load_res"][0]

    def start(self, address: int, argument: int) -> None:
        """Start the hart with address translation off, as SBI's hart_start does."""
        engine = self.machine.engine
        self.reset()
        for name, value in (("satp", 0), ("sstatus", 0), ("sie", 0), ("a0", self.number),
                            ("a1", argument), ("pc", address)):
            engine.write(registers.UNICORN[name], value)

    def watch(self, image: Image) -> None:
        """Answer the image's RDCYCLE and RDINSTRET instructions from the virtual clock.

        The CPU model answers them from the host's clock and cannot be made to trap, so each of
        them gets a handler.
        """
        if self._cycle_reads is None:
            self._cycle_reads = cycle_reads(image)
        for address in self._cycle_reads:
            self.machine.handle(address, self._cycle_read)

    def _cycle_read(self) -> None:
        pc = self.machine.pc
        with self.machine.unrecorded():  # an action of the CPU itself is not an input
            self._counter_read(pc, self._code(pc))

    def trapped(self, pc: int, code: bytes) -> int:
        """Emulate a program's RDCYCLE or RDINSTRET; the CPU model would read the host's clock."""
        instructions = self.machine.arch.split(code)
        for i, instruction in enumerate(instructions):
            word = int.from_bytes(instruction, "little")
            if len(instruction) == 4 and word & 0x7F == SYSTEM and word >> 20 in HOST_COUNTERS:
                if i:
                    return i
                with self.machine.unrecorded():
                    # Other forms are illegal: the CPU model executes them and raises the exception.
                    return 0 if self._counter_read(pc, word) else 1
        return len(instructions)  # the bytes matched, but not at an instruction boundary

    # -- control and status registers -------------------------------------------------------------

    def read_system(self, name: str) -> int:
        """Read a system register, or its copy in a context when user mode hides the register."""
        if name not in self.guarded:
            return super().read_system(name)
        m = self.machine
        if m.engine.read(uc.UC_RISCV_REG_PRIV) != USER_MODE:
            return m.engine.read(registers.UNICORN[name])
        place, mask = PARTS.get(name, (name, MASK))
        return _control_fields().read(m.uc)[place] & mask

    def write_system(self, name: str, value: int) -> None:
        """Write a system register, or its copy in a context when user mode hides the register."""
        if name not in self.guarded:
            super().write_system(name, value)
            return
        m = self.machine
        if m.engine.read(uc.UC_RISCV_REG_PRIV) != USER_MODE:
            m.engine.write(registers.UNICORN[name], value)
            return
        place, mask = PARTS.get(name, (name, MASK))
        before = _control_fields().read(m.uc)[place]
        _control_fields().write(m.uc, {place: before & ~mask | value & mask})
        if name == "satp" and value != before:
            m.engine.flush_tlb()

    # -- exceptions -------------------------------------------------------------------------------

    def exception(self, vector: int) -> str | None:
        """Deliver an exception or answer an SBI call; Unicorn has advanced the PC by 4."""
        machine = self.machine
        pc = machine.pc - 4 & (1 << 64) - 1
        at = pc  # ``at`` may be in a trampoline
        pc = machine.left_at(pc)
        machine.pc = pc
        if vector in (ECALL_U, ECALL_S):  # Unicorn does not report the mode of an ECALL
            if machine.read_register("priv") != USER_MODE:
                return self._ecall(pc)
            return self._trap(ECALL_U, pc, 0)
        if vector == ILLEGAL:
            code = self._code(at)
            if self._counter_read(pc, code):
                return None
            return self._trap(vector, pc, code)
        if vector in WITH_ADDRESS:
            address = context_field(machine.uc, _fault_address(), "<Q")
            if vector in OF_FETCH:
                # Convert a trampoline address to an address in the displaced instruction.
                address += pc - at
            return self._trap(vector, pc, address)
        return self._trap(vector, pc, 0)

    def invalid(self) -> str | None:
        """Deliver the breakpoint exception of the EBREAK instruction at the PC."""
        pc = self.machine.pc
        if not self.machine.at_breakpoint(pc):
            pc = self.machine.left_at(pc)
        return self._trap(BREAKPOINT, pc, pc)

    def bus_error(self, code: int) -> str | None:
        """Report an access to a physical address without RAM or device."""
        pc = self.machine.pc
        return f"libunicorn error {code}: no device at the physical address accessed at {pc:#x}"

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
        if m.read_register("priv") == USER_MODE:
            m.write_register("priv", 1)
        else:
            status |= SPP
        m.write_register("sstatus", status & ~SIE)
        m.write_register("sepc", pc)
        m.write_register("scause", cause)
        m.write_register("stval", value)
        m.pc = base + 4 * (cause & 0xFF) if vector & 1 and cause & INTERRUPT else base
        return None

    def _ecall(self, pc: int) -> str | None:
        m = self.machine
        arguments = [m.read_register(f"a{i}") for i in range(8)]
        m.engine.executed_one()
        m.pc = pc + 4
        error, value = self.sbi.call(arguments[7], arguments[6], arguments)
        m.write_register("a0", error)
        if value is not None:
            m.write_register("a1", value)
        return None

    # -- firmware services for other harts (SBI HSM and IPI) --------------------------------------

    def _send(self, harts: int) -> None:
        """Send supervisor software interrupts to a set of harts."""
        for cpu in self.machine.cpus:
            assert isinstance(cpu, RiscvCpu)
            if harts >> cpu.number & 1:
                cpu.told = True
        if self.told:
            self._be_told()
        self.machine.interrupts_changed()

    def _start_hart(self, hart: int, address: int, argument: int) -> int:
        if hart >= len(self.machine.cpus):
            return INVALID_PARAM
        if self.machine.cpus[hart].on:
            return ALREADY_AVAILABLE
        self.machine.cpus[hart].post(address, argument)
        self.machine.schedule.changed()
        return SUCCESS

    def _stop_hart(self) -> None:
        self.machine.schedule.off()

    def _status(self, hart: int) -> tuple[int, int]:
        if hart >= len(self.machine.cpus):
            return INVALID_PARAM, 0
        cpu = self.machine.cpus[hart]
        return SUCCESS, START_PENDING if cpu.posted else STARTED if cpu.on else STOPPED

    def goes_out(self) -> None:
        """Save a pending software interrupt at the end of the hart's turn."""
        if _software_field().read(self.machine.uc)["mip"] >> SSI & 1:
            self.told = True

    def came_in(self) -> bool:
        """Start the hart or raise its software interrupt, as other harts requested."""
        started = super().came_in()
        if self.told:
            self._be_told()
        return started

    def _be_told(self) -> None:
        """Set the pending bit of the software interrupt; the hart itself clears the bit."""
        self.told = False
        fields = _software_field()
        fields.write(self.machine.uc, {"mip": fields.read(self.machine.uc)["mip"] | 1 << SSI})

    def _shutdown(self, again: bool) -> None:
        reason = StopReason.RESET if again else StopReason.POWER_OFF
        self.machine.request_stop(Stop(reason, 0))

    def _counter_read(self, pc: int, code: int) -> bool:
        """Emulate ``rdtime`` and similar counter reads (CSRRS rd, csr, x0).

        :return: whether the instruction was one of them.
        """
        csr = code >> 20
        if code & 0x7F != SYSTEM or code >> 12 & 7 not in (2, 3, 6, 7) or code >> 15 & 31:
            return False
        m = self.machine
        if csr == CSR_TIME:
            m.spend(CLOCK_READ_COST)
            value = m.engine.time // TICK
        elif csr in HOST_COUNTERS:
            value = m.engine.instructions
        else:
            return False
        rd = code >> 7 & 31
        if rd:
            m.write_register(registers.NAMES[rd], value)
        m.engine.executed_one()
        m.pc = pc + 4
        return True

    # -- interrupts -------------------------------------------------------------------------------

    def _set_timer(self, ticks: int) -> None:
        self.timer_at = min(ticks * TICK, (1 << 64) - 1)
        self.timer.set(self.timer_at)
        self.machine.interrupts_changed()

    def _lines(self) -> int:
        lines = 1 << STI if self.machine.now >= self.timer_at else 0
        lines |= 1 << SEI if self.plic.asserted(self.number) else 0
        if self.machine.schedule.several:
            if self.told:
                lines |= 1 << SSI
            elif self.machine.engine.cpu == self.number:
                lines |= _software_field().read(self.machine.uc)["mip"] & 1 << SSI
        return lines

    def interrupt_pending(self) -> bool:
        """Return whether a timer, external or software interrupt is pending."""
        lines = self._lines()
        if self.machine.engine.cpu == self.number:
            self.machine.engine.set_interrupt_gate(uc.UC_RISCV_REG_SIE, lines)
        return lines != 0

    def ring_timer(self) -> None:
        """Make the SBI timer expire now."""
        self._set_timer(self.machine.now // TICK)

    def deliver_interrupt(self) -> bool:
        """Take an interrupt if one is pending, enabled and not masked."""
        m = self.machine
        lines = self._lines() & m.read_register("sie")
        if not lines:
            return False
        if m.read_register("priv") != USER_MODE and not m.read_register("sstatus") & SIE:
            return False
        cause = next(line for line in (SEI, SSI, STI) if lines >> line & 1)
        trouble = self._trap(INTERRUPT | cause, m.pc, 0)
        if trouble is not None:
            m.request_stop(Stop(StopReason.UNHANDLED, m.pc, trouble))
        return True

    # -- instructions -----------------------------------------------------------------------------

    _block_ends = BlockEnds(new_scratch, NOP)

    def ends_block(self, code: bytes) -> bool:
        """Return whether an instruction always ends the CPU model's translated block."""
        return (len(code) == 2 or code[0] & 0x7F in MAY_END_BLOCK) and self._block_ends(code)

    def is_wait(self, code: bytes) -> bool:
        """Return whether an instruction is WFI."""
        return code == WFI

    # -- snapshots --------------------------------------------------------------------------------

    def keep(self) -> Any:
        """Return the CPU state that the engine's registers do not hold, including the timer."""
        return super().keep(), self.timer_at, self.told

    def put_back(self, kept: Any) -> None:
        """Restore the state returned by ``keep``."""
        own, self.timer_at, self.told = kept
        super().put_back(own)

    def state(self) -> dict[str, Any]:
        """Return all CPU state that a snapshot stores, as JSON-compatible values."""
        m = self.machine
        state: dict[str, Any] = {name: m.read_register(name) for name in registers.STATE}
        with self._float_unit():
            state["fcsr"] = m.read_register("fcsr")
        state |= _reservation().read(m.uc)
        state["timer_at"] = self.timer_at
        if m.schedule.several:
            state["told"] = self.told
            state |= _software_field().read(m.uc)
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Set the CPU to a state returned by ``state``."""
        m = self.machine
        self.reset()
        with self._float_unit():
            m.write_register("fcsr", state["fcsr"])
        for name in registers.STATE:
            m.write_register(name, state[name])
        self.watch(m.image)
        _reservation().write(m.uc, {name: state[name] for name in _reservation().fields})
        self.timer_at = number(state["timer_at"], 1 << 64)
        if m.schedule.several:
            self.told = bool(state["told"])
            _software_field().write(m.uc, {"mip": number(state["mip"], 1 << 12)})

    @contextlib.contextmanager
    def _float_unit(self) -> Iterator[None]:
        """Enable the floating-point unit, because fcsr is inaccessible while sstatus.FS is off."""
        m = self.machine
        status = m.read_register("sstatus")
        m.write_register("sstatus", status | FS_INITIAL)
        yield
        m.write_register("sstatus", status)


CPU = RiscvCpu
