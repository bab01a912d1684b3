"""The instructions of a function with their verdicts, and which functions are left alone."""

from collections.abc import Iterator
from dataclasses import dataclass

from emu.elf import Image, Symbol
from kinst.trap import GuestTrap
from kinst.verdict import Refuse, Verdict

# Functions DTrace itself runs through, in every kernel.
EXCLUDED = frozenset(
    {"cpu_switch", "trap_check", "owner_mtx", "owner_rm", "owner_rw", "owner_sx"}
)
EXCLUDED_PREFIXES = ("dtrace_", "db_", "kdb_", "__msan", "kmsan_")
ALLOWED_PREFIX = "dtrace_safe_"
# Code that the kernel only reads.
COPIED = frozenset({"sigcode", "freebsd32_sigcode", "ia32_sigcode", "elf32_sigcode"})
EXCLUSIVE = "lies in an exclusive access"


@dataclass(frozen=True)
class Instruction:
    """One instruction of a function, and what a probe on it would do."""

    offset: int
    address: int
    code: bytes
    verdict: Verdict


def image_code(image: Image, function: Symbol) -> bytes:
    """A function's bytes as the image has them; a kernel may change its code when it boots."""
    return image.virtual_to_file(function.address, function.size)


def instructions(trap: GuestTrap, code: bytes, function: Symbol) -> Iterator[Instruction]:
    """Every instruction of a function with its verdict.

    :param code: the function's bytes.
    """
    at, exclusive = 0, False
    while at < len(code):
        piece = code[at : at + 16]
        length, verdict = trap.classify(piece, function.address + at)
        if not length or at + length > len(code):
            # What comes behind it cannot be known.
            yield Instruction(at, function.address + at, piece[: len(code) - at],
                              Refuse("is not an instruction"))
            return
        exclusive = exclusive or trap.starts_exclusive(piece)
        if exclusive:
            verdict = Refuse(EXCLUSIVE)
        if trap.ends_exclusive(piece):
            exclusive = False
        yield Instruction(at, function.address + at, code[at : at + length], verdict)
        at += length


def exclusion(trap: GuestTrap, name: str) -> str:
    """Why a function is not probed unless one insists; empty when it is."""
    if name in COPIED:
        return "is copied to user programs, breakpoints and all"
    if name in EXCLUDED or name in trap.excluded or (
        trap.excluded_prefixes and name.startswith(trap.excluded_prefixes)
    ) or (name.startswith(EXCLUDED_PREFIXES) and not name.startswith(ALLOWED_PREFIX)):
        return "is excluded: DTrace itself may run through it"
    return ""


def excluded(trap: GuestTrap, name: str) -> bool:
    return bool(exclusion(trap, name))
