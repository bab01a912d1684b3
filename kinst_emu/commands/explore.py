"""``kinst explore``: the orders in which a few runs can be executed, tried; which of them go
wrong."""

import argparse
import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from emu.elf.image import Image
from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from emu.host.printable import plain
from emu.host.progress import PROGRESS
from images import catalog
from kinst.verify.sweep.task import hold
from kinst.verify.sweep.workers import Cluster, workers
from kinst_emu.cli.completion import kernel_option
from kinst_emu.cli.sweeps import progress_bar
from kinst_emu.explain.steps.explained import source_trees
from kinst_emu.explore.exploration import Runs, for_runs, names_of, stage_of
from kinst_emu.explore.explorer import (
    MOST_JOBS,
    MOST_ORDERS,
    MOST_PREEMPTIONS,
    Explored,
    Explorer,
    Finding,
    Search,
)
from kinst_emu.explore.order import Order, order_title, read_order
from kinst_emu.explore.races import MAX_RACES
from kinst_emu.explore.stage import Stage
from kinst_emu.explore.strategies import STRATEGIES
from kinst_emu.explore.trampolines import TRAMPOLINES
from kinst_emu.report.page_file import write_page
from kinst_emu.terminal.terminal import check_writable, parse_count, parse_size

EXAMPLES = (
    "kinst explore -k races/amd64 --setup 'counter_reset()' --run 'counter_bad()' "
    "--run 'counter_bad()' --check 'counter_value() == 2'",
    "kinst explore -k kernel --run 'A()' --run 'B()' --strategy pct --limit 5000",
    "kinst explore -k kernel --run 'A()' --run 'B()' --schedule 'A120 B A'",
)
FOUND = 1  # exit status: an order goes wrong


def add_options(parser: argparse.ArgumentParser) -> None:
    kernel_option(parser)
    add = parser.add_argument
    add("--run", action="append", default=[], metavar="CALL", dest="runs",
        help="what one of them does: a call like 'f(1)', a program like '$ mkdir /tmp/a', or a "
        "file of C with its arguments; twice or more, the first is A")
    add("--setup", default="", metavar="CALLS",
        help="calls that are done before all orders; before programs, a line for the shell, like "
        "'$ mkdir /tmp/a'")
    add("--check", default="", metavar="CALL",
        help="a call behind all runs that is to give something but 0, or 'CALL == NUMBER'; behind "
        "programs also '$ COMMAND', whose status is to be 0; or an expression of D over the "
        "kernel's variables, like '`ticks > 7'")
    add("--cpus", metavar="N",
        help="1: they share one CPU, which its timer's interrupt takes from them; else each has "
        "its own")
    add("--preemptions", metavar="N", help="orders with at most so many preemptions (2)")
    add("--strategy", choices=STRATEGIES,
        help="all: every order with so few preemptions that can differ; pct: random priorities "
        "with so many changes; random: preemptions anywhere (all)")
    add("--limit", metavar="N", help="orders that are tried (100000)")
    add("--jobs", default="1", metavar="N", help="worker processes (%(default)s)")
    add("--cluster", metavar="ADDRESS",
        help="use the workers of this Dask scheduler instead")
    add("--seed", default="1", metavar="S", help="of what is random (%(default)s)")
    add("--no-races", action="store_true", help="do not look for data races")
    add("--all-findings", action="store_true", help="go on behind the first finding")
    add("--schedule", metavar="ORDER", help="one order, like 'A120 B A': run it, and show it")
    add("--record", type=Path, metavar="FILE",
        help="record the order of the first finding that is no data race, or of --schedule, for "
        "kinst replay, kdtrace --replay and gdb")
    add("--probe", action="append", default=[], metavar="FUNCTION:OFFSET", dest="probes",
        help="a breakpoint in the runs' way, taken through the kernel's own vectors (amd64)")
    add("--trampolines", choices=TRAMPOLINES,
        help="with --probe: a trampoline for each thread, as FreeBSD's, or, done wrong, one that "
        "all share; written anew at each firing (" + TRAMPOLINES[0] + ")")
    add("--pairs", type=Path, metavar="FILE",
        help="instead of --run: a corpus of runs, one a line; each runs once, and pairs in which "
        "one writes what the other uses are tried, --limit of them (1000)")
    add("--orders", metavar="N", help="--pairs: orders of each pair, at the most (100)")
    add("--store", type=Path, metavar="FILE",
        help="--pairs: keep what is found in this file, and go on where a run was killed")
    add("--memory", default="512M", metavar="SIZE", help="guest RAM (%(default)s)")
    add("--unchecked", action="store_true",
        help="pass the arguments as they are, whatever the functions' types are")
    add("--junit", type=Path, metavar="FILE", help="write the findings as JUnit's XML")
    add("--html", type=Path, metavar="FILE",
        help="write a page: which line each run executed when, and which value it saw")
    add("--sources", type=Path, metavar="DIR", action="append", default=[],
        help="with --html: a tree with the kernel's source, whose lines are shown; may be repeated")
    add("--json", action="store_true", help="print what was found as JSON")


