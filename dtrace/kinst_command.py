"""The ``kinst`` command: everything that is not tracing."""

import argparse
import json
import sys
import time
from pathlib import Path

from dtrace import inline_command, line_command, relocate_command, type_command, xval_command
from dtrace.calls import Evaluation, check, parse, unescape
from dtrace.debug_data import Sources, debug_index
from dtrace.stack import failure
from dtrace.symbols import sized_functions
from dtrace.terminal import parse_count, parse_size, run_command, show_byte, working
from dtrace.workload import PROMPTS, BootError, booted, settle_at_reader, unbooted
from dwarf.debug_file import debug_file
from emu import snapshot
from emu.architectures import arch_of
from emu.call import DEFAULT_LIMIT, Caller, CallError
from emu.elf import Image, Symbol
from emu.errors import KinstError
from emu.machine import Stop, StopReason, Until
from emu.unicorn_machine import UnicornMachine
from images import catalog
from images.fetch import fetch
from kinst.listing import exclusion, image_code, instructions
from kinst.traps import TRAPS
from kinst.verdict import summary


def main() -> None:
    run_command("kinst", _main)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kinst", description="Boots FreeBSD kernels inside Python, and calls into them."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    boot = commands.add_parser("boot", help="boot a kernel to its prompt")
    _image_options(boot)
    boot.add_argument("--until", metavar="TEXT", help="stop at this console text, not the prompt")
    boot.add_argument("--instructions", metavar="N", help="stop after N instructions")
    boot.add_argument("--type", action="append", default=[], metavar="KEYS", dest="keys",
                      help=r"type at the prompt and wait for the next, e.g. '?\r'; may be repeated")
    boot.add_argument("-i", "--interactive", action="store_true",
                      help="go on at the prompt with standard input as the keyboard")
    boot.add_argument("--digest", action="store_true",
                      help="print the SHA-256 of memory, registers, clock and console")
    boot.add_argument("--save", type=Path, metavar="FILE", help="write a snapshot at the end")
    boot.add_argument("--restore", type=Path, metavar="FILE", help="go on from a snapshot")
    boot.add_argument("-q", "--quiet", action="store_true", help="do not show the console")
    boot.add_argument("--json", action="store_true", help="print the result as JSON")

    call = commands.add_parser("call", help="call a function of the booted kernel")
    _image_options(call)
    call.add_argument("call", metavar="CALL", help="e.g. 'strlen(\"hello\")'")
    call.add_argument("--no-boot", action="store_true", help="call into the unbooted image")
    call.add_argument("--snapshot", type=Path, metavar="FILE", help="call in this snapshot")
    call.add_argument("--show", action="append", default=[], metavar="ARG",
                      help="dump a buffer after the call: arg0, arg1, ..., or an assigned name")
    call.add_argument("--limit", default=str(DEFAULT_LIMIT), metavar="N",
                      help="instructions after which the call is given up (%(default)s)")
    call.add_argument("--json", action="store_true", help="print the result as JSON")

    disas = commands.add_parser("disas", help="show a function's instructions and their verdicts")
    disas.add_argument("-k", "--kernel", required=True, metavar="IMAGE",
                       help="a kernel file, or a name from 'kinst images'")
    disas.add_argument("function", nargs="+", metavar="FUNCTION")
    disas.add_argument("--no-source", dest="source", action="store_false",
                       help="do not look for source lines")
    disas.add_argument("--json", action="store_true", help="print the list as JSON")

    inline_command.add_options(commands.add_parser(
        "inline", help="list the inline copies of a function, or the inline calls in one"))

    line_command.add_options(commands.add_parser(
        "line", help="the code of a source line, or the source lines of an instruction"))
    xval_command.add_options(commands.add_parser(
        "xval", help="compare calls on our machine and on QEMU"))
    type_command.add_options(commands.add_parser(
        "type", help="the layout of a type, the prototype of a function, a variable's type"))

    relocate_command.add_options(commands.add_parser(
        "relocate", help="test the displacement of every instruction"))

    images = commands.add_parser("images", help="list, add and fetch kernel images")
    images.add_argument("--json", action="store_true", help="print the list as JSON")
    actions = images.add_subparsers(dest="action", metavar="ACTION")
    add = actions.add_parser("add", help="copy a kernel into the store")
    add.add_argument("file", type=Path)
    add.add_argument("--name", help="NAME/ARCH; default: its folder's name")
    get = actions.add_parser("fetch", help="get an official kernel with its debug data")
    get.add_argument("name", metavar="RELEASE/ARCH", help="e.g. 15.0-RELEASE/amd64")
    return parser


