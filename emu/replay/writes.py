"""Who wrote to a piece of memory: the last store before a position, and the one before that.

The recording is played from its states, the last one first, with a watch on the memory; of the
piece in which the last write is found, the block it is in is then stepped through.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from emu.host.errors import KinstError
from emu.machine.machine import StopReason, Until
from emu.replay.inputs import MEMORY, Position, ReplayError
from emu.replay.player import Player
from emu.unicorn._watch import WatchLimit, WriteWatch
from emu.unicorn.guest_memory import PAGE

MAX_SIZE = int(WatchLimit.MAX_WATCHED)  # bytes


@dataclass(frozen=True)
class Write:
    """A write to the memory.

    :param position: where the instruction that wrote is to be executed.
    :param pc: its address; None: it came from outside, at that position.
    :param old: the bytes before; ``new``: after.
    """

    position: Position
    pc: int | None
    old: bytes
    new: bytes


def last_write(player: Player, physical: int, size: int, before: Position,
               given: bool = False) -> Write | None:
    """The last write to physical memory that is made before a position.

    The player is left where the write is to be made; where there is none, at the start.

    :param size: 1 to 64 bytes, within a page.
    :param given: what comes from outside at that position counts, too.
    :raises ReplayError: when that is not so, or the memory is not RAM.
    """
    if not 0 < size <= MAX_SIZE or physical % PAGE + size > PAGE:
        raise ReplayError(f"{size} bytes at physical {physical:#x}: 1 to {MAX_SIZE} bytes, within "
                          "a page, can be looked after")
    recording = player.recording
    if given and any(one.kind == MEMORY and one.position == before
                     and _touches(int(one.name, 16), len(one.value), physical, size)
                     for one in recording.inputs):
        _to(player, before)
        return _entered(player, physical, size)
    states = sorted({recording.start.position, *(p for p, _part, _given in recording.checkpoints)})
    end = before
    for start in reversed([p for p in states if p < before]):
        _to(player, start)
        found = _in_piece(player, physical, size, end)
        if found is not None:
            return found
        end = start
    player.seek(recording.start.position)
    return None


def _to(player: Player, position: Position) -> None:
    stop = player.seek(position)
    if stop is not None:
        raise KeyboardInterrupt


def _in_piece(player: Player, physical: int, size: int, end: Position) -> Write | None:
    """The last write from where the player is up to a position."""
    low = high = -1
    given = [one.position for one in player.recording.inputs
             if one.kind == MEMORY and player.position <= one.position < end
             and _touches(int(one.name, 16), len(one.value), physical, size)]
    try:
        watch = WriteWatch(player.machine.engine, physical, size)
    except ValueError:
        raise ReplayError(f"physical {physical:#x} is not RAM") from None
    try:
        if player.advance(end) is not None:
            raise KeyboardInterrupt
        watch.look()
        if watch.writes:
            low, high = watch.last
    finally:
        watch.close()
    if given and (low < 0 or given[-1].instructions >= high):
        _to(player, given[-1])
        return _entered(player, physical, size)
    if low < 0:
        return None
    return _stepped(player, physical, size, low, min(high, end.instructions), given)


def _touches(at: int, length: int, physical: int, size: int) -> bool:
    return at < physical + size and physical < at + length


def _entered(player: Player, physical: int, size: int) -> Write:
    """A write from outside."""
    machine, position = player.machine, player.position
    old = machine.read_physical(physical, size)
    player.give()
    return Write(position, None, old, machine.read_physical(physical, size))


def _stepped(player: Player, physical: int, size: int, low: int, high: int,
             given: Sequence[Position]) -> Write | None:
    """The last write from one count of instructions up to another.

    :param given: where some come from outside.
    """
    machine = player.machine
    if player.seek(low) is not None:
        raise KeyboardInterrupt
    last: Write | None = None
    watch = WriteWatch(machine.engine, physical, size)
    try:
        while player.position.instructions < high:
            position = player.position
            if position in given:
                last = _entered(player, physical, size)
            player.give()
            watch.forget()
            pc = machine.pc
            old, before = machine.read_physical(physical, size), watch.writes
            stop = player.run(Until(instructions=position.instructions + 1))
            if stop is not None and stop.reason is StopReason.INTERRUPTED:
                raise KeyboardInterrupt
            new = machine.read_physical(physical, size)
            if watch.writes > before or new != old:
                last = Write(position, pc, old, new)
            if player.at_end:
                break
    finally:
        watch.close()
    if last is not None:
        _to(player, last.position)
    return last


def physical_of(player: Player, address: int) -> int:
    """The physical address of a virtual one, by the page tables where the player is.

    :raises KinstError: when it is not mapped there.
    """
    found = player.machine.translate(address)
    if found is None:
        raise KinstError(f"{address:#x} is not mapped at {player.position}")
    return found
