"""What a session begins with: a kernel that is booted, or a recording."""

import argparse
from pathlib import Path

from emu.host.errors import KinstError
from kinst_emu.api.kernel import MEMORY, open_kernel
from kinst_emu.api.recording import Recording
from kinst_emu.cli.completion import kernel_option
from kinst_emu.shell.session import Session
from kinst_emu.terminal.terminal import parse_size


def opening(parser: argparse.ArgumentParser) -> None:
    """What is worked with: of ``kinst shell``, and of ``%kinst``."""
    parser.add_argument("recording", nargs="?", metavar="RECORDING",
                        help="look at this recording, instead of booting a kernel")
    kernel_option(parser, required=False)
    parser.add_argument("--memory", metavar="SIZE", help=f"guest RAM ({MEMORY})")
    parser.add_argument("--cpus", type=int, metavar="N", help="CPUs of the computer (1)")
    parser.add_argument("--userland", action="store_true",
                        help="with our userland: command(\"ls /\") gives its shell a command")
    parser.add_argument("--files", type=Path, metavar="DIR",
                        help="a folder whose files it has in /files; then with our userland, too")


def open_with(session: Session, given: argparse.Namespace) -> None:
    """:raises KinstError: when it cannot be opened."""
    if given.recording is not None:
        for name in ("module", "userland", "files", "memory", "cpus"):
            if getattr(given, name) not in (None, False, []):
                raise KinstError(f"--{name}: a recording has its own machine")
        session.open_recording(Recording(given.recording, given.kernel))
        return
    if given.kernel is None:
        raise KinstError("give a kernel (-k IMAGE; kinst images lists some), or a recording's file")
    memory = given.memory or MEMORY
    parse_size(memory)
    cpus = 1 if given.cpus is None else given.cpus
    session.open_kernel(open_kernel(given.kernel, given.module, userland=given.userland,
                                    files=given.files, cpus=cpus), memory)
