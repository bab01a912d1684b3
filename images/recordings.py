"""Find the kernel of a recording, and create a machine in the recording's start state."""

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
from images.kept_contents import KeptContents

Modules = Sequence[tuple[str, str]]


def kernel_with(path: Path, architecture: str, build_id: str, name: str | None = None,
                modules: Modules = (), given: Sequence[str] = (), hint: str = "",
                options: BootOptions = NOTHING) -> Image:
    """Return the kernel on which a recording or a trace was made.

    :param name: the kernel's file or name as the user gave it. If None, the recorded path and then
        the known images are searched.
    :param modules: names and build IDs of the modules loaded after the kernel.
    :param given: module files from the user; other modules are expected next to the kernel.
    :param hint: the path in the recording. It is untrusted, so only a regular file with the same
        build ID is used.
    :param options: the boot loader's options.
    :raises ReplayError: the kernel or a module is missing, or is another build.
    """
    for file in given if modules else ():
        if Path(file).name != file and not Path(file).exists():
            raise ReplayError(f"{file}: no such file; {path} was recorded with "
                              + ", ".join(n for n, _id in modules))
        if not {Path(file).name, f"{file}{SUFFIX}"}.intersection(n for n, _id in modules):
            raise ReplayError(f"{path}: was recorded without the module {file}; omit the module")
    if name is not None:
        image = _behind(path, replace(catalog.find(name), options=options), modules, given)
        if not image.is_known_as(build_id):
            raise ReplayError(f"{path}: was recorded on another kernel (build ID {build_id}), "
                              f"not on {image.path}; give the recording's kernel")
        return image
    missing = ""
    if hint:
        hinted = _hinted(path, hint, build_id, modules, given, options)
        if isinstance(hinted, Image):
            return hinted
        missing = f"; {printable(hint)}, the recorded path, {hinted}"
    for known in catalog.known():
        if known.path is None or architecture not in known.name:
            continue
        try:
            image = _behind(path, replace(load_image(known.path), options=options), modules, given)
        except (ImageError, ReplayError):
            continue
        if image.is_known_as(build_id):
            return image
    raise ReplayError(f"{path}: was recorded on a kernel for {architecture} with the build ID "
                      f"{build_id}, which is not a known kernel{missing}; specify it with -k"
                      + (f" (and {', '.join(n for n, _id in modules)} next to it, or with --module)"
                         if modules else ""))


def _hinted(path: Path, hint: str, build_id: str, modules: Modules, given: Sequence[str],
            options: BootOptions) -> Image | str:
    """Return the kernel at the recorded path, or a phrase that says why it cannot be used.

    :raises KinstError: the kernel is the right one, but its modules are missing or other builds.
    """
    kernel = Path(hint)
    try:
        if not kernel.is_file():  # reading anything else, such as a FIFO, may block
            return "is not a file"
        image = replace(load_image(kernel), options=options)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ImageError:
        return "is not a kernel"
    try:
        image = _behind(path, image, modules, given)
    except (ImageError, ReplayError):
        if build_id.startswith(f"{image.build_id}-"):  # the kernel matches, but its modules do not
            raise
        return "no longer has its modules"
    return image if image.is_known_as(build_id) else "is now another build"


def _behind(path: Path, image: Image, modules: Modules, given: Sequence[str]) -> Image:
    """Return an image with a recording's modules loaded after the kernel.

    :raises ReplayError: a module is missing or is another build.
    """
    files = [catalog.module_path(image, name) for name in given]
    if not modules:
        return with_modules(image, files)
    by_name = {file.name: file for file in files}
    paths = [by_name.get(name, image.path.parent / name) for name, _id in modules]
    for (name, build_id), file in zip(modules, paths, strict=True):
        if not file.is_file():
            raise ReplayError(f"{path}: needs the module {name} (build ID {build_id}), which is "
                              f"not next to {image.path}; specify its file with --module")
        if ModuleFile(read_file(file)).build_id != build_id:
            raise ReplayError(f"{path}: needs the module {name} with the build ID {build_id}; "
                              f"{file} is a different build")
    return with_modules(image, paths)


def machine_at(start: Start, image: Image) -> UnicornMachine:
    """Return a machine in the start state of a recording.

    If the recording contains this state itself, the caller must still restore it.
    """
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
    """Play a recorded boot until the kernel has page tables and vectors and can be probed.

    :raises ReplayError: the recording ends before that point.
    """
    if player.recording.start.kind != BOOT:
        return
    symbols = [player.machine.image.symbols.find(name) for name in player.machine.guest.boot.starts]
    stop = player.run(Until(addresses=[symbol.address for symbol in symbols if symbol is not None]))
    if stop is None:
        raise ReplayError(f"{player.recording.path}: the recording ends in the first steps of the "
                          f"boot (at {player.position}), before the kernel can be probed")
    if stop.reason is StopReason.INTERRUPTED:
        raise KeyboardInterrupt


def played(path: Path, name: str | None = None, limit: int = LIMIT,
           modules: Sequence[str] = ()) -> Player:
    """Open a recording and return a player for it.

    :param name: the kernel's file or name. If None, the recorded path and then the known images
        are searched.
    :param limit: maximum number of instructions in the recording.
    :param modules: module files that are not next to the kernel.
    :raises ReplayError: the recording or its kernel cannot be used.
    """
    recording = Recording(path, KeptContents(path))
    length = recording.last.instructions - recording.start.position.instructions
    if length > limit:
        raise ReplayError(f"{path}: has {length} instructions, which exceeds the limit of {limit}; "
                          "--limit sets another limit")
    start = recording.start
    image = kernel_with(path, start.architecture, start.build_id, name, start.modules, modules,
                        start.kernel, recording.options)
    with PROGRESS.working(f"preparing {image.path}"):
        return Player(recording, machine_at(start, image))
