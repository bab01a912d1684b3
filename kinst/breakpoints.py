"""Breakpoints of the providers, and the firing of probes through the guest's trap path.

A site is an instruction with a breakpoint over it; several probes may share one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from emu.elf import Symbol
from emu.errors import KinstError, MemoryAccessError
from emu.unicorn_machine import UnicornMachine
from kinst.listing import Instruction, instructions
from kinst.trampoline import Trampolines
from kinst.trap import SEAM, FrameState
from kinst.traps import TRAPS
from kinst.verdict import Copy, Refuse, Rewrite


class ProbeError(KinstError):
    """A probe description matches nothing that can be probed."""


@dataclass
class Site:
    """An instruction with a breakpoint.

    :param slot: its trampoline, or 0 when it needs none.
    :param second: address of the trampoline's second breakpoint, or 0.
    """

    function: str
    instruction: Instruction
    probes: list["Probe"] = field(default_factory=list)
    slot: int = 0
    second: int = 0

    @property
    def after(self) -> int:
        return self.instruction.address + len(self.instruction.code)


@dataclass(frozen=True)
class Probe:
    """A probe as dtrace(1) names it: provider, function, name; the module is the kernel."""

    id: int
    provider: str
    function: str
    name: str
    instruction: Instruction


Fire = Callable[[Probe, FrameState], None]


@dataclass
class Breakpoints:
    """All sites of a machine; ``fire`` is called for every firing of an enabled probe."""

    machine: UnicornMachine
    fire: Fire = lambda probe, state: None
    probes: list[Probe] = field(default_factory=list)
    _sites: dict[int, Site] = field(default_factory=dict)
    _trampolines: Trampolines | None = None
    _seconds: dict[int, Site] = field(default_factory=dict)
    _saved_masks: dict[int, int] = field(default_factory=dict)
    _enabled: bool = False

    def __post_init__(self) -> None:
        self.trap = TRAPS[self.machine.arch.name]

    # -- making probes ------------------------------------------------------------------------

    def instructions(self, function: Symbol) -> list[Instruction]:
        """A function as it is in memory: kernels patch their code at boot (ifuncs, features).

        :raises ProbeError: when its pages are not mapped.
        """
        try:
            code = bytearray(self.machine.read(function.address, function.size))
        except MemoryAccessError as error:
            raise ProbeError(f"{function.name}: {error}") from None
        if self._enabled:
            for site in self._sites.values():
                at = site.instruction.address - function.address
                if 0 <= at < function.size:
                    code[at : at + len(site.instruction.code)] = site.instruction.code
        return list(instructions(self.trap, bytes(code), function))

    def add(self, provider: str, function: str, name: str, instruction: Instruction) -> Probe:
        """A probe on an instruction that is not refused; asked for again, the same one."""
        assert not isinstance(instruction.verdict, Refuse)
        site = self._sites.setdefault(instruction.address, Site(function, instruction))
        for probe in site.probes:
            if (probe.provider, probe.function, probe.name) == (provider, function, name):
                return probe
        probe = Probe(len(self.probes) + 1, provider, function, name, site.instruction)
        site.probes.append(probe)
        self.probes.append(probe)
        return probe

    # -- enabling -----------------------------------------------------------------------------

    def enable(self) -> None:
        """Write the breakpoints and set the seam.

        :raises ProbeError: when this kernel has no seam.
        """
        machine = self.machine
        seam = machine.image.symbols.find(SEAM)
        if seam is None:
            raise ProbeError(f"{machine.image.path}: has no '{SEAM}': built without DTrace hooks")
        for site in self._sites.values():
            address, code = site.instruction.address, site.instruction.code
            if machine.read(address, len(code)) != code:
                raise ProbeError(
                    f"{site.function}+{site.instruction.offset}: the code has changed since the "
                    "probe was made"
                )
        entry = machine.arch.entry_address(machine.image)
        self._trampolines = Trampolines(machine, entry, self.trap.breakpoint(4))
        for site in self._sites.values():
            self._make_trampoline(self._trampolines, site)
        for site in self._sites.values():
            address, code = site.instruction.address, site.instruction.code
            machine.breakpoints.add(address)
            machine.write_code(address, self.trap.breakpoint(len(code)))
        machine.write_u64(seam.address, self._trampolines.seam)
        machine.handle(self._trampolines.seam, self._seam)
        self._enabled = True

    def _make_trampoline(self, trampolines: Trampolines, site: Site) -> None:
        verdict = site.instruction.verdict
        if not isinstance(verdict, Copy | Rewrite):
            return
        site.slot = trampolines.allocate()
        code, second = self.trap.trampoline(
            site.slot, site.instruction.code, verdict, site.after
        )
        trampolines.write(site.slot, code)
        if self.trap.second_breakpoint:
            site.second = site.slot + second
            self._seconds[site.second] = site
            self.machine.breakpoints.add(site.second)

    def disable(self) -> None:
        """Put everything back: code, seam, page tables."""
        if not self._enabled or self._trampolines is None:
            return
        machine = self.machine
        machine.handle(self._trampolines.seam, None)
        machine.write_u64(machine.symbol(SEAM).address, 0)
        for site in self._sites.values():
            machine.write_code(site.instruction.address, site.instruction.code)
        machine.breakpoints.clear()
        machine.engine.thaw()
        self._seconds.clear()
        self._trampolines.close()
        self._trampolines = None
        self._enabled = False

    # -- firing -------------------------------------------------------------------------------

    def _seam(self) -> None:
        """The kernel has come to ``dtrace_invop_jump_addr``."""
        machine, trap = self.machine, self.trap
        address, state = trap.enter(machine)
        site = self._sites.get(address)
        if site is not None:
            for probe in site.probes:
                self.fire(probe, state)
            verdict = site.instruction.verdict
            if isinstance(verdict, Copy | Rewrite):
                self._saved_masks[site.slot] = trap.mask(state)
                machine.engine.use_trampoline(site.slot)
                machine.engine.thaw_at(0 if site.second else site.after, False)
                trap.leave(machine, state, site.slot)
                return
            assert not isinstance(verdict, Refuse)
            pc = verdict.next_pc(state)
            machine.engine.use_trampoline(0)
            machine.engine.thaw_at(pc, verdict.ends_block)
            trap.leave(machine, state, pc)
            return
        site = self._seconds.get(address)
        if site is not None:
            trap.unmask(state, self._saved_masks.get(site.slot, 0))
            machine.engine.thaw_at(site.after, False)
            trap.leave(machine, state, site.after)
            return
        trap.decline(machine, state)
