"""``kinst explain``: explain, step by step, a probe's firing or the kernel's work for a program."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from emu.arch.architectures import ARCHITECTURES
from emu.elf.image import Image
from emu.host.errors import KinstError
from emu.machine.call import DEFAULT_LIMIT
from images import catalog
from images.systems import with_disks
from kinst_emu.cli.boot_words import cpus_option, disk_option, system_options, with_cpus
from kinst_emu.cli.completion import kernel_option
from kinst_emu.cli.device_words import attached
from kinst_emu.explain.record.what_if import WHAT_IFS
from kinst_emu.explain.steps.beside import beside
from kinst_emu.explain.steps.explained import (
    CONTEXT_SWITCH,
    PAGE_FAULT,
    Asked,
    Explained,
    ExplainedWay,
    explain,
    explain_way,
)
from kinst_emu.explain.steps.explained_tracing import (
    explain_ours,
    explain_tracing,
    modules_of,
)
from kinst_emu.explain.view import animation
from kinst_emu.explain.view.film import alone, film, together
from kinst_emu.explain.view.firing_page import firing_page
from kinst_emu.explain.view.moving_svg import moving_svg
from kinst_emu.explain.view.page import page, page_beside
from kinst_emu.explain.view.pictures import Pictures, pictures_of, stills, way_pictures
from kinst_emu.explain.view.record_json import explained_as_json, step_as_json
from kinst_emu.explain.view.scene import Moment
from kinst_emu.explain.view.text import text, text_beside
from kinst_emu.explain.view.tracing_page import OURS, tracing_page, tracing_text
from kinst_emu.report.page_file import write_page
from kinst_emu.terminal.terminal import check_writable, draws, parse_count, parse_size

EXAMPLES = (
    "kinst explain -k teaching/arm64 strlen:4 -c 'strlen(\"hello\")'",
    "kinst explain -k kernel malloc:12 -c 'malloc(100, &M_TEMP, 2)' -n '{ trace(arg0); }'",
    "kinst explain --arch all strlen:0 -c 'strlen(\"hello\")' --html three.html",
    "kinst explain -k kernel --of system-call open -c '$ cat /etc/motd'",
    "kinst explain -k kernel --of page-fault -c '$ cat /etc/motd' --html fault.html",
    "kinst explain -k 15.0-RELEASE/amd64 --base --real malloc:8 -c '$ ls /' --html kinst.html",
    "kinst explain -k teaching/amd64 strtoul:25 -c 'strtoul(\" -0x12\", 0, 16)' --what-if copy",
)
ALL, COMMAND, FRAME = "all", "$", "frame"
FIRING, SYSTEM_CALL, RUNS = "firing", "system-call", "runs"
# kinds of explanation that need -c '$ COMMAND'
OF_COMMAND = (SYSTEM_CALL, PAGE_FAULT, CONTEXT_SWITCH)
KINDS = (FIRING, *OF_COMMAND, RUNS)
EVERY_MOMENT = "all"  # value of --at that selects an animation of all moments


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst explain``."""
    kernel_option(parser, optional="required, except with --arch")
    add = parser.add_argument
    add("place", metavar="PLACE", nargs="?", default="",
        help="instruction with the probe, e.g. strlen:4 (kinst disas lists the instructions); for "
        "a command, the system call to explain, e.g. open (required, except for page faults and "
        "context switches)")
    add("--of", choices=KINDS, metavar="KIND", default=None,
        help=f"what to explain; {FIRING}: a firing at PLACE; {SYSTEM_CALL}: the system call PLACE "
        f"of a command; {PAGE_FAULT}, {CONTEXT_SWITCH}: one that occurs in a command; {RUNS}: the "
        f"runs given with --run (default: {RUNS} with --run; {PAGE_FAULT} or {CONTEXT_SWITCH} if "
        f"PLACE is that word; {SYSTEM_CALL} for a command; otherwise {FIRING})")
    add("-c", dest="call", metavar="CALL",
        help="call that makes the probe fire, e.g. 'strlen(\"hello\")'; or '$ COMMAND', where "
        "COMMAND is a line for the kinst-emu shell, or with --base or --disk for that system's "
        "root shell (required, except with --run)")
    add("--arch", metavar="A[,B...]",
        help="explain PLACE on several teaching kernels side by side; A is an architecture or "
        "amd64-illumos, or 'all' for all architectures; a PLACE of the form "
        "FUNCTION:OFFSET,OFFSET,... gives one offset for each kernel (default: only the kernel "
        "given with -k)")
    add("-n", dest="clause", metavar="CLAUSE", default="",
        help="D clause for the probe, in the form '[/PREDICATE/] { ACTIONS }'; the code of the "
        "clause is also explained (default: no clause)")
    add("--real", action="store_true",
        help="explain a firing of the kernel's own tracer: PLACE (also "
        "PROVIDER:MODULE:FUNCTION:NAME) is traced by the base system's dtrace(1) with the clause "
        "of -n while the command runs; needs --base or --disk (default: a firing of this "
        "program's probes)")
    add("--beside", action="store_true",
        help="with --real: show the first firing of this program's probe at PLACE, a "
        "FUNCTION:OFFSET, beside the kernel's (default: only the kernel's)")
    add("--what-if", choices=WHAT_IFS, default="",
        help="also show an incorrect implementation; copy: copy a position-dependent instruction "
        "unchanged; share: let two firings share one trampoline (default: show only the correct "
        "one)")
    add("--run", action="append", default=[], metavar="CALL", dest="runs",
        help="instead of -c: call made by a run; give --run once for each run (two or more), in "
        "the order A, B, ...; the runs follow --schedule and are explained twice: with a "
        "trampoline for each thread, and with one trampoline shared by all threads; amd64 only "
        "(default: the call given with -c)")
    add("--schedule", metavar="SCHEDULE",
        help="with --run: schedule of the runs, e.g. 'A37 B A': A for 37 instructions, then B to "
        "its end, then A; kinst explore finds schedules (required with --run)")
    add("--setup", default="", metavar="CALLS",
        help="with --run: calls to make before the runs (default: no calls)")
    add("--probe", action="append", default=[], metavar="FUNCTION:OFFSET", dest="probes",
        help="with --run: probe this instruction in addition to PLACE; may be repeated (default: "
        "only PLACE)")
    add("--hit", default="1", metavar="N",
        help="explain the Nth firing, system call, page fault or context switch (default: "
        "%(default)s)")
    add("--memory", default="512M", metavar="SIZE",
        help="guest RAM, in MiB or with a suffix K, M or G (default: %(default)s)")
    disk_option(parser)
    system_options(parser)
    parser.add_argument("--net", metavar="WHAT",
                        help="attach a network device: 'peer' or 'peer:FOLDER', as for kinst run "
                        "(default: no network device)")
    cpus_option(parser)
    add("--limit", default=str(DEFAULT_LIMIT), metavar="N",
        help="abandon the call after N instructions (default: %(default)s)")
    add("--sources", type=Path, metavar="DIR", action="append", default=[],
        help="show lines from this kernel source tree; may be repeated (default: no source text)")
    add("--html", type=Path, metavar="FILE",
        help="write an HTML page to this file (default: print text)")
    add("--svg", type=Path, metavar="FILE",
        help="write an SVG picture to this file; the picture shows code, registers, trap frame and "
        "trampoline at the moment that --at selects (default: print text)")
    add("--gif", type=Path, metavar="FILE",
        help="write an animated GIF of all moments to this file (default: print text)")
    add("--at", metavar="STEP|N|all",
        help="with --svg: moment to draw; STEP: a step, e.g. frame or trampoline; N: the Nth "
        "moment (an executed instruction or a call of the handler), counted from 1; all: every "
        "moment, as an animation (default: frame)")
    add("--json", action="store_true",
        help="print the recorded data and the steps as JSON (default: text)")
    add("--steps", action="store_true",
        help="print all steps at once, even on a terminal (default: step through them on a "
        "terminal, where ? shows the keys)")


