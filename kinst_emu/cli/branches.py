"""Branches of recordings: what would have happened if a variable had had another value."""

import sys

from dtrace.calls.positions import go
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from emu.machine.machine import StopReason, Until
from emu.replay.player import Player
from images.login import IDLE, run_to
from images.shell import without_marks
from kinst_emu.cli.boot_words import change
from kinst_emu.terminal.terminal import show_byte


def run_branch(player: Player, position: str, texts: list[str], limit: int) -> None:
    """Leave a recording at a position, change variables there, and run on without it.

    The run ends at the shell's prompt, when the guest is idle, or when it stops.

    :param texts: values of ``--set``.
    :param limit: maximum number of instructions after the position.
    :raises KinstError: if the position is not reached, or a value cannot be set.
    """
    machine, prompt = player.machine, player.machine.guest.boot.shell_prompt
    if not prompt:
        raise KinstError("--set: the teaching kernel's recordings cannot be left; give a recording "
                         "of a FreeBSD kernel")
    with PROGRESS.working(f"playing {player.recording.path}"):
        if go(player, position) is not None:
            raise KeyboardInterrupt
        player.give()
    change(machine, texts)
    print(f"kinst: left the recording at {player.position}", file=sys.stderr)
    machine.console.stream = without_marks(show_byte)
    begin = machine.instructions
    stop = run_to(machine, Until(console=(prompt,), instructions=begin + limit), IDLE,
                  lambda: False)
    machine.console.stream = None
    if stop.reason is StopReason.INTERRUPTED:
        raise KeyboardInterrupt
    if stop.reason is StopReason.INSTRUCTIONS:
        raise KinstError(f"the branch has not ended after {limit:,} instructions; --limit sets "
                         "another limit")
    ended = "the shell's prompt" if stop.reason is StopReason.CONSOLE else str(stop)
    print(f"kinst: the branch ended after {machine.instructions - begin:,} instructions: {ended}",
          file=sys.stderr)