def _image_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-k", "--kernel", required=True, metavar="IMAGE",
                        help="a kernel file, or a name from 'kinst images'")
    parser.add_argument("--memory", default="512M", metavar="SIZE", help="guest RAM (%(default)s)")


def _main() -> int:
    arguments = _parser().parse_args()
    commands = {"boot": _boot, "call": _call, "disas": _disas, "images": _images,
                "inline": inline_command.run,
                "line": line_command.run, "type": type_command.run,
                "xval": xval_command.run, "relocate": relocate_command.run}
    return commands[arguments.command](arguments)


# -- boot ------------------------------------------------------------------------------------


def _boot(arguments: argparse.Namespace) -> int:
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
        from dtrace.interactive import interact

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


# -- call ------------------------------------------------------------------------------------


def _call(arguments: argparse.Namespace) -> int:
    program = parse(arguments.call)
    limit = parse_count(arguments.limit, "--limit")
    image = catalog.find(arguments.kernel)
    memory = parse_size(arguments.memory)
    check(image, program)
    try:
        if arguments.snapshot:
            machine = snapshot.restore(arguments.snapshot, image)
            settle_at_reader(machine)
        else:
            with working(f"booting {image.path} (the next time it comes from the cache)"):
                machine = unbooted(image, memory) if arguments.no_boot else booted(image, memory)
    except BootError as error:
        show_console(error.console)
        raise
    machine.console.text.clear()
    before = machine.instructions
    evaluation = Evaluation(Caller(machine, limit))
    try:
        value = evaluation.run(program)
    except CallError as error:
        if arguments.json:
            said = error.console.decode("utf-8", "replace")
            print(json.dumps({"error": str(error), "console": said,
                              "stack": [line.strip() for line in failure(machine)]}))
        else:
            show_console(error.console)
            print("".join(f"{line}\n" for line in failure(machine)), end="")
        raise
    console = bytes(machine.console.text)
    shown = {name: _buffer(evaluation, name, machine) for name in arguments.show}
    if arguments.json:
        print(json.dumps({
            "value": value, "instructions": machine.instructions - before,
            "console": console.decode("utf-8", "replace"),
            "buffers": {name: data.hex() for name, (_at, data) in shown.items()},
        }))
        return 0
    show_console(console)
    print(f"{arguments.call} = {describe(value)}")
    for name, (address, data) in shown.items():
        print(f"{name}:")
        print(hexdump(address, data))
    return 0


def _buffer(evaluation: Evaluation, name: str, machine: UnicornMachine) -> tuple[int, bytes]:
    if name in evaluation.names:
        address = evaluation.names[name]
    else:
        number = name.removeprefix("arg")
        known = [f"arg{i}" for i in range(len(evaluation.last_arguments))]
        if f"arg{number}" not in known:
            known += evaluation.names
            raise KinstError(f"--show {name}: the call has {', '.join(known) or 'no arguments'}")
        address = evaluation.last_arguments[int(number)]
    return address, machine.read(address, evaluation.sizes.get(address, 64))


def describe(value: int) -> str:
    """A return value as a person reads it: decimal, hexadecimal, and signed where that differs."""
    text = f"{value} ({value:#x}"
    low = value & 0xFFFFFFFF
    if value >> 63:
        text += f", long {value - (1 << 64)}"
    elif low >> 31 and value >> 32 == 0:
        text += f", int {low - (1 << 32)}"
    return text + ")"


