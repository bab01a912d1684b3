"""``kinst path``: walk through a call in a recorded run, as a page or as text."""

import argparse
import json
import sys
from pathlib import Path

from dtrace.debug.source_text import SourceText
from dtrace.flow.code import KernelCode
from dtrace.flow.path_difference import compare
from dtrace.flow.thread_path import ThreadPath, follow
from dtrace.stacks.locals import Locals
from dtrace.stacks.threads import Threads
from dwarf.debug_file import debug_file
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS, no_progress
from emu.machine.running_thread import thread_of
from emu.replay.flow import Head
from emu.replay.player import Player
from images.catalog import described
from kinst_emu.api.recording import recording_of
from kinst_emu.cli.flows import find_window, stack_of
from kinst_emu.cli.sources import sources_option
from kinst_emu.cli.sweeps import progress_bar
from kinst_emu.locks.found import has_locks, holdings, lock_members
from kinst_emu.locks.places import LockPlaces
from kinst_emu.locks.report import named
from kinst_emu.path import against, against_page
from kinst_emu.path.against import Side
from kinst_emu.path.page import LockSpan, Shown, write
from kinst_emu.path.text import lines, to_json
from kinst_emu.path.window import Window, call_window
from kinst_emu.report.page_file import write_page
from kinst_emu.runs.recorded_workload import is_recording, played_workload, workload_options
from kinst_emu.terminal.terminal import check_writable, draws, parse_count
from kinst_emu.why.explainer import Explainer

