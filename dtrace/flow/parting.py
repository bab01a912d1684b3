"""Search for the first difference between two recorded runs.

Runs of one kernel are compared by instructions, runs of two builds by calls.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from dtrace.debug.debug_data import Sources
from dtrace.flow.code import KernelCode
from dtrace.flow.walk import INLINE, Walk
from emu.machine.running_thread import thread_of
from emu.replay.flow import CHUNK, ENTRY, PIECE, Head, flow
from emu.replay.player import Player

AROUND = 50_000  # maximum distance in instructions between the difference and a shown call
BEFORE, BEHIND = 10, 14  # maximum number of calls to show before and after the difference


@dataclass(frozen=True)
class Parting:
    """First difference between two runs.

    :param counts: the number of instructions that each run executed before it.
    :param addresses: the addresses of the instructions that differ; None if that run has ended.
    :param names: the names of the functions that differ, if calls were compared.
    """

    counts: tuple[int, int]
    addresses: tuple[int | None, int | None] = (None, None)
    names: tuple[str, str] | None = None


@dataclass(frozen=True)
class FunctionEntry:
    """A call or another event by which execution enters a function.

    :param count: the instruction count before it.
    :param depth: the depth of its thread's stack.
    :param site: the address of the call.
    """

    count: int
    thread: int
    depth: int
    name: str
    how: str
    site: int | None


@dataclass
class _Calls:
    """Listener that collects calls; it ignores inline copies, which differ between builds."""

    found: list[FunctionEntry] = field(default_factory=list)
    _inline: dict[int, list[bool]] = field(default_factory=dict)

    def enter(self, thread: int, position: int, time: int, name: str, how: str,
              site: int | None) -> None:
        stack = self._inline.setdefault(thread, [])
        if how != INLINE:
            self.found.append(FunctionEntry(position, thread, stack.count(False), name, how, site))
        stack.append(how == INLINE)

    def leave(self, thread: int, position: int, time: int) -> None:
        self._inline[thread].pop()

    def ran(self, thread: int, count: int) -> None:
        return None

    def mark(self, thread: int, position: int, time: int, number: int) -> None:
        return None

    def named(self, thread: int) -> None:
        self._inline[thread] = self._inline.pop(0, [])


def _start(player: Player) -> int:
    player.give()
    return player.position.instructions


def first_instruction(one: Player, other: Player, code: KernelCode) -> Parting | None:
    """Return the first instruction that differs between two runs of one kernel, or None.

    The runs are compared from their players' positions.

    :raises KeyboardInterrupt: if the user interrupts the search.
    """
    begins = _start(one), _start(other)
    # Number of instructions in the leading chunks that are equal in both runs. The chunk after
    # them is compared instruction by instruction.
    same = 0
    for ours, theirs in zip(_chunks(one), _chunks(other), strict=False):
        if ours != theirs:
            break
        same += CHUNK
    for player, begin in zip((one, other), begins, strict=True):
        if player.seek(min(begin + same, player.recording.last.instructions)) is not None:
            raise KeyboardInterrupt
    count = same
    left, right = _addresses(one, code), _addresses(other, code)
    while True:
        found = next(left, None), next(right, None)
        if found[0] != found[1]:
            return Parting((begins[0] + count, begins[1] + count), found)
        if found[0] is None:
            return None
        count += 1


def _chunks(player: Player) -> Iterator[list[tuple[int, int]]]:
    """Yield the pieces of straight-line code in each complete chunk of instructions."""
    end = player.position.instructions + CHUNK
    while end <= player.recording.last.instructions:
        entries = b"".join(flow(player, end))
        yield [(value, count) for value, count, kind in ENTRY.iter_unpack(entries)
               if kind == PIECE]
        end += CHUNK


def _addresses(player: Player, code: KernelCode) -> Iterator[int]:
    """Yield the address of each instruction from the player's position on."""
    end = player.position.instructions
    while end < player.recording.last.instructions:
        end = min(end + CHUNK, player.recording.last.instructions)
        for entries in list(flow(player, end)):
            for value, count, kind in ENTRY.iter_unpack(entries):
                if kind == PIECE:
                    yield from code.addresses(value, count)


def _walked(player: Player, code: KernelCode) -> Iterator[list[FunctionEntry]]:
    """Yield the calls from the player's position on, chunk by chunk."""
    player.give()
    machine, listener = player.machine, _Calls()
    walk = Walk(code, Head(machine.arch.name, machine.image.identity, player.position,
                           thread_of(machine)), listener)
    end = player.position.instructions
    while end < player.recording.last.instructions:
        end = min(end + CHUNK, player.recording.last.instructions)
        for entries in list(flow(player, end)):
            walk.follow(entries)
        yield listener.found
        listener.found = []


def first_call(one: Player, other: Player, codes: tuple[KernelCode, KernelCode]) -> Parting | None:
    """Return the first call that differs between runs of two builds of a kernel.

    The runs are compared from their players' positions by function name and stack depth, without
    inline copies.

    :raises KeyboardInterrupt: if the user interrupts the search.
    """
    left = (call for calls in _walked(one, codes[0]) for call in calls)
    right = (call for calls in _walked(other, codes[1]) for call in calls)
    while True:
        ours, theirs = next(left, None), next(right, None)
        if ours is None and theirs is None:
            return None
        if ours is None or theirs is None or (ours.name, ours.depth) != (theirs.name, theirs.depth):
            ends = one.recording.last.instructions, other.recording.last.instructions
            return Parting((ends[0] if ours is None else ours.count,
                            ends[1] if theirs is None else theirs.count),
                           names=("(end of recording)" if ours is None else ours.name,
                                  "(end of recording)" if theirs is None else theirs.name))


def calls_around(player: Player, code: KernelCode, count: int, begin: int) -> list[FunctionEntry]:
    """Return the last function calls before an instruction count, and the first ones after it.

    Calls before ``begin`` are left out.
    """
    low = max(begin, count - AROUND)
    if player.seek(low) is not None:
        raise KeyboardInterrupt
    player.give()
    machine, listener = player.machine, _Calls()
    walk = Walk(code, Head(machine.arch.name, machine.image.identity, player.position,
                           thread_of(machine)), listener)
    end = min(count + AROUND, player.recording.last.instructions)
    for entries in list(flow(player, end)):
        walk.follow(entries)
    before = [call for call in listener.found if call.count < count]
    return before[-BEFORE:] + [call for call in listener.found if call.count >= count][:BEHIND]


def call_text(call: FunctionEntry, least: int, sources: Sources) -> str:
    """Return a line of text for a call: function, indented by stack depth, and source line."""
    line = "?" if call.site is None else sources.line(call.site)
    where = "" if line == "?" else "  " + line.rpartition("/")[2]
    how = "" if call.how == "call" else f" [{call.how}]"
    return f"{'  ' * (call.depth - least)}{call.name}{how}{where}"
