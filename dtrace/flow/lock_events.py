"""Acquisitions and releases of locks in a window of a recorded run.

Every lock has a word that names its owner or counts its sharers.  Whatever stores a new value there
acquires or releases the lock, also where the compiler has inlined it.  Locks that are not in a word
of the lock are recognized by the functions that acquire and release them.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

from dtrace.flow.code import KernelCode
from dtrace.flow.steps import ENTRY as STEP
from dtrace.flow.steps import INSTRUCTION, REGISTER, Translations, chunks
from dtrace.flow.thread_path import one_cpu
from dtrace.flow.walk import INLINE, TAIL, Walk
from dwarf.members import offset_of
from dwarf.types import Types
from emu.guest.guest import LockKind, LockMembers
from emu.host.errors import KinstError, MemoryAccessError
from emu.host.printable import printable
from emu.replay.flow import ENTRY as FLOW
from emu.replay.flow import PIECE, SKEW, THREAD, Head
from emu.replay.inputs import Position
from emu.replay.player import Player
from emu.unicorn._steps import StepKind

PAGE = 4096
WORD = 8
MOST = 500_000_000  # maximum number of instructions in a window
MOST_EVENTS = 2_000_000  # maximum number of acquisitions and releases
MOST_FRAMES = 24  # maximum number of callers that are kept of an acquisition
NO_LOCK = -1  # value of an event after which there is no lock at its place
RED_ZONE = 256  # number of bytes below the stack pointer that an instruction may store
MOST_SHARERS = 10_000  # maximum number of threads that share a lock
MOST_BEFORE = 64  # maximum number of them that are listed when the window begins
MOST_NESTED = 64  # maximum number of locks listed that a thread holds
MAX_NAME = 64
STORE = int(StepKind.STEP_STORE)
MASK = (1 << 64) - 1
ACQUIRE, RELEASE = "acquire", "release"


@dataclass(frozen=True)
class Lock:
    """A lock.

    :param address: virtual address; None if it is unknown.
    :param kind: name of its kind, such as "mutex".
    :param place: physical address of its word; 0 if it has none.
    """

    address: int | None
    kind: str
    name: str
    place: int = 0

    @property
    def at(self) -> str:
        """The address as text."""
        return "at an unknown address" if self.address is None else f"{self.address:#x}"


@dataclass
class Holding:
    """One acquisition of a lock, and its release.

    :param thread: address of the thread that acquired it.
    :param shared: whether others may share it.
    :param position: instruction count at which it was acquired; None: before the window.
    :param time: virtual time in ns then.
    :param where: the instruction that acquired it, and the calls around it, innermost first.
    :param waited: virtual time in ns for which the thread had waited.
    :param released: instruction count at which it was released; None: not within the window.
    :param held: virtual time in ns until then, or until the end of the window.
    :param changed: whether the same store released the lock: it was upgraded or downgraded.
    :param handed: whether another thread made this one, or no thread, the owner.
    :param within: locks that the thread held when it acquired this one, the oldest first.
    :param releaser: address of the thread that released it.
    :param released_where: as ``where``, for the release.
    """

    lock: Lock
    thread: int
    shared: bool
    position: int | None
    time: int
    where: tuple[int, ...]
    waited: int = 0
    released: int | None = None
    held: int = 0
    changed: bool = False
    handed: bool = False
    within: tuple[Lock, ...] = ()
    releaser: int = 0
    released_where: tuple[int, ...] = ()


@dataclass
class _Word:
    """The word of a lock.

    :param value: its value; None while there is no lock.
    """

    lock: Lock
    kind: LockKind
    value: int | None
    sharers: list[Holding] = field(default_factory=list)
    owner: Holding | None = None


@dataclass(frozen=True)
class _Event:
    """A store to a word of a lock, or a call of a function that acquires or releases one.

    :param place: physical address of the word; the lock's address for a call.
    :param value: the new value; 1 or 0 for a call that acquires or releases.
    :param kind: index in ``LockMembers.entered``, or -1 for a store.
    :param waiting: time in ns at which the outermost function that locks was entered; -1: none was.
    """

    position: int
    time: int
    thread: int
    place: int
    value: int
    where: tuple[int, ...]
    kind: int
    waiting: int


class _Stacks:
    """Listener of a ``Walk`` that knows each thread's calls."""

    def __init__(self) -> None:
        self._stacks: dict[int, list[tuple[int | None, int, bool]]] = {}
        self._left: dict[int, tuple[int | None, int, bool]] = {}  # the last call that ended

    def enter(self, thread: int, position: int, time: int, name: str, how: str,
              site: int | None) -> None:
        """Note a call: its site, its time, and whether it is inlined.

        A function that was reached by a tail call takes the place of the one that made it.
        """
        if how == TAIL and thread in self._left:
            site, time, _inlined = self._left[thread]
        self._stacks.setdefault(thread, []).append((site, time, how == INLINE))

    def leave(self, thread: int, position: int, time: int) -> None:
        """Forget the innermost call."""
        if self._stacks.get(thread):
            self._left[thread] = self._stacks[thread].pop()

    def ran(self, thread: int, count: int) -> None:
        """Ignore executed instructions."""

    def mark(self, thread: int, position: int, time: int, number: int) -> None:
        """Ignore a marked instruction."""

    def named(self, thread: int) -> None:
        """Note the address of the thread that has been reported as thread 0 until now."""
        if 0 in self._stacks:
            self._stacks[thread] = self._stacks.pop(0)

    def calls(self, thread: int) -> Iterator[tuple[int, int]]:
        """Yield the sites and times of the calls on a thread's stack, innermost first."""
        for site, time, inlined in reversed(self._stacks.get(thread, [])):
            if not inlined and site is not None:
                yield site, time


