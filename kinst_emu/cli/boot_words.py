"""Command-line options for a kernel's boot loader: disks, environment, boot flags, CPUs."""

import argparse
import datetime
import io
import sys
from dataclasses import replace
from pathlib import Path

from emu.elf.boot_options import MAX_DATE, boot_options
from emu.elf.image import Image
from emu.guests.registry import check_cpus
from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.schedule import MOST_CPUS
from images import catalog
from images.login import IDLE
from images.systems import NO_CLOCK, dated, single_user, with_system
from kinst_emu.cli.device_words import device_options, device_words, with_devices
from kinst_emu.terminal.terminal import check_writable, parse_count


def base_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--base``."""
    parser.add_argument("--base", action="store_true",
                        help="as the first disk, attach the base system that 'kinst images fetch "
                        "--base' downloaded with this kernel (default: off)")


def disk_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--disk`` for a command that cannot change the disk images."""
    parser.add_argument("--disk", type=Path, action="append", default=[], metavar="FILE",
                        help="attach a disk image; the first disk is the root file system; changes "
                        "are discarded on exit; may be repeated (default: no disks)")


def system_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a system on a disk: --base, --single, --multi and --date."""
    base_option(parser)
    parser.add_argument("--date", metavar="DATE", type=parse_date,
                        help="time of day at the start of the boot, in UTC, e.g. 2026-01-31 or "
                        "2026-01-31T12:00, or 'none' for a machine without a clock (default: "
                        "with a disk, when the kernel was built; otherwise none)")
    users = parser.add_mutually_exclusive_group()
    users.add_argument("--single", action="store_true",
                       help="boot the system on the disk to single-user mode, like --append -s "
                       "(default: multi-user mode)")
    users.add_argument("--multi", action="store_true",
                       help="boot the system on the disk to multi-user mode (the default)")


def loader_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the boot loader, of the disks and of the system on them."""
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
    system_options(parser)
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE",
                        help="set a variable in the kernel environment; may be repeated (default: "
                        "no variables)")
    parser.add_argument("--append", default="", metavar="FLAGS",
                        help="boot flags such as -s or -v, as typed after 'boot' at the loader "
                        "prompt (default: no flags)")
    device_options(parser)
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

    :raises KinstError: for a kernel that runs on one CPU, and for a number outside 1 to
        ``MOST_CPUS``.
    """
    if cpus is None or cpus == 1:
        return image
    if not 1 <= cpus <= MOST_CPUS:
        raise KinstError(f"{cpus} CPUs: the number must be from 1 to {MOST_CPUS}")
    if catalog.is_teaching(image):
        raise KinstError("--cpus: the teaching kernel runs on one CPU; give a FreeBSD kernel")
    check_cpus(image)
    return replace(image, options=replace(image.options, cpus=cpus))


def self_contained_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--self-contained``."""
    parser.add_argument("--self-contained", action="store_true",
                        help="put disks of more than 64 MiB and a restored state into the "
                        "recording (default: the recording refers to the disks' files, and to the "
                        "state in the cache)")


def idle_option(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add ``--idle``.

    :param more: what the help says after the default.
    """
    parser.add_argument("--idle", metavar="SECONDS",
                        help="end the run when the guest has been idle for this many virtual "
                        "seconds without console output (default: "
                        f"{IDLE // 10**9}{more})")


def parse_idle(text: str | None) -> int:
    """Return the value of ``--idle``, or its default, in nanoseconds.

    :raises KinstError: when it is not a positive number of seconds.
    """
    return IDLE if text is None else parse_count(text, "--idle") * 10**9


def set_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--set``."""
    parser.add_argument("--set", action="append", default=[], metavar="PLACE=VALUE",
                        help="before the workload starts, give a variable or member of the kernel "
                        "this value, e.g. 'maxproc=16' or "
                        "'curthread->td_proc->p_limit->pl_rlimit[7].rlim_cur=4'; may be repeated "
                        "(default: change nothing)")


def change(machine: UnicornMachine, texts: list[str]) -> None:
    """Give variables the values of ``--set``, and print what was changed on standard error.

    :raises KinstError: if a value cannot be set.
    """
    if not texts:
        return
    from dtrace.calls.settings import set_all

    for done in set_all(machine, texts):
        print(f"kinst: set {done}", file=sys.stderr)


def files_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--files``."""
    parser.add_argument("--files", type=Path, metavar="DIR",
                        help="let the guest have the files of this host directory in /files "
                        "(default: no files)")


def static_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--static``."""
    parser.add_argument("--static", action="store_true",
                        help="link a C file for the base system statically (default: dynamically, "
                        "as the system's own programs)")


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
    flags = arguments.append
    if arguments.multi and "s" in flags:
        raise KinstError(f"--multi: contradicts the flag s in --append {flags}; leave out one of "
                         "them")
    if arguments.single:
        flags += single_user(bool(arguments.base or arguments.disk or arguments.memory_disk))
    base = [catalog.base(image)] if arguments.base else []
    configured = with_system(image, boot_options(
        arguments.env, flags, arguments.memory_disk, [*base, *arguments.disk]))
    configured = with_devices(dated(configured, arguments.date), device_words(arguments))
    return with_cpus(configured, arguments.cpus)


def parse_date(text: str) -> int:
    """Return an ISO 8601 date, or date and time, as seconds since 1970; UTC without an offset.

    For "none", return ``NO_CLOCK``.

    :raises ArgumentTypeError: when it is not such a date, or the clocks cannot show it.
    """
    if text == "none":
        return NO_CLOCK
    try:
        date = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date such as 2026-01-31 or "
                                         "2026-01-31T12:00, or 'none'") from None
    if date.tzinfo is None:
        date = date.replace(tzinfo=datetime.UTC)
    seconds = int(date.timestamp())
    if not 0 <= seconds <= MAX_DATE:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 1970 and 2106")
    return seconds


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
