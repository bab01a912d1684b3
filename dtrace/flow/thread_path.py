"""Path of one thread through a window of a recorded run, with everything that it changed.

A *moment* is the state just before one of the thread's instructions: moment 0 is the start of the
window, moment N the state after N instructions.  Instructions of other threads in the window are
not part of the path, but their stores are: they happen between two of its moments.
"""

import bisect
import struct
from contextlib import closing
from dataclasses import dataclass, field

from dtrace.bpf.interpreter import signed
from dtrace.flow.code import KernelCode
from dtrace.flow.steps import ENTRY as STEP
from dtrace.flow.steps import INSTRUCTION, REGISTER, Translations, chunks
from dtrace.flow.user_code import in_program
from dtrace.flow.walk import Walk
from emu.host.errors import KinstError, MemoryAccessError
from emu.replay.flow import PIECE, SKEW, TAKEN, THREAD, Head
from emu.replay.inputs import Position
from emu.replay.player import Player
from emu.unicorn._steps import StepKind

PAGE = 4096
LINE = 64  # size in bytes of the pieces of memory whose words may be pointers
MOST = 2_000_000  # maximum number of instructions in a window, those of other threads included
FRAME = 48  # maximum number of bytes that an exception stores at the stack pointer
MOST_PAGES = 1024  # maximum number of pages of memory that are kept
STORE = int(StepKind.STEP_STORE)
MASK = (1 << 64) - 1
OWN, OTHER, EXCEPTION = range(3)  # what stored to memory


@dataclass(slots=True)
class PathFrame:
    """A function, or inline copy of one, on the path.

    :param how: how it was entered, as in ``dtrace.flow.walk``.
    :param parent: index of the frame that it was entered from; -1 for none.
    :param depth: number of frames around it.
    :param begin: the moment at which it was entered.
    :param end: the moment at which it was left; the last moment if it was not.
    :param own: number of instructions that it executed itself.
    """

    name: str
    how: str
    parent: int
    depth: int
    begin: int
    end: int = 0
    own: int = 0


@dataclass
class ThreadPath:
    """Path of a thread.

    :param thread: address of its ``struct thread``; 0 if no thread exists.
    :param registers: names of the registers that ``changes`` refers to.
    :param first: their values at moment 0.
    :param pcs: addresses of the instructions.
    :param runs: (moment, position, time in ns) where instructions begin that are executed without
        other threads in between.  The time of a later moment is greater by the number of
        instructions.
    :param changes: (moment, register, value): the register has the value from that moment on.
    :param loads: (instruction, physical address, size).
    :param stores: (moment, physical address, bytes, who): memory has the bytes from that moment
        on; OWN, OTHER (another thread) or EXCEPTION stored them.
    :param frames: functions in the order of their entry.
    :param outer: number of frames at the start that were entered before the window.
    :param mapped: physical page of each virtual page that was accessed or is pointed to.
    :param pages: content of each physical page at moment 0.
    :param outside: (physical address, size) of memory that something other than the instructions in
        the window changed, such as a device.
    :param others: number of instructions of other threads in the window.
    """

    thread: int
    begin: Position
    end: Position
    registers: tuple[str, ...]
    first: dict[str, int]
    pcs: list[int] = field(default_factory=list)
    runs: list[tuple[int, int, int]] = field(default_factory=list)
    changes: list[tuple[int, int, int]] = field(default_factory=list)
    loads: list[tuple[int, int, int]] = field(default_factory=list)
    stores: list[tuple[int, int, bytes, int]] = field(default_factory=list)
    frames: list[PathFrame] = field(default_factory=list)
    outer: int = 0
    mapped: dict[int, int] = field(default_factory=dict)
    pages: dict[int, bytes] = field(default_factory=dict)
    outside: list[tuple[int, int]] = field(default_factory=list)
    others: int = 0

    def time(self, moment: int) -> int:
        """Return the virtual time of a moment in ns."""
        at = bisect.bisect_right(self.runs, moment, key=lambda run: run[0]) - 1
        if at < 0:
            return self.begin.time
        begin, _position, time = self.runs[at]
        return time + moment - begin

    def position(self, moment: int) -> int:
        """Return the instruction count at a moment."""
        at = bisect.bisect_right(self.runs, moment, key=lambda run: run[0]) - 1
        if at < 0:
            return self.begin.instructions
        begin, position, _time = self.runs[at]
        return position + moment - begin

    def moment(self, position: int) -> int:
        """Return the first moment at or after an instruction count."""
        at = bisect.bisect_right(self.runs, position, key=lambda run: run[1]) - 1
        if at < 0:
            return 0
        begin, first, _time = self.runs[at]
        end = self.runs[at + 1][0] if at + 1 < len(self.runs) else len(self.pcs)
        return min(begin + position - first, end)


