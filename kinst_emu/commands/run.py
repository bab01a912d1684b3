"""``kinst run``: a command in the user space of a booted kernel."""

import argparse
import json
import time
from pathlib import Path

from emu.errors import KinstError
from images import catalog
from images.boots import BootError, booted
from images.shell import run_command, shown_output, with_folder, with_program, with_userland
from kinst_emu.boot_words import files_option, keep_disks, loader_options, with_options
from kinst_emu.completion import kernel_option
from kinst_emu.terminal import parse_count, parse_size, show_byte, show_console

LIMIT = 20_000_000_000  # instructions
EXAMPLES = (
    "kinst run -k kernel -- ls /",
    "kinst run -k kernel -- 'cat /etc/motd | wc; echo $?'",
    "kinst run -k kernel --files ./programs -- /files/prog",
    "kinst run -k kernel prog.c 1 2",
)

# sync(2) starts the writes, and does not wait for them.
SYNCHRONIZED = "sync; sleep 1; sync; sleep 1"


def add_options(parser: argparse.ArgumentParser) -> None:
    kernel_option(parser)
    loader_options(parser)
    files_option(parser)
    parser.add_argument("--memory", default="512M", metavar="SIZE", help="guest RAM (%(default)s)")
    parser.add_argument("--limit", default=str(LIMIT), metavar="N",
                        help="instructions after which the command is given up (%(default)s)")
    parser.add_argument("--digest", action="store_true",
                        help="print the SHA-256 of memory, registers, clock and console behind it")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("words", nargs="+", metavar="COMMAND",
                        help="a line for our shell: programs, ; && || & | < > and quotes.  A file "
                        "of C, and its arguments: it is compiled first, with our header system.h")


def run(arguments: argparse.Namespace) -> int:
    """The exit status is the command's."""
    began = time.perf_counter()
    limit, memory = parse_count(arguments.limit, "--limit"), parse_size(arguments.memory)
    kernel = with_options(catalog.find(arguments.kernel, arguments.module), arguments)
    if arguments.files is not None and (arguments.disk or arguments.memory_disk):
        raise KinstError("--files: is for our userland, and not with --disk or --memory-disk")
    source = Path(arguments.words[0])
    if source.suffix == ".c" and not arguments.files:
        image, words = with_program(with_userland(kernel), source), [
            f"/files/{source.stem}", *arguments.words[1:]]
    else:
        image, words = with_folder(with_userland(kernel), arguments.files), arguments.words
    try:
        machine = booted(image, memory)
    except BootError as error:
        show_console(error.console)
        raise
    if not arguments.json:
        machine.console.stream = shown_output(show_byte)
    before = machine.instructions
    ran = run_command(machine, " ".join(words), limit)
    if arguments.write:
        if ran.status is not None:
            machine.console.stream = None
            run_command(machine, SYNCHRONIZED, limit)
        keep_disks(machine)
    if arguments.json:
        print(json.dumps({
            "output": ran.output.decode("utf-8", "replace"), "status": ran.status,
            "instructions": machine.instructions - before,
            "wall_seconds": round(time.perf_counter() - began, 3),
            **({"digest": machine.digest()} if arguments.digest else {}),
        }))
    elif arguments.digest:
        print(f"digest {machine.digest()}")
    return ran.status or 0