def run(arguments: argparse.Namespace) -> int:
    """Record and explain the selected events, and return the exit status."""
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
    if arguments.real:
        return _real(arguments, hit, limit)
    if kind in OF_COMMAND:
        return _way(arguments, arguments.place if kind == SYSTEM_CALL else kind, hit, limit)
    if arguments.kernel is None:
        raise KinstError("give a kernel (-k IMAGE), or --arch for teaching kernels side by side")
    explained = explain(_image(arguments), asked)
    pictures = pictures_of(explained)
    _draw(arguments, pictures)
    if arguments.html:
        write_page(arguments.html, firing_page(explained), "kinst")
    if arguments.json:
        print(json.dumps(explained_as_json(explained)))
    elif arguments.svg or arguments.gif:
        return 0
    elif not arguments.html and not arguments.steps and draws():
        _step_through(explained)
    elif not arguments.html:
        for line in text(explained.steps):
            print(line)
    return 0


def _kind(arguments: argparse.Namespace) -> str:
    """Return the kind of explanation, a member of KINDS, that the options select."""
    if arguments.of is not None:
        return str(arguments.of)
    if arguments.real:
        return FIRING
    if arguments.runs or arguments.schedule is not None:
        return RUNS
    if arguments.place in (PAGE_FAULT, CONTEXT_SWITCH):
        return str(arguments.place)
    return SYSTEM_CALL if (arguments.call or "").startswith(COMMAND) else FIRING


