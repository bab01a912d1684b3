"""Recording of a workload: a boot, calls, a command of the guest's shell, or a program."""

import argparse
import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dtrace.calls.c_file import c_file_words
from dtrace.calls.calls import Evaluation, check, parse
from dtrace.calls.prototypes import Prototypes, result_line
from dtrace.stacks.stack import failure
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from emu.machine.call import DEFAULT_LIMIT, Caller, CallError
from emu.replay.player import Player
from emu.replay.starts import BOOT, BOOTED
from emu.unicorn.machine import UnicornMachine
from images import catalog
from images.boots import LIMIT, boot_to_prompt, booted
from images.recordings import played
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
    change,
    files_option,
    idle_option,
    loader_options,
    parse_idle,
    set_option,
    static_option,
    with_options,
)
from kinst_emu.cli.completion import kernel_option
from kinst_emu.cli.device_words import connected, device_words
from kinst_emu.terminal.terminal import check_writable, parse_count, parse_size, show_byte

MEMORY = "512M"  # default size of the guest's RAM


def workload_options(parser: argparse.ArgumentParser, optional: str = "") -> None:
    """Add the options of a recorded workload, but for the workload itself.

    :param optional: help text for when the kernel may be left out; empty if it is required.
    """
    kernel_option(parser, optional)
    loader_options(parser)
    files_option(parser)
    static_option(parser)
    set_option(parser)
    parser.add_argument("--memory", default=MEMORY, metavar="SIZE",
                        help="guest RAM, in MiB or with a suffix K, M or G (default: %(default)s)")
    idle_option(parser)
    parser.add_argument("--limit", metavar="N",
                        help="abandon a boot, command or call after N instructions (default: "
                        f"{LIMIT:,}; {DEFAULT_LIMIT:,} for a call)")


def short_workload_options(parser: argparse.ArgumentParser, optional: str = "") -> None:
    """Add those options of a workload that say what runs, for a command with options of its own.

    ``with_defaults`` adds the rest of ``workload_options``.

    :param optional: help text for when the kernel may be left out; empty if it is required.
    """
    kernel_option(parser, optional)
    loader_options(parser)
    files_option(parser)
    static_option(parser)
    idle_option(parser)


def with_defaults(arguments: argparse.Namespace, what: str) -> argparse.Namespace:
    """Return the options of ``played_workload`` for a command that has only some of them.

    The guest's console is hidden while the workload is recorded.

    :param arguments: the kernel, and options of ``short_workload_options``, if the command has any.
    :param what: a recording or a workload.
    """
    return argparse.Namespace(**vars(_defaults()) | {"limit": None} | vars(arguments)
                              | {"what": what, "output": None, "json": True, "set": [],
                                 "memory": MEMORY})


def record(arguments: argparse.Namespace, workload: str, path: Path, quiet: bool = False,
           self_contained: bool = False, said: bool = True) -> int | None:
    """Run and record a workload.

    :param arguments: the options of ``workload_options``.
    :param quiet: hide the guest's console.
    :param said: print the result of calls, and how to replay the recording.
    :return: the exit status of a command; None for other workloads, or if it is unknown.
    """
    image = with_options(catalog.find(arguments.kernel, arguments.module), arguments)
    if arguments.write:
        raise KinstError("--write: cannot be used when recording, because a recording contains the "
                         "original disks; use kinst run to change the disk images")
    memory = parse_size(arguments.memory)
    limit = None if arguments.limit is None else parse_count(arguments.limit, "--limit")
    idle = parse_idle(arguments.idle)
    if arguments.set and workload == BOOT:
        raise KinstError("--set: works only with a workload after the boot")
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
    if not quiet:
        machine.console.stream = show_byte if command is None else shown_output(show_byte)
    ran = None
    try:
        with recorded(machine, path, BOOT if boots else BOOTED, workload,
                      quiet=not said, self_contained=self_contained), \
                connected(machine, device_words(arguments)), \
                PROGRESS.working(f"recording {workload}"):
            change(machine, arguments.set)
            if program is not None and function is not None:
                run_program(program, function, Kernel(image), machine)
            elif command is not None:
                ran = give_command(machine, command, limit or LIMIT, idle)
            elif calls is None:
                boot_to_prompt(machine, limit or LIMIT)
            else:
                evaluation = Evaluation(Caller(machine, limit or DEFAULT_LIMIT), prototypes)
                value = evaluation.run(calls)
                if said:
                    print(result_line(workload, machine, evaluation.kind, value))
    except CallError:
        print("".join(f"{line}\n" for line in failure(machine)), end="")
        raise
    return None if ran is None else ran.status


def is_recording(what: str) -> bool:
    """Return whether a word is the file of a recording, and not a workload."""
    return (not what.startswith("$") and not what.endswith((".c", ".py"))
            and (os.path.isfile(what) or (what.endswith(".rec") and not c_file_words(what))))


def record_to_end(arguments: argparse.Namespace, workload: str, path: Path) -> None:
    """Record a workload for a command that looks at the recording; a panic may end it.

    :raises CallError: if there is no recording.
    """
    try:
        record(arguments, workload, path, quiet=arguments.json, said=False)
    except CallError:
        if not path.is_file():
            raise


def refuse_for_recording(arguments: argparse.Namespace, what: str) -> None:
    """Refuse options that say what a workload runs on, which a recording has in it.

    :raises KinstError: naming the option.
    """
    for name, value in vars(_defaults()).items():
        if name not in ("kernel", "module") and getattr(arguments, name, value) != value:
            raise KinstError(f"--{name.replace('_', '-')}: {what} is a recording already, with the "
                             "machine that it was made on")


def _defaults() -> argparse.Namespace:
    """Return the default values of ``short_workload_options``."""
    parser = argparse.ArgumentParser()
    short_workload_options(parser)
    return parser.parse_args(["-k", ""])


@contextmanager
def played_workload(arguments: argparse.Namespace) -> Iterator[Player]:
    """Return a player of the recording ``arguments.what``, or of the workload of that name.

    A workload is run and recorded first, to ``arguments.output`` or to a file that is deleted at
    the end.

    :param arguments: the options of ``workload_options``, ``what``, ``output`` and ``json``.
    :raises KinstError: if the options contradict each other, or the workload cannot be run.
    """
    what, output = arguments.what, arguments.output
    limit = LIMIT if arguments.limit is None else parse_count(arguments.limit, "--limit")
    if is_recording(what):
        if output is not None:
            raise KinstError(f"-o {output}: {what} is a recording already")
        if arguments.set:
            raise KinstError(f"--set: {what} is a recording already; see kinst replay --set")
        refuse_for_recording(arguments, what)
        yield played(Path(what), arguments.kernel, limit, arguments.module)
        return
    if arguments.kernel is None:
        raise KinstError(f"{what}: is not a recording; to run it, give a kernel with -k")
    if output is not None:
        check_writable(output, "-o")
    with tempfile.TemporaryDirectory(prefix="kinst-") as directory:
        path = output or Path(directory) / "workload.rec"
        try:
            record_to_end(arguments, what, path)
            yield played(path, arguments.kernel, limit, arguments.module)
        except KinstError as error:  # name the workload, not a file that is about to be deleted
            if output is not None or str(path) not in str(error):
                raise
            raise KinstError(str(error).replace(str(path), what)) from None
