"""Positions in a recording: parsing the user's notation, and moving to a position."""

import re
from dataclasses import dataclass

from dtrace.debug.debug_index import debug_index
from dtrace.debug.kernel_types import kernel_types
from dtrace.debug.symbols import find_function
from dtrace.descriptions.code_places import code_places
from dtrace.descriptions.description import create, parse
from dtrace.reasons.failures import Failures, likely
from dtrace.stacks.stack import Stacks
from dwarf.debug_file import debug_file
from emu.gdb.target import PlayedTarget, Why
from emu.host.errors import KinstError
from emu.machine.machine import Machine, Stop, StopReason, Until
from emu.machine.running_thread import thread_of
from emu.machine.system_call import calls_of
from emu.replay.inputs import Position
from emu.replay.player import Player
from images.recordings import from_start
from kinst.code.listing import image_code, instructions
from kinst.probes.breakpoints import Breakpoints
from kinst.providers.fbt import PROVIDER as FBT
from kinst.providers.fbt import RETURN
from kinst.providers.kinst_provider import PROVIDER as KINST
from kinst.relocation.trap import trap_of

FORMS = ("an instruction count, 50%, a virtual time like 1.5s or 20ms, SYMBOL#N for its Nth call, "
         "FUNCTION:OFFSET#N, FUNCTION+0xHEX#N or PROVIDER::FUNCTION:NAME#N for a probe's Nth "
         "firing, FILE:LINE#N for a line's Nth execution, start, end, failure for the end of the "
         "failed system call that kinst why explains, panic, or fault for the instruction whose "
         "exception led to the panic")
UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
TIME = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(s|ms|us|ns)")
CALL_SIZE = 4  # size in bytes assumed for a call instruction outside any known function
DESCRIBED = re.compile(r"[^+`@]*:(?:entry|return|[^+`@]*:[^+`@]*)")  # matches a probe description
MEANT = re.compile(r"[+`@*?\[]|\A0[xX]")
NTH = re.compile(r"(.+?)(?:#(\d{1,12}))?")


def go(player: Player, text: str, begin: Position | None = None) -> Stop | None:
    """Move a recording to a position.

    :param begin: position from which the Nth event is counted; None for the start.
    :return: None if the position was reached; otherwise the stop that the user requested.
    :raises KinstError: if the text is not a position, or the recording does not reach it.
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
            raise KinstError(f"{text}: the position must be at most 100%, the end of the recording")
        return player.seek(first.instructions
                           + int((last.instructions - first.instructions) * part / 100))
    moment = TIME.fullmatch(text)
    if moment is not None:
        units, _point, fraction = moment[1].partition(".")
        unit = UNITS[moment[2]]
        return player.seek_time(int(units) * unit
                                + int(fraction.ljust(9, "0")[:9] or "0") * unit // 10**9)
    if text == "panic":
        return _count(player, text, ReachedAt([
            _function(player, player.machine.guest.boot.panic, text)]), 1, begin)
    if text == "fault":
        return _fault(player, begin)
    if text == "failure":
        return _failure(player)
    named = NTH.fullmatch(text)
    if named is None or named[2] == "0":
        raise KinstError(f"'{text[:80]}' is not a position: give {FORMS}")
    number = int(named[2] or "1")
    return _count(player, text, reached_at(player, named[1]), number, begin)


def _fault(player: Player, begin: Position | None) -> Stop | None:
    """Go to the instruction whose exception led to the panic, according to the panic's stack.

    If there is no code at its address, as after a call of a null pointer, go to that call.
    """
    stop = go(player, "panic", begin)
    if stop is not None:
        return stop
    machine = player.machine
    frames = list(Stacks(machine).addresses(machine.read_register))
    interrupted = [n for n, (_address, is_return) in enumerate(frames) if n and not is_return]
    if not interrupted:
        raise KinstError(f"{player.recording.path}: the stack shows no exception that led to the "
                         "panic; use the position 'panic' (the start of the panic) instead")
    address = frames[interrupted[0]][0]
    if not machine.image.holds_code(address):
        if interrupted[0] + 1 >= len(frames):
            raise KinstError(f"{player.recording.path}: the kernel jumped to {address:#x}, which "
                             "is not code, and the caller is unknown; use the position 'panic' "
                             "(the start of the panic) instead")
        address = _call(machine, frames[interrupted[0] + 1][0])
    target = PlayedTarget(player)
    target.break_at(address)
    event = target.back(lambda: False)
    if event.why is Why.INTERRUPTED:
        return Stop(StopReason.INTERRUPTED, machine.pc)
    if event.why is not Why.BREAKPOINT:
        raise KinstError(f"{player.recording.path}: the panic's stack shows an exception at "
                         f"{machine.image.symbols.where(address)}, but that instruction was never "
                         "executed; use the position 'panic' (the start of the panic) instead")
    return None


def _failure(player: Player) -> Stop | None:
    """Go to where the kernel's first function for a failed system call is about to return."""
    machine = player.machine
    stream, machine.console.stream = machine.console.stream, None  # it is played twice
    try:
        stop = player.seek(player.recording.start.position)
        if stop is not None:
            return stop
        from_start(player)
        failed = likely(Failures(player).all())
    finally:
        machine.console.stream = stream
    if failed is None:
        raise KinstError(f"{player.recording.path}: no system call failed")
    stop = player.seek(player.recording.start.position)
    if stop is not None:
        return stop
    image, calls = machine.image, calls_of(machine)
    trap, found = trap_of(machine.guest, machine.arch.name), list[int]()
    for handler in map(image.symbols.find, (calls.handler, *calls.others)):
        if handler is not None:
            found += (one.address for one in instructions(trap, image_code(image, handler), handler)
                      if trap.instructions.is_return(one.code))
    stop = player.seek(failed.call.count)
    if stop is not None:
        return stop
    while stop is None or thread_of(machine) != failed.call.thread:
        stop = player.run(Until(addresses=found))
        if stop is None:
            raise KinstError(f"{player.recording.path}: {failed.call.text} does not return to its "
                             f"program before the end at {player.recording.last}")
        if stop.reason is StopReason.INTERRUPTED:
            return stop
    return None