def _check(kind: str, arguments: argparse.Namespace) -> None:
    """Check that the options match the kind of explanation and that no required option is missing.

    :raises KinstError: naming the option.
    """
    if arguments.beside and not arguments.real:
        raise KinstError("--beside: works only with --real")
    runs = bool(arguments.runs) or arguments.schedule is not None
    if runs and kind != RUNS:
        raise KinstError(f"--of {kind}: cannot be combined with --run or --schedule; use --of "
                         f"{RUNS}")
    command = (arguments.call or "").startswith(COMMAND)
    if kind in OF_COMMAND and not command:
        raise KinstError(f"explaining a {kind} needs a command, e.g. -c '$ cat /etc/motd'")
    if arguments.call is None and kind != RUNS:
        raise KinstError("give a call that makes the probe fire, e.g. -c 'strlen(\"hello\")', or "
                         "--run twice and --schedule")
    if kind in OF_COMMAND and arguments.arch is not None:
        raise KinstError("--arch: the teaching kernels cannot run programs; give -k IMAGE instead")
    if arguments.real:
        _check_real(kind, command, arguments)
    elif kind == FIRING and command:
        raise KinstError(f"explaining a {FIRING} needs a call, e.g. -c 'strlen(\"hello\")'; for a "
                         f"command, --of must be one of {', '.join(OF_COMMAND)}")
    if kind in (PAGE_FAULT, CONTEXT_SWITCH):
        if arguments.place not in ("", kind):
            raise KinstError(f"{arguments.place}: PLACE cannot be given for a {kind}; leave it out")
    elif kind == SYSTEM_CALL and arguments.place in OF_COMMAND:
        raise KinstError(f"{arguments.place}: not a system call; use --of {arguments.place}")
    elif not arguments.place:
        raise KinstError("give the system call to explain, e.g. open" if kind == SYSTEM_CALL else
                         "give the probed instruction, e.g. strlen:4")


def _check_real(kind: str, command: bool, arguments: argparse.Namespace) -> None:
    """Check that the options match an explanation of the kernel's own tracer."""
    if kind != FIRING:
        raise KinstError(f"--real: explains a {FIRING}; leave out --of {kind}")
    if not command:
        raise KinstError("--real: needs a command that makes the probe fire, e.g. -c '$ ls /'")
    for option, spelled in (("arch", "--arch"), ("what_if", "--what-if"), ("sources", "--sources"),
                            ("runs", "--run"), ("probes", "--probe"), ("setup", "--setup")):
        if getattr(arguments, option):
            raise KinstError(f"{spelled}: cannot be combined with --real")
    if arguments.kernel is None:
        raise KinstError("give a kernel: -k IMAGE")
    for option in ("svg", "gif"):
        if arguments.beside and getattr(arguments, option):
            raise KinstError(f"--{option}: shows one firing; leave out --beside")
    if not (arguments.base or arguments.disk):
        raise KinstError("--real: needs the base system, whose dtrace(1) traces: give --base")


