"""The host's half of the guest trap path; one subclass in each architecture's folder.

The kernel's vectors have built a trap frame and called (or jumped to) the seam,
``dtrace_invop_jump_addr``.  What stands behind that pointer in a real system is a module; here it
is this.
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
NO_TRAMPOLINES = "this kernel's vectors do themselves what a breakpoint has displaced"


@dataclass
class CpuState(RegisterState):
    """The interrupted registers where they are the CPU's own."""

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
    """Where the interrupted registers are at the seam.

    :param register: holds the trap frame's address there, less ``bias`` bytes.
    :param names: our register names -> fields of the trap frame, where they differ.
    :param unrestored: what the kernel's return path leaves as it is.
    :param untold: what the trap frame does not have as it was; compiled code never changes it.
    """

    register: str
    bias: int = 0
    names: Mapping[str, str] = field(default_factory=dict)
    unrestored: frozenset[str] = frozenset()
    untold: frozenset[str] = frozenset()

    def field(self, register: str) -> str:
        """The field of the trap frame that has a register."""
        return self.names.get(register, register)


@dataclass
class FrameState(CpuState):
    """The interrupted registers: those of the trap frame, the rest from the CPU.

    :param layout: of the trap frame at the address ``frame``.
    :param deferred: what was set of registers that the kernel's return path does not restore.
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
    """An instruction that a kernel's own vectors do when they are told that it was there.

    :param answer: what the kernel is told.
    :param base: the stack pointer is this register and ``change`` afterwards.
    :param returns: the run goes on at the word that was at the stack pointer, not behind it.
    :param stores: a register that is stored at the stack pointer then; ``loads``: one that is
        loaded from where ``base`` leads to.
    """

    answer: int
    base: str
    change: int
    returns: bool = False
    stores: str = ""
    loads: str = ""


@dataclass(frozen=True)
class Breakpoint:
    """:param code: written over an instruction, ``short`` over one of two bytes.
    :param vector: Unicorn's number of its exception.
    :param bias: how far the program counter is behind it then.
    """

    code: bytes
    vector: int
    bias: int = 0
    short: bytes = b""


@dataclass(frozen=True)
class StatusRegister:
    """The register with the flags, which also masks interrupts.

    :param flag_bits: those that conditions look at.
    :param frame_mask: bits of it in the trap frame; interrupts are masked when they are set
        (``mask_sets``) or cleared; 0: the exception itself has masked them.
    :param cpu_mask: the same bits in the CPU.
    """

    name: str
    flag_bits: tuple[int, ...] = ()
    frame_mask: int = 0
    mask_sets: bool = False
    cpu_mask: int = 0


class GuestTrap(ABC):
    """Breakpoints, trampolines and the seam of one architecture.

    :cvar instructions: what is known of its instructions, verdicts above all.
    :cvar numbers: Unicorn's numbers of the registers.
    :cvar more_registers: that verdicts use, beside the general ones.
    :cvar direct_breakpoint: of the direct path, where that is another.
    :cvar called: whether the kernel calls the seam, or jumps to it.
    :cvar seam_code: the function that is called at the seam: it returns, when it was answered.
    :cvar kernel_effects: where the kernel's vectors do what the displaced instruction would: by its
        bytes, how; nothing else is probed.
    :cvar saved: the fields of the trap frame that the CPU saves, not the kernel's code, with what
        each is.
    :cvar return_register: the system register that an exception's return goes to; empty: there is
        none, it is on the stack.
    :cvar segment: where per-CPU data is, for trampolines of threads, and ``interrupt_flag`` the
        flag they go by.
    :cvar jump: ends a trampoline: to the address that stands behind it.
    :cvar second_breakpoint: trampolines end in a breakpoint, not in a jump; ``short_nop`` fills up
        before it.
    :cvar frame_return: the instruction that goes back by the trap frame.
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
        """What is written over an instruction of that length."""
        b = self.guest_breakpoint
        return b.short if length < len(b.code) else b.code

    @abstractmethod
    def trampoline(
        self, at: int, code: bytes, verdict: Copy | Rewrite, after: int
    ) -> tuple[bytes, int]:
        """The bytes of a trampoline at address ``at``, and the offset of its second breakpoint."""

    @abstractmethod
    def at_seam(self, machine: Machine) -> int:
        """At the seam: the address of the breakpoint."""

    @abstractmethod
    def enter(self, machine: Machine) -> CpuState:
        """The interrupted state."""

    @abstractmethod
    def leave(self, machine: Machine, state: CpuState, pc: int) -> None:
        """Handled: go back into the kernel, so that it goes on at ``pc``."""

    def leave_by_frame(self, machine: Machine, frame: int, pc: int, at: int) -> None:
        """Go on at ``pc`` by the trap frame and ``frame_return``, which is at ``at``; the registers
        are the interrupted ones already."""
        raise NotImplementedError(f"{type(self).__name__} has no frame_return")

    @abstractmethod
    def decline(self, machine: Machine) -> None:
        """Not ours: let the kernel do what it does without us."""

    def next_after(self, state: CpuState, address: int, code: bytes) -> int:
        """Where there are ``kernel_effects``: where the run goes on after one."""
        return (state.load(state.get(state.machine.arch.sp), 8) if self.kernel_effects[code].returns
                else address + len(code))

    def tell(self, machine: Machine, answer: int) -> None:
        """Where there are ``kernel_effects``: what the function at the seam gives back."""
        raise NotImplementedError(f"{type(self).__name__} does what is displaced itself")

    def mask(self, state: CpuState) -> int:
        """Mask interrupts in the state that will be restored; gives what to unmask by."""
        mask = self.status.frame_mask
        if not mask:
            return 0
        value = state.get(self.status.name)
        state.set(self.status.name, value | mask if self.status.mask_sets else value & ~mask)
        return value & mask

    def unmask(self, state: CpuState, saved: int) -> None:
        """Undo ``mask``."""
        name, mask = self.status.name, self.status.frame_mask
        state.set(name, state.get(name) & ~mask | saved)


class CalledSeam(GuestTrap):
    """Where the kernel calls the seam as a function of the trap frame, and 0 means handled."""

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
    """The stack pointer and the address when the function that is about to be left has returned;
    None when its return address cannot be read."""
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
    """The host's half for a guest, on an architecture."""
    return Parts[GuestTrap](f"kinst.{{}}.{guest.traps.trap}", "TRAP")[arch]
