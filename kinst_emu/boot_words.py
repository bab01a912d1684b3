"""The options of commands that say what a kernel's boot loader is told."""

import argparse
from dataclasses import replace
from pathlib import Path

from emu.architectures import arch_of
from emu.boot_options import boot_options
from emu.elf import Image
from emu.errors import KinstError
from emu.guests import guest_of


def loader_options(parser: argparse.ArgumentParser) -> None:
    """``--memory-disk``, ``--env`` and ``--append``."""
    parser.add_argument("--memory-disk", type=Path, metavar="FILE",
                        help="the image of a disk that the boot loader puts in memory: the root "
                        "file system")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE",
                        help="set a variable of the kernel's environment; may be repeated")
    parser.add_argument("--append", default="", metavar="FLAGS",
                        help="boot flags, as behind 'boot' at a loader's prompt: -s, -v")


def with_options(image: Image, arguments: argparse.Namespace) -> Image:
    """The image, whose loader is told so.

    :raises KinstError: when one is malformed, or the disk cannot be used.
    """
    options = boot_options(arguments.env, arguments.append, arguments.memory_disk)
    if options.memory_disk is not None and not guest_of(image, arch_of(image).name).shell_prompt:
        raise KinstError("--memory-disk: the teaching kernel has no file systems; give a FreeBSD "
                         "kernel")
    return replace(image, options=options)
