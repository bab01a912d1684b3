"""``kinst quiz``: exercises about the instructions of a kernel."""

import argparse
import io
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from emu.arch.architectures import ARCHITECTURES
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from images import catalog
from images.boots import booted
from kinst_emu.cli.completion import kernel_option
from kinst_emu.learn.quiz.marked_page import marked_page
from kinst_emu.learn.quiz.marking import mark, readable, wanted
from kinst_emu.learn.quiz.questions import LEVELS, Question, questions
from kinst_emu.learn.quiz.sheet import sheet
from kinst_emu.report.page_file import write_page
from kinst_emu.terminal.terminal import check_writable, parse_count, parse_size

EXAMPLES = (
    "kinst quiz --arch riscv64",
    "kinst quiz -k kernel --level 4 --seed 7",
    "kinst quiz --arch arm64 --sheet 10 --html sheet.html",
    "kinst quiz -k kernel --page quiz.html --questions 10",
)
MAX_QUESTIONS = 1_000
PAGE = (1, 2, 6, 3, 4, 5)  # levels of successive questions on an HTML page; the sequence repeats
TRIES = 3  # maximum number of lines read for one answer
LINE = 1_000  # maximum length of a typed line, in characters


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst quiz``."""
    kernel_option(parser, optional="default: the teaching kernel of --arch")
    add = parser.add_argument
    add("--arch", choices=list(ARCHITECTURES),
        help="architecture of the teaching kernel to use (default: amd64)")
    add("--level", metavar="N", help="ask only questions of level N; " + "; ".join(
        f"{level}: {what}" for level, what in LEVELS.items())
        + " (default: levels 1 to 5 in turn, with --page also level 6)")
    add("--seed", default="1", metavar="S",
        help="random seed that selects the questions (default: %(default)s)")
    add("--questions", metavar="N", help="number of questions (default: 5)")
    add("--sheet", metavar="N",
        help="print N questions followed by their answers (default: ask interactively)")
    add("--html", type=Path, metavar="FILE",
        help="with --sheet: write an HTML page to this file (default: print text)")
    add("--page", type=Path, metavar="FILE",
        help="write the questions to this file as an HTML page that grades the reader's answers; "
        "some questions have a picture (default: ask interactively)")
    add("--json", action="store_true",
        help="with --sheet: print one JSON object per line (default: text)")
    add("--memory", default="512M", metavar="SIZE",
        help="guest RAM, in MiB or with a suffix K, M or G (default: %(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Ask the questions, or write them as a sheet or a page; return 0."""
    level = None if arguments.level is None else parse_count(arguments.level, "--level")
    if level is not None and level not in LEVELS:
        raise KinstError(f"--level {level}: must be {min(LEVELS)} to {max(LEVELS)}")
    seed = parse_count(arguments.seed, "--seed")
    option = "--questions" if arguments.sheet is None else "--sheet"
    given = arguments.questions if arguments.sheet is None else arguments.sheet
    count = parse_count("5" if given is None else given, option)
    if count > MAX_QUESTIONS:
        raise KinstError(f"{option} {count}: at most {MAX_QUESTIONS} questions are allowed")
    for path, name in ((arguments.html, "--html"), (arguments.page, "--page")):
        if path:
            check_writable(path, name)
    if arguments.page and arguments.sheet is not None:
        raise KinstError("--page: cannot be combined with --sheet; set the number of questions "
                         "with --questions")
    if arguments.kernel is not None and arguments.arch is not None:
        raise KinstError("--arch: selects a teaching kernel; leave out -k")
    image = catalog.find(arguments.kernel or f"teaching/{arguments.arch or 'amd64'}",
                         arguments.module)
    machine = booted(image, parse_size(arguments.memory))
    asked = itertools.islice(questions(machine, seed, level, *([PAGE] if arguments.page else [])),
                             count)
    if arguments.sheet is None and not arguments.page:
        return _ask(asked, count)
    with PROGRESS.working("preparing the questions"):
        chosen = list(asked)
    about = (f"{image.path.name} for {machine.arch.name}, build ID {image.build_id or 'none'}, "
             f"seed {seed}. Each answer is what the emulated machine did.")
    title = f"Breakpoints, trap frames, trampolines: {catalog.described(image)}"
    if arguments.page:
        write_page(arguments.page, marked_page(title, about, chosen, seed), "kinst")
        return 0
    if arguments.html:
        write_page(arguments.html, sheet(title, about, chosen), "kinst")
    if arguments.json:
        for one in chosen:
            print(json.dumps({"level": one.level, "text": one.text, "answer": one.answer,
                              "why": one.why}))
    elif not arguments.html:
        _print(about, chosen)
    return 0


def _ask(asked: Iterator[Question], count: int) -> int:
    """Ask questions on the terminal and grade the answers until the input ends."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    right = answered = 0
    for number, question in enumerate(asked, 1):
        print(f"{number}/{count}, level {question.level}: {LEVELS[question.level]}")
        for line in question.text:
            print(f"    {line}")
        print("> ", end="", flush=True)
        line = _answer(question)
        if not line:
            print()
            break
        answered += 1
        marked = mark(question, line)
        right += marked.right
        print(f"{marked.said}\n", flush=True)
    print(f"{right} of {answered} right")
    return 0


def _answer(question: Question) -> str:
    """Read an answer, and prompt again if the line is unreadable; return '' when the user quits."""
    line = ""
    for _ in range(TRIES):
        line = sys.stdin.readline(LINE)
        if not line or line.strip().lower() in ("q", "quit"):
            return ""
        if readable(question, line):
            break
        print(f"That is not {wanted(question)}.\n> ", end="", flush=True)
    return line


def _print(about: str, found: list[Question]) -> None:
    print(about)
    for number, question in enumerate(found, 1):
        print(f"\n{number}.", "\n   ".join(question.text))
    print("\nAnswers")
    for number, question in enumerate(found, 1):
        print(f"{number}. {question.shown}: {question.why}")
