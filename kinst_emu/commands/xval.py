"""``kinst xval``: compare calls with the same calls on QEMU, or D programs with dtrace(1)."""

import argparse
import json
import random
import shlex
import sys
from collections.abc import Iterator
from typing import Any

from dtrace.calls.calls import check, parse
from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.host.errors import KinstError
from emu.host.fingerprint import fingerprint, machine_modules
from images import catalog
from images.shell import with_test_program
from images.systems import with_disks
from kinst.providers.patterns import is_glob, matches
from kinst.verify.crosscheck import call_table, system_call_table
from kinst.verify.crosscheck.agreement import Agreement
from kinst.verify.crosscheck.faults import FAULTS
from kinst.verify.sweep.store import Key
from kinst.verify.sweep.sweep import sweep
from kinst.verify.sweep.task import carry_out
from kinst.verify.sweep.workers import Here
from kinst_emu.cli.boot_words import base_option
from kinst_emu.cli.completion import kernel_option
from kinst_emu.cli.judged_probes import DEFAULT_FUNCTIONS, compare_probes, refuse_for_probes
from kinst_emu.cli.judged_programs import judge_programs, refuse_others
from kinst_emu.cli.judged_suite import refuse_for_suite, run_suite
from kinst_emu.cli.sweeps import Sweep, compiler_of, progress_bar, sweep_options
from kinst_emu.cli.xvals import DIFFERS, WAITED, Checked, CrosscheckTask, Pair
from kinst_emu.terminal.terminal import parse_count, parse_size, progress

CHUNK = 5  # number of calls per work item
# Packages on which a result depends, in addition to those of the architecture.
MADE_BY = ("emu.qemu", "kinst.relocation", "kinst.code", "kinst.probes", "kinst.providers",
           "kinst.verify.crosscheck")
DEFAULT_CALLS, MAX_CALLS, MAX_REPORTS = 20, 100_000, 10

