"""Options common to all sweeps: workers, stored results, and the progress bar."""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, Self

from dwarf.debug_file import DebugDataError, content, elf_file
from emu.host.errors import KinstError
from emu.host.printable import name as printable_name
from kinst.verify.sweep.store import Store
from kinst.verify.sweep.workers import Workers, workers
from kinst_emu.terminal.terminal import parse_count

MAX_COMPILER = 200


def sweep_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--jobs``, ``--cluster`` and ``--store``."""
    parser.add_argument("--jobs", metavar="N",
                        help="number of worker processes on this machine (default: 1)")
    parser.add_argument("--cluster", metavar="ADDRESS",
                        help="use the workers of the Dask scheduler at this address (default: "
                        "local processes)")
    parser.add_argument("--store", type=Path, metavar="FILE",
                        help="keep results in this file and skip items whose results are in the "
                        "file, so that an interrupted sweep can be resumed; kinst report shows the "
                        "results (default: do not keep results)")


class Sweep:
    """Workers and result store of a sweep, as given on a command line.

    :raises KinstError: when the workers or the store cannot be used.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        jobs = 1 if arguments.jobs is None else parse_count(arguments.jobs, "--jobs")
        store: Path | None = arguments.store
        if store is not None and not store.parent.is_dir():
            raise KinstError(f"--store {store}: the directory does not exist")
        self.workers: Workers = workers(max(jobs, 1), arguments.cluster)
        self.store = None if store is None else Store(store)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.workers.close()
        if self.store is not None:
            self.store.close()


def compiler_of(path: Path) -> str:
    """Return the compiler named in a kernel's .comment section, or an empty string if unknown."""
    try:
        text = content(elf_file(path), ".comment")[:1 << 12]
    except (DebugDataError, OSError):
        return ""
    words = dict.fromkeys(printable_name(part) for part in text.split(b"\0")
                          if part and not part.startswith(b"$"))  # skip version tags ($NetBSD: $)
    return "; ".join(words)[:MAX_COMPILER]


class Advance(Protocol):
    """Callback that advances a progress bar by ``done`` items.

    ``of`` sets a new total; 0 keeps the initial total.
    """

    def __call__(self, done: int, of: int = 0) -> None: ...


@contextlib.contextmanager
def progress_bar(total: int, what: str) -> Iterator[Advance]:
    """Show a progress bar with an estimate of the remaining time, if stderr is a terminal.

    :param total: number of items.
    :param what: what the items are, as the label of the bar.
    """
    if not sys.stderr.isatty():
        yield lambda done, of=0: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, of=0: bar.update(task, advance=done, total=of or total)
