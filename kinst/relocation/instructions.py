"""Properties derived from an instruction's bytes; each architecture subclasses ``Instructions``."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from kinst.relocation.verdict import Jump, JumpAndLink, SetRegister, Verdict


class Instructions(ABC):
    """Instructions of one architecture: their verdicts and other properties.

    :cvar examples: instructions of all verdicts, shown to readers as examples.
    :cvar padding: pattern of the instructions with which compilers fill space.
    :cvar repeat_counter: the register that self-repeating instructions count down; empty if the
        architecture has no such instructions.
    :cvar trap_returns: instructions that return from an exception.
    """

    examples: ClassVar[tuple[bytes, ...]] = ()
    repeat_counter: ClassVar[str] = ""
    padding: ClassVar[re.Pattern[bytes]]
    trap_returns: ClassVar[frozenset[bytes]]

    def is_padding(self, code: bytes) -> bool:
        """Return whether an instruction only fills space between others."""
        return self.padding.fullmatch(code) is not None

    @abstractmethod
    def classify(self, code: bytes, address: int) -> tuple[int, Verdict]:
        """Return the length (0 if invalid) and the verdict of the first instruction."""

    @abstractmethod
    def is_prologue(self, code: bytes) -> bool:
        """Return whether FreeBSD's FBT would place an entry probe at an instruction."""

    @abstractmethod
    def is_return(self, code: bytes) -> bool:
        """Return whether an instruction returns to the caller."""

    def jump_target(self, before: Verdict | None, verdict: Verdict) -> int | None:
        """Return the target of an unconditional jump without link, or None if unknown.

        :param before: the verdict of the preceding instruction, which may contain a part of it.
        """
        return verdict.target if isinstance(verdict, Jump) else None

    def call_target(self, before: Verdict | None, verdict: Verdict) -> int | None:
        """Return the address of the function that an instruction calls, or None if unknown.

        :param before: the verdict of the preceding instruction, which may contain a part of it.
        """
        if isinstance(verdict, JumpAndLink):
            return verdict.offset if verdict.link is not None and verdict.register is None else None
        return None

    def links(self, verdict: Verdict) -> bool | None:
        """Return True for a call, False for an indirect jump, and None for other instructions."""
        return verdict.link is not None if isinstance(verdict, JumpAndLink) else None

    @abstractmethod
    def second_argument(self, code: bytes) -> int | None:
        """Return n if an instruction sets the second argument to a register plus n, else None."""

    def makes(self, code: bytes, verdict: Verdict) -> tuple[str, int] | None:
        """Return (register, address) if an instruction sets a register to an address, else None."""
        return (verdict.register, verdict.value) if isinstance(verdict, SetRegister) else None

    def read_by(self, code: bytes, address: int, known: Mapping[str, int]
                ) -> tuple[str, int, int] | None:
        """Return (register, address, size) if an instruction reads a known address, else None.

        :param known: registers whose contents are known addresses.
        """
        return None

    def is_landing(self, code: bytes) -> bool:
        """Return whether an instruction only marks a valid branch target."""
        return False

    def repeats(self, code: bytes) -> bool:
        """Return whether the CPU model counts each repetition of an instruction separately."""
        return False

    def starts_exclusive(self, code: bytes) -> bool:
        """Return whether an instruction begins an exclusive access, which no trap may interrupt."""
        return False

    def ends_exclusive(self, code: bytes) -> bool:
        """Return whether an instruction ends an exclusive access."""
        return False

    def literal(self, code: bytes, address: int) -> tuple[int, int] | None:
        """Return (address, size) of the PC-relative data that an instruction reads, or None.

        An instruction that only computes the address of the data yields None.

        :param code: bytes that begin with the instruction.
        """
        return None

    @abstractmethod
    def split(self) -> object:
        """Return the native decoder (``split_fn`` of ``kinst/code/_reader.pxd``) as a capsule."""
