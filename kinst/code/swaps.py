"""Compare-and-swap operations on words of 64 bits, with which kernels acquire and release locks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from emu.arch.parts import Parts
from kinst.code.operands import Operand


@dataclass(frozen=True)
class Swap:
    """A compare-and-swap, as the instruction after it sees the result.

    Registers are named as in ``Arch.registers``; an empty name stands for the number 0.

    :param after: address of the instruction after it.
    :param word: the word in memory, of which the registers are still unchanged.
    :param old: register with the word's previous value, if it was swapped.
    :param new: register with the new value.
    :param result: register that tells whether the word was swapped: the bits ``mask`` are then
        those of ``equal``, or of ``value`` if that is empty.
    """

    after: int
    word: Operand
    old: str
    new: str
    result: str
    mask: int
    equal: str = ""
    value: int = 0


# Architecture name -> function that yields the swaps in (code, address), in their order. Bytes that
# only look like a swap may be among them, so the caller checks where instructions begin.
SWAPS: Parts[Callable[[bytes, int], Iterator[Swap]]] = Parts("kinst.{}.swaps", "swaps")
