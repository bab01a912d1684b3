"""Recordings as Python programs use them."""

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
    """A probe's firing in a recording.

    :param arguments: the first registers of the calling convention: at an entry, the function's.
    """

    probe: str
    position: Position
    registers: dict[str, int]
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Written:
    """A store.

    :param where: ``function+offset``, or "from outside".
    :param line: ``file:line``; empty where it is not known.
    """

    position: Position
    where: str
    line: str
    old: bytes
    new: bytes


class RecordedMachine(Machine):
    """The machine of a recording: it is looked at, and goes where the recording goes."""

    def _refuse(self, *_arguments: object, **_options: object) -> NoReturn:
        raise KinstError("this machine belongs to a recording: it can be looked at, and goes where "
                         "the recording is sent (go, step, back)")

    write = set = call = evaluate = place = run = step = type = command = _refuse
    probe = trace = restore = on_qemu = record = execute_again = _refuse

    def _still(self) -> None:
        self._refuse()

    @property
    def registers(self) -> Registers:  # type: ignore[override]
        """``machine.registers["rax"]``."""
        return Registers(tuple(self.emulated.arch.registers), self.emulated.read_register)


class Recording:
    """A recording that is opened; it stands at its start.

    :param path: the file.
    :param kernel: its kernel, a file or a name; None: it is looked for where it was
        recorded, and among the known ones, by its build id.
    :param limit: instructions; a longer one is refused.
    :raises KinstError: when it cannot be used.
    """

    def __init__(self, path: str | Path, kernel: str | None = None, limit: int = LIMIT) -> None:
        self._player: Player = played(Path(path), kernel, limit)
        emulated = self._player.machine
        #: registers, memory, types and stacks, where the recording stands
        self.machine = RecordedMachine(Kernel(emulated.image), emulated)
        self._sources = Sources(emulated.image)
        self._places = Places(emulated)
        self._code: KernelCode | None = None

    @property
    def turn(self) -> Turn:
        """The lock of its machine."""
        return self.machine.turn

    def __repr__(self) -> str:
        return f"<recording {self._player.recording.path} at {self.position}>"

    # -- positions --------------------------------------------------------------------------------

    @property
    @in_turn
    def position(self) -> Position:
        """Where it stands: ``instructions`` executed and virtual ``time`` in nanoseconds since the
        start of the boot."""
        return self._player.position

    @property
    def start(self) -> Position:
        return self._player.recording.start.position

    @property
    def end(self) -> Position:
        return self._player.recording.last

    @in_turn
    def go(self, position: str | int | Position) -> "Recording":
        """Go to a position, forwards or back.

        :param position: as ``kinst replay --to`` takes it: an instruction count, ``"50%"``,
            ``"1.5s"``, ``"malloc#3"``, ``"fbt::malloc:return"``, ``"panic"``.
        """
        self._wish(self._player.seek(position) if isinstance(position, Position)
                   else go(self._player, str(position)))
        self._player.give()
        return self

    @in_turn
    def step(self, count: int = 1) -> "Recording":
        """Execute instructions."""
        return self.go(self.position.instructions + count)

    @in_turn
    def back(self, count: int = 1) -> "Recording":
        """Go back so many instructions."""
        return self.go(self.position.instructions - count)

    @in_turn
    def same(self) -> bool:
        """Play it to its end: whether the state there is the recorded one."""
        self._wish(self._player.advance_to_end())
        return not self._player.difference()

    @staticmethod
    def _wish(stop: object) -> None:
        if stop is not None:
            raise KeyboardInterrupt

    # -- what happened ----------------------------------------------------------------------------

    def firings(self, probe: str) -> Iterator[Moment]:
        """The firings of a probe from here on; at each, the recording stands there.

        :param probe: ``provider::function:name``, without a pattern.
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
        """The stores to a place before this position, the last first; the recording goes there.

        :param place: an address, a symbol, or what C would say: ``"proc0.p_flag"``.
        :param size: bytes, 1 to 64; None: as many as the place has.
        """
        player = self._player
        with self.turn:
            found = self._places.find(f"{place:#x}" if isinstance(place, int) else place)
            physical, before = physical_of(player, found.address), self.position
        length = min(found.size, MAX_SIZE) if size is None else size
        given = True  # what was given here has been written
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
        """Where the value came from that a register, or up to eight bytes of memory as
        ``who_wrote`` takes them, have here, the last instruction first; the recording stays where
        it is."""
        here = self.position
        if self._code is None:
            self._code = KernelCode(self._player.machine.image)
        origin = Origin(self._player, self._code)
        if origin.is_register(register) or register in self._player.machine.arch.registers:
            found = list(origin.of(register, here.instructions))
        else:
            place = Places(self._player.machine).find(register)
            found = list(origin.of_memory(physical_of(self._player, place.address),
                                          min(place.size, 8), here.instructions))
        self.go(here)
        return found
