"""Options that cannot be given together, and those that go with others only: one table for kdtrace
and the commands of kinst.

A command line is held to it before the command begins.  What depends on more than which
options are given is checked by the command.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from emu.host.errors import KinstError


@dataclass(frozen=True)
class Rule:
    """An error when one of ``options`` is given, beside one of ``beside`` or without all of
    ``without``.  Options are named as in the parsed arguments.

    :param says: the error.
    """

    options: tuple[str, ...]
    says: str
    beside: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


def _each(options: str, says: str, beside: str = "", without: str = "") -> tuple[Rule, ...]:
    """A rule for each option, whose spelling is put into the error."""
    return tuple(Rule((one,), says.format(SPELLED.get(one, "--" + one.replace("_", "-"))),
                      tuple(beside.split()), tuple(without.split())) for one in options.split())


SPELLED = {"runs": "--run", "probes": "--probe", "call": "-c", "clause": "-n", "workload": "-c",
           "listing": "-l", "compile_only": "-e"}
SCHEDULED = ("--schedule: has its own workload and CPUs; leave out -c, --replay, --disk, and "
             "--cpus but for --cpus 1")
RULES: dict[str, tuple[Rule, ...]] = {
    "explain": (
        *_each("at", "{}: is for --svg", without="svg"),
        *_each("steps what_if", "{}: not with --svg, which draws the firing as it was", "svg"),
        *_each("steps what_if", "{}: not with --gif, which draws the firing as it was", "gif"),
        *_each("call arch clause what_if sources json svg gif",
               "{}: not with --run and --schedule", "runs schedule"),
    ),
    "explore": (
        *_each("jobs", "{}: not with --cluster", "cluster"),
        *_each("runs setup check preemptions strategy no_races all_findings schedule record probes "
               "trampolines junit html sources", "{}: cannot be used with --pairs", "pairs"),
        *_each("orders store", "{}: is for --pairs", without="pairs"),
        *_each("trampolines", "{}: is for --probe", without="probes"),
        *_each("cluster", "{}: --schedule is one order; leave it out", "schedule"),
        *_each("sources", "{}: is for --html", without="html"),
        *_each("record", "{}: not with --probe: the breakpoints are no part of a recording",
               "probes"),
    ),
    "kdtrace": (
        Rule(("tracks",), "--tracks: is a trace of its own; give no probes, -l, -e, --json, "
             "--stack, --report or --emit-elf with it",
             ("programs", "listing", "compile_only", "json", "stack", "report", "emit_elf")),
        Rule(("runs", "setup"), "--run, --setup: are for --schedule; kinst explore finds one",
             without=("schedule",)),
        Rule(("schedule",), SCHEDULED, ("replay", "workload", "disk")),
        *_each("listing compile_only", "--report: is of a trace, and {} makes none", "report"),
        *_each("sources", "{}: is for --report", without="report"),
        *_each("memory workload disk cpus", "{}: cannot be used with --replay, which runs the "
               "recording, on the recording's own machine", "replay"),
        # unicorn is the default: --machine counts as given with qemu only.
        Rule(("disk", "process"), "--machine qemu: no --disk or -p (it runs no programs)",
             ("machine",)),
        Rule(("digest", "replay", "schedule", "report"), "--machine qemu: no --digest, --replay, "
             "--schedule or --report (its devices and its clock are its own)", ("machine",)),
        Rule(("unsafe", "limit"), "--machine qemu: no --unsafe (a probe on the breakpoints' own "
             "path would never end there) and no --limit (QEMU does not count instructions; a call "
             "is given up after a minute)", ("machine",)),
    ),
    "quiz": (
        Rule(("html", "json"), "--html and --json are for a sheet: give --sheet N",
             without=("sheet",)),
        Rule(("sheet",), "--sheet and --questions both say how many: give only one",
             ("questions",)),
    ),
    "relocate": (
        Rule(("program",), "--program tests the code of that file: leave out -k, --module, "
             "FUNCTION, --encodings and --assemble",
             ("kernel", "function", "module", "encodings", "assemble")),
        Rule(("encodings",), "give --encodings or --assemble, not both", ("assemble",)),
        *_each("encodings assemble", "{} needs --arch amd64, arm64 or riscv64", without="arch"),
        *_each("encodings assemble", "{} tests no kernel: leave out -k, --module and FUNCTION",
               "kernel function module"),
        *_each("jobs", "{} is for this machine, --cluster for others: give only one", "cluster"),
    ),
    "report": (
        *_each("compare", "{} is for builds of one file: leave out the other file", "other"),
    ),
    "trial": (
        *_each("jobs", "{} is for this machine, --cluster for others: give only one", "cluster"),
    ),
    "xval": (
        *_each("call", "give -c, or --functions and --random, not both", "functions random"),
        *_each("jobs", "{} is for this machine, --cluster for others: give only one", "cluster"),
    ),
}


def refuse(command: str, arguments: argparse.Namespace, default: Callable[[str], object]) -> None:
    """Hold a command line to the rules of its command.

    :param default: gives what an option is when it is not given.
    :raises KinstError: of the first rule that it breaks.
    """
    def given(names: tuple[str, ...]) -> bool:
        return any(value is not None and value is not False and value != []
                   and value != default(name)
                   for name in names for value in [getattr(arguments, name)])

    for rule in RULES.get(command, ()):
        if given(rule.options) and (given(rule.beside) if rule.beside else
                                    not given(rule.without)):
            raise KinstError(rule.says)
