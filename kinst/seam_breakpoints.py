"""Breakpoints on a machine whose CPU takes its exceptions by itself.

The breakpoint is in guest memory, the CPU goes through the guest's own vectors, the kernel builds
its trap frame and comes to the seam, ``dtrace_invop_jump_addr``; there the machine stops, and the
verdicts answer.  Nothing is frozen, and the trap leaves on the stack what it leaves.
"""

from collections.abc import Callable
from dataclasses import dataclass

from emu.machine import Machine
from kinst.probe_table import Probe, ProbeError, ProbeTable
from kinst.trampoline import RESERVED, SLOT, Trampolines
from kinst.trap import SEAM, CpuState
from kinst.verdict import Copy, Refuse, Rewrite, Verdict


@dataclass(frozen=True)
class Site:
    """A patched instruction.

    :param trampoline: the address of its trampoline; 0: it is emulated.
    """

    address: int
    code: bytes
    verdict: Verdict
    numbers: tuple[int, ...]
    trampoline: int


class SeamBreakpoints(ProbeTable):
    """All probes of a machine.

    :param fire: called at every firing, with the interrupted registers.
    :param trapped: called at the seam with the breakpoint's address (also a second one's) and the
        trap frame's.
    """

    def __init__(
        self, machine: Machine, fire: Callable[[Probe, CpuState], None] | None = None,
        trapped: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__(machine)
        self.fire, self.trapped = fire, trapped
        self._sites: dict[int, Site] = {}
        self._seconds: dict[int, Site] = {}  # address of the second breakpoint -> site
        self._area: Trampolines | None = None
        self._saved_mask = self._scratch = self._scratch_value = 0

    def enable(self) -> None:
        """Write the trampolines, the breakpoints, and set the seam.

        :raises ProbeError: when this kernel has no seam, or its code has changed.
        """
        machine, trap = self.machine, self.trap
        seam = machine.image.symbols.find(SEAM)
        if seam is None:
            raise ProbeError(f"{machine.image.path}: has no '{SEAM}': built without DTrace hooks")
        found: dict[int, list[int]] = {}
        for number in range(len(self.probes)):
            found.setdefault(self.dispatcher.probe(number)[0], []).append(number)
        self._area = area = Trampolines(
            machine, machine.arch.entry_address(machine.image), trap.breakpoint(4),
            len(found))
        image = bytearray(machine.read_physical(area.physical, area.size))
        slot = RESERVED
        for address, numbers in found.items():
            code = self.probe(numbers[0]).instruction.code
            verdict = trap.classify(code, address)[1]
            assert not isinstance(verdict, Refuse)
            at = 0
            if isinstance(verdict, Copy | Rewrite):
                at = area.base + SLOT * slot
                body, second = trap.trampoline(at, code, verdict, address + len(code))
                image[SLOT * slot : SLOT * slot + len(body)] = body
                slot += 1
            site = self._sites[address] = Site(address, code, verdict, tuple(numbers), at)
            if at and trap.second_breakpoint:
                self._seconds[at + second] = site
            if machine.read(address, len(code)) != code:
                raise ProbeError(
                    f"{self.where(address)}: the code has changed since the probe was made")
        used = SLOT * slot
        machine.write_physical(area.physical, bytes(image[:used]))
        self.forget_text()
        for site in self._sites.values():
            machine.write_code(site.address, trap.breakpoint(len(site.code)))
        if trap.scratch and (word := machine.image.symbols.find(trap.scratch)):
            self._scratch, self._scratch_value = word.address, machine.read_u64(word.address)
        machine.write_u64(seam.address, area.seam)
        machine.handle(area.seam, self._seam)
        self.enabled = True

    def disable(self) -> None:
        """Put everything back: code, seam, page tables."""
        if self._area is None:
            return
        machine = self.machine
        machine.handle(self._area.seam, None)
        if self.enabled:
            machine.write_u64(machine.symbol(SEAM).address, 0)
            for site in self._sites.values():
                machine.write_code(site.address, site.code)
        self._area.close()
        self._area = None
        self._sites.clear()
        self._seconds.clear()
        self.enabled = False

    # -- firing -------------------------------------------------------------------------------

    def _seam(self) -> None:
        machine, trap = self.machine, self.trap
        address = trap.at_seam(machine)
        second, site = self._seconds.get(address), self._sites.get(address)
        if second is None and site is None:
            trap.decline(machine)
            return
        if self.trapped is not None:
            self.trapped(address, machine.read_register(trap.frame_register))
        state = trap.enter(machine)
        if second is not None:
            trap.unmask(state, self._saved_mask)
            after = second.address + len(second.code)
            trap.leave(machine, state, after)
            return
        assert site is not None
        if self._scratch:
            machine.write_u64(self._scratch, self._scratch_value)
        for number in site.numbers:
            if self.fire is not None:
                self.fire(self.probe(number), state)
        if site.trampoline:
            self._saved_mask = trap.mask(state)
            trap.leave(machine, state, site.trampoline)
            return
        assert not isinstance(site.verdict, Refuse | Copy | Rewrite)
        pc = site.verdict.next_pc(state)
        self._later(pc, getattr(state, "deferred", {}))
        trap.leave(machine, state, pc)

    def _later(self, pc: int, registers: dict[str, int]) -> None:
        """Set registers that the kernel's return path does not restore when the guest is back."""
        if not registers:
            return
        machine = self.machine
        other = machine.handler(pc)

        def back() -> None:
            machine.handle(pc, other)
            for name, value in registers.items():
                machine.write_register(name, value)
            if other is not None:
                other()

        machine.handle(pc, back)
