"""``kinst explain``: one firing of one probe, step by step."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dtrace.calls import Evaluation, check, parse
from dtrace.debug_data import Sources
from dtrace.prototypes import Prototypes
from dtrace.symbols import sized_functions
from dwarf.debug_file import DebugDataError
from emu.architectures import arch_of
from emu.call import DEFAULT_LIMIT, Caller
from emu.elf import Image, Symbol
from emu.errors import KinstError
from emu.progress import PROGRESS
from emu.replacing import replacing
from images import catalog
from images.boots import booted
from kinst_emu.completion import kernel_option
from kinst_emu.explain.clause import Narration
from kinst_emu.explain.page import page
from kinst_emu.explain.recorder import Firing, Recorder
from kinst_emu.explain.steps import Step, Table, Words, steps, what_if
from kinst_emu.explain.text import text
from kinst_emu.explain.what_if import WHAT_IFS
from kinst_emu.terminal import check_writable, parse_count, parse_size

EXAMPLES = (
    "kinst explain -k teaching/arm64 strlen:4 -c 'strlen(\"hello\")'",
    "kinst explain -k kernel malloc:12 -c 'malloc(100, &M_TEMP, 2)' --json",
)

MAX_DIGITS = 12
LIMIT = 100_000  # instructions of a call that goes wrong
LABELLED = 1 << 12  # bytes behind a label of assembly that are spoken of by it


def add_options(parser: argparse.ArgumentParser) -> None:
    kernel_option(parser)
    parser.add_argument("place", metavar="FUNCTION:OFFSET",
                        help="the probed instruction, like strlen:4 (kinst disas lists them)")
    parser.add_argument("-c", dest="call", metavar="CALL", required=True,
                        help="what makes the probe fire, e.g. 'strlen(\"hello\")'")
    parser.add_argument("-n", dest="clause", metavar="CLAUSE",
                        help="a D clause for it, '[/PREDICATE/] { ACTIONS }', whose code is "
                        "narrated, too")
    parser.add_argument("--what-if", choices=WHAT_IFS,
                        help="also do it wrong: copy a position-dependent instruction as it is; "
                        "let two threads share the trampoline")
    parser.add_argument("--hit", default="1", metavar="N",
                        help="tell the Nth firing of it (%(default)s)")
    parser.add_argument("--memory", default="512M", metavar="SIZE", help="guest RAM (%(default)s)")
    parser.add_argument("--limit", default=str(DEFAULT_LIMIT), metavar="N",
                        help="instructions after which the call is given up (%(default)s)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page, instead of text")
    parser.add_argument("--json", action="store_true",
                        help="print what was recorded, and the steps")


def run(arguments: argparse.Namespace) -> int:
    program = parse(arguments.call)
    hit, limit = (parse_count(getattr(arguments, name), f"--{name}") for name in ("hit", "limit"))
    if arguments.html:
        check_writable(arguments.html, "--html")
    image = catalog.find(arguments.kernel, arguments.module)
    function, offset = _place(image, arguments.place)
    check(image, program, prototypes := Prototypes(image))
    machine = booted(image, parse_size(arguments.memory))
    base = machine.snapshot() if arguments.what_if else None
    recorder = Recorder(machine, function, offset, hit)
    if arguments.clause is not None:
        recorder.clause(arguments.clause, prototypes.types())
    with PROGRESS.working(f"calling {arguments.call}"):
        caller = Caller(machine, limit)
        placed, evaluation = caller.placed(), Evaluation(caller, prototypes)
        firing = recorder.record(lambda: evaluation.run(program))
    told = steps(firing, recorder.table, words_of(image))
    wrong = None
    if base is not None:
        machine.restore(base)
        caller.placed_again(placed)
        caller.limit = min(limit, LIMIT)
        other = Recorder(machine, function, offset, hit, arguments.what_if)
        with PROGRESS.working(f"calling {arguments.call}, wrongly"):
            evaluation = Evaluation(caller, prototypes)
            wrong = other.record(lambda: evaluation.run(program))
        told += what_if(firing, wrong, words_of(image))
    if arguments.json:
        print(json.dumps({"firing": as_json(firing),
                          "what-if": None if wrong is None else as_json(wrong),
                          "steps": [step_as_json(step) for step in told]}))
    elif not arguments.html:
        for line in text(told):
            print(line)
    if arguments.html:
        title = f"A breakpoint at {function.name}+{offset}, {firing.architecture}"
        about = (f"{image.path.name} (build id {image.build_id or 'none'}), {arguments.call}; "
                 "every number is of one run.")
        with replacing(arguments.html) as file:
            file.write(page(title, about, told).encode())
    return 0


def _place(image: Image, place: str) -> tuple[Symbol, int]:
    """``FUNCTION:OFFSET``."""
    name, colon, digits = place.rpartition(":")
    if not colon or not name.strip(":"):
        raise KinstError(f"'{place}': say FUNCTION:OFFSET, like strlen:4")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < MAX_DIGITS):
        raise KinstError(f"'{place}': the offset is a decimal number of bytes, like strlen:4")
    return sized_functions(image, name)[0], int(digits)


def words_of(image: Image) -> Words:
    """How the places of a kernel are spoken of."""
    sources = Sources(image)

    def source(address: int) -> str:
        try:
            line = sources.line(address) if sources.known else ""
        except DebugDataError:
            return ""
        return "" if line == "?" else line.rpartition("/sys/")[2] or line

    def where(address: int) -> str:
        label = None if image.symbols.function_at(address) else image.symbols.label_at(address)
        return (f"{label.name}+{address - label.address:#x}" if label is not None
                and address - label.address < LABELLED else image.symbols.where(address))

    return Words(arch_of(image), where, source)


def as_json(firing: Firing) -> dict[str, Any]:
    """The recording itself; bytes in hexadecimal."""
    return {
        "architecture": firing.architecture, "function": firing.function.name,
        "offset": firing.instruction.offset, "address": firing.instruction.address,
        "hit": firing.hit, "original": firing.original.hex(), "patched": firing.patched.hex(),
        "slot": firing.slot, "trampoline": firing.trampoline.hex(), "second": firing.second,
        "fired": firing.fired,
        "rows": [{"address": row.address, "bytes": row.code.hex(), "registers": row.registers}
                 for row in firing.rows],
        "frames": [{"row": frame.row, "address": frame.address, "breakpoint": frame.breakpoint,
                    "before": frame.before.hex(), "after": frame.after.hex()}
                   for frame in firing.frames],
        "what-if": firing.what_if, "strayed": firing.strayed,
        "clause": None if firing.narration is None else narration_as_json(firing.narration),
    }


def narration_as_json(narration: Narration) -> dict[str, Any]:
    return {"text": narration.text, "left": narration.left, "aggregated": narration.aggregated,
            "instructions": [{"place": one.place, "text": one.text, "line": one.line,
                              "before": one.before, "after": one.after, "told": one.told()}
                             for one in narration.instructions]}


def step_as_json(step: Step) -> dict[str, Any]:
    return {"name": step.name, "title": step.title, "parts": [
        {**asdict(part), "marked": sorted(part.marked)} if isinstance(part, Table) else part
        for part in step.parts]}
