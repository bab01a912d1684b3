"""``kinst boot``: boot a kernel to its prompt."""

import argparse
import json
import time
from dataclasses import dataclass
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
from images.login import asks, at_session_prompt, quoted_last_line, run_to
from kinst_emu.api.record_run import recorded
from kinst_emu.cli.boot_words import (
    idle_option,
    keep_disks,
    loader_options,
    parse_idle,
    self_contained_option,
    with_options,
)
from kinst_emu.cli.completion import kernel_option
from kinst_emu.cli.device_words import connected, device_words
from kinst_emu.terminal.terminal import check_writable, parse_count, parse_size, show_byte

EXAMPLES = (
    "kinst boot -k 15.0-RELEASE/amd64",
    "kinst boot -k teaching/arm64 --type 'strings\\r'",
    "kinst boot -k teaching/riscv64 --instructions 5000 --digest",
    "kinst boot -k kernel -i",
)


EVER = 1 << 62  # virtual time in ns that no run reaches


@dataclass(frozen=True)
class Keys:
    """Keys to type, and the console text at which to type them; None: at a prompt."""

    text: str
    at: str | None


class _At(argparse.Action):
    """Keep the text of --at for the next --type."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace,
                 values: object, option_string: str | None = None) -> None:
        if namespace.at is not None:
            parser.error(f"--at {namespace.at}: must be followed by --type")
        namespace.at = values


class _Type(argparse.Action):
    """Append keys to the list, with the text of --at before them."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace,
                 values: object, option_string: str | None = None) -> None:
        namespace.keys = [*namespace.keys, Keys(str(values), namespace.at)]
        namespace.at = None


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
    parser.add_argument("--type", action=_Type, default=[], metavar="KEYS", dest="keys",
                        help="type KEYS at the prompt, then run to the next prompt; \\r in KEYS "
                        "ends a line, e.g. '?\\r'; may be repeated (default: type nothing)")
    parser.add_argument("--at", action=_At, metavar="TEXT",
                        help="type the KEYS of the next --type when TEXT appears on the console "
                        "(default: at the next prompt)")
    idle_option(parser, "; no limit with --instructions")
    parser.add_argument("-i", "--interactive", action="store_true",
                        help="at the prompt, connect standard input to the guest's keyboard "
                        "(default: exit)")
    parser.add_argument("--digest", action="store_true",
                        help="print the SHA-256 of memory, registers, devices, clock and console "
                        "(default: off)")
    parser.add_argument("--record", type=Path, metavar="FILE",
                        help="record the boot in this file for kinst replay (default: no "
                        "recording)")
    self_contained_option(parser)
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
    typed = [unescape(keys.text) for keys in arguments.keys]
    idle = parse_idle(arguments.idle)
    if arguments.at is not None:
        raise KinstError(f"--at '{printable(arguments.at)}': must be followed by --type")
    limit = None
    if arguments.instructions is not None:
        limit = parse_count(arguments.instructions, "--instructions")
        if arguments.idle is None:
            idle = EVER  # the default is for runs that have no other end
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
    if arguments.gdb is not None:
        return _debugged(machine, arguments)
    start = STATE if arguments.restore else BOOT
    with recorded(machine, arguments.record, start, "boot", arguments.json,
                  arguments.self_contained), \
            connected(machine, device_words(arguments)):
        stop = _booted(machine, arguments, limit, typed, idle)
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
        more = "" if stop is None else {
            StopReason.INSTRUCTIONS: "; --instructions sets another limit",
            StopReason.IDLE: f" (--idle {idle // 10**9}); {quoted_last_line(machine)}",
        }.get(stop.reason, "")
        raise KinstError(f"{image.path}: the boot ended early: {stop}{more}")
    return 0


def _debugged(machine: UnicornMachine, arguments: argparse.Namespace) -> int:
    """Serve the machine to gdb; refuse the options that --gdb does not support."""
    from kinst_emu.cli.debugging import serve_machine

    for option in ("until", "instructions", "keys", "at", "interactive", "digest", "record", "save",
                   "json", "write"):
        if getattr(arguments, option):
            name = "type" if option == "keys" else option
            raise KinstError(f"--{name}: cannot be combined with --gdb, because gdb controls the "
                             "run")
    with connected(machine, device_words(arguments)):
        serve_machine(machine, arguments.gdb)
    return 0