def follow(player: Player, code: KernelCode, head: Head, end: Position) -> ThreadPath:
    """Return the path of the running thread from the player's position to ``end``.

    :param head: the header of the flow that begins at the player's position.
    :raises KinstError: if the window has too many instructions.
    :raises KeyboardInterrupt: if the user interrupts the replay.
    """
    begin = player.position
    one_cpu(player)
    if end.instructions - begin.instructions > MOST:
        raise KinstError(f"the window has {end.instructions - begin.instructions:,} instructions; "
                         f"at most {MOST:,} can be shown")
    collector = _Collector(player, code, head)
    path = collector.follow(end)
    for page in collector.moved:
        del path.mapped[page]
    after = _memory(player, path, collector.candidates - collector.moved)
    _exceptions(player, path, collector.exceptions)
    _outside(path, after)
    return path


def one_cpu(player: Player) -> None:
    """Check that a recording has one CPU, because the registers of others would be mixed up.

    :raises KinstError: if it has several.
    """
    cpus = player.machine.image.options.cpus
    if cpus > 1:
        raise KinstError(f"{player.recording.path}: the recording has {cpus} CPUs; this works only "
                         "with one, so far")


class _Calls:
    """Listener of a ``Walk`` that adds the functions of a path's thread, with positions."""

    def __init__(self, path: ThreadPath) -> None:
        self._path, self._stack = path, list[int]()

    def _own(self, thread: int) -> bool:
        return not self._path.thread or thread in (self._path.thread, 0)

    def enter(self, thread: int, position: int, time: int, name: str, how: str,
              site: int | None) -> None:
        """Note the entry of a function."""
        if not self._own(thread):
            return
        path, stack = self._path, self._stack
        path.frames.append(PathFrame(name, how, stack[-1] if stack else -1, len(stack), position))
        stack.append(len(path.frames) - 1)

    def leave(self, thread: int, position: int, time: int) -> None:
        """Note the end of the innermost function."""
        if self._stack and self._own(thread):
            self._path.frames[self._stack.pop()].end = position

    def ran(self, thread: int, count: int) -> None:
        """Count instructions of the innermost function."""
        if self._stack and self._own(thread):
            self._path.frames[self._stack[-1]].own += count

    def mark(self, thread: int, position: int, time: int, number: int) -> None:
        """Ignore a marked instruction."""
        return None

    def named(self, thread: int) -> None:
        """Ignore the address of the thread that has been reported as thread 0 until now."""
        return None


