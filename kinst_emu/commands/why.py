"""``kinst why``: find out why a system call failed, or why something else happened in a run."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from dtrace.calls.positions import FORMS, go, reached_at
from dtrace.debug.source_text import SourceText
from dtrace.reasons.failures import Failure, Failures, likely
from emu.gdb.target import PlayedTarget, Why
from emu.host.errors import KinstError
from emu.host.printable import counted
from emu.host.progress import PROGRESS
from emu.replay.player import Player
from images.recordings import from_start
from kinst_emu.cli.sources import sources_option
from kinst_emu.report.page_file import write_page
from kinst_emu.runs.recorded_workload import is_recording, played_workload, workload_options
from kinst_emu.terminal.terminal import check_writable, parse_count
from kinst_emu.why import sleeping as sleep_text
from kinst_emu.why.explainer import Answer, Explainer, number
from kinst_emu.why.page import page, parts_of, parts_of_sleep
from kinst_emu.why.sleeping import SleepExplainer
from kinst_emu.why.text import lines, to_json

EXAMPLES = (
    "kinst why -k kernel '$ mkdir /etc'",
    "kinst why -k kernel '$ mkdir /etc' --html why.html --sources /usr/src",
    "kinst why mkdir.rec --call 2",
    "kinst why mkdir.rec --line vfs_cache.c:4538",
    "kinst why mkdir.rec --value 'rax@fbt::kern_mkdirat:return'",
    "kinst why panic.rec --panic",
    "kinst why -k kernel '$ sleep 1' --sleep",
)
SHOWN = 20  # maximum number of other failed calls to list
SLEEPS = 5  # maximum number of other sleeps to list


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst why``."""
    workload_options(parser, "required for a workload; default: that of the recording")
    parser.add_argument("what", metavar="WHAT",
                        help="a recording, or a workload as for kinst record: '$ COMMAND', a C "
                        "file, calls in the booted kernel, or 'boot' (required)")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--call", metavar="NAME[#N]|N",
                       help="why did this system call fail: the Nth failed call of this name, or "
                       "of all (default: the one that the command's error message is about)")
    asked.add_argument("--line", metavar="FILE:LINE",
                       help="why was this source line, or other place in code, executed the last "
                       "time (default: off)")
    asked.add_argument("--value", metavar="WHERE[@POSITION]",
                       help="why does a register, variable or C expression have its value; "
                       "POSITION is " + FORMS.replace("%", "%%") + " (default: off; default "
                       "POSITION: the end)")
    asked.add_argument("--sleep", nargs="?", const="", metavar="N",
                       help="why did a thread sleep, and who woke it: the Nth time that a thread "
                       "stopped running, as --json lists them (default: off; default N: the "
                       "longest sleep of the workload's processes)")
    asked.add_argument("--panic", action="store_true",
                       help="why did the kernel panic (default: if it did)")
    parser.add_argument("-o", dest="output", type=Path, metavar="FILE",
                        help="keep the recording of the workload in this file (default: discard "
                        "it)")
    parser.add_argument("--html", type=Path, metavar="FILE",
                        help="write the answer as a page (default: print it)")
    sources_option(parser)
    parser.add_argument("--json", action="store_true",
                        help="print the answer as JSON (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """Record the workload if necessary, print the answer, and return the exit status."""
    text = SourceText(arguments.sources) if arguments.sources else None
    if arguments.sleep and not arguments.sleep.isdecimal():
        raise KinstError(f"--sleep {arguments.sleep}: must be a number; write WHAT before it")
    if arguments.html is not None:
        check_writable(arguments.html, "--html")
        if arguments.json:
            raise KinstError("--html: cannot be used with --json")
    with played_workload(arguments) as player:
        return _answered(player, arguments, text)


def _answered(player: Player, arguments: argparse.Namespace, text: SourceText | None) -> int:
    explainer = Explainer(player, text)
    if arguments.sleep is not None:
        return _slept(explainer, arguments, text)
    others: Sequence[Failure] = ()
    if arguments.line is not None:
        answer = _of_line(explainer, arguments.line)
    elif arguments.value is not None:
        answer = _of_value(explainer, arguments.value)
    elif arguments.panic or (arguments.call is None and _panicked(player)):
        answer = _of_panic(explainer)
    else:
        answer, others = _of_call(explainer, arguments.call)
    if arguments.html is not None:
        write_page(arguments.html, page(
            answer.question, list(parts_of(answer, text)), _kept(arguments),
            [f"{one.call.text} {one.name}: --call {n}" for n, one in enumerate(others, 1)
             if f" of {one.process} " in answer.question][-SHOWN:] if len(others) > 1 else []),
            "kinst")
        return 0
    if arguments.json:
        print(json.dumps(to_json(answer) | {"others": [_other(n, one) for n, one in
                                                       enumerate(others, 1)]}))
        return 0
    for line in lines(answer):
        print(line)
    if len(others) > 1:
        _list(others, answer)
    return 0


def _kept(arguments: argparse.Namespace) -> str:
    """Return the file of the recording, or an empty string if it is discarded."""
    if is_recording(arguments.what):
        return str(arguments.what)
    return "" if arguments.output is None else str(arguments.output)


def _slept(explainer: Explainer, arguments: argparse.Namespace, text: SourceText | None) -> int:
    """Print why a thread slept."""
    wanted = arguments.sleep
    from_start(explainer.player)
    sleeping = SleepExplainer(explainer)
    sleeps = sleeping.all()
    if not sleeps:
        raise KinstError(f"{explainer.player.recording.path}: no thread stopped running")
    if not wanted:
        index = sleeps.index(sleeping.likely(sleeps))
    else:
        index = parse_count(wanted, "--sleep") - 1  # run() has checked that it is a number
        if index >= len(sleeps):
            raise KinstError(f"--sleep {wanted}: threads stopped running {len(sleeps)} times")
    slept = sleeping.explained(sleeps[index], index + 1)
    if arguments.html is not None:
        write_page(arguments.html, page(slept.question, list(parts_of_sleep(slept, text)),
                                        _kept(arguments)), "kinst")
        return 0
    if arguments.json:
        print(json.dumps(sleep_text.to_json(slept) | {"others": [
            {"number": n, "question": sleeping.question(one), "asleep": one.asleep}
            for n, one in enumerate(sleeps, 1)]}))
        return 0
    for line in sleep_text.lines(slept):
        print(line)
    same = [(n, one) for n, one in enumerate(sleeps, 1)
            if one.asleep and one.thread.pid == slept.sleep.thread.pid and n != slept.number]
    if same:
        print(f"this process slept {len(same)} more times; --sleep N explains another one:")
    for n, one in sorted(same, key=lambda row: -sleeping.duration(row[1]))[:SLEEPS]:
        print(f"  {n:>4}  {sleeping.question(one)}")
    return 0


def _list(failures: Sequence[Failure], answer: Answer) -> None:
    """Print the other failed calls of the process in question."""
    rows = [(n, one) for n, one in enumerate(failures, 1)
            if f" of {one.process} " in answer.question]
    print(f"{len(rows)} system calls of this process failed, and {len(failures) - len(rows)} of "
          "others; --call N explains another one:" if len(rows) > 1 else
          f"{len(failures) - len(rows)} system calls of other processes failed (--json lists them)")
    for n, one in rows[-SHOWN:] if len(rows) > 1 else ():
        print(f"  {n:>4}  {one.call.text} {one.name}")


def _other(position: int, one: Failure) -> dict[str, object]:
    return {"number": position, "call": one.call.text, "error": one.call.error, "name": one.name,
            "process": one.process, "instructions": one.call.count}


def _panicked(player: Player) -> bool:
    end = player.recording.end
    return end is not None and "panic" in end.stop


def _of_call(explainer: Explainer, wanted: str | None) -> tuple[Answer, list[Failure]]:
    player = explainer.player
    from_start(player)
    failures = Failures(player).all()
    chosen = likely(failures) if wanted is None else _chosen(failures, wanted)
    if chosen is None:
        raise KinstError(f"{player.recording.path}: no system call failed; ask with --sleep, "
                         "--value or --line")
    call, arch = chosen.call, player.machine.arch
    question = f"{call.text} of {chosen.process} failed with {chosen.name} ({call.error})"
    return explainer.value(question, explainer.origin.of(arch.result, call.count),
                           call.count), failures


def _chosen(failures: Sequence[Failure], wanted: str) -> Failure:
    name, _mark, position = wanted.rpartition("#") if "#" in wanted else (
        ("", "", wanted) if wanted.isdecimal() else (wanted, "", ""))
    rows = [one for one in failures if name in ("", one.call.name, one.call.function)]
    if not rows:
        known = ", ".join(sorted({one.call.name for one in failures}))
        raise KinstError(f"--call {wanted}: no such system call failed; these did: "
                         f"{known or 'none'}")
    index = parse_count(position, "--call") if position else len(rows)
    if not 1 <= index <= len(rows):
        raise KinstError(f"--call {wanted}: only {counted(len(rows), 'such call')} failed")
    return rows[index - 1]


def _of_line(explainer: Explainer, text: str) -> Answer:
    player = explainer.player
    with PROGRESS.working(f"looking for {text}"):
        _reached(player.advance_to_end())
        target = PlayedTarget(player)
        wanted = reached_at(player, text)
        for address in wanted.addresses:
            target.break_at(address)
        event = target.back(lambda: False)
        if event.why is Why.INTERRUPTED:
            raise KeyboardInterrupt
        if event.why is not Why.BREAKPOINT:
            raise KinstError(f"{player.recording.path}: {text} is not executed")
        count = player.position.instructions
    return explainer.executed(f"{text} was executed", count)


def _of_value(explainer: Explainer, text: str) -> Answer:
    player = explainer.player
    where, _at, position = text.partition("@")
    with PROGRESS.working("playing the recording"):
        given = position not in ("", "end")
        if given:
            _reached(go(player, position))
            player.give()
        else:  # the inputs after the last instruction only restore registers
            _reached(player.advance(player.recording.last))
    return explainer.value_of(where, given)


def _of_panic(explainer: Explainer) -> Answer:
    player = explainer.player
    with PROGRESS.working("looking for the panic"):
        _reached(go(player, "panic"))
        begin = player.position.instructions
        message = _message(player)
        try:
            _reached(go(player, "fault"))
        except KinstError:
            return explainer.executed(message, begin - 1)
        count = player.position.instructions
    registers = explainer.conditions.bases(count)
    if not registers:
        return explainer.executed(message, count)
    place, (register, value) = explainer.at(count), registers[0]
    return explainer.value(
        f"{message}: {place.instruction} at {place.line or place.where} [{count}]: {register} is "
        f"{number(value)}", explainer.origin.of(register, count), count)


def _message(player: Player) -> str:
    """Return the message that the kernel printed when it panicked."""
    end = player.recording.end
    return "the kernel panicked" if end is None else end.stop


def _reached(stop: object) -> None:
    if stop is not None:
        raise KeyboardInterrupt
