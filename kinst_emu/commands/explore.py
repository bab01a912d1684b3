"""``kinst explore``: execute runs in many interleavings and report failing interleavings."""

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
from emu.host.printable import counted, plain
from emu.host.progress import PROGRESS
from images import catalog
from images.systems import with_disks
from kinst.verify.sweep.task import hold
from kinst.verify.sweep.workers import Cluster, workers
from kinst_emu.cli.boot_words import base_option
from kinst_emu.cli.completion import kernel_option
from kinst_emu.cli.sweeps import progress_bar
from kinst_emu.explain.steps.explained import source_trees
from kinst_emu.explore.exploration import Runs, for_runs, names_of, stage_of
from kinst_emu.explore.explorer import (
    MOST_JOBS,
    MOST_PREEMPTIONS,
    MOST_SCHEDULES,
    Explored,
    Explorer,
    Finding,
    Search,
)
from kinst_emu.explore.races import MAX_RACES
from kinst_emu.explore.schedule import Schedule, read_schedule, schedule_title
from kinst_emu.explore.stage import Stage
from kinst_emu.explore.strategies import STRATEGIES
from kinst_emu.explore.trampolines import TRAMPOLINES
from kinst_emu.report.page_file import write_page
from kinst_emu.terminal.terminal import check_writable, parse_count, parse_size

