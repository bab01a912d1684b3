"""Recordings and the kernels they are of: a machine as it was when one began."""

from pathlib import Path

from emu import elf
from emu.elf import Image
from emu.errors import ImageError
from emu.machine import StopReason, Until
from emu.progress import PROGRESS
from emu.replay.inputs import ReplayError
from emu.replay.player import Player
from emu.replay.recording import BOOT, BOOTED, PLACED, Recording, Start
from emu.unicorn.machine import UnicornMachine
from images import catalog
from images.boots import LIMIT, STARTS, booted, unbooted


def kernel_with(path: Path, architecture: str, build_id: str, name: str | None = None) -> Image:
    """The kernel that a recording or a trace is of.

    :param name: the user's word for it; None: it is looked for among the known ones.
    :raises ReplayError: when it is not here, or another one.
    """
    if name is not None:
        image = catalog.find(name)
        if image.identity != build_id:
            raise ReplayError(f"{path}: is of another kernel (build id {build_id}), not of "
                              f"{image.path}; give its own kernel")
        return image
    for known in catalog.known():
        if known.path is None or architecture not in known.name:
            continue
        try:
            image = elf.load(known.path)
        except ImageError:
            continue
        if image.identity == build_id:
            return image
    raise ReplayError(f"{path}: is of a kernel for {architecture} with the build id {build_id}, "
                      "and none of the known ones is that; give it with -k")


def machine_at(start: Start, image: Image) -> UnicornMachine:
    """A machine as the recording's was at its start, but for a state that the recording has."""
    if start.kind == BOOTED:
        machine = booted(image, start.memory)
        machine.console.text.clear()
        return machine
    if start.kind == PLACED:
        return unbooted(image, start.memory)
    machine = UnicornMachine(image, start.memory)
    if start.kind == BOOT:
        machine.boot()
    return machine


def from_start(player: Player) -> None:
    """Bring a recorded boot to where probes can be made: its start has neither page tables nor
    vectors."""
    if player.recording.start.kind != BOOT:
        return
    found = [player.machine.image.symbols.find(name) for name in STARTS]
    stop = player.run(Until(addresses=[symbol.address for symbol in found if symbol is not None]))
    if stop is None:
        raise ReplayError(f"{player.recording.path}: ends before the kernel can be probed, in the "
                          f"first steps of its boot (at {player.position})")
    if stop.reason is StopReason.INTERRUPTED:
        raise KeyboardInterrupt


def played(path: Path, name: str | None = None, limit: int = LIMIT) -> Player:
    """A recording, ready to be played.

    :param name: the kernel, a file or a name; None: it is looked for.
    :param limit: instructions; a longer one is not played.
    :raises ReplayError: when the recording or its kernel cannot be used.
    """
    recording = Recording(path)
    length = recording.last.instructions - recording.start.position.instructions
    if length > limit:
        raise ReplayError(f"{path}: is of {length} instructions, and more than {limit} are not "
                          "played; --limit gives another limit")
    start = recording.start
    image = kernel_with(path, start.architecture, start.build_id, name)
    with PROGRESS.working(f"preparing {image.path}"):
        return Player(recording, machine_at(start, image))
