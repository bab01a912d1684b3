"""Rules for options that exclude or require each other, in kdtrace and the commands of kinst.

A command line is checked against these rules before the command starts.  Conflicts that depend on
more than the presence of options are checked by the command.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from emu.host.errors import KinstError


@dataclass(frozen=True)
class Rule:
    """Rule about options that exclude or require other options, with its error message.

    Options are named as in the parsed arguments.

    :param says: the error message.
    :param beside: options that conflict with ``options``.
    :param without: options of which at least one is required, when ``beside`` is empty.
    """

    options: tuple[str, ...]
    says: str
    beside: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


def _each(options: str, says: str, beside: str = "", without: str = "") -> tuple[Rule, ...]:
    """Return a rule for each option, made from a message with a placeholder for the option."""
    return tuple(Rule((one,), says.format(SPELLED.get(one, "--" + one.replace("_", "-"))),
                      tuple(beside.split()), tuple(without.split())) for one in options.split())


SPELLED = {"runs": "--run", "probes": "--probe", "call": "-c", "clause": "-n", "workload": "-c",
           "listing": "-l", "compile_only": "-e"}
SCHEDULED = ("--schedule: defines its own workload and CPUs; leave out -c, --replay, --disk, "
             "--base, --single, --multi, --date, --net, --entropy, --serial and --cpus (except "
             "--cpus 1)")
RULES: dict[str, tuple[Rule, ...]] = {
    "explain": (
        *_each("at", "{}: works only with --svg", without="svg"),
        *_each("steps what_if", "{}: cannot be used with --svg, which draws the firing unchanged",
               "svg"),
        *_each("steps what_if", "{}: cannot be used with --gif, which draws the firing unchanged",
               "gif"),
        *_each("call arch clause what_if sources json svg gif disk base single multi date net",
               "{}: cannot be used with --run and --schedule", "runs schedule"),
        *_each("disk base single multi date net", "{}: cannot be used with --arch, which selects "
               "the teaching kernels", "arch"),
    ),
    "explore": (
        *_each("jobs", "{}: cannot be used with --cluster", "cluster"),
        *_each("runs setup check preemptions strategy no_races all_findings schedule record probes "
               "trampolines junit html sources", "{}: cannot be used with --pairs", "pairs"),
        *_each("schedules store", "{}: works only with --pairs", without="pairs"),
        *_each("trampolines", "{}: works only with --probe", without="probes"),
        *_each("cluster", "{}: cannot be used with --schedule, which runs one schedule",
               "schedule"),
        *_each("sources", "{}: works only with --html", without="html"),
        *_each("record", "{}: cannot be used with --probe: recordings do not contain breakpoints",
               "probes"),
    ),
    "kdtrace": (
        Rule(("tracks",), "--tracks: records its own trace; leave out probes, -l, -e, --json, "
             "--stack, --report and --emit-elf",
             ("programs", "listing", "compile_only", "json", "stack", "report", "emit_elf")),
        Rule(("runs", "setup"), "--run, --setup: work only with --schedule; kinst explore finds a "
             "schedule",
             without=("schedule",)),
        Rule(("schedule",), SCHEDULED,
             ("replay", "workload", "disk", "base", "single", "multi", "date", "net", "entropy",
              "serial")),
        *_each("listing compile_only", "--report: needs a trace, and {} does not run one",
               "report"),
        *_each("sources", "{}: works only with --report", without="report"),
        Rule(("header", "link"), "-h, -G: write a file for programs with probes and do not trace; "
             "leave out -c, -l, -e, -S, --replay, --report, --json and --emit-elf",
             ("workload", "listing", "compile_only", "show_code", "replay", "report", "json",
              "emit_elf")),
        Rule(("header",), "-h and -G: give only one", ("link",)),
        *_each("memory workload disk base single multi date net entropy serial cpus",
               "{}: cannot be used with --replay, which runs the recording on the machine it was "
               "made on", "replay"),
        # --machine counts as given only with qemu, since unicorn is its default.
        Rule(("disk", "base", "single", "multi", "process"), "--machine qemu: cannot be used with "
             "--disk, --base, --single, --multi or -p (it runs no programs)", ("machine",)),
        Rule(("date",), "--machine qemu: cannot be used with --date (QEMU has its own clock)",
             ("machine",)),
        *_each("net entropy serial", "--machine qemu: cannot be used with {} (QEMU has its own "
               "devices)", "machine"),
        Rule(("digest", "replay", "schedule", "report"), "--machine qemu: cannot be used with "
             "--digest, --replay, --schedule or --report (QEMU has its own devices and clock)",
             ("machine",)),
        Rule(("unsafe", "limit"), "--machine qemu: cannot be used with --unsafe (a probe on the "
             "code that delivers breakpoints would never return) or --limit (QEMU does not count "
             "instructions; a call is stopped after a minute without output)", ("machine",)),
    ),
    "quiz": (
        Rule(("html", "json"), "--html, --json: work only with a sheet; give --sheet N",
             without=("sheet",)),
        Rule(("sheet",), "--sheet and --questions both set the number of questions; give only one",
             ("questions",)),
    ),
    "relocate": (
        Rule(("program",), "--program: tests the code of that file; leave out -k, --module, "
             "FUNCTION, --encodings and --assemble",
             ("kernel", "function", "module", "encodings", "assemble")),
        Rule(("encodings",), "give --encodings or --assemble, not both", ("assemble",)),
        *_each("encodings assemble", "{} needs --arch amd64, arm64 or riscv64", without="arch"),
        *_each("encodings assemble", "{} does not test a kernel; leave out -k, --module and "
               "FUNCTION", "kernel function module"),
        *_each("jobs", "{} runs on this machine, --cluster on others; give only one", "cluster"),
    ),
    "report": (
        *_each("compare", "{} compares builds in one file; leave out the other file", "other"),
    ),
    "trial": (
        *_each("jobs", "{} runs on this machine, --cluster on others; give only one", "cluster"),
    ),
    "xval": (
        *_each("call", "give -c, or --functions and --random, not both", "functions random"),
        *_each("jobs", "{} runs on this machine, --cluster on others; give only one", "cluster"),
    ),
}


def refuse(command: str, arguments: argparse.Namespace, default: Callable[[str], object]) -> None:
    """Refuse a command line that breaks a rule of its command.

    :param default: returns the default value of an option, by its name in the parsed arguments.
    :raises KinstError: with the message of the first rule that is broken.
    """
    def given(names: tuple[str, ...]) -> bool:
        return any(value is not None and value is not False and value != []
                   and value != default(name)
                   for name in names for value in [getattr(arguments, name)])

    for rule in RULES.get(command, ()):
        if given(rule.options) and (given(rule.beside) if rule.beside else
                                    not given(rule.without)):
            raise KinstError(rule.says)