def _call(machine: Machine, back: int) -> int:
    """Return the address of the call instruction before a return address."""
    function = machine.image.symbols.function_at(back - 1)
    begin = function.address if function is not None else back - CALL_SIZE
    return back - len(machine.arch.split(machine.read(begin, back - begin))[-1])


@dataclass(frozen=True)
class ReachedAt:
    """Instructions that a position refers to, such as those at which a probe fires.

    :param addresses: addresses of the instructions.
    :param tails: those of the addresses at which a function ends with a tail call; the function
        returns when the function that it jumps to returns.
    """

    addresses: list[int]
    tails: frozenset[int] = frozenset()

    def next(self, player: Player) -> Stop | None:
        """Advance to the next execution of one of the instructions.

        For a tail call, advance to the instruction that returns from it.

        :return: None if none of them is executed again.
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
                continue  # a conditional jump that was not taken or stayed within the function
            while stop is not None and stop.reason is not StopReason.INTERRUPTED and (
                    machine.pc != back or machine.sp != after):
                stop = player.run(Until(addresses=[back]))
            if stop is None or stop.reason is StopReason.INTERRUPTED:
                return stop
            return player.seek(machine.instructions - 1) or stop


def reached_at(player: Player, text: str) -> ReachedAt:
    """Return the instructions at which a probe fires, or at which a function or line begins."""
    image = player.machine.image
    if ":" not in text and not MEANT.search(text):
        return ReachedAt([_function(player, text, text)])
    if DESCRIBED.fullmatch(text):
        # Without a provider, use the probes of the function and of its inline copies.
        return probed(player, text if text.count(":") > 1 else f"{KINST}::{text}")
    return ReachedAt([place.address for place in code_places(image, text)])


def _function(player: Player, name: str, text: str) -> int:
    symbol = player.machine.image.symbols.find(name)
    if symbol is None and debug_file(player.machine.image.file) is not None and debug_index(
            player.machine.image).copies(name):
        find_function(player.machine.image, name)  # raises an error that mentions the inline copies
    if symbol is None:
        raise KinstError(f"'{text[:80]}' is not a position, and the kernel has no symbol "
                         f"'{name[:80]}': give {FORMS}")
    return symbol.address


def probed(player: Player, description: str) -> ReachedAt:
    """Return the instructions at which the probes that match a description fire."""
    breakpoints = Breakpoints(player.machine)
    kernel = player.machine.image
    made = create(breakpoints, parse(description), False, index=lambda: debug_index(kernel),
                  types=lambda: kernel_types(kernel))
    for number in made.numbers:
        static = breakpoints.static(number)
        if static is not None and static.call is not None:
            raise KinstError(f"{description}: not a usable position, because all system calls "
                             "share one probe location in the kernel; use "
                             f"fbt::{static.call.function}:{static.name} instead")
        if static is not None and breakpoints.is_bypassed(static):
            raise KinstError(f"{description}: not a usable position, because this probe also fires "
                             "where the kernel passes no tracepoint; 'kdtrace --replay' prints "
                             "when it fires")
    found, tails = list[int](), set[int]()
    for number in made.numbers:
        addresses, probe = list(breakpoints.addresses(number)), breakpoints.probe(number)
        found += addresses
        if (probe.provider == FBT and probe.name == RETURN
                and not breakpoints.trap.instructions.is_return(probe.instruction.code)):
            tails.update(addresses)
    if not found:
        raise KinstError(f"{description}: the kernel declares this probe, but has no code for it")
    return ReachedAt(found, frozenset(tails))


def _count(player: Player, text: str, wanted: ReachedAt, number: int,
           begin: Position | None) -> Stop | None:
    """Go to the Nth execution of any of the wanted instructions."""
    start = player.recording.start.position
    stop = player.seek(begin or start)
    if stop is not None:
        return stop
    first = 0
    if begin in (None, start):  # also apply the first inputs and count the first instruction
        player.give()
        first = int(player.machine.pc in set(wanted.addresses) - wanted.tails)
    for count in range(first, number):
        reached = wanted.next(player)
        if reached is None:
            raise KinstError(f"{player.recording.path}: {text} is not reached: found only {count} "
                             f"of {number} occurrences before the end at {player.recording.last}")
        if reached.reason is StopReason.INTERRUPTED:
            return reached
    return None
