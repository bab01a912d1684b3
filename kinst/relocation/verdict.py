"""Verdict on a displaced instruction: copy, rewrite, emulate, or refuse.

An emulation is lowered to a few operations on the trap frame.  Registers are named as in
``Arch.registers``; all values are computed from the frame when the probe fires.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

Bits = Sequence[int]  # positions of the flag bits that conditions test


class RegisterState(Protocol):
    """State of the interrupted CPU, as the trap frame shows it."""

    def get(self, register: str) -> int:
        """Return the value of a general register at the breakpoint."""

    def set(self, register: str, value: int) -> None:
        """Set the value that the kernel's return path will load into a register."""

    def set_vector(self, number: int, value: int) -> None:
        """Set a 128-bit vector register."""

    def load(self, address: int, size: int) -> int:
        """Load a little-endian value from guest memory."""

    def store(self, address: int, size: int, value: int) -> None:
        """Store a little-endian value in guest memory."""


class Op(enum.IntEnum):
    """Operation of the native core on registers a, b and c and the numbers n and extra.

    ``kinst/probes/_operations.pxi`` implements the operations.
    """

    REFUSE = 0
    COPY = 1
    REWRITE = 2
    JUMP = 3  # jump to target
    BRANCH_FLAGS = 4  # jump to target if the bit of ``truth`` that the flags select is set
    # Jump to target if a and b, both ``extra`` bits wide, satisfy comparison n (RISC-V funct3).
    BRANCH_COMPARE = 5
    BRANCH_BIT = 6  # jump to target if bit n of a equals ``extra``
    # If n is 0, jump to target if a is zero.  Otherwise, decrement a, and jump to target if a is
    # not zero and the bit of ``truth`` that the flags select is set.
    BRANCH_COUNT = 7
    SET = 8  # a = target
    NEXT = 9  # no effect
    # Jump to b + extra, or to target if there is no b, and set a to the next address.  If n is not
    # 0, clear bit 0 of the destination.
    LINK = 10
    CALL = 11  # push the next address and jump to target
    INDIRECT = 12  # jump to a if extra, else to *(a + b * n + c + target); push if truth
    RETURN = 13  # pop the next address, then ``extra`` more bytes
    CHANGE_FLAGS = 14  # flags = (flags | target) & ~extra
    READ_FLAGS = 15  # a = flags & extra
    WRITE_FLAGS = 16  # flags = flags & ~extra | a & extra
    # load n bytes at target into a, zero-extended; without a, load and discard them
    LOAD_VECTOR = 17


class Relative(enum.IntEnum):
    """Dependence of an operation's target on the address of the instruction."""

    ABSOLUTE = 0  # the target is independent of the address
    RELATIVE = 1  # the instruction contains the distance to the target
    # the instruction contains the distance from the start of its 4 KiB page to the target
    PAGE_RELATIVE = 2
    # the target is independent of the address, but a displacement differs between sites
    DISPLACEMENT = 3


@dataclass(frozen=True)
class Lowered:
    """Operation of the native core and its operands.

    Only ``target`` may depend on the address of the instruction, as ``relative`` specifies.
    """

    op: Op
    a: str | None = None
    b: str | None = None
    c: str | None = None
    n: int = 0
    truth: int = 0
    target: int = 0
    extra: int = 0
    ends_block: bool = False
    relative: Relative = Relative.ABSOLUTE

    def to(self, target: int, ends_block: bool | None = None, n: int | None = None,
           relative: Relative | None = None) -> "Lowered":
        """Return a copy with another target; ten times faster than ``dataclasses.replace``."""
        return Lowered(self.op, self.a, self.b, self.c, self.n if n is None else n, self.truth,
                       target, self.extra,
                       self.ends_block if ends_block is None else ends_block,
                       self.relative if relative is None else relative)


@dataclass
class _Flags:
    """Register state that consists of the flags alone."""

    value: int

    def get(self, register: str) -> int:
        return self.value

    def set(self, register: str, value: int) -> None:
        return None

    def set_vector(self, number: int, value: int) -> None:
        return None

    def load(self, address: int, size: int) -> int:
        return 0

    def store(self, address: int, size: int, value: int) -> None:
        return None


def truth(condition: "Condition", bits: Bits) -> int:
    """Return a condition's truth table: bit i is the result if each flag j equals bit j of i."""
    return sum(
        condition.holds(_Flags(sum((i >> j & 1) << bit for j, bit in enumerate(bits)))) << i
        for i in range(1 << len(bits))
    )


