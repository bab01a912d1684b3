"""``kinst replay``: a recording, played to its end or to a position."""

import argparse
import json
from pathlib import Path

from dtrace.debug_data import Sources
from dtrace.stack import Stacks
from emu.errors import KinstError, MemoryAccessError
from emu.machine import Stop
from emu.progress import PROGRESS
from emu.replay.inputs import Position
from emu.replay.player import Player
from emu.replay.writes import MAX_SIZE, Write, last_write, physical_of
from images.boots import LIMIT
from images.recordings import played
from kinst_emu.positions import FORMS, go
from kinst_emu.terminal import hexdump, parse_count, show_byte

EXAMPLES = (
    "kinst replay boot.rec",
    "kinst replay boot.rec --to 50%",
    "kinst replay boot.rec --to malloc#100 --memory stop:64",
    "kinst replay call.rec --from malloc --to fbt::malloc:return",
    "kinst replay boot.rec --who-wrote ticks --before 50%",
)
SHOWN, MAX_SHOWN = 64, 1 << 16  # bytes of memory


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recording", type=Path, metavar="FILE", help="the recording")
    parser.add_argument("-k", "--kernel", metavar="IMAGE",
                        help="its kernel (it is looked for among the known ones)")
    parser.add_argument("--to", metavar="POSITION",
                        help="stop there and show registers, stack and memory: "
                        + FORMS.replace("%", "%%"))
    parser.add_argument("--from", dest="begin", metavar="POSITION",
                        help="begin there: what the guest writes to its console before is not "
                        "shown, and Nth is counted from there")
    parser.add_argument("--memory", action="append", default=[], metavar="WHERE[:BYTES]",
                        help=f"show memory at an address, a symbol or a register ({SHOWN} bytes)")
    parser.add_argument("--who-wrote", metavar="WHERE[:BYTES]",
                        help="the last stores to an address or symbol, and what made them")
    parser.add_argument("--before", metavar="POSITION",
                        help="--who-wrote: before this position, not the end")
    parser.add_argument("--writes", default="2", metavar="N",
                        help="--who-wrote: so many of them, the last first (%(default)s)")
    parser.add_argument("--limit", metavar="N",
                        help=f"instructions; a longer recording is not played ({LIMIT:,})")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not show the console")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    limit = LIMIT if arguments.limit is None else parse_count(arguments.limit, "--limit")
    player = played(arguments.recording, arguments.kernel, limit)
    recording, machine = player.recording, player.machine
    places = [_place(player, text, "--memory") for text in arguments.memory]
    if arguments.who_wrote is not None:
        return _who_wrote(player, arguments)
    if arguments.before is not None:
        raise KinstError("--before: is for --who-wrote")
    shows = not (arguments.quiet or arguments.json)
    with PROGRESS.working(f"playing {arguments.recording}"):
        if arguments.begin is not None:
            _reached(go(player, arguments.begin))
        if shows:
            machine.console.stream = show_byte
        if arguments.to is not None:
            _reached(go(player, arguments.to, player.position))
        else:
            _reached(player.advance_to_end())
    machine.console.stream = None
    result: dict[str, object] = {"position": _position(player.position)}
    if arguments.to is not None or places:
        result |= _state(player, places)
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
        raise KinstError(f"{arguments.recording}: the run ended in another state: {wrong}")
    return 0


def _who_wrote(player: Player, arguments: argparse.Namespace) -> int:
    if arguments.to is not None or arguments.begin is not None:
        raise KinstError("--who-wrote: looks back from --before, or the end, not --to or --from")
    where, size = _place(player, arguments.who_wrote, "--who-wrote")
    symbol = player.machine.image.symbols.find(where)
    if ":" not in arguments.who_wrote:
        size = min(symbol.size, MAX_SIZE) if symbol is not None and symbol.size else 8
    wanted = parse_count(arguments.writes, "--writes")
    with PROGRESS.working(f"playing {arguments.recording}"):
        if arguments.before is None:
            _reached(player.advance_to_end())
        else:
            _reached(go(player, arguments.before))
        before, address = player.position, _address(player, where)
        physical = physical_of(player, address)
    rows: list[dict[str, object]] = []
    while len(rows) < wanted:
        with PROGRESS.working(f"looking for who wrote {where}"):
            found = last_write(player, physical, size, before)
        if found is None:
            break
        row = _written(player, found)
        rows.append(row)
        if not arguments.json:
            print(f"{found.position}: {row['by']}  {row['old']} -> {row['new']}", flush=True)
        before = found.position
    if arguments.json:
        print(json.dumps({"address": address, "size": size, "writes": rows}))
    elif not rows:
        print(f"nobody wrote to {where} ({address:#x}, {size} bytes) before {before}")
    return 0


def _written(player: Player, write: Write) -> dict[str, object]:
    by = "from outside"
    if write.pc is not None:
        where = player.machine.image.symbols.where(write.pc)
        line = Sources(player.machine.image).line(write.pc)
        by = where if line == "?" else f"{where}  {line}"
    return {"position": _position(write.position), "pc": write.pc, "by": by,
            "old": _number(write.old), "new": _number(write.new)}


def _number(content: bytes) -> str:
    """Up to eight bytes as a number, as the kernel's CPU takes them; more as they lie."""
    if len(content) in (1, 2, 4, 8):
        return f"{int.from_bytes(content, 'little'):#x}"
    return content.hex()


def _reached(stop: Stop | None) -> None:
    if stop is not None:
        raise KeyboardInterrupt


def _position(position: Position) -> dict[str, int]:
    return {"instructions": position.instructions, "time": position.time}


def _place(player: Player, text: str, option: str) -> tuple[str, int]:
    """(what, bytes) of a ``--memory`` or ``--who-wrote``."""
    where, _colon, size = text.partition(":")
    arch, symbols = player.machine.arch, player.machine.image.symbols
    where = {"sp": arch.sp, "pc": arch.pc}.get(where, where)
    if not (where in (*arch.registers, arch.sp, arch.pc) or symbols.find(where) is not None):
        try:
            int(where, 0)
        except ValueError:
            raise KinstError(f"{option} {text}: '{where[:80]}' is no address, symbol or register "
                             f"of {arch.name}") from None
    count = parse_count(size, option) if size else SHOWN
    if count > MAX_SHOWN:
        raise KinstError(f"{option} {text}: at most {MAX_SHOWN} bytes are shown")
    return where, count


def _address(player: Player, where: str) -> int:
    machine = player.machine
    if where in (*machine.arch.registers, machine.arch.sp, machine.arch.pc):
        return machine.read_register(where)
    symbol = machine.image.symbols.find(where)
    return symbol.address if symbol is not None else int(where, 0) & (1 << 64) - 1


def _state(player: Player, places: list[tuple[str, int]]) -> dict[str, object]:
    machine = player.machine
    stack = Stacks(machine).text(machine.read_register)
    memory = []
    for where, size in places or [(machine.arch.sp, SHOWN)]:
        address = _address(player, where)
        try:
            content: str | None = machine.read(address, size).hex()
        except MemoryAccessError:
            content = None
        memory.append({"where": where, "address": address, "content": content})
    return {"pc": machine.pc, "at": machine.image.symbols.where(machine.pc),
            "registers": machine.registers(), "stack": [line.strip() for line in stack],
            "memory": memory}


def _show(player: Player, result: dict[str, object], whole: bool) -> None:
    text = player.machine.console.text
    if text and not text.endswith(b"\n"):
        print()
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
    if not whole:
        return
    if recording.problem:
        print(f"the recording ends here: {recording.problem}")
    if result["same"]:
        print("the state is the recorded one")
