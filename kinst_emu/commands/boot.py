"""``kinst boot``: a kernel from its first instruction to its prompt."""

import argparse
import json
import time
from pathlib import Path

from dtrace.calls import unescape
from emu.errors import KinstError
from emu.machine import Stop, StopReason, Until
from emu.unicorn import snapshot
from emu.unicorn.machine import UnicornMachine
from images import catalog
from images.boots import PROMPTS
from kinst_emu.terminal import parse_count, parse_size, show_byte


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-k", "--kernel", required=True, metavar="IMAGE",
                        help="a kernel file, or a name from 'kinst images'")
    parser.add_argument("--memory", default="512M", metavar="SIZE",
                        help="guest RAM (%(default)s)")
    parser.add_argument("--until", metavar="TEXT", help="stop at this console text, not the prompt")
    parser.add_argument("--instructions", metavar="N", help="stop after N instructions")
    parser.add_argument("--type", action="append", default=[], metavar="KEYS", dest="keys",
                        help=r"type at the prompt and wait for the next, e.g. '?\r'; may be "
                        "repeated")
    parser.add_argument("-i", "--interactive", action="store_true",
                        help="go on at the prompt with standard input as the keyboard")
    parser.add_argument("--digest", action="store_true",
                        help="print the SHA-256 of memory, registers, clock and console")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write a snapshot at the end")
    parser.add_argument("--restore", type=Path, metavar="FILE", help="go on from a snapshot")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not show the console")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    began = time.perf_counter()
    image = catalog.find(arguments.kernel)
    if arguments.restore:
        machine = snapshot.restore(arguments.restore, image)
    else:
        machine = UnicornMachine(image, parse_size(arguments.memory))
        machine.boot()
    if not arguments.quiet and not arguments.json:
        machine.console.stream = show_byte
    prompt: str | tuple[str, ...] = arguments.until or PROMPTS
    limit = None
    if arguments.instructions is not None:
        limit = parse_count(arguments.instructions, "--instructions")
    stop: Stop | None = None
    if not arguments.restore or arguments.until or limit is not None:
        stop = machine.run(Until(console=prompt, instructions=limit))
    for keys in arguments.keys:
        if stop is None or stop.reason is StopReason.CONSOLE:
            machine.type(unescape(keys))
            stop = machine.run(Until(console=prompt, instructions=limit))
    if arguments.interactive and (stop is None or stop.reason is StopReason.CONSOLE):
        from kinst_emu.interactive import interact

        stop = interact(machine) or stop
    if stop is not None and stop.reason is StopReason.INTERRUPTED:
        raise KeyboardInterrupt
    good = stop is None or stop.reason in (
        StopReason.CONSOLE, StopReason.INSTRUCTIONS, StopReason.POWER_OFF
    )
    if limit is None and stop is not None and stop.reason is StopReason.INSTRUCTIONS:
        good = False
    wall = time.perf_counter() - began
    result = {
        "stop": stop.reason.name.lower() if stop else "restored",
        "instructions": machine.instructions, "virtual_seconds": machine.now / 1e9,
        "wall_seconds": round(wall, 3),
    }
    if arguments.digest:
        result["digest"] = machine.digest()
    if arguments.json:
        result["console"] = machine.console.text.decode("utf-8", "replace")
        print(json.dumps(result))
    else:
        if arguments.digest:
            print(f"\ndigest {result['digest']}", end="")
        print(f"\n{machine.instructions} instructions, {machine.now / 1e9:.6f} virtual seconds, "
              f"{wall:.2f} wall seconds")
    if arguments.save:
        snapshot.save(machine, arguments.save)
    if not good:
        raise KinstError(f"{image.path}: the boot ended early: {stop}")
    return 0
