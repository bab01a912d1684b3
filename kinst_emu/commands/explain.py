"""``kinst explain``: one firing of one probe, or what a kernel does for a program, step by step."""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from emu.arch.architectures import ARCHITECTURES
from emu.host.errors import KinstError
from emu.machine.call import DEFAULT_LIMIT
from images import catalog
from kinst_emu.cli.boot_words import cpus_option, with_cpus
from kinst_emu.cli.completion import kernel_option
from kinst_emu.explain.record.what_if import WHAT_IFS
from kinst_emu.explain.steps.beside import beside
from kinst_emu.explain.steps.explained import (
    CONTEXT_SWITCH,
    PAGE_FAULT,
    Asked,
    Explained,
    explain,
    explain_way,
)
from kinst_emu.explain.view import animation
from kinst_emu.explain.view.film import alone, film, together
from kinst_emu.explain.view.firing_page import firing_page
from kinst_emu.explain.view.page import page, page_beside
from kinst_emu.explain.view.pictures import Pictures, pictures_of, stills, way_pictures
from kinst_emu.explain.view.record_json import explained_as_json, step_as_json
from kinst_emu.explain.view.scene import Moment
from kinst_emu.explain.view.text import text, text_beside
from kinst_emu.report.page_file import write_page
from kinst_emu.terminal.terminal import check_writable, parse_count, parse_size

EXAMPLES = (
    "kinst explain -k teaching/arm64 strlen:4 -c 'strlen(\"hello\")'",
    "kinst explain -k kernel malloc:12 -c 'malloc(100, &M_TEMP, 2)' -n '{ trace(arg0); }'",
    "kinst explain --arch all strlen:0 -c 'strlen(\"hello\")' --html three.html",
    "kinst explain -k kernel --of system-call open -c '$ cat /etc/motd'",
    "kinst explain -k kernel --of page-fault -c '$ cat /etc/motd' --html fault.html",
    "kinst explain -k teaching/amd64 strtoul:25 -c 'strtoul(\" -0x12\", 0, 16)' --what-if copy",
)
ALL, COMMAND, FRAME = "all", "$", "frame"
FIRING, SYSTEM_CALL, RUNS = "firing", "system-call", "runs"
OF_COMMAND = (SYSTEM_CALL, PAGE_FAULT, CONTEXT_SWITCH)  # kinds that a command has
KINDS = (FIRING, *OF_COMMAND, RUNS)


