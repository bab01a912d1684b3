"""``kinst boot``: boot a kernel to its prompt."""

import argparse
import json
import time
from pathlib import Path

from dtrace.calls.strings import unescape
from emu.host.errors import KinstError
from emu.host.printable import printable
from emu.host.progress import PROGRESS
from emu.machine.machine import Stop, StopReason, Until
from emu.replay.starts import BOOT, STATE
from emu.unicorn import snapshot
from emu.unicorn.machine import UnicornMachine
from images import catalog
from images.boots import LIMIT, MEMORY
from kinst_emu.api.record_run import recorded
from kinst_emu.cli.boot_words import keep_disks, loader_options, with_options
from kinst_emu.cli.completion import kernel_option
from kinst_emu.terminal.terminal import check_writable, parse_count, parse_size, show_byte

EXAMPLES = (
    "kinst boot -k 15.0-RELEASE/amd64",
    "kinst boot -k teaching/arm64 --type 'strings\\r'",
    "kinst boot -k teaching/riscv64 --instructions 5000 --digest",
    "kinst boot -k kernel -i",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst boot``."""
    kernel_option(parser)
    loader_options(parser)
    parser.add_argument("--memory", metavar="SIZE",
                        help="guest RAM, in MiB or with a suffix K, M or G (default: 512M)")
    parser.add_argument("--until", metavar="TEXT",
                        help="stop when this text appears on the console (default: the kernel's "
                        "prompt)")
    parser.add_argument("--instructions", metavar="N",
                        help="stop N instructions after the start of the boot (default: no "
                        f"limit, but fail if no prompt appears within {LIMIT:,} instructions)")
    parser.add_argument("--type", action="append", default=[], metavar="KEYS", dest="keys",
                        help="type KEYS at the prompt, then run to the next prompt; \\r in KEYS "
                        "ends a line, e.g. '?\\r'; may be repeated (default: type nothing)")
    parser.add_argument("-i", "--interactive", action="store_true",
                        help="at the prompt, connect standard input to the guest's keyboard "
                        "(default: exit)")
    parser.add_argument("--digest", action="store_true",
                        help="print the SHA-256 of memory, registers, devices, clock and console "
                        "(default: off)")
    parser.add_argument("--record", type=Path, metavar="FILE",
                        help="record the boot in this file for kinst replay (default: no "
                        "recording)")
    parser.add_argument("--gdb", metavar="PORT",
                        help="serve gdb on this loopback port; 0 selects a free port, - uses "
                        "standard input and output (default: no gdb)")
    parser.add_argument("--save", type=Path, metavar="FILE",
                        help="save a snapshot to this file after the run (default: no snapshot)")
    parser.add_argument("--restore", type=Path, metavar="FILE",
                        help="start from this snapshot (default: boot from the first instruction)")
    parser.add_argument("-q", "--quiet", action="store_true",
                        help="hide the guest's console (default: show it)")
    parser.add_argument("--json", action="store_true",
                        help="print the result as JSON (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """Boot the kernel, type the given keys, print the result, and return the exit status."""
    began = time.perf_counter()
    image = with_options(catalog.find(arguments.kernel, arguments.module), arguments)
    typed = [unescape(keys) for keys in arguments.keys]
    limit = None
    if arguments.instructions is not None:
        limit = parse_count(arguments.instructions, "--instructions")
    memory = None if arguments.memory is None else parse_size(arguments.memory)
    if arguments.save:
        check_writable(arguments.save, "--save")
    for other in (arguments.save, arguments.restore):
        if arguments.record and other and arguments.record.resolve() == other.resolve():
            raise KinstError(f"--record {arguments.record}: is also the file of --save or "
                             "--restore; choose another file")
    if arguments.restore:
        machine = snapshot.restore(arguments.restore, image)
        if memory not in (None, machine.memory):
            raise KinstError(f"--memory {arguments.memory}: the snapshot {arguments.restore} has "
                             f"{machine.memory >> 20}M of RAM; leave out --memory")
    else:
        machine = UnicornMachine(image, MEMORY if memory is None else memory)
        machine.boot()
    if not arguments.quiet and not arguments.json:
        machine.console.stream = show_byte
    prompt: str | tuple[str, ...] = arguments.until or machine.guest.boot.prompts
    if arguments.gdb is not None:
        return _debugged(machine, arguments)
    start = STATE if arguments.restore else BOOT
    with recorded(machine, arguments.record, start, "boot", arguments.json):
        stop = _booted(machine, arguments, prompt, limit, typed)
    if stop is not None and stop.reason is StopReason.INTERRUPTED:
        raise KeyboardInterrupt
    succeeded = stop is None or stop.reason in (
        StopReason.CONSOLE, StopReason.INSTRUCTIONS, StopReason.POWER_OFF
    )
    if limit is None and stop is not None and stop.reason is StopReason.INSTRUCTIONS:
        succeeded = False
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
            print(f"digest {result['digest']}")
        print(f"{machine.instructions} instructions, {machine.now / 1e9:.6f} virtual seconds, "
              f"{wall:.2f} wall seconds")
    if arguments.save:
        snapshot.save(machine, arguments.save)
    if arguments.write:
        keep_disks(machine)
    if not succeeded:
        more = ("; --instructions sets another limit"
                if stop is not None and stop.reason is StopReason.INSTRUCTIONS else "")
        raise KinstError(f"{image.path}: the boot ended early: {stop}{more}")
    return 0


def _debugged(machine: UnicornMachine, arguments: argparse.Namespace) -> int:
    """Serve the machine to gdb; refuse the options that --gdb does not support."""
    from kinst_emu.cli.debugging import serve_machine

    for option in ("until", "instructions", "keys", "interactive", "digest", "record", "save",
                   "json"):
        if getattr(arguments, option):
            name = "type" if option == "keys" else option
            raise KinstError(f"--{name}: cannot be combined with --gdb, because gdb controls the "
                             "run")
    serve_machine(machine, arguments.gdb)
    return 0


def _booted(machine: UnicornMachine, arguments: argparse.Namespace,
            prompt: str | tuple[str, ...], limit: int | None, typed: list[bytes]) -> Stop | None:
    """Run the machine to its prompt, type the keys, and connect the keyboard if -i is given.

    :return: why the last run stopped, or None when the machine did not have to run.
    """
    symbols = [machine.image.symbols.find(name) for name in machine.guest.boot.readers]
    readers = [reader.address for reader in symbols if reader is not None]

    asking = tuple(text.encode() for text in machine.guest.boot.prompts)

    def prompts() -> str | tuple[str, ...]:
        """Return the console texts at which the next run stops."""
        asked, answer = machine.guest.boot.later_prompt
        if not arguments.until and asked and asked.encode() in machine.console.text:
            return (*machine.guest.boot.prompts, answer)
        return prompt

    def go_on(keys: str = "") -> Stop:
        """Run until an expected text appears on the console.

        :raises KinstError: when the guest waits for input and has read all typed keys.
        """
        end = machine.instructions + LIMIT if limit is None else limit
        until = Until(readers if limit is None else (), prompts(), end)
        with PROGRESS.working(f"running {machine.image.path}"):
            while (stop := machine.run(until)).reason is StopReason.ADDRESS:
                if not machine.keys_left and (keys or machine.console.text.endswith(asking)):
                    raise KinstError(_no_prompt(arguments.until, keys))
        return stop

    stop: Stop | None = None
    known = tuple(text.encode() for text in machine.guest.boot.prompts)
    waits = machine.console.text.endswith(known)
    if not waits or arguments.until or limit is not None:
        stop = go_on()
    for keys, data in zip(arguments.keys, typed, strict=True):
        if stop is None or stop.reason is StopReason.CONSOLE:
            machine.type(data)
            stop = go_on(keys)
    if arguments.interactive and (stop is None or stop.reason is StopReason.CONSOLE):
        from kinst_emu.cli.interactive import interact

        stop = interact(machine) or stop
    return stop


def _no_prompt(until: str | None, keys: str) -> str:
    """Return the error message for a guest that has read all typed keys and waits for more."""
    wanted = "prompt" if until is None else f"text '{printable(until)}'"
    if not keys:
        return f"no {wanted} appeared: the guest waits for input; use --type to type keys"
    ends = unescape(keys).endswith((b"\r", b"\n"))
    return (f"no {wanted} appeared after --type '{printable(keys)}': the guest waits for more keys"
            + ("" if ends else r" (end a line with \r)"))
