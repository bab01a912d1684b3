"""Windows of a recording that a path shows, such as one call of a function."""

import difflib
from dataclasses import dataclass

from dtrace.stacks.threads import Threads
from emu.elf.symbols import STT_OBJECT
from emu.host.errors import KinstError
from emu.host.printable import counted
from emu.machine.machine import Machine, StopReason, Until
from emu.machine.running_thread import thread_of
from emu.machine.system_call import calls_of
from emu.replay.inputs import Position
from emu.replay.player import Player

NEAR = 5  # number of similar names in a message


@dataclass(frozen=True)
class Window:
    """A window of a recording.

    :param title: what it shows.
    :param note: what the reader should know about it; may be empty.
    """

    begin: Position
    end: Position
    title: str
    note: str = ""


def call_window(player: Player, text: str) -> Window:
    """Return the window of one call of a function.

    :param text: ``NAME`` for its last call, or ``NAME#N`` for its Nth; the name of a function, or
        that of a system call.
    :raises KinstError: if there is no such call.
    :raises KeyboardInterrupt: if the user interrupts the replay.
    """
    name, mark, number = text.partition("#")
    if mark and not (number.isascii() and number.isdecimal() and int(number[:9]) > 0):
        raise KinstError(f"--of {text[:80]}: the number of the call must be at least 1")
    machine = player.machine
    functions = _functions(machine, name)
    wanted = int(number[:9]) if mark else None
    at, count = _call(player, list(functions), wanted)
    if at is None:
        raise KinstError(f"--of {text[:80]}: {' and '.join(functions.values())} "
                         f"{'is' if len(functions) == 1 else 'are'} not called in "
                         f"{player.recording.path}")
    if wanted is not None and count < wanted:
        raise KinstError(f"--of {text[:80]}: it is called only {counted(count, 'time')}")
    _reached(player.seek(at))
    player.give()
    function = functions[machine.pc]
    thread = Threads(machine).name(thread_of(machine))
    back, after = machine.arch.return_address(machine), machine.arch.stack_after_return(machine)
    while True:
        stop = player.run(Until(addresses=[back]))
        if stop is not None and stop.reason is StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        if stop is None or machine.sp == after:
            break
    which = f"call {count} of {count}" if wanted is None else f"call {wanted}"
    return Window(at, player.position, f"{function}() of {thread or 'the kernel'}, {which}",
                  "" if stop is not None else "The function has not returned at the end of the "
                  "recording.")


def _functions(machine: Machine, name: str) -> dict[int, str]:
    """Return the kernel functions that a name may mean, keyed by address."""
    symbols, names = machine.image.symbols, [name]
    try:
        prefix = calls_of(machine).prefix
    except KinstError:
        prefix = ""
    if prefix and not symbols.named(name):  # open(2) may be made as openat(2)
        names = [f"{prefix}{name}", f"{prefix}{name}at"]
    found = {symbol.address: one for one in names for symbol in symbols.named(one)
             if symbol.kind != STT_OBJECT}
    if not found:
        known = [symbol.name for symbol in symbols.functions()]
        if prefix:
            known += [one.removeprefix(prefix) for one in known if one.startswith(prefix)]
        near = difflib.get_close_matches(name, known, NEAR)
        raise KinstError(f"--of {name[:80]}: the kernel has no such function or system call"
                         + (f"; similar names: {', '.join(near)}" if near else ""))
    return found


def _call(player: Player, addresses: list[int], number: int | None) -> tuple[Position | None, int]:
    """Return the position of the Nth entry of functions, and the number of entries up to there.

    :param number: N; None for the last entry.
    """
    start = player.recording.start.position
    _reached(player.seek(start))
    player.give()
    count = int(player.machine.pc in addresses)
    at = player.position if count else None
    while number is None or count < number:
        stop = player.run(Until(addresses=addresses))
        if stop is None:
            break
        if stop.reason is StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        at, count = player.position, count + 1
    return at, count


def _reached(stop: object) -> None:
    if stop is not None:
        raise KeyboardInterrupt