def _picture(pictures: Pictures[Moment], at: str | None) -> str:
    """Return the picture of one moment, or an animation of all moments, as SVG text.

    :param at: the name of a step, or the number of a moment, from 1; ``all``: an animation of
        all moments; None: the step ``frame`` if there is one, otherwise the first step.
    """
    named = {step.name: number for number, step in pictures.steps}
    if at == EVERY_MOMENT:
        return moving_svg(pictures)
    if at is None:
        at = next((name for name in (FRAME, *named) if name in named), "1")
    if at in named:
        return pictures.svg(named[at], at)
    if not at.isdecimal():
        raise KinstError(f"--at {at}: no such step; give one of {', '.join(named)}, a moment "
                         f"from 1 to {len(pictures.moments)}, or '{EVERY_MOMENT}'")
    number = parse_count(at, "--at")
    if not 1 <= number <= len(pictures.moments):
        raise KinstError(f"--at {at}: no such moment; give a number from 1 to "
                         f"{len(pictures.moments)}")
    return pictures.svg(number - 1)


def _runs(arguments: argparse.Namespace) -> int:
    """Explain the firings of several runs under one schedule."""
    from kinst_emu.explore.exploration import Runs
    from kinst_emu.explore.two_runs import PlayedRuns, played_runs, runs_page

    if arguments.kernel is None or arguments.schedule is None or not arguments.runs:
        raise KinstError("give a kernel (-k IMAGE), --run two or more times, and --schedule, e.g. "
                         "'A37 B A'")
    runs = Runs(tuple(arguments.runs), arguments.setup,
                probes=(arguments.place, *arguments.probes))
    image, played = catalog.find(arguments.kernel, arguments.module), list[PlayedRuns]()
    for played_run in played_runs(image, runs, arguments.schedule, parse_size(arguments.memory),
                           arguments.cpus):
        played.append(played_run)
        for line in () if arguments.html else played_run.lines(len(played)):
            print(line)
    if arguments.html:
        write_page(arguments.html, runs_page(image, arguments.schedule, played), "kinst")
    return 0


def _image(arguments: argparse.Namespace) -> Image:
    """Return the kernel of the command line, with the disk and the CPUs that were asked for."""
    modules = list(arguments.module)
    if arguments.real:
        modules += modules_of(catalog.find(arguments.kernel))
    image = catalog.find(arguments.kernel, modules)
    image = with_disks(image, arguments.disk, arguments.base, arguments.single, arguments.date)
    image = attached(image, arguments.net, None, False)
    return with_cpus(image, arguments.cpus)


def _way(arguments: argparse.Namespace, name: str, hit: int, limit: int) -> int:
    """Explain how the kernel handles a system call, page fault or context switch.

    :param name: the system call, ``PAGE_FAULT`` or ``CONTEXT_SWITCH``.
    """
    for option in ("clause", "what_if", "sources"):
        if getattr(arguments, option):
            spelled = {"clause": "-n", "what_if": "--what-if"}.get(option, f"--{option}")
            raise KinstError(f"{spelled}: works only when a probe's firing is explained; leave it "
                             "out for a command")
    if arguments.kernel is None:
        raise KinstError("give a kernel: -k IMAGE")
    return _show_way(arguments, explain_way(
        _image(arguments), name, arguments.call.removeprefix(COMMAND).strip(), hit, limit,
        parse_size(arguments.memory)))


def _real(arguments: argparse.Namespace, hit: int, limit: int) -> int:
    """Explain a firing of the kernel's own tracer."""
    image = _image(arguments)
    if image.options.cpus > 1:
        raise KinstError("--real: works with one CPU only; leave out --cpus")
    command, memory = arguments.call.removeprefix(COMMAND).strip(), parse_size(arguments.memory)
    # The other explanation is made first, because its place has fewer forms.
    ours = explain_ours(image, arguments.place, arguments.clause, command, limit, memory) \
        if arguments.beside else None
    real = explain_tracing(image, arguments.place, arguments.clause, command, hit, limit, memory)
    if ours is None:
        return _show_way(arguments, real)
    if arguments.html:
        write_page(arguments.html, tracing_page(real, ours), "kinst")
    if arguments.json:
        print(json.dumps({real.words.guest.name: [step_as_json(step) for step in real.steps],
                          OURS: explained_as_json(ours)}))
    elif not arguments.html:
        for line in tracing_text(real, ours):
            print(line)
    return 0


