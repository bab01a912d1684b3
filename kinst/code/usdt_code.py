"""Instructions that stand for the probes that a program declares itself (USDT).

A compiler emits a call of an undefined function for each probe, and for each question whether it is
enabled; a tail call becomes a jump.  ``kdtrace -G`` replaces both by instructions that do nothing.
"""

from dataclasses import dataclass

from emu.arch.parts import Parts


@dataclass(frozen=True)
class UsdtCode:
    """Instructions for probes, of one architecture.

    :param relocations: types of the relocations of a call or jump.
    :param done: type of a relocation that is not applied.
    :param before: bytes from the beginning of a call to its relocation.
    :param call: value and mask of a call, in the order of memory; ``jump``: of a tail call.
    :param fires: instructions in place of a call; ``fires_last``: in place of a tail call.
    :param asks: instructions in place of a call that asks for a probe, and ``asks_last``.
    :param asks_at: offset in these of the instruction before which the answer is set.
    :param nothing: beginning of an instruction that does nothing, and of a return.
    :param difference: types of the relocations that make a field the distance to a symbol from the
        field itself; with two, the second one subtracts the field's address.
    :param moves: whether a linker may shorten code, so that offsets change.
    :param narrow: whether relocations of dtrace(1) write only the lower half of a field.
    """

    relocations: frozenset[int]
    done: int
    before: int
    call: tuple[bytes, bytes]
    jump: tuple[bytes, bytes]
    fires: bytes
    fires_last: bytes
    asks: bytes
    asks_last: bytes
    asks_at: int
    nothing: tuple[bytes, ...]
    difference: tuple[int, ...]
    moves: bool
    narrow: bool


USDT_CODES: Parts[UsdtCode] = Parts("kinst.{}.usdt", "CODE")


def is_form(code: bytes, form: tuple[bytes, bytes]) -> bool:
    """Return whether code begins with an instruction, given by its value and mask."""
    value, mask = form
    return len(code) >= len(value) and all(
        byte & bits == want for byte, bits, want in zip(code, mask, value, strict=False))
