"""The ``kinst`` command: everything that is not tracing.

A subcommand is a module with ``EXAMPLES``, ``add_options(parser)`` and ``run(arguments)``, which
gives the exit status.  It is loaded when it is chosen: most need only a part of the house.
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

DESCRIPTION = "Boots FreeBSD kernels inside Python, and calls into them."
COMMANDS = {
    "boot": "boot a kernel to its prompt",
    "call": "call a function of the booted kernel",
    "run": "run a command in the kernel's user space",
    "record": "record a run: a boot, calls, a Python program",
    "replay": "play a recording again, to any position",
    "trace": "show an instruction trace: as text, calls, a flame graph, for Perfetto",
    "diff": "where two recorded runs part",
    "shell": "an interactive session: a kernel or a recording in Python, with D",
    "lesson": "the tutorial in a session: tasks, and whether they have been done",
    "explain": "explain one firing of a probe, step by step",
    "quiz": "exercises: what a breakpoint, a trap frame, a trampoline hold",
    "explore": "try the orders in which a few calls can run on several CPUs",
    "disas": "show a function's instructions and their verdicts",
    "inline": "list the inline copies of a function, or the inline calls in one",
    "line": "the code of a source line, or the source lines of an instruction",
    "xval": "compare calls on this machine and on QEMU",
    "type": "the layout of a type, the prototype of a function, a variable's type",
    "relocate": "test the displacement of every instruction",
    "report": "what sweeps have found (--store), and two of them compared",
    "trial": "judge a kinst module: what it decides, and what it does",
    "images": "list, add and fetch kernel images",
    "cache": "show or empty what is kept: booted kernels, indexes of debug data",
}
# They print what the guest says. Others print names, without what controls a terminal; a session in
# Python is the user's own.
OF_THE_GUEST = ("boot", "call", "run", "record", "replay")


def main() -> None:
    run_command("kinst", _main)


def _main() -> int:
    # Options come behind the command, so what is chosen is the first word.
    given = with_flags(sys.argv[1:])
    words = completed_words() or given
    chosen = next((word for word in words if not word.startswith("-")), "")
    parser, commands = _parser([chosen])
    complete(parser)
    arguments = parser.parse_args(given)
    refuse(arguments.command, arguments, commands[arguments.command].get_default)
    if arguments.command not in OF_THE_GUEST or arguments.raw:
        let_through()
    return int(_module(arguments.command).run(arguments))


def whole_parser() -> argparse.ArgumentParser:
    """All commands with all their options, for manuals; a command line needs one of them."""
    return _parser(COMMANDS)[0]


def _parser(wanted: Collection[str]
            ) -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """The parser of kinst, and that of each command.

    :param wanted: the commands that are to have their options.
    """
    parser = argparse.ArgumentParser(prog="kinst", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parser.add_argument("--version", action=_Version, nargs=0,
                        help="print the version, and those of the libraries that decide what a "
                        "run is")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if name in wanted:
            show_examples(command, text, _module(name).EXAMPLES)
            _module(name).add_options(command)
            if name in OF_THE_GUEST:
                command.add_argument("--raw", action="store_true", help=RAW)
    return parser, commands.choices


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        others = ", ".join(f"{name} {version(name)}"
                           for name in ("unicorn", "capstone", "keystone-engine"))
        print(f"kinst {version('kinst-emu')} ({others})")
        parser.exit()


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"kinst_emu.commands.{name}")


if __name__ == "__main__":
    main()
