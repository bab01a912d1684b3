"""The words of memory around a stack pointer, as they change from one look to the next."""

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from emu.host.errors import MemoryAccessError

ABOVE = 128  # bytes above the stack pointer that are looked at
BEYOND = 512  # below it, beside a trap frame
PAGE, WORD = 4096, 8
MOST_STACKS = 8  # an exception may go on another one


class StackMemory(Protocol):
    @property
    def sp(self) -> int: ...

    def read(self, address: int, size: int, /) -> bytes: ...


class StackWords:
    """Whole words of 64 bits, little-endian, of each stack that the pointer is found on: from where
    it was then, so far below and above as a trap frame and what a handler needs have room.

    :param frame: bytes of a trap frame.
    """

    def __init__(self, machine: StackMemory, frame: int) -> None:
        self._machine, self._below = machine, frame + BEYOND
        self._known: dict[int, bytes] = {}  # by the first address of a stretch
        self._stacks = 0

    def changed(self) -> Mapping[int, int]:
        """By address, the words that are not what they were the last time; all of a stack that is
        new."""
        found: dict[int, int] = {}
        sp = self._machine.sp & -WORD
        if self._stacks < MOST_STACKS and not any(
                begin <= sp < begin + len(content) for begin, content in self._known.items()):
            self._stacks += 1
            for begin, end in self._stretches(sp):
                self._known[begin] = content = self._machine.read(begin, end - begin)
                found |= _words(begin, content)
        for begin, content in list(self._known.items()):
            try:
                now = self._machine.read(begin, len(content))
            except MemoryAccessError:  # it is mapped no more
                del self._known[begin]
                continue
            if now != content:
                self._known[begin] = now
                before = _words(begin, content)
                found |= {at: word for at, word in _words(begin, now).items()
                          if before[at] != word}
        return found

    def of_physical(self, stores: Iterable[tuple[int, int]], translate: Callable[[int], int | None]
                    ) -> frozenset[int]:
        """The words of the stacks that stores have touched.

        :param stores: (physical address, bytes) of each.
        :param translate: gives the physical address of a virtual one.
        """
        pages = {physical & -PAGE: page for begin, content in self._known.items()
                 for page in range(begin & -PAGE, begin + len(content), PAGE)
                 if (physical := translate(max(page, begin))) is not None}
        found = set()
        for at, size in stores:
            for word in range(at & -WORD, at + size, WORD):
                if word & -PAGE in pages:
                    found.add(pages[word & -PAGE] + word % PAGE)
        return frozenset(found)

    def _stretches(self, sp: int) -> list[tuple[int, int]]:
        """Of the bytes around it those that are mapped, a page's at a time."""
        made, at, end = [], sp - self._below & -WORD, sp + ABOVE
        while at < end:
            inside = [begin + len(content) for begin, content in self._known.items()
                      if begin <= at < begin + len(content)]
            if inside:
                at = max(inside)
                continue
            upto = min(end, (at | PAGE - 1) + 1, *(begin for begin in self._known if begin > at))
            try:
                self._machine.read(at, upto - at)
            except MemoryAccessError:
                pass  # a page that guards it, or what is above all stacks
            else:
                made.append((at, upto))
            at = upto
        return made


def _words(begin: int, content: bytes) -> dict[int, int]:
    return {begin + WORD * number: word for number, (word,) in enumerate(
        struct.iter_unpack("<Q", content))}
