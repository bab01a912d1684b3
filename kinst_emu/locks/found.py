"""Locks that threads acquire and release in a part of a recording."""

from dtrace.debug.kernel_types import kernel_types
from dtrace.flow.code import KernelCode
from dtrace.flow.lock_events import Holding, LockEvents
from dwarf.debug_file import debug_file
from emu.guest.guest import LockMembers
from emu.host.errors import KinstError
from emu.machine.running_thread import thread_of
from emu.replay.flow import Head
from emu.replay.inputs import Position
from emu.replay.player import Player
from kinst_emu.cli.flows import stack_of
from kinst_emu.locks.places import LockPlaces


def lock_members(player: Player) -> LockMembers:
    """Return the members of the kernel's locks.

    :raises KinstError: if the kernel has no locks that are known, or no debug data.
    """
    machine = player.machine
    members = machine.guest.threads.locks
    if members is None or not machine.guest.boot.shell_prompt:  # a teaching kernel
        raise KinstError(f"{machine.image.path}: this kernel has no locks that are known")
    if not has_locks(player):
        raise KinstError(f"{machine.image.path}: locks taken in inlined functions can only be "
                         "found with DWARF debug data; put the matching kernel.debug in its "
                         "directory")
    return members


def has_locks(player: Player) -> bool:
    """Return whether the locks of a recording's kernel can be found."""
    machine = player.machine
    return (machine.guest.threads.locks is not None and bool(machine.guest.boot.shell_prompt)
            and debug_file(machine.image.file) is not None)


def holdings(player: Player, code: KernelCode, places: LockPlaces, begin: Position, end: Position
             ) -> list[Holding]:
    """Return the acquisitions of locks between two positions; leave the player at the end.

    :raises KeyboardInterrupt: if the user interrupts the replay.
    """
    members = lock_members(player)
    if player.seek(begin) is not None:
        raise KeyboardInterrupt
    player.give()
    machine = player.machine
    head = Head(machine.arch.name, machine.image.identity, begin, thread_of(machine),
                stack_of(player))
    finder = LockEvents(player, code, kernel_types(machine.image), members, places.is_locking,
                        places.has_lock_code)
    found = finder.holdings(head, end)
    if player.seek(end) is not None:
        raise KeyboardInterrupt
    return found