def add_options(parser: argparse.ArgumentParser) -> None:
    kernel_option(parser, required=False)
    add = parser.add_argument
    add("place", metavar="PLACE", nargs="?", default="",
        help="the probed instruction, like strlen:4 (kinst disas lists them); of a command, a "
        "system call that it makes, like open")
    add("--of", choices=KINDS, metavar="KIND", default=None,
        help=f"what is explained: a {FIRING} at PLACE, a {SYSTEM_CALL} named PLACE, a {PAGE_FAULT} "
        f"or a {CONTEXT_SWITCH} of a command, or {RUNS} (--run); without it: {PAGE_FAULT} or "
        f"{CONTEXT_SWITCH} where PLACE is that word, {RUNS} with --run, else a {SYSTEM_CALL} of a "
        f"command and a {FIRING} of a call")
    add("-c", dest="call", metavar="CALL",
        help="what makes the probe fire, e.g. 'strlen(\"hello\")'; or '$ COMMAND', a line for the "
        "shell of our userland")
    add("--arch", metavar="A[,B...]",
        help="side by side on the teaching kernels of these architectures (and amd64-illumos), or "
        "of 'all'; "
        "FUNCTION:OFFSET,OFFSET,... gives each its own offset")
    add("-n", dest="clause", metavar="CLAUSE", default="",
        help="a D clause for it, '[/PREDICATE/] { ACTIONS }', whose code is explained, too")
    add("--what-if", choices=WHAT_IFS, default="",
        help="also do it wrong: copy a position-dependent instruction as it is; let two firings "
        "share one trampoline")
    add("--run", action="append", default=[], metavar="CALL", dest="runs",
        help="instead of -c, twice or more: runs in the order of --schedule (kinst explore finds "
        "one), with a trampoline for each thread, and with one that all share (amd64)")
    add("--schedule", metavar="ORDER", help="with --run: like 'A37 B A'")
    add("--setup", default="", metavar="CALLS", help="with --run: calls that are done before")
    add("--probe", action="append", default=[], metavar="FUNCTION:OFFSET", dest="probes",
        help="with --run: more probes")
    add("--hit", default="1", metavar="N", help="explain its Nth firing (%(default)s)")
    add("--memory", default="512M", metavar="SIZE", help="guest RAM (%(default)s)")
    cpus_option(parser)
    add("--limit", default=str(DEFAULT_LIMIT), metavar="N",
        help="instructions after which the call is given up (%(default)s)")
    add("--sources", type=Path, metavar="DIR", action="append", default=[],
        help="a tree with the kernel's source, whose lines are shown; may be repeated")
    add("--html", type=Path, metavar="FILE", help="write a page, instead of text")
    add("--svg", type=Path, metavar="FILE",
        help="draw the moment of --at: code, registers, trap frame and trampoline, as a picture")
    add("--gif", type=Path, metavar="FILE", help="draw all moments, as an animation for slides")
    add("--at", metavar="STEP|N",
        help="with --svg: a step's name, like frame or trampoline, or the number of a moment: one "
        "an instruction (frame)")
    add("--json", action="store_true", help="print what was recorded, and the steps")
    add("--steps", action="store_true",
        help="print all steps, even on a terminal (where one steps through them; ? shows "
        "the keys)")


def run(arguments: argparse.Namespace) -> int:
    hit, limit = (parse_count(getattr(arguments, name), f"--{name}") for name in ("hit", "limit"))
    for path, option in ((arguments.html, "--html"), (arguments.svg, "--svg"),
                         (arguments.gif, "--gif")):
        if path:
            check_writable(path, option)
    if arguments.gif:
        animation.check()
    kind = _kind(arguments)
    _check(kind, arguments)
    if kind == RUNS:
        return _runs(arguments)
    asked = Asked(arguments.place, arguments.call, hit, arguments.clause, arguments.what_if, limit,
                  parse_size(arguments.memory), tuple(arguments.sources))
    if arguments.arch is not None:
        return _beside(arguments, asked)
    if kind in OF_COMMAND:
        return _way(arguments, arguments.place if kind == SYSTEM_CALL else kind, hit, limit)
    if arguments.kernel is None:
        raise KinstError("give a kernel: -k IMAGE, or --arch for the teaching kernels side by side")
    explained = explain(
        with_cpus(catalog.find(arguments.kernel, arguments.module), arguments.cpus), asked)
    pictures = pictures_of(explained)
    _draw(arguments, pictures)
    if arguments.html:
        write_page(arguments.html, firing_page(explained), "kinst")
    if arguments.json:
        print(json.dumps(explained_as_json(explained)))
    elif arguments.svg or arguments.gif:
        return 0
    elif not arguments.html and not arguments.steps and _draws():
        _step_through(explained)
    elif not arguments.html:
        for line in text(explained.steps):
            print(line)
    return 0


def _kind(arguments: argparse.Namespace) -> str:
    """What is explained."""
    if arguments.of is not None:
        return str(arguments.of)
    if arguments.runs or arguments.schedule is not None:
        return RUNS
    if arguments.place in (PAGE_FAULT, CONTEXT_SWITCH):
        return str(arguments.place)
    return SYSTEM_CALL if (arguments.call or "").startswith(COMMAND) else FIRING


