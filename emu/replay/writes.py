"""Search for the last write to a memory range before a position of a recording.

The search replays the recording from its known states, the last one first, with a watchpoint on the
range.  It then single-steps through the block that contains the last write.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from emu.host.errors import KinstError
from emu.machine.machine import StopReason, Until
from emu.replay.inputs import MEMORY, Position, ReplayError
from emu.replay.player import Player
from emu.unicorn._watch import WatchLimit, WriteWatch
from emu.unicorn.guest_memory import PAGE

MAX_SIZE = int(WatchLimit.MAX_WATCHED)  # maximum size of the watched memory in bytes


@dataclass(frozen=True)
class Write:
    """A write to the watched memory.

    :param position: position at which the writing instruction is about to execute.
    :param pc: address of that instruction; None: an input wrote the memory at that position.
    :param old: content before the write.
    :param new: content after the write.
    """

    position: Position
    pc: int | None
    old: bytes
    new: bytes


def last_write(player: Player, physical: int, size: int, before: Position,
               given: bool = False) -> Write | None:
    """Find the last write to a range of physical memory before a position.

    The player is left where the write is about to be made, or at the start if there was no write.

    :param size: 1 to 64 bytes, within one page.
    :param given: whether an input at the position ``before`` counts, too.
    :raises ReplayError: if the range is too large, crosses a page, or is not RAM.
    """
    if not 0 < size <= MAX_SIZE or physical % PAGE + size > PAGE:
        raise ReplayError(f"cannot watch {size} bytes at physical address {physical:#x}: the "
                          f"range must be 1 to {MAX_SIZE} bytes long and lie within one page")
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
        write = _in_piece(player, physical, size, end)
        if write is not None:
            return write
        end = start
    player.seek(recording.start.position)
    return None


def _to(player: Player, position: Position) -> None:
    stop = player.seek(position)
    if stop is not None:
        raise KeyboardInterrupt


def _in_piece(player: Player, physical: int, size: int, end: Position) -> Write | None:
    """Return the last write between the player's position and ``end``, or None."""
    low = high = -1
    given = [one.position for one in player.recording.inputs
             if one.kind == MEMORY and player.position <= one.position < end
             and _touches(int(one.name, 16), len(one.value), physical, size)]
    try:
        watch = WriteWatch(player.machine.engine, physical, size)
    except ValueError:
        raise ReplayError(f"cannot watch physical address {physical:#x}: it is not RAM") from None
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
    """Apply the inputs at the current position; return their effect on the watched memory."""
    machine, position = player.machine, player.position
    old = machine.read_physical(physical, size)
    player.give()
    return Write(position, None, old, machine.read_physical(physical, size))


def _stepped(player: Player, physical: int, size: int, low: int, high: int,
             given: Sequence[Position]) -> Write | None:
    """Single-step between two instruction counts, and return the last write, or None.

    :param given: positions of inputs that write to the range.
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
    """Translate a virtual address with the page tables at the player's position.

    :raises KinstError: if the address is not mapped there.
    """
    physical = player.machine.translate(address)
    if physical is None:
        raise KinstError(f"address {address:#x} is not mapped at {player.position}")
    return physical
