"""Exploration of interleavings of calls from a Python program or a test."""

from emu.elf.image import Image
from kinst_emu.explore.exploration import Runs, for_runs, stage_of
from kinst_emu.explore.explorer import Explored, Explorer, Search
from kinst_emu.explore.schedule import read_schedule
from kinst_emu.terminal.terminal import parse_size


def explore(image: Image, *runs: str, setup: str = "", check: str = "", preemptions: int = 2,
            strategy: str = "all", limit: int = 100_000, seed: int = 1, races: bool = True,
            all_findings: bool = False, jobs: int = 1, schedule: str | None = None,
            memory: str = "512M", cpus: int | None = None) -> Explored:
    """Explore the interleavings of calls, as ``kinst explore`` does.

    :param runs: two to four calls.
    :param setup: calls to make before the runs.
    :param check: call to make after all runs, which must return a non-zero value, or
        ``CALL == NUMBER``.
    :param preemptions: maximum number of preemptions in a schedule.
    :param strategy: ``all``, ``pct`` or ``random``.
    :param limit: maximum number of schedules to execute.
    :param seed: random seed.
    :param races: whether to search for data races.
    :param all_findings: whether to continue after the first failure.
    :param jobs: number of processes that execute schedules.
    :param schedule: execute only this schedule, e.g. ``A120 B A``.
    :param memory: guest RAM, in MiB or with a suffix K, M or G.
    :param cpus: 1: the runs share one CPU; None: each run has its own CPU.
    :return: the findings and the coverage; the ``schedule`` of a finding reproduces it.
    :raises KinstError: invalid runs, or runs that cannot be started.
    """
    turns = None if schedule is None else read_schedule(schedule, len(runs))
    stage, judge = stage_of(for_runs(image, len(runs), cpus), Runs(runs, setup, check),
                            parse_size(memory))
    explorer = Explorer(
        stage, Search(strategy, preemptions, limit, seed, races, all_findings, jobs), judge)
    return explorer.run() if turns is None else explorer.only(turns)
