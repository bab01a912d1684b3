"""Replay of a recording to any position, forward or backward."""

import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace

from emu.host.errors import KinstError
from emu.host.printable import printable
from emu.machine.events import NEVER
from emu.machine.machine import Stop, StopReason, Until
from emu.replay.inputs import Position, ReplayError, check_console, give, position_of, reach
from emu.replay.recording import Recording, digest_of, pages_of
from emu.replay.starts import STATE
from emu.unicorn import snapshot
from emu.unicorn.guest_memory import PAGE
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.state import Snapshot

KEPT = 4  # maximum number of machine states in memory
CLOSE = 2_000_000  # a backward seek saves a state this many instructions before its target


def _wish(stop: Stop | None) -> Stop | None:
    """Return ``stop`` if the user interrupted the run, else None."""
    return stop if stop is not None and stop.reason is StopReason.INTERRUPTED else None


@dataclass(frozen=True)
class _State:
    """Machine state at a position of the replay.

    :param given: number of inputs that the machine has received.
    """

    position: Position
    given: int
    snapshot: Snapshot


class Player:
    """Replay of a recording on a machine.

    The player applies the inputs of a position when the machine continues from it.

    :param machine: a machine in the state in which the recording began.  If the recording contains
        its own start state, any machine with the same memory size.
    :raises ReplayError: here and in later calls, if the machine does not match the recording or the
        replay diverges from it.
    """

    def __init__(self, recording: Recording, machine: UnicornMachine) -> None:
        start = recording.start
        if machine.arch.name != start.architecture or not machine.image.is_known_as(start.build_id):
            raise ReplayError(
                f"{recording.path}: made with another kernel ({start.architecture}, build ID "
                f"{start.build_id[:16]}), not with {machine.image.path}; use the kernel of the "
                "recording")
        self.recording, self.machine = recording, machine
        if machine.memory != start.memory:
            raise ReplayError(f"{recording.path}: made on a machine with {start.memory >> 20} MiB "
                              "of RAM; use a machine of that size")
        self._checkpoints = [(n, p) for n, (p, _part, _given) in enumerate(recording.checkpoints)]
        self._first: _State | None = None
        if start.kind == STATE:
            if not self._checkpoints or self._checkpoints[0][1] != start.position:
                raise ReplayError(f"{recording.path}: truncated before its first state; record "
                                  "it again")
            self._put(0)
            self._checkpoints.pop(0)
        if start.digest is not None and machine.digest() != start.digest:
            raise ReplayError(
                f"{recording.path}: starts from a boot that this version of the program does not "
                "reproduce; record it again")
        if position_of(machine) != start.position:
            raise ReplayError(f"{recording.path}: the recording starts at {start.position}, but "
                              f"the machine is at {position_of(machine)}")
        self._given = 0
        self._kept: list[_State] = []
        self._first = self._state()
        self._pages = pages_of(machine)

    def _state(self) -> _State:
        return _State(self.position, self._given, self.machine.snapshot())

    @property
    def position(self) -> Position:
        """Current position of the machine."""
        return position_of(self.machine)

    @property
    def at_end(self) -> bool:
        """Whether the whole recording has been replayed, including its last inputs."""
        return self.position == self.recording.last and self._given == len(self.recording.inputs)

    # -- forward ----------------------------------------------------------------------------------

    def _next(self) -> Position:
        """Return the position of the next input, or the end of the recording."""
        inputs = self.recording.inputs
        return inputs[self._given].position if self._given < len(inputs) else self.recording.last

    def give(self) -> bool:
        """Apply the inputs recorded at the current position, and return whether there were any."""
        inputs, before = self.recording.inputs, self._given
        while self._given < len(inputs) and inputs[self._given].position == self.position:
            ends = self.recording.ends
            end = ends[bisect.bisect_right(ends, self._given)]
            for recorded in inputs[self._given : end]:
                try:
                    give(self.machine, recorded)
                except KinstError as error:
                    raise ReplayError(f"{self.recording.path}: invalid input: "
                                      f"{error}") from None
            self._given = end
        return self._given > before

    def advance(self, position: Position) -> Stop | None:
        """Run forward to a position.

        :return: the stop if the user interrupted the run, else None.
        :raises ReplayError: if the position lies after the end of the recording.
        """
        if position > self.recording.last:
            raise ReplayError(f"{self.recording.path}: the recording ends at "
                              f"{self.recording.last}, before {position}")
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
        """Run forward until a condition is met or the recording ends.

        :return: the stop; None if the recording ended and its last inputs were given.
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
                    raise ReplayError("the replay diverged from the recording: it reached "
                                      f"{there} ({stop}), but the recording continues to {target}")

    # -- to any position --------------------------------------------------------------------------

    def seek(self, position: Position | int) -> Stop | None:
        """Move to a position, starting from the nearest saved state before the position.

        :param position: an instruction count stands for the moment at which the CPU is about to
            execute the next instruction.
        :return: the stop if the user interrupted the run, else None.
        :raises ReplayError: if the position is not part of the recording.
        """
        recording = self.recording
        count = position.instructions if isinstance(position, Position) else position
        if count < recording.start.position.instructions:
            raise ReplayError(f"{recording.path}: the requested position is before the start of "
                              f"the recording, {recording.start.position}")
        if count > recording.last.instructions:
            raise ReplayError(f"{recording.path}: the requested position is after the end of "
                              f"the recording, {recording.last}")
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
        """Move to the first position at or after a virtual time.

        :return: the stop if the user interrupted the run, else None.
        :raises ReplayError: if the time is not part of the recording.
        """
        if not self.recording.start.position.time <= time <= self.recording.last.time:
            raise ReplayError(f"{self.recording.path}: the recording covers only virtual time "
                              f"{self.recording.start.position.time / 1e9:.9f} s to "
                              f"{self.recording.last.time / 1e9:.9f} s")
        return self._near(lambda p: p.time < time, None) or _wish(self.run(Until(time=time)))

    def _near(self, before: Callable[[Position], bool], near: Until | None) -> Stop | None:
        """Restore the last saved state before a target, unless the current state is nearer.

        :param before: whether a position comes before the target.
        :param near: a point shortly before the target; on the way back, a state is kept there.
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
        """Restore a checkpoint: the initial memory, the changed pages, and the machine state."""
        checkpoint = self.recording.checkpoint(number)
        machine = self.machine
        if self._first is not None:  # a checkpoint has only the pages that differ from this state
            machine.restore(self._first.snapshot)
        view = machine.memory_part.view
        for page, content in checkpoint.pages.items():
            view[page * PAGE : (page + 1) * PAGE] = content
        try:
            machine.restore_state(checkpoint.state)
        except snapshot.DAMAGE as error:
            raise ReplayError(f"{self.recording.path}: a checkpoint is damaged "
                              f"({type(error).__name__}: {printable(error)}); record it again"
                              ) from None

    def advance_to_end(self) -> Stop | None:
        """Run forward to the end of the recording, and apply its last inputs.

        :return: the stop if the user interrupted the run, else None.
        """
        stop = self.advance(self.recording.last)
        if stop is None:
            self.give()
        return stop

    def difference(self) -> str:
        """Compare the machine's state with the recorded state at the end of the recording.

        :return: a description of the difference; empty if the states are the same or the recording
            has no digest.
        """
        end = self.recording.end
        if end is None or end.digest is None:
            return ""
        digest = digest_of(self.machine, self._pages)
        return "" if digest == end.digest else f"digest {digest}, recorded {end.digest}"
