"""A machine that runs: boots, calls, turns, and what ends a run."""

from collections.abc import Callable, Collection

from emu.elf.image import Image
from emu.host.errors import MachineError, MemoryAccessError
from emu.machine.machine import Stop, Until
from emu.unicorn.cpu import CpuModel
from emu.unicorn.run_loop import Alarm, RunLoop
from emu.unicorn.schedule import Schedule
from emu.unicorn.wired_machine import WiredMachine

MAX_COUNTS = 1 << 16  # pieces of code of which the instructions are known


class RunningMachine(WiredMachine):
    """A machine that can run, and cannot go back."""

    alarm: Alarm | None = None  # somebody who looks: no part of the machine's state
    patches = 0  # how many have patched it

    def __init__(self, image: Image, memory: int = 512 << 20) -> None:
        super().__init__(image, memory)
        self.schedule = Schedule(self)

    def make_engine(self, model: CpuModel, pc: int) -> None:
        super().make_engine(model, pc)
        self._loop = RunLoop(self)
        self.events.notify = self._loop.deadline_changed

    @property
    def handlers(self) -> dict[int, Callable[[], None]]:
        """What ``handle`` was told: the CPU's own instructions that the model does not carry out as
        they are, among others."""
        return dict(self._loop.handlers)

    def handle(self, address: int, handler: Callable[[], None] | None) -> None:
        """Call ``handler`` before the guest executes ``address``, in every run; None: no more.

        :raises MachineError: for too many; then it is not called.
        """
        self._loop.handle(address, handler)

    def boot(self) -> None:
        """Play the boot loader: the machine is then about to execute the kernel's first
        instruction."""
        self.guest.boot.load(self, self.image)
        self._loaded()

    def place_image(self) -> None:
        """Put the image into memory and map it where it was linked, without starting it: its leaf
        functions can be called then."""
        self.guest.boot.place(self, self.image)
        for module in self.image.modules:
            self.write(module.address, module.memory)
        self._loaded()

    def _loaded(self) -> None:
        self.cpu.watch(self.image)
        self._watch_panic()

    def _watch_panic(self) -> None:
        panic = self.image.symbols.find(self.guest.boot.panic)
        if panic is not None:
            self.handle(panic.address, self._loop.panicked)

    def type(self, data: bytes) -> None:
        if self.runner is not None and self.running:
            raise MachineError("the machine is recorded: keys are not typed while it runs")
        self._entered("type", "", data)
        self.board.type(data)

    @property
    def keys_left(self) -> bool:
        """Whether the guest has not read all that was typed."""
        return self.board.keys_left

    def give_turn(self, cpu: int, held: Collection[int] = (), patience: int = 0) -> None:
        """It is a CPU's turn from here on, and a new round.

        :param held: CPUs that have no turn before the next one is given from outside.
        :param patience: so often the CPU may say that it waits for another one (PAUSE), and its
            turn goes on; less than 2^32.
        :raises MachineError: while it runs, or when there is no such CPU.
        """
        if self.running:
            raise MachineError("the machine is running: a turn can be given when it has stopped")
        if not 0 <= cpu < len(self.cpus):
            raise MachineError(f"there is no CPU {cpu}")
        if not self.cpus[cpu].on:
            raise MachineError(f"CPU {cpu} is off")
        mask = sum(1 << one for one in set(held))
        if cpu in held or mask >> len(self.cpus):
            raise MachineError("a turn of a CPU that is held, or of which there is none")
        self._entered("turn", str(cpu), mask.to_bytes(1, "little") + patience.to_bytes(4, "little"))
        if self.schedule.several:
            self.schedule.held = set(held)
            self.schedule.give(cpu)
            self.schedule.bear(patience)

    def ring_timer(self) -> None:
        """The timer of the CPU whose turn it is rings now, whenever it was to: its interrupt is
        taken before the next instruction, or as soon as the guest lets it.

        :raises MachineError: while it runs.
        """
        if self.running:
            raise MachineError("the machine is running: its timers ring when they are to")
        self._entered("timer", str(self.cpu.number), b"")
        self.engine.synchronize()
        self.cpu.ring_timer()
        self.interrupts_changed()

    def switch_off(self) -> None:
        """The CPU whose turn it is executes nothing more.

        :raises MachineError: while it runs, or when it is the only one.
        """
        if self.running or not self.schedule.several:
            raise MachineError("the CPU cannot be switched off here")
        self._entered("off", str(self.cpu.number), b"")
        self.schedule.off()

    def step(self) -> None:
        self.run(Until(instructions=self.instructions + 1))

    @property
    def panics(self) -> bool:
        """Whether the guest has begun to panic, and is not done with it."""
        return self._loop.panicking is not None

    def request_stop(self, stop: Stop) -> None:
        """End the run before the next block; for devices and observers."""
        self._loop.request_stop(stop)

    def is_stop(self, address: int) -> bool:
        """Whether the run in progress ends before it executes ``address``."""
        return self._loop.is_stop(address)

    def output(self, data: int) -> None:
        """Console: one byte from the serial port."""
        self.console_sink(data)
        self._loop.heard(data)

    def _count(self, code: bytes) -> int:
        """Guest instructions in a piece of code."""
        known = self._counts.get(code)
        if known is None:
            if len(self._counts) >= MAX_COUNTS:
                self._counts.clear()
            known = self._counts[code] = len(self.arch.split(code))
        return known

    def left_at(self, pc: int) -> int:
        """An exception that is no probe's left the block in progress before ``pc``; for boards.

        :return: where it happened for the guest: not in a trampoline, but at what that displaces.
        """
        if self.engine.frozen:
            return self.engine.detour.abandon(pc)
        self.settle(pc)
        return pc

    def settle(self, pc: int) -> None:
        """The block in progress was left before ``pc``, which was not executed."""
        begin, size, count = self.engine.block
        if count and begin < pc <= begin + size:
            try:
                code = self.read(begin, pc - begin)
            except MemoryAccessError:
                if pc != begin + size:
                    raise
                self.engine.settle()  # its last instruction has taken the mapping away
                return
            # The model may take for one what the decoder takes for several; and it counts what is
            # no instruction, at a block's end, but with no bytes.
            executed = min(self._count(code), count)
            if executed:
                self.engine.learn_prefix(code, executed)
            self.engine.settle(executed)
        elif count and pc == begin:
            self.engine.settle(0)
        else:
            self.engine.settle()

    def run(self, until: Until) -> Stop:
        """Run until ``until`` or the guest ends the run; an ``alarm`` rings in between.

        :raises MachineError: when called while the machine runs, or for too many addresses.
        """
        start = len(self.console.text)
        if self.runner is None:
            return self._loop.run(until, start)
        return self.runner.run(until, lambda part: self._loop.run(part, start))

    @property
    def trap_stack(self) -> int:
        """The top of the stack that breakpoints come on; 0: on the interrupted one."""
        name = self.guest.traps.trap_stack
        return self.symbol(name).address if name else 0

    def at_breakpoint(self, address: int) -> bool:
        """A breakpoint instruction was executed; for boards.

        :return: whether it is one of the provider's: the clock is frozen then.
        """
        ours = address in self.breakpoints
        if ours:
            self.engine.detour.freeze(self.trap_stack or self.sp)
        return ours

    @property
    def waiting(self) -> bool:
        """Whether the CPU waits for an interrupt."""
        return self.schedule.waiting is not None and self.schedule.waiting == self.pc

    @property
    def running(self) -> bool:
        return self._loop.running or self.engine.running

    def _between_instructions(self, why: str) -> None:
        if self.engine.frozen or self.engine.running:
            raise MachineError(f"the machine is in the middle of an instruction: {why}")
