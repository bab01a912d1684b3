"""Guest on QEMU that D programs trace through QEMU's gdb stub."""

import contextlib
import time
from collections.abc import Callable, Collection

from dtrace.bpf._runtime import OTHER_AFTER, OTHER_REGISTER, OTHER_RESULT, Runtime
from dtrace.run.guest_state import GuestState, TracingEnded
from dtrace.run.kernel_probes import KernelProbes
from dwarf.types import Types
from emu.host.errors import KinstError, MachineError, MemoryAccessError
from emu.qemu.machine import QemuMachine
from kinst.probes.breakpoints import NativeState
from kinst.probes.probe_table import Probe
from kinst.probes.seam_breakpoints import SeamBreakpoints
from kinst.relocation.trap import CpuState


class QemuGuest(GuestState):
    """Guest on QEMU; its time is the host time since this object was created."""

    def __init__(self, machine: QemuMachine, breakpoints: SeamBreakpoints, probes: KernelProbes,
                 types: Types | None) -> None:
        super().__init__(probes, types, machine)
        self._breakpoints, self._qemu = breakpoints, machine
        self._began = time.monotonic_ns()

    @property
    def now(self) -> int:
        return time.monotonic_ns() - self._began

    @property
    def time(self) -> int:
        return self.now

    @property
    def cpu(self) -> int:
        return 0

    @property
    def per_cpu(self) -> int | None:
        """Return None instead of the address of the CPU's ``struct pcpu``.

        It is used to compute guest time, and on QEMU only host time is known.
        """
        return None

    def unknown(self, names: Collection[str]) -> dict[str, str]:
        reasons = super().unknown(names)
        if "vtimestamp" in names and self._machine.guest.threads.clock is not None:
            reasons["vtimestamp"] = "only the guest itself can read QEMU's counter"
        return reasons

    def _attach(self, runtime: Runtime) -> None:
        runtime.attach_other(self, len(self._breakpoints.probes))

    def walk_natively(self, marked: bool) -> None:
        """Do nothing, because the guest's registers and memory are in the QEMU process."""

    def memory(self, address: int, size: int) -> bytes | None:
        """Return guest memory for the runtime, or None if no memory is mapped there."""
        try:
            return self._machine.read(address, size)
        except MemoryAccessError:
            return None

    def interrupted(self, number: int) -> int:
        """Return the argument, result, ``after`` flag or register that a number selects."""
        arch = self._machine.arch
        if number >= OTHER_REGISTER:
            return self.state.get(list(arch.registers)[number - OTHER_REGISTER])
        if number == OTHER_AFTER:
            return int(self.after)
        return self.state.get(arch.result if number == OTHER_RESULT else arch.arguments[number])

    @property
    def after(self) -> bool:
        return self._breakpoints.after

    def begin(self) -> None:
        self._breakpoints.fire = self._fire
        self._breakpoints.enable()

    def _fire(self, probe: Probe, state: CpuState | NativeState) -> None:
        assert self._runtime is not None
        self._qemu.drain()  # first print the console output that precedes the firing
        self.state = state
        self._runtime.fire_other(probe.id - 1, self.now)

    def arm(self, due: int | None, ring: Callable[[], int | None]) -> None:
        if due is not None:
            raise KinstError("--machine qemu: profile and tick probes need virtual time, which "
                             "QEMU does not have; use --machine unicorn")

    def end(self) -> None:
        with contextlib.suppress(MachineError):  # QEMU may have exited already
            self._breakpoints.disable()

    def stop(self) -> None:
        """Stop the workload at the current firing, by raising ``TracingEnded``."""
        raise TracingEnded("tracing has ended")