class _Collector:
    """Collector of the path of the thread on which a window begins."""

    def __init__(self, player: Player, code: KernelCode, head: Head) -> None:
        self._player, self._machine, self._code = player, player.machine, code
        self._thread = head.thread
        machine, numbers = player.machine, player.machine.cpu.model.registers
        names = tuple(name for name in machine.arch.registers
                      if name != machine.arch.pc and name in numbers)
        registers = machine.registers()
        self.path = ThreadPath(head.thread, head.begin, head.begin, names,
                               {name: registers[name] for name in names})
        self._ids = [numbers[name] for name in names]
        # (position, thread, time beyond the instruction count) from that position on
        self._threads: list[tuple[int, int, int]] = [
            (head.begin.instructions, head.thread, head.begin.time - head.begin.instructions)]
        self._flowed = head.begin.instructions
        self._shown = [self.path.first[name] for name in names]
        self._current = list(self._shown)
        self._dirty = set[int]()
        self._mapped: dict[tuple[int, int], int | None] = {}
        self._taken = set[int]()  # positions at which exceptions are taken
        # (position, stack pointer, index in ``path.stores``) of each exception
        self.exceptions: list[tuple[int, int, int]] = []
        self._sp = names.index(machine.arch.sp)
        self.moved = set[int]()  # virtual pages that were mapped to several physical pages
        self.candidates = set[int]()  # virtual pages that values of registers point to
        self._calls = _Calls(self.path)
        self._walk = Walk(code, head, self._calls)
        self.path.outer = len(self.path.frames)

    # -- the window -------------------------------------------------------------------------------

    def follow(self, end: Position) -> ThreadPath:
        """Run to the end of the window and return the path."""
        player = self._player
        with closing(chunks(player, end, self._ids, loads=True)) as pieces:
            for _begin, flow, entries in pieces:
                self._switches(flow)
                self._steps(entries, player.position.instructions)
                self._walk.follow(flow)
        self.path.end = player.position
        self._walk.end()
        self._place_frames()
        return self.path

    def _switches(self, entries: bytes) -> None:
        """Note when other threads run, and how far the time is ahead of the instruction count."""
        thread, skew = self._threads[-1][1:]
        for value, count, kind in struct.iter_unpack("<QII", entries):
            if kind == PIECE:
                self._flowed += count
                continue
            if kind == THREAD:
                thread = value
                if not self._thread:
                    self._thread = self.path.thread = value
            elif kind == SKEW:
                skew = signed(value)
            elif kind == TAKEN:
                self._taken.add(self._flowed)
            if (thread, skew) != self._threads[-1][1:]:
                self._threads.append((self._flowed, thread, skew))

    def _steps(self, entries: bytes, end: int) -> None:
        path, threads = self.path, self._threads
        where, at, last = Translations(self._machine), 0, -1
        own = False
        pc = 0
        current, dirty, names = self._current, self._dirty, path.registers
        values: dict[str, int] = {}
        for kind, what, a, b in STEP.iter_unpack(entries):
            if kind == INSTRUCTION:
                if b >= end:
                    break
                while at + 1 < len(threads) and threads[at + 1][0] <= b:
                    at += 1
                if b == last and own:  # the instruction was stopped and restarted
                    path.pcs.pop()
                elif b == last:
                    path.others -= 1
                if not a and pc:
                    a = pc + len(self._code.instruction(pc))
                # What runs before the first thread exists belongs to it.
                own, pc = threads[at][1] in (self._thread, 0), a
                values = {}
                if b in self._taken:
                    # A fault's instruction is reported first, with the same position.
                    if self.exceptions and self.exceptions[-1][0] == b:
                        at_store = self.exceptions.pop()[2]
                        path.stores[at_store] = len(path.pcs), 0, b"", EXCEPTION
                    else:
                        at_store = len(path.stores)
                        path.stores.append((len(path.pcs), 0, b"", EXCEPTION))
                    self.exceptions.append((b, current[self._sp], at_store))
                if own:
                    self._begin(a, b, b + threads[at][2])
                else:
                    path.others += 1
                last = b
            elif kind == REGISTER:
                current[what] = a
                dirty.add(what)
            else:
                if not values:
                    values = dict(zip(names, current, strict=True))
                size = min(what, 8) if kind == STORE else what
                content = (b & (1 << 8 * size) - 1).to_bytes(size, "little") if (
                    kind == STORE) else bytes(size)
                done = 0
                for physical, length in self._accessed(where, values, pc, a, size, own):
                    if physical is not None and kind == STORE:
                        path.stores.append((len(path.pcs), physical,
                                            content[done : done + length], OWN if own else OTHER))
                    elif physical is not None and own:
                        path.loads.append((len(path.pcs) - 1, physical, length))
                    done += length
        self._threads = threads[-1:]

    def _begin(self, pc: int, position: int, time: int) -> None:
        """Begin an instruction of the path."""
        path = self.path
        moment = len(path.pcs)
        runs = path.runs
        if not runs or (position - moment, time - moment) != (
                runs[-1][1] - runs[-1][0], runs[-1][2] - runs[-1][0]):
            runs.append((moment, position, time))
        path.pcs.append(pc)
        self._changed(moment)

    def _changed(self, moment: int) -> None:
        """Note the registers that changed before a moment."""
        current, shown = self._current, self._shown
        for number in self._dirty:
            value = current[number]
            if value != shown[number]:
                shown[number] = value
                self.path.changes.append((moment, number, value))
                self.candidates.add(value & -PAGE)
        self._dirty.clear()

    def _accessed(self, where: Translations, values: dict[str, int], pc: int, physical: int,
                  size: int, own: bool) -> list[tuple[int | None, int]]:
        """Note the virtual page of an access; return its (physical address, size) on each page.

        The physical address of the second page is None if it is unknown.
        """
        key = pc, physical & -PAGE
        if key not in self._mapped:
            self._mapped[key] = found = where.virtual(values, pc, physical)
            if found is not None and (own or not in_program(found)):
                self._map(found & -PAGE, physical & -PAGE)
        first = min(size, PAGE - physical % PAGE)
        if first == size:
            return [(physical, size)]
        virtual = where.virtual(values, pc, physical)
        second = None if virtual is None else self._machine.translate(virtual + first & MASK)
        if second is not None and virtual is not None and (own or not in_program(virtual)):
            self._map(virtual + first & MASK & -PAGE, second & -PAGE)
        return [(physical, first), (second, size - first)]

    def _map(self, virtual: int, physical: int) -> None:
        """Note the physical page of a virtual page; a page that is mapped anew is left out."""
        if self.path.mapped.setdefault(virtual, physical) != physical:
            self.moved.add(virtual)

    def _place_frames(self) -> None:
        """Replace positions in the frames by moments."""
        path = self.path
        self._changed(len(path.pcs))
        for frame in path.frames:
            frame.begin, frame.end = path.moment(frame.begin), path.moment(frame.end)


