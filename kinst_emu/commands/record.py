"""``kinst record``: record a boot, calls, a command or a program for replay."""

import argparse
import shlex
from pathlib import Path

from dtrace.calls.c_file import c_file_words
from dtrace.calls.calls import Evaluation, check, parse
from dtrace.calls.prototypes import Prototypes, result_line
from dtrace.stacks.stack import failure
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from emu.machine.call import DEFAULT_LIMIT, Caller, CallError
from emu.replay.starts import BOOT, BOOTED
from emu.unicorn.machine import UnicornMachine
from images import catalog
from images.boots import LIMIT, boot_to_prompt, booted
from images.shell import (
    at_shell,
    check_command,
    give_command,
    shown_output,
    with_folder,
    with_program,
    with_userland,
)
from kinst_emu.api.kernel import Kernel
from kinst_emu.api.record_run import recorded
from kinst_emu.api.workload import load_program, program_of, run_program
from kinst_emu.cli.boot_words import (
    files_option,
    idle_option,
    loader_options,
    parse_idle,
    self_contained_option,
    static_option,
    with_options,
)
from kinst_emu.cli.completion import kernel_option
from kinst_emu.cli.device_words import connected, device_words
from kinst_emu.terminal.terminal import parse_count, parse_size, show_byte

EXAMPLES = (
    "kinst record -k kernel -o boot.rec boot",
    "kinst record -k kernel -o call.rec 'p = malloc(100, &M_TEMP, 2); free(p, &M_TEMP)'",
    "kinst record -k kernel -o typed.rec keys.py",
    "kinst record -k kernel -o ls.rec '$ ls /'",
    "kinst record -k kernel -o prog.rec 'prog.c 1 2'",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst record``."""
    kernel_option(parser)
    loader_options(parser)
    files_option(parser)
    static_option(parser)
    parser.add_argument("-o", dest="output", type=Path, required=True, metavar="FILE",
                        help="write the recording to this file (required)")
    parser.add_argument("workload", metavar="WORKLOAD",
                        help="what to record: 'boot', calls in the booted kernel, '$ COMMAND' for "
                        "the kinst-emu shell, a C file and its arguments, or a Python file whose "
                        "function workload(machine) is called with the booted machine (required)")
    parser.add_argument("--memory", default="512M", metavar="SIZE",
                        help="guest RAM, in MiB or with a suffix K, M or G (default: %(default)s)")
    self_contained_option(parser)
    idle_option(parser)
    parser.add_argument("--limit", metavar="N",
                        help="abandon a boot, command or call after N instructions (default: "
                        f"{LIMIT:,}; {DEFAULT_LIMIT:,} for a call)")
    parser.add_argument("-q", "--quiet", action="store_true",
                        help="hide the guest's console (default: show it)")


def run(arguments: argparse.Namespace) -> int:
    """Run and record the workload, and return its exit status."""
    image = with_options(catalog.find(arguments.kernel, arguments.module), arguments)
    if arguments.write:
        raise KinstError("--write: cannot be used when recording, because a recording contains the "
                         "original disks; use kinst run to change the disk images")
    memory = parse_size(arguments.memory)
    limit = None if arguments.limit is None else parse_count(arguments.limit, "--limit")
    idle = parse_idle(arguments.idle)
    path, workload = arguments.output, arguments.workload
    boots, program = workload == BOOT, Path(workload) if workload.endswith(".py") else None
    function = None if program is None else load_program(program)
    command = workload[1:].strip() if workload.startswith("$") else None
    words = c_file_words(workload) if command is None else []
    source = Path(words[0]) if words else None
    if program is not None and function is not None:
        source = program_of(program, function)
    elif source is not None:
        command = shlex.join((f"/files/{source.stem}", *words[1:]))
    if command is not None:
        check_command(command)
    if source is not None:
        if arguments.files is not None:
            raise KinstError("--files: works only with a workload '$ COMMAND'")
        image = with_program(with_userland(image), source, arguments.static)
    elif command is not None:
        image = with_folder(with_userland(image), arguments.files)
    elif arguments.files is not None:
        raise KinstError("--files: works only with a workload '$ COMMAND'")
    prototypes = Prototypes(image)
    calls = None
    if not boots and program is None and command is None:
        calls = parse(workload)
        check(image, calls, prototypes)
    if boots:
        machine = UnicornMachine(image, memory)
        machine.boot()
    else:
        machine = booted(image, memory)
        if command is not None or source is not None:
            at_shell(machine)
        machine.console.text.clear()
    if not arguments.quiet:
        machine.console.stream = show_byte if command is None else shown_output(show_byte)
    ran = None
    try:
        with recorded(machine, path, BOOT if boots else BOOTED, workload,
                      self_contained=arguments.self_contained), \
                connected(machine, device_words(arguments)), \
                PROGRESS.working(f"recording {workload}"):
            if program is not None and function is not None:
                run_program(program, function, Kernel(image), machine)
            elif command is not None:
                ran = give_command(machine, command, limit or LIMIT, idle)
            elif calls is None:
                boot_to_prompt(machine, limit or LIMIT)
            else:
                evaluation = Evaluation(Caller(machine, limit or DEFAULT_LIMIT), prototypes)
                value = evaluation.run(calls)
                print(result_line(workload, machine, evaluation.kind, value))
    except CallError:
        print("".join(f"{line}\n" for line in failure(machine)), end="")
        raise
    return 0 if ran is None else ran.status or 0
