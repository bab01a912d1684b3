"""``kinst xval``: calls on our machine and on QEMU, which must agree."""

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
from images.shell import with_userland
from kinst.providers.patterns import is_glob, matches
from kinst.verify.crosscheck import call_table, system_call_table
from kinst.verify.crosscheck.agreement import Agreement
from kinst.verify.crosscheck.faults import FAULTS
from kinst.verify.sweep.store import Key
from kinst.verify.sweep.sweep import sweep
from kinst.verify.sweep.task import carry_out
from kinst.verify.sweep.workers import Here
from kinst_emu.cli.completion import kernel_option
from kinst_emu.cli.sweeps import Sweep, compiler_of, progress_bar, sweep_options
from kinst_emu.cli.xvals import DIFFERS, WAITED, Checked, CrosscheckTask, Pair
from kinst_emu.terminal.terminal import parse_count, parse_size, progress

CHUNK = 5  # calls of a part
# What a result depends on, beside the architecture's own folders.
MADE_BY = ("emu.qemu", "kinst.relocation", "kinst.code", "kinst.probes", "kinst.providers",
           "kinst.verify.crosscheck")
DEFAULT_CALLS, MAX_CALLS, MAX_REPORTS = 20, 100_000, 10

EXAMPLES = (
    "kinst xval -k teaching/arm64 -c 'strlen(\"hello\")'",
    "kinst xval -k kernel --functions 'str*' --random 50",
    "kinst xval -k kernel --system --random 100",
    "kinst xval -k teaching/amd64 -c 'strtoul(\"12\", 0, 10)' --fault emulation",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    kernel_option(parser)
    parser.add_argument("-c", dest="call", metavar="CALL",
                        help="this call, e.g. 'strlen(\"hello\")'")
    parser.add_argument("--functions", metavar="NAMES",
                        help="calls of these functions in the table of calls; shell patterns, "
                        "separated by commas")
    parser.add_argument("--random", metavar="N",
                        help=f"N calls, drawn from the table ({DEFAULT_CALLS})")
    parser.add_argument("--system", action="store_true",
                        help="the calls are system calls, made by a program in user mode: "
                        "sys_getpid(), from a table of their own")
    parser.add_argument("--seed", metavar="S", help="chooses what is drawn; it is printed")
    parser.add_argument("--memory", default="512M", metavar="SIZE", help="guest RAM (%(default)s)")
    parser.add_argument("--fault", choices=FAULTS, default="",
                        help="inject a fault into our machine, to check that it is found")
    sweep_options(parser)
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def run(arguments: argparse.Namespace) -> int:
    image = catalog.find(arguments.kernel, arguments.module)
    if arguments.system:
        image = with_userland(image)
    memory = parse_size(arguments.memory)
    seed = (random.SystemRandom().randrange(1, 1 << 31) if arguments.seed is None
            else parse_count(arguments.seed, "--seed"))
    calls = _calls(image, arguments, seed)
    for call in calls:
        check(image, parse(call))
    pair = Pair(str(image.path.absolute()), tuple(str(m.path.absolute()) for m in image.modules),
                memory, arguments.fault, image.identity, arguments.system)
    agreed, reports = Agreement(), list[dict[str, Any]]()
    problems, waited = list[str](), list[str]()
    with Sweep(arguments) as jobs:
        for one in _checked(pair, image, calls, jobs):
            agreed.add(one.agreed)
            if one.word == DIFFERS:
                reports.append(one.report)
                if not arguments.json:
                    print("\n".join(_text(arguments, one.report)))
                if len(reports) == MAX_REPORTS:
                    break
            elif one.problem:
                (waited if one.word == WAITED else problems).append(one.problem)
    if arguments.json:
        print(json.dumps(_summary(agreed, reports, seed)
                         | {"not_compared": problems, "waited_too_long": waited}))
    elif agreed.calls or reports:
        _print_summary(agreed, len(reports), None if arguments.call else seed)
    for problem in problems + waited:
        print(f"kinst: {problem}", file=sys.stderr)
    return 1 if reports or problems or waited or not agreed.calls else 0


def _checked(pair: Pair, image: Image, calls: list[str], jobs: Sweep) -> Iterator[Checked]:
    """What becomes of the calls, as it comes."""
    task = CrosscheckTask(pair)
    if isinstance(jobs.workers, Here) and jobs.store is None:
        for call in progress(calls, "calls"):
            yield from carry_out(task, [call])
        return
    arch = arch_of(image).name
    made_by = fingerprint(
        (*machine_modules(arch), *MADE_BY, f"kinst.{arch}", f"emu.qemu.{arch}"), ("unicorn",))
    key = Key("xval", f"{made_by}{f' with the fault {pair.fault}' * bool(pair.fault)} "
              f"{image.identity} with {pair.memory >> 20} MB", arch, 0, 0)
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
                raise KinstError(f"the table of calls has no {kind} '{name}' that this kernel has; "
                                 "give the whole call with -c")
        entries = [e for e in entries if any(matches(name, e.function) for name in wanted)]
    if not entries:
        raise KinstError(f"{image.path}: has none of the functions in the table of calls; give -c")
    count = len(entries) if arguments.functions is not None else DEFAULT_CALLS
    if arguments.random is not None:
        count = parse_count(arguments.random, "--random")
    if count > MAX_CALLS:
        raise KinstError(f"--random {count}: at most {MAX_CALLS} calls")
    generator = random.Random(seed)
    # Every function once, before any comes again.
    drawn: list[call_table.CallEntry] = []
    while len(drawn) < count:
        drawn += generator.sample(entries, min(len(entries), count - len(drawn)))
    return [call_table.call(entry, generator) for entry in drawn]


# -- reports --------------------------------------------------------------------------------------


def _text(arguments: argparse.Namespace, report: dict[str, Any]) -> list[str]:
    lines = [f"not the same: {report['call']}", f"  {report['what']}"]
    where = f"{report.get('where', hex(report['address']))}: {report.get('instruction', '')}"
    lines.append(f"  {where}  {report.get('line', '')}".rstrip())
    if report["registers"]:
        width = max(len(row["name"]) for row in report["registers"])
        lines.append(f"  {'':{width}}  {'ours':<16}  QEMU")
        for row in report["registers"]:
            ours, theirs = row["ours"], row["qemu"]
            mark = "  <" if ours != theirs else ""
            lines.append(f"  {row['name']:{width}}  {ours:016x}  {theirs:016x}{mark}")
    lines.append(f"  again: kinst xval -k {shlex.quote(arguments.kernel)} "
                 + "--system " * arguments.system + f"-c {shlex.quote(str(report['call']))}"
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
    print(f"{agreed.calls} calls agree, through {len(agreed.functions)} functions"
          + ("" if seed is None else f" (seed {seed})")
          + (f"; {divergences} do not" if divergences else ""))
    print(f"  {agreed.instructions} instructions in lockstep")
    kinds = ", ".join(f"{len(codes)} {name}" for name, codes in sorted(agreed.encodings.items()))
    print(f"  {agreed.firings} firings on both, of {agreed.distinct()} distinct encodings"
          + (f": {kinds}" if kinds else ""))
    if len(agreed.lengths) > 1:
        print("  breakpoints: " + ", ".join(
            f"{count} of {size} bytes" for size, count in sorted(agreed.lengths.items())))
    if agreed.refused:
        print(f"  {agreed.refused} instructions executed cannot be probed")
    for reason, count in sorted(agreed.reasons.items()):
        print(f"  {count} times the models' own: {reason}")
