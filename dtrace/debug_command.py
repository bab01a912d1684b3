"""``kinst inline`` and ``kinst line`` by themselves: they start without the machine's libraries."""

import argparse

from dtrace import inline_command, line_command
from dtrace.terminal import run_command

COMMANDS = {"inline": inline_command, "line": line_command}


def main() -> None:
    run_command("kinst", _main)


def _main() -> int:
    parser = argparse.ArgumentParser(prog="kinst")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module in COMMANDS.items():
        module.add_options(commands.add_parser(name))
    arguments = parser.parse_args()
    if arguments.command == "inline":
        return inline_command.run(arguments)
    return line_command.run(arguments)