def run(arguments: argparse.Namespace) -> int:
    if arguments.pairs is not None:
        return _pairs(arguments)
    runs = Runs(tuple(arguments.runs), arguments.setup, arguments.check, tuple(arguments.probes),
                arguments.trampolines or TRAMPOLINES[0])
    runs.parsed()
    preemptions = parse_count(arguments.preemptions or "2", "--preemptions")
    if not 1 <= preemptions <= MOST_PREEMPTIONS:
        raise KinstError(f"--preemptions {preemptions}: 1 to {MOST_PREEMPTIONS} are possible")
    cpus = None if arguments.cpus is None else parse_count(arguments.cpus, "--cpus")
    asked = Search(arguments.strategy or STRATEGIES[0], preemptions,
                  min(parse_count(arguments.limit or "100000", "--limit"), MOST_ORDERS),
                  parse_count(arguments.seed, "--seed"), not arguments.no_races,
                  arguments.all_findings,
                  min(max(1, parse_count(arguments.jobs, "--jobs")), MOST_JOBS))
    order = None if arguments.schedule is None else read_order(
        arguments.schedule, len(arguments.runs))
    for path, option in ((arguments.junit, "--junit"), (arguments.record, "--record"),
                         (arguments.html, "--html")):
        if path is not None:
            check_writable(path, option)
    image = for_runs(catalog.find(arguments.kernel, arguments.module), len(arguments.runs), cpus)
    trees = source_trees(image, arguments.sources)
    with PROGRESS.working("starting the runs"):
        stage, judge = stage_of(image, runs, parse_size(arguments.memory),
                                unchecked=arguments.unchecked)
    with progress_bar(asked.limit, "orders") as advance, contextlib.ExitStack() as ending:
        others = None
        if arguments.cluster is not None:
            from kinst_emu.explore.order_cluster import ClusterTask

            others = (ending.enter_context(Cluster(arguments.cluster)), ClusterTask(
                0, *_files(image, arguments), runs, parse_size(arguments.memory),
                arguments.unchecked, cpus, asked))
        explorer = Explorer(stage, asked, judge, lambda tried, of: advance(1, of), others)
        explored = explorer.only(order) if order is not None else explorer.run()
    if arguments.record is not None:
        _record(arguments.record, stage, explored, order, arguments.runs, arguments.module)
    if arguments.junit is not None:
        _write_junit(arguments.junit, explored)
    if arguments.html is not None:
        from kinst_emu.explore.page import explored_page

        write_page(arguments.html, explored_page(
            stage, explored, arguments.runs, " ".join(_seen(explored).split()), trees), "kinst")
    if arguments.json:
        print(json.dumps(_as_json(explored) | {
            "kernel": image.path.name, "runs": arguments.runs,
            "findings": [_finding(stage, one) for one in explored.findings]}, indent=2))
    else:
        print(f"runs:\n{names_of(arguments.runs)}")
        for line in _told(stage, explored, order is not None):
            print(plain(line))
    if explored.interrupted:
        raise KeyboardInterrupt
    return FOUND if explored.findings else 0


def _files(image: Image, arguments: argparse.Namespace) -> tuple[str, tuple[str, ...], str]:
    """The files of a kernel and its modules, for workers elsewhere, and the kernel's identity."""
    return os.path.abspath(image.path), tuple(
        os.path.abspath(catalog.module_path(image, one)) for one in arguments.module
    ), image.identity


