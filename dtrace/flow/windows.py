"""Windows of a recorded run: consecutive instructions with their registers and memory accesses."""

from dataclasses import dataclass, field

from dtrace.flow.code import KernelCode
from dtrace.flow.steps import ENTRY as STEP
from dtrace.flow.steps import INSTRUCTION
from dtrace.flow.steps import REGISTER as CHANGED
from dtrace.flow.user_code import in_program
from emu.replay.inputs import Position
from emu.replay.player import Player
from emu.unicorn._steps import StepKind, Steps

WINDOW = 50_000  # number of instructions in a window
STORE = int(StepKind.STEP_STORE)


@dataclass
class Window:
    """Consecutive instructions, with their registers and memory accesses.

    :param begin: the instruction count before the first one.
    :param registers: the registers at the start.
    :param changes: new register values after an instruction, by its index.
    :param loads: (physical address, size in bytes) of each load, by the instruction's index.
    :param stores: the same for stores.
    """

    begin: int
    registers: dict[str, int]
    pcs: list[int] = field(default_factory=list)
    changes: dict[int, dict[str, int]] = field(default_factory=dict)
    loads: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    stores: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    runs: list[int] = field(default_factory=list)
    values: dict[str, list[int]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Instruction count at the end of the window."""
        return self.begin + len(self.pcs)

    def run(self, index: int) -> int:
        """Return the start index of the uninterrupted user code that contains an instruction."""
        if len(self.runs) != len(self.pcs):
            self.runs, start = [], 0
            for at, pc in enumerate(self.pcs):
                if not (at and in_program(pc) and in_program(self.pcs[at - 1])):
                    start = at
                self.runs.append(start)
        return self.runs[index]

    def register(self, index: int, name: str) -> int:
        """Return the value of a register just before the instruction at an index."""
        values = self.values.get(name)
        if values is None:
            values, now = [], self.registers[name]
            for at in range(len(self.pcs)):
                values.append(now)
                changes = self.changes.get(at)
                if changes is not None:
                    now = changes.get(name, now)
            self.values[name] = values
        return values[index]

    def before(self, index: int) -> dict[str, int]:
        """Return the register values just before the instruction at an index."""
        registers = dict(self.registers)
        for at in sorted(at for at in self.changes if at < index):
            registers |= self.changes[at]
        return registers


class Windows:
    """Reader of windows of a recording; it leaves the player at an arbitrary position.

    :param code: the code of the recording's kernel.
    """

    def __init__(self, player: Player, code: KernelCode) -> None:
        self.player, self._code = player, code
        arch = player.machine.arch
        self.followed = [name for name in arch.dwarf_registers if name and name != arch.pc]
        self._window: Window | None = None

    def seek(self, count: int) -> None:
        """Move the player to an instruction count.

        :raises KeyboardInterrupt: if the user interrupts the replay.
        """
        if self.player.seek(count) is not None:
            raise KeyboardInterrupt

    def before(self, end: int) -> Window:
        """Return a window that contains the last instruction before instruction count ``end``."""
        window = self._window
        if window is not None and window.begin < end <= window.end:
            return window
        first = self.player.recording.start.position.instructions
        self.seek(end)
        there = self.player.position
        self.seek(max(first, end - WINDOW))
        self._window = self._read(there)
        return self._window

    def _read(self, end: Position) -> Window:
        player, machine = self.player, self.player.machine
        player.give()
        numbers = machine.cpu.model.registers
        names = [name for name in self.followed if name in numbers]
        window = Window(player.position.instructions, machine.registers())
        entries: list[bytes] = []
        steps = Steps(machine.engine, entries.append,
                      [numbers[name] for name in names], loads=True)
        try:
            if player.advance(end) is not None:
                raise KeyboardInterrupt
        finally:
            steps.close()
        index = -1
        for kind, what, a, b in STEP.iter_unpack(b"".join(entries)):
            if kind == INSTRUCTION:
                index = b - window.begin
                del window.pcs[index:]
                window.loads.pop(index, None)
                window.stores.pop(index, None)
                # If the address is unknown, use the address after the previous instruction.
                if not a and window.pcs:
                    a = window.pcs[-1] + len(self._code.instruction(window.pcs[-1]))
                window.pcs.append(a)
            elif kind == CHANGED:
                window.changes.setdefault(index, {})[names[what]] = a
            else:
                accesses = window.stores if kind == STORE else window.loads
                accesses.setdefault(index, []).append((a, what))
        del window.pcs[end.instructions - window.begin :]
        return window
