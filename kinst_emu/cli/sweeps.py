"""What all sweeps have in common on the command line: who works, where results are kept, how far
it is."""

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
    """``--jobs``, ``--cluster`` and ``--store``."""
    parser.add_argument("--jobs", metavar="N", help="processes on this machine (1)")
    parser.add_argument("--cluster", metavar="ADDRESS",
                        help="use the workers of this Dask scheduler instead")
    parser.add_argument("--store", type=Path, metavar="FILE",
                        help="keep the results in this file, and do not repeat what it has: a "
                        "sweep that was killed resumes where it was (kinst report reads it)")


class Sweep:
    """Who works and where results are kept, as a command line has it.

    :raises KinstError: for what cannot be used.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        jobs = 1 if arguments.jobs is None else parse_count(arguments.jobs, "--jobs")
        store: Path | None = arguments.store
        if store is not None and not store.parent.is_dir():
            raise KinstError(f"--store {store}: there is no such directory")
        self.workers: Workers = workers(max(jobs, 1), arguments.cluster)
        self.store = None if store is None else Store(store)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.workers.close()
        if self.store is not None:
            self.store.close()


def compiler_of(path: Path) -> str:
    """What a kernel was built by, as its .comment says; empty where it does not."""
    try:
        text = content(elf_file(path), ".comment")[:1 << 12]
    except (DebugDataError, OSError):
        return ""
    words = dict.fromkeys(printable_name(part) for part in text.split(b"\0")
                          if part and not part.startswith(b"$"))  # $NetBSD: ... $ of source files
    return "; ".join(words)[:MAX_COMPILER]


class Advance(Protocol):
    """Is told that so many more are done, ``of`` so many by now (0: as many as before)."""

    def __call__(self, done: int, of: int = 0) -> None: ...


@contextlib.contextmanager
def progress_bar(total: int, what: str) -> Iterator[Advance]:
    """How far it is, with an estimate, on a terminal."""
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
