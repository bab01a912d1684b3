"""Words of memory around the stack pointer, and how they change during a run."""

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from emu.host.errors import MemoryAccessError

ABOVE = 128  # number of watched bytes above the stack pointer
# number of watched bytes below the stack pointer, in addition to the size of a trap frame
BEYOND = 512
PAGE, WORD = 4096, 8  # sizes of a page and of a word in bytes
MOST_STACKS = 8  # maximum number of watched stacks: an exception may switch to another stack


class StackMemory(Protocol):
    """Interface that ``StackWords`` requires of a machine."""
    @property
    def sp(self) -> int: ...

    def read(self, address: int, size: int, /) -> bytes: ...


class StackWords:
    """Tracker of changes on every stack that the stack pointer has pointed to.

    It watches 64-bit little-endian words, from far enough below the stack pointer for a trap frame
    and a handler to somewhat above it.

    :param frame: size of a trap frame, in bytes.
    """

    def __init__(self, machine: StackMemory, frame: int) -> None:
        self._machine, self._below = machine, frame + BEYOND
        self._known: dict[int, bytes] = {}  # contents of the watched ranges, keyed by first address
        self._stacks = 0

    def changed(self) -> Mapping[int, int]:
        """Return the words that changed since the last call, keyed by address.

        All words of a stack that was not seen before are included.
        """
        changed: dict[int, int] = {}
        sp = self._machine.sp & -WORD
        if self._stacks < MOST_STACKS and not any(
                begin <= sp < begin + len(content) for begin, content in self._known.items()):
            self._stacks += 1
            for begin, end in self._stretches(sp):
                self._known[begin] = content = self._machine.read(begin, end - begin)
                changed |= _words(begin, content)
        for begin, content in list(self._known.items()):
            try:
                now = self._machine.read(begin, len(content))
            except MemoryAccessError:  # the range is no longer mapped
                del self._known[begin]
                continue
            if now != content:
                self._known[begin] = now
                before = _words(begin, content)
                changed |= {at: word for at, word in _words(begin, now).items()
                            if before[at] != word}
        return changed

    def of_physical(self, stores: Iterable[tuple[int, int]], translate: Callable[[int], int | None]
                    ) -> frozenset[int]:
        """Return the addresses of the stack words that the given stores have written to.

        :param stores: (physical address, bytes) of each store.
        :param translate: returns the physical address of a virtual one; None if it is not mapped.
        """
        pages = {physical & -PAGE: page for begin, content in self._known.items()
                 for page in range(begin & -PAGE, begin + len(content), PAGE)
                 if (physical := translate(max(page, begin))) is not None}
        words = set()
        for address, size in stores:
            for word in range(address & -WORD, address + size, WORD):
                if word & -PAGE in pages:
                    words.add(pages[word & -PAGE] + word % PAGE)
        return frozenset(words)

    def _stretches(self, sp: int) -> list[tuple[int, int]]:
        """Return mapped ranges around ``sp`` that are not watched yet, each at most a page long."""
        stretches, at, end = [], sp - self._below & -WORD, sp + ABOVE
        while at < end:
            ends = [begin + len(content) for begin, content in self._known.items()
                    if begin <= at < begin + len(content)]
            if ends:
                at = max(ends)
                continue
            upto = min(end, (at | PAGE - 1) + 1, *(begin for begin in self._known if begin > at))
            try:
                self._machine.read(at, upto - at)
            except MemoryAccessError:
                pass  # a guard page, or unmapped memory above all stacks
            else:
                stretches.append((at, upto))
            at = upto
        return stretches


def _words(begin: int, content: bytes) -> dict[int, int]:
    return {begin + WORD * number: word for number, (word,) in enumerate(
        struct.iter_unpack("<Q", content))}
