"""Scheduling of a machine's CPUs: which CPU runs, and for how many instructions.

The CPUs of a round run one after the other, all at the same virtual time (``_turns.pxi``).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from emu.devices.device import number
from emu.elf.image import Image
from emu.machine.events import NEVER
from emu.machine.machine import Stop, StopReason
from emu.unicorn._engine import CpuLimit, Engine, Turns
from emu.unicorn.cpu import Cpu

MOST_CPUS = CpuLimit.MAX_CPUS.value


class ScheduledMachine(Protocol):
    """The part of a machine that its schedule needs."""

    engine: Engine
    image: Image
    pc: int

    @property
    def cpus(self) -> Sequence[Cpu]: ...

    def interrupts_changed(self) -> None: ...

    def request_stop(self, stop: Stop) -> None: ...


class Schedule:
    """Scheduler that decides which CPU of a machine runs next, and for how long.

    :param machine: a machine whose engine and CPUs are in their power-on state.
    """

    def __init__(self, machine: ScheduledMachine) -> None:
        self._machine, self._engine = machine, machine.engine
        cpus = machine.cpus
        self._turns = Turns(machine.engine, len(cpus), machine.image.options.turn,
                            cpus[0].yields, cpus[0].monitor_place() if len(cpus) > 1 else 0)
        # The address at which each CPU waits for an interrupt, or None if it does not wait.
        self._waiting: list[int | None] = [None] * len(cpus)
        self.held: set[int] = set()  # CPUs that must not get a turn
        self.turned: Callable[[], None] | None = None  # called when a CPU's turn begins
        self.left: int | None = None  # remaining turns of the run (PATIENCE), or None for no limit

    @property
    def length(self) -> int:
        """Length of a full turn in instructions; a new value applies from the next turn."""
        return self._turns.clock[3]

    @length.setter
    def length(self, instructions: int) -> None:
        self._turns.clock = *self._turns.clock[:3], instructions

    @property
    def several(self) -> bool:
        """Whether the machine has more than one CPU."""
        return len(self._waiting) > 1

    @property
    def waits(self) -> list[int | None]:
        """Addresses at which the CPUs wait for an interrupt; None for a CPU that does not wait."""
        self._look()
        return list(self._waiting)

    @waits.setter
    def waits(self, where: list[int | None]) -> None:
        self._waiting = list(where)

    @property
    def waiting(self) -> int | None:
        """Address at which the current CPU waits for an interrupt, or None."""
        return self._waiting[self._engine.cpu]

    @waiting.setter
    def waiting(self, pc: int | None) -> None:
        self._waiting[self._engine.cpu] = pc

    def _look(self) -> None:
        """End the wait of the current CPU if its PC is no longer where the CPU began to wait."""
        if self.waiting is not None and self.waiting != self._machine.pc:
            self.waiting = None

    def _can_run(self, cpu: Cpu) -> bool:
        return cpu.on and cpu.number not in self.held and (
            self._waiting[cpu.number] is None or cpu.wakes() or bool(cpu.posted))

    def _next(self) -> tuple[Cpu | None, bool]:
        """Return the CPU that can run next, and whether its turn begins a new round."""
        self._look()
        cpus, present = self._machine.cpus, self._engine.cpu
        for cpu in cpus[present + 1 :]:
            if self._can_run(cpu):
                return cpu, False
        for cpu in cpus[: present + 1]:
            if self._can_run(cpu):
                return cpu, True
        return None, True

    def over(self) -> bool:
        """End the turn and give the next one to a CPU that can run.

        :return: whether there is such a CPU.
        """
        cpu, anew = self._next()
        if cpu is None:
            return False
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                self._machine.request_stop(Stop(StopReason.PATIENCE, self._machine.pc))
        self.give(cpu.number, 0 if anew else self._turns.longest)
        if anew and not any(self._can_run(other) for other in self._machine.cpus
                            if other is not cpu):
            self._turns.alone()
        return True

    def give(self, cpu: int, longest: int = 0) -> None:
        """Give the turn to a CPU.

        :param longest: instructions of the longest turn before it in the round; 0: a new round.
        """
        self._look()
        self._machine.cpus[self._engine.cpu].goes_out()
        self._turns.give(cpu, longest)
        if self._machine.cpus[cpu].came_in():
            self._turns.stands = False, 0, False
            self._waiting[cpu] = None
        if self.turned is not None:
            self.turned()
        self._machine.interrupts_changed()

    def begins_to_wait(self, pc: int) -> None:
        """Record that the current CPU executed the wait instruction that ends at ``pc``."""
        self.waiting = pc
        cpu = self._machine.cpus[self._engine.cpu]
        cpu.masked = self.several and cpu.masks_interrupts()

    def woke(self) -> None:
        """Record that the current CPU's wait is over.

        If the CPU already executed something in this turn, as in a loop that waits for another
        CPU, the turn ends, too.
        """
        if self.several and self._turns.begun:
            self._turns.end_here()

    def bear(self, times: int) -> None:
        """Set how many yield instructions the CPU may execute without ending its turn."""
        self._turns.patience = times, NEVER

    @property
    def borne(self) -> bool:
        """Whether the CPU has used up the yield instructions that ``bear`` allowed."""
        return self._turns.patience[0] == 0

    def changed(self) -> None:
        """Let other CPUs run again after an interrupt line changed or a CPU start was posted."""
        if self.several:
            self._turns.others_may_run()

    def new_round(self) -> None:
        """Begin a new round while all CPUs wait, so that virtual time advances for all of them."""
        if self.several:
            self._turns.give(self._engine.cpu, 0)

    def anybody(self) -> bool:
        """Return whether any CPU can run or take an interrupt."""
        if not self.several:
            return self._machine.cpus[0].interrupt_pending()
        return any(map(self._can_run, self._machine.cpus))

    def off(self) -> None:
        """Switch off the current CPU."""
        self._machine.cpus[self._engine.cpu].on = False
        self._turns.end_here()
        self._turns.others_may_run()
        self._machine.interrupts_changed()

    @property
    def nobody(self) -> bool:
        """Whether every CPU is off or waits with interrupts masked."""
        return not any(cpu.on and not (cpu.masked and self._waiting[cpu.number] is not None)
                       for cpu in self._machine.cpus)

    def each(self) -> Iterator[Cpu]:
        """Yield each CPU after loading its registers into the engine, for inspection only."""
        if not self.several:
            yield self._machine.cpus[0]
            return
        present = self._engine.cpu
        try:
            for cpu in self._machine.cpus:
                self._turns.look_at(cpu.number)
                yield cpu
        finally:
            self._turns.look_at(present)

    # -- the schedule's part of the machine's state -----------------------------------------------

    def state(self) -> dict[str, Any] | None:
        """Return the state of the turn and the other CPUs, or None on a machine with one CPU."""
        if not self.several:
            return None
        present, clock = self._engine.cpu, self._turns.clock
        rows: list[dict[str, Any]] = []
        for cpu in self._machine.cpus:
            own = cpu.number == present
            self._turns.look_at(cpu.number)
            pc = self._machine.pc
            rows.append({
                "on": cpu.on, "masked": cpu.masked, "posted": list(cpu.posted),
                "waiting": self._waiting[cpu.number] == pc,
                "registers": None if own else cpu.state(),
                "arrived": False if own else self._engine.stands_at(pc),
            })
        self._turns.look_at(present)
        return {"cpu": present, "clock": list(clock), "cpus": rows, "held": sorted(self.held),
                "patience": list(self._turns.patience)}

    def restore(self, state: dict[str, Any] | None, own: dict[str, Any], waiting: bool) -> None:
        """Restore the state of every CPU and of the current turn.

        :param state: the result of ``state``.
        :param own: the state of the current CPU.
        :param waiting: whether that CPU waits for an interrupt.
        :raises ValueError: if the state does not fit this machine.
        """
        cpus = self._machine.cpus
        if not self.several:
            if state is not None:
                raise ValueError("the state has several CPUs, but the machine has only one")
            cpus[0].restore(own)
            self._waiting[0] = self._machine.pc if waiting else None
            return
        if state is None or len(state["cpus"]) != len(cpus):
            raise ValueError("the state and the machine have different numbers of CPUs")
        present = number(state["cpu"], len(cpus))
        for cpu, row in zip(cpus, state["cpus"], strict=True):
            # Reset the registers first: their old values may affect how new values are set.
            self._turns.power_on(cpu.number)
            cpu.restore(own if cpu.number == present else row["registers"])
            cpu.on, cpu.masked = bool(row["on"]), bool(row["masked"])
            cpu.posted = [number(value, 1 << 64) for value in row["posted"]]
            if len(cpu.posted) not in (0, 2):
                raise ValueError("'posted' must be empty or contain an address and an argument")
            pc = self._machine.pc
            self._waiting[cpu.number] = pc if row["waiting"] else None
            self._turns.stands = bool(row["arrived"]), pc, False
        self._turns.look_at(present)
        began, end, longest, length = (number(value) for value in state["clock"])
        self._turns.clock = began, end, longest, length
        self.held = {number(held_number, len(cpus)) for held_number in state["held"]}
        left, said_at = (number(value, 1 << 64) for value in state["patience"])
        self._turns.patience = left, said_at
