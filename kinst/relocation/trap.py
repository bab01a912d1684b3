"""Host side of the guest's trap path; each architecture subclasses ``GuestTrap``.

The kernel's vectors have built a trap frame and called (or jumped to) the seam,
``dtrace_invop_jump_addr``.  On a real system this pointer leads into a kernel module; here
``GuestTrap`` takes its place.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from emu.arch.parts import Parts
from emu.guest.guest import Guest, TrapFrame
from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine
from kinst.relocation.instructions import Instructions
from kinst.relocation.verdict import Copy, RegisterState, Rewrite

MASK = (1 << 64) - 1
NO_TRAMPOLINES = "this kernel's vectors emulate displaced instructions themselves"


@dataclass
class CpuState(RegisterState):
    """Interrupted registers, read from and written to the CPU itself."""

    machine: Machine
    pc: int

    def get(self, register: str) -> int:
        return self.pc if register == self.machine.arch.pc else self.machine.read_register(register)

    def set(self, register: str, value: int) -> None:
        self.machine.write_register(register, value & MASK)

    def set_vector(self, number: int, value: int) -> None:
        self.machine.write_vector(f"q{number}", value)

    def load(self, address: int, size: int) -> int:
        return int.from_bytes(self.machine.read(address, size), "little")

    def store(self, address: int, size: int, value: int) -> None:
        self.machine.write(address, (value & (1 << 8 * size) - 1).to_bytes(size, "little"))


@dataclass(frozen=True)
class FrameRegisters:
    """Location of the interrupted registers at the seam.

    :param register: the register that holds the trap frame's address, less ``bias`` bytes.
    :param names: register name -> field of the trap frame, where these names differ.
    :param unrestored: registers that the kernel's return path does not restore.
    :param untold: registers whose interrupted values the trap frame does not contain; compiled code
        never changes them.
    """

    register: str
    bias: int = 0
    names: Mapping[str, str] = field(default_factory=dict)
    unrestored: frozenset[str] = frozenset()
    untold: frozenset[str] = frozenset()

    def field(self, register: str) -> str:
        """Return the name of the trap frame field that contains a register."""
        return self.names.get(register, register)


@dataclass
class FrameState(CpuState):
    """Interrupted registers in the trap frame or, if the frame lacks them, in the CPU.

    :param layout: the layout of the trap frame.
    :param frame: the address of the trap frame.
    :param deferred: new values of registers that the kernel's return path does not restore.
    """

    layout: TrapFrame
    frame: int
    registers: FrameRegisters
    deferred: dict[str, int] = field(default_factory=dict)

    def get(self, register: str) -> int:
        if register in ("xzr", "zero"):
            return 0
        name = self.registers.field(register)
        if name in self.layout.fields and register not in self.registers.untold:
            return self.layout.read(self.machine, self.frame, name)
        return self.machine.read_register(register)

    def set(self, register: str, value: int) -> None:
        if register in self.registers.unrestored:
            self.deferred[register] = value & MASK
        elif register not in ("xzr", "zero"):
            self.layout.write(self.machine, self.frame, self.registers.field(register),
                              value & MASK)


@dataclass(frozen=True)
class KernelEffect:
    """Effect of an instruction that the kernel's own vectors emulate at the seam's request.

    :param answer: the result of the seam that requests the instruction.
    :param base: the register that, plus ``change``, becomes the stack pointer.
    :param returns: whether execution continues at the word on the stack, not after the instruction.
    :param stores: the register that is stored at the new stack pointer.
    :param loads: the register that is loaded from the address in ``base``.
    """

    answer: int
    base: str
    change: int
    returns: bool = False
    stores: str = ""
    loads: str = ""


@dataclass(frozen=True)
class Breakpoint:
    """Breakpoint instruction of an architecture.

    :param code: the bytes of the breakpoint; ``short`` replaces an instruction of two bytes.
    :param vector: Unicorn's number of the exception that the breakpoint causes.
    :param bias: bytes from the breakpoint to the program counter at the exception.
    """

    code: bytes
    vector: int
    bias: int = 0
    short: bytes = b""


@dataclass(frozen=True)
class StatusRegister:
    """Register that contains the flags and the interrupt mask.

    :param flag_bits: numbers of the flag bits that conditions test.
    :param frame_mask: interrupt mask bits in the trap frame; setting them (``mask_sets``) or
        clearing them masks interrupts.  0 if the exception itself masks interrupts.
    :param cpu_mask: the same bits in the CPU's register.
    """

    name: str
    flag_bits: tuple[int, ...] = ()
    frame_mask: int = 0
    mask_sets: bool = False
    cpu_mask: int = 0


class GuestTrap(ABC):
    """Breakpoints, trampolines and the seam of one architecture.

    :cvar instructions: the architecture's instructions, in particular their verdicts.
    :cvar numbers: register name -> Unicorn's number.
    :cvar more_registers: registers that verdicts use in addition to the general registers.
    :cvar direct_breakpoint: the breakpoint of the direct path, if it differs from the guest's.
    :cvar called: whether the kernel calls the seam instead of jumping to it.
    :cvar seam_code: the code at the seam, which returns to the kernel once the host has answered.
    :cvar kernel_effects: for kernels whose vectors emulate the displaced instruction: its bytes ->
        its effect.  Other instructions cannot be probed.
    :cvar saved: trap frame fields that the CPU saves, not the kernel's code -> their descriptions.
    :cvar return_register: the system register that holds an exception's return address; empty if
        the address is on the stack.
    :cvar segment: the register with the address of per-CPU data, for per-thread trampolines, which
        the flag ``interrupt_flag`` selects.
    :cvar jump: the jump at the end of a trampoline, to the address stored after it.
    :cvar second_breakpoint: whether trampolines end in a breakpoint instead of a jump;
        ``short_nop`` pads the code before it.
    :cvar frame_return: the instruction that returns through the trap frame.
    """

    instructions: Instructions
    numbers: ClassVar[Mapping[str, int]]
    more_registers: ClassVar[tuple[str, ...]] = ()
    frame: ClassVar[FrameRegisters]
    status: ClassVar[StatusRegister]
    guest_breakpoint: ClassVar[Breakpoint]
    direct_breakpoint: ClassVar[Breakpoint | None] = None
    called: ClassVar[bool]
    seam_code: ClassVar[bytes] = b""
    kernel_effects: ClassVar[Mapping[bytes, KernelEffect]] = {}
    saved: ClassVar[Mapping[str, str]] = {}
    return_register: ClassVar[str] = ""
    segment: ClassVar[str] = ""
    interrupt_flag: ClassVar[int] = 0
    short_nop: ClassVar[bytes] = b""
    jump: ClassVar[bytes] = b""
    frame_return: ClassVar[bytes] = b""
    second_breakpoint: ClassVar[bool]

    def breakpoint(self, length: int) -> bytes:
        """Return the breakpoint that replaces an instruction of ``length`` bytes."""
        b = self.guest_breakpoint
        return b.short if length < len(b.code) else b.code

    @abstractmethod
    def trampoline(
        self, at: int, code: bytes, verdict: Copy | Rewrite, after: int
    ) -> tuple[bytes, int]:
        """Return the code of a trampoline, and the offset of its second breakpoint or jump.

        :param at: the address of the trampoline.
        :param after: the address at which the guest continues.
        """

    @abstractmethod
    def at_seam(self, machine: Machine) -> int:
        """Return the address of the breakpoint that led to the seam."""

    @abstractmethod
    def enter(self, machine: Machine) -> CpuState:
        """Return the state of the interrupted code."""

    @abstractmethod
    def leave(self, machine: Machine, state: CpuState, pc: int) -> None:
        """Return from a handled breakpoint into the kernel, which continues at ``pc``."""

    def leave_by_frame(self, machine: Machine, frame: int, pc: int, at: int) -> None:
        """Return to ``pc`` by executing the guest's ``frame_return`` instruction at address ``at``.

        The registers already have their interrupted values.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement leave_by_frame()")

    @abstractmethod
    def decline(self, machine: Machine) -> None:
        """Let the kernel handle a breakpoint that does not belong to a probe."""

    def next_after(self, state: CpuState, address: int, code: bytes) -> int:
        """Return where execution continues after an instruction of ``kernel_effects``."""
        return (state.load(state.get(state.machine.arch.sp), 8) if self.kernel_effects[code].returns
                else address + len(code))

    def tell(self, machine: Machine, answer: int) -> None:
        """Return ``answer`` from the seam to a kernel that emulates displaced instructions."""
        raise NotImplementedError(f"{type(self).__name__}: tell() is not available, because the "
                                  "kernel does not emulate displaced instructions")

    def mask(self, state: CpuState) -> int:
        """Mask interrupts in the state that will be restored; return the bits for ``unmask``."""
        mask = self.status.frame_mask
        if not mask:
            return 0
        value = state.get(self.status.name)
        state.set(self.status.name, value | mask if self.status.mask_sets else value & ~mask)
        return value & mask

    def unmask(self, state: CpuState, saved: int) -> None:
        """Undo ``mask``, given the bits that ``mask`` returned."""
        name, mask = self.status.name, self.status.frame_mask
        state.set(name, state.get(name) & ~mask | saved)


