"""The ``kinst`` command: everything that is not tracing.

A subcommand is a module with ``add_options(parser)`` and ``run(arguments)``, which gives the exit
status.  It is loaded when it is chosen: most need only a part of the house.
"""

import argparse
import importlib
import sys
from types import ModuleType

from kinst_emu.terminal import run_command

COMMANDS = {
    "boot": "boot a kernel to its prompt",
    "call": "call a function of the booted kernel",
    "disas": "show a function's instructions and their verdicts",
    "inline": "list the inline copies of a function, or the inline calls in one",
    "line": "the code of a source line, or the source lines of an instruction",
    "xval": "compare calls on our machine and on QEMU",
    "type": "the layout of a type, the prototype of a function, a variable's type",
    "relocate": "test the displacement of every instruction",
    "images": "list, add and fetch kernel images",
}


def main() -> None:
    run_command("kinst", _main)


def _main() -> int:
    parser = argparse.ArgumentParser(
        prog="kinst", description="Boots FreeBSD kernels inside Python, and calls into them."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    # Options come behind the command, so what is chosen is the first word.
    chosen = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if name == chosen:
            command.description = _module(name).__doc__
            _module(name).add_options(command)
    arguments = parser.parse_args()
    return int(_module(arguments.command).run(arguments))


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"kinst_emu.commands.{name}")


if __name__ == "__main__":
    main()
