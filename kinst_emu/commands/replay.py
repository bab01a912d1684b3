"""``kinst replay``: play a recording to its end or to any position, and inspect the state there."""

import argparse
import json
from collections.abc import Iterator
from typing import cast

from dtrace.calls.places import THREAD, Places
from dtrace.calls.positions import FORMS, go, reached_at
from dtrace.debug.debug_data import Sources
from dtrace.flow.code import KernelCode
from dtrace.flow.origin import How, Link, Origin
from dtrace.flow.user_code import in_program
from dtrace.stacks.locals import Locals
from dtrace.stacks.shown_locals import lines, variables_of
from dtrace.stacks.stack import Stacks
from dtrace.stacks.threads import Threads
from dtrace.stacks.user_programs import UserPrograms
from emu.gdb.target import PlayedTarget, Why
from emu.host.errors import KinstError, MemoryAccessError
from emu.host.progress import PROGRESS
from emu.machine.address_space import AddressSpace
from emu.machine.call import DEFAULT_LIMIT
from emu.machine.machine import Stop
from emu.machine.running_thread import thread_of
from emu.replay.inputs import Position
from emu.replay.player import Player
from emu.replay.writes import MAX_SIZE, Write, last_write, physical_of
from images.boots import LIMIT
from images.shell import program_files, without_marks
from kinst_emu.cli import flows
from kinst_emu.cli.branches import run_branch
from kinst_emu.cli.debugging import serve_recording
from kinst_emu.runs.recorded_workload import (
    played_workload,
    short_workload_options,
    with_defaults,
)
from kinst_emu.terminal.terminal import hexdump, parse_count, show_byte