def _check(kind: str, arguments: argparse.Namespace) -> None:
    """Hold what is given to what a kind of question needs.

    :raises KinstError: when it is too little, or something else.
    """
    runs = bool(arguments.runs) or arguments.schedule is not None
    if runs and kind != RUNS:
        raise KinstError(f"--of {kind}: not with --run and --schedule, which are --of {RUNS}")
    command = (arguments.call or "").startswith(COMMAND)
    if kind in OF_COMMAND and not command:
        raise KinstError(f"a {kind} is explained of a command: -c '$ cat /etc/motd'")
    if arguments.call is None and kind != RUNS:
        raise KinstError("give what makes the probe fire: -c 'strlen(\"hello\")'; or --run, twice, "
                         "and --schedule")
    if kind in OF_COMMAND and arguments.arch is not None:
        raise KinstError("--arch: the teaching kernels have no programs: give -k IMAGE instead")
    if kind == FIRING and command:
        raise KinstError(f"a {FIRING} is explained of a call: -c 'strlen(\"hello\")'; of a "
                         f"command, --of can be {', '.join(OF_COMMAND)}")
    if kind in (PAGE_FAULT, CONTEXT_SWITCH):
        if arguments.place not in ("", kind):
            raise KinstError(f"{arguments.place}: leave it out: a {kind} has no PLACE")
    elif kind == SYSTEM_CALL and arguments.place in OF_COMMAND:
        raise KinstError(f"{arguments.place}: is no system call: --of {arguments.place}")
    elif not arguments.place:
        raise KinstError("give the system call, like open" if kind == SYSTEM_CALL else
                         "give the probed instruction, like strlen:4")


def _picture(pictures: Pictures[Moment], at: str | None) -> str:
    """:param at: the name of a step, or the number of a moment, from 1; None: a step that shows
        what others are about, too."""
    named = {step.name: number for number, step in pictures.steps}
    if at is None:
        at = next((name for name in (FRAME, *named) if name in named), "1")
    if at in named:
        return pictures.svg(named[at], at)
    if not at.isdecimal():
        raise KinstError(f"--at {at}: there is no such step; there are {', '.join(named)}, and "
                         f"moments 1 to {len(pictures.moments)}")
    number = parse_count(at, "--at")
    if not 1 <= number <= len(pictures.moments):
        raise KinstError(f"--at {at}: there are moments 1 to {len(pictures.moments)}")
    return pictures.svg(number - 1)


def _runs(arguments: argparse.Namespace) -> int:
    """Firings of several runs, beside each other."""
    from kinst_emu.explore.exploration import Runs
    from kinst_emu.explore.two_runs import PlayedRuns, played_runs, runs_page

    if arguments.kernel is None or arguments.schedule is None or not arguments.runs:
        raise KinstError("give a kernel (-k IMAGE), --run, twice or more, and --schedule, like "
                         "'A37 B A'")
    runs = Runs(tuple(arguments.runs), arguments.setup,
                probes=(arguments.place, *arguments.probes))
    image, played = catalog.find(arguments.kernel, arguments.module), list[PlayedRuns]()
    for one in played_runs(image, runs, arguments.schedule, parse_size(arguments.memory),
                           arguments.cpus):
        played.append(one)
        for line in () if arguments.html else one.lines(len(played)):
            print(line)
    if arguments.html:
        write_page(arguments.html, runs_page(image, arguments.schedule, played), "kinst")
    return 0


def _way(arguments: argparse.Namespace, name: str, hit: int, limit: int) -> int:
    """A way through the kernel.

    :param name: as of ``explain_way``.
    """
    for option in ("clause", "what_if", "sources"):
        if getattr(arguments, option):
            spelled = {"clause": "-n", "what_if": "--what-if"}.get(option, f"--{option}")
            raise KinstError(f"{spelled}: is for a probe, not for what a command does")
    if arguments.kernel is None:
        raise KinstError("give a kernel: -k IMAGE")
    explained = explain_way(
        with_cpus(catalog.find(arguments.kernel, arguments.module), arguments.cpus),
        name,
        arguments.call.removeprefix(COMMAND).strip(), hit, limit, parse_size(arguments.memory))
    pictures = way_pictures(explained)
    _draw(arguments, pictures)
    if arguments.html:
        write_page(arguments.html, page(explained.title, explained.about, explained.steps,
                                        pictures.of_steps(), alone(film(pictures)),
                                        "The way, instruction by instruction"), "kinst")
    if arguments.json:
        print(json.dumps({"steps": [step_as_json(step) for step in explained.steps]}))
    elif not (arguments.html or arguments.svg or arguments.gif):
        for line in text(explained.steps):
            print(line)
    return 0


