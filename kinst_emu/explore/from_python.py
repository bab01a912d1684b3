"""The orders of calls, tried from a Python program or a test."""

from emu.elf.image import Image
from kinst_emu.explore.exploration import Runs, for_runs, stage_of
from kinst_emu.explore.explorer import Explored, Explorer, Search
from kinst_emu.explore.order import read_order
from kinst_emu.terminal.terminal import parse_size


def explore(image: Image, *runs: str, setup: str = "", check: str = "", preemptions: int = 2,
            strategy: str = "all", limit: int = 100_000, seed: int = 1, races: bool = True,
            all_findings: bool = False, jobs: int = 1, schedule: str | None = None,
            memory: str = "512M", cpus: int | None = None) -> Explored:
    """Try the orders in which calls can run at once, as ``kinst explore`` does.

    :param runs: calls, two to four; ``setup``: calls before; ``check``: a call behind all that is
        to give something but 0, or ``CALL == NUMBER``.
    :param strategy: ``all``, ``pct`` or ``random``; ``limit``: how many orders are tried.
    :param races: whether data races are looked for; ``all_findings``: go on behind the first order
        that does harm.
    :param jobs: processes that try orders.
    :param schedule: this order alone, like ``A120 B A``.
    :param cpus: 1: they share one CPU; None: each has one of its own.
    :return: what was found, and how much was seen; a finding's ``schedule`` shows it again.
    :raises KinstError: for runs that are none, or cannot be started.
    """
    order = None if schedule is None else read_order(schedule, len(runs))
    stage, judge = stage_of(for_runs(image, len(runs), cpus), Runs(runs, setup, check),
                            parse_size(memory))
    explorer = Explorer(
        stage, Search(strategy, preemptions, limit, seed, races, all_findings, jobs), judge)
    return explorer.run() if order is None else explorer.only(order)
