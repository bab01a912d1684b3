"""The options of commands that say what a kernel's boot loader is told."""

import argparse
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from emu.arch.architectures import arch_of
from emu.elf.boot_options import BootOptions, boot_options
from emu.elf.image import Image
from emu.guests.registry import guest_of
from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.schedule import MOST_CPUS
from images import catalog
from kinst_emu.terminal.terminal import check_writable


def loader_options(parser: argparse.ArgumentParser) -> None:
    """``--disk``, ``--memory-disk``, ``--base``, ``--env`` and ``--append``."""
    parser.add_argument("--disk", type=Path, action="append", default=[], metavar="FILE",
                        help="the image of a disk; without a memory disk, the first is the root "
                        "file system.  What is written to it is forgotten in the end.  May be "
                        "repeated")
    parser.add_argument("--write", action="store_true",
                        help="write what was written to the disks into their files, in the end")
    parser.add_argument("--memory-disk", type=Path, metavar="FILE",
                        help="the image of a disk that the boot loader puts in memory: the root "
                        "file system")
    parser.add_argument("--base", action="store_true",
                        help="the first disk is the base system that 'kinst images fetch --base' "
                        "brought with this kernel")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE",
                        help="set a variable of the kernel's environment; may be repeated")
    parser.add_argument("--append", default="", metavar="FLAGS",
                        help="boot flags, as behind 'boot' at a loader's prompt: -s, -v")
    cpus_option(parser)


def cpus_option(parser: argparse.ArgumentParser) -> None:
    """``--cpus``."""
    parser.add_argument("--cpus", type=_count, metavar="N",
                        help=f"give the computer N CPUs, at most {MOST_CPUS}; they take turns, the "
                        "same ones in every run (default: 1)")


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_CPUS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of CPUs: give 1 to {MOST_CPUS}")
    return int(text)


def with_cpus(image: Image, cpus: int | None) -> Image:
    """The image, for a computer with so many CPUs; None: with one.

    :raises KinstError: for a kernel that starts no others, and when there cannot be so many.
    """
    if cpus is None or cpus == 1:
        return image
    if not 1 <= cpus <= MOST_CPUS:
        raise KinstError(f"{cpus} CPUs: 1 to {MOST_CPUS} are possible")
    if catalog.is_teaching(image):
        raise KinstError("--cpus: the teaching kernel runs on one CPU; give a FreeBSD kernel")
    return replace(image, options=replace(image.options, cpus=cpus))


def files_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--files", type=Path, metavar="DIR",
                        help="put the files of a folder into /files of our userland")


def check_userland(arguments: argparse.Namespace, what: str) -> None:
    """:raises KinstError: where the disk is not to be our userland's."""
    if arguments.disk or arguments.memory_disk or arguments.base:
        raise KinstError(f"{what}: is for our userland, and not with --disk, --memory-disk or "
                         "--base")


def with_options(image: Image, arguments: argparse.Namespace) -> Image:
    """The image, whose loader is told so.

    :raises KinstError: when one is malformed, or the disk cannot be used.
    """
    if arguments.base and arguments.write:
        raise KinstError("--write: the base system stays as it was fetched; give a copy of "
                         f"{catalog.base(image)} with --disk")
    if arguments.write and not arguments.disk:
        raise KinstError("--write: is for --disk, which is not given")
    if arguments.write:
        for path in arguments.disk:
            check_writable(path, "--disk")
        if len({path.resolve() for path in arguments.disk}) < len(arguments.disk):
            raise KinstError("--write: a file is given for two disks")
    base = [catalog.base(image)] if arguments.base else []
    told = _told(image, boot_options(
        arguments.env, arguments.append, arguments.memory_disk, [*base, *arguments.disk]))
    return with_cpus(told, arguments.cpus)


def with_disks(image: Image, disks: Sequence[Path]) -> Image:
    """The image, with disks.

    :raises KinstError: when one cannot be used.
    """
    return _told(image, boot_options([], "", None, disks)) if disks else image


def _told(image: Image, options: BootOptions) -> Image:
    if options.programs and not guest_of(image, arch_of(image).name).boot.shell_prompt:
        what = "--disk" if options.disks else "--memory-disk"
        raise KinstError(f"{what}: the teaching kernel has no file systems; give a FreeBSD "
                         "kernel")
    return replace(image, options=options)


def keep_disks(machine: UnicornMachine) -> None:
    """Write what the guest has written to its disks into their files.

    :raises OSError: when a file cannot be written; it is then what it was.
    """
    for disk, image in zip(machine.board.disks, machine.image.options.disks, strict=True):
        if not disk.written:
            continue
        content = io.BytesIO(image.content[:])
        for at, block in disk.written.items():
            content.seek(at)
            content.write(block)
        path = image.path.resolve()
        with replacing(path, path.stat().st_mode & 0o777) as file:
            file.write(content.getbuffer())
