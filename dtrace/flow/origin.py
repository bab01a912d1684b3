"""Search for the origin of a value in a recorded run.

The search goes back from a register or memory location through copies, loads and stores to the
instruction that computed the value. It works on a window of instructions whose registers and
memory accesses are all known. Before the window, the run's flow shows which instruction wrote a
register, and the recording shows which one wrote to memory.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dtrace.flow.code import KernelCode
from dtrace.flow.user_code import UserCode, in_program
from dtrace.flow.windows import Window, Windows
from emu.host.errors import KinstError
from emu.replay.flow import ENTRY, PIECE, flow
from emu.replay.inputs import MEMORY as GIVEN_MEMORY
from emu.replay.inputs import REGISTER
from emu.replay.player import Player
from emu.replay.writes import last_write
from emu.unicorn.guest_memory import PAGE
from kinst.code.dataflow import EFFECTS, MEMORY, Effect

# length of the first search in instructions; growth factor for later searches
NEAR, WIDER = 100_000, 16
MAX_LINKS = 100_000


class How(enum.Enum):
    """Effect of an instruction on the traced value; MADE and all later members end the search."""

    COPIED = "copied from"
    LOADED = "loaded from"
    STORED = "stored from"
    MADE = "computed here"
    EXCEPTION = "set by an exception"
    OUTSIDE = "external input"
    START = "present when the recording begins"
    PART = "combined from several stores; this is the last"
    UNKNOWN = "not followed further"


@dataclass(frozen=True)
class Link:
    """One step of the search for an origin; each step leads further back in time.

    :param count: the number of instructions executed before it.
    :param pc: the instruction's address; None if no instruction is involved.
    :param place: the register or physical address that received the value.
    :param source: the register or physical address that held the value before.
    :param code: the instruction's bytes, if it is in user code.
    """

    how: How
    count: int
    pc: int | None
    place: str
    source: str = ""
    code: bytes = b""


@dataclass(frozen=True)
class _Memory:
    physical: int
    size: int

    def __str__(self) -> str:
        return f"physical {self.physical:#x}"

    def touches(self, at: int, size: int) -> bool:
        """Return whether a range of memory overlaps this memory."""
        return at < self.physical + self.size and self.physical < at + size

    def within(self, at: int, size: int) -> bool:
        """Return whether this memory is entirely within a range."""
        return at <= self.physical and self.physical + self.size <= at + size


_Place = str | _Memory


class Origin:
    """Tracer that finds the origin of values in a recording.

    A search leaves the player at an arbitrary position.

    :param code: the code of the recording's kernel.
    """

    def __init__(self, player: Player, code: KernelCode) -> None:
        self._player, self._code = player, code
        arch = player.machine.arch
        # whether the guest runs user programs
        self._user = bool(player.machine.guest.boot.shell_prompt)
        self._effects = EFFECTS[arch.name]
        self.windows = Windows(player, code)
        self._programs = UserCode(player.machine, self.windows.seek)
        self._last: dict[tuple[int, int, str], int] = {}
        self._last_in_program: dict[tuple[int, int, int, str], int] = {}

    def check(self, register: str) -> None:
        """Check that the origin of a register's value can be searched for.

        :raises KinstError: if it is not a general register.
        """
        if register not in self.windows.followed:
            raise KinstError(f"'{register[:40]}' is not a general register of "
                             f"{self._player.machine.arch.name}")

    def is_register(self, name: str) -> bool:
        """Return whether a name is a register that ``of`` accepts."""
        return name in self.windows.followed

    def of(self, register: str, count: int, given: bool = True) -> Iterator[Link]:
        """Trace a register's value just before instruction ``count`` back to its origin.

        Yield each step of the search.

        :param given: whether the inputs recorded at that count have been applied already.
        :raises KinstError: if it is not a general register.
        """
        self.check(register)
        yield from self._of(register, count, given)

    def of_memory(self, physical: int, size: int, count: int) -> Iterator[Link]:
        """Trace bytes in memory just before instruction ``count`` back to their origin.

        Yield each step of the search.
        """
        yield from self._of(_Memory(physical, size), count, True)

    def _of(self, place: _Place, count: int, given: bool) -> Iterator[Link]:
        for _ in range(MAX_LINKS):
            link, source = (self._register(place, count, given) if isinstance(place, str)
                            else self._stored(place, count))
            given = True
            if link.pc is not None and in_program(link.pc) and self._user:
                window = self.windows.before(link.count + 1)
                link = replace(link, code=self._code_in(window, link.count - window.begin))
            yield link
            if source is None:
                return
            place, count = source, link.count
        yield Link(How.UNKNOWN, count, None, str(place))

    def _effect(self, pc: int) -> Effect:
        return self._effects(self._code.instruction(pc))

    def _effect_in(self, window: Window, index: int) -> Effect:
        return self._effects(self._code_in(window, index))

    def _code_in(self, window: Window, index: int) -> bytes:
        """Return the bytes of the window's instruction at an index."""
        pc = window.pcs[index]
        if not (self._user and in_program(pc)):
            return self._code.instruction(pc)
        return self._programs.instruction(window.begin + window.run(index), pc)

    # -- registers --------------------------------------------------------------------------------

    def _register(self, name: str, count: int, given: bool) -> tuple[Link, _Place | None]:
        first = self._player.recording.start.position.instructions
        while True:
            window = self.windows.before(count)
            found = self._in_window(window, name, count, given)
            if found is not None:
                return found
            if window.begin <= first:
                return self._from_start(name, first, window.begin), None
            before = self._written_before(name, window.begin)
            if isinstance(before, Link):
                return before, None
            count, given = before + 1, True

    def _in_window(self, window: Window, name: str, count: int,
                   here: bool) -> tuple[Link, _Place | None] | None:
        """Return a register's last change before instruction ``count`` in a window, or None."""
        given = {entry.position.instructions for entry in self._player.recording.inputs
                 if entry.kind == REGISTER and entry.name == name}
        for position in range(count, window.begin - 1, -1):
            if position in given and (here or position < count):
                return Link(How.OUTSIDE, position, None, name), None
            index = position - window.begin - 1
            if index < 0:
                break
            effect = self._effect_in(window, index)
            if name in effect.writes:
                return self._written(window, index, name, effect)
            if name in window.changes.get(index, {}):
                return Link(How.EXCEPTION, position, None, name), None
        return None

    def _written(self, window: Window, index: int, name: str,
                 effect: Effect) -> tuple[Link, _Place | None]:
        at, pc = window.begin + index, window.pcs[index]
        if name in effect.copies:
            sources = set(effect.copies[name])
            if len(sources) > 1:  # the instruction selected one of several sources
                registers = window.before(index)
                value = window.changes.get(index, {}).get(name, registers[name])
                sources = {s for s in sources if _low(registers[s]) == _low(value)}
            if len(sources) == 1:
                (source,) = sources
                return Link(How.COPIED, at, pc, name, source), source
            return Link(How.UNKNOWN, at, pc, name), None
        if name in effect.loads:
            loads = window.loads.get(index, [])
            if len(loads) == len(effect.loads):
                memory = _Memory(*loads[effect.loads.index(name)])
                return Link(How.LOADED, at, pc, name, str(memory)), memory
            return Link(How.UNKNOWN, at, pc, name), None
        return Link(How.MADE, at, pc, name), None

    def _given(self, name: str, low: int, high: int) -> int | None:
        """Return the last instruction count in [low, high] at which an input set a register."""
        counts = [entry.position.instructions for entry in self._player.recording.inputs
                 if entry.kind == REGISTER and entry.name == name
                 and low <= entry.position.instructions <= high]
        return counts[-1] if counts else None

    def _from_start(self, name: str, first: int, begin: int) -> Link:
        given = self._given(name, first, begin)
        return Link(How.START if given is None else How.OUTSIDE, first, None, name)

    def _written_before(self, name: str, end: int) -> Link | int:
        """Return the instruction count of the last possible write of a register before ``end``.

        If an input set the register later, or if there is no such write, return the link that ends
        the search.
        """
        first = self._player.recording.start.position.instructions
        high, size = end, NEAR
        while first < high:
            low = max(first, high - size)
            found = self._in_flow(name, low, high)
            given = self._given(name, low, high)
            if given is not None and (found is None or found < given):
                return Link(How.OUTSIDE, given, None, name)
            if found is not None:
                return found
            high, size = low, size * WIDER
        return Link(How.START, first, None, name)

    def _in_flow(self, name: str, low: int, high: int) -> int | None:
        """Return the instruction count of the last possible write of a register in [low, high).

        If an exception changes the register (a stack pointer), the last instruction before the
        exception counts as well.
        """
        self.windows.seek(high)
        end = self._player.position
        self.windows.seek(low)
        pieces: list[tuple[int, int, int]] = []  # (start count, address, instruction count)
        position, moved = low, None
        arch = self._player.machine.arch
        saves = name == arch.sp and arch.link is None
        for entries in flow(self._player, end):
            for value, count, kind in ENTRY.iter_unpack(entries):
                if kind == PIECE:
                    pieces.append((position, value, count))
                    position += count
                elif saves and position > low:
                    moved = position - 1
        runs = list[int]()  # for each piece, the start count of its run of user code
        for n, (before, address, _count) in enumerate(pieces):
            runs.append(runs[-1] if n and in_program(address) and in_program(pieces[n - 1][1])
                        else before)
        for run, (before, address, count) in zip(reversed(runs), reversed(pieces), strict=True):
            if moved is not None and before <= moved:
                break
            if self._user and in_program(address):
                last = self._last_of(run, address, count, name)
            else:
                last = self._last_in(address, count, name)
            if last >= 0:
                return before + last
        return moved

    def _last_in(self, address: int, count: int, name: str) -> int:
        """Return the index of the last write of a register in a piece of kernel code, or -1."""
        key = address, count, name
        if key not in self._last:
            found = -1
            for offset, at in enumerate(self._code.addresses(address, count)):
                if name in self._effect(at).writes:
                    found = offset
            self._last[key] = found
        return self._last[key]

    def _last_of(self, run: int, address: int, count: int, name: str) -> int:
        """Return the index of the last write to a register in a piece of user code, or -1.

        :param run: the count where the uninterrupted user code begins.
        """
        key = run, address, count, name
        if key not in self._last_in_program:
            found = -1
            for offset, at in enumerate(self._programs.addresses(run, address, count)):
                if name in self._effects(self._programs.instruction(run, at)).writes:
                    found = offset
            self._last_in_program[key] = found
        return self._last_in_program[key]

    # -- memory -----------------------------------------------------------------------------------

    def _stored(self, memory: _Memory, count: int) -> tuple[Link, _Place | None]:
        player, place = self._player, str(memory)
        ram = player.machine.ram_base
        if not ram <= memory.physical < ram + player.machine.memory:
            return Link(How.OUTSIDE, count, None, f"the device at {place}"), None
        if memory.physical % PAGE + memory.size > PAGE:
            return Link(How.UNKNOWN, count, None, place), None
        window = self.windows.before(count)
        index = self._store_in(window, memory, count)
        if index is None:
            self.windows.seek(count)
            write = last_write(player, memory.physical, memory.size, player.position)
            if write is None:
                return Link(How.START, player.recording.start.position.instructions, None,
                            place), None
            if write.pc is None:
                return Link(How.OUTSIDE, write.position.instructions, None, place), None
            window = self.windows.before(write.position.instructions + 1)
            index = write.position.instructions - window.begin
        return self._from_store(window, index, memory)

    def _store_in(self, window: Window, memory: _Memory, count: int) -> int | None:
        """Return the index of the last store to ``memory`` before ``count``, or None if unknown."""
        given = {entry.position.instructions for entry in self._player.recording.inputs
                 if entry.kind == GIVEN_MEMORY}
        for index in range(count - window.begin - 1, -1, -1):
            if any(memory.touches(*store) for store in window.stores.get(index, ())):
                return index
            effect = self._effect_in(window, index)
            excepted = window.changes.get(index, {}).keys() - effect.writes
            if effect.clears or excepted or window.begin + index in given:
                return None  # an exception or an input may have written the memory
        return None

    def _from_store(self, window: Window, index: int,
                    memory: _Memory) -> tuple[Link, _Place | None]:
        place, at, pc = str(memory), window.begin + index, window.pcs[index]
        effect, stores = self._effect_in(window, index), window.stores.get(index, [])
        touching = [n for n, store in enumerate(stores) if memory.touches(*store)]
        if effect.clears:
            return Link(How.MADE, at, pc, place), None
        if not touching:
            return Link(How.EXCEPTION, at, pc, place), None
        store = stores[touching[-1]]
        if not memory.within(*store):
            return Link(How.PART, at, pc, place), None
        if len(stores) != len(effect.stores):
            return Link(How.UNKNOWN, at, pc, place), None
        source = effect.stores[touching[-1]]
        if source is None:
            return Link(How.MADE, at, pc, place), None
        if source != MEMORY:
            return Link(How.STORED, at, pc, place, source), source
        loads = window.loads.get(index, [])
        if len(loads) != 1:
            return Link(How.UNKNOWN, at, pc, place), None
        before = _Memory(loads[0][0] + memory.physical - store[0], memory.size)
        return Link(How.COPIED, at, pc, place, str(before)), before


def _low(value: int) -> int:
    """Return the low byte of a value, which sign and zero extension preserve."""
    return value & 0xFF