class _Typist:
    """Runs a machine from prompt to prompt, and types the keys of the command line.

    :param until: text of --until, or None.
    :param limit: instruction count at which every run ends, or None.
    :param idle: idle virtual time in ns after which a run ends.
    """

    def __init__(self, machine: UnicornMachine, until: str | None, limit: int | None,
                 idle: int) -> None:
        self.machine, self._until, self._limit, self._idle = machine, until, limit, idle
        symbols = [machine.image.symbols.find(name) for name in machine.guest.boot.readers]
        self._readers = [] if limit is not None else [
            symbol.address for symbol in symbols if symbol is not None]
        self._asking = tuple(text.encode() for text in machine.guest.boot.prompts)

    @property
    def waits(self) -> bool:
        """Whether the machine is at one of the kernel's prompts."""
        return self.machine.console.text.endswith(self._asking)

    def run(self, at: str | None = None, keys: str = "") -> Stop:
        """Run to the next prompt.

        :param at: text to wait for instead of a prompt.
        :param keys: keys that were typed before, for messages.
        :return: the stop; the prompt of a login program or a shell counts as console text.
        :raises KinstError: when the guest waits for input and has read all typed keys, but the
            wanted text did not appear.
        """
        machine, text = self.machine, at or self._until
        end = machine.instructions + LIMIT if self._limit is None else self._limit
        until = Until(self._readers, text or machine.guest.boot.prompts, end)

        def known() -> bool:
            return text is None and self._limit is None and (
                at_session_prompt(machine) or asks(machine))

        with PROGRESS.working(f"running {machine.image.path}"):
            while (stop := run_to(machine, until, self._idle, known)).reason is StopReason.ADDRESS:
                if not machine.keys_left and (
                        keys or at or machine.console.text.endswith(self._asking)):
                    raise KinstError(self._no_prompt(at, keys))
        if stop.reason is StopReason.IDLE and text is None and self._limit is None:
            if at_session_prompt(machine):
                return Stop(StopReason.CONSOLE, stop.pc)
            if asks(machine):
                raise KinstError(self._no_prompt(at, keys))
        return stop

    def _no_prompt(self, at: str | None, keys: str) -> str:
        """Return the message for a guest that has read all typed keys and waits for more."""
        text = at or self._until
        wanted = "prompt" if text is None else f"text '{printable(text)}'"
        where = quoted_last_line(self.machine)
        if not keys:
            return (f"no {wanted} appeared: the guest waits for input; use --type to type keys; "
                    f"{where}")
        ends = unescape(keys).endswith((b"\r", b"\n"))
        return (f"no {wanted} appeared after --type '{printable(keys)}': the guest waits for more "
                "keys" + ("" if ends else r" (end a line with \r)")
                + f"; {where}; --at types at any text")


def _booted(machine: UnicornMachine, arguments: argparse.Namespace, limit: int | None,
            typed: list[bytes], idle: int) -> Stop | None:
    """Run the machine to its prompt, type the keys, and connect the keyboard if -i is given.

    :return: why the last run stopped, or None when the machine did not have to run.
    """
    typist = _Typist(machine, arguments.until, limit, idle)
    stop: Stop | None = None
    places = [keys.at for keys in arguments.keys]
    first = places[0] if places else None
    if not typist.waits or arguments.until or first is not None or limit is not None:
        stop = typist.run(first)
    for keys, data, at in zip(arguments.keys, typed, [*places[1:], None], strict=False):
        if stop is None or stop.reason is StopReason.CONSOLE:
            machine.type(data)
            stop = typist.run(at, keys.text)
    if arguments.interactive and (stop is None or stop.reason is StopReason.CONSOLE):
        from kinst_emu.cli.interactive import interact

        stop = interact(machine) or stop
    return stop
