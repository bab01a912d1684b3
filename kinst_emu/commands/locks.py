"""``kinst locks``: show the locks that a recorded run acquires and releases."""

import argparse
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from dtrace.flow.code import KernelCode
from dtrace.stacks.threads import Threads
from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from emu.replay.player import Player
from images.catalog import described
from images.recordings import from_start
from kinst_emu.cli.flows import find_window
from kinst_emu.locks.found import holdings, lock_members
from kinst_emu.locks.page import page
from kinst_emu.locks.places import LockPlaces
from kinst_emu.locks.report import (
    Order,
    classes,
    events,
    graph,
    inversions,
    is_new,
    orders,
    to_json,
)
from kinst_emu.path.window import Window, call_window
from kinst_emu.report.page_file import write_page
from kinst_emu.runs.recorded_workload import played_workload, workload_options
from kinst_emu.terminal.terminal import check_writable

MAX_DRAWN = 150  # maximum number of orders in the picture of a page
DRAWING = 120  # time limit of graphviz in seconds
LINES = "looking for the source lines"  # shown as progress
EXAMPLES = (
    "kinst locks -k kernel '$ cat /etc/motd' --of fork",
    "kinst locks -k kernel '$ ls /' --summary",
    "kinst locks -k kernel '$ ls /' --html locks.html",
    "kinst locks ls.rec --summary --graph order.svg",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst locks``."""
    workload_options(parser, "required for a workload; default: that of the recording")
    parser.add_argument("what", metavar="WHAT",
                        help="a recording, or a workload as for kinst record: '$ COMMAND', a C "
                        "file, calls in the booted kernel, or 'boot' (required)")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--of", metavar="NAME[#N]",
                        help="only during the Nth call of this function or system call (default: "
                        "the whole run; default N: the last one)")
    chosen.add_argument("--window", metavar="FROM:TO",
                        help="only between two positions, as for kinst replay --trace-insns "
                        "(default: the whole run)")
    parser.add_argument("--summary", action="store_true",
                        help="print one line for each class of locks (default: each acquisition "
                        "and release)")
    parser.add_argument("--graph", type=Path, metavar="FILE",
                        help="write the order in which locks are acquired: FILE.svg, drawn by "
                        "Graphviz, or FILE.dot (default: off)")
    parser.add_argument("--html", type=Path, metavar="FILE",
                        help="write a page with a time line, the classes, the acquisitions and the "
                        "orders (default: print them)")
    parser.add_argument("-o", dest="output", type=Path, metavar="FILE",
                        help="keep the recording of the workload in this file (default: discard "
                        "it)")
    parser.add_argument("--json", action="store_true",
                        help="print the acquisitions as JSON (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """Record the workload if necessary, show its locks, and return the exit status."""
    if arguments.graph is not None:
        check_writable(arguments.graph, "--graph")
        if arguments.graph.suffix not in (".svg", ".dot"):
            raise KinstError(f"--graph {arguments.graph}: the name must end in .svg or .dot")
        if arguments.graph.suffix == ".svg" and shutil.which("dot") is None:
            raise KinstError(f"--graph {arguments.graph}: Graphviz is not installed (apt-get "
                             "install graphviz); write a .dot file instead")
    if arguments.html is not None:
        check_writable(arguments.html, "--html")
        if arguments.json or arguments.summary:
            raise KinstError("--html: cannot be used with --json or --summary")
    with played_workload(arguments) as player:
        return _shown(player, arguments)


def _shown(player: Player, arguments: argparse.Namespace) -> int:
    machine = player.machine
    members = lock_members(player)
    with PROGRESS.working("looking for the window"):
        window = _window(player, arguments)
    code = KernelCode(machine.image)
    places = LockPlaces(code, members.functions)
    with PROGRESS.working(
            f"following {window.end.instructions - window.begin.instructions:,} instructions"):
        found = holdings(player, code, places, window.begin, window.end)
    names = Threads(machine).names({one.thread for one in found} | {
        one.releaser for one in found})
    order = orders(found)
    if arguments.graph is not None:
        _draw(arguments.graph, graph(order))
    wrong = inversions(order)
    if arguments.html is not None:
        with PROGRESS.working("drawing the orders"):
            drawing = _drawing(order)
        with PROGRESS.working(LINES):
            content = page(
                f"Locks: {window.title}", f"Kernel: {described(machine.image)}.", found, names,
                places.text, order, window.begin.time, window.end.time, drawing)
        write_page(arguments.html, content, "kinst")
        return 0
    if arguments.json:
        with PROGRESS.working(LINES):
            rows = to_json(found, names, places.text)
            between = [{"before": one.before, "after": one.after, "count": one.count,
                        "where": places.text(one.where)} for one in order]
        print(json.dumps({
            "title": window.title, "begin": window.begin.instructions,
            "end": window.end.instructions, "locks": rows, "orders": between,
            "inversions": [[one.before, one.after] for one, _other in wrong]}))
        return 0
    print(f"{window.title}: {sum(map(is_new, found))} acquisitions of "
          f"{len({(one.lock.kind, one.lock.place or one.lock.address) for one in found})} locks")
    with PROGRESS.working(LINES):
        lines = list(classes(found, places.text) if arguments.summary
                     else events(found, names, places.text, window.begin.time))
    for line in lines:
        print(line)
    for one, other in wrong:
        print(f"both orders: {one.before} before {one.after} ({places.text(one.where)}), and the "
              f"reverse ({places.text(other.where)})")
    if arguments.graph is not None:
        print(f"wrote {arguments.graph}")
    return 0


def _window(player: Player, arguments: argparse.Namespace) -> Window:
    if arguments.of is not None:
        return call_window(player, arguments.of)
    if arguments.window is not None:
        end = find_window(player, arguments.window)
        return Window(player.position, end, f"From {arguments.window}")
    from_start(player)
    return Window(player.recording.start.position, player.recording.last, "The whole run")


def _drawing(found: Sequence[Order]) -> str:
    """Return the picture of the orders for a page; empty if it would be too large, or undrawable.

    The page has the orders as a table, too.
    """
    if not 0 < len(found) <= MAX_DRAWN or shutil.which("dot") is None:
        return ""
    try:
        drawn = _svg(graph(found))
    except (subprocess.SubprocessError, OSError):
        return ""
    _before, begin, rest = drawn.decode("utf-8", "replace").partition("<svg")
    return begin + rest


def _svg(text: str) -> bytes:
    """Return a graph as drawn by Graphviz."""
    with PROGRESS.working("drawing the order of the locks"):
        return subprocess.run(["dot", "-Tsvg"], input=text.encode(), capture_output=True,
                              check=True, timeout=DRAWING).stdout


def _draw(path: Path, text: str) -> None:
    """Write the graph, as text or drawn by Graphviz."""
    content = text.encode()
    if path.suffix == ".svg":
        try:
            content = _svg(text)
        except (subprocess.SubprocessError, OSError) as error:
            raise KinstError(f"--graph {path}: Graphviz cannot draw it: {error}; write a .dot "
                             "file instead") from None
    with replacing(path) as file:
        file.write(content)
