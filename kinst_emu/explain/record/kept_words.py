"""Tracking of stores to chosen memory words."""

from collections.abc import Iterable, Mapping

import unicorn

from emu.host.errors import MemoryAccessError
from emu.unicorn.machine import UnicornMachine

WORD = 8  # size of a word in bytes


class KeptWords:
    """Tracker of stores to a set of 8-byte words.

    :param addresses: virtual addresses of the words.
    """

    def __init__(self, machine: UnicornMachine, addresses: Iterable[int]) -> None:
        self._machine = machine
        self._stored = self._wanted = frozenset(addresses)  # initially, all words are reported
        self._known: dict[int, int] = {}
        # Virtual addresses of the words, keyed by physical address, which Unicorn reports.
        self._places: dict[int, int] = {}
        self._hook = machine.uc.hook_add(unicorn.UC_HOOK_MEM_WRITE, self._writes, begin=1, end=0)

    def close(self) -> None:
        """Remove the hook."""
        self._machine.engine.unhook(self._hook)

    def _writes(self, _uc: unicorn.Uc, _access: int, physical: int, size: int, _value: int,
                _data: object) -> None:
        self._stored |= {self._places[at] for at in range(physical & -WORD, physical + size, WORD)
                         if at in self._places}

    def again(self) -> None:
        """Make the next call of ``stored`` report all words."""
        self._stored = self._wanted

    def stored(self) -> Mapping[int, int]:
        """Return the words that were stored to or changed since the last call, keyed by address.

        Unmapped words are left out. Of the CPU's own stores, only those that change a word are
        reported.
        """
        words = dict[int, int]()
        for address in sorted(self._wanted):
            try:
                words[address] = self._machine.read_u64(address)
            except MemoryAccessError:  # the current page tables may not map the word
                continue
            if address not in self._known:  # the word was mapped since the last call
                self._places[self._machine.translate(address) or 0] = address
        changed = {address: word for address, word in words.items()
                   if address in self._stored or self._known.get(address) != word}
        self._known |= words
        self._stored = frozenset()
        return changed
