"""Compare-and-swap operations of arm64: CAS, and pairs of LDXR and STXR (Arm ARM C6.2)."""

from collections.abc import Iterator

from kinst.code.operands import Operand
from kinst.code.swaps import Swap

CAS = 0xFFA07C00, 0xC8A07C00  # CAS, CASA, CASL, CASAL of X registers
STORE = 0xFFE07C00, 0xC8007C00  # STXR, STLXR of X registers
LOAD = 0xFFFF7C00, 0xC85F7C00  # LDXR, LDAXR of X registers
COMPARE = 0xFFE0FC1F, 0xEB00001F  # CMP (shifted register) without a shift
UNLESS = 0xFF00001F, 0x54000001  # B.NE
ALL = (1 << 64) - 1
TOP = 0xC8  # the highest byte of CAS and STORE
WITHIN = 4  # maximum number of instructions from a load to its store


def _is(word: int, row: tuple[int, int]) -> bool:
    return word & row[0] == row[1]


def _name(number: int) -> str:
    return "" if number == 31 else f"x{number}"


def _base(number: int) -> str:
    return "sp" if number == 31 else f"x{number}"


def swaps(code: bytes, address: int) -> Iterator[Swap]:
    """Yield the swaps in some code; see ``kinst/code/swaps.py``."""
    words = memoryview(code[: len(code) & ~3]).cast("I")
    for n in [n for n, word in enumerate(words) if word >> 24 == TOP]:
        word = words[n]
        base, status, new = word >> 5 & 31, word >> 16 & 31, word & 31
        place = Operand(8, base=_base(base))
        after = address + 4 * n + 4
        if _is(word, CAS) and n + 1 < len(words) and _is(words[n + 1], COMPARE):
            # The register ``status`` has the old value now, which the next instruction compares.
            compared = {words[n + 1] >> 5 & 31, words[n + 1] >> 16 & 31}
            if status in compared and len(compared) == 2 and status != base:
                expected = (compared - {status}).pop()
                yield Swap(after, place, _name(status), _name(new), _name(status), ALL,
                           _name(expected))
        elif _is(word, STORE):
            before = words[max(n - WITHIN, 0) : n].tolist()[::-1]
            load = next((k for k, one in enumerate(before)
                         if _is(one, LOAD) and one >> 5 & 31 == base), 0)
            old = before[load] & 31
            if any(_is(one, UNLESS) for one in before[:load]) and old not in (base, status):
                yield Swap(after, place, _name(old), _name(new), _name(status), 0xFFFFFFFF)