def hexdump(address: int, data: bytes) -> str:
    """Sixteen bytes a line, as ``hexdump -C`` shows them."""
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        cells = " ".join(f"{byte:02x}" for byte in row[:8])
        if len(row) > 8:
            cells += "  " + " ".join(f"{byte:02x}" for byte in row[8:])
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{address + at:016x}  {cells:<49} |{text}|")
    return "\n".join(lines)


def show_console(text: bytes) -> None:
    if text:
        shown = text.replace(b"\r", b"").decode("utf-8", "replace")
        print(shown, end="" if shown.endswith("\n") else "\n")
        sys.stdout.flush()


# -- disas -------------------------------------------------------------------------------------


def _disas(arguments: argparse.Namespace) -> int:
    image = catalog.find(arguments.kernel)
    arch = arch_of(image)
    trap = TRAPS[arch.name]
    found = []
    for name in arguments.function:
        for symbol in sized_functions(image, name):
            table = list(instructions(trap, image_code(image, symbol), symbol))
            found.append((symbol, table, _sources(image, symbol, arguments.source)))
    rows = []
    for symbol, table, sources in found:
        left_alone = exclusion(trap, symbol.name)
        if not arguments.json:
            print(f"{symbol.name}: {symbol.address:#x}, {symbol.size} bytes")
        before: str | None = None
        for i in table:
            verdict = summary(i.verdict)
            if left_alone:
                verdict = f"refuse: the function {left_alone}"
            text, source = arch.disassemble(i.code, i.address), sources.get(i.address)
            rows.append({
                "function": symbol.name, "address": i.address, "offset": i.offset,
                "bytes": i.code.hex(), "instruction": text, "verdict": verdict, "source": source,
            })
            if not arguments.json:
                if source is not None and source != before:
                    print(f"  {source}")
                    before = source
                print(f"{i.offset:>6}  {i.code.hex(' '):<30} {text:<44} {verdict}")
    if arguments.json:
        print(json.dumps(rows))
    return 0


def _sources(image: Image, symbol: Symbol, wanted: bool) -> dict[int, str]:
    """The source line of every address of a function that has one, with the inline functions it
    is from."""
    found: dict[int, str] = {}
    if not wanted or debug_file(image.path) is None:
        return found
    index, sources = debug_index(image), Sources(image)
    for begin, end, line in sources.lines(symbol.address, symbol.address + symbol.size):
        for address in range(begin, end):
            names = [f.name for f in index.stack(address) if f.inlined]
            found[address] = f"{line}  ({' in '.join(names)})" if names else line
    return found


# -- images ----------------------------------------------------------------------------------


def _images(arguments: argparse.Namespace) -> int:
    if arguments.action == "add":
        image = catalog.add(arguments.file, arguments.name)
        print(f"{image.name}: {image.path}")
        return 0
    if arguments.action == "fetch":
        return _fetch(arguments.name)
    images = catalog.known()
    if arguments.json:
        print(json.dumps([
            {"name": i.name, "path": str(i.path) if i.path else None, "origin": i.origin}
            for i in images
        ]))
        return 0
    width = max(len(image.name) for image in images)
    for image in images:
        print(f"{image.name:<{width}}  {image.path or f'not here; get it by: {image.origin}'}")
    return 0


def _fetch(name: str) -> int:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TransferSpeedColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(),
               TransferSpeedColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    tasks: dict[str, TaskID] = {}

    def progress(file: str, done: int, total: int) -> None:
        bar.start()
        if file not in tasks:
            tasks[file] = bar.add_task(file, total=total or None)
        bar.update(tasks[file], completed=done)

    try:
        image = fetch(name, progress)
    finally:
        if tasks:
            bar.stop()
    print(f"{image.name}: {image.path}")
    return 0


if __name__ == "__main__":
    main()
