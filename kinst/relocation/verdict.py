"""What becomes of a displaced instruction: copied, rewritten, emulated, or refused.

An emulation is lowered to a few operations on the trap frame.  Registers go by the names of
``Arch.registers``; every value is computed when the probe fires, from the frame.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

Bits = Sequence[int]  # the bits of the flags register that conditions look at


class RegisterState(Protocol):
    """The interrupted CPU, as the trap frame shows it."""

    def get(self, register: str) -> int:
        """A general register at the breakpoint."""

    def set(self, register: str, value: int) -> None:
        """Change what the kernel's return path will restore."""

    def set_vector(self, number: int, value: int) -> None:
        """Change a vector register of 128 bits."""

    def load(self, address: int, size: int) -> int:
        """Guest memory, little-endian."""

    def store(self, address: int, size: int, value: int) -> None:
        """Guest memory, little-endian."""


class Op(enum.IntEnum):
    """Operations, of registers a, b, c and numbers n, extra: ``kinst/probes/_operations.pxi``."""

    REFUSE = 0
    COPY = 1
    REWRITE = 2
    JUMP = 3  # to target
    BRANCH_FLAGS = 4  # to target when truth has the bit of the flags' combination
    BRANCH_COMPARE = 5  # when a compares with b as RISC-V's funct3 n says, in extra bits
    BRANCH_BIT = 6  # when bit n of a is extra
    BRANCH_COUNT = 7  # a counts down (n) and is not zero, and the flags are in truth; or is zero
    SET = 8  # a = target
    NEXT = 9  # nothing
    LINK = 10  # to b + extra, even if n, or to target; a = the next address
    CALL = 11  # the next address is pushed; to target
    INDIRECT = 12  # to the word at a + b * n + c + target, or (extra) to a; pushes if truth
    RETURN = 13  # to the word popped, and extra bytes more are
    CHANGE_FLAGS = 14  # flags = (flags | target) & ~extra
    READ_FLAGS = 15  # a = flags & extra
    WRITE_FLAGS = 16  # the bits extra of the flags = a
    LOAD_VECTOR = 17  # a (or nothing) = n bytes at target, the rest of it zero


class Relative(enum.IntEnum):
    """How a target follows the address of the instruction."""

    ABSOLUTE = 0  # not at all
    RELATIVE = 1  # at a distance that the instruction has
    PAGE_RELATIVE = 2  # likewise, but from the begin of its page of 4 KiB
    DISPLACEMENT = 3  # not at all, but it has a displacement that differs from site to site


@dataclass(frozen=True)
class Lowered:
    """One operation.  Only ``target`` may depend on the address of the instruction; ``relative``
    says how."""

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
        """The same with another target; ``dataclasses.replace`` takes ten times as long."""
        return Lowered(self.op, self.a, self.b, self.c, self.n if n is None else n, self.truth,
                       target, self.extra,
                       self.ends_block if ends_block is None else ends_block,
                       self.relative if relative is None else relative)


@dataclass
class _Flags:
    """A state of which only the flags matter."""

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
    """A table of a condition on flags: bit i is its truth where flag j is bit j of i."""
    return sum(
        condition.holds(_Flags(sum((i >> j & 1) << bit for j, bit in enumerate(bits)))) << i
        for i in range(1 << len(bits))
    )


@dataclass(frozen=True)
class Copy:
    """Executed in a trampoline as it is."""


@dataclass(frozen=True)
class Rewrite:
    """Executed in a trampoline by other code of the same effect.

    :param code: instructions, in place of the displaced one.
    :param data: bytes behind the trampoline's end, at an offset ``code`` expects.
    :param displacement: (offset of a signed 32-bit field in ``code``, absolute target): the field
        is set to reach the target from the end of ``code``.
    :param relative: how the target, or what ``data`` has, follows the displaced instruction.
    """

    code: bytes
    data: bytes = b""
    displacement: tuple[int, int] | None = None
    relative: Relative = Relative.RELATIVE


class Emulate(Protocol):
    """Not executed: the trap frame is changed as the instruction would have.

    :cvar ends_block: whether the CPU begins a new block behind it (it jumps, or changes what
        interrupts are taken).
    """

    ends_block: ClassVar[bool]

    def next_pc(self, state: RegisterState) -> int:
        """Do it; gives where the guest goes on."""

    def lower(self, bits: Bits) -> Lowered:
        """The same for the native core."""


@dataclass(frozen=True)
class Refuse:
    """Not probed, and why."""

    reason: str


Verdict = Copy | Rewrite | Refuse | Emulate


def summary(verdict: Verdict) -> str:
    """One of the four words, and the reason of a refusal."""
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
    ends_block: ClassVar[bool] = True
    target: int

    def next_pc(self, state: RegisterState) -> int:
        return self.target

    def lower(self, bits: Bits) -> Lowered:
        return Lowered(Op.JUMP, target=self.target, ends_block=True,
                       relative=Relative.RELATIVE)


@dataclass(frozen=True)
class ConditionalJump:
    """:param condition: its ``holds(state)`` decides."""

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
    def holds(self, state: RegisterState) -> bool:
        """Whether the jump is taken."""

    def lower(self, bits: Bits) -> Lowered:
        """A branch of the native core, without its target."""


@dataclass(frozen=True)
class SetRegister:
    """``register = value``, which is relative to the instruction; then on to the next one."""

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
    """No effect but going on."""

    ends_block: ClassVar[bool] = False
    after: int

    def next_pc(self, state: RegisterState) -> int:
        return self.after

    def lower(self, bits: Bits) -> Lowered:
        return Lowered(Op.NEXT)


@dataclass(frozen=True)
class JumpAndLink:
    """To a register plus offset, or to a target relative to the instruction; ``link`` is given the
    return address."""

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
