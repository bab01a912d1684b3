"""What becomes of a displaced instruction: copied, rewritten, emulated, or refused.

An emulation is lowered to a few operations on the trap frame.  Registers go by the names of
``Arch.registers``; every value is computed when the probe fires, from the frame.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol


class State(Protocol):
    """The interrupted CPU, as the trap frame shows it."""

    def get(self, register: str) -> int:
        """A general register at the breakpoint."""

    def set(self, register: str, value: int) -> None:
        """Change what the kernel's return path will restore."""

    def load(self, address: int, size: int) -> int:
        """Guest memory, little-endian."""

    def store(self, address: int, size: int, value: int) -> None:
        """Guest memory, little-endian."""


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
    """

    code: bytes
    data: bytes = b""
    displacement: tuple[int, int] | None = None


class Emulate(Protocol):
    """Not executed: the trap frame is changed as the instruction would have.

    :cvar ends_block: whether the CPU begins a new block behind it (it jumps, or changes what
        interrupts are taken).
    """

    ends_block: ClassVar[bool]

    def next_pc(self, state: State) -> int:
        """Do it; gives where the guest goes on."""


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

    def next_pc(self, state: State) -> int:
        return self.target


@dataclass(frozen=True)
class ConditionalJump:
    """:param condition: its ``holds(state)`` decides."""

    ends_block: ClassVar[bool] = True
    condition: "Condition"
    target: int
    otherwise: int

    def next_pc(self, state: State) -> int:
        return self.target if self.condition.holds(state) else self.otherwise


class Condition(Protocol):
    def holds(self, state: State) -> bool:
        """Whether the jump is taken."""


@dataclass(frozen=True)
class SetRegister:
    """``register = value``, then on to the next instruction."""

    ends_block: ClassVar[bool] = False
    register: str
    value: int
    after: int

    def next_pc(self, state: State) -> int:
        state.set(self.register, self.value)
        return self.after


@dataclass(frozen=True)
class Nothing:
    """No effect but going on."""

    ends_block: ClassVar[bool] = False
    after: int

    def next_pc(self, state: State) -> int:
        return self.after


@dataclass(frozen=True)
class JumpAndLink:
    """To a register plus offset, or to a fixed target; ``link`` is given the return address."""

    ends_block: ClassVar[bool] = True
    link: str | None
    after: int
    register: str | None = None
    offset: int = 0

    def next_pc(self, state: State) -> int:
        target = self.offset
        if self.register is not None:
            target = state.get(self.register) + self.offset & (1 << 64) - 1
        if self.link is not None:
            state.set(self.link, self.after)
        return target
