"""``kinst xval --dtrace``: D programs on the guest's dtrace(1) and on kdtrace."""

import argparse
import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dtrace.judge.outcome import DECISIONS, LIMITS
from emu.arch.architectures import arch_of
from emu.elf.image import Image
from emu.host.errors import KinstError
from emu.host.fingerprint import our_code
from images.shell import check_command
from kinst.verify.sweep.store import Key
from kinst.verify.sweep.sweep import sweep
from kinst_emu.cli.judged import (
    AGREES,
    DIFFERS,
    LIMITED,
    NOT_COMPARED,
    REFUSED,
    SEED,
    Item,
    JudgeTask,
    Verdict,
    random_program,
    script,
)
from kinst_emu.cli.sweeps import Sweep, compiler_of, progress_bar
from kinst_emu.terminal.terminal import parse_count

CHUNK = 5  # number of programs per work item
DEFAULT_PROGRAMS, MAX_PROGRAMS = 20, 100_000


def refuse_others(arguments: argparse.Namespace) -> None:
    """Refuse options that have no meaning with ``--dtrace``.

    :raises KinstError: there is such an option, or ``--base`` is missing.
    """
    if arguments.call is not None and arguments.suite:
        raise KinstError("-c: cannot be used with --suite")
    if arguments.call is not None:
        command = arguments.call.removeprefix("$ ").strip()
        if not (arguments.dtrace and arguments.call.startswith("$ ") and command):
            raise KinstError("-c: with --dtrace SCRIPT, it must be a command for the guest's "
                             "shell, like -c '$ ls /'")
        check_command(command)
    for name, spelled in (("functions", "--functions"), ("system", "--system"),
                          ("fault", "--fault"), ("module", "--module")):
        if getattr(arguments, name):
            raise KinstError(f"{spelled}: cannot be used with --dtrace")
    if not arguments.base:
        raise KinstError("--dtrace: needs --base: the dtrace(1) of a base system is the judge")


def judge_programs(image: Image, memory: int, seed: int, arguments: argparse.Namespace) -> int:
    """Run programs on both tracers, print the differences, and return the exit status.

    :param image: the kernel with the base system.
    :param memory: guest RAM in bytes.
    :raises KinstError: no program was found, or the system has no dtrace(1).
    """
    items = _items(arguments, seed)
    task = JudgeTask(str(image.path.absolute()), image.kernel_identity, memory,
                     (arguments.call or "").removeprefix("$ "))
    counts, shown = Counter[str](), list[Verdict]()
    with Sweep(arguments) as jobs, progress_bar(len(items), "programs") as advance:
        for verdicts in _verdicts(task, image, items, jobs):
            for verdict in verdicts:
                counts[verdict.word] += 1
                if verdict.word in (DIFFERS, NOT_COMPARED):
                    shown.append(verdict)
                    if not arguments.json:
                        print("\n".join(_text(arguments, verdict)), flush=True)
            advance(len(verdicts))
    if arguments.json:
        print(json.dumps({
            "seed": None if arguments.dtrace else seed, "programs": len(items),
            "agree": counts[AGREES], "refused_by_both": counts[REFUSED],
            "beyond_limits": counts[LIMITED],
            "differ": [{"program": one.name, "lines": one.lines, "smallest": one.smallest}
                       for one in shown if one.word == DIFFERS],
            "not_compared": [{"program": one.name, "why": " ".join(one.lines)}
                             for one in shown if one.word == NOT_COMPARED]}))
    else:
        _print_summary(counts, len(items), None if arguments.dtrace else seed)
    if not shown and not counts[AGREES] + counts[REFUSED]:
        raise KinstError("no program was compared: dtrace(1) refused all for limits that kdtrace "
                         "does not have")
    return 1 if shown else 0


def _items(arguments: argparse.Namespace, seed: int) -> list[Item]:
    if not arguments.dtrace:
        count = DEFAULT_PROGRAMS if arguments.random is None else parse_count(
            arguments.random, "--random")
        if count > MAX_PROGRAMS:
            raise KinstError(f"--random {count}: at most {MAX_PROGRAMS} programs are allowed")
        return [random_program(seed + index) for index in range(count)]
    for name in ("random", "seed"):
        if getattr(arguments, name) is not None:
            raise KinstError(f"--{name}: cannot be used with scripts, which --dtrace names")
    paths = list[Path]()
    for given in map(Path, arguments.dtrace):
        found = sorted(path for path in given.rglob("*.d") if path.is_file()) if given.is_dir() \
            else [given]
        if not found:
            raise KinstError(f"{given}: contains no D programs (*.d)")
        paths += [path.absolute() for path in found]
    return [script(path) for path in dict.fromkeys(paths)]


def _verdicts(task: JudgeTask, image: Image, items: list[Item], jobs: Sweep
              ) -> Iterator[list[Verdict]]:
    """Yield verdicts as soon as they are known."""
    arch = arch_of(image).name
    key = Key("xval", f"dtrace(1) {our_code()} {image.identity} with {task.memory >> 20} MB"
              f"{task.workload and f' while {task.workload} runs'}", arch,
              0, 0)
    if jobs.store is not None:
        jobs.store.begin(key, image.kernel_identity, task.kernel, compiler_of(image.path),
                         {task.named(item): "dtrace" for item in items})
    yield from sweep(task, items, jobs.workers, jobs.store, key, CHUNK, most=1)


def _text(arguments: argparse.Namespace, verdict: Verdict) -> list[str]:
    if verdict.word == NOT_COMPARED:
        return [f"{verdict.name}: not compared: {' '.join(verdict.lines)}"]
    lines = [f"{verdict.name}: the tracers differ", *(f"  {line}" for line in verdict.lines)]
    lines.append("  the smallest program that differs:")
    lines += [f"    {line}" for line in verdict.smallest.splitlines()]
    again = (f"--dtrace {shlex.quote(verdict.name)}" if not verdict.name.startswith(SEED)
             else f"--dtrace --random 1 --seed {verdict.name.removeprefix(SEED)}")
    if arguments.call is not None:
        again += f" -c {shlex.quote(arguments.call)}"
    return [*lines, f"  to repeat: kinst xval -k {shlex.quote(arguments.kernel)} --base {again}"]


def _print_summary(counts: Counter[str], total: int, seed: int | None) -> None:
    print(f"{counts[AGREES]} of {total} programs agree, dtrace(1) and kdtrace refuse "
          f"{counts[REFUSED]} with the same message, {counts[DIFFERS]} differ"
          + ("" if seed is None else f" (seed {seed})"))
    if counts[LIMITED]:
        print(f"  {counts[LIMITED]} refused by dtrace(1) for a limit that kdtrace does not have: "
              f"{', '.join(LIMITS)}")
    if counts[NOT_COMPARED]:
        print(f"  {counts[NOT_COMPARED]} not compared", file=sys.stderr)
    print("  not compared, because they differ on purpose:")
    for _where, _pattern, _replacement, why in DECISIONS:
        print(f"    {why}")
