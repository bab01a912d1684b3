"""``kinst diff``: find where two recorded runs diverge."""

import argparse
import json
import os
import sys
from pathlib import Path

from dtrace.debug.debug_data import Sources
from dtrace.flow.code import KernelCode
from dtrace.flow.parting import Parting, call_text, calls_around, first_call, first_instruction
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from emu.replay.player import Player
from images.boots import LIMIT
from images.recordings import from_start, played
from kinst_emu.terminal.terminal import parse_count

EXAMPLES = (
    "kinst diff good.rec bad.rec",
    "kinst diff release.rec mine.rec --kernel-b ./kernel",
)
WIDTH = 150  # output width in columns when standard output is not a terminal


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst diff``."""
    parser.add_argument("a", type=Path, metavar="A", help="first recording (required)")
    parser.add_argument("b", type=Path, metavar="B", help="second recording (required)")
    for letter in "ab":
        parser.add_argument(f"--kernel-{letter}", metavar="IMAGE",
                            help=f"kernel of recording {letter.upper()} (default: the kernel file "
                            "named in the recording, or the known kernel with the same build ID)")
    parser.add_argument("--limit", metavar="N",
                        help="refuse a recording with more than N instructions (default: "
                        f"{LIMIT:,})")
    parser.add_argument("--json", action="store_true",
                        help="print the result as JSON (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """Compare the recordings, print where they diverge, and return 1 if they do."""
    limit = LIMIT if arguments.limit is None else parse_count(arguments.limit, "--limit")
    players = (played(arguments.a, arguments.kernel_a, limit),
               played(arguments.b, arguments.kernel_b, limit))
    first, second = players
    if first.machine.arch.name != second.machine.arch.name:
        raise KinstError(f"{arguments.a} was recorded on {first.machine.arch.name}, {arguments.b} "
                         f"on {second.machine.arch.name}: only recordings of the same architecture "
                         "can be compared")
    same = first.machine.image.identity == second.machine.image.identity
    codes = (KernelCode(first.machine.image), KernelCode(second.machine.image))
    with PROGRESS.working("comparing the runs"):
        if not same:
            for player in players:
                from_start(player)
        begins = first.position.instructions, second.position.instructions
        parting = (first_instruction(first, second, codes[0]) if same
                   else first_call(first, second, codes))
    if parting is None:
        print(json.dumps({"same": True}) if arguments.json else
              f"the runs are the same{'' if same else ', compared call by call'}: "
              f"{first.recording.last.instructions - begins[0]} instructions"
              f"{'' if same else f' and {second.recording.last.instructions - begins[1]}'}")
        return 0
    with PROGRESS.working("listing the calls around the divergence"):
        shown = [_around(player, code, count, begin) for player, code, count, begin in zip(
            players, codes, parting.counts, begins, strict=True)]
        last = _last(players, codes, parting) if same else None
    if arguments.json:
        print(json.dumps({
            "same": False, "instructions": parting.counts, "addresses": parting.addresses,
            "names": parting.names, "last_common": last and last["pc"],
            "registers": last and last["registers"],
            "calls": [[text for _count, text in rows] for rows in shown]}))
    else:
        _show(players, parting, last, shown)
    return 1


def _around(player: Player, code: KernelCode, count: int, begin: int) -> list[tuple[int, str]]:
    calls = calls_around(player, code, count, begin)
    least, sources = min((c.depth for c in calls), default=0), Sources(player.machine.image)
    return [(call.count, call_text(call, least, sources)) for call in calls]


def _last(players: tuple[Player, Player], codes: tuple[KernelCode, KernelCode],
          parting: Parting) -> dict[str, object] | None:
    """Return the last instruction that both runs share, and the registers that differ before it."""
    registers, pc = [], 0
    for player, count in zip(players, parting.counts, strict=True):
        if count <= player.recording.start.position.instructions:
            return None
        if player.seek(count - 1) is not None:
            raise KeyboardInterrupt
        player.give()
        registers.append(player.machine.registers())
        pc = player.machine.pc
    return {"pc": pc, "registers": {
        name: (value, registers[1][name]) for name, value in registers[0].items()
        if value != registers[1][name]}}


def _show(players: tuple[Player, Player], parting: Parting, last: dict[str, object] | None,
          shown: list[list[tuple[int, str]]]) -> None:
    image = players[0].machine.image
    if parting.names is not None:
        print(f"the runs diverge at a call: {parting.names[0]} at instruction {parting.counts[0]}, "
              f"{parting.names[1]} at instruction {parting.counts[1]}")
    else:
        print(f"the runs diverge after instruction {parting.counts[0] - 1} of A, "
              f"{parting.counts[1] - 1} of B")
    if last is not None:
        pc, registers = last["pc"], last["registers"]
        assert isinstance(pc, int) and isinstance(registers, dict)
        code = KernelCode(image).instruction(pc)
        line = Sources(image).line(pc)
        print(f"  {image.symbols.where(pc)}  {players[0].machine.arch.disassemble(code, pc)}"
              f"{'' if line == '?' else '  ' + line}")
        for name, (ours, theirs) in registers.items():
            print(f"  {name:>8}  {ours:#x}  {theirs:#x}")
        for letter, address in zip("AB", parting.addresses, strict=True):
            where = ("has ended" if address is None
                     else f"continues at {image.symbols.where(address)}")
            print(f"  {letter} {where}")
    width = _width()
    print(f"{'A: ' + str(players[0].recording.path):<{width}} | B: {players[1].recording.path}")
    ahead = [[row for row in rows if row[0] < count]
             for rows, count in zip(shown, parting.counts, strict=True)]
    deep = max(map(len, ahead))
    columns = [[""] * (deep - len(before)) + [text for _count, text in before] + ["-" * width]
               + [text for _count, text in rows[len(before) :]]
               for rows, before in zip(shown, ahead, strict=True)]
    length = max(map(len, columns))
    for left, right in zip(*(c + [""] * (length - len(c)) for c in columns), strict=True):
        print(f"{left[:width]:<{width}} | {right[:width]}".rstrip())


def _width() -> int:
    columns = os.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    return max(20, (columns - 3) // 2)
