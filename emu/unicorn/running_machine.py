"""Running a machine: boot, inputs, turns of the CPUs, and the end of each run."""

from collections.abc import Callable, Collection

from emu.elf.image import Image
from emu.host.errors import MachineError, MemoryAccessError
from emu.machine.events import NEVER
from emu.machine.machine import Stop, Until
from emu.network.link import MAX_FRAME, MIN_FRAME
from emu.unicorn.cpu import CpuModel
from emu.unicorn.run_loop import Alarm, RunLoop
from emu.unicorn.schedule import Schedule
from emu.unicorn.wired_machine import WiredMachine

MAX_COUNTS = 1 << 16  # maximum number of pieces of code whose instruction counts are cached


class RunningMachine(WiredMachine):
    """A machine that can run, but cannot return to an earlier state."""

    alarm: Alarm | None = None  # an observer's alarm, not part of the machine's state
    patches = 0  # serial number of the set of breakpoints in memory, or 0 without breakpoints

    def __init__(self, image: Image, memory: int = 512 << 20) -> None:
        super().__init__(image, memory)
        self.schedule = Schedule(self)

    def make_engine(self, model: CpuModel, pc: int) -> None:
        """Create the Unicorn engine and the run loop.

        :param pc: Unicorn's number of the program counter.
        """
        super().make_engine(model, pc)
        self._loop = RunLoop(self)
        self.events.notify = self._loop.deadline_changed

    @property
    def handlers(self) -> dict[int, Callable[[], None]]:
        """Handlers keyed by address, including those for instructions unknown to the CPU model."""
        return dict(self._loop.handlers)

    def handle(self, address: int, handler: Callable[[], None] | None) -> None:
        """Call ``handler`` each time before the guest executes ``address``; None removes a handler.

        :raises MachineError: for too many stop addresses; the handler is not installed then.
        """
        self._loop.handle(address, handler)

    def boot(self) -> None:
        """Load the kernel as the boot loader does, ready to execute its first instruction."""
        self.guest.boot.load(self, self.image)
        self._loaded()

    def place_image(self) -> None:
        """Load and map the image at its link address without booting it.

        Its leaf functions can then be called.
        """
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
        """Type bytes at the console.

        :raises MachineError: while a recorded machine is running.
        """
        self._stopped_if_recorded("type keys")
        self._entered("type", "", data)
        self.board.type(data)

    def _stopped_if_recorded(self, what: str) -> None:
        """Check that a recorded machine is stopped.

        :raises MachineError: if it is running.
        """
        if self.runner is not None and self.running:
            raise MachineError(f"the machine is being recorded: {what} only while it is stopped")

    def type_second(self, data: bytes) -> None:
        """Type bytes at the second serial port.

        :raises MachineError: if there is no such port, or while a recorded machine is running.
        """
        if self.board.second is None:
            raise MachineError("the machine has no second serial port")
        self._stopped_if_recorded("type keys")
        self._entered("type", "1", data)
        self.board.second.type(data)

    def insert_files(self) -> None:
        """Insert the content of the disk with files (``BootOptions.files``).

        :raises MachineError: if there is no such disk; while the machine is recorded.
        """
        if self.board.files is None:
            raise MachineError("the machine has no disk whose content can be inserted")
        if self.runner is not None:
            raise MachineError("the machine is being recorded: insert files before the recording")
        self.board.files.insert()

    def send_frame(self, when: int, frame: bytes) -> None:
        """Let an Ethernet frame arrive at the network device.

        :param when: virtual time of the arrival in nanoseconds; a time in the past means now.
        :raises MachineError: if there is no such device, or the frame does not have the size of an
            Ethernet frame; while a recorded machine is running.
        """
        if self.board.network is None:
            raise MachineError("the machine has no network device")
        if not MIN_FRAME <= len(frame) <= MAX_FRAME or not 0 <= when < NEVER:
            raise MachineError(f"a frame of {len(frame)} bytes cannot arrive at {when}: an "
                               f"Ethernet frame has {MIN_FRAME} to {MAX_FRAME} bytes, and a time "
                               "is a number of nanoseconds")
        self._stopped_if_recorded("send frames")
        self._entered("frame", "", when.to_bytes(8, "little") + frame)
        self.board.network.schedule(when, frame)

    @property
    def keys_left(self) -> bool:
        """Whether the guest has not yet read all typed bytes."""
        return self.board.keys_left

    def give_turn(self, cpu: int, held: Collection[int] = (), patience: int = 0) -> None:
        """Give the turn to a CPU, and begin a new round.

        :param held: CPUs that get no turn until the next call.
        :param patience: how often the CPU may signal that it waits for another CPU (PAUSE) before
            its turn ends; less than 2^32.
        :raises MachineError: while the machine is running, or if the CPU does not exist, is off or
            is held.
        """
        if self.running:
            raise MachineError("the CPU to run next can be chosen only while the machine is "
                               "stopped")
        if not 0 <= cpu < len(self.cpus):
            raise MachineError(f"CPU {cpu} does not exist")
        if not self.cpus[cpu].on:
            raise MachineError(f"CPU {cpu} is off")
        mask = sum(1 << held_number for held_number in set(held))
        if cpu in held or mask >> len(self.cpus):
            raise MachineError("every held CPU must exist, and the CPU to run next must not be "
                               "held")
        self._entered("turn", str(cpu), mask.to_bytes(1, "little") + patience.to_bytes(4, "little"))
        if self.schedule.several:
            self.schedule.held = set(held)
            self.schedule.give(cpu)
            self.schedule.bear(patience)

    def ring_timer(self) -> None:
        """Make the timer of the current CPU expire now.

        Its interrupt is taken before the next instruction, or as soon as the guest allows it.

        :raises MachineError: while the machine is running.
        """
        if self.running:
            raise MachineError("a timer can be made to expire only while the machine is stopped")
        self._entered("timer", str(self.cpu.number), b"")
        self.engine.synchronize()
        self.cpu.ring_timer()
        self.interrupts_changed()

    def switch_off(self) -> None:
        """Switch off the current CPU.

        :raises MachineError: while the machine is running, or if it has only one CPU.
        """
        if self.running or not self.schedule.several:
            raise MachineError("a CPU can be switched off only while the machine is stopped, and "
                               "only if other CPUs exist")
        self._entered("off", str(self.cpu.number), b"")
        self.schedule.off()

    def step(self) -> None:
        """Execute one instruction."""
        self.run(Until(instructions=self.instructions + 1))

    @property
    def panics(self) -> bool:
        """Whether a panic of the guest is in progress."""
        return self._loop.panicking is not None

    def request_stop(self, stop: Stop) -> None:
        """End the run before the next block, on behalf of a device or an observer."""
        self._loop.request_stop(stop)

    def is_stop(self, address: int) -> bool:
        """Return whether the run in progress ends before it executes ``address``."""
        return self._loop.is_stop(address)

    def output(self, data: int) -> None:
        """Write one byte from the serial port to the console."""
        self.console_sink(data)
        self._loop.heard(data)

    def _count(self, code: bytes) -> int:
        """Return the number of guest instructions in a piece of code."""
        count = self._counts.get(code)
        if count is None:
            if len(self._counts) >= MAX_COUNTS:
                self._counts.clear()
            count = self._counts[code] = len(self.arch.split(code))
        return count

    def left_at(self, pc: int) -> int:
        """Correct the instruction count after an exception has left a block before ``pc``.

        Exceptions at breakpoints of probes are handled elsewhere.

        :return: address of the exception for the guest: if ``pc`` is in a trampoline, that of the
            displaced instruction.
        """
        if self.engine.frozen:
            return self.engine.detour.abandon(pc)
        self.settle(pc)
        return pc

    def settle(self, pc: int) -> None:
        """Correct the instruction count after the CPU has left the current block before ``pc``."""
        begin, size, count = self.engine.block
        if count and begin < pc <= begin + size:
            try:
                code = self.read(begin, pc - begin)
            except MemoryAccessError:
                if pc != begin + size:
                    raise
                self.engine.settle()  # the last instruction removed the mapping of its block
                return
            # The CPU model may count several decoded instructions as one.  At the end of a block it
            # also counts an invalid instruction, which has no bytes here.
            executed = min(self._count(code), count)
            if executed:
                self.engine.learn_prefix(code, executed)
            self.engine.settle(executed)
        elif count and pc == begin:
            self.engine.settle(0)
        else:
            self.engine.settle()

    def run(self, until: Until) -> Stop:
        """Run until a condition of ``until`` holds or the guest ends the run, and call due alarms.

        :raises MachineError: if the machine is already running, or for too many stop addresses.
        """
        start = len(self.console.text)
        self._loop.begins()
        if self.runner is None:
            return self._loop.run(until, start)
        return self.runner.run(until, lambda part: self._loop.run(part, start))

    @property
    def trap_stack(self) -> int:
        """Top of the stack for breakpoint exceptions, or 0 if they use the interrupted stack."""
        name = self.guest.traps.trap_stack
        return self.symbol(name).address if name else 0

    def at_breakpoint(self, address: int) -> bool:
        """Handle an executed breakpoint, and freeze the clock if the breakpoint is the provider's.

        :return: whether the breakpoint is the provider's.
        """
        ours = address in self.breakpoints
        if ours:
            self.engine.detour.freeze(self.trap_stack or self.sp)
        return ours

    @property
    def waiting(self) -> bool:
        """Whether the current CPU waits for an interrupt."""
        return self.schedule.waiting is not None and self.schedule.waiting == self.pc

    @property
    def running(self) -> bool:
        """Whether the machine is running, which is true in handlers and probe callbacks."""
        return self._loop.running or self.engine.running

    def _between_instructions(self, why: str) -> None:
        if self.engine.frozen or self.engine.running:
            raise MachineError(f"the machine is in the middle of an instruction: {why}")
