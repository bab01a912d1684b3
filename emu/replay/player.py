"""Plays a recording: to any position, forwards or back."""

import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace

from emu.host.errors import KinstError
from emu.machine.events import NEVER
from emu.machine.machine import Stop, StopReason, Until
from emu.replay.inputs import Position, ReplayError, check_console, give, position_of, reach
from emu.replay.recording import Recording, digest_of, pages_of
from emu.replay.starts import STATE
from emu.unicorn import snapshot
from emu.unicorn.guest_memory import PAGE
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.state import Snapshot

KEPT = 4  # states in memory
CLOSE = 2_000_000  # instructions: where one goes back to, the next step back is not far


def _wish(stop: Stop | None) -> Stop | None:
    """A stop, if it is the user's wish."""
    return stop if stop is not None and stop.reason is StopReason.INTERRUPTED else None


@dataclass(frozen=True)
class _State:
    """:param given: how many inputs the machine has been given."""

    position: Position
    given: int
    snapshot: Snapshot


class Player:
    """A machine on a recording.

    The inputs of a position are given when the machine is to go on from it.

    :param machine: as it was when the recording began (of a recording with a state of its own, any
        of its memory's size).
    :raises ReplayError: here and later, when it is another one's, or the run parts from the
        recording.
    """

    def __init__(self, recording: Recording, machine: UnicornMachine) -> None:
        start = recording.start
        if machine.arch.name != start.architecture or not machine.image.is_known_as(start.build_id):
            raise ReplayError(
                f"{recording.path}: is of another kernel ({start.architecture}, build id "
                f"{start.build_id[:16]}), not of {machine.image.path}; give its own kernel")
        self.recording, self.machine = recording, machine
        if machine.memory != start.memory:
            raise ReplayError(f"{recording.path}: is of a machine with {start.memory >> 20} MiB")
        self._checkpoints = [(n, p) for n, (p, _part, _given) in enumerate(recording.checkpoints)]
        self._first: _State | None = None
        if start.kind == STATE:
            if not self._checkpoints or self._checkpoints[0][1] != start.position:
                raise ReplayError(f"{recording.path}: it was cut off before its first state")
            self._put(0)
            self._checkpoints.pop(0)
        if start.digest is not None and machine.digest() != start.digest:
            raise ReplayError(
                f"{recording.path}: starts from a boot that another version of this program has "
                "made, and that is not the same one here; record it again")
        if position_of(machine) != start.position:
            raise ReplayError(f"{recording.path}: starts at {start.position}, the machine stands "
                              f"at {position_of(machine)}")
        self._given = 0
        self._kept: list[_State] = []
        self._first = self._state()
        self._pages = pages_of(machine)

    def _state(self) -> _State:
        return _State(self.position, self._given, self.machine.snapshot())

    @property
    def position(self) -> Position:
        return position_of(self.machine)

    @property
    def at_end(self) -> bool:
        """Whether all that is recorded was played."""
        return self.position == self.recording.last and self._given == len(self.recording.inputs)

    # -- forwards ---------------------------------------------------------------------------------

    def _next(self) -> Position:
        """Where the machine is given something next, or the recording ends."""
        inputs = self.recording.inputs
        return inputs[self._given].position if self._given < len(inputs) else self.recording.last

    def give(self) -> bool:
        """Give the machine the inputs of this position; whether there were some."""
        inputs, before = self.recording.inputs, self._given
        while self._given < len(inputs) and inputs[self._given].position == self.position:
            ends = self.recording.ends
            end = ends[bisect.bisect_right(ends, self._given)]
            for one in inputs[self._given : end]:
                try:
                    give(self.machine, one)
                except KinstError as error:
                    raise ReplayError(f"{self.recording.path}: an input that cannot be: "
                                      f"{error}") from None
            self._given = end
        return self._given > before

    def advance(self, position: Position) -> Stop | None:
        """Go on to a position.

        :return: why it ended early: the user's wish.
        """
        if position > self.recording.last:
            raise ReplayError(f"{self.recording.path}: ends at {self.recording.last}, before "
                              f"{position}")
        while self.position != position:
            if self.give():
                continue
            target = self._next()
            if (target.instructions, target.time) > (position.instructions, position.time):
                target = position
            stop = reach(self.machine, target)
            if stop is not None:
                return stop
        return None

    def run(self, until: Until) -> Stop | None:
        """Go on until something is reached, or the recording ends.

        :return: what ended it; None: the recording's end was reached, its last inputs given.
        """
        machine = self.machine
        while True:
            pc = machine.pc
            if self.give() and machine.pc != pc and machine.pc in until.addresses:
                return Stop(StopReason.ADDRESS, machine.pc)
            if self.at_end:
                return None
            target = self._next()
            here = self.position
            if target != here:
                times = [t for t in (until.time, None if target.awake else target.time)
                         if t is not None]
                stop = machine.run(replace(
                    until, time=min(times, default=None), instructions=min(
                        target.instructions,
                        NEVER if until.instructions is None else until.instructions)))
                there = self.position
                check_console(machine)
                if stop.reason in (StopReason.ADDRESS, StopReason.CONSOLE, StopReason.INTERRUPTED):
                    return stop
                if until.instructions is not None and there.instructions >= until.instructions:
                    return stop
                if until.time is not None and there.time >= until.time:
                    return Stop(StopReason.TIME, machine.pc)
                if there.instructions > target.instructions or there == here:
                    raise ReplayError(f"the run parted from its recording: at {there} ({stop}), "
                                      f"where the recording comes to {target}")

    # -- to any position --------------------------------------------------------------------------

    def seek(self, position: Position | int) -> Stop | None:
        """Go to a position, from the nearest state that is known before it.

        :param position: a count of instructions means the moment when the CPU is to execute the
            next one.
        :return: why it ended early: the user's wish.
        """
        recording = self.recording
        count = position.instructions if isinstance(position, Position) else position
        if count < recording.start.position.instructions:
            raise ReplayError(f"{recording.path}: begins at {recording.start.position}")
        if count > recording.last.instructions:
            raise ReplayError(f"{recording.path}: ends at {recording.last}")
        stop = self._near(
            lambda p: p <= position if isinstance(position, Position) else p.instructions < count,
            Until(instructions=count - CLOSE) if count > CLOSE else None)
        if stop is not None:
            return stop
        if isinstance(position, Position):
            return self.advance(position)
        if self.position.instructions < count or not self.position.awake:
            return _wish(self.run(Until(instructions=count)))
        return None

    def seek_time(self, time: int) -> Stop | None:
        """Go to a virtual time, to the first moment when the machine can be looked at."""
        if not self.recording.start.position.time <= time <= self.recording.last.time:
            raise ReplayError(f"{self.recording.path}: is of the virtual time from "
                              f"{self.recording.start.position.time / 1e9:.9f} s to "
                              f"{self.recording.last.time / 1e9:.9f} s")
        return self._near(lambda p: p.time < time, None) or _wish(self.run(Until(time=time)))

    def _near(self, before: Callable[[Position], bool], near: Until | None) -> Stop | None:
        """Go to a state before a place, if one is nearer to it than the present one.

        :param before: whether a position comes before it.
        :param near: close to the place: of a step back, a state is kept there.
        """
        first = self._first
        assert first is not None
        kept = max((s for s in self._kept if before(s.position)), key=lambda s: s.position,
                   default=first)
        number, checkpoint = max(((n, p) for n, p in self._checkpoints if before(p)),
                                 key=lambda c: c[1], default=(-1, first.position))
        here = self.position
        back = not before(here)
        if not back and max(kept.position, checkpoint) <= here:
            return None
        if checkpoint > kept.position:
            self._put(number)
            self._given = self.recording.checkpoints[number][2]
        else:
            self.machine.restore(kept.snapshot)
            self._given = kept.given
        if not back or near is None or near.instructions is None \
                or self.position.instructions >= near.instructions:
            return None
        stop = _wish(self.run(near))
        if stop is None:
            self._keep()
        return stop

    def _keep(self) -> None:
        self._kept = [s for s in self._kept if s.position != self.position][-(KEPT - 1) :]
        self._kept.append(self._state())

    def _put(self, number: int) -> None:
        """Go to the state of a checkpoint: the start's memory, and what differs."""
        found = self.recording.checkpoint(number)
        machine = self.machine
        if self._first is not None:  # what a checkpoint differs from
            machine.restore(self._first.snapshot)
        view = machine.memory_part.view
        for page, content in found.pages.items():
            view[page * PAGE : (page + 1) * PAGE] = content
        try:
            machine.restore_state(found.state)
        except snapshot.DAMAGE as error:
            raise ReplayError(f"{self.recording.path}: a damaged checkpoint "
                              f"({type(error).__name__}); record it again") from None

    def advance_to_end(self) -> Stop | None:
        """Go on to where the recording ends, its last inputs given.

        :return: why it ended early: the user's wish.
        """
        stop = self.advance(self.recording.last)
        if stop is None:
            self.give()
        return stop

    def difference(self) -> str:
        """At the end: how the state there is not the recorded one; empty: it is."""
        end = self.recording.end
        if end is None or end.digest is None:
            return ""
        digest = digest_of(self.machine, self._pages)
        return "" if digest == end.digest else f"digest {digest}, recorded {end.digest}"
