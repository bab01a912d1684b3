"""Words of memory that a way stores to."""

from collections.abc import Iterable, Mapping

import unicorn

from emu.host.errors import MemoryAccessError
from emu.unicorn.machine import UnicornMachine

WORD = 8


class KeptWords:
    """:param addresses: of words that are told of."""

    def __init__(self, machine: UnicornMachine, addresses: Iterable[int]) -> None:
        self._machine = machine
        self._stored = self._wanted = frozenset(addresses)  # at first, all
        self._known: dict[int, int] = {}
        self._places: dict[int, int] = {}  # by physical address, which Unicorn tells
        self._hook = machine.uc.hook_add(unicorn.UC_HOOK_MEM_WRITE, self._writes, begin=1, end=0)

    def close(self) -> None:
        self._machine.engine.unhook(self._hook)

    def _writes(self, _uc: unicorn.Uc, _access: int, physical: int, size: int, _value: int,
                _data: object) -> None:
        self._stored |= {self._places[at] for at in range(physical & -WORD, physical + size, WORD)
                         if at in self._places}

    def again(self) -> None:
        """All are told of, the next time."""
        self._stored = self._wanted

    def stored(self) -> Mapping[int, int]:
        """Those that were stored to since the last time, or are other than they were (what the CPU
        itself stores is not told of), as far as they are mapped."""
        found = dict[int, int]()
        for at in sorted(self._wanted):
            try:
                found[at] = self._machine.read_u64(at)
            except MemoryAccessError:  # a program's tables may not have it
                continue
            if at not in self._known:  # it is mapped now
                self._places[self._machine.translate(at) or 0] = at
        told = {at: word for at, word in found.items()
                if at in self._stored or self._known.get(at) != word}
        self._known |= found
        self._stored = frozenset()
        return told
