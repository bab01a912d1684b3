"""What the bytes of an instruction tell of it; one subclass in each architecture's folder."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from kinst.relocation.verdict import Jump, JumpAndLink, SetRegister, Verdict


class Instructions(ABC):
    """The instructions of one architecture: verdicts, and what else is known of them.

    :cvar examples: of instructions, whatever their verdicts are: for readers.
    :cvar padding: instructions that compilers fill space with.
    :cvar repeat_counter: the register that an instruction which repeats itself counts down; empty:
        there is no such instruction.
    :cvar trap_returns: instructions that end an exception.
    """

    examples: ClassVar[tuple[bytes, ...]] = ()
    repeat_counter: ClassVar[str] = ""
    padding: ClassVar[re.Pattern[bytes]]
    trap_returns: ClassVar[frozenset[bytes]]

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

    @abstractmethod
    def split(self) -> object:
        """The native decoder (``split_fn`` of ``kinst/code/_reader.pxd``), as an address."""
