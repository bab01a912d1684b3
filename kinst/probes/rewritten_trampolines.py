"""Trampolines that are rewritten at each firing, as FreeBSD's kinst does on amd64.

Each thread has its own trampoline or, as a deliberate mistake, all threads share one.
The guest itself executes the trap and the trampoline, so that another CPU or thread may run in
between.
"""

from collections.abc import Callable
from typing import ClassVar

from emu.machine.machine import Machine
from kinst.probes.probed_code import ProbeError
from kinst.probes.seam_breakpoints import SeamBreakpoints, Site
from kinst.relocation.trampoline import SLOT
from kinst.relocation.trap import CpuState
from kinst.relocation.verdict import Copy, Rewrite

PER_THREAD, SHARED = "thread", "shared"
MOST_OWNERS = 16


class RewrittenTrampolines(SeamBreakpoints):
    """The probes of a machine whose trampolines are rewritten at each firing.

    :param owner: returns the number of the thread or CPU whose trampoline a firing uses; None: all
        share one trampoline.
    :param written: called after a trampoline was written, with its virtual and physical address,
        the site, and the trampoline's content.
    :param reached: called with a trampoline's address before the trampoline is executed.
    :raises ProbeError: on an architecture with one trampoline for each probe.
    """

    more_slots: ClassVar[int] = MOST_OWNERS

    def __init__(self, machine: Machine, owner: Callable[[], int] | None,
                 written: Callable[[int, int, Site, bytes], None],
                 reached: Callable[[int], None]) -> None:
        super().__init__(machine)
        if not self.trap.segment:
            raise ProbeError(f"{machine.arch.name}: trampolines cannot be rewritten at each "
                             "firing: this architecture has one trampoline for each probe")
        self._owner, self._written, self._reached = owner, written, reached
        self._slots: dict[int, int] = {}
        self._frame = self._return = 0
        self.trapped = self._trapped

    def enable(self) -> None:
        """Write the trampolines and the breakpoints, and set the seam."""
        super().enable()
        assert self._area is not None
        self._return = self._area.seam + SLOT // 2
        self.machine.write_physical(self._area.physical + self._return - self._area.base,
                                    self.trap.frame_return)

    def begin(self) -> None:
        """Forget which threads own trampolines, after a restore to a state before any firing."""
        self._slots.clear()

    @property
    def sites(self) -> list[Site]:
        """The sites that have breakpoints."""
        return list(self._sites.values())

    @property
    def area(self) -> range:
        """Address range of the trampolines and of the seam."""
        assert self._area is not None
        return range(self._area.base, self._area.base + self._area.size)

    def _trapped(self, _address: int, frame: int) -> None:
        self._frame = frame

    def _leave(self, state: CpuState, pc: int, answer: int | None = None) -> None:
        """Enter a trampoline through the guest's exception return; other threads may run first."""
        if self._area is not None and self._area.base <= pc < self._area.base + self._area.size:
            self.trap.leave_by_frame(self.machine, self._frame, pc, self._return)
        else:
            super()._leave(state, pc, answer)

    def trampoline_of(self, site: Site) -> int:
        """Write the trampoline of the running thread for a site, and return its address.

        :raises ProbeError: for too many threads.
        """
        owner = 0 if self._owner is None else self._owner()
        slot = self._slots.get(owner)
        if slot is None:
            if len(self._slots) == MOST_OWNERS:
                raise ProbeError(f"more than {MOST_OWNERS} threads have hit breakpoints, and each "
                                 "needs a trampoline")
            slot = self._slots[owner] = self._next_slot + len(self._slots)
        assert self._area is not None
        at, physical = self._area.base + SLOT * slot, self._area.physical + SLOT * slot
        assert isinstance(site.verdict, Copy | Rewrite)
        after = site.address + len(site.code)
        body, _end = self.trap.trampoline(at, site.code, site.verdict, after)
        self.machine.write_physical(physical, body)
        self.machine.handle(at, lambda: self._reached(at))
        self._written(at, physical, site, body)
        return at