EXAMPLES = (
    "kinst replay boot.rec",
    "kinst replay boot.rec --to 50%",
    "kinst replay boot.rec --to malloc#100 --memory stop:64",
    "kinst replay call.rec --from malloc --to fbt::malloc:return",
    "kinst replay boot.rec --who-wrote ticks --before 50%",
    "kinst replay call.rec --trace-insns malloc:fbt::malloc:return --registers",
    "kinst replay panic.rec --origin a0@fault",
    "kinst replay boot.rec --to 50% --reverse-to malloc",
    "kinst replay call.rec --to malloc:22 --locals",
    "kinst replay -k kernel '$ cat /etc/motd' --to vn_open_cred --locals",
    "kinst replay call.rec --gdb 1234",
    "kinst replay boot.rec --trace-insns : --as flame -o boot.svg",
)
DEFAULT_WRITES = "2"
SHOWN, MAX_SHOWN = 64, 1 << 16  # default and maximum number of bytes of memory to show


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst replay``."""
    parser.add_argument("what", metavar="WHAT",
                        help="a recording, or a workload to record first, as for kinst record: '$ "
                        "COMMAND', a C file, calls in the booted kernel, or 'boot' (required)")
    short_workload_options(parser, "required for a workload; default: the kernel file named in the "
                           "recording, or the known kernel with the same build ID")
    parser.add_argument("--to", metavar="POSITION",
                        help="stop at this position and show registers, stack and memory; POSITION "
                        "is " + FORMS.replace("%", "%%") + " (default: play to the end)")
    parser.add_argument("--from", dest="begin", metavar="POSITION",
                        help="start at this position: hide earlier console output, and count calls "
                        "and firings for #N from there (default: the start of the recording)")
    parser.add_argument("--memory", action="append", default=[], metavar="WHERE[:BYTES]",
                        help="show BYTES bytes of memory at an address, at a symbol, or at the "
                        f"address in a register; may be repeated (default: {SHOWN} bytes at the "
                        "stack pointer)")
    parser.add_argument("--locals", nargs="?", const="1", metavar="FRAMES",
                        help="show the parameters and local variables of the innermost FRAMES "
                        "frames (default: do not show them; default FRAMES: 1)")
    parser.add_argument("--who-wrote", metavar="WHERE[:BYTES]",
                        help="show the last stores to an address, a symbol or a C expression, e.g. "
                        "a->b, a[3] or *(struct thread *)rdi, and the instructions that made the "
                        "stores (default: no search)")
    parser.add_argument("--process", metavar="PID",
                        help="with --memory, --who-wrote or --origin: look up user addresses in "
                        "this process (default: the process that runs at the position)")
    parser.add_argument("--before", metavar="POSITION",
                        help="with --who-wrote: search backward from this position (default: the "
                        "position of --to, or the end)")
    parser.add_argument("--origin", metavar="WHERE[@POSITION]",
                        help="trace a value back to its origin; WHERE is a register, or a memory "
                        "location in any form that --who-wrote accepts (default: no search; "
                        "default POSITION: that of --to, or the end)")
    parser.add_argument("--reverse-to", metavar="PROBE",
                        help="go back to the last time that this function or probe was reached "
                        "before the position of --to, or before the end (default: do not go back)")
    parser.add_argument("--writes", default=DEFAULT_WRITES, metavar="N",
                        help="with --who-wrote: number of stores to show, latest first (default: "
                        "%(default)s)")
    parser.add_argument("--trace-insns", metavar="FROM:TO",
                        help="print all instructions between two positions; -o writes them to a "
                        "file instead (default: off)")
    flows.add_options(parser, (flows.TRACE,))
    parser.add_argument("--registers", action="store_true",
                        help="with --trace-insns: also show the registers that each instruction "
                        "changed (default: off)")
    parser.add_argument("--stores", action="store_true",
                        help="with --trace-insns: also show the memory that each instruction wrote "
                        "(default: off)")
    parser.add_argument("--set", action="append", default=[], metavar="PLACE=VALUE",
                        help="leave the recording at the position of --to, give a variable or "
                        "member of the kernel this value there, and run on without the recording "
                        "to the shell's prompt, for at most the N instructions of --limit; may be "
                        "repeated (default: stay in the recording)")
    parser.add_argument("--gdb", metavar="PORT",
                        help="wait for gdb on this loopback port; 0 selects a free port, - uses "
                        "standard input and output; gdb can also execute the recording backward; "
                        "the session starts at the position given with --to, or at the start of "
                        "the recording (default: no gdb)")
    parser.add_argument("--limit", metavar="N",
                        help="refuse a recording with more than N instructions, or abandon a "
                        f"workload after N instructions (default: {LIMIT:,}; {DEFAULT_LIMIT:,} "
                        "for a call)")
    parser.add_argument("-q", "--quiet", action="store_true",
                        help="hide the guest's console (default: show it)")
    parser.add_argument("--json", action="store_true",
                        help="print the result as JSON (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """Play the recording as the options ask, print the result, and return the exit status."""
    _check_options(arguments)
    with played_workload(with_defaults(arguments, arguments.what)) as player:
        return _played(player, arguments)


def _played(player: Player, arguments: argparse.Namespace) -> int:
    limit = LIMIT if arguments.limit is None else parse_count(arguments.limit, "--limit")
    recording, machine = player.recording, player.machine
    places = [_sized(text, "--memory") for text in arguments.memory]
    if arguments.set:
        if arguments.to is None:
            raise KinstError("--set: give the position at which to leave the recording with --to")
        run_branch(player, arguments.to, arguments.set, limit)
        return 0
    if arguments.who_wrote is not None:
        return _who_wrote(player, arguments)
    if arguments.origin is not None:
        return _origin(player, arguments)
    if arguments.trace_insns is not None:
        with PROGRESS.working(f"playing {arguments.what}"):
            window_end = flows.find_window(player, arguments.trace_insns)
        return flows.write_trace(player, window_end, arguments)
    if arguments.gdb is not None:
        with PROGRESS.working(f"playing {arguments.what}"):
            if arguments.begin is not None:
                _reached(go(player, arguments.begin))
            if arguments.to is not None:
                _reached(go(player, arguments.to, player.position))
        serve_recording(player, arguments.gdb)
        return 0
    shows = not (arguments.quiet or arguments.json)
    with PROGRESS.working(f"playing {arguments.what}"):
        if arguments.begin is not None:
            _reached(go(player, arguments.begin))
        if shows:
            machine.console.stream = without_marks(show_byte)
        if arguments.to is not None:
            _reached(go(player, arguments.to, player.position))
        else:
            _reached(player.advance_to_end())
        if arguments.reverse_to is not None:
            _back_to(player, arguments.reverse_to)
            arguments.to = arguments.reverse_to
    machine.console.stream = None
    result: dict[str, object] = {"position": _position(player.position)}
    if arguments.to is not None or places:
        result |= _state(player, places, arguments.process)
    if arguments.locals is not None:
        result["locals"] = list(variables_of(Locals(machine), machine.read_register,
                                     parse_count(arguments.locals, "--locals")))
    wrong = ""
    if arguments.to is None:
        wrong = player.difference()
        end = recording.end
        result["same"] = None if end is None or end.digest is None else not wrong
        result["problem"] = recording.problem
    if arguments.json:
        print(json.dumps(result))
    else:
        _show(player, result, arguments.to is None)
    if wrong:
        raise KinstError(f"{arguments.what}: the replay ended in a different state: {wrong}")
    return 0


ORIGIN = 8  # maximum size in bytes of a memory value that is traced to its origin
# Options that each mode accepts, in addition to -k, --limit and -q
MODES = {
    "set": ("to",),
    "who_wrote": ("before", "to", "writes", "process", "json"),
    "origin": ("to", "process", "json"),
    "trace_insns": ("format", "output", "mark", "registers", "stores"), "gdb": ("begin", "to"),
}
PLAIN = ("begin", "to", "locals", "memory", "process", "reverse_to", "json")
SPELLED = {"begin": "from", "format": "as"}


def _check_options(arguments: argparse.Namespace) -> None:
    """Refuse combinations of modes, and options that the chosen mode does not support.

    :raises KinstError: naming the options.
    """
    def option(name: str) -> str:
        return "--" + SPELLED.get(name, name).replace("_", "-")

    def given(name: str) -> bool:
        value = getattr(arguments, name)
        return value not in (None, False, []) and not (name == "writes" and value == DEFAULT_WRITES)

    chosen = [name for name in MODES if given(name)]
    if len(chosen) > 1:
        raise KinstError(f"{option(chosen[0])}: cannot be combined with {option(chosen[1])}; give "
                         "only one of them")
    takes = MODES[chosen[0]] if chosen else PLAIN
    for name in {n for names in (*MODES.values(), PLAIN) for n in names}:
        if given(name) and name not in takes:
            owner = next((mode for mode, names in MODES.items() if name in names), None)
            raise KinstError(f"{option(name)}: cannot be used with {option(chosen[0])}" if chosen
                             else f"{option(name)}: works only with {option(owner or '')}")


def _back_to(player: Player, text: str) -> None:
    """Move the player back to the last time that execution reached a function or probe."""
    target = PlayedTarget(player)
    wanted = reached_at(player, text)
    if wanted.tails:
        raise KinstError(f"--reverse-to {text}: the function ends with a tail call, so it returns "
                         "where its callee returns; give the callee's return probe")
    for address in wanted.addresses:
        target.break_at(address)
    here = player.position
    event = target.back(lambda: False)
    if event.why is Why.INTERRUPTED:
        raise KeyboardInterrupt
    if event.why is not Why.BREAKPOINT:
        raise KinstError(f"{player.recording.path}: {text} is not reached before {here}")


def _origin(player: Player, arguments: argparse.Namespace) -> int:
    register, _at, position = arguments.origin.partition("@")
    if arguments.to is not None:
        if position:
            raise KinstError(f"--origin {arguments.origin}: --to also sets the position; give only "
                             "one position")
        position = arguments.to
    image, arch = player.machine.image, player.machine.arch
    register = {"sp": arch.sp}.get(register, register)
    code, programs = KernelCode(image), UserPrograms(program_files(image))
    origin = Origin(player, code)
    with PROGRESS.working(f"playing {arguments.what}"):
        given = position not in ("", "end")
        if given:
            _reached(go(player, position))
            player.give()
        else:  # leave out the inputs after the last instruction: they only restore registers
            _reached(player.advance(player.recording.last))
        count = player.position.instructions
        if origin.is_register(register):
            value = player.machine.read_register(register)
            links = origin.of(register, count, given)
        elif register in arch.registers:
            origin.check(register)
        else:
            place = Places(player.machine).find(register)
            size = min(place.size, ORIGIN)
            physical = _physical(player, place.address, arguments.process)
            value = int.from_bytes(player.machine.read_physical(physical, size), "little")
            links = origin.of_memory(physical, size, count)
    if not arguments.json:
        print(f"{register} is {value:#x} at instruction {count}")
    sources, rows, saved = Sources(image), list[dict[str, object]](), 0
    held: Link | None = None  # the last load, hidden if it merely restores a register
    for link in _searching(links, register):
        rows.append(_linked(link, player, sources, code, programs))
        if arguments.json:
            continue
        if held is not None and link.how is How.STORED and link.source == held.place:
            held, saved = None, saved + 1
            continue
        if held is not None:
            _show_link(rows[-2], saved)
            held, saved = None, 0
        if link.how is How.LOADED:
            held = link
        else:
            _show_link(rows[-1], saved)
            saved = 0
    if arguments.json:
        print(json.dumps({"register": register, "value": value, "instructions": count,
                          "links": rows}))
    return 0


def _linked(link: Link, player: Player, sources: Sources, code: KernelCode,
            programs: UserPrograms) -> dict[str, object]:
    location = text = after = ""
    line, image = "?", player.machine.image
    if link.pc is not None and link.code:
        _reached(player.seek(link.count))
        location = _in_program(player, link.pc, programs)
        text = code.arch.disassemble(link.code, link.pc)
    elif link.pc is not None:
        location, line = image.symbols.where(link.pc), sources.line(link.pc)
        function = image.symbols.function_at(link.pc)
        if line == "?" and function is not None:
            after = sources.line_before(function.address, link.pc)
        text = code.arch.disassemble(code.instruction(link.pc), link.pc)
    return {"instructions": link.count, "pc": link.pc, "how": link.how.value, "place": link.place,
            "source": link.source, "at": location, "instruction": text,
            "line": None if line == "?" else line, "after": after or None}


def _show_link(row: dict[str, object], saved: int) -> None:
    """Print one step of tracing a value back to its origin.

    :param saved: number of saves and restores of the register that were skipped before this step.
    """
    if saved:
        print(f"{'':>12}  (saved to the stack and restored {saved} times)")
    what = f"{row['place']} {row['how']} {row['source']}".rstrip()
    print(f"{row['instructions']:>12}  {row['at']:<28} {row['instruction']:<36} {what}"
          f"{'  ' + _place(row) if row['line'] or row['after'] else ''}".rstrip(), flush=True)


def _place(row: dict[str, object]) -> str:
    return str(row["line"] or f"after {row['after']}")


def _searching(links: Iterator[Link], register: str) -> Iterator[Link]:
    """Yield the steps from a value back to its origin, and show progress during each search."""
    while True:
        with PROGRESS.working(f"looking for the origin of {register}"):
            link = next(links, None)
        if link is None:
            return
        yield link


def _who_wrote(player: Player, arguments: argparse.Namespace) -> int:
    where, size = _sized(arguments.who_wrote, "--who-wrote")
    wanted = parse_count(arguments.writes, "--writes")
    with PROGRESS.working(f"playing {arguments.what}"):
        if arguments.before is not None and arguments.to is not None:
            raise KinstError("--before and --to: both set the position; give only one of them")
        until = arguments.before or arguments.to
        _reached(player.advance_to_end() if until is None else go(player, until))
        player.give()
        before, place = player.position, Places(player.machine).find(where)
        if not size:
            size = min(place.size, MAX_SIZE)
        physical = _physical(player, place.address, arguments.process)
        whose = _whose(player, where)
    rows: list[dict[str, object]] = []
    while len(rows) < wanted:
        with PROGRESS.working(f"looking for the last store to {where}"):
            write = last_write(player, physical, size, before, not rows)
        if write is None:
            break
        row = _written(player, write)
        rows.append(row)
        if not arguments.json:
            print(f"{write.position}: {row['by']}  {row['old']} -> {row['new']}", flush=True)
        before = write.position
    if arguments.json:
        print(json.dumps({"address": place.address, "size": size, "writes": rows}))
    elif not rows:
        print(f"no store to {where} ({place.address:#x}, {size} bytes){whose} in "
              f"this recording, from {player.recording.start.position} to {before}")
    return 0


def _whose(player: Player, where: str) -> str:
    """Return which thread a place belongs to, if that is the running thread."""
    if THREAD not in where:
        return ""
    name = Threads(player.machine).name(thread_of(player.machine))
    return f" of the running thread, {name}," if name else ""


def _in_program(player: Player, pc: int, programs: UserPrograms) -> str:
    """Describe a user address by its function and the process that runs at the current position."""
    thread = next((one for one in Threads(player.machine).all()
                   if one.address == thread_of(player.machine)), None)
    if thread is None:
        return f"{pc:#x} of a program"
    return f"{programs.line(programs.frame(thread.process, pc))} (pid {thread.pid})"


def _physical(player: Player, address: int, process: str | None) -> int:
    """Translate a virtual address of the kernel or of a process to a physical address.

    :raises KinstError: when the address is not mapped, or the process does not exist.
    """
    if process is None or not in_program(address):
        return physical_of(player, address)
    name, space = _space(player, process)
    physical = space.translate(address)
    if physical is None:
        raise KinstError(f"{address:#x} is not mapped in {name} (pid {process}) at "
                         f"{player.position}")
    return physical


def _space(player: Player, process: str) -> tuple[str, AddressSpace]:
    return Threads(player.machine).space(parse_count(process, "--process"))


def _written(player: Player, write: Write) -> dict[str, object]:
    by = "from outside"
    if write.pc is not None and in_program(write.pc) and player.machine.guest.boot.shell_prompt:
        by = _in_program(player, write.pc, UserPrograms(program_files(player.machine.image)))
    elif write.pc is not None:
        symbols = player.machine.image.symbols
        where, function = symbols.where(write.pc), symbols.function_at(write.pc)
        line = Sources(player.machine.image).near(
            write.pc if function is None else function.address, write.pc)
        by = where if line == "?" else f"{where}  {line}"
    return {"position": _position(write.position), "pc": write.pc, "by": by,
            "old": _number(write.old), "new": _number(write.new)}


def _number(content: bytes) -> str:
    """Format 1, 2, 4 or 8 bytes as a little-endian hexadecimal number, other sizes as hex bytes."""
    if len(content) in (1, 2, 4, 8):
        return f"{int.from_bytes(content, 'little'):#x}"
    return content.hex()


def _reached(stop: Stop | None) -> None:
    if stop is not None:
        raise KeyboardInterrupt


def _position(position: Position) -> dict[str, int]:
    return {"instructions": position.instructions, "time": position.time}


def _sized(text: str, option: str) -> tuple[str, int]:
    """Split an option's value WHERE[:BYTES] into a location and a size (0 if BYTES is missing)."""
    where, _colon, size = text.partition(":")
    count = parse_count(size, option) if size else 0
    if count > MAX_SHOWN:
        raise KinstError(f"{option} {text}: BYTES must be at most {MAX_SHOWN}")
    return where, count


