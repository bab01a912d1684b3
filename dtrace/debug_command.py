"""``kinst inline``, ``line`` and ``type`` alone: they start without the machine's libraries."""

import argparse
from collections.abc import Callable

from dtrace import inline_command, line_command, type_command
from dtrace.terminal import run_command

COMMANDS = {"inline": inline_command, "line": line_command, "type": type_command}


def main() -> None:
    run_command("kinst", _main)


def _main() -> int:
    parser = argparse.ArgumentParser(prog="kinst")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module in COMMANDS.items():
        module.add_options(commands.add_parser(name))
    arguments = parser.parse_args()
    run: dict[str, Callable[[argparse.Namespace], int]] = {
        name: module.run for name, module in COMMANDS.items()}
    return run[arguments.command](arguments)