def _pairs(arguments: argparse.Namespace) -> int:
    """A corpus, pair by pair."""
    from dtrace.calls.prototypes import Prototypes
    from kinst_emu.explore.pairs import (
        ClusterPairTask,
        PairStage,
        PairStore,
        PairTask,
        asked_of,
        left,
        ranked,
        read_corpus,
        with_programs,
    )

    most, orders, seed = (parse_count(text, option) for text, option in (
        (arguments.limit or "1000", "--limit"), (arguments.orders or "100", "--orders"),
        (arguments.seed, "--seed")))
    jobs = min(max(1, parse_count(arguments.jobs, "--jobs")), MOST_JOBS)
    if arguments.store is not None and not arguments.store.parent.is_dir():
        raise KinstError(f"--store {arguments.store}: there is no such directory")
    cpus = None if arguments.cpus is None else parse_count(arguments.cpus, "--cpus")
    image = for_runs(catalog.find(arguments.kernel, arguments.module), 2, cpus)
    prototypes = None if arguments.unchecked else Prototypes(image)
    image, corpus = with_programs(image, read_corpus(arguments.pairs, image, prototypes))
    store = PairStore(arguments.store, image.identity, asked_of(
        orders, seed, arguments.unchecked))
    with PROGRESS.working("starting two threads"):
        stage = PairStage(image, parse_size(arguments.memory), prototypes)
    uses = []
    with progress_bar(len(corpus), "calls") as advance:
        for call in corpus:
            uses.append(stage.use(call))
            advance(1)
            if uses[-1].wrong:
                print(f"{plain(call.text)}: is left out: {plain(uses[-1].wrong)}", file=sys.stderr)
    pairs = ranked(uses, [bool(call.command) for call in corpus])
    wanted = list(left(pairs[:most], corpus, store))
    known = store.found(pairs[:most], corpus)
    tried = wrong = 0
    task = PairTask(id(stage), orders, seed)
    if arguments.cluster is None:
        hold(task, (stage, corpus))
    else:
        task = ClusterPairTask(
            0, orders, seed, *_files(image, arguments), tuple(call.text for call in corpus),
            parse_size(arguments.memory), arguments.unchecked, cpus)
    some = workers(jobs, arguments.cluster, losses=0)
    with progress_bar(len(wanted), "pairs") as advance, some:
        for done in some.done(task, [[pair] for pair in wanted], arguments.cluster is None):
            for row in done.results:
                store.add(row)
                tried += 1
                advance(1)
                wrong += _show_row(row, arguments.json)
    hold(None, None)
    if not arguments.json:
        before, not_tried = len(pairs[:most]) - len(wanted), len(pairs) - len(pairs[:most])
        print(f"{len(pairs)} pairs of {len(corpus)} calls have something in common; {tried} were "
              f"tried now, {before} before, {not_tried} were not; something was found in {wrong} "
              f"of those tried now" + (f", and in {known} of those before" if known else ""))
    return FOUND if wrong or known else 0


def _show_row(row: dict[str, Any], as_json: bool) -> bool:
    """Print what was found with a pair; whether something was."""
    if as_json:
        print(json.dumps(row), flush=True)
    elif row["findings"] or row.get("error"):
        print(plain(" | ".join(row["pair"])))
        for found in row["findings"]:
            print(plain(f"  {found['kind']}: {found['said']}"))
            print(plain(f"    schedule '{found['schedule']}'"), flush=True)
        if row.get("error"):
            print(plain(f"  could not be tried: {row['error']}"), flush=True)
    return bool(row["findings"])


def _record(path: Path, stage: Stage, explored: Explored, order: Order | None,
            runs: list[str], modules: list[str]) -> None:
    harm = [one.order for one in explored.findings if one.race is None]
    chosen = order or (harm[0] if harm else None)
    if chosen is None:
        print(f"--record: no order did harm, so {path} was not written; give --schedule",
              file=sys.stderr)
        return
    stage.record(chosen, path, order_title(runs, chosen))
    words = shlex.join([str(path), *(f"--module={name}" for name in modules)])
    print(f"{path}: recorded; play it by: kinst replay {words}, or kdtrace --replay {words}",
          file=sys.stderr)


def _told(stage: Stage, explored: Explored, one: bool) -> Iterator[str]:
    for number, finding in enumerate(explored.findings, 1):
        yield ""
        yield f"{number}. {finding.kind}: {finding.said}"
        yield (f"   schedule '{finding.schedule}' ({finding.preemptions} preemption"
               f"{'' if finding.preemptions == 1 else 's'})")
        before = next((n for n, other in enumerate(explored.findings[: number - 1], 1)
                       if other.order == finding.order and other.race is finding.race is None), 0)
        if before:
            yield f"   the order of {before}."
            continue
        yield from (f"   {line}" for line in _lines(stage, finding))
    yield ""
    if explored.unmet:
        yield ("The check holds in no serial order: one run behind the other. Is it right, and is "
               "--setup?")
    if not one:
        yield from _seen(explored).splitlines()
    else:
        yield from _not_compared(explored)
    if one and any(finding.race is None for finding in explored.findings):
        yield "that schedule goes wrong"
    elif one:
        yield "nothing goes wrong with it" + (
            ", but for data races" if explored.findings else "")


