"""The kinst provider: probes on instructions of kernel functions, through the guest's trap path."""

from collections.abc import Callable
from dataclasses import dataclass, field

from emu.call import Caller
from emu.elf import STT_FUNC, STT_GNU_IFUNC, Symbol
from emu.errors import KinstError, MemoryAccessError
from emu.unicorn_machine import UnicornMachine
from kinst.listing import Instruction, excluded, instructions
from kinst.trampoline import Trampolines
from kinst.trap import SEAM, FrameState
from kinst.traps import TRAPS
from kinst.verdict import Copy, Refuse, Rewrite


class ProbeError(KinstError):
    """A probe description matches nothing that can be probed."""


@dataclass
class Probe:
    """A probe on an instruction.

    :param slot: its trampoline, or 0 when it needs none.
    :param second: address of the trampoline's second breakpoint, or 0.
    """

    id: int
    function: str
    instruction: Instruction
    slot: int = 0
    second: int = 0

    @property
    def after(self) -> int:
        return self.instruction.address + len(self.instruction.code)


Fire = Callable[[Probe, FrameState], None]


@dataclass
class Kinst:
    """The provider on one machine; ``fire`` is called for every firing of an enabled probe."""

    machine: UnicornMachine
    fire: Fire = lambda probe, state: None
    probes: dict[int, Probe] = field(default_factory=dict)
    _trampolines: Trampolines | None = None
    _seconds: dict[int, Probe] = field(default_factory=dict)
    _saved_masks: dict[int, int] = field(default_factory=dict)
    _enabled: bool = False

    def __post_init__(self) -> None:
        self.trap = TRAPS[self.machine.arch.name]

    # -- where a probe goes -------------------------------------------------------------------

    def create(self, function: str, name: str) -> list[Probe]:
        """Make the probes of ``kinst::function:name``.

        :param name: a decimal offset, or empty for every instruction that can be probed.
        :raises ProbeError: naming what does not fit.
        """
        where = f"kinst::{function}:{name}"
        symbols = {
            s.address: s for s in self.machine.image.symbols.named(function)
            if s.kind == STT_FUNC and s.size
        }
        others = self.machine.image.symbols.named(function)
        if not symbols and others:
            if others[0].kind == STT_GNU_IFUNC:
                chosen_name = self._ifunc(others[0])
                raise ProbeError(
                    f"{where}: {function} is an ifunc, here it is {chosen_name}: "
                    f"give kinst::{chosen_name}:{name}"
                )
            raise ProbeError(f"{where}: {function} is no function with a size")
        if not symbols:
            near = self.machine.image.symbols.similar(function)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ProbeError(f"{where}: the kernel has no function '{function}'{hint}")
        if excluded(self.trap, function):
            raise ProbeError(f"{where}: {function} is excluded: the trap path runs through it")
        if name and (not name.isdecimal() or len(name) > 12):
            raise ProbeError(f"{where}: '{name[:40]}' is not a decimal byte offset")
        chosen = []
        for symbol in symbols.values():
            table = list(instructions(self.trap, self._code(symbol), symbol))
            if not name:
                chosen += [i for i in table if not isinstance(i.verdict, Refuse)]
                continue
            chosen.append(self._at_offset(where, symbol, table, int(name)))
        if not chosen:
            raise ProbeError(f"{where}: no instruction of it can be probed")
        return [self._probe(function, instruction) for instruction in chosen]

    def _code(self, symbol: Symbol) -> bytes:
        """The function as it is in memory: kernels patch their code at boot (ifuncs, CPU features).

        :raises ProbeError: when its pages are not mapped.
        """
        try:
            code = bytearray(self.machine.read(symbol.address, symbol.size))
        except MemoryAccessError as error:
            raise ProbeError(f"kinst::{symbol.name}: {error}") from None
        if self._enabled:
            for probe in self.probes.values():
                at = probe.instruction.address - symbol.address
                if 0 <= at < symbol.size:
                    code[at : at + len(probe.instruction.code)] = probe.instruction.code
        return bytes(code)

    def _ifunc(self, symbol: Symbol) -> str:
        """The function an ifunc stands for on this machine."""
        machine = self.machine
        kept = machine.snapshot()
        try:
            target = machine.image.symbols.function_at(
                Caller(machine).call(symbol.address, [], symbol.name)
            )
        finally:
            machine.restore(kept)
        return target.name if target is not None else symbol.name

    def _at_offset(
        self, where: str, symbol: Symbol, table: list[Instruction], offset: int
    ) -> Instruction:
        for instruction in table:
            if instruction.offset == offset:
                if isinstance(instruction.verdict, Refuse):
                    raise ProbeError(f"{where}: the instruction {instruction.verdict.reason}")
                return instruction
        if offset >= symbol.size:
            raise ProbeError(f"{where}: {symbol.name} ends at offset {symbol.size}")
        below = max((i.offset for i in table if i.offset < offset), default=0)
        above = min((i.offset for i in table if i.offset > offset), default=symbol.size)
        raise ProbeError(
            f"{where}: offset {offset} is not an instruction boundary of {symbol.name}; "
            f"the nearest are {below} and {above}"
        )

    def _probe(self, function: str, instruction: Instruction) -> Probe:
        probe = self.probes.get(instruction.address)
        if probe is None:
            probe = Probe(len(self.probes) + 1, function, instruction)
            self.probes[instruction.address] = probe
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
        for probe in self.probes.values():
            address, code = probe.instruction.address, probe.instruction.code
            if machine.read(address, len(code)) != code:
                raise ProbeError(
                    f"kinst::{probe.function}:{probe.instruction.offset}: the code has changed "
                    "since the probe was made"
                )
        entry = machine.arch.entry_address(machine.image)
        self._trampolines = Trampolines(machine, entry, self.trap.breakpoint(4))
        for probe in self.probes.values():
            self._make_trampoline(self._trampolines, probe)
        for probe in self.probes.values():
            address, code = probe.instruction.address, probe.instruction.code
            machine.breakpoints.add(address)
            machine.write_code(address, self.trap.breakpoint(len(code)))
        machine.write_u64(seam.address, self._trampolines.seam)
        machine.handle(self._trampolines.seam, self._seam)
        self._enabled = True

    def _make_trampoline(self, trampolines: Trampolines, probe: Probe) -> None:
        verdict = probe.instruction.verdict
        if not isinstance(verdict, Copy | Rewrite):
            return
        probe.slot = trampolines.allocate()
        code, second = self.trap.trampoline(
            probe.slot, probe.instruction.code, verdict, probe.after
        )
        trampolines.write(probe.slot, code)
        if self.trap.second_breakpoint:
            probe.second = probe.slot + second
            self._seconds[probe.second] = probe
            self.machine.breakpoints.add(probe.second)

    def disable(self) -> None:
        """Put everything back: code, seam, page tables."""
        if not self._enabled or self._trampolines is None:
            return
        machine = self.machine
        machine.handle(self._trampolines.seam, None)
        machine.write_u64(machine.symbol(SEAM).address, 0)
        for probe in self.probes.values():
            machine.write_code(probe.instruction.address, probe.instruction.code)
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
        probe = self.probes.get(address)
        if probe is not None:
            self.fire(probe, state)
            verdict = probe.instruction.verdict
            if isinstance(verdict, Copy | Rewrite):
                self._saved_masks[probe.slot] = trap.mask(state)
                machine.engine.use_trampoline(probe.slot)
                machine.engine.thaw_at(0 if probe.second else probe.after, False)
                trap.leave(machine, state, probe.slot)
                return
            assert not isinstance(verdict, Refuse)
            pc = verdict.next_pc(state)
            machine.engine.use_trampoline(0)
            machine.engine.thaw_at(pc, verdict.ends_block)
            trap.leave(machine, state, pc)
            return
        probe = self._seconds.get(address)
        if probe is not None:
            trap.unmask(state, self._saved_masks.get(probe.slot, 0))
            machine.engine.thaw_at(probe.after, False)
            trap.leave(machine, state, probe.after)
            return
        trap.decline(machine, state)
