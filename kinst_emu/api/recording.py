"""Recordings, as used by Python programs."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from dtrace.calls.places import Places
from dtrace.calls.positions import go, probed
from dtrace.debug.debug_data import Sources
from dtrace.flow.code import KernelCode
from dtrace.flow.origin import Link, Origin
from emu.host.errors import KinstError
from emu.machine.machine import StopReason
from emu.replay.inputs import Position
from emu.replay.player import Player
from emu.replay.writes import MAX_SIZE, last_write, physical_of
from images.boots import LIMIT
from images.recordings import from_start, played
from kinst_emu.api.kernel import Kernel
from kinst_emu.api.machine import Machine
from kinst_emu.api.registers import Registers
from kinst_emu.api.turn import Turn, in_turn


@dataclass(frozen=True)
class Moment:
    """Firing of a probe in a recording.

    :param arguments: argument registers of the calling convention; at a function's entry, they
        hold the function's arguments.
    """

    probe: str
    position: Position
    registers: dict[str, int]
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Written:
    """Memory write that was found in a recording.

    :param position: position at which the store is executed.
    :param where: ``function+offset`` of the instruction, or "from outside" for a recorded input.
    :param line: ``file:line``; empty if unknown.
    :param old: bytes before the store.
    :param new: bytes after the store.
    """

    position: Position
    where: str
    line: str
    old: bytes
    new: bytes


class RecordedMachine(Machine):
    """Read-only machine of a recording; its state changes only when the recording moves."""

    def _refuse(self, *_arguments: object, **_options: object) -> NoReturn:
        raise KinstError("this machine belongs to a recording and is read-only: use the "
                         "recording's go(), step() or back() to move it")

    write = set = call = evaluate = place = run = step = type = command = _refuse
    probe = trace = restore = on_qemu = record = execute_again = _refuse

    def _still(self) -> None:
        self._refuse()

    @property
    def registers(self) -> Registers:  # type: ignore[override]
        """General registers, read-only by name: ``machine.registers["rax"]``."""
        return Registers(tuple(self.emulated.arch.registers), self.emulated.read_register)


class Recording:
    """Recording opened for replay, initially positioned at its start.

    :param path: recording file.
    :param kernel: the recording's kernel, a file or a name.  By default it is searched for by
        build ID, at the path it was recorded from and among the known kernels.
    :param limit: maximum length in instructions; a longer recording is refused.
    :raises KinstError: when the recording or its kernel cannot be used.
    """

    def __init__(self, path: str | Path, kernel: str | None = None, limit: int = LIMIT) -> None:
        self._begin(played(Path(path), kernel, limit))

    def _begin(self, player: Player) -> None:
        self._player, emulated = player, player.machine
        #: registers, memory, types and stacks at the current position
        self.machine = RecordedMachine(Kernel(emulated.image), emulated)
        self._sources = Sources(emulated.image)
        self._places = Places(emulated)
        self._code: KernelCode | None = None

    @property
    def turn(self) -> Turn:
        """Lock of the recording's machine."""
        return self.machine.turn

    @property
    def player(self) -> Player:
        """Replay of the recording, for ``Walk``."""
        return self._player

    def __repr__(self) -> str:
        return f"<recording {self._player.recording.path} at {self.position}>"

    # -- positions --------------------------------------------------------------------------------

    @property
    @in_turn
    def position(self) -> Position:
        """Current position in the recording.

        Its ``instructions`` executed, and its virtual ``time`` in nanoseconds, count from the start
        of the boot.
        """
        return self._player.position

    @property
    def start(self) -> Position:
        """Position at which the recording starts."""
        return self._player.recording.start.position

    @property
    def end(self) -> Position:
        """Position at which the recording ends."""
        return self._player.recording.last

    @in_turn
    def go(self, position: str | int | Position) -> "Recording":
        """Go to a position, forward or backward.

        :param position: an instruction count, ``"50%"``, ``"1.5s"``, ``"malloc#3"``,
            ``"fbt::malloc:return"``, ``"panic"``, or any other position of ``kinst replay --to``.
        """
        self._wish(self._player.seek(position) if isinstance(position, Position)
                   else go(self._player, str(position)))
        self._player.give()
        return self

    @in_turn
    def step(self, count: int = 1) -> "Recording":
        """Go forward by ``count`` instructions."""
        return self.go(self.position.instructions + count)

    @in_turn
    def back(self, count: int = 1) -> "Recording":
        """Go back by ``count`` instructions."""
        return self.go(self.position.instructions - count)

    @in_turn
    def same(self) -> bool:
        """Replay to the end, and return whether the final state equals the recorded final state."""
        self._wish(self._player.advance_to_end())
        return not self._player.difference()

    @staticmethod
    def _wish(stop: object) -> None:
        if stop is not None:
            raise KeyboardInterrupt

    # -- queries ----------------------------------------------------------------------------------

    def firings(self, probe: str) -> Iterator[Moment]:
        """Move the recording to each later firing of a probe, and yield the firing.

        :param probe: ``provider::function:name``, without wildcards.
        """
        player, machine = self._player, self._player.machine
        from_start(player)
        wanted = probed(player, probe)
        while True:
            with self.turn:
                stop = wanted.next(player)
            if stop is None:
                return
            if stop.reason is StopReason.INTERRUPTED:
                raise KeyboardInterrupt
            here = self.position
            yield Moment(probe, here, machine.registers(), tuple(
                machine.read_register(name) for name in machine.arch.arguments))
            if self.position != here:
                self.go(here)

    def who_wrote(self, place: str | int, size: int | None = None) -> Iterator[Written]:
        """Yield the stores to a memory location before the current position, latest first.

        The recording moves to each store.

        :param place: an address, a symbol, or a C expression like ``"proc0.p_flag"``.
        :param size: number of bytes, 1 to 64; by default the size of the location, at most 64.
        """
        player = self._player
        with self.turn:
            location = self._places.find(f"{place:#x}" if isinstance(place, int) else place)
            physical, before = physical_of(player, location.address), self.position
        length = min(location.size, MAX_SIZE) if size is None else size
        given = True  # An input at the current position counts as a store, too.
        while True:
            with self.turn:
                write = last_write(player, physical, length, before, given)
            if write is None:
                return
            before, given = write.position, False
            outside = write.pc is None
            where = "from outside" if write.pc is None else self.machine.where(write.pc)
            line = "?" if write.pc is None else self._sources.line(write.pc)
            yield Written(before, where, "" if outside or line == "?" else line, write.old,
                          write.new)
            if self.position != before:
                with self.turn:
                    self._wish(player.seek(before))

    @in_turn
    def origin(self, register: str) -> list[Link]:
        """Trace the value of a register or memory location back to its origin.

        :param register: a register, or a memory location as for ``who_wrote``, of which up to
            eight bytes are traced.
        :return: the instructions that handled the value, most recent first.  The position of the
            recording does not change.
        """
        here = self.position
        if self._code is None:
            self._code = KernelCode(self._player.machine.image)
        origin = Origin(self._player, self._code)
        if origin.is_register(register) or register in self._player.machine.arch.registers:
            links = list(origin.of(register, here.instructions))
        else:
            place = Places(self._player.machine).find(register)
            links = list(origin.of_memory(physical_of(self._player, place.address),
                                          min(place.size, 8), here.instructions))
        self.go(here)
        return links


def recording_of(player: Player) -> Recording:
    """Return the recording that a player replays, at the player's position."""
    recording = Recording.__new__(Recording)
    recording._begin(player)
    return recording