SEARCH = "looking for the branches at which they part"  # shown as progress
EXAMPLES = (
    "kinst path -k kernel '$ cat /etc/motd' --of open",
    "kinst path -k kernel '$ cat /etc/motd' --of open --html open.html",
    "kinst path mkdir.rec --of 'namei#3' --depth 2",
    "kinst path mkdir.rec --of mkdir --walk --sources /usr/src",
    "kinst path -k kernel '$ mkdir /a' --of mkdir --against '$ mkdir /etc'",
    "kinst path mkdir.rec --of mkdir --against '$ mkdir /etc' --html both.html",
    "kinst path mkdir.rec --window fbt::malloc:entry#5:fbt::malloc:return#1 --html malloc.html",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst path``."""
    workload_options(parser, "required for a workload; default: that of the recording")
    parser.add_argument("what", metavar="WHAT",
                        help="a recording, or a workload as for kinst record: '$ COMMAND', a C "
                        "file, calls in the booted kernel, or 'boot' (required)")
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--of", metavar="NAME[#N]",
                        help="show the Nth call of this function or system call (default: off; "
                        "default N: the last one)")
    chosen.add_argument("--window", metavar="FROM:TO",
                        help="show what the running thread does between two positions, as for "
                        "kinst replay --trace-insns (default: off)")
    parser.add_argument("--html", type=Path, metavar="FILE",
                        help="write a page in which to walk through the path, or with --against "
                        "a page with both (default: print the functions)")
    parser.add_argument("--walk", action="store_true",
                        help="walk through the path in the terminal (default: print the functions)")
    parser.add_argument("--depth", metavar="N",
                        help="print the functions of at most N levels below the call (default: "
                        "all)")
    parser.add_argument("--against", metavar="WHAT",
                        help="compare with the path of this recording or workload: where they "
                        "part, on which values, and which calls differ (default: off)")
    parser.add_argument("--against-of", metavar="NAME[#N]",
                        help="choose the call in the second path (default: as --of)")
    parser.add_argument("--against-set", action="append", default=[], metavar="PLACE=VALUE",
                        help="as --set, for the second workload, which is by default the first one "
                        "again; may be repeated (default: as --set)")
    parser.add_argument("-o", dest="output", type=Path, metavar="FILE",
                        help="keep the recording of the workload in this file (default: discard "
                        "it)")
    sources_option(parser)
    parser.add_argument("--json", action="store_true",
                        help="print the path as JSON (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """Record the workload if necessary, show the path, and return the exit status."""
    text = SourceText(arguments.sources) if arguments.sources else None
    if arguments.html is not None:
        check_writable(arguments.html, "--html")
        if arguments.json or arguments.depth is not None:
            raise KinstError("--html: cannot be used with --json or --depth")
    depth = None if arguments.depth is None else parse_count(arguments.depth, "--depth")
    second = _second(arguments)
    if arguments.walk:
        if arguments.html is not None or arguments.json or arguments.depth is not None:
            raise KinstError("--walk: cannot be used with --html, --json or --depth")
        if not draws():
            raise KinstError("--walk: the standard streams are not a terminal that can position "
                             "the cursor; --html FILE writes a page instead")
    with played_workload(arguments) as player:
        if second is None:
            return _shown(player, arguments, text, depth)
        with played_workload(second) as other:
            return _compared((player, other), (arguments, second), text, depth)


def _second(arguments: argparse.Namespace) -> argparse.Namespace | None:
    """Return the options of the second path, or None if there is no comparison."""
    if arguments.against is None and arguments.against_of is None and not arguments.against_set:
        return None
    if arguments.walk:
        raise KinstError("--walk: cannot be used with --against; walk through each path alone")
    if arguments.against_of is not None and arguments.of is None:
        raise KinstError("--against-of: works only with --of")
    changed = {"what": arguments.against or arguments.what, "output": None,
               "of": arguments.against_of or arguments.of,
               "set": arguments.against_set or arguments.set}
    if is_recording(changed["what"]):
        if arguments.against_set:
            raise KinstError(f"--against-set: {changed['what']} is a recording already")
        changed["set"] = []
    return argparse.Namespace(**vars(arguments) | changed)


def _compared(players: tuple[Player, Player], options: tuple[argparse.Namespace, ...],
              text: SourceText | None, depth: int | None) -> int:
    images = [player.machine.image for player in players]
    if images[0].identity != images[1].identity:
        raise KinstError(f"--against: {players[1].recording.path} is not a run of the kernel of "
                         f"{players[0].recording.path}; kinst diff compares runs of two kernels")
    sides = []
    for player, chosen in zip(players, options, strict=True):
        window = _found(player, chosen)
        with PROGRESS.working("playing the call"):
            _code, path, thread = _path(player, window)
        sides.append(Side(path, window, thread, Explainer(player, text)))
    both = sides[0], sides[1]
    with PROGRESS.working("comparing the paths"):
        comparison = compare(both[0].path, both[1].path)
    if options[0].html is not None:
        with PROGRESS.working(SEARCH):
            content = against_page.page(both, comparison, text)
        write_page(options[0].html, content, "kinst")
        return 0
    if options[0].json:
        with PROGRESS.working(SEARCH):
            content = json.dumps(against.to_json(both, comparison))
        print(content)
        return 0
    with PROGRESS.working(SEARCH):
        lines = list(against.lines(both, comparison, depth))
    for line in lines:
        print(line)
    return 0


def _found(player: Player, arguments: argparse.Namespace) -> Window:
    with PROGRESS.working("looking for the call" if arguments.of else "playing the recording"):
        return call_window(player, arguments.of) if arguments.of else _window(
            player, arguments.window)


def _shown(player: Player, arguments: argparse.Namespace, text: SourceText | None,
           depth: int | None) -> int:
    window = _found(player, arguments)
    if arguments.walk:
        return _walk(player, window, text)
    with PROGRESS.working("playing the call"):
        code, path, thread = _path(player, window)
    if arguments.html is not None:
        image = player.machine.image
        scopes = None if debug_file(image.file) is None else Locals(player.machine).scopes
        notes = tuple(note for note in (
            window.note, f"Kernel: {described(image)}.",
            "" if scopes is not None else "The kernel has no DWARF debug data, so there are no "
            "variables, inlined functions or source lines.") if note)
        shown = Shown(path, code, scopes, text, window.title, thread, notes,
                      _locks(player, code, path))
        with progress_bar(len(set(path.pcs)), "instructions") as advance:
            write(arguments.html, shown, advance)
        return 0
    if arguments.json:
        print(json.dumps({"title": window.title, "thread": thread} | to_json(path)))
        return 0
    duration = path.time(len(path.pcs)) - path.time(0)
    print(f"{window.title}: {len(path.pcs)} instructions, {duration} ns")
    for note in filter(None, (window.note,)):
        print(note)
    for line in lines(path, depth):
        print(line)
    return 0


def _locks(player: Player, code: KernelCode, path: ThreadPath) -> tuple[LockSpan, ...] | None:
    """Return the locks that the path's thread held, or None if they cannot be found."""
    if not has_locks(player):
        return None
    members = lock_members(player)
    places = LockPlaces(code, members.functions)
    try:
        with PROGRESS.working("following the locks"):
            found = holdings(player, code, places, path.begin, path.end)
    except KinstError as error:
        print(f"kinst: the page has no locks: {error}", file=sys.stderr)
        return None
    return tuple(LockSpan(
        named(one.lock), one.lock.address, one.shared,
        -1 if one.position is None else path.moment(one.position),
        len(path.pcs) if one.released is None else path.moment(one.released),
        places.text(one.where)) for one in found if one.thread == path.thread)


def _walk(player: Player, window: Window, text: SourceText | None) -> int:
    from kinst_emu.path.terminal import PathWalk  # deferred: slow to import

    walk = PathWalk(recording_of(player), window, text)
    with no_progress():
        walk.run()
    return walk.return_code or 0


def _window(player: Player, text: str) -> Window:
    end = find_window(player, text)
    return Window(player.position, end, f"From {text}")


def _path(player: Player, window: Window) -> tuple[KernelCode, ThreadPath, str]:
    """Return the kernel's code, the path in a window, and the name of its thread."""
    if player.seek(window.begin) is not None:
        raise KeyboardInterrupt
    player.give()
    machine = player.machine
    code, thread = KernelCode(machine.image), thread_of(machine)
    name = Threads(machine).name(thread) or (f"thread {thread:#x}" if thread else "the kernel")
    head = Head(machine.arch.name, machine.image.identity, window.begin, thread, stack_of(player))
    path = follow(player, code, head, window.end)
    if not path.pcs:
        raise KinstError(f"{player.recording.path}: nothing is executed from {window.begin} to "
                         f"{window.end}")
    return code, path, name
