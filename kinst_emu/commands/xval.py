"""``kinst xval``: calls on our machine and on QEMU, which must agree."""

import argparse
import json
import random
import shlex
import sys

from dtrace.calls import Evaluation, Statement, check, parse
from dtrace.debug_data import Sources
from dwarf.debug_file import DebugDataError
from emu.call import Caller, CallError, PatienceError
from emu.elf import Image
from emu.errors import KinstError, MemoryAccessError
from emu.machine import Machine
from emu.unicorn.machine import UnicornMachine
from images import catalog
from images.boots import booted
from kinst.crosscheck import call_table
from kinst.crosscheck.agreement import Agreement
from kinst.crosscheck.crosscheck import Crosscheck
from kinst.crosscheck.faults import FAULTS, FaultyCrosscheck
from kinst.crosscheck.lockstep import Divergence, TooLongError
from kinst.functions import is_glob, matches
from kinst_emu.completion import kernel_option
from kinst_emu.terminal import parse_count, parse_size, progress

LIMIT = 1_000_000  # instructions of a call
DEFAULT_CALLS, MAX_CALLS, MAX_REPORTS = 20, 100_000, 10

EXAMPLES = (
    "kinst xval -k teaching/arm64 -c 'strlen(\"hello\")'",
    "kinst xval -k kernel --functions 'str*' --random 50",
    "kinst xval -k teaching/amd64 -c 'strtoul(\"12\", 0, 10)' --fault emulation",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    kernel_option(parser)
    parser.add_argument("-c", dest="call", metavar="CALL",
                        help="this call, e.g. 'strlen(\"hello\")'")
    parser.add_argument("--functions", metavar="NAMES",
                        help="calls of these functions of the table of calls; shell patterns, "
                        "separated by commas")
    parser.add_argument("--random", metavar="N",
                        help=f"so many calls, drawn from the table ({DEFAULT_CALLS})")
    parser.add_argument("--seed", metavar="S", help="of what is drawn; printed")
    parser.add_argument("--memory", default="512M", metavar="SIZE", help="guest RAM (%(default)s)")
    parser.add_argument("--fault", choices=FAULTS, default="",
                        help="put a fault into our machine, to see that it is found")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def run(arguments: argparse.Namespace) -> int:
    image = catalog.find(arguments.kernel, arguments.module)
    memory = parse_size(arguments.memory)
    seed = (random.SystemRandom().randrange(1, 1 << 31) if arguments.seed is None
            else parse_count(arguments.seed, "--seed"))
    calls = _calls(image, arguments, seed)
    for call in calls:
        check(image, parse(call))
    machine = booted(image, memory)
    machine.console.text.clear()
    crosscheck = (FaultyCrosscheck(machine, arguments.fault) if arguments.fault
                  else Crosscheck(machine))
    agreed, reports = Agreement(), list[dict[str, object]]()
    problems, waited = list[str](), list[str]()
    for call in progress(calls, "calls"):
        program = parse(call)

        def workload(where: Machine, program: list[Statement] = program) -> int:
            return Evaluation(Caller(where, LIMIT)).run(program)

        try:
            agreed.add(crosscheck.check(workload))
        except Divergence as divergence:
            reports.append(_report(machine, call, divergence))
            if not arguments.json:
                print("\n".join(_text(arguments.kernel, reports[-1], divergence,
                                      arguments.fault)))
            if len(reports) == MAX_REPORTS:
                break
        except PatienceError as error:
            waited.append(f"{call}: waited too long: {error}")
        except (TooLongError, CallError) as error:
            problems.append(f"{call}: not compared: {error}")
    if arguments.json:
        print(json.dumps(_summary(agreed, reports, seed)
                         | {"not_compared": problems, "waited_too_long": waited}))
    elif agreed.calls or reports:
        _print_summary(agreed, len(reports), None if arguments.call else seed)
    for problem in problems + waited:
        print(f"kinst: {problem}", file=sys.stderr)
    return 1 if reports or problems or waited or not agreed.calls else 0


def _calls(image: Image, arguments: argparse.Namespace, seed: int) -> list[str]:
    if arguments.call is not None:
        if arguments.functions is not None or arguments.random is not None:
            raise KinstError("give -c, or --functions and --random: not both")
        return [arguments.call]
    entries = call_table.available(image)
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
    drawn: list[call_table.Entry] = []
    while len(drawn) < count:
        drawn += generator.sample(entries, min(len(entries), count - len(drawn)))
    return [call_table.call(entry, generator) for entry in drawn]


# -- reports --------------------------------------------------------------------------------------


def _place(machine: UnicornMachine, address: int) -> dict[str, object]:
    """Function and offset, instruction and source line of an address."""
    function = machine.image.symbols.function_at(address)
    found: dict[str, object] = {"address": address}
    if function is not None:
        found["where"] = f"{function.name}+{address - function.address}"
    try:
        found["instruction"] = machine.arch.disassemble(machine.read(address, 15), address)
        found["line"] = Sources(machine.image).line(address)
    except (MemoryAccessError, DebugDataError):
        pass  # the address alone says enough
    return found


def _report(machine: UnicornMachine, call: str, divergence: Divergence) -> dict[str, object]:
    return {
        "call": call, "what": divergence.what, **_place(machine, divergence.address),
        "registers": [
            {"name": name, "ours": ours, "qemu": theirs} for name, ours, theirs in zip(
                divergence.names, divergence.ours, divergence.theirs, strict=False)],
    }


def _text(
    kernel: str, report: dict[str, object], divergence: Divergence, fault: str
) -> list[str]:
    lines = [f"not the same: {report['call']}", f"  {divergence.what}"]
    where = f"{report.get('where', hex(divergence.address))}: {report.get('instruction', '')}"
    lines.append(f"  {where}  {report.get('line', '')}".rstrip())
    if divergence.names:
        width = max(map(len, divergence.names))
        lines.append(f"  {'':{width}}  {'ours':<16}  QEMU")
        for name, ours, theirs in zip(divergence.names, divergence.ours, divergence.theirs,
                                      strict=False):
            mark = "  <" if ours != theirs else ""
            lines.append(f"  {name:{width}}  {ours:016x}  {theirs:016x}{mark}")
    lines.append(f"  again: kinst xval -k {shlex.quote(kernel)} "
                 f"-c {shlex.quote(str(report['call']))}" + (f" --fault {fault}" if fault else ""))
    return lines


def _summary(agreed: Agreement, reports: list[dict[str, object]], seed: int) -> dict[str, object]:
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