def _draw(arguments: argparse.Namespace, pictures: Pictures[Moment]) -> None:
    """What --svg and --gif ask for."""
    if arguments.svg:
        write_page(arguments.svg, _picture(pictures, arguments.at), "kinst")
    if arguments.gif:
        count = animation.write_animation(pictures, arguments.gif)
        print(f"kinst: wrote {arguments.gif} ({count} pictures)", file=sys.stderr)


def _draws() -> bool:
    """Whether there is a terminal that can do more than print lines."""
    return (sys.stdout.isatty() and sys.stdin.isatty()
            and os.environ.get("TERM", "dumb") not in ("", "dumb"))


def _step_through(explained: Explained) -> None:
    from kinst_emu.explain.view.terminal import Stepper  # takes long to load

    Stepper(explained).run()


def _failed(failed: Mapping[str, str], names: Sequence[str]) -> str:
    """What went wrong on which architecture; what is wrong on all of them, once."""
    if len(failed) == len(names) and len(set(failed.values())) == 1:
        return next(iter(failed.values()))
    good = [name for name in names if name not in failed]
    return "; ".join([*(f"on {name}, {text}" for name, text in failed.items()),
                      *([f"on {' and '.join(good)} it can be explained"] if good else []),
                      f"FUNCTION:OFFSET,... gives {', '.join(names)} each its own offset"])


def _beside(arguments: argparse.Namespace, asked: Asked) -> int:
    """The same function on several architectures."""
    for option in ("svg", "gif"):
        if getattr(arguments, option):
            raise KinstError(f"--{option}: is for one kernel: without --arch")
    if arguments.kernel is not None or arguments.module:
        raise KinstError("--arch explains the teaching kernels, side by side: without -k and "
                         "--module")
    names = list(ARCHITECTURES) if arguments.arch == ALL else arguments.arch.split(",")
    known = (*ARCHITECTURES, *catalog.FLAVOURS)
    for name in names:
        if name not in known or names.count(name) > 1:
            raise KinstError(f"--arch: '{name}': give {', '.join(known)}, each once, with commas "
                             f"between them, or {ALL}, which is {', '.join(ARCHITECTURES)}")
    begin = max(asked.place.rfind(":"), asked.place.rfind("+")) + 1
    function, places = asked.place[:begin], asked.place[begin:].split(",")
    if len(places) not in (1, len(names)):
        raise KinstError(f"'{asked.place}': give one offset, or one for each of {', '.join(names)}")
    explained, failed = dict[str, Explained](), dict[str, str]()
    for number, name in enumerate(names):
        place = f"{function}{places[number % len(places)]}"
        try:
            explained[name] = explain(catalog.find(f"teaching/{name}"), replace(asked, place=place))
        except KinstError as error:
            failed[name] = str(error)
    if failed:
        raise KinstError(_failed(failed, names))
    found = beside({name: one.steps for name, one in explained.items()})
    if arguments.html:
        about = (f"The teaching kernel, {asked.call}; every number is of one run on each "
                 "architecture.")
        kernels = ", ".join(catalog.described(one.image) for one in explained.values())
        title = f"A breakpoint in {function}: {kernels}"
        order = [name for name, _steps in found]
        pictures = {name: pictures_of(one) for name, one in explained.items()}
        write_page(arguments.html, page_beside(
            title, about, names, found, stills(pictures, order),
            together({name: film(one) for name, one in pictures.items()}, order)), "kinst")
    if arguments.json:
        print(json.dumps({name: explained_as_json(one) for name, one in explained.items()}))
    elif not arguments.html:
        for line in text_beside(names, found):
            print(line)
    return 0
