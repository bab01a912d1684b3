"""State of the guest's locks, for mutex_owned() and similar subroutines.

See "Subroutines" in the DTrace guide.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dwarf.members import MemberError, offset_of
from dwarf.types import Types
from emu.guest.guest import LockMembers


@dataclass(frozen=True)
class LockState:
    """State of a lock.

    :param owner: address of the thread that holds the lock exclusively, or 0.
    :param held: whether any thread holds the lock.
    :param spins: whether a thread that waits for the lock spins.
    :param sleeps: whether a thread that waits for the lock sleeps.
    """

    owner: int
    held: bool
    spins: bool
    sleeps: bool


class Locks:
    """Reader of the guest's locks.

    :param read: returns an unsigned integer in guest memory (address, size in bytes).
    """

    def __init__(self, types: Types, members: LockMembers, read: Callable[[int, int], int]) -> None:
        self._types, self._members, self._read = types, members, read
        self._places: dict[tuple[str, str], int] = {}

    def state(self, lock: int) -> LockState | None:
        """Return the state of a lock, or None if its class is not supported.

        :param lock: address of the lock.
        """
        members = self._members
        at = self._place(members.kind, members.flags)
        if at is None:
            return None
        number = self._read(lock + at, 4) >> members.shift & members.mask
        kind = members.kinds[number] if number < len(members.kinds) else None
        word_at = None if kind is None else self._place(kind.kind, kind.word)
        if kind is None or word_at is None:
            return None
        word = self._read(lock + word_at, 8)
        rest = word & ~kind.flags
        if word & kind.shared:
            return LockState(0, rest != 0, kind.spins, not kind.spins)
        return LockState(rest, rest != 0, kind.spins, not kind.spins)

    def _place(self, structure: str, member: str) -> int | None:
        key = structure, member
        if key not in self._places:
            try:
                self._places[key] = offset_of(self._types, structure, member)
            except MemberError:
                return None
        return self._places[key]
