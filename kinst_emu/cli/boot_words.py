"""Command-line options for a kernel's boot loader: disks, environment, boot flags, CPUs."""

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
    """Add --disk, --write, --memory-disk, --base, --env, --append and --cpus."""
    parser.add_argument("--disk", type=Path, action="append", default=[], metavar="FILE",
                        help="attach a disk image; without --memory-disk, the first disk is the "
                        "root file system; changes are discarded on exit unless --write is given; "
                        "may be repeated (default: no disks)")
    parser.add_argument("--write", action="store_true",
                        help="on exit, write changes back to the disk images of --disk (default: "
                        "discard them)")
    parser.add_argument("--memory-disk", type=Path, metavar="FILE",
                        help="load a disk image into memory, as the boot loader does, and use it "
                        "as the root file system (default: no memory disk)")
    parser.add_argument("--base", action="store_true",
                        help="as the first disk, attach the base system that 'kinst images fetch "
                        "--base' downloaded with this kernel (default: off)")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE",
                        help="set a variable in the kernel environment; may be repeated (default: "
                        "no variables)")
    parser.add_argument("--append", default="", metavar="FLAGS",
                        help="boot flags such as -s or -v, as typed after 'boot' at the loader "
                        "prompt (default: no flags)")
    cpus_option(parser)


def cpus_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--cpus``."""
    parser.add_argument("--cpus", type=_count, metavar="N",
                        help=f"number of guest CPUs, at most {MOST_CPUS}; the CPUs take turns, "
                        "with the same schedule in every run (default: 1)")


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_CPUS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {MOST_CPUS}")
    return int(text)


def with_cpus(image: Image, cpus: int | None) -> Image:
    """Return the image configured for the given number of CPUs; None means one CPU.

    :raises KinstError: for a teaching kernel and for a number outside 1 to ``MOST_CPUS``.
    """
    if cpus is None or cpus == 1:
        return image
    if not 1 <= cpus <= MOST_CPUS:
        raise KinstError(f"{cpus} CPUs: the number must be from 1 to {MOST_CPUS}")
    if catalog.is_teaching(image):
        raise KinstError("--cpus: the teaching kernel runs on one CPU; give a FreeBSD kernel")
    return replace(image, options=replace(image.options, cpus=cpus))


def files_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--files``."""
    parser.add_argument("--files", type=Path, metavar="DIR",
                        help="copy the files of this host directory into /files of the kinst-emu "
                        "userland (default: no files)")


def check_userland(arguments: argparse.Namespace, what: str) -> None:
    """Refuse disk options given with a command or option that needs the kinst-emu userland.

    :param what: name of the option or command for the message.
    :raises KinstError: when --disk, --memory-disk or --base is given.
    """
    if arguments.disk or arguments.memory_disk or arguments.base:
        raise KinstError(f"{what}: needs the kinst-emu userland; leave out --disk, --memory-disk "
                         "and --base")


def with_options(image: Image, arguments: argparse.Namespace) -> Image:
    """Return the image with the boot loader options of a command line.

    :raises KinstError: when an option is malformed, or a disk cannot be used.
    """
    if arguments.base and arguments.write:
        raise KinstError("--write: the base system cannot be changed; attach a copy of "
                         f"{catalog.base(image)} with --disk")
    if arguments.write and not arguments.disk:
        raise KinstError("--write: works only with --disk; give a disk image")
    if arguments.write:
        for path in arguments.disk:
            check_writable(path, "--disk")
        if len({path.resolve() for path in arguments.disk}) < len(arguments.disk):
            raise KinstError("--write: two disks use the same file; give one of them a copy of "
                             "the file")
    base = [catalog.base(image)] if arguments.base else []
    configured = _told(image, boot_options(
        arguments.env, arguments.append, arguments.memory_disk, [*base, *arguments.disk]))
    return with_cpus(configured, arguments.cpus)


def with_disks(image: Image, disks: Sequence[Path]) -> Image:
    """Return the image with the given disks attached.

    :raises KinstError: when a disk cannot be used.
    """
    return _told(image, boot_options([], "", None, disks)) if disks else image


def _told(image: Image, options: BootOptions) -> Image:
    if options.programs and not guest_of(image, arch_of(image).name).boot.shell_prompt:
        what = "--disk" if options.disks else "--memory-disk"
        raise KinstError(f"{what}: the teaching kernel has no file systems; give a FreeBSD "
                         "kernel")
    return replace(image, options=options)


def keep_disks(machine: UnicornMachine) -> None:
    """Write the guest's disk changes back to the disk image files.

    :raises OSError: when a file cannot be written; that file is then unchanged.
    """
    for disk, image in zip(machine.board.disks, machine.image.options.disks, strict=True):
        if not disk.written:
            continue
        content = io.BytesIO(image.content[:])
        for offset, block in disk.written.items():
            content.seek(offset)
            content.write(block)
        path = image.path.resolve()
        with replacing(path, path.stat().st_mode & 0o777) as file:
            file.write(content.getbuffer())