class LockEvents:
    """Finder of the locks that are acquired in a window of a recording.

    :param members: how the guest's locks look.
    :param is_locking: returns whether the function at an address implements locks.
    :param has_lock_code: returns whether an instruction belongs to such a function, which may be
        inlined.
    :raises KinstError: if the kernel's types do not describe locks.
    """

    def __init__(self, player: Player, code: KernelCode, types: Types, members: LockMembers,
                 is_locking: Callable[[int], bool], has_lock_code: Callable[[int], bool]
                 ) -> None:
        self._player, self._machine, self._code = player, player.machine, code
        self._members = members
        self._is_locking, self._has_lock_code = is_locking, has_lock_code
        image = player.machine.image
        try:
            self._flags = offset_of(types, members.kind, members.flags)
            self._name = offset_of(types, members.kind, members.name)
            self._offsets = {kind.kind: offset_of(types, kind.kind, kind.word)
                             for kind in members.kinds if kind is not None}
        except KinstError as error:
            raise KinstError(f"{image.path}: locks need the kernel's types: {error}") from None
        self._entries: dict[int, tuple[int, int]] = {}
        for number, (acquire, release, _kind) in enumerate(members.entered):
            for name, value in ((acquire, 1), (release, 0)):
                for symbol in image.symbols.named(name):
                    self._entries[symbol.address] = number, value
        self._virtual: dict[int, int] = {}  # physical address of a word -> virtual address
        self._checked = set[int]()  # physical addresses looked at in the current chunk
        self._locks: dict[int, tuple[Lock, LockKind]] = {}
        self._threads = set[int]()

    def holdings(self, head: Head, end: Position) -> list[Holding]:
        """Return the acquisitions from the player's position to ``end``, in their order.

        :param head: header of the flow at the player's position.
        :raises KinstError: if the window is too long.
        :raises KeyboardInterrupt: if the user interrupts the replay.
        """
        player, begin = self._player, self._player.position
        one_cpu(player)
        if end.instructions - begin.instructions > MOST:
            raise KinstError(f"the window has {end.instructions - begin.instructions:,} "
                             f"instructions; locks of at most {MOST:,} can be shown")
        events = self._events(head, end)
        last = player.position.time
        if player.seek(begin) is not None:
            raise KeyboardInterrupt
        player.give()
        words = self._words(events)
        # A thread that sleeps through the window may own a lock to which others add flags.
        threads = {event.thread for event in events} | self._threads | {0} | {
            _state(word.kind, word.value)[0] for word in words.values()}
        events = [one if one.kind >= 0 or self._plausible(one, threads)
                  else replace(one, value=NO_LOCK) for one in events
                  if one.kind >= 0 or one.place in self._locks]
        return _interpret(words, events, self._members, begin.time, last)

    # -- the window -------------------------------------------------------------------------------

    def _events(self, head: Head, end: Position) -> list[_Event]:
        player, machine = self._player, self._machine
        numbers = machine.cpu.model.registers
        names = [name for name in machine.arch.registers
                 if name != machine.arch.pc and name in numbers]
        registers = machine.registers()
        current = [registers[name] for name in names]
        events: list[_Event] = []
        stacks = _Stacks()
        walk = Walk(self._code, head, stacks)
        state = head.thread, head.begin.time - head.begin.instructions
        with closing(chunks(player, end, [numbers[name] for name in names])) as pieces:
            for begin, flow, entries in pieces:
                found = self._candidates(entries, names, current)
                state = self._place(found, flow, begin.instructions, state, walk, stacks, events)
                if len(events) > MOST_EVENTS:
                    raise KinstError(f"more than {MOST_EVENTS:,} locks are acquired; give a "
                                     "shorter window")
        return events

    def _candidates(self, entries: bytes, names: list[str], current: list[int]
                    ) -> list[tuple[int, int, int, int, int]]:
        """Return (position, pc, place, value, kind) of what may acquire or release locks.

        :param current: values of the registers ``names``, which are updated.
        """
        found: list[tuple[int, int, int, int, int]] = []
        self._checked.clear()
        where, arguments = Translations(self._machine), self._machine.arch.arguments
        first = names.index(arguments[0])
        pc = position = 0
        pending: tuple[int, int] | None = None
        changed: list[tuple[int, int]] = []
        for kind, what, a, b in STEP.iter_unpack(entries):
            if kind == REGISTER:
                changed.append((what, a))
            elif kind == INSTRUCTION:
                for number, value in changed:
                    current[number] = value
                changed.clear()
                pc, position = a, b
                pending = self._entries.get(pc)
                if pending is not None and not (found and found[-1][:2] == (position, pc)):
                    found.append((position, pc, current[first], pending[1], pending[0]))
            elif kind == STORE and what == WORD and not a % WORD and self._has_lock_code(pc):
                if a not in self._checked:
                    self._checked.add(a)
                    self._look(a, where, dict(zip(names, current, strict=True)), pc)
                # It may be a lock that is destroyed in this chunk, but is found in another one.
                found.append((position, pc, a, b & MASK, -1))
        for number, value in changed:
            current[number] = value
        return found

    def _look(self, place: int, where: Translations, registers: dict[str, int], pc: int) -> None:
        """Note whether the word of a lock is at a physical address at the end of the chunk."""
        virtual = self._virtual.get(place)
        if virtual is None and self._may_be(place):
            virtual = where.virtual(registers, pc, place) or 0
        known = None if virtual is None else self._find(virtual, place)
        if known is not None and virtual is not None and not (
                -RED_ZONE <= virtual - registers[self._machine.arch.sp] < self._members.stack):
            self._locks[place], self._virtual[place] = known, virtual

    def _may_be(self, place: int) -> bool:
        """Return whether a physical address may be that of a word of a lock."""
        for number, kind in enumerate(self._members.kinds):
            if kind is None:
                continue
            start = place - self._offsets[kind.kind]
            if start & -PAGE != place & -PAGE:
                return True
            try:
                if self._is_kind(self._number(start + self._flags, 4), number):
                    return True
            except MemoryAccessError:
                continue
        return False

    def _is_kind(self, flags: int, number: int) -> bool:
        members = self._members
        return bool(flags & members.initialized) and (
            flags >> members.shift & members.mask) == number

    def _find(self, virtual: int, place: int) -> tuple[Lock, LockKind] | None:
        """Return the lock whose word is at an address, or None.

        :param virtual: its virtual address, or 0 if it is unknown.
        :param place: its physical address.
        """
        machine, members = self._machine, self._members
        read, word = (machine.read, virtual) if virtual else (machine.read_physical, place)
        for number, kind in enumerate(members.kinds):
            if kind is None:
                continue
            start = word - self._offsets[kind.kind]
            if not virtual and start & -PAGE != word & -PAGE:
                continue
            try:
                if not self._is_kind(int.from_bytes(read(start + self._flags, 4), "little"),
                                     number):
                    continue
                pointer = int.from_bytes(read(start + self._name, WORD), "little")
                if not pointer >> 63 and machine.guest.boot.shell_prompt:
                    continue
                name = machine.read_string(pointer, MAX_NAME)
            except MemoryAccessError:
                continue
            if name and all(32 <= byte < 127 for byte in name):
                return Lock(None, kind.name, printable(name.decode()), place), kind
        return None

    def _number(self, physical: int, size: int) -> int:
        return int.from_bytes(self._machine.read_physical(physical, size), "little")

    def _place(self, found: list[tuple[int, int, int, int, int]], flow: bytes, position: int,
               state: tuple[int, int], walk: Walk, stacks: _Stacks, events: list[_Event]
               ) -> tuple[int, int]:
        """Add events with their thread, time and callers; return the thread and skew at the end.

        :param position: instruction count at which the flow begins.
        :param state: thread and skew there.
        """
        thread, skew = state
        at = 0
        for offset in range(0, len(flow), FLOW.size):
            value, count, kind = FLOW.unpack_from(flow, offset)
            if kind == PIECE:
                end = position + count
                walk.follow(flow[offset : offset + FLOW.size])
                while at < len(found) and found[at][0] < end:
                    events.append(self._event(found[at], thread, skew, stacks))
                    at += 1
                position = end
                continue
            walk.follow(flow[offset : offset + FLOW.size])
            if kind == THREAD:
                thread = value
                self._threads.add(value)
            elif kind == SKEW:
                skew = value - (1 << 64) if value >> 63 else value
        return thread, skew

    def _event(self, one: tuple[int, int, int, int, int], thread: int, skew: int,
               stacks: _Stacks) -> _Event:
        position, pc, place, value, kind = one
        where, waiting = [pc], -1
        locking = self._is_locking(pc)
        for site, time in stacks.calls(thread):
            if locking:
                waiting = time
                locking = self._is_locking(site)
            where.append(site)
            if len(where) > MOST_FRAMES:
                break
        return _Event(position, position + skew, thread, place, value, tuple(where), kind, waiting)

    def _plausible(self, event: _Event, threads: set[int]) -> bool:
        """Return whether a store leaves the word of a lock there: a thread is its owner, if any."""
        kind = self._locks[event.place][1]
        owner, sharers = _state(kind, event.value)
        return sharers <= MOST_SHARERS and (owner in threads or owner == MASK & ~kind.flags)

    def _words(self, events: list[_Event]) -> dict[int, _Word]:
        """Return the words of locks as they are at the player's position."""
        words = {}
        for event in events:
            known = self._locks.get(event.place)
            if event.kind >= 0 or event.place in words or known is None:
                continue
            lock, kind = known
            virtual = self._virtual.get(event.place, 0)
            address = virtual - self._offsets[kind.kind] if virtual else None
            there = self._find(virtual, event.place)
            words[event.place] = _Word(
                Lock(address, lock.kind, lock.name, lock.place), kind,
                None if there is None or there[1] is not kind
                else self._number(event.place, WORD))
        return words


