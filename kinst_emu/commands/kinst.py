"""The ``kinst`` command, whose subcommands do everything except tracing (see ``kdtrace``).

A subcommand is a module with ``EXAMPLES``, ``add_options(parser)`` and ``run(arguments)``, which
returns the exit status.  Only the chosen module is imported, because most need few libraries.
"""

import argparse
import importlib
import sys
from collections.abc import Collection, Mapping
from types import ModuleType

from kinst_emu.cli.boot_flags import with_flags
from kinst_emu.cli.completion import complete, completed_words
from kinst_emu.cli.conflicts import refuse
from kinst_emu.cli.examples import show_examples
from kinst_emu.terminal.terminal import RAW, let_through, run_command

DESCRIPTION = ("Boot FreeBSD kernels inside Python; record, explain, explore and test what they "
               "do. kdtrace traces them with D.")
COMMANDS = {
    "boot": "boot a kernel to its prompt",
    "call": "call a function of the booted kernel",
    "run": "run a command in the kernel's user space",
    "record": "record a boot, calls or a program for replay",
    "locks": "show the locks that a run acquires and releases",
    "path": "walk through a call in a recorded run, as a page or as text",
    "why": "find out why a system call failed, or why something else happened in a run",
    "replay": "play a recording to its end or to any position",
    "trace": "show an instruction trace as text, calls or a flame graph, or convert it to Perfetto",
    "diff": "find where two recorded runs diverge",
    "shell": "start an interactive Python session on a kernel or a recording, with D",
    "lesson": "take the interactive tutorial, which checks every task",
    "explain": "explain one firing of a probe, step by step",
    "quiz": "answer exercises about breakpoints, trap frames and trampolines",
    "coverage": "count the source lines, functions and branches that runs execute",
    "explore": "search the interleavings of a few calls on several CPUs for failures",
    "disas": "show a function's instructions and their verdicts",
    "inline": "list the inline copies of a function, or the inline calls in a function",
    "line": "show the code of a source line, or the source lines of an instruction",
    "xval": "compare calls on kinst-emu's machine with QEMU, or D programs with dtrace(1)",
    "type": "show the layout of a type, the prototype of a function, or a variable's type",
    "relocate": "test every displaced instruction against its execution in place",
    "report": "show the results of sweeps (--store), or compare two of them",
    "trial": "test a kinst module: its verdicts and its execution",
    "images": "list, add, fetch and build kernel images",
    "doctor": "show what is installed, what is missing for which command, and the caches",
    "cache": "show or clear the cache of booted kernels, debug data indexes and recorded states",
}
# These commands print guest output, which is filtered unless --raw is given.  The other commands
# print names that are already free of control sequences, or run the user's own Python session.
OF_THE_GUEST = ("boot", "call", "run", "record", "replay")


def main() -> None:
    """Run the ``kinst`` command."""
    run_command("kinst", _main)


def _main() -> int:
    # Options follow the command, so the first word without a dash is the command.
    given = with_flags(sys.argv[1:])
    words = completed_words() or given
    chosen = next((word for word in words if not word.startswith("-")), "")
    # Parsers of other commands are only needed for the help of kinst itself and for completion.
    only = chosen in COMMANDS and words is given and given[0] == chosen
    parser, commands = _parser([chosen], [chosen] if only else COMMANDS)
    complete(parser)
    arguments = parser.parse_args(given)
    refuse(arguments.command, arguments, commands[arguments.command].get_default)
    if arguments.command not in OF_THE_GUEST or arguments.raw:
        let_through()
    return int(_module(arguments.command).run(arguments))


def whole_parser() -> argparse.ArgumentParser:
    """Return the parser with the options of all commands, from which manuals are generated."""
    return _parser(COMMANDS, COMMANDS)[0]


def _parser(wanted: Collection[str], names: Collection[str]
            ) -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Return the parser of kinst, and the parser of each command.

    :param wanted: names of the commands whose options are added.
    :param names: names of the commands that get a parser.
    """
    parser = argparse.ArgumentParser(prog="kinst", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parser.add_argument("--version", action=_Version, nargs=0,
                        help="print the versions of kinst and of the libraries that affect "
                        "results, and exit (default: off)")
    for name in names:
        text = COMMANDS[name]
        command = commands.add_parser(name, help=text)
        if name in wanted:
            show_examples(command, text, _module(name).EXAMPLES)
            _module(name).add_options(command)
            if name in OF_THE_GUEST:
                command.add_argument("--raw", action="store_true", help=RAW)
    return parser, commands.choices


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version

        found = []
        for name in ("unicorn", "capstone", "keystone-engine"):
            try:
                found.append(f"{name} {version(name)}")
            except PackageNotFoundError:
                continue  # keystone is optional
        others = ", ".join(found)
        print(f"kinst {version('kinst-emu')} ({others})")
        parser.exit()


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"kinst_emu.commands.{name}")


if __name__ == "__main__":
    main()
