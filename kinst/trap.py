"""The host's half of the guest trap path; one subclass in each architecture's folder.

The kernel's vectors have built a trap frame and called (or jumped to) the seam,
``dtrace_invop_jump_addr``.  What stands behind that pointer in a real system is a module; here it
is this.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from emu.arch import TrapFrame
from emu.machine import Machine
from kinst.verdict import Copy, Jump, Rewrite, State, Verdict

SEAM = "dtrace_invop_jump_addr"
MASK = (1 << 64) - 1


@dataclass
class FrameState(State):
    """The interrupted registers: those of the trap frame, the rest from the CPU.

    :param names: our register names -> fields of the frame, where they differ.
    """

    machine: Machine
    layout: TrapFrame
    frame: int
    names: dict[str, str]

    def get(self, register: str) -> int:
        if register in ("xzr", "zero"):
            return 0
        name = self.names.get(register, register)
        if name in self.layout.fields:
            return self.layout.read(self.machine, self.frame, name)
        return self.machine.read_register(register)

    def set(self, register: str, value: int) -> None:
        if register not in ("xzr", "zero"):
            name = self.names.get(register, register)
            self.layout.write(self.machine, self.frame, name, value & MASK)

    def load(self, address: int, size: int) -> int:
        return int.from_bytes(self.machine.read(address, size), "little")

    def store(self, address: int, size: int, value: int) -> None:
        self.machine.write(address, (value & (1 << 8 * size) - 1).to_bytes(size, "little"))


class GuestTrap(ABC):
    """Breakpoints, trampolines and the seam of one architecture."""

    excluded: ClassVar[frozenset[str]]  # functions the trap path itself runs through
    excluded_prefixes: ClassVar[tuple[str, ...]] = ()
    second_breakpoint: ClassVar[bool]  # trampolines end in a breakpoint, not in a jump

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

    def is_landing(self, code: bytes) -> bool:
        """One that only marks where a branch may land."""
        return False

    def starts_exclusive(self, code: bytes) -> bool:
        """Whether an instruction opens a sequence that no trap may interrupt."""
        return False

    def ends_exclusive(self, code: bytes) -> bool:
        return False

    @abstractmethod
    def breakpoint(self, length: int) -> bytes:
        """What is written over an instruction of that length."""

    @abstractmethod
    def trampoline(
        self, at: int, code: bytes, verdict: Copy | Rewrite, after: int
    ) -> tuple[bytes, int]:
        """The bytes of a trampoline at address ``at``, and the offset of its second breakpoint."""

    @abstractmethod
    def enter(self, machine: Machine) -> tuple[int, FrameState]:
        """At the seam: the address of the breakpoint, and the interrupted state."""

    @abstractmethod
    def leave(self, machine: Machine, state: FrameState, pc: int) -> None:
        """Handled: go back into the kernel, so that it goes on at ``pc``."""

    @abstractmethod
    def decline(self, machine: Machine, state: FrameState) -> None:
        """Not ours: let the kernel do what it does without us."""

    def mask(self, state: FrameState) -> int:
        """Mask interrupts in the state that will be restored; gives what to unmask by."""
        return 0

    def unmask(self, state: FrameState, saved: int) -> None:
        """Undo ``mask``."""
        return None


class CalledSeam(GuestTrap):
    """Where the kernel calls the seam as a function of the trap frame, and 0 means handled.

    :cvar names: our register names -> fields of the frame, where they differ.
    """

    names: ClassVar[dict[str, str]]
    second_breakpoint: ClassVar[bool] = True

    def enter(self, machine: Machine) -> tuple[int, FrameState]:
        arch = machine.arch
        frame = machine.read_register(arch.arguments[0])
        state = FrameState(machine, arch.trap_frame, frame, self.names)
        return state.get("pc"), state

    def leave(self, machine: Machine, state: FrameState, pc: int) -> None:
        state.set("pc", pc)
        self._answer(machine, 0)

    def decline(self, machine: Machine, state: FrameState) -> None:
        self._answer(machine, 1)

    def _answer(self, machine: Machine, value: int) -> None:
        arch = machine.arch
        assert arch.link is not None
        machine.write_register(arch.result, value)
        machine.pc = machine.read_register(arch.link)