def _state(player: Player, places: list[tuple[str, int]],
           process: str | None) -> dict[str, object]:
    machine = player.machine
    space = None if process is None else _space(player, process)[1]
    stack = Stacks(machine).text(machine.read_register)
    memory = []
    for where, size in places or [(machine.arch.sp, SHOWN)]:
        address, size = Places(machine).find(where).address, size or SHOWN
        try:
            memory_of = machine if space is None or not in_program(address) else space
            content: str | None = memory_of.read(address, size).hex()
        except MemoryAccessError:
            content = None
        memory.append({"where": where, "address": address, "content": content})
    return {"pc": machine.pc, "at": machine.image.symbols.where(machine.pc),
            "registers": machine.registers(), "stack": [line.strip() for line in stack],
            "memory": memory}


def _show(player: Player, result: dict[str, object], whole: bool) -> None:
    recording = player.recording
    print(f"at {player.position} of {recording.last.instructions}")
    registers = result.get("registers")
    if isinstance(registers, dict):
        rows = [f"{name:>8} {value:#018x}" for name, value in registers.items()]
        for at in range(0, len(rows), 4):
            print("".join(rows[at : at + 4]))
        stack, memory = result["stack"], result["memory"]
        assert isinstance(stack, list) and isinstance(memory, list)
        print("\n".join(f"  {line}" for line in stack))
        for place in memory:
            print(f"{place['where']}:")
            print("  not mapped" if place["content"] is None
                  else hexdump(place["address"], bytes.fromhex(place["content"])))
    for line in lines(iter(cast("list[dict[str, object]]", result.get("locals", [])))):
        print(line)
    if not whole:
        return
    if recording.problem:
        print(f"the recording ends here: {recording.problem}")
    if result["same"]:
        print("the state matches the recording")