EXAMPLES = (
    "kinst explore -k races/amd64 --setup 'counter_reset()' --run 'counter_bad()' "
    "--run 'counter_bad()' --check 'counter_check()'",
    "kinst explore -k kernel --run 'A()' --run 'B()' --strategy pct --limit 5000",
    "kinst explore -k kernel --run 'A()' --run 'B()' --schedule 'A120 B A'",
)
FOUND = 1  # exit status if there are findings


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst explore``."""
    kernel_option(parser)
    base_option(parser)
    add = parser.add_argument
    add("--run", action="append", default=[], metavar="CALL", dest="runs",
        help="run to execute: a call, e.g. 'f(1)'; a program, e.g. '$ mkdir /tmp/a'; or a C file "
        "with its arguments; give --run once for each run (two or more), in the order A, B, ... "
        "(required, except with --pairs)")
    add("--setup", default="", metavar="CALLS",
        help="calls to make once, before the first schedule; if the runs are programs, or with "
        "--base, a shell command, e.g. '$ mkdir /tmp/a' (default: no calls)")
    add("--check", default="", metavar="CALL",
        help="check to make after all runs: a call that must return a non-zero value; 'CALL == "
        "NUMBER'; a D expression over the kernel's variables, e.g. '`ticks > 7'; or, if the runs "
        "are programs, '$ COMMAND' with exit status 0 (default: no check)")
    add("--cpus", metavar="N",
        help="number of guest CPUs; with 1, the runs share the CPU, and its timer interrupt "
        "preempts them (default: one CPU for each run)")
    add("--preemptions", metavar="N", help="maximum number of preemptions in a schedule (default: "
        "2)")
    add("--strategy", choices=STRATEGIES,
        help="schedules to try; all: every schedule that can give a different result, with at most "
        "--preemptions N preemptions; every: also those that should not, with preemptions before "
        "any instruction; pct: random priorities that change N times, at random instructions; "
        "random: at most N preemptions, at random instructions (default: all)")
    add("--limit", metavar="N", help="maximum number of schedules to try (default: 100000)")
    add("--jobs", default="1", metavar="N",
        help="number of worker processes (default: %(default)s)")
    add("--cluster", metavar="ADDRESS",
        help="use the workers of the Dask scheduler at this address (default: local processes)")
    add("--seed", default="1", metavar="S", help="random seed (default: %(default)s)")
    add("--no-races", action="store_true",
        help="do not search for data races (default: search)")
    add("--all-findings", action="store_true",
        help="continue after the first failure (default: stop at the first failure)")
    add("--schedule", metavar="SCHEDULE",
        help="run and show only this schedule, e.g. 'A120 B A': A for 120 instructions, then B to "
        "its end, then A (default: search)")
    add("--record", type=Path, metavar="FILE",
        help="record --schedule, or the first finding that is not a data race, in this file for "
        "kinst replay, kdtrace --replay and gdb (default: no recording)")
    add("--probe", action="append", default=[], metavar="FUNCTION:OFFSET", dest="probes",
        help="put a breakpoint on this instruction; runs that execute it trap through the kernel's "
        "vectors; amd64 only; may be repeated (default: no breakpoints)")
    add("--trampolines", choices=TRAMPOLINES,
        help="with --probe: allocation of trampolines, which are rewritten at each firing; thread: "
        "one per thread, as in FreeBSD; shared: one for all threads, which is deliberately "
        "incorrect (default: " + TRAMPOLINES[0] + ")")
    add("--pairs", type=Path, metavar="FILE",
        help="instead of --run: read runs from this file, one per line; execute each run once, "
        "then explore pairs in which one run writes memory that the other run accesses; at most "
        "--limit pairs, or 1000 without --limit (default: no file)")
    add("--schedules", metavar="N",
        help="with --pairs: maximum number of schedules to try for each pair (default: 100)")
    add("--orders", dest="schedules", help=argparse.SUPPRESS)  # former name of --schedules
    add("--store", type=Path, metavar="FILE",
        help="with --pairs: keep the results in this file, and resume an interrupted search from "
        "it (default: no file)")
    add("--memory", default="512M", metavar="SIZE",
        help="guest RAM, in MiB or with a suffix K, M or G (default: %(default)s)")
    add("--unchecked", action="store_true",
        help="pass the arguments without checking them against the functions' types (default: "
        "check them)")
    add("--junit", type=Path, metavar="FILE",
        help="write the findings to this file as JUnit XML (default: no file)")
    add("--html", type=Path, metavar="FILE",
        help="write an HTML page that shows which lines each run executed and when, and the values "
        "that the run saw (default: no page)")
    add("--sources", type=Path, metavar="DIR", action="append", default=[],
        help="with --html: show lines from this kernel source tree; may be repeated (default: no "
        "source text)")
    add("--json", action="store_true", help="print the findings as JSON (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """Explore the schedules of the runs, print the findings, and return 1 if there are any."""
    if arguments.pairs is not None:
        return _pairs(arguments)
    runs = Runs(tuple(arguments.runs), arguments.setup, arguments.check, tuple(arguments.probes),
                arguments.trampolines or TRAMPOLINES[0])
    runs.parsed()
    preemptions = parse_count(arguments.preemptions or "2", "--preemptions")
    if not 1 <= preemptions <= MOST_PREEMPTIONS:
        raise KinstError(f"--preemptions {preemptions}: must be 1 to {MOST_PREEMPTIONS}")
    cpus = None if arguments.cpus is None else parse_count(arguments.cpus, "--cpus")
    asked = Search(arguments.strategy or STRATEGIES[0], preemptions,
                  min(parse_count(arguments.limit or "100000", "--limit"), MOST_SCHEDULES),
                  parse_count(arguments.seed, "--seed"), not arguments.no_races,
                  arguments.all_findings,
                  min(max(1, parse_count(arguments.jobs, "--jobs")), MOST_JOBS))
    schedule = None if arguments.schedule is None else read_schedule(
        arguments.schedule, len(arguments.runs))
    for path, option in ((arguments.junit, "--junit"), (arguments.record, "--record"),
                         (arguments.html, "--html")):
        if path is not None:
            check_writable(path, option)
    image = for_runs(_system(arguments), len(arguments.runs), cpus)
    trees = source_trees(image, arguments.sources)
    with PROGRESS.working("starting the runs"):
        stage, judge = stage_of(image, runs, parse_size(arguments.memory),
                                unchecked=arguments.unchecked)
    with progress_bar(asked.limit, "schedules") as advance, contextlib.ExitStack() as ending:
        others = None
        if arguments.cluster is not None:
            from kinst_emu.explore.cluster_task import ClusterTask

            others = (ending.enter_context(Cluster(arguments.cluster)), ClusterTask(
                0, *_files(image, arguments), runs, arguments.base, parse_size(arguments.memory),
                arguments.unchecked, cpus, asked))
        explorer = Explorer(stage, asked, judge, lambda tried, of: advance(1, of), others)
        explored = explorer.only(schedule) if schedule is not None else explorer.run()
    if arguments.record is not None:
        _record(arguments.record, stage, explored, schedule, arguments.runs, arguments.module)
    if arguments.junit is not None:
        _write_junit(arguments.junit, explored)
    if arguments.html is not None:
        from kinst_emu.explore.page import explored_page

        coverage = " ".join(_coverage(explored, asked.races).split())
        write_page(arguments.html,
                   explored_page(stage, explored, arguments.runs, coverage, trees), "kinst")
    if arguments.json:
        print(json.dumps(_as_json(explored) | {
            "kernel": image.path.name, "runs": arguments.runs,
            "findings": [_finding(stage, one) for one in explored.findings]}, indent=2))
    else:
        print(f"runs:\n{names_of(arguments.runs)}")
        for line in _report(stage, explored, schedule is not None, asked.races):
            print(plain(line))
    if explored.interrupted:
        raise KeyboardInterrupt
    return FOUND if explored.findings else 0


def _system(arguments: argparse.Namespace) -> Image:
    """Return the kernel of the command line, with the base system if it was asked for."""
    return with_disks(catalog.find(arguments.kernel, arguments.module), [], arguments.base)


def _files(image: Image, arguments: argparse.Namespace) -> tuple[str, tuple[str, ...], str]:
    """Return the kernel path, the module paths and the kernel's identity for remote workers."""
    return os.path.abspath(image.path), tuple(
        os.path.abspath(catalog.module_path(image, one)) for one in arguments.module
    ), image.identity


