"""Which CPU of a machine runs, and for how long: turns of so many instructions, one CPU behind the
other, all of a round at the same virtual time (``_turns.pxi``)."""

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
    """A machine, as far as its schedule needs to know one."""

    engine: Engine
    image: Image
    pc: int

    @property
    def cpus(self) -> Sequence[Cpu]: ...

    def interrupts_changed(self) -> None: ...

    def request_stop(self, stop: Stop) -> None: ...


class Schedule:
    """:param machine: with its engine and CPUs as they are at power-on."""

    def __init__(self, machine: ScheduledMachine) -> None:
        self._machine, self._engine = machine, machine.engine
        cpus = machine.cpus
        self._turns = Turns(machine.engine, len(cpus), machine.image.options.turn,
                            cpus[0].yields, cpus[0].monitor_place() if len(cpus) > 1 else 0)
        # Where a CPU waits for an interrupt; None: it does not.
        self._waiting: list[int | None] = [None] * len(cpus)
        self.held: set[int] = set()  # whom somebody keeps from having a turn
        self.turned: Callable[[], None] | None = None  # is called when a CPU's turn has come
        self.left: int | None = None  # turns until the run is to end with PATIENCE; None: any

    @property
    def length(self) -> int:
        """Instructions of a turn that is not given away; what is set holds from the next one."""
        return self._turns.clock[3]

    @length.setter
    def length(self, instructions: int) -> None:
        self._turns.clock = *self._turns.clock[:3], instructions

    @property
    def several(self) -> bool:
        return len(self._waiting) > 1

    @property
    def waits(self) -> list[int | None]:
        """Where each CPU waits for an interrupt."""
        self._look()
        return list(self._waiting)

    @waits.setter
    def waits(self, where: list[int | None]) -> None:
        self._waiting = list(where)

    @property
    def waiting(self) -> int | None:
        """Where the CPU whose turn it is waits for an interrupt."""
        return self._waiting[self._engine.cpu]

    @waiting.setter
    def waiting(self, pc: int | None) -> None:
        self._waiting[self._engine.cpu] = pc

    def _look(self) -> None:
        """Whether the CPU whose turn it is waits: somebody may have sent it elsewhere."""
        if self.waiting is not None and self.waiting != self._machine.pc:
            self.waiting = None

    def _can_run(self, cpu: Cpu) -> bool:
        return cpu.on and cpu.number not in self.held and (
            self._waiting[cpu.number] is None or cpu.wakes() or bool(cpu.posted))

    def _next(self) -> tuple[Cpu | None, bool]:
        """Who can run next, and whether that begins a new round."""
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
        """The CPU's turn is over: give it to the next that can run; whether there is one."""
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
        """It is a CPU's turn from here on.

        :param longest: instructions of the longest turn before it in the round.
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
        """The CPU has executed a wait instruction, behind which ``pc`` is."""
        self.waiting = pc
        cpu = self._machine.cpus[self._engine.cpu]
        cpu.masked = self.several and cpu.masks_interrupts()

    def woke(self) -> None:
        """The CPU's wait is over.  Where it was none, as in a loop that waits for another CPU, its
        turn is over, too."""
        if self.several and self._turns.begun:
            self._turns.end_here()

    def bear(self, times: int) -> None:
        """The CPU may say so often that it waits for another one before its turn is over."""
        self._turns.patience = times, NEVER

    @property
    def borne(self) -> bool:
        """Whether it has said so as often as it may."""
        return self._turns.patience[0] == 0

    def changed(self) -> None:
        """An interrupt line of some CPU has changed, or something was posted."""
        if self.several:
            self._turns.others_may_run()

    def new_round(self) -> None:
        """All wait: time that passes now passes for all."""
        if self.several:
            self._turns.give(self._engine.cpu, 0)

    def anybody(self) -> bool:
        """Whether some CPU has an interrupt to take."""
        if not self.several:
            return self._machine.cpus[0].interrupt_pending()
        return any(map(self._can_run, self._machine.cpus))

    def off(self) -> None:
        """The CPU whose turn it is runs no more: it was switched off."""
        self._machine.cpus[self._engine.cpu].on = False
        self._turns.end_here()
        self._turns.others_may_run()
        self._machine.interrupts_changed()

    @property
    def nobody(self) -> bool:
        """Whether all CPUs are off, or wait with interrupts masked."""
        return not any(cpu.on and not (cpu.masked and self._waiting[cpu.number] is not None)
                       for cpu in self._machine.cpus)

    def each(self) -> Iterator[Cpu]:
        """Have the registers of each CPU in the engine, one behind the other, to be looked at."""
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

    # -- its part of the machine's state ----------------------------------------------------------

    def state(self) -> dict[str, Any] | None:
        """What there is beside the state of the CPU whose turn it is; None: there is no other."""
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
        """:param own: the state of the CPU whose turn it is; ``waiting``: whether it waits.
        :raises ValueError: when it is no state of such a machine.
        """
        cpus = self._machine.cpus
        if not self.several:
            if state is not None:
                raise ValueError("a state of several CPUs")
            cpus[0].restore(own)
            self._waiting[0] = self._machine.pc if waiting else None
            return
        if state is None or len(state["cpus"]) != len(cpus):
            raise ValueError("a state of another number of CPUs")
        present = number(state["cpu"], len(cpus))
        for cpu, row in zip(cpus, state["cpus"], strict=True):
            self._turns.power_on(cpu.number)  # what is set may depend on what was there before
            cpu.restore(own if cpu.number == present else row["registers"])
            cpu.on, cpu.masked = bool(row["on"]), bool(row["masked"])
            cpu.posted = [number(value, 1 << 64) for value in row["posted"]]
            if len(cpu.posted) not in (0, 2):
                raise ValueError("a start of no kind")
            pc = self._machine.pc
            self._waiting[cpu.number] = pc if row["waiting"] else None
            self._turns.stands = bool(row["arrived"]), pc, False
        self._turns.look_at(present)
        began, end, longest, length = (number(value) for value in state["clock"])
        self._turns.clock = began, end, longest, length
        self.held = {number(one, len(cpus)) for one in state["held"]}
        left, said = (number(value, 1 << 64) for value in state["patience"])
        self._turns.patience = left, said
