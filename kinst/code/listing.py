"""Instructions of a function and their verdicts."""

from collections.abc import Iterator
from dataclasses import dataclass

from emu.elf.image import Image
from emu.elf.symbols import Symbol
from emu.host.errors import KinstError
from kinst.relocation.template import MAX_ROUNDS
from kinst.relocation.trap import GuestTrap
from kinst.relocation.verdict import Refuse, Verdict

# Maximum size of a function in bytes; the largest function of GENERIC is far smaller
MAX_FUNCTION = 1 << 20
DATA = "is data that the function reads"
EXCLUSIVE = "belongs to an exclusive access"
NO_INSTRUCTION = "is not an instruction"


@dataclass(frozen=True)
class ProbedInstruction:
    """Instruction of a function, with the verdict on its relocation."""

    offset: int
    address: int
    code: bytes
    verdict: Verdict


def image_code(image: Image, function: Symbol) -> bytes:
    """Return the bytes of a function as stored in the image; a kernel may patch its code at boot.

    :raises KinstError: when the function, perhaps because its symbol is damaged, is larger than
        ``MAX_FUNCTION``.
    """
    check_size(function)
    return image.virtual_to_file(function.address, function.size)


def check_size(function: Symbol) -> None:
    """Check that a function is not too large to be decoded.

    :raises KinstError: when it has more than ``MAX_FUNCTION`` bytes.
    """
    if function.size > MAX_FUNCTION:
        raise KinstError(f"the function '{function.name}' has {function.size} bytes, but at most "
                         f"{MAX_FUNCTION} can be decoded; its symbol may be damaged")


class _Decoded:
    """Code of a function, decoded on demand and at most once per offset."""

    def __init__(self, trap: GuestTrap, code: bytes, address: int) -> None:
        self.trap, self.code, self.address = trap, code, address
        self._verdicts: dict[int, tuple[int, Verdict]] = {}
        self._literals: dict[int, tuple[int, int] | None] = {}

    def at(self, offset: int) -> tuple[int, Verdict]:
        """Return the length and the verdict of the instruction at an offset."""
        found = self._verdicts.get(offset)
        if found is None:
            found = self._verdicts[offset] = self.trap.instructions.classify(
                self.code[offset : offset + 16], self.address + offset)
        return found

    def literal(self, offset: int) -> tuple[int, int] | None:
        """Return (address, size) of the PC-relative data that an instruction reads, or None."""
        if offset not in self._literals:
            self._literals[offset] = self.trap.instructions.literal(
                self.code[offset : offset + 16], self.address + offset)
        return self._literals[offset]


def literals(trap: GuestTrap, code: bytes, address: int) -> list[tuple[int, int]]:
    """Return the sorted [begin, end) offsets of the data that a function's instructions read."""
    return _literals(_Decoded(trap, code, address))


def _literals(decoded: _Decoded) -> list[tuple[int, int]]:
    """Return the data ranges of a function.

    Data may have been decoded as instructions at first, so the search is repeated until its
    result no longer changes.
    """
    code, address = decoded.code, decoded.address
    before: list[tuple[int, int]] = []
    found: list[tuple[int, int]] = []
    for _round in range(MAX_ROUNDS):
        ranges = []
        for at, length, _end in _pieces(decoded, found):
            target = decoded.literal(at) if length else None
            if target is not None and address <= target[0] < address + len(code):
                begin = target[0] - address
                ranges.append((begin, min(begin + target[1], len(code))))
        before, found = found, _merged(ranges)
        if found == before:
            return found
    return _merged(before + found)  # the results still differ: merge the last two


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if out and begin <= out[-1][1]:
            out[-1] = out[-1][0], max(end, out[-1][1])
        else:
            out.append((begin, end))
    return out


def _pieces(decoded: _Decoded, data: list[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield (offset, length, end) of the instructions and of the data between them.

    A length of 0 marks data up to ``end`` or, with an ``end`` of 0, bytes that are not an
    instruction, which end the sequence.
    """
    at, number, size = 0, 0, len(decoded.code)
    while at < size:
        length = decoded.at(at)[0]
        while number < len(data) and data[number][1] <= at:
            number += 1
        if number < len(data) and at + max(length, 1) > data[number][0]:
            yield at, 0, data[number][1]
            at = data[number][1]
        elif not length or at + length > size:
            yield at, 0, 0
            return
        else:
            yield at, length, at + length
            at += length


def instructions(trap: GuestTrap, code: bytes, function: Symbol) -> Iterator[ProbedInstruction]:
    """Yield every instruction of a function with its verdict; for data, the verdict is a refusal.

    :param code: the function's bytes.
    :raises KinstError: when the function has more than ``MAX_FUNCTION`` bytes.
    """
    check_size(function)
    exclusive, decoded = False, _Decoded(trap, code, function.address)
    for at, length, end in _pieces(decoded, _literals(decoded)):
        address, piece = function.address + at, code[at : at + 16]
        if not length:
            # Decoding cannot continue after invalid bytes or an unknown length.
            decoded_length, verdict = decoded.at(at)
            if decoded_length or end:
                verdict = Refuse(DATA if end else NO_INSTRUCTION)
            yield ProbedInstruction(at, address, code[at : end or at + 16], verdict)
            continue
        verdict = decoded.at(at)[1]
        exclusive = exclusive or trap.instructions.starts_exclusive(piece)
        if exclusive:
            verdict = Refuse(EXCLUSIVE)
        if trap.instructions.ends_exclusive(piece):
            exclusive = False
        yield ProbedInstruction(at, address, code[at:end], verdict)
