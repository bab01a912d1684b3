"""Guest on Unicorn that D programs trace, with native access to guest state."""

from collections.abc import Callable

from dtrace.bpf._runtime import Runtime
from dtrace.bpf.layout import LONGEST_NAME
from dtrace.run.guest_state import GuestState
from dtrace.run.kernel_probes import KernelProbes
from dtrace.run.native_stacks import walk_kernel, walk_program
from dwarf.types import Types
from emu.machine.machine import Stop, StopReason
from emu.machine.running_thread import per_cpu, thread_of
from emu.unicorn.run_loop import Alarm
from emu.unicorn.running_thread import watch_threads
from kinst.probes.breakpoints import Breakpoints, NativeState


class UnicornGuest(GuestState):
    """Guest on Unicorn.

    :param stops: whether the workload stops when tracing ends.
    """

    def __init__(self, breakpoints: Breakpoints, probes: KernelProbes, types: Types | None,
                 stops: bool = True) -> None:
        super().__init__(probes, types, breakpoints.machine)
        self._breakpoints, self._emulated, self._stops = breakpoints, breakpoints.machine, stops
        self.state = NativeState(breakpoints.dispatcher, list(self._machine.arch.registers))

    @property
    def now(self) -> int:
        return int(self._emulated.engine.time)

    @property
    def time(self) -> int:
        return self._emulated.now

    @property
    def cpu(self) -> int:
        return self._emulated.cpu.number

    @property
    def thread(self) -> int:
        return thread_of(self._emulated)

    @property
    def per_cpu(self) -> int | None:
        return per_cpu(self._emulated)

    @property
    def frozen(self) -> bool:
        return bool(self._emulated.engine.frozen)

    @property
    def after(self) -> bool:
        return self._breakpoints.after

    def _attach(self, runtime: Runtime) -> None:
        machine = self._emulated
        watch_threads(machine)
        number = machine.cpu.model.registers[machine.guest.threads.per_cpu]
        runtime.attach(machine.engine, number, len(self._breakpoints.probes))

    def walk_natively(self, marked: bool) -> None:
        runtime, machine = self._runtime, self._machine
        assert runtime is not None
        walk_kernel(runtime, machine, self._walk, self.user_step, marked)
        frame = self._member("thread", machine.guest.threads.lists.frame)
        name = [self._member(*member) for member in machine.guest.members["execname"]]
        *_path, last = name
        if frame and last and None not in name and 0 < last[1] <= LONGEST_NAME:
            walk_program(runtime, machine, self.program_number, frame[0], last[1],
                         () if self._signals is None else self._signals.saved,
                         self.space_offsets)
        family = [self._member(*member) for member in machine.guest.members["ppid"]]
        if None not in family:
            process, parent, number = (place[0] for place in family if place is not None)
            runtime.know_family(process, number, parent)

    def begin(self) -> None:
        runtime, breakpoints = self._runtime, self._breakpoints
        assert runtime is not None
        breakpoints.dispatcher.act_by(runtime.firing_action(), runtime.take_failure)
        breakpoints.enable()

    def arm(self, due: int | None, ring: Callable[[], int | None]) -> None:
        self._emulated.alarm = None if due is None else Alarm(due, ring)

    def end(self) -> None:
        assert self._runtime is not None
        self._emulated.alarm = None
        self._breakpoints.disable()
        self._breakpoints.dispatcher.act_by(None, self._runtime.take_failure)

    def stop(self) -> None:
        """Stop the machine before its next basic block."""
        if self._stops:
            self._emulated.request_stop(Stop(StopReason.INTERRUPTED, 0))
