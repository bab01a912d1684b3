"""Register changes and memory writes of single instructions in a recorded run."""

import struct
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

from dtrace.flow.code import LONGEST
from emu.host.errors import KinstError
from emu.machine.machine import Machine, StopReason, Until
from emu.replay.flow import Executed, Piece
from emu.replay.inputs import Position
from emu.replay.player import Player
from emu.unicorn._flow import Flow
from emu.unicorn._steps import StepKind, Steps
from emu.unicorn.running_thread import newer, thread_words
from kinst.code.dataflow import EFFECTS
from kinst.code.operands import OPERANDS, Operand

PAGE = 4096
CHUNK = 20_000  # number of instructions to examine at a time
# fields of an entry: kind; register or size; address or value; count or value
ENTRY = struct.Struct("<IIQQ")
INSTRUCTION, REGISTER = int(StepKind.STEP_INSTRUCTION), int(StepKind.STEP_REGISTER)
MASK = (1 << 64) - 1


def steps(player: Player, end: Position, registers: bool, stores: bool) -> Iterator[Piece]:
    """Yield the control flow from a player's position to ``end``, and each instruction's effects.

    The effects of instructions follow their flow entries. The effects of an exception count as
    those of the instruction before it.

    :raises KeyboardInterrupt: if the user interrupts the run.
    """
    machine = player.machine
    numbers = machine.cpu.model.registers
    names = [name for name in machine.arch.registers if name != machine.arch.pc]
    before = machine.registers()
    with closing(chunks(player, end, [numbers[name] for name in names])) as pieces:
        for _begin, flow, entries in pieces:
            yield flow
            done = _read(machine, entries, names, before, player.position.instructions)
            yield [Executed(s.position, s.pc, s.registers if registers else {},
                            s.stores if stores else ()) for s in done]
            before = machine.registers()


def chunks(player: Player, end: Position, numbers: Sequence[int], loads: bool = False
           ) -> Generator[tuple[Position, bytes, bytes], None, None]:
    """Run from the player's position to ``end``, and yield what happens in each chunk of the run.

    Each item is the position where the chunk begins, its control flow (``emu.replay.flow``), and
    the entries of its instructions (``emu.unicorn._steps``).  Close the iterator to stop observing.

    :param numbers: Unicorn's numbers of the registers to observe.
    :param loads: whether to observe loads, too.
    :raises KeyboardInterrupt: if the user interrupts the run.
    """
    machine = player.machine
    flow: list[bytes] = []
    entries: list[bytes] = []
    words = thread_words(machine)
    collected = Flow(machine.engine, flow.append, words)
    looked = Steps(machine.engine, entries.append, numbers, loads)
    try:
        while (here := player.position) < end:
            count = here.instructions + CHUNK
            stop = (player.run(Until(instructions=count)) if count < end.instructions
                    else player.advance(end))
            if stop is not None and stop.reason is StopReason.INTERRUPTED:
                raise KeyboardInterrupt
            collected.flush()
            looked.flush()
            if (now := newer(words, thread_words(machine))) != words:
                words = now
                collected.watch_words(words)
            yield here, b"".join(flow), b"".join(entries)
            flow.clear()
            entries.clear()
    finally:
        looked.close()
        collected.close()


def _read(machine: Machine, entries: bytes, names: list[str], registers: dict[str, int],
          end: int) -> list[Executed]:
    """Decode the effects of instructions.

    :param registers: the registers before the first instruction.
    :param end: the instruction count at the end.
    """
    done: list[Executed] = []
    changed: dict[str, int] = {}
    stores: list[tuple[int | None, int, bytes]] = []
    where = Translations(machine)
    current = dict(registers)
    for kind, what, a, b in ENTRY.iter_unpack(entries):
        if kind == INSTRUCTION:
            current |= changed
            if done and done[-1].position >= b:
                done.pop()  # the instruction was stopped and restarted
            changed, stores = {}, []
            if not a and done:
                a, changed = _unseen(machine, done[-1])
            done.append(Executed(b, a, changed, stores))  # type: ignore[arg-type]
        elif kind == REGISTER:
            changed[names[what]] = a
        else:
            pc = done[-1].pc if done else 0
            stores.append((where.virtual(current, pc, a), a,
                           (b & (1 << 8 * what) - 1).to_bytes(what, "little")))
    if done and done[-1].position >= end:
        done.pop()
    return [Executed(s.position, s.pc, s.registers, tuple(s.stores)) for s in done]


def _unseen(machine: Machine, before: Executed) -> tuple[int, dict[str, int]]:
    """Return the address and register changes of an instruction whose start was not observed.

    Changes that the previous instruction cannot have made are moved from it to this one.
    """
    code = machine.read(before.pc, min(LONGEST, PAGE - before.pc % PAGE))
    code = code[: machine.arch.instruction_length(code)]
    writes = EFFECTS[machine.arch.name](code).writes
    followed = set(machine.arch.dwarf_registers)
    return before.pc + len(code), {
        name: before.registers.pop(name) for name in list(before.registers)
        if name in followed and name not in writes}


class Translations:
    """Cached page translations of a stopped machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._pages: dict[int, int | None] = {}
        self._operands: dict[int, list[Operand]] = {}  # pc -> operands in memory

    def _page(self, page: int) -> int | None:
        if page not in self._pages:
            self._pages[page] = self._machine.translate(page)
        return self._pages[page]

    def virtual(self, registers: dict[str, int], pc: int, physical: int) -> int | None:
        """Return a virtual address through which an instruction may have accessed a physical one.

        None: no known address leads there.
        """
        if pc not in self._operands:
            self._operands[pc] = [one for one in OPERANDS[self._machine.arch.name](
                self._code(pc), pc).operands if one.memory]
        page = physical & -PAGE
        for base in (*(self._address(one, registers) for one in self._operands[pc]),
                     *registers.values()):
            for near in (base, base - PAGE, base + PAGE):
                if self._page(near & MASK & -PAGE) == page:
                    return (near & MASK & -PAGE) + physical - page
        return None

    def _address(self, operand: Operand, registers: dict[str, int]) -> int:
        """Return the address of an operand in memory."""
        values = [registers[name] if name in registers else self._machine.read_register(name)
                  if name else 0 for name in (operand.base, operand.segment, operand.index)]
        return values[0] + values[1] + values[2] * operand.scale + operand.offset

    def _code(self, pc: int) -> bytes:
        try:
            return self._machine.read(pc, min(LONGEST, PAGE - pc % PAGE))
        except KinstError:
            return b""