def _pairs(arguments: argparse.Namespace) -> int:
    """Explore pairs of runs from the file given with ``--pairs``."""
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

    most, schedules, seed = (parse_count(text, option) for text, option in (
        (arguments.limit or "1000", "--limit"), (arguments.schedules or "100", "--schedules"),
        (arguments.seed, "--seed")))
    jobs = min(max(1, parse_count(arguments.jobs, "--jobs")), MOST_JOBS)
    if arguments.store is not None and not arguments.store.parent.is_dir():
        raise KinstError(f"--store {arguments.store}: the directory does not exist")
    cpus = None if arguments.cpus is None else parse_count(arguments.cpus, "--cpus")
    image = for_runs(_system(arguments), 2, cpus)
    files = _files(image, arguments)
    prototypes = None if arguments.unchecked else Prototypes(image)
    image, corpus = with_programs(image, read_corpus(arguments.pairs, image, prototypes))
    identity = " ".join(filter(None, (image.identity, image.options.late_digest)))
    store = PairStore(arguments.store, identity, asked_of(
        schedules, seed, arguments.unchecked))
    with PROGRESS.working("starting two threads"):
        stage = PairStage(image, parse_size(arguments.memory), prototypes)
    uses = []
    with progress_bar(len(corpus), "calls") as advance:
        for call in corpus:
            uses.append(stage.use(call))
            advance(1)
            if uses[-1].wrong:
                print(f"{plain(call.text)}: skipped: {plain(uses[-1].wrong)}", file=sys.stderr)
    pairs = ranked(uses, [bool(call.command) for call in corpus])
    wanted = list(left(pairs[:most], corpus, store))
    known = store.found(pairs[:most], corpus)
    tried = wrong = 0
    task = PairTask(id(stage), schedules, seed)
    if arguments.cluster is None:
        hold(task, (stage, corpus))
    else:
        task = ClusterPairTask(
            0, schedules, seed, *files, arguments.base,
            tuple(call.text for call in corpus), parse_size(arguments.memory),
            arguments.unchecked, cpus)
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
        print(f"{len(pairs)} pairs of {len(corpus)} calls access common memory; {tried} were tried "
              f"now, {before} before, {not_tried} not at all; {wrong} of those tried now have "
              "findings" + (f", and {known} of those tried before" if known else ""))
    return FOUND if wrong or known else 0


def _show_row(row: dict[str, Any], as_json: bool) -> bool:
    """Print the findings for a pair of runs, and return whether there are any."""
    if as_json:
        print(json.dumps(row), flush=True)
    elif row["findings"] or row.get("error"):
        print(plain(" | ".join(row["pair"])))
        for finding in row["findings"]:
            print(plain(f"  {finding['kind']}: {finding['message']}"))
            print(plain(f"    schedule '{finding['schedule']}'"), flush=True)
        if row.get("error"):
            print(plain(f"  could not be tried: {row['error']}"), flush=True)
    return bool(row["findings"])


def _record(path: Path, stage: Stage, explored: Explored, schedule: Schedule | None,
            runs: list[str], modules: list[str]) -> None:
    failing = [one.turns for one in explored.findings if one.race is None]
    chosen = schedule or (failing[0] if failing else None)
    if chosen is None:
        print(f"--record: no schedule failed, so {path} was not written; give --schedule",
              file=sys.stderr)
        return
    stage.record(chosen, path, schedule_title(runs, chosen))
    words = shlex.join([str(path), *(f"--module={name}" for name in modules)])
    print(f"{path}: recorded; replay with: kinst replay {words}, or kdtrace --replay {words}",
          file=sys.stderr)


def _report(stage: Stage, explored: Explored, one: bool, races: bool) -> Iterator[str]:
    for number, finding in enumerate(explored.findings, 1):
        yield ""
        yield f"{number}. {finding.kind}: {finding.message}"
        yield (f"   schedule '{finding.schedule}' ({counted(finding.preemptions, 'preemption')})")
        before = next((n for n, other in enumerate(explored.findings[: number - 1], 1)
                       if other.turns == finding.turns and other.race is finding.race is None), 0)
        if before:
            yield f"   same schedule as finding {before}"
            continue
        yield from (f"   {line}" for line in _lines(stage, finding))
    yield ""
    if explored.check_never_holds:
        yield ("The check fails in every serial schedule (one run after the other): verify --check "
               "and --setup.")
    if not one:
        yield from _coverage(explored, races).splitlines()
    else:
        yield from _not_compared(explored)
    if one and any(finding.race is None for finding in explored.findings):
        yield "This schedule fails."
    elif one:
        yield "This schedule does not fail" + (
            ", but it has data races." if explored.findings else ".")


