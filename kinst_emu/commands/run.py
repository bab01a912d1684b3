"""``kinst run``: run a command in the user space of a booted kernel or of a base system."""

import argparse
import json
import shlex
import time
from pathlib import Path

from emu.unicorn.machine import UnicornMachine
from images import catalog
from images.boots import BootError, booted
from images.shell import (
    CommandError,
    Ran,
    has_our_shell,
    run_command,
    shown_output,
    with_folder,
    with_program,
    with_userland,
)
from kinst_emu.cli.boot_words import (
    change,
    files_option,
    idle_option,
    keep_disks,
    loader_options,
    parse_idle,
    set_option,
    static_option,
    with_options,
)
from kinst_emu.cli.completion import kernel_option
from kinst_emu.cli.device_words import connected, device_words
from kinst_emu.terminal.terminal import parse_count, parse_size, show_byte, show_console

LIMIT = 20_000_000_000  # default of --limit, in instructions
EXAMPLES = (
    "kinst run -k kernel -- ls /",
    "kinst run -k kernel -- 'cat /etc/motd | wc; echo $?'",
    "kinst run -k kernel --files ./programs -- /files/prog",
    "kinst run -k kernel prog.c 1 2",
    "kinst run -k 15.0-RELEASE/amd64 --base -- 'ls -l / | wc -l'",
)

# Remounting read-only completes all writes and marks the file system clean; sync(2) only starts
# the writes.
UNMOUNTED = "mount -u -o ro /"
FORCED = "mount -u -f -o ro /"  # for a complete system, whose services have files open
NOT_WRITTEN = "--write: the disk images are unchanged"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst run``."""
    kernel_option(parser)
    loader_options(parser)
    files_option(parser)
    static_option(parser)
    parser.add_argument("--memory", default="512M", metavar="SIZE",
                        help="guest RAM, in MiB or with a suffix K, M or G (default: %(default)s)")
    parser.add_argument("--limit", default=str(LIMIT), metavar="N",
                        help="abandon the command after N instructions (default: %(default)s)")
    idle_option(parser)
    set_option(parser)
    parser.add_argument("--digest", action="store_true",
                        help="print the SHA-256 of memory, registers, devices, clock and console "
                        "after the command (default: off)")
    parser.add_argument("--json", action="store_true",
                        help="print the result as JSON (default: text)")
    parser.add_argument("words", nargs="+", metavar="COMMAND",
                        help="command line for the kinst-emu shell, which supports quotes and the "
                        "operators '; && || & | < >', or, with --base or --disk, for the root "
                        "shell of that system; or a C file, which is first compiled with "
                        "kinst-emu's system.h or against the base system's headers and libraries, "
                        "followed by its arguments (required)")


def run(arguments: argparse.Namespace) -> int:
    """Run the command in the guest, and return its exit status."""
    began = time.perf_counter()
    limit, memory = parse_count(arguments.limit, "--limit"), parse_size(arguments.memory)
    idle = parse_idle(arguments.idle)
    kernel = with_options(catalog.find(arguments.kernel, arguments.module), arguments)
    source, words = Path(arguments.words[0]), list(arguments.words)
    compiled = source.suffix == ".c" and arguments.files is None
    if arguments.static and not compiled:
        raise CommandError("--static: works only with a C file")
    if compiled:  # quote each word, so that it stays one argument of the program
        image = with_program(with_userland(kernel), source, arguments.static)
        words = [shlex.quote(word) for word in (f"/files/{source.stem}", *words[1:])]
    else:
        image = with_folder(with_userland(kernel), arguments.files)
    try:
        machine = booted(image, memory)
    except BootError as error:
        show_console(error.console)
        raise
    if not arguments.json:
        machine.console.stream = shown_output(show_byte)
    before = machine.instructions
    try:
        with connected(machine, device_words(arguments)):
            change(machine, arguments.set)
            ran = run_command(machine, " ".join(words), limit, idle)
        digest = machine.digest() if arguments.digest else ""
        spent = machine.instructions - before
        if arguments.write:
            _write(machine, ran, limit)
    except CommandError as error:
        if arguments.write:
            raise CommandError(f"{error}; {NOT_WRITTEN}", error.stop) from None
        raise
    if arguments.json:
        print(json.dumps({
            "output": ran.output.decode("utf-8", "replace"), "status": ran.status,
            "instructions": spent,
            "wall_seconds": round(time.perf_counter() - began, 3),
            **({"digest": digest} if digest else {}),
        }))
    elif digest:
        print(f"digest {digest}")
    return ran.status or 0


def _write(machine: UnicornMachine, ran: Ran, limit: int) -> None:
    """Have the guest complete its writes, then write the guest's disks back to the image files."""
    if ran.status is not None:
        machine.console.stream = None
        command = UNMOUNTED if has_our_shell(machine.image) else FORCED
        done = run_command(machine, command, limit)
        if done.status:
            output = done.output.decode("utf-8", "replace").strip()
            raise CommandError(f"'{command}' failed ({output})")
    keep_disks(machine)