# -- memory ---------------------------------------------------------------------------------------


def _memory(player: Player, path: ThreadPath, candidates: set[int]) -> dict[int, bytes]:
    """Add the memory that the path accessed, and memory that its values point to.

    Return the content of its pages at the end, and leave the player at the start of the window.
    """
    machine, programs = player.machine, bool(player.machine.guest.boot.shell_prompt)
    wanted = dict.fromkeys(address & -PAGE for _at, address, _size in path.loads)
    wanted |= dict.fromkeys(
        address & -PAGE for _at, address, content, _who in path.stores if content)
    accessed = list(wanted)[:MOST_PAGES]
    after = _read(player, accessed)
    words = set[int]()
    for address in {address & -LINE for _at, address, _size in path.loads}:
        content = after.get(address & -PAGE)
        if content is not None:
            words.update(word & -PAGE for word in struct.unpack_from(
                f"<{LINE // 8}Q", content, address & PAGE - 1))
    for page in (*sorted(candidates), *sorted(words - candidates)):
        if page in path.mapped or not page or (programs and in_program(page)):
            continue
        physical = machine.translate(page)
        if physical is None:
            continue
        path.mapped[page] = physical
        if len(wanted) < MOST_PAGES:
            wanted[physical] = None
    pages = list(wanted)[:MOST_PAGES]
    after |= _read(player, [page for page in pages if page not in after])
    if player.seek(path.begin) is not None:
        raise KeyboardInterrupt
    player.give()
    path.pages = _read(player, pages)
    path.mapped = {virtual: physical for virtual, physical in path.mapped.items()
                   if physical in path.pages}
    return after


def _read(player: Player, pages: list[int]) -> dict[int, bytes]:
    """Return the content of physical pages, without those that are not RAM."""
    found = {}
    for page in pages:
        try:
            found[page] = player.machine.read_physical(page, PAGE)
        except MemoryAccessError:
            continue
    return found


def _exceptions(player: Player, path: ThreadPath, exceptions: list[tuple[int, int, int]]) -> None:
    """Add what exceptions stored at the stack pointer, which no instruction does (amd64).

    The player is at the start of the window.
    """
    played = {page: bytearray(content) for page, content in path.pages.items()}
    machine, done = player.machine, 0
    found: list[tuple[int, int, bytes, int]] = []
    for position, sp, index in exceptions:
        found += path.stores[done:index]
        for _moment, address, content, _who in path.stores[done:index]:
            _store(played, address, content)
        done = index + 1
        moment = path.stores[index][0]
        if player.seek(position + 1) is not None:
            raise KeyboardInterrupt
        for word in range(sp, sp + FRAME, 8):
            physical = machine.translate(word)
            page = None if physical is None else played.get(physical & -PAGE)
            if physical is None or page is None or word % 8:
                continue
            now = machine.read_physical(physical, 8)
            if page[physical % PAGE : physical % PAGE + 8] != now:
                found.append((moment, physical, now, EXCEPTION))
                _store(played, physical, now)
    path.stores = found + path.stores[done:]


def _store(pages: dict[int, bytearray], address: int, content: bytes) -> None:
    """Change the copy of a page that contains a physical address, if there is one."""
    page = pages.get(address & -PAGE)
    if page is not None:
        offset = address & PAGE - 1
        page[offset : offset + len(content)] = content[: PAGE - offset]


def _outside(path: ThreadPath, after: dict[int, bytes]) -> None:
    """Note what changed in memory although no instruction of the window stored it."""
    played = {page: bytearray(content) for page, content in path.pages.items()}
    for _moment, address, stored, _who in path.stores:
        _store(played, address, stored)
    for page, content in played.items():
        if content != after[page]:
            path.outside += [(page + offset, 8) for offset in range(0, PAGE, 8)
                             if content[offset : offset + 8] != after[page][offset : offset + 8]]