EXAMPLES = (
    "kinst xval -k teaching/arm64 -c 'strlen(\"hello\")'",
    "kinst xval -k kernel --functions 'str*' --random 50",
    "kinst xval -k kernel --system --random 100",
    "kinst xval -k 15.0-RELEASE/amd64 --base --system --random 100",
    "kinst xval -k 15.0-RELEASE/amd64 --base --dtrace --random 100",
    "kinst xval -k 15.0-RELEASE/amd64 --base --dtrace counts.d -c '$ ls /'",
    "kinst xval -k 15.0-RELEASE/amd64 --base --dtrace --probes",
    "kinst xval -k teaching/amd64 -c 'strtoul(\"12\", 0, 10)' --fault emulation",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst xval``."""
    kernel_option(parser)
    base_option(parser)
    parser.add_argument("-c", dest="call", metavar="CALL",
                        help="call to compare, e.g. 'strlen(\"hello\")'; with --dtrace SCRIPT, a "
                        "command of the guest's shell, like '$ ls /', that runs while both trace "
                        "(default: random calls from the table of calls; no command)")
    parser.add_argument("--functions", metavar="NAMES",
                        help="select random calls of only these functions, given as names or shell "
                        "patterns, separated by commas (default: all functions in the table)")
    parser.add_argument("--random", metavar="N",
                        help=f"number of random calls; with --dtrace, of random programs; with "
                        f"--probes, of random functions (default: {DEFAULT_FUNCTIONS}) "
                        f"(default: {DEFAULT_CALLS}; with --functions, one call of each function)")
    parser.add_argument("--system", action="store_true",
                        help="select random system calls, such as sys_getpid(), from a separate "
                        "table; a program makes the calls in user mode (default: kernel functions)")
    parser.add_argument("--dtrace", nargs="*", metavar="SCRIPT",
                        help="compare kdtrace with the dtrace(1) of the base system instead: run "
                        "D programs, files or all *.d files of a directory, by both; without "
                        "scripts, run --random programs (default: compare the machine with QEMU)")
    parser.add_argument("--probes", action="store_true",
                        help="with --dtrace: compare the lists of probes, their arguments and "
                        "stability, and the kinst probes of --random functions (default: compare "
                        "programs)")
    parser.add_argument("--suite", action="store_true",
                        help="with --dtrace DIRECTORY: run the tests of DTrace's public test suite "
                        "in the directory by both tracers (default: compare programs)")
    parser.add_argument("--seed", metavar="S",
                        help="random seed for selecting calls, or seed of the first random "
                        "program (default: a random seed, which is printed)")
    parser.add_argument("--memory", default="512M", metavar="SIZE",
                        help="guest RAM, in MiB or with a suffix K, M or G (default: %(default)s)")
    parser.add_argument("--fault", choices=FAULTS, default="",
                        help="inject a fault into the Unicorn machine, to check that the "
                        "comparison finds it (default: no fault)")
    sweep_options(parser)
    parser.add_argument("--json", action="store_true",
                        help="print the outcome as JSON (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """Compare the calls, print the divergences, and return the exit status."""
    if arguments.probes:
        refuse_for_probes(arguments)
    if arguments.suite:
        refuse_for_suite(arguments)
    if arguments.dtrace is not None:
        refuse_others(arguments)
    image = with_disks(catalog.find(arguments.kernel, arguments.module), [], arguments.base)
    if arguments.dtrace is not None:
        compare = (compare_probes if arguments.probes else run_suite if arguments.suite
                   else judge_programs)
        return compare(image, parse_size(arguments.memory), _seed(arguments), arguments)
    if arguments.system:
        image = with_test_program(image)
    memory = parse_size(arguments.memory)
    seed = _seed(arguments)
    calls = _calls(image, arguments, seed)
    for call in calls:
        check(image, parse(call))
    pair = Pair(str(image.path.absolute()), tuple(str(m.path.absolute()) for m in image.modules),
                memory, arguments.fault, image.identity, arguments.system, arguments.base)
    agreed, reports = Agreement(), list[dict[str, Any]]()
    problems, waited = list[str](), list[str]()
    with Sweep(arguments) as jobs:
        for checked in _checked(pair, image, calls, jobs):
            agreed.add(checked.agreed)
            if checked.word == DIFFERS:
                reports.append(checked.report)
                if not arguments.json:
                    print("\n".join(_text(arguments, checked.report)))
                if len(reports) == MAX_REPORTS:
                    break
            elif checked.problem:
                (waited if checked.word == WAITED else problems).append(checked.problem)
    if arguments.json:
        print(json.dumps(_summary(agreed, reports, seed)
                         | {"not_compared": problems, "waited_too_long": waited}))
    elif agreed.calls or reports:
        _print_summary(agreed, len(reports), None if arguments.call else seed)
    for problem in problems + waited:
        print(f"kinst: {problem}", file=sys.stderr)
    return 1 if reports or problems or waited or not agreed.calls else 0


def _seed(arguments: argparse.Namespace) -> int:
    return (random.SystemRandom().randrange(1, 1 << 31) if arguments.seed is None
            else parse_count(arguments.seed, "--seed"))


def _checked(pair: Pair, image: Image, calls: list[str], jobs: Sweep) -> Iterator[Checked]:
    """Yield the outcome of each call as soon as it is known."""
    task = CrosscheckTask(pair)
    if isinstance(jobs.workers, Here) and jobs.store is None:
        for call in progress(calls, "calls"):
            yield from carry_out(task, [call])
        return
    arch = arch_of(image).name
    made_by = fingerprint(
        (*machine_modules(arch), *MADE_BY, f"kinst.{arch}", f"emu.qemu.{arch}"), ("unicorn",))
    key = Key("xval", f"{made_by}{f' with the fault {pair.fault}' * bool(pair.fault)} "
              f"{image.identity} with {pair.memory >> 20} MB{' of a base system' * pair.base}"
              f"{' from a program' * pair.system}", arch, 0, 0)
    distinct = list(dict.fromkeys(calls))
    if jobs.store is not None:
        jobs.store.begin(key, image.identity, pair.kernel, compiler_of(image.path),
                         {call.encode(): call.partition("(")[0] for call in distinct})
    with progress_bar(len(distinct), "calls") as advance:
        for found in sweep(task, distinct, jobs.workers, jobs.store, key, CHUNK, most=1):
            yield from found
            advance(len(found))


def _calls(image: Image, arguments: argparse.Namespace, seed: int) -> list[str]:
    if arguments.call is not None:
        return [arguments.call]
    entries = call_table.available(image, system_call_table.ENTRIES if arguments.system
                                   else call_table.ENTRIES)
    if arguments.functions is not None:
        wanted = [name for name in arguments.functions.split(",") if name]
        if not wanted:
            raise KinstError("--functions: give names, separated by commas")
        for name in wanted:
            if not any(matches(name, entry.function) for entry in entries):
                kind = "pattern" if is_glob(name) else "function"
                raise KinstError(f"--functions: {kind} '{name}' matches nothing in the table of "
                                 "calls for this kernel; give the whole call with -c")
        entries = [e for e in entries if any(matches(name, e.function) for name in wanted)]
    if not entries:
        raise KinstError(f"{image.path}: the kernel has no function from the table of calls; give "
                         "a call with -c")
    count = len(entries) if arguments.functions is not None else DEFAULT_CALLS
    if arguments.random is not None:
        count = parse_count(arguments.random, "--random")
    if count > MAX_CALLS:
        raise KinstError(f"--random {count}: at most {MAX_CALLS} calls are allowed")
    generator = random.Random(seed)
    # Select every function once before selecting any function again.
    drawn: list[call_table.CallEntry] = []
    while len(drawn) < count:
        drawn += generator.sample(entries, min(len(entries), count - len(drawn)))
    return [call_table.call(entry, generator) for entry in drawn]


# -- reports --------------------------------------------------------------------------------------


def _text(arguments: argparse.Namespace, report: dict[str, Any]) -> list[str]:
    lines = [f"the machines differ: {report['call']}", f"  {report['what']}"]
    where = f"{report.get('where', hex(report['address']))}: {report.get('instruction', '')}"
    lines.append(f"  {where}  {report.get('line', '')}".rstrip())
    if report["registers"]:
        width = max(len(row["name"]) for row in report["registers"])
        lines.append(f"  {'':{width}}  {'ours':<16}  QEMU")
        for row in report["registers"]:
            ours, theirs = row["ours"], row["qemu"]
            mark = "  <" if ours != theirs else ""
            lines.append(f"  {row['name']:{width}}  {ours:016x}  {theirs:016x}{mark}")
    lines.append(f"  to repeat: kinst xval -k {shlex.quote(arguments.kernel)} "
                 + "--base " * arguments.base + "--system " * arguments.system
                 + f"-c {shlex.quote(str(report['call']))}"
                 + (f" --fault {arguments.fault}" if arguments.fault else ""))
    return lines


def _summary(agreed: Agreement, reports: list[dict[str, Any]], seed: int) -> dict[str, object]:
    return {
        "seed": seed, "calls": agreed.calls, "functions": sorted(agreed.functions),
        "instructions": agreed.instructions, "firings": agreed.firings,
        "encodings": {name: len(codes) for name, codes in sorted(agreed.encodings.items())},
        "breakpoint_bytes": dict(agreed.lengths), "refused": agreed.refused,
        "model_differences": dict(agreed.reasons), "divergences": reports,
    }


def _print_summary(agreed: Agreement, divergences: int, seed: int | None) -> None:
    print(f"{agreed.calls} calls agree, in {len(agreed.functions)} functions"
          + ("" if seed is None else f" (seed {seed})")
          + (f"; {divergences} differ" if divergences else ""))
    print(f"  {agreed.instructions} instructions in lockstep")
    kinds = ", ".join(f"{len(codes)} {name}" for name, codes in sorted(agreed.encodings.items()))
    print(f"  {agreed.firings} firings on both machines, of {agreed.distinct()} distinct encodings"
          + (f": {kinds}" if kinds else ""))
    if len(agreed.lengths) > 1:
        print("  breakpoints: " + ", ".join(
            f"{count} of {size} bytes" for size, count in sorted(agreed.lengths.items())))
    if agreed.refused:
        print(f"  {agreed.refused} executed instructions cannot be probed")
    for reason, count in sorted(agreed.reasons.items()):
        print(f"  {count} known differences between the CPU models: {reason}")
