"""``kinst record``: record a boot, calls, a command or a program for replay."""

import argparse
from pathlib import Path

from kinst_emu.cli.boot_words import self_contained_option
from kinst_emu.runs.recorded_workload import record, workload_options
from kinst_emu.terminal.terminal import check_writable

EXAMPLES = (
    "kinst record -k kernel -o boot.rec boot",
    "kinst record -k kernel -o call.rec 'p = malloc(100, &M_TEMP, 2); free(p, &M_TEMP)'",
    "kinst record -k kernel -o typed.rec keys.py",
    "kinst record -k kernel -o ls.rec '$ ls /'",
    "kinst record -k kernel -o prog.rec 'prog.c 1 2'",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst record``."""
    workload_options(parser)
    parser.add_argument("-o", dest="output", type=Path, required=True, metavar="FILE",
                        help="write the recording to this file (required)")
    parser.add_argument("workload", metavar="WORKLOAD",
                        help="what to record: 'boot', calls in the booted kernel, '$ COMMAND' for "
                        "the kinst-emu shell, a C file and its arguments, or a Python file whose "
                        "function workload(machine) is called with the booted machine (required)")
    self_contained_option(parser)
    parser.add_argument("-q", "--quiet", action="store_true",
                        help="hide the guest's console (default: show it)")


def run(arguments: argparse.Namespace) -> int:
    """Run and record the workload, and return its exit status."""
    check_writable(arguments.output, "-o")
    return record(arguments, arguments.workload, arguments.output, arguments.quiet,
                  arguments.self_contained) or 0
