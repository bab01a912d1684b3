"""The arm64 CPU: exception levels, generic timers and PSCI calls.

Exceptions: Arm ARM, "The AArch64 System Level Programmers' Model", exception entry.
"""

import functools
import struct
from collections.abc import Callable
from typing import Any

import unicorn
import unicorn.arm64_const as uc

import emu.unicorn.arm64._cpu as _cpu
from emu.arm64 import registers
from emu.arm64.generic_timer import (
    CNTFRQ,
    COUNTERS,
    FREQUENCY,
    PHYSICAL,
    PPI_PHYSICAL,
    PPI_VIRTUAL,
    REGISTERS,
    TICK,
    VIRTUAL,
    GenericTimer,
)
from emu.devices.gicv2 import CpuInterface
from emu.host.errors import MachineError
from emu.machine.machine import Stop, StopReason
from emu.unicorn.arm64 import psci
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

MPIDR = registers.key(3, 0, 0, 0, 5)
SCTLR_OFF = 0x30D00800  # SCTLR_EL1 bits that are 1 while the MMU is off
PMCCNTR = registers.key(3, 3, 9, 13, 0)  # cycle counter; it advances by 1 per nanosecond
CLOCK_READ_COST = 100  # duration of a counter read in ns
# Exception numbers of the CPU model (QEMU target/arm/cpu.h).
UNDEFINED, SVC, PREFETCH_ABORT, DATA_ABORT, BKPT, HVC, SMC = 1, 2, 3, 4, 7, 11, 13
VECTOR_SYNC, VECTOR_IRQ = 0x000, 0x080
CURRENT_SPX, LOWER_A64 = 0x200, 0x400
PSTATE_D, PSTATE_A, PSTATE_I, PSTATE_F = 1 << 9, 1 << 8, 1 << 7, 1 << 6
EL0T, EL1H = 0, 5
EL_BITS = 3 << 2  # bits of PSTATE that hold the exception level
EC_SYSTEM = 0x18
FPEN = 3 << 20  # bits of CPACR_EL1 that control floating-point access
FP_ACCESS = 0x07 << 26 | 1 << 25 | 1 << 24 | 0xE << 20  # syndrome of any trapped FP access
# (mask, value) pairs of the instructions that FPEN traps: floating point and SIMD (bits 27 and 26
# are set, Arm ARM C4.1), and accesses to FPCR and FPSR.
FLOATING_POINT = ((0x0C000000, 0x0C000000), (0xFFDFFFC0, 0xD51B4400))
A32 = "the guest switched to AArch32 code (SPSR_EL1.M[4]), which is not supported"
YIELD, WFE = bytes.fromhex("3f2003d5"), bytes.fromhex("5f2003d5")
NOP, WFI = bytes.fromhex("1f2003d5"), bytes.fromhex("7f2003d5")
LDXR = bytes.fromhex("207c5fc8")  # ldxr x0, [x1]
LDXP = bytes.fromhex("20087fc8")  # ldxp x0, x2, [x1]
# Among valid instructions, only branches, exceptions and system instructions end a block
# (Arm ARM C4.1).
END_MASK, END_VALUE = 0x1C000000, 0x14000000
# Conditional branches, as in Engine.set_branches: B.cond, CBZ and CBNZ, TBZ and TBNZ.
BRANCHES = ((4, 0xFF000010, 0x54000000), (4, 0x7E000000, 0x34000000), (4, 0x7E000000, 0x36000000))