def _show_way(arguments: argparse.Namespace, explained: ExplainedWay) -> int:
    """Show an explained path through the kernel, as the options select it."""
    pictures = way_pictures(explained)
    _draw(arguments, pictures)
    if arguments.html:
        write_page(arguments.html, page(explained.title, explained.about, explained.steps,
                                        pictures.of_steps(), alone(film(pictures)),
                                        "The path, instruction by instruction"), "kinst")
    if arguments.json:
        print(json.dumps({"steps": [step_as_json(step) for step in explained.steps]}))
    elif arguments.html or arguments.svg or arguments.gif:
        return 0
    elif not arguments.steps and draws():
        _walk_through(explained)
    else:
        for line in text(explained.steps):
            print(line)
    return 0


def _draw(arguments: argparse.Namespace, pictures: Pictures[Moment]) -> None:
    """Write the files of --svg and --gif."""
    if arguments.svg:
        write_page(arguments.svg, _picture(pictures, arguments.at), "kinst")
    if arguments.gif:
        count = animation.write_animation(pictures, arguments.gif)
        print(f"kinst: wrote {arguments.gif} ({count} pictures)", file=sys.stderr)


def _step_through(explained: Explained) -> None:
    from kinst_emu.explain.view.terminal import FiringStepper  # deferred: slow to import

    FiringStepper(explained).run()


def _walk_through(explained: ExplainedWay) -> None:
    from kinst_emu.explain.view.terminal import WayStepper  # deferred: slow to import

    WayStepper(explained).run()


def _failed(failed: Mapping[str, str], names: Sequence[str]) -> str:
    """Combine the errors of several architectures into one message."""
    if len(failed) == len(names) and len(set(failed.values())) == 1:
        return next(iter(failed.values()))
    good = [name for name in names if name not in failed]
    return "; ".join([*(f"on {name}, {text}" for name, text in failed.items()),
                      *([f"on {' and '.join(good)}, it works"] if good else []),
                      f"FUNCTION:OFFSET,... sets an offset for each of {', '.join(names)}"])


def _beside(arguments: argparse.Namespace, asked: Asked) -> int:
    """Explain the same instruction on several teaching kernels, side by side."""
    for option in ("svg", "gif"):
        if getattr(arguments, option):
            raise KinstError(f"--{option}: works with one kernel only; leave out --arch")
    if arguments.kernel is not None or arguments.module:
        raise KinstError("--arch: selects the teaching kernels; leave out -k and --module")
    names = list(ARCHITECTURES) if arguments.arch == ALL else arguments.arch.split(",")
    known = (*ARCHITECTURES, *catalog.FLAVOURS)
    for name in names:
        if name not in known or names.count(name) > 1:
            raise KinstError(f"--arch: '{name}' is unknown or repeated; give one or more of "
                             f"{', '.join(known)}, separated by commas, or {ALL} for "
                             f"{', '.join(ARCHITECTURES)}")
    begin = max(asked.place.rfind(":"), asked.place.rfind("+")) + 1
    function, places = asked.place[:begin], asked.place[begin:].split(",")
    if len(places) not in (1, len(names)):
        raise KinstError(f"'{asked.place}': give one offset for all kernels, or one for each of "
                         f"{', '.join(names)}")
    explained, failed = dict[str, Explained](), dict[str, str]()
    for number, name in enumerate(names):
        place = f"{function}{places[number % len(places)]}"
        try:
            explained[name] = explain(catalog.find(f"teaching/{name}"), replace(asked, place=place))
        except KinstError as error:
            failed[name] = str(error)
    if failed:
        raise KinstError(_failed(failed, names))
    rows = beside({name: one.steps for name, one in explained.items()})
    if arguments.html:
        about = (f"Call on the teaching kernels: {asked.call}. All numbers are from one run on "
                 "each architecture.")
        kernels = ", ".join(catalog.described(one.image) for one in explained.values())
        title = f"A breakpoint in {function.rstrip(':+') or asked.place}: {kernels}"
        order = [name for name, _steps in rows]
        pictures = {name: pictures_of(one) for name, one in explained.items()}
        write_page(arguments.html, page_beside(
            title, about, names, rows, stills(pictures, order),
            together({name: film(one) for name, one in pictures.items()}, order)), "kinst")
    if arguments.json:
        print(json.dumps({name: explained_as_json(one) for name, one in explained.items()}))
    elif not arguments.html:
        for line in text_beside(names, rows):
            print(line)
    return 0
