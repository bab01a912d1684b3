"""The state of the guest's locks, for mutex_owned() and the like (DTrace guide, "Subroutines")."""

from collections.abc import Callable
from dataclasses import dataclass

from dwarf.members import MemberError, offset_of
from dwarf.types import Types
from emu.guest.guest import LockMembers


@dataclass(frozen=True)
class LockState:
    """:param owner: the thread that has it to write, or alone; 0: none has.
    :param held: somebody has it.
    """

    owner: int
    held: bool
    spins: bool
    sleeps: bool


class Locks:
    """:param read: gives a number of the guest's memory, of so many bytes."""

    def __init__(self, types: Types, members: LockMembers, read: Callable[[int, int], int]) -> None:
        self._types, self._members, self._read = types, members, read
        self._places: dict[tuple[str, str], int] = {}

    def state(self, lock: int) -> LockState | None:
        """None: it is of a class of which nothing is known."""
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
