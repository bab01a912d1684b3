"""Counts of what a recording executes."""

from dtrace.flow.code import KernelCode
from dtrace.flow.coverage import Coverage
from emu.host.progress import PROGRESS
from emu.replay.flow import flow
from emu.replay.player import Player
from images.recordings import from_start


def counter(player: Player, code: KernelCode) -> Coverage:
    """Return a counter for what the recordings of a kernel execute."""
    return Coverage(code, bool(player.machine.guest.boot.shell_prompt))


def count(player: Player, coverage: Coverage, name: str) -> None:
    """Play a recording to its end, and add what it executes.

    :param name: what is counted, for the progress.
    """
    from_start(player)
    player.give()
    with PROGRESS.working(f"counting what {name} executes"):
        for entries in flow(player, player.recording.last):
            coverage.follow(entries)
        coverage.finish()
