"""The machine on Unicorn.  Architectures are in ``Board``, its runs in ``RunLoop``."""

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
    """Keep a state in the host's memory.

    :raises MachineError: when there is no room for it.
    """
    try:
        yield
    except OSError as error:
        raise MachineError(f"this state cannot be kept in memory: {error.strerror}") from None


class UnicornMachine(RunningMachine):
    """A deterministic machine: its run is a function of the image and its input.

    :param image: the kernel; its architecture chooses the board.
    :param memory: bytes of RAM, a multiple of 2 MiB.
    :raises MachineError: for an impossible memory size.
    """

    _patch_serial = 0

    def state(self) -> MachineState:
        """Everything but memory.

        :raises MachineError: in the middle of a firing.
        """
        self._between_instructions("its state is not the guest's")
        with self.unrecorded():
            cpu = self.cpu.state()
            turns = self.schedule.state()
        return MachineState(
            cpu, self.board.state(), self.events.state(), self.instructions,
            self.engine.canonical, self.engine.skew, self.engine.stands_at(self.pc),
            self.waiting, self._loop.asked, self._loop.panicking, bytes(self.console.text), turns,
        )

    def restore_state(self, state: MachineState) -> None:
        """Everything but memory, which must be in place already."""
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
        """Keep the present state, in memory, copy-on-write.

        :raises MachineError: when the host has no memory for it.
        """
        state = self.state()
        with _keeping():
            return Snapshot(state, self.memory_part.snapshot(), self.patches)

    def patch(self, breakpoints: Container[int], displaced: Callable[[int], bytes]) -> None:
        """Breakpoints are in memory from now on, at the addresses the container holds.

        :param displaced: the bytes under one of them.
        :raises MachineError: when there are others already.
        """
        if self.patches:
            raise MachineError("other probes are enabled on this machine")
        self._patch_serial += 1
        self.patches = self._patch_serial
        self.breakpoints, self.displaced, self.original = breakpoints, displaced, displaced

    def unpatch(self) -> None:
        """They are gone."""
        self.patches = 0
        self.breakpoints = NO_BREAKPOINTS
        self.displaced = self.original = nothing_displaced

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a state kept by ``snapshot``.

        :raises MachineError: when probes were enabled or disabled since: their breakpoints are part
            of memory.
        """
        self._may_go_back(snapshot.patches)
        self.memory_part.restore(snapshot.memory)
        self.restore_state(snapshot.state)

    def _may_go_back(self, patches: int) -> None:
        if self.engine.running:
            raise MachineError("the machine is running: a snapshot cannot be restored here")
        if self.runner is not None:
            raise MachineError("the machine is recorded: it cannot go back")
        if patches != self.patches:
            raise MachineError("probes were enabled or disabled since the snapshot was taken")

    def mark(self) -> StateMark:
        """Keep the present state, to go back to it quickly (``back_to``).

        :raises MachineError: in the middle of an instruction; when the host has no memory for it.
        """
        self._between_instructions("it is not marked here")
        with _keeping():
            return mark.keep(self)

    def back_to(self, kept: StateMark) -> None:
        """Go back to a state kept by ``mark``.

        :raises MachineError: as ``restore`` does.
        """
        self._may_go_back(kept.patches)
        self.engine.detour.thaw()
        mark.go_back(self, kept)

    @property
    def devices(self) -> dict[str, Device]:
        """The board's, by their names."""
        return self.board.devices

    def keep_loop(self) -> tuple[Stop | None, tuple[int, int] | None]:
        """What the run loop remembers of the guest, for a ``StateMark``."""
        return self._loop.keep()

    def put_loop_back(self, kept: tuple[Stop | None, tuple[int, int] | None]) -> None:
        self._loop.put_back(kept)

    def digest(self) -> str:
        """SHA-256 over memory, CPU, devices, clock and console output."""
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
