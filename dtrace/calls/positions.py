"""Positions in a recording, as a user writes them."""

import re
from dataclasses import dataclass

from dtrace.debug.debug_index import debug_index
from dtrace.debug.kernel_types import kernel_types
from dtrace.debug.symbols import find_function
from dtrace.descriptions.code_places import code_places
from dtrace.descriptions.description import create, parse
from dtrace.stacks.stack import Stacks
from dwarf.debug_file import debug_file
from emu.gdb.target import PlayedTarget, Why
from emu.host.errors import KinstError
from emu.machine.machine import Machine, Stop, StopReason, Until
from emu.replay.inputs import Position
from emu.replay.player import Player
from kinst.probes.breakpoints import Breakpoints
from kinst.providers.fbt import PROVIDER as FBT
from kinst.providers.fbt import RETURN
from kinst.providers.kinst_provider import PROVIDER as KINST

FORMS = ("an instruction count, 50%, a virtual time like 1.5s or 20ms, SYMBOL#N for its Nth call, "
         "FUNCTION:OFFSET#N, FUNCTION+0xHEX#N or PROVIDER::FUNCTION:NAME#N for a probe's Nth "
         "firing, FILE:LINE#N for a line's Nth execution, start, end, "
         "panic, or fault for the instruction whose exception led to the panic")
UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
TIME = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(s|ms|us|ns)")
CALL_SIZE = 4  # bytes, where nothing tells where an instruction begins
DESCRIBED = re.compile(r"[^+`@]*:(?:entry|return|[^+`@]*:[^+`@]*)")  # a probe
MEANT = re.compile(r"[+`@*?\[]|\A0[xX]")
NTH = re.compile(r"(.+?)(?:#(\d{1,12}))?")