class CalledSeam(GuestTrap):
    """Trap path of kernels that call the seam with the trap frame; result 0 means handled."""

    second_breakpoint: ClassVar[bool] = True
    called: ClassVar[bool] = True

    def at_seam(self, machine: Machine) -> int:
        return self.enter(machine).get("pc")

    def enter(self, machine: Machine) -> FrameState:
        arch = machine.arch
        frame = machine.read_register(arch.arguments[0])
        return FrameState(machine, 0, machine.guest.traps.trap_frame, frame, self.frame)

    def leave(self, machine: Machine, state: CpuState, pc: int) -> None:
        state.set("pc", pc)
        self._answer(machine, 0)

    def decline(self, machine: Machine) -> None:
        self._answer(machine, 1)

    def _answer(self, machine: Machine, value: int) -> None:
        arch = machine.arch
        assert arch.link is not None
        machine.write_register(arch.result, value)
        machine.pc = machine.read_register(arch.link)


def returns_to(machine: Machine, state: CpuState) -> tuple[int, int] | None:
    """Return the values of the stack pointer and pc after the current function returns.

    None if the return address cannot be read.
    """
    arch = machine.arch
    sp = state.get(arch.sp)
    if arch.link is not None:
        return sp, state.get(arch.link)
    try:
        return sp + 8, state.load(sp, 8)
    except MemoryAccessError:
        return None


TRAPS: Parts[GuestTrap] = Parts("kinst.{}.trap", "TRAP")


def trap_of(guest: Guest, arch: str) -> GuestTrap:
    """Return the host side of the trap path for a guest on an architecture."""
    return Parts[GuestTrap](f"kinst.{{}}.{guest.traps.trap}", "TRAP")[arch]
