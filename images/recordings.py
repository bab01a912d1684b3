"""Recordings and the kernels they are of: a machine as it was when one began."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from emu.elf.boot_options import NOTHING, BootOptions
from emu.elf.image import Image, load_image
from emu.elf.kernel_module import ModuleFile
from emu.elf.linked_image import SUFFIX, with_modules
from emu.elf.reader import read_file
from emu.host.errors import ImageError
from emu.host.printable import printable
from emu.host.progress import PROGRESS
from emu.machine.machine import StopReason, Until
from emu.replay.inputs import ReplayError
from emu.replay.player import Player
from emu.replay.recording import Recording, Start
from emu.replay.starts import BOOT, BOOTED, PLACED
from emu.unicorn.machine import UnicornMachine
from images import catalog
from images.boots import LIMIT, booted, unbooted

Modules = Sequence[tuple[str, str]]


def kernel_with(path: Path, architecture: str, build_id: str, name: str | None = None,
                modules: Modules = (), given: Sequence[str] = (), hint: str = "",
                options: BootOptions = NOTHING) -> Image:
    """The kernel that a recording or a trace is of.

    :param name: the user's word for it; None: it is looked for where it was, and among the known
        ones.
    :param modules: the names and build ids of the modules behind it.
    :param given: the user's files of modules; those not given are looked for beside the kernel.
    :param hint: where the file says that it was; from outside, so that only a plain file with that
        build id is taken.
    :param options: what its boot loader was told.
    :raises ReplayError: when it is not here, or another one.
    """
    for file in given if modules else ():
        if Path(file).name != file and not Path(file).exists():
            raise ReplayError(f"{file}: no such file; {path} was recorded with "
                              + ", ".join(n for n, _id in modules))
        if not {Path(file).name, f"{file}{SUFFIX}"}.intersection(n for n, _id in modules):
            raise ReplayError(f"{path}: was recorded without the module {file}: leave that out")
    if name is not None:
        image = _behind(path, replace(catalog.find(name), options=options), modules, given)
        if not image.is_known_as(build_id):
            raise ReplayError(f"{path}: was recorded on another kernel (build id {build_id}), "
                              f"not on {image.path}; give its own kernel")
        return image
    missing = ""
    if hint:
        found = _hinted(path, hint, build_id, modules, given, options)
        if isinstance(found, Image):
            return found
        missing = f"; {printable(hint)}, where it was, {found}"
    for known in catalog.known():
        if known.path is None or architecture not in known.name:
            continue
        try:
            image = _behind(path, replace(load_image(known.path), options=options), modules, given)
        except (ImageError, ReplayError):
            continue
        if image.is_known_as(build_id):
            return image
    raise ReplayError(f"{path}: was recorded on a kernel for {architecture} with the build id "
                      f"{build_id}, which is none of the known ones{missing}; give it with -k"
                      + (f" (and {', '.join(n for n, _id in modules)} beside it, or with --module)"
                         if modules else ""))


def _hinted(path: Path, hint: str, build_id: str, modules: Modules, given: Sequence[str],
            options: BootOptions) -> Image | str:
    """The kernel where a file says that it was, or what is wrong there.

    :raises KinstError: when it is there, and its modules are not.
    """
    there = Path(hint)
    try:
        if not there.is_file():  # anything else may wait for ever to be read
            return "is no file any more"
        image = replace(load_image(there), options=options)
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    except ImageError:
        return "is no kernel any more"
    try:
        image = _behind(path, image, modules, given)
    except (ImageError, ReplayError):
        if build_id.startswith(f"{image.build_id}-"):  # that kernel: the modules are what is wrong
            raise
        return "is not with its modules any more"
    return image if image.is_known_as(build_id) else "is another build now"


def _behind(path: Path, image: Image, modules: Modules, given: Sequence[str]) -> Image:
    """The image with a recording's modules.

    :raises ReplayError: when one is not here, or of another build.
    """
    files = [catalog.module_path(image, name) for name in given]
    if not modules:
        return with_modules(image, files)
    theirs = {file.name: file for file in files}
    paths = [theirs.get(name, image.path.parent / name) for name, _id in modules]
    for (name, build_id), file in zip(modules, paths, strict=True):
        if not file.is_file():
            raise ReplayError(f"{path}: needs the module {name} (build id {build_id}), which is "
                              f"not beside {image.path}; give it with --module")
        if ModuleFile(read_file(file)).build_id != build_id:
            raise ReplayError(f"{path}: needs the module {name} with the build id {build_id}; "
                              f"{file} is of another build")
    return with_modules(image, paths)


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
    found = [player.machine.image.symbols.find(name) for name in player.machine.guest.boot.starts]
    stop = player.run(Until(addresses=[symbol.address for symbol in found if symbol is not None]))
    if stop is None:
        raise ReplayError(f"{player.recording.path}: ends before the kernel can be probed, in the "
                          f"first steps of its boot (at {player.position})")
    if stop.reason is StopReason.INTERRUPTED:
        raise KeyboardInterrupt


def played(path: Path, name: str | None = None, limit: int = LIMIT,
           modules: Sequence[str] = ()) -> Player:
    """A recording, ready to be played.

    :param name: the kernel, a file or a name; None: it is looked for where it was recorded, and
        among the known ones.
    :param limit: instructions; a longer one is not played.
    :param modules: files of the modules behind the kernel, where they are not beside it.
    :raises ReplayError: when the recording or its kernel cannot be used.
    """
    recording = Recording(path)
    length = recording.last.instructions - recording.start.position.instructions
    if length > limit:
        raise ReplayError(f"{path}: has {length} instructions, and more than {limit} are not "
                          "played; --limit sets another limit")
    start = recording.start
    image = kernel_with(path, start.architecture, start.build_id, name, start.modules, modules,
                        start.kernel, recording.options)
    with PROGRESS.working(f"preparing {image.path}"):
        return Player(recording, machine_at(start, image))