def new_scratch() -> unicorn.Uc:
    """Return a scratch engine in EL1 without address translation, with floating point enabled."""
    engine = new_engine(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    engine.ctl_set_cpu_model(uc.UC_CPU_ARM64_A57)
    engine.mem_map(CODE, CODE_SIZE)
    _set_system(engine, "scr_el3", 0x501)
    _set_system(engine, "hcr_el2", 1 << 31)
    _set_system(engine, "cpacr_el1", 3 << 20)
    engine.reg_write(uc.UC_ARM64_REG_PSTATE, 0x3C0 | EL1H)
    _set_system(engine, "contextidr_el1", 0)
    return engine


scratch = Scratch(new_scratch)


@functools.cache
def _monitor() -> StateFields:
    """Locate the exclusive monitor in the CPU state: an address and the two words loaded from it.

    Chosen values reveal where they are stored.
    """
    states = []
    addresses = CODE + 0x1230, CODE + 0x1670
    words = 0x1357_9BDF_0246_8ACE, 0x0F1E_2D3C_4B5A_6978
    for address, low, high in ((addresses[0], *words), (addresses[1], words[1], words[0])):
        engine = scratch()
        engine.mem_write(CODE, LDXP)
        engine.mem_write(address, low.to_bytes(8, "little") + high.to_bytes(8, "little"))
        engine.reg_write(uc.UC_ARM64_REG_X1, address)
        engine.emu_start(CODE, CODE + 4)
        for register in (uc.UC_ARM64_REG_X0, uc.UC_ARM64_REG_X1, uc.UC_ARM64_REG_X2):
            engine.reg_write(register, 0)
        states.append(context_bytes(engine))
    return StateFields({
        name: (find_field(states, values, "<Q", "the exclusive monitor of arm64"), "<Q")
        for name, values in (("exclusive_addr", addresses), ("exclusive_val", words),
                             ("exclusive_high", words[::-1]))
    })


@functools.cache
def _execution_state() -> StateFields:
    """Locate the A64 flag in the CPU state: the word after PC and PSTATE, 1 in A64 state.

    Writing a register does not change it.
    """
    states, places = [], (CODE + 0x1234, CODE + 0x1568)
    for place in places:
        engine = scratch()
        engine.reg_write(uc.UC_ARM64_REG_PC, place)
        states.append(context_bytes(engine))
    at = find_field(states, places, "<Q", "the pc of arm64") + 12
    if any(struct.unpack_from("<I", state, at) != (1,) for state in states):
        raise MachineError(f"Unicorn {unicorn.__version__} is not supported: its arm64 CPU state "
                           "does not have the A64 flag at the expected offset; use version 2.1.4")
    return StateFields({"aarch64": (at, "<I")})


@functools.cache
def _exception_fields() -> tuple[int, int]:
    """Locate the CPU state fields of the last abort's syndrome and fault address.

    An exclusive load from a chosen, misaligned address reveals them.
    """
    states, addresses = [], (0x1357_9BDF, 0x0246_8ACF)
    for address in addresses:
        engine = scratch()
        engine.mem_write(CODE, LDXR)
        hook = engine.hook_add(unicorn.UC_HOOK_INTR, lambda e, _n, _d: e.emu_stop())
        _set_system(engine, "sctlr_el1", 2)
        engine.reg_write(uc.UC_ARM64_REG_X1, address)
        engine.emu_start(CODE, CODE + 4)
        engine.hook_del(hook)
        engine.reg_write(uc.UC_ARM64_REG_X1, 0)
        states.append(context_bytes(engine))
    at = find_field(states, addresses, "<Q", "the fault address of an arm64 abort")
    # A u32 syndrome and a u32 fault status precede the address.  The syndrome must be that of an
    # alignment fault of a read in EL1 (Arm ARM, ESR_EL1: EC 0x25, IL, DFSC 0x21).
    for state in states:
        syndrome = int.from_bytes(state[at - 8 : at - 4], "little")
        if syndrome & ~0x03FFFF80 != 0x25 << 26 | 0x21:
            raise MachineError(
                f"Unicorn {unicorn.__version__} is not supported: its arm64 CPU state does "
                "not have the syndrome of an abort at the expected offset; use version 2.1.4"
            )
    return at - 8, at


def _set_system(engine: unicorn.Uc, name: str, value: int) -> None:
    op0, op1, crn, crm, op2 = registers.SYSTEM[name]
    engine.reg_write(uc.UC_ARM64_REG_CP_REG, (crn, crm, op0, op1, op2, value))


class ArmCpu(Cpu):
    """An arm64 CPU with its GIC CPU interface and generic timers.

    :param line: callback that sets a private interrupt (PPI) of the CPU, by number from 0.
    """

    model = CpuModel(
        unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM, uc.UC_CPU_ARM64_A57, 4, registers.UNICORN
    )
    vectors = registers.VECTORS
    wakes_masked = True
    yields = (YIELD, WFE)

    def __init__(self, machine: UnicornMachine, number: int, interface: CpuInterface,
                 line: Callable[[int, bool], None]) -> None:
        super().__init__(number)
        self.machine, self.interface = machine, interface
        which = str(number) if number else ""
        self.timers = {
            VIRTUAL: GenericTimer(machine, f"cntv{which}", lambda up: line(PPI_VIRTUAL, up)),
            PHYSICAL: GenericTimer(machine, f"cntp{which}", lambda up: line(PPI_PHYSICAL, up)),
        }

    @classmethod
    def prepare(cls, machine: UnicornMachine) -> None:
        """Create the engine for arm64 CPUs."""
        machine.make_engine(cls.model, uc.UC_ARM64_REG_PC)
        native = machine.engine
        for name, value in (("scr_el3", 0x501), ("hcr_el2", 1 << 31)):
            native.write_system(uc.UC_ARM64_REG_CP_REG, *registers.SYSTEM[name], value)
        native.set_breakpoint_exception(_cpu)
        native.set_exceptions(
            _cpu, [*_exception_fields(), _execution_state().fields["aarch64"][0]])
        native.trap_in_programs(FLOATING_POINT, registers.key(*registers.SYSTEM["cpacr_el1"]), FPEN)
        native.set_page_blocks(10)
        native.set_block_ends(END_MASK, END_VALUE)
        native.set_branches(None, BRANCHES)
        native.set_page_walk(_cpu)
        native.set_user_mode(uc.UC_ARM64_REG_PSTATE, EL_BITS, 0)
        native.set_interrupt_mask(uc.UC_ARM64_REG_PSTATE, PSTATE_I, 0)

        def read(number: int) -> int | None:
            cpu = machine.cpu
            assert isinstance(cpu, cls)
            return cpu._system_read(number)

        def write(number: int, value: int) -> bool:
            cpu = machine.cpu
            assert isinstance(cpu, cls)
            return cpu._system_write(number, value)

        native.hook_system(
            uc.UC_ARM64_INS_MRS, uc.UC_ARM64_INS_MSR, COUNTERS,
            [CNTFRQ, PMCCNTR, *REGISTERS, *([MPIDR] if machine.image.options.cpus > 1 else [])],
            read, write, CLOCK_READ_COST, 1, TICK,
        )
        _monitor()  # while there is a scratch engine
        scratch.release()

    def reset(self) -> None:
        """Enter EL1 with all exceptions masked."""
        self._set_pstate(PSTATE_D | PSTATE_A | PSTATE_I | PSTATE_F | EL1H)

    def monitor_place(self) -> int:
        """Return the offset of the exclusive monitor's address in a saved Unicorn context."""
        return _monitor().fields["exclusive_addr"][0]

    def start(self, address: int, argument: int) -> None:
        """Start the CPU with the MMU off, as PSCI's CPU_ON does."""
        self.reset()
        self.write_system("sctlr_el1", SCTLR_OFF)
        self.machine.engine.write(registers.UNICORN["x0"], argument)
        self.machine.engine.write(registers.UNICORN["pc"], address)

    # -- system registers -------------------------------------------------------------------------

    def read_system(self, name: str) -> int:
        """Read a system register by name."""
        if name not in registers.SYSTEM:
            raise MachineError(f"arm64 has no register '{name}'")
        return self.machine.engine.read_system(uc.UC_ARM64_REG_CP_REG, *registers.SYSTEM[name])

    def write_system(self, name: str, value: int) -> None:
        """Write a system register by name."""
        if name not in registers.SYSTEM:
            raise MachineError(f"arm64 has no register '{name}'")
        if name == "cpacr_el1":
            self.machine.engine.set_program_traps(value)
        self.machine.engine.write_system(uc.UC_ARM64_REG_CP_REG, *registers.SYSTEM[name], value)

    def _system_read(self, number: int) -> int | None:
        if number == CNTFRQ:
            return FREQUENCY
        if number == PMCCNTR:  # the CPU model's own counter follows the host's clock
            return self.machine.now
        if number == MPIDR:
            return 1 << 31 | self.number
        timer, name = REGISTERS[number]
        return self.timers[timer].read(name)

    def _system_write(self, number: int, value: int) -> bool:
        if number in REGISTERS:
            timer, name = REGISTERS[number]
            self.timers[timer].write(name, value)
        return True

    # -- exceptions -------------------------------------------------------------------------------

    def exception(self, vector: int) -> str | None:
        """Deliver an exception, or answer a PSCI call."""
        machine = self.machine
        if vector in (PREFETCH_ABORT, SVC, UNDEFINED) and not self._in_a64():
            return A32
        pc = machine.pc
        if vector != BKPT or not machine.at_breakpoint(pc):
            pc = machine.left_at(pc)
        if vector in (HVC, SMC):
            result = psci.call([machine.read_register(f"x{i}") for i in range(4)], machine.cpus,
                               machine.schedule.off, self._shutdown)
            machine.schedule.changed()
            machine.write_register("x0", result)
            if vector == SMC:  # the PC still points to the SMC instruction
                machine.pc = pc + 4
                machine.engine.executed_one()
            return None
        if vector in (DATA_ABORT, PREFETCH_ABORT):
            self.write_system("far_el1", context_field(machine.uc, _exception_fields()[1], "<Q"))
        if vector in (DATA_ABORT, PREFETCH_ABORT, BKPT, SVC, UNDEFINED):
            syndrome = self._syndrome() or self._trapped_immediate(pc)
            return self._enter(VECTOR_SYNC, pc, syndrome)
        return f"the CPU model raised exception {vector}, which is not supported"

    def invalid(self) -> str | None:
        """Deliver an undefined instruction exception or a trap, depending on the syndrome.

        Floating-point instructions never trap in the CPU model.
        """
        if not self._in_a64():
            return A32
        pc = self.machine.left_at(self.machine.pc)
        return self._enter(VECTOR_SYNC, pc, self._syndrome())

    def _syndrome(self) -> int:
        return context_field(self.machine.uc, _exception_fields()[0], "<I")

    def _trapped_immediate(self, pc: int) -> int:
        """Compute the syndrome of a trapped MSR (immediate); the CPU model does not record it.

        See Arm ARM, ESR_EL1, "ISS encoding for an exception from MSR, MRS, or System instruction".
        """
        code = int.from_bytes(self.machine.read(pc, 4), "little")
        op1, operand, op2 = code >> 16 & 7, code >> 8 & 15, code >> 5 & 7
        return EC_SYSTEM << 26 | 1 << 25 | op2 << 17 | op1 << 14 | 4 << 10 | 31 << 5 | operand << 1

    def trapped(self, pc: int, code: bytes) -> int:
        """Deliver a trap if a program's block starts with a floating-point instruction."""
        for i, (word,) in enumerate(struct.iter_unpack("<I", code)):
            if any(word & mask == value for mask, value in FLOATING_POINT):
                if i == 0:
                    self._enter(VECTOR_SYNC, pc, FP_ACCESS)
                return i
        raise MachineError(f"cannot deliver a trap at {pc:#x}: the code there changed just before "
                           "the CPU executed it")

    def stuck(self) -> str:
        """Explain why the CPU model does not execute the current instruction."""
        return super().stuck() if self._in_a64() else A32

    def _in_a64(self) -> bool:
        return _execution_state().read(self.machine.uc)["aarch64"] == 1

    def bus_error(self, code: int) -> str | None:
        """Report an access to a physical address without RAM or device."""
        if not self._in_a64():
            return A32
        pc = self.machine.pc
        return f"libunicorn error {code}: no device at the physical address accessed at {pc:#x}"

    def _set_pstate(self, value: int) -> None:
        """Write PSTATE, then a system register, so that Unicorn updates its translation flags."""
        self.machine.write_register("pstate", value)
        self.write_system("contextidr_el1", self.read_system("contextidr_el1"))

    def _enter(self, offset: int, pc: int, syndrome: int | None) -> str | None:
        m = self.machine
        vectors = self.read_system("vbar_el1")
        if vectors == 0:
            return "exception before VBAR_EL1 is set"
        state = m.read_register("pstate")
        user = state & 0x1F == EL0T
        if not user and state & 0x1F != EL1H:
            return (f"exception from EL{state >> 2 & 3} with PSTATE {state:#x}: only EL0 and EL1h "
                    "are supported")
        sp = self._change_stacks() if user else 0
        self.write_system("spsr_el1", state)
        self.write_system("elr_el1", pc)
        if syndrome is not None:
            self.write_system("esr_el1", syndrome)
        self._set_pstate(PSTATE_D | PSTATE_A | PSTATE_I | PSTATE_F | EL1H)
        if user:
            m.write_register("sp", sp)
        m.pc = vectors + (LOWER_A64 if user else CURRENT_SPX) + offset
        return None

    def _change_stacks(self) -> int:
        """Save the stack pointer in SP_EL0, because writing PSTATE does not switch stacks.

        :return: the stack pointer of EL1.
        """
        self.write_system("sp_el0", self.machine.read_register("sp"))
        return self.read_system("sp_el1")

    def _shutdown(self, again: bool) -> None:
        self.machine.request_stop(Stop(StopReason.RESET if again else StopReason.POWER_OFF, 0))

    # -- interrupts -------------------------------------------------------------------------------

    def interrupt_pending(self) -> bool:
        """Return whether the GIC CPU interface asserts an interrupt."""
        return self.interface.asserted

    def ring_timer(self) -> None:
        """Make the generic timers expire now."""
        for timer in self.timers.values():
            timer.ring()

    def deliver_interrupt(self) -> bool:
        """Take an IRQ if one is pending and not masked."""
        m = self.machine
        if not self.interface.asserted or m.read_register("pstate") & PSTATE_I:
            return False
        trouble = self._enter(VECTOR_IRQ, m.pc, None)
        if trouble is not None:
            m.request_stop(Stop(StopReason.UNHANDLED, m.pc, trouble))
        return True

    # -- instructions -----------------------------------------------------------------------------

    _block_ends = BlockEnds(new_scratch, NOP)

    def ends_block(self, code: bytes) -> bool:
        """Return whether an instruction always ends the CPU model's translated block."""
        return (int.from_bytes(code, "little") & END_MASK == END_VALUE
                and self._block_ends(code))

    def is_wait(self, code: bytes) -> bool:
        """Return whether an instruction is WFI."""
        return code == WFI

    # -- snapshots --------------------------------------------------------------------------------

    def keep(self) -> Any:
        """Return the CPU state that the engine's registers do not hold, including the timers."""
        return super().keep(), [(t.control, t.compare) for t in self.timers.values()]

    def put_back(self, kept: Any) -> None:
        """Restore the state returned by ``keep``."""
        super().put_back(kept[0])
        for timer, (control, compare) in zip(self.timers.values(), kept[1], strict=True):
            timer.control, timer.compare = control, compare

    def state(self) -> dict[str, Any]:
        """Return all CPU state that a snapshot stores, as JSON-compatible values."""
        m = self.machine
        state: dict[str, Any] = {name: m.read_register(name) for name in registers.GENERAL}
        state |= {name: self.read_system(name) for name in registers.CARRIED}
        state["monitor"] = {name: self.read_system(name) for name in registers.MONITOR}
        state["fpcr"] = m.engine.read(uc.UC_ARM64_REG_FPCR)
        state["fpsr"] = m.engine.read(uc.UC_ARM64_REG_FPSR)
        for i in range(32):
            state[f"v{i}"] = m.engine.read_bytes(uc.UC_ARM64_REG_V0 + i, 16).hex()
        state |= _monitor().read(m.uc)
        if state["pstate"] & EL_BITS == 0:
            state["sp_el1"] = self.read_system("sp_el1")
        if not self._in_a64():
            state["a32"] = True
        state["timers"] = {str(n): t.state() for n, t in self.timers.items()}
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Set the CPU to a state returned by ``state``."""
        m = self.machine
        _execution_state().write(m.uc, {"aarch64": not state.get("a32", False)})
        m.write_register("pstate", state["pstate"])
        for name in registers.CARRIED:
            self.write_system(name, state[name])
        for name in registers.MONITOR:
            self.write_system(name, state["monitor"][name])
        if "sp_el1" in state:
            self.write_system("sp_el1", state["sp_el1"])
        m.engine.write(uc.UC_ARM64_REG_FPCR, state["fpcr"])
        m.engine.write(uc.UC_ARM64_REG_FPSR, state["fpsr"])
        for i in range(32):
            m.engine.write_bytes(uc.UC_ARM64_REG_V0 + i, bytes.fromhex(state[f"v{i}"]))
        for name in registers.GENERAL:
            m.write_register(name, state[name])
        self._set_pstate(state["pstate"])
        m.pc = state["pc"]
        _monitor().write(m.uc, {name: state[name] for name in _monitor().fields})
        for number, timer in self.timers.items():
            timer.restore(state["timers"][str(number)])


CPU = ArmCpu