def _lines(stage: Stage, finding: Finding) -> Iterator[str]:
    """Yield lines that show a finding: the stacks of a data race, or each run's accesses."""
    from dtrace.debug.debug_data import Sources
    from dwarf.debug_file import DebugDataError
    from kinst_emu.explore.telling import of_race, rows, side_by_side

    machine, runs = stage.machine, len(stage.runs)
    try:
        sources = Sources(machine.image)
        if finding.race is not None:
            yield from of_race(stage, sources, finding.race, finding.turns)
            return
        played = stage.play(finding.turns, look=True)
        table = list(rows(machine, sources, played.accesses, runs, stage.probed))
        yield from side_by_side(table, runs)
    except DebugDataError as error:
        yield f"(source lines are not available: {error})"
    except KinstError as error:
        yield f"(not available: {error})"


def _coverage(explored: Explored, races: bool = True) -> str:
    """Describe how much of the search space was covered; never claim that no races exist."""
    text = (f"{counted(explored.tried, 'schedule')} executed in {explored.seconds:.1f} s "
            f"({explored.tried / max(explored.seconds, 1e-9):.0f} per second), including the "
            "serial ones.")
    if explored.space:
        space = " and ".join(
            f"about {counted(number, 'schedule')} with {counted(preemptions, 'preemption')}"
            for preemptions, number in sorted(explored.space.items()))
        places = ("before every instruction" if explored.everywhere
                  else "at the accesses to shared locations")
        text += (f"\nThe runs share {counted(explored.shared, 'memory location')} of 8 bytes; "
                 f"preemptions are placed {places}.\n"
                 f"{space[0].upper()}{space[1:]} can give different results; "
                 f"{explored.skipped} of these were skipped as equivalent, and "
                 + ("all" if explored.complete else "not all") + " others were executed.")
        if races:
            text += "\nData races were searched for only in the serial schedules."
        if explored.waited:
            text += ("\nIn the serial schedules " + ", ".join(
                f"'{schedule}'" for schedule in explored.waited)
                     + ", a run waited for so long that another one continued in the middle of it; "
                     "their results count as correct, too.")
        if explored.more_races:
            text += f"\nOne schedule has more data races than the {MAX_RACES} listed."
        if explored.cut:
            text += (f"\n{explored.cut} accesses in loops were not distinguished from earlier "
                     "accesses by the same instruction.")
    if explored.stopped_early:
        text += "\nThe search stopped at the first failure (--all-findings continues)."
    text += "".join(f"\n{line}" for line in _not_compared(explored))
    if not explored.findings:
        text += "\nNo failure was found in these schedules."
    return text


def _not_compared(explored: Explored) -> Iterator[str]:
    if explored.serial_failed:
        yield "NOT compared: the results of the runs, because a serial schedule already fails."
    if explored.not_compared:
        yield ("NOT compared: the results of " + " and ".join(dict.fromkeys(
            explored.not_compared)) + ", because the debug data does not give their types (put "
            "KERNEL.debug and MODULE.ko.debug next to the files).")


def _as_json(explored: Explored) -> dict[str, object]:
    return {
        "tried": explored.tried, "skipped": explored.skipped, "complete": explored.complete,
        "space": explored.space, "shared": explored.shared,
        "seconds": round(explored.seconds, 3), "serial": sorted(explored.results),
        "not_compared": explored.not_compared, "serial_failed": explored.serial_failed,
        "waited": explored.waited, "check_never_holds": explored.check_never_holds,
        "stopped_early": explored.stopped_early}


def _finding(stage: Stage, finding: Finding) -> dict[str, object]:
    return {"kind": finding.kind, "message": finding.message, "schedule": finding.schedule,
            "preemptions": finding.preemptions, "lines": list(_lines(stage, finding))}


def _write_junit(path: Path, explored: Explored) -> None:
    cases = "".join(
        f'<testcase name={quoteattr(one.kind)}><failure message={quoteattr(plain(one.message))}>'
        f'{one.schedule}</failure></testcase>' for one in explored.findings)
    cases = cases or '<testcase name="schedules"/>'
    with replacing(path) as file:
        file.write(f'<testsuite name="kinst explore" tests="{max(1, len(explored.findings))}" '
                   f'failures="{len(explored.findings)}">{cases}</testsuite>\n'.encode(
                       "utf-8", "backslashreplace"))
