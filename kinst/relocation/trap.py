"""The host's half of the guest trap path; one subclass in each architecture's folder.

The kernel's vectors have built a trap frame and called (or jumped to) the seam,
``dtrace_invop_jump_addr``.  What stands behind that pointer in a real system is a module; here it
is this.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from emu.arch.parts import Parts
from emu.guest.guest import Guest, TrapFrame
from emu.host.errors import MemoryAccessError
from emu.machine.machine import Machine
from kinst.relocation.verdict import (
    Copy,
    Jump,
    JumpAndLink,
    RegisterState,
    Rewrite,
    SetRegister,
    Verdict,
)

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


@dataclass
class FrameState(CpuState):
    """The interrupted registers: those of the trap frame, the rest from the CPU.

    :param names: our register names -> fields of the frame, where they differ.
    :param unrestored: registers that the kernel's return path does not restore.
    :param untold: those that the frame does not have as they were.
    """

    layout: TrapFrame
    frame: int
    names: dict[str, str]
    unrestored: frozenset[str] = frozenset()
    untold: frozenset[str] = frozenset()
    deferred: dict[str, int] = field(default_factory=dict)

    def get(self, register: str) -> int:
        if register in ("xzr", "zero"):
            return 0
        name = self.names.get(register, register)
        if name in self.layout.fields and register not in self.untold:
            return self.layout.read(self.machine, self.frame, name)
        return self.machine.read_register(register)

    def set(self, register: str, value: int) -> None:
        if register in self.unrestored:
            self.deferred[register] = value & MASK
        elif register not in ("xzr", "zero"):
            name = self.names.get(register, register)
            self.layout.write(self.machine, self.frame, name, value & MASK)


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


class GuestTrap(ABC):
    """Breakpoints, trampolines and the seam of one architecture.

    :cvar numbers: Unicorn's numbers of the registers.
    :cvar names: our register names -> fields of the trap frame, where they differ.
    :cvar more_registers: that verdicts use, beside the general ones.
    :cvar unrestored: what the kernel's return path leaves as it is.
    :cvar untold: what the trap frame does not have as it was; compiled code never changes it.
    :cvar status: the register that masks interrupts; ``frame_mask`` of it in the trap frame, set or
        cleared (``mask_sets``), is ``cpu_mask`` of it in the CPU.
    :cvar flag_bits: those of ``status`` that conditions look at.
    :cvar direct_breakpoint: of the direct path, where that is another.
    :cvar called: whether the kernel calls the seam, or jumps to it.
    :cvar seam_code: the function that is called at the seam: it returns, when it was answered.
    :cvar told: where the kernel's vectors do what the displaced instruction would: by its bytes
        what they are told; nothing else is probed.
    :cvar frame_register: holds the trap frame's address there, less ``frame_bias``.
    :cvar return_register: the system register that an exception's return goes to; empty: there is
        none, it is on the stack.
    :cvar saved: the fields of the trap frame that the CPU saves, not the kernel's code, with what
        each is.
    :cvar examples: of instructions, whatever becomes of them: for whoever is told of the verdicts.
    :cvar repeat_counter: what an instruction that repeats itself counts down.
    :cvar segment: where per-CPU data is, for trampolines of threads, and the flag they go by.
    """

    numbers: ClassVar[Mapping[str, int]]
    names: ClassVar[dict[str, str]] = {}
    more_registers: ClassVar[tuple[str, ...]] = ()
    unrestored: ClassVar[frozenset[str]] = frozenset()
    untold: ClassVar[frozenset[str]] = frozenset()
    status: ClassVar[str]
    flag_bits: ClassVar[tuple[int, ...]] = ()
    frame_mask: ClassVar[int] = 0
    mask_sets: ClassVar[bool] = False
    cpu_mask: ClassVar[int] = 0
    guest_breakpoint: ClassVar[Breakpoint]
    direct_breakpoint: ClassVar[Breakpoint | None] = None
    called: ClassVar[bool]
    seam_code: ClassVar[bytes] = b""
    told: ClassVar[Mapping[bytes, KernelEffect]] = {}
    frame_register: ClassVar[str]
    frame_bias: ClassVar[int] = 0
    saved: ClassVar[Mapping[str, str]] = {}
    return_register: ClassVar[str] = ""
    examples: ClassVar[tuple[bytes, ...]] = ()
    segment: ClassVar[str] = ""
    repeat_counter: ClassVar[str] = ""
    interrupt_flag: ClassVar[int] = 0
    short_nop: ClassVar[bytes] = b""
    padding: ClassVar[re.Pattern[bytes]]  # instructions that compilers fill space with
    jump: ClassVar[bytes] = b""  # ends a trampoline: to the address that stands behind it

    trap_returns: ClassVar[frozenset[bytes]]  # instructions that end an exception
    frame_return: ClassVar[bytes] = b""  # that of them which goes back by the trap frame

    second_breakpoint: ClassVar[bool]  # trampolines end in a breakpoint, not in a jump

    def is_padding(self, code: bytes) -> bool:
        """Whether an instruction only fills space between others."""
        return self.padding.fullmatch(code) is not None

    @abstractmethod
    def classify(self, code: bytes, address: int) -> tuple[int, Verdict]:
        """The first instruction's length (0: there is none) and its verdict."""

    @abstractmethod
    def is_prologue(self, code: bytes) -> bool:
        """The instruction where upstream's FBT puts its entry probe."""

    @abstractmethod
    def is_return(self, code: bytes) -> bool:
        """An instruction that returns to the caller."""

    def jump_target(self, before: Verdict | None, verdict: Verdict) -> int | None:
        """Where an instruction always jumps without linking, as far as its bytes tell.

        :param before: the verdict of the instruction before it.
        """
        return verdict.target if isinstance(verdict, Jump) else None

    def call_target(self, before: Verdict | None, verdict: Verdict) -> int | None:
        """The function that an instruction calls, as far as its bytes tell.

        :param before: as of ``jump_target``.
        """
        if isinstance(verdict, JumpAndLink):
            return verdict.offset if verdict.link is not None and verdict.register is None else None
        return None

    def links(self, verdict: Verdict) -> bool | None:
        """Of a jump to a register's or memory's word, or a call: whether it is a call; None: it is
        neither."""
        return verdict.link is not None if isinstance(verdict, JumpAndLink) else None

    @abstractmethod
    def second_argument(self, code: bytes) -> int | None:
        """What an instruction adds to a register to make a function's second argument."""

    def makes(self, code: bytes, verdict: Verdict) -> tuple[str, int] | None:
        """A register, and the address that an instruction leaves there."""
        return (verdict.register, verdict.value) if isinstance(verdict, SetRegister) else None

    def read_by(self, code: bytes, address: int, known: Mapping[str, int]
                ) -> tuple[str, int, int] | None:
        """What an instruction reads at an address that is known: (register, address, bytes).

        :param known: registers with addresses.
        """
        return None

    def is_landing(self, code: bytes) -> bool:
        """One that only marks where a branch may land."""
        return False

    def repeats(self, code: bytes) -> bool:
        """One that the CPU model counts as often as it repeats itself."""
        return False

    def starts_exclusive(self, code: bytes) -> bool:
        """Whether an instruction opens a sequence that no trap may interrupt."""
        return False

    def ends_exclusive(self, code: bytes) -> bool:
        return False

    def literal(self, code: bytes, address: int) -> tuple[int, int] | None:
        """What the instruction ``code`` begins with reads at an address relative to itself:
        (address, bytes).  Where only the address is taken, what is there cannot be known."""
        return None

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
    def split(self) -> object:
        """The native decoder (``split_fn`` of ``kinst/code/_reader.pxd``), as an address."""

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

    def told_next(self, state: CpuState, address: int, code: bytes) -> int:
        """Where there is ``told``: where the run goes on."""
        return (state.load(state.get(state.machine.arch.sp), 8) if self.told[code].returns
                else address + len(code))

    def tell(self, machine: Machine, answer: int) -> None:
        """Where there is ``told``: what the function at the seam gives back."""
        raise NotImplementedError(f"{type(self).__name__} does what is displaced itself")

    def mask(self, state: CpuState) -> int:
        """Mask interrupts in the state that will be restored; gives what to unmask by."""
        if not self.frame_mask:
            return 0
        value = state.get(self.status)
        masked = value | self.frame_mask if self.mask_sets else value & ~self.frame_mask
        state.set(self.status, masked)
        return value & self.frame_mask

    def unmask(self, state: CpuState, saved: int) -> None:
        """Undo ``mask``."""
        state.set(self.status, state.get(self.status) & ~self.frame_mask | saved)


class CalledSeam(GuestTrap):
    """Where the kernel calls the seam as a function of the trap frame, and 0 means handled."""

    second_breakpoint: ClassVar[bool] = True
    called: ClassVar[bool] = True

    def at_seam(self, machine: Machine) -> int:
        return self.enter(machine).get("pc")

    def enter(self, machine: Machine) -> FrameState:
        arch = machine.arch
        frame = machine.read_register(arch.arguments[0])
        return FrameState(machine, 0, machine.guest.traps.trap_frame, frame, self.names,
                          self.unrestored, self.untold)

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