def go(player: Player, text: str, begin: Position | None = None) -> Stop | None:
    """Bring a recording to a position.

    :param begin: from where the Nth of something is counted; None: from the start.
    :return: why it ended early: the user's wish.
    :raises KinstError: when the text is no position, or the recording does not come there.
    """
    recording = player.recording
    first, last = recording.start.position, recording.last
    if text == "start":
        return player.seek(first)
    if text == "end":
        return player.advance_to_end()
    if text.isascii() and text.isdecimal():
        return player.seek(int(text[:30]))
    if text.endswith("%") and text[:-1].replace(".", "", 1).isdecimal():
        part = float(text[:-1])
        if part > 100:
            raise KinstError(f"{text}: a recording ends at 100%")
        return player.seek(first.instructions
                           + int((last.instructions - first.instructions) * part / 100))
    moment = TIME.fullmatch(text)
    if moment is not None:
        whole, _point, rest = moment[1].partition(".")
        unit = UNITS[moment[2]]
        return player.seek_time(int(whole) * unit
                                + int(rest.ljust(9, "0")[:9] or "0") * unit // 10**9)
    if text == "panic":
        return _count(player, text, ReachedAt([
            _function(player, player.machine.guest.boot.panic, text)]), 1, begin)
    if text == "fault":
        return _fault(player, begin)
    named = NTH.fullmatch(text)
    if named is None or named[2] == "0":
        raise KinstError(f"'{text[:80]}' is not a position: give {FORMS}")
    number = int(named[2] or "1")
    return _count(player, text, reached_at(player, named[1]), number, begin)


def _fault(player: Player, begin: Position | None) -> Stop | None:
    """Go to the instruction that the panic's stack says was interrupted by an exception; where that
    is none, as behind a null pointer, to the one that called it."""
    stop = go(player, "panic", begin)
    if stop is not None:
        return stop
    machine = player.machine
    frames = list(Stacks(machine).addresses(machine.read_register))
    interrupted = [n for n, (_address, is_return) in enumerate(frames) if n and not is_return]
    if not interrupted:
        raise KinstError(f"{player.recording.path}: by its stack, no exception led to the panic; "
                         "panic is the position where it begins")
    address = frames[interrupted[0]][0]
    if not machine.image.holds_code(address):
        if interrupted[0] + 1 >= len(frames):
            raise KinstError(f"{player.recording.path}: {address:#x} was executed, which is no "
                             "code, and who called it is not known; panic is the position where "
                             "the panic begins")
        address = _call(machine, frames[interrupted[0] + 1][0])
    target = PlayedTarget(player)
    target.break_at(address)
    event = target.back(lambda: False)
    if event.why is Why.INTERRUPTED:
        return Stop(StopReason.INTERRUPTED, machine.pc)
    if event.why is not Why.BREAKPOINT:
        raise KinstError(f"{player.recording.path}: what the panic's stack says was interrupted, "
                         f"{machine.image.symbols.where(address)}, was not executed")
    return None


def _call(machine: Machine, back: int) -> int:
    """The call that returns to an address."""
    function = machine.image.symbols.function_at(back - 1)
    begin = function.address if function is not None else back - CALL_SIZE
    return back - len(machine.arch.split(machine.read(begin, back - begin))[-1])


@dataclass(frozen=True)
class ReachedAt:
    """Where something is reached.

    :param addresses: of its instructions.
    :param tails: those of them at which a function leaves by a tail call: it returns when the
        function that it jumps to does.
    """

    addresses: list[int]
    tails: frozenset[int] = frozenset()

    def next(self, player: Player) -> Stop | None:
        """Go on to where it is reached next; of a tail call, to the instruction that returns for
        it.

        :return: None: it is not reached any more.
        """
        while True:
            stop = player.run(Until(addresses=self.addresses))
            if stop is None or stop.reason is StopReason.INTERRUPTED:
                return stop
            machine = player.machine
            if machine.pc not in self.tails:
                return stop
            function = machine.image.symbols.function_at(machine.pc)
            after = machine.arch.stack_after_return(machine)
            back = machine.arch.return_address(machine)
            stop = player.run(Until(instructions=machine.instructions + 1))
            if function is not None and 0 <= machine.pc - function.address < function.size:
                continue  # a conditional jump that was not taken, or led elsewhere in it
            while stop is not None and stop.reason is not StopReason.INTERRUPTED and (
                    machine.pc != back or machine.sp != after):
                stop = player.run(Until(addresses=[back]))
            if stop is None or stop.reason is StopReason.INTERRUPTED:
                return stop
            return player.seek(machine.instructions - 1) or stop


def reached_at(player: Player, text: str) -> ReachedAt:
    """Where a probe fires, a function begins, or a line's code does."""
    image = player.machine.image
    if ":" not in text and not MEANT.search(text):
        return ReachedAt([_function(player, text, text)])
    if DESCRIBED.fullmatch(text):
        # Without a provider: of the function, and of its inline copies.
        return probed(player, text if text.count(":") > 1 else f"{KINST}::{text}")
    return ReachedAt([place.address for place in code_places(image, text)])


def _function(player: Player, name: str, text: str) -> int:
    symbol = player.machine.image.symbols.find(name)
    if symbol is None and debug_file(player.machine.image.file) is not None and debug_index(
            player.machine.image).copies(name):
        find_function(player.machine.image, name)  # says that it is inline
    if symbol is None:
        raise KinstError(f"'{text[:80]}' is not a position, and the kernel has no symbol "
                         f"'{name[:80]}': give {FORMS}")
    return symbol.address


def probed(player: Player, description: str) -> ReachedAt:
    """Where the probes of a description are."""
    breakpoints = Breakpoints(player.machine)
    kernel = player.machine.image
    made = create(breakpoints, parse(description), False, index=lambda: debug_index(kernel),
                  types=lambda: kernel_types(kernel))
    for number in made.numbers:
        static = breakpoints.static(number)
        if static is not None and static.call is not None:
            raise KinstError(f"{description}: all system calls are carried out at one place: give "
                             f"that one's function, fbt::{static.call.function}:{static.name}")
    found, tails = list[int](), set[int]()
    for number in made.numbers:
        addresses, probe = list(breakpoints.addresses(number)), breakpoints.probe(number)
        found += addresses
        if (probe.provider == FBT and probe.name == RETURN
                and not breakpoints.trap.instructions.is_return(probe.instruction.code)):
            tails.update(addresses)
    if not found:
        raise KinstError(f"{description}: the kernel declares it, and has it nowhere in its code")
    return ReachedAt(found, frozenset(tails))


def _count(player: Player, text: str, wanted: ReachedAt, number: int,
           begin: Position | None) -> Stop | None:
    """Go to the nth time that one of some addresses is executed."""
    start = player.recording.start.position
    stop = player.seek(begin or start)
    if stop is not None:
        return stop
    first = 0
    if begin in (None, start):  # a recording can begin at it, or be given that at once
        player.give()
        first = int(player.machine.pc in set(wanted.addresses) - wanted.tails)
    for count in range(first, number):
        found = wanted.next(player)
        if found is None:
            raise KinstError(f"{player.recording.path}: {text} is not in it: "
                             f"{'never' if not count else f'{count} times'}, to its end at "
                             f"{player.recording.last}")
        if found.reason is StopReason.INTERRUPTED:
            return found
    return None
