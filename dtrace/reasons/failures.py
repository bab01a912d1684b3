"""System calls that failed in a recorded run, and the one that its user most likely asks about."""

import errno
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from dtrace.reasons.made_calls import MadeCall, MadeCalls
from dtrace.stacks.threads import Threads
from emu.host.errors import MemoryAccessError
from emu.host.progress import PROGRESS
from emu.replay.player import Player

STANDARD_ERROR = 2
MAX_MESSAGE = 1 << 16  # maximum number of bytes kept of one message on standard error
MAX_PIECES = 64  # maximum number of pieces of a message


@dataclass(frozen=True)
class Failure:
    """A system call that returned an error number.

    :param name: name of the error number; the number itself if it has none.
    :param process: name and number of the process, such as ``mkdir (pid 17)``.
    :param new: whether the process began in the recording.
    :param message: what the process wrote to standard error later.
    """

    call: MadeCall
    name: str
    process: str
    new: bool
    message: bytes


class Failures:
    """The system calls of a recording that failed."""

    def __init__(self, player: Player) -> None:
        self._player, self._threads = player, Threads(player.machine)
        self._programs = player.machine.guest.programs
        self._first = self._pids()

    def _pids(self) -> set[int]:
        return {thread.pid for thread in self._threads.all()}

    def all(self) -> list[Failure]:
        """Return the failed calls from the player's position on, in the order of their returns.

        Calls that a process made before it began its last program are left out.
        """
        rows: list[tuple[MadeCall, int, str]] = []
        written: dict[int, list[tuple[int, bytes]]] = {}
        begun: dict[int, int] = {}  # process -> instruction count when it began its program
        programs = self._programs
        with PROGRESS.working("looking for failed system calls"):
            for call in MadeCalls(self._player).all():
                if not call.error and call.name not in (*programs.writes, *programs.executes):
                    continue
                thread = next((one for one in self._threads.all()
                               if one.address == call.thread), None)
                pid = 0 if thread is None else thread.pid
                name = "" if thread is None else thread.process
                if call.name in programs.executes and not call.error:
                    begun[pid] = call.count
                elif call.error:
                    rows.append((call, pid, name))
                elif call.words and call.words[0] == STANDARD_ERROR:
                    written.setdefault(pid, []).append((call.count, self._message(call)))
        return [Failure(call, programs.errors.get(call.error, str(call.error)),
                        f"{name} (pid {pid})", pid not in self._first,
                        b"".join(text for count, text in written.get(pid, [])
                                 if count > call.count))
                for call, pid, name in rows if call.count > begun.get(pid, 0)]


    def _message(self, call: MadeCall) -> bytes:
        """Return what a call has written, or empty bytes if it cannot be read."""
        machine, (_descriptor, address, size) = self._player.machine, call.words[:3]
        pieces = [(address, size)]
        content = b""
        try:
            if call.name == self._programs.writes[1]:
                table = machine.read(address, 16 * min(size, MAX_PIECES))
                pieces = list(struct.iter_unpack("<QQ", table))
            for begin, length in pieces:
                content += machine.read(begin, min(length, MAX_MESSAGE - len(content)))
        except MemoryAccessError:
            return content
        return content


def likely(failures: Iterable[Failure]) -> Failure | None:
    """Return the failure that explains a command's error message best, or None without failures.

    It is the last one whose error is described in what the process wrote to standard error later,
    or else the last one before such a message, or else the last one.
    """
    rows = list(failures)
    rows = [one for one in rows if one.new] or rows
    named = [one for one in rows if _described(one)]
    told = [one for one in rows if one.message]
    best = named or told or rows
    return best[-1] if best else None


def _described(failure: Failure) -> bool:
    """Return whether a message contains the usual text for an error number."""
    number = getattr(errno, failure.name, None)
    if number is None:
        return False
    return os.strerror(number).encode().lower() in failure.message.lower()
