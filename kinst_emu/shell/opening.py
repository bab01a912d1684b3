"""Options and setup of a session: a kernel to boot, or a recording to open."""

import argparse
from pathlib import Path

from emu.host.errors import KinstError
from kinst_emu.api.kernel import MEMORY, open_kernel
from kinst_emu.api.recording import Recording
from kinst_emu.cli.boot_words import disk_option, system_options
from kinst_emu.cli.completion import kernel_option
from kinst_emu.cli.sources import sources_option
from kinst_emu.shell.session import Session
from kinst_emu.terminal.terminal import parse_size


def opening(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a kernel or a recording, for ``kinst shell`` and ``%kinst``."""
    parser.add_argument("recording", nargs="?", metavar="RECORDING",
                        help="open this recording instead of booting a kernel (default: boot the "
                        "kernel given with -k)")
    kernel_option(parser, optional="required, except with RECORDING")
    parser.add_argument("--memory", metavar="SIZE",
                        help=f"guest RAM, in MiB or with a suffix K, M or G (default: {MEMORY})")
    parser.add_argument("--cpus", type=int, metavar="N", help="number of guest CPUs (default: 1)")
    disk_option(parser)
    system_options(parser)
    parser.add_argument("--net", metavar="WHAT",
                        help="attach a network device: 'peer', 'peer:FOLDER' or 'wire' "
                        "(machine.send_frame sends frames) (default: no network device)")
    parser.add_argument("--entropy", metavar="SEED",
                        help="attach an entropy device whose bytes follow from this text "
                        "(default: no such device)")
    parser.add_argument("--userland", action="store_true",
                        help="boot the kinst-emu userland, where command(\"ls /\") runs a shell "
                        "command (default: off)")
    parser.add_argument("--files", type=Path, metavar="DIR",
                        help="host directory whose files appear in the guest's /files; without "
                        "a disk, implies --userland (default: no files)")
    sources_option(parser)


def open_with(session: Session, given: argparse.Namespace) -> None:
    """Open the chosen kernel or recording in a session.

    :raises KinstError: when it cannot be opened.
    """
    session.sources = given.sources
    if given.recording is not None:
        for name in ("module", "userland", "files", "memory", "cpus", "base", "single", "multi",
                     "date", "net", "entropy", "disk"):
            if getattr(given, name) not in (None, False, []):
                raise KinstError(f"--{name}: cannot be used with a recording, which has its own "
                                 "machine")
        session.open_recording(Recording(given.recording, given.kernel))
        return
    if given.kernel is None:
        raise KinstError("give a kernel (-k IMAGE; kinst images lists some) or a recording")
    memory = given.memory or MEMORY
    parse_size(memory)
    cpus = 1 if given.cpus is None else given.cpus
    session.open_kernel(open_kernel(given.kernel, given.module, userland=given.userland,
                                    files=given.files, cpus=cpus, base=given.base, disks=given.disk,
                                    single=given.single, date=given.date, network=given.net,
                                    entropy=given.entropy), memory)
