"""``kinst inline``, ``line`` and ``type`` alone: they start without the machine's libraries."""

import argparse
import importlib
import sys

from dtrace.terminal import run_command


def main() -> None:
    run_command("kinst", _main)


def _main() -> int:
    module = importlib.import_module(f"dtrace.{sys.argv[1]}_command")
    parser = argparse.ArgumentParser(prog=f"kinst {sys.argv[1]}", description=module.__doc__)
    module.add_options(parser)
    return int(module.run(parser.parse_args(sys.argv[2:])))
