"""The deterministic machine on Unicorn, with its snapshots, marks and digests."""

import contextlib
import hashlib
from collections.abc import Callable, Container, Iterator

from emu.devices.device import Device
from emu.host.errors import MachineError
from emu.machine.machine import Stop, nothing_displaced
from emu.unicorn import mark
from emu.unicorn.guest_memory import PAGE
from emu.unicorn.mark import StateMark
from emu.unicorn.running_machine import RunningMachine
from emu.unicorn.state import MachineState, Snapshot
from emu.unicorn.wired_machine import NO_BREAKPOINTS


@contextlib.contextmanager
def _keeping() -> Iterator[None]:
    """Raise ``MachineError`` if saving a state in the ``with`` block causes an ``OSError``.

    :raises MachineError: if the host has no memory for the state.
    """
    try:
        yield
    except OSError as error:
        raise MachineError(f"cannot save the state in memory: {error.strerror}") from None


class UnicornMachine(RunningMachine):
    """Deterministic machine; its runs depend only on the image and the inputs.

    :param image: the kernel; its architecture chooses the board.
    :param memory: bytes of RAM, a multiple of 2 MiB.
    :raises MachineError: if the memory size is not possible.
    """

    _patch_serial = 0

    def state(self) -> MachineState:
        """Return the complete state except memory.

        :raises MachineError: while a probe is firing.
        """
        self._between_instructions("its state cannot be saved now")
        with self.unrecorded():
            cpu = self.cpu.state()
            turns = self.schedule.state()
        return MachineState(
            cpu, self.board.state(), self.events.state(), self.instructions,
            self.engine.canonical, self.engine.skew, self.engine.stands_at(self.pc),
            self.waiting, self._loop.asked, self._loop.panicking, bytes(self.console.text), turns,
        )

    def restore_state(self, state: MachineState) -> None:
        """Restore the complete state except memory, which must already be in place."""
        self.engine.flush_tlb()
        self.engine.flush_translations()
        self.engine.detour.thaw()
        self.engine.instructions = state.instructions
        self.engine.canonical = state.canonical
        self.engine.skew = state.skew
        self.schedule.restore(state.turns, state.cpu, state.waiting)
        self.board.restore(state.devices)
        self.events.restore(state.timers)
        pc = self.pc
        if state.arrived:
            self.engine.resume(pc)
        self._loop.restore(state, pc)
        self.console.text[:] = state.console
        self._watch_panic()
        self.interrupts_changed()

    def snapshot(self) -> Snapshot:
        """Save the current state in memory as a copy-on-write snapshot.

        :raises MachineError: if the host has no memory for it.
        """
        state = self.state()
        with _keeping():
            return Snapshot(state, self.memory_part.snapshot(), self.patches)

    def patch(self, breakpoints: Container[int], displaced: Callable[[int], bytes]) -> None:
        """Register the breakpoints that a provider puts into memory.

        :param breakpoints: addresses of the breakpoints.
        :param displaced: returns the original bytes under a breakpoint.
        :raises MachineError: if other breakpoints are registered.
        """
        if self.patches:
            raise MachineError("other probes are already enabled on this machine")
        self._patch_serial += 1
        self.patches = self._patch_serial
        self.engine.patched = True
        self.breakpoints, self.displaced, self.original = breakpoints, displaced, displaced

    def unpatch(self) -> None:
        """Unregister the breakpoints, which are no longer in memory."""
        self.patches = 0
        self.engine.patched = False
        self.breakpoints = NO_BREAKPOINTS
        self.displaced = self.original = nothing_displaced

    def restore(self, snapshot: Snapshot) -> None:
        """Restore a state saved by ``snapshot``.

        :raises MachineError: if probes were enabled or disabled since then, because breakpoints are
            part of memory; while the machine is running or being recorded.
        """
        self._may_go_back(snapshot.patches)
        self.memory_part.restore(snapshot.memory)
        self.restore_state(snapshot.state)

    def _may_go_back(self, patches: int) -> None:
        if self.engine.running:
            raise MachineError("the machine is running: stop it before restoring a snapshot")
        if self.runner is not None:
            raise MachineError("the machine is being recorded: it cannot return to a saved state")
        if patches != self.patches:
            raise MachineError("cannot restore the snapshot: probes were enabled or disabled after "
                               "it was taken")

    def mark(self) -> StateMark:
        """Save the current state for a fast return with ``back_to``.

        :raises MachineError: in the middle of an instruction, or if the host has no memory for it.
        """
        self._between_instructions("its state cannot be marked now")
        with _keeping():
            return mark.keep(self)

    def back_to(self, kept: StateMark) -> None:
        """Restore a state saved by ``mark``.

        :raises MachineError: under the same conditions as ``restore``.
        """
        self._may_go_back(kept.patches)
        self.engine.detour.thaw()
        mark.go_back(self, kept)

    @property
    def devices(self) -> dict[str, Device]:
        """Devices of the board, keyed by name."""
        return self.board.devices

    def keep_loop(self) -> tuple[Stop | None, tuple[int, int] | None]:
        """Return the run loop's part of the state, for a ``StateMark``."""
        return self._loop.keep()

    def put_loop_back(self, kept: tuple[Stop | None, tuple[int, int] | None]) -> None:
        """Restore the state returned by ``keep_loop``."""
        self._loop.put_back(kept)

    def digest(self) -> str:
        """Return the SHA-256, in hex digits, of memory, CPUs, devices, clock and console output."""
        h = hashlib.sha256()
        memory, zero = self.memory_part, bytes(PAGE)
        for first, count in memory.used():
            for page in range(first, first + count):
                data = memory.page(page)
                if data != zero:
                    h.update(page.to_bytes(8, "little"))
                    h.update(data)
        state = self.state()
        h.update(repr(state).encode())
        if state.turns is not None:
            h.update(repr(state.turns).encode())
        return h.hexdigest()
