"""Why a thread slept in a recorded run, and who woke it."""

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from dtrace.reasons.sleeps import Frames, Sleep, Sleeps
from dtrace.stacks.stack import Stacks
from dtrace.stacks.threads import Threads
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from kinst_emu.why.explainer import Answer, Explainer
from kinst_emu.why.text import lines as answer_lines

MAX_CALLS = 32  # maximum number of nested functions that put threads to sleep or wake them
MAX_LINES = 8  # maximum number of lines of a stack to show


@dataclass(frozen=True)
class Slept:
    """Answer to why a thread slept.

    :param number: number of the sleep among those of the recording, from 1.
    :param channel: name or address of what it slept on; empty if it did not sleep on an address.
    :param asleep: why it called the function that put it to sleep; None if that is unknown.
    :param stack: the functions that led there, innermost first, without those that put threads to
        sleep.
    :param waking: why the thread that woke it did so; None if nobody woke it, or that is unknown.
    :param waker: the functions that led there; empty if nobody woke it.
    :param interrupted: whether the waking thread was interrupted, and did not wake it by itself.
    """

    number: int
    question: str
    sleep: Sleep
    channel: str
    asleep: Answer | None
    stack: tuple[str, ...]
    waking: Answer | None
    waker: tuple[str, ...]
    interrupted: bool = False


class SleepExplainer:
    """Finder of the reasons for sleeps in one recording."""

    def __init__(self, explainer: Explainer) -> None:
        self._explainer, player = explainer, explainer.player
        self._machine = player.machine
        self._stacks = Stacks(player.machine)
        sleeps = player.machine.guest.threads.sleeps
        self._inner = () if sleeps is None else sleeps.inner
        self._before = {thread.pid for thread in Threads(player.machine).all()}

    def all(self) -> list[Sleep]:
        """Return the sleeps from the player's position on, in the order in which they begin."""
        with PROGRESS.working("looking for threads that sleep"):
            found = list(Sleeps(self._explainer.player).all())
        return sorted(found, key=lambda sleep: sleep.begin)

    def likely(self, sleeps: Sequence[Sleep]) -> Sleep:
        """Return the sleep that a user most likely asks about.

        It is the longest one of the processes that began in the recording, or else of all threads
        that ran again.

        :raises KinstError: if no thread slept.
        """
        rows = [one for one in sleeps if one.asleep]
        for wanted in ([one for one in rows if one.thread.pid not in self._before and one.end],
                       [one for one in rows if one.end],
                       [one for one in rows if one.thread.pid not in self._before], rows):
            if wanted:
                return max(wanted, key=self.duration)
        raise KinstError(f"{self._explainer.player.recording.path}: no thread slept")

    def duration(self, sleep: Sleep) -> int:
        """Return the virtual time of a sleep in nanoseconds, up to the end of the recording."""
        end = sleep.end or self._explainer.player.recording.last
        return end.time - sleep.begin.time

    def question(self, sleep: Sleep) -> str:
        """Return what is asked about a sleep: which thread slept, why, and for how long."""
        thread = sleep.thread
        name = thread.process or thread.name or f"thread {thread.address:#x}"
        if thread.name and thread.name != name:
            name += f"/{thread.name}"
        end = "" if sleep.end else ", and did not run again"
        return (f"{name} (pid {thread.pid}) {sleep.reason} for {self.duration(sleep)} ns{end} "
                f"[{sleep.begin.instructions}]")

    def explained(self, sleep: Sleep, number: int) -> Slept:
        """Return why a thread slept, and who woke it."""
        asleep, stack = self._decided(sleep.begin.instructions, sleep.frames, "it called {}")
        waking, waker = None, tuple[str, ...]()
        if sleep.wake is not None:
            waking, waker = self._decided(sleep.wake.position.instructions, sleep.wake.frames,
                                          "{} was called")
        return Slept(number, self.question(sleep), sleep, self._name(sleep.channel), asleep, stack,
                     waking, waker, sleep.wake is not None and any(
                         self._handles_interrupt(*frame) for frame in sleep.wake.frames))

    def _handles_interrupt(self, pc: int, is_return: bool) -> bool:
        function = self._machine.image.symbols.function_at(pc - is_return)
        return function is not None and function.name in self._machine.guest.traps.interrupts

    def _name(self, address: int) -> str:
        if not address:
            return ""
        symbol = self._machine.image.symbols.object_at(address)
        if symbol is None:
            return f"{address:#x}"
        offset = address - symbol.address
        return symbol.name + (f"+{offset:#x}" if offset else "")

    def _decided(self, count: int, frames: Frames, text: str
                 ) -> tuple[Answer | None, tuple[str, ...]]:
        """Return why the innermost function that is not one of sleeping and waking made its call.

        :param count: instruction count at the entry of the innermost function.
        """
        outer = next((n for n, frame in enumerate(frames) if not self._is_inner(*frame)),
                     len(frames))
        stack = tuple(line.strip() for frame in frames[outer:] for line in self._stacks.lines(
            *frame))[:MAX_LINES]
        if outer == len(frames):
            return None, stack
        with PROGRESS.working("looking for the branches that led there"):
            called = self._explainer.at(count).function
            for _ in range(MAX_CALLS):
                at = self._explainer.conditions.call_of(count)
                if at is None:
                    return None, stack
                place, count = self._explainer.at(at), at
                if not self._is_inner(place.pc, False):
                    break
                called = place.where.partition("+")[0]
            else:
                return None, stack
        return self._explainer.executed(text.format(f"{called}()"), count), stack

    def _is_inner(self, pc: int, is_return: bool) -> bool:
        function = self._machine.image.symbols.function_at(pc - is_return)
        return function is not None and any(
            fnmatch.fnmatchcase(function.name, pattern) for pattern in self._inner)


def lines(slept: Slept) -> Iterator[str]:
    """Yield the lines of an answer."""
    yield slept.question
    if slept.channel:
        yield f"  on {slept.channel}"
    yield from _part(slept.asleep, slept.stack)
    yield f"  {woken(slept)}"
    if slept.sleep.wake is not None:
        yield from _part(slept.waking, slept.waker)


def woken(slept: Slept) -> str:
    """Return who woke a thread, and when."""
    wake = slept.sleep.wake
    if wake is None:
        return "nobody woke it in this recording" if slept.sleep.end is None else (
            "it became ready without being woken by another thread")
    by = wake.thread or "the kernel"
    if slept.interrupted:
        by = f"an interrupt during {by}"
    waited = wake.position.time - slept.sleep.begin.time
    return f"woken after {waited} ns by {by} [{wake.position.instructions}]"


def _part(answer: Answer | None, stack: Sequence[str]) -> Iterator[str]:
    if answer is not None:
        for line in answer_lines(answer):
            yield f"  {line}"
    if stack:
        yield "    stack"
        for line in stack:
            yield f"      {line}"


def to_json(slept: Slept) -> dict[str, object]:
    """Return an answer as JSON values."""
    return asdict(slept)
