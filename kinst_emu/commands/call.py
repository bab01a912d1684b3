"""``kinst call``: call a function of the booted kernel."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from emu.machine.call import DEFAULT_LIMIT, Caller, CallError
from emu.machine.machine import Machine
from emu.replay.starts import BOOTED, PLACED, STATE
from emu.unicorn import snapshot
from images import catalog
from images.boots import BootAhead, BootError, settle_at_reader, unbooted
from kinst_emu.api.record_run import recorded
from kinst_emu.cli.boot_words import (
    change,
    cpus_option,
    self_contained_option,
    set_option,
    with_cpus,
)
from kinst_emu.cli.completion import kernel_option
from kinst_emu.terminal.terminal import hexdump, parse_count, parse_size, show_byte, show_console

if TYPE_CHECKING:
    from dtrace.calls.calls import Evaluation

EXAMPLES = (
    "kinst call -k 15.0-RELEASE/amd64 'strlen(\"hello\")'",
    "kinst call -k kernel 'p = malloc(100, &M_TEMP, 2); free(p, &M_TEMP)'",
    "kinst call -k kernel 'snprintf(buf(16), 16, \"%d\", 42)' --show arg0",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst call``."""
    kernel_option(parser)
    parser.add_argument("--memory", default="512M", metavar="SIZE",
                        help="guest RAM, in MiB or with a suffix K, M or G (default: %(default)s)")
    parser.add_argument("call", metavar="CALL",
                        help="call to make, e.g. 'strlen(\"hello\")'; separate multiple calls with "
                             "';' (required)")
    cpus_option(parser)
    parser.add_argument("--no-boot", action="store_true",
                        help="call a function of the kernel image without booting the kernel "
                             "(default: boot)")
    parser.add_argument("--snapshot", type=Path, metavar="FILE",
                        help="restore this snapshot and make the call there (default: boot the "
                             "kernel)")
    parser.add_argument("--show", action="append", default=[], metavar="ARG",
                        help="after the call, dump the memory that an argument (arg0, arg1, ...) "
                        "or a name assigned in the call points to; may be repeated (default: no "
                        "dump)")
    parser.add_argument("--limit", default=str(DEFAULT_LIMIT), metavar="N",
                        help="abandon the call after N instructions (default: %(default)s)")
    parser.add_argument("--unchecked", action="store_true",
                        help="pass the arguments without checking them against the function's "
                        "type, and show the result as a plain number (default: use the type)")
    parser.add_argument("--record", type=Path, metavar="FILE",
                        help="record the call in this file for kinst replay, even if it fails "
                        "(default: no recording)")
    self_contained_option(parser)
    set_option(parser)
    parser.add_argument("--json", action="store_true",
                        help="print the result as JSON (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """Boot or restore the kernel, make the call, print its result, and return the exit status."""
    limit = parse_count(arguments.limit, "--limit")
    memory = parse_size(arguments.memory)
    image = with_cpus(catalog.find(arguments.kernel, arguments.module), arguments.cpus)
    ahead = None if arguments.snapshot or arguments.no_boot else BootAhead(image, memory)
    # Import these modules here, so that the import overlaps with the restoration of the kernel.
    from dtrace.calls.calls import Evaluation, check, parse
    from dtrace.calls.prototypes import Prototypes, result_line

    program = parse(arguments.call)
    prototypes = None if arguments.unchecked else Prototypes(image)
    check(image, program, prototypes)
    try:
        if arguments.snapshot:
            machine = snapshot.restore(arguments.snapshot, image)
            settle_at_reader(machine)
        else:
            machine = ahead.machine() if ahead is not None else unbooted(image, memory)
    except BootError as error:
        show_console(error.console)
        raise
    machine.console.text.clear()
    if not arguments.json:
        machine.console.stream = show_byte
    before = machine.instructions
    evaluation = Evaluation(Caller(machine, limit), prototypes)
    start = STATE if arguments.snapshot else PLACED if arguments.no_boot else BOOTED
    try:
        with recorded(machine, arguments.record, start, arguments.call, arguments.json,
                      arguments.self_contained), \
                PROGRESS.working(f"calling {arguments.call}"):
            change(machine, arguments.set)
            value = evaluation.run(program)
    except CallError as error:
        from dtrace.stacks.stack import failure  # imported only after a failed call

        if arguments.json:
            console_text = error.console.decode("utf-8", "replace")
            print(json.dumps({"error": str(error), "console": console_text,
                              "stack": [line.strip() for line in failure(machine)]}))
        else:
            print("".join(f"{line}\n" for line in failure(machine)), end="")
        raise
    console = bytes(machine.console.text)
    shown = {name: _buffer(evaluation, name, machine) for name in arguments.show}
    if arguments.json:
        print(json.dumps({
            **_value(evaluation, value), "instructions": machine.instructions - before,
            "console": console.decode("utf-8", "replace"),
            "buffers": {name: data.hex() for name, (_at, data) in shown.items()},
            **({"changed": evaluation.changed} if evaluation.changed else {}),
        }))
        return 0
    print("".join(f"{line}\n" for line in evaluation.changed), end="")
    print(result_line(arguments.call, machine, evaluation.kind, value))
    for name, (address, data) in shown.items():
        print(f"{name}:")
        print(hexdump(address, data))
    return 0


def _value(evaluation: "Evaluation", bits: int) -> dict[str, object]:
    """Return the JSON fields of a call's result: ``value`` and, if known, ``type``."""
    from dtrace.calls.prototypes import plain
    from dwarf.types import declare

    kind = evaluation.kind
    value = plain(evaluation.caller.machine, kind, bits)
    return {"value": value} if kind is None else {"value": value, "type": declare(kind)}


def _buffer(evaluation: "Evaluation", name: str, machine: Machine) -> tuple[int, bytes]:
    if name in evaluation.names:
        address = evaluation.names[name]
    else:
        number = name.removeprefix("arg")
        known = [f"arg{i}" for i in range(len(evaluation.last_arguments))]
        if f"arg{number}" not in known:
            known += evaluation.names
            raise KinstError(f"--show {name}: no such buffer; the call has "
                             f"{', '.join(known) or 'no arguments'}")
        address = evaluation.last_arguments[int(number)]
    return address, machine.read(address, evaluation.sizes.get(address, 64))