def _interpret(words: dict[int, _Word], events: list[_Event], members: LockMembers, first: int,
               last: int) -> list[Holding]:
    """Return the acquisitions that stores and calls mean.

    :param first: virtual time in ns at the start of the window; ``last`` is that at its end.
    """
    found: list[Holding] = []
    held: dict[int, list[Holding]] = {}
    entered: dict[tuple[int, int, int], list[Holding]] = {}

    def take(lock: Lock, event: _Event, shared: bool, waited: int, owner: int) -> Holding:
        if len(found) >= MOST_EVENTS:
            raise KinstError(f"more than {MOST_EVENTS:,} acquisitions; give a shorter window")
        # A lock that was handed to another owner, such as an unfinished input or output, is not
        # held by the thread.
        mine = held.setdefault(owner, []) if owner == event.thread else []
        holding = Holding(lock, owner, shared, event.position, event.time, event.where, waited,
                          handed=owner != event.thread,
                          within=tuple(one.lock for one in mine[-MOST_NESTED:]))
        mine.append(holding)
        found.append(holding)
        return holding

    def drop(holding: Holding, event: _Event) -> None:
        holding.released, holding.held = event.position, event.time - holding.time
        holding.releaser, holding.released_where = event.thread, event.where
        if holding in held.get(holding.thread, []):
            held[holding.thread].remove(holding)

    def before(lock: Lock, thread: int, shared: bool) -> Holding:
        holding = Holding(lock, thread, shared, None, first, ())
        held.setdefault(thread, []).append(holding)
        found.append(holding)
        return holding

    for word in words.values():  # what was held when the window began
        owner, sharers = _state(word.kind, word.value)
        if owner:
            word.owner = before(word.lock, owner, False)
        word.sharers = [before(word.lock, 0, True) for _ in range(min(sharers, MOST_BEFORE))]
    freed: dict[int, tuple[int, int, int]] = {}  # word -> (time, thread, time of its acquisition)
    for event in events:
        if event.kind >= 0:
            _acquire, _release, kind = members.entered[event.kind]
            key = event.thread, event.kind, event.place
            if event.value:
                entered.setdefault(key, []).append(
                    take(Lock(event.place, kind, ""), event, True, 0, event.thread))
            elif entered.get(key):
                drop(entered[key].pop(), event)
            continue
        word = words[event.place]
        owner, sharers = _state(word.kind, word.value)
        new_owner, new_sharers = _state(word.kind, event.value)
        word.value = None if event.value == NO_LOCK else event.value
        waited, released = 0, 0
        free, holder, since = freed.get(event.place, (0, 0, 0))
        if since < event.waiting < free and holder != event.thread:
            waited = event.time - event.waiting  # another thread held it when this one asked for it
        if owner and owner != new_owner and word.owner is not None:
            drop(word.owner, event)
            freed[event.place] = event.time, word.owner.thread, word.owner.time
            word.owner, released = None, event.thread
        while sharers > new_sharers and word.sharers:
            mine = next((one for one in word.sharers if one.thread == event.thread),
                        word.sharers[0])
            word.sharers.remove(mine)
            drop(mine, event)
            sharers -= 1
            released = event.thread
            freed[event.place] = event.time, mine.thread, mine.time
        if new_owner and owner != new_owner:
            word.owner = take(word.lock, event, False, waited, new_owner)
            word.owner.changed = released != 0
        if new_sharers > sharers:  # a store adds one sharer; more were there before
            word.sharers.append(take(word.lock, event, True, waited, event.thread))
            word.sharers[-1].changed = released != 0
    for holding in found:
        if holding.released is None:
            holding.held = last - holding.time
    found.sort(key=lambda one: -1 if one.position is None else one.position)
    return found


def _state(kind: LockKind, value: int | None) -> tuple[int, int]:
    """Return the owner and the number of sharers that the word of a lock contains."""
    if value in (None, NO_LOCK):
        return 0, 0
    assert value is not None
    if kind.shared and value & kind.shared:
        return 0, value >> kind.sharers
    return value & ~kind.flags & MASK, 0