@dataclass(frozen=True)
class Copy:
    """Verdict: execute the instruction unchanged in a trampoline."""


@dataclass(frozen=True)
class Rewrite:
    """Verdict: execute equivalent code in a trampoline.

    :param code: the instructions that replace the displaced one.
    :param data: bytes after the end of the trampoline, at the offset that ``code`` expects.
    :param displacement: (offset of a signed 32-bit field in ``code``, absolute target): the field
        is set to the distance from the end of ``code`` to the target.
    :param relative: how the target, or the address in ``data``, depends on the displaced
        instruction's address.
    """

    code: bytes
    data: bytes = b""
    displacement: tuple[int, int] | None = None
    relative: Relative = Relative.RELATIVE


class Emulate(Protocol):
    """Verdict: apply the effect of the instruction to the trap frame instead of executing it.

    :cvar ends_block: whether the CPU begins a new block after the instruction, because it jumps or
        changes which interrupts are taken.
    """

    ends_block: ClassVar[bool]

    def next_pc(self, state: RegisterState) -> int:
        """Emulate the instruction and return the address at which the guest continues."""

    def lower(self, bits: Bits) -> Lowered:
        """Return the equivalent operation of the native core."""


@dataclass(frozen=True)
class Refuse:
    """Verdict: do not probe the instruction, because of ``reason``."""

    reason: str


Verdict = Copy | Rewrite | Refuse | Emulate


def summary(verdict: Verdict) -> str:
    """Return the verdict as a word (copy, rewrite, emulate, refuse), with a refusal's reason."""
    match verdict:
        case Copy():
            return "copy"
        case Rewrite():
            return "rewrite"
        case Refuse(reason):
            return f"refuse: {reason}"
        case _:
            return "emulate"


@dataclass(frozen=True)
class Jump:
    """Emulation of a direct jump."""
    ends_block: ClassVar[bool] = True
    target: int

    def next_pc(self, state: RegisterState) -> int:
        return self.target

    def lower(self, bits: Bits) -> Lowered:
        return Lowered(Op.JUMP, target=self.target, ends_block=True,
                       relative=Relative.RELATIVE)


@dataclass(frozen=True)
class ConditionalJump:
    """Emulation of a conditional jump.

    :param condition: determines, by ``holds(state)``, whether the jump is taken.
    """

    ends_block: ClassVar[bool] = True
    condition: "Condition"
    target: int
    otherwise: int

    def next_pc(self, state: RegisterState) -> int:
        return self.target if self.condition.holds(state) else self.otherwise

    def lower(self, bits: Bits) -> Lowered:
        return self.condition.lower(bits).to(self.target, ends_block=True,
                                             relative=Relative.RELATIVE)


class Condition(Protocol):
    """Condition of a conditional jump."""
    def holds(self, state: RegisterState) -> bool:
        """Return whether the jump is taken."""

    def lower(self, bits: Bits) -> Lowered:
        """Return the equivalent branch of the native core, without its target."""


@dataclass(frozen=True)
class SetRegister:
    """Emulation of an instruction that sets a register relative to the instruction's address."""

    ends_block: ClassVar[bool] = False
    register: str
    value: int
    after: int

    def next_pc(self, state: RegisterState) -> int:
        state.set(self.register, self.value)
        return self.after

    def lower(self, bits: Bits) -> Lowered:
        return Lowered(Op.SET, self.register, target=self.value, relative=Relative.RELATIVE)


@dataclass(frozen=True)
class Nothing:
    """Emulation of an instruction without effect."""

    ends_block: ClassVar[bool] = False
    after: int

    def next_pc(self, state: RegisterState) -> int:
        return self.after

    def lower(self, bits: Bits) -> Lowered:
        return Lowered(Op.NEXT)


@dataclass(frozen=True)
class JumpAndLink:
    """Emulation of a jump to a register plus an offset, or to a target relative to the instruction.

    The register ``link``, if any, receives the return address.
    """

    ends_block: ClassVar[bool] = True
    link: str | None
    after: int
    register: str | None = None
    offset: int = 0

    def next_pc(self, state: RegisterState) -> int:
        target = self.offset
        if self.register is not None:
            target = state.get(self.register) + self.offset & (1 << 64) - 1
        if self.link is not None:
            state.set(self.link, self.after)
        return target

    def lower(self, bits: Bits) -> Lowered:
        if self.register is None:
            return Lowered(Op.LINK, self.link, target=self.offset, ends_block=True,
                           relative=Relative.RELATIVE)
        return Lowered(Op.LINK, self.link, self.register, extra=self.offset, ends_block=True)