def _lines(stage: Stage, finding: Finding) -> Iterator[str]:
    """The two sides by source lines."""
    from dtrace.debug.debug_data import Sources
    from dwarf.debug_file import DebugDataError
    from kinst_emu.explore.telling import of_race, rows, side_by_side

    machine, runs = stage.machine, len(stage.runs)
    try:
        sources = Sources(machine.image)
        if finding.race is not None:
            yield from of_race(stage, sources, finding.race, finding.order)
            return
        played = stage.play(finding.order, look=True)
        table = list(rows(machine, sources, played.accesses, runs, stage.probed))
        yield from side_by_side(table, runs)
    except DebugDataError as error:
        yield f"(no source lines: {error})"
    except KinstError as error:
        yield f"(not shown: {error})"


def _seen(explored: Explored) -> str:
    """How much of the space was seen; never that there are no races."""
    text = (f"{explored.tried} orders were executed in {explored.seconds:.1f} s "
            f"({explored.tried / max(explored.seconds, 1e-9):.0f} a second).")
    if explored.space:
        space = ", ".join(f"about {count} with {n}"
                          for n, count in sorted(explored.space.items()))
        text += (f"\nPlaces (of 8 bytes) that the runs share: {explored.shared}; by preemptions, "
                 f"the orders that can matter are {space}.\n{explored.left_out} were left out, "
                 "which bring the accesses into the same order as others; "
                 + ("all others were tried" if explored.whole else "not all others were tried")
                 + ".\nPreemptions are at the places that the serial orders use, and data races "
                 "were looked for in these.")
        if explored.waited:
            text += ("\nIn the serial orders " + ", ".join(f"'{one}'" for one in explored.waited)
                     + " a run waited for long, and another one went on in its midst: what they "
                     "give then counts as the truth, too.")
        if explored.more_races:
            text += f"\nAn order has more data races than the {MAX_RACES} that are told."
        if explored.cut:
            text += (f"\n{explored.cut} accesses in loops were not told apart from earlier ones of "
                     "the same instruction.")
    if explored.ended:
        text += ("\nThe search ended with the first order that does harm; --all-findings goes on.")
    text += "".join(f"\n{line}" for line in _not_compared(explored))
    if not explored.findings:
        text += "\nNothing went wrong in these."
    return text


def _not_compared(explored: Explored) -> Iterator[str]:
    if explored.no_truth:
        yield "NOT compared: what the runs give, as a serial order goes wrong already."
    if explored.not_compared:
        yield ("NOT compared: what is given by " + " and by ".join(dict.fromkeys(
            explored.not_compared)) + ": the debug data does not tell its type (KERNEL.debug and "
            "MODULE.ko.debug belong beside the files).")


def _as_json(explored: Explored) -> dict[str, object]:
    return {
        "tried": explored.tried, "left_out": explored.left_out, "whole": explored.whole,
        "space": explored.space, "shared": explored.shared,
        "seconds": round(explored.seconds, 3), "serial": sorted(explored.results),
        "not_compared": explored.not_compared, "no_truth": explored.no_truth,
        "waited": explored.waited, "unmet": explored.unmet, "ended": explored.ended}


def _finding(stage: Stage, finding: Finding) -> dict[str, object]:
    return {"kind": finding.kind, "said": finding.said, "schedule": finding.schedule,
            "preemptions": finding.preemptions, "lines": list(_lines(stage, finding))}


def _write_junit(path: Path, explored: Explored) -> None:
    cases = "".join(
        f'<testcase name={quoteattr(one.kind)}><failure message={quoteattr(plain(one.said))}>'
        f'{one.schedule}</failure></testcase>' for one in explored.findings)
    cases = cases or '<testcase name="orders"/>'
    with replacing(path) as file:
        file.write(f'<testsuite name="kinst explore" tests="{max(1, len(explored.findings))}" '
                   f'failures="{len(explored.findings)}">{cases}</testsuite>\n'.encode(
                       "utf-8", "backslashreplace"))
