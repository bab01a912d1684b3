"""Breakpoints of the providers, and the handling of their firings.

The native dispatcher (``kinst/probes/_dispatch.pyx``) holds the probes and handles the breakpoints.
With ``python=True``, this module handles the double path instead, using the verdicts themselves: it
is slower and serves as the reference for the native paths.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dwarf.index import DebugIndex
from dwarf.types import Types
from emu.unicorn.machine import UnicornMachine
from kinst.probes._dispatch import Dispatcher
from kinst.probes.inline_copies import CALLS_OUT, ENTERS, WAY_OUT
from kinst.probes.kinds import TrapPath
from kinst.probes.probe_table import Probe, ProbeTable
from kinst.probes.probed_code import ProbeError
from kinst.probes.traced_program import TracedProgram
from kinst.relocation.trampoline import RESERVED, Trampolines
from kinst.relocation.trap import CpuState, returns_to
from kinst.relocation.verdict import Copy, Refuse, Rewrite, Verdict

GUEST: Literal["guest"] = "guest"
DIRECT: Literal["direct"] = "direct"
DOUBLE: Literal["double"] = "double"
Path = Literal["guest", "direct", "double"]
PATHS: tuple[Path, ...] = (GUEST, DIRECT, DOUBLE)
THREAD, PER_PROBE = "thread", "probe"

@dataclass(frozen=True)
class FiringRecord:
    """Record of a firing: the probe, the time and the argument registers.

    :param instructions: number of instructions that the guest executed before it.
    :param time: virtual nanoseconds: the instructions and the idle time.
    :param registers: the first five argument registers; for a return probe, the second is the
        return value.
    :param cpu: CPU number.
    """

    probe: Probe
    instructions: int
    registers: tuple[int, ...]
    time: int = 0
    cpu: int = 0


class NativeState:
    """The interrupted registers during a firing, read through the dispatcher."""

    def __init__(self, dispatcher: Dispatcher, names: Sequence[str]) -> None:
        self._dispatcher = dispatcher
        self._index = {name: i for i, name in enumerate(names)}

    def get(self, register: str) -> int:
        """Return the value of a register."""
        return self._dispatcher.get(self._index[register])


Fire = Callable[[Probe, "CpuState | NativeState"], None]


class Breakpoints(ProbeTable):
    """The probes of a machine, with breakpoints that the native dispatcher handles.

    :param fire: called at each firing; None: firings are counted, and recorded with ``records``.
    :param path: ``guest``: through the kernel's vectors; ``direct``: handled at the breakpoint;
        ``double``: as ``guest``, and the breakpoint after the displaced instruction (arm64 and
        riscv64 have one) goes through the vectors, too, as in FreeBSD.
    :param trampolines: ``probe``: one for each probe; ``thread``: one for each thread, as FreeBSD
        has on amd64.
    :param python: handle the double path in Python; firings call ``fire`` and are not counted.
    :raises ProbeError: for ``thread`` trampolines on an architecture without them, and for options
        that ``python`` does not support.
    """

    machine: UnicornMachine

    def __init__(
        self, machine: UnicornMachine, fire: Fire | None = None, path: Path = GUEST,
        trampolines: str = PER_PROBE, records: bool = False, python: bool = False,
    ) -> None:
        super().__init__(machine)
        self.machine, self.fire, self.python = machine, fire, python
        self.path: Path = DOUBLE if python else path
        self.records_wanted = records
        self.threads = trampolines == THREAD
        if python and (path == DIRECT or self.threads or records):
            raise ProbeError("python=True cannot be combined with path=DIRECT, "
                             "trampolines=THREAD or records=True")
        if self.threads and not self.trap.segment:
            raise ProbeError(f"--trampolines=thread: {machine.arch.name} supports only "
                             "--trampolines=probe")
        # Callback for stops at the seam, used with python=True.  It receives the address of the
        # breakpoint (the first or the second one) and the address of the trap frame.
        self.trapped: Callable[[int, int], None] | None = None
        self._trampolines: Trampolines | None = None
        self._seam_at: int | None = None
        self._seam_before = 0  # previous value of the kernel's pointer, for example from dtrace.ko
        self._state = NativeState(self.dispatcher, self.templates.names)
        begins = machine.image.symbols.find(machine.guest.threads.begins)
        self.dispatcher.follow_threads(self.trap.numbers[machine.guest.threads.per_cpu],
                                       0 if begins is None else begins.address)
        self._saved_mask = self._scratch = self._scratch_value = 0

    def add_static(self, index: int, types: Callable[[], Types] | None = None,
                   debug: Callable[[], DebugIndex] | None = None) -> int:
        """Add a static probe as ``DeclaredProbes.add_static`` does.

        :raises ProbeError: with ``python=True``.
        """
        if self.python:
            raise ProbeError("python=True does not support static probes")
        return super().add_static(index, types, debug)

    def add_program(self, program: TracedProgram, types: Callable[[], Types] | None) -> int:
        """Add a program as ``ProgramProbes.add_program`` does.

        :raises ProbeError: with ``python=True``.
        """
        if self.python:
            raise ProbeError("python=True does not support probes in programs")
        return super().add_program(program, types)

    # -- enabling -----------------------------------------------------------------------------

    def enable(self) -> None:
        """Write the breakpoints and set the seam.

        :raises ProbeError: when the kernel has no seam for the guest path, when other probes are
            enabled, or when the code has changed.
        """
        machine, dispatcher = self.machine, self.dispatcher
        if machine.patches:
            raise ProbeError("other probes are enabled on this machine: disable them first")
        seam = machine.guest.traps.seam_of(machine.image)
        if seam is None and self.path != DIRECT:
            raise ProbeError(f"{machine.image.path}: the kernel was built without DTrace hooks; "
                             "use --trap-path=direct")
        changed = dispatcher.changed()
        if changed is not None:
            raise ProbeError(
                f"{self.image.symbols.where(changed)}: "
                "the code has changed since the probe was created"
            )
        self.forget_text()
        entry = machine.guest.entry_address(machine.image)
        # If a step fails, undo the earlier steps.  Recordings do not contain these steps.
        with machine.unrecorded(), contextlib.ExitStack() as undo:
            area = Trampolines(
                machine, entry, self.trap.breakpoint(4), dispatcher.slots_needed()
            )
            undo.callback(area.close)
            dispatcher.choose(TrapPath[self.path.upper()])
            dispatcher.use_slots(area.base, area.physical, area.size, RESERVED, self.threads)
            undo.callback(dispatcher.disable)
            dispatcher.enable()
            dispatcher.fire, dispatcher.recursion = self._fire, self._recursion
            dispatcher.record(
                "tell" if self.fire is not None else "record" if self.records_wanted else "count"
            )
            machine.patch(dispatcher, dispatcher.displaced)
            undo.callback(machine.unpatch)
            self._scratch = self._scratch_value = 0
            name = machine.guest.traps.seam_word
            if name and (word := machine.image.symbols.find(name)):
                self._scratch = word.address
                self._scratch_value = machine.read_u64(word.address)
            if self.path != DIRECT and seam is not None:
                # ``disable`` uses the physical address: the page tables may have changed by then.
                self._seam_at = machine.translate(seam.address)
                self._seam_before = machine.read_u64(seam.address)
                undo.callback(machine.write_u64, seam.address, self._seam_before)
                machine.write_u64(seam.address, area.seam)
            if self.python:
                machine.handle(area.seam, self._seam)
            else:
                if self.path != DIRECT and self.trap.called:
                    area.write_seam(self.trap.seam_code)
                dispatcher.listen(area.seam, self._scratch, self._scratch_value,
                                  machine.trap_stack)
            undo.pop_all()
        self._trampolines = area
        self.enabled = True

    def disable(self) -> None:
        """Restore the code, the seam and the page tables.

        :raises ProbeError: during a firing.
        """
        if not self.enabled or self._trampolines is None:
            return
        machine = self.machine
        if machine.engine.frozen:
            raise ProbeError("probes cannot be changed while one fires: let the machine continue")
        if self.python:
            machine.handle(self._trampolines.seam, None)
        self.dispatcher.deafen()
        if self.path != DIRECT and self._seam_at is not None:
            with machine.unrecorded():
                machine.write_physical(self._seam_at, self._seam_before.to_bytes(8, "little"))
        self.dispatcher.disable()
        machine.unpatch()
        with machine.unrecorded():
            self._trampolines.close()
        self._trampolines = None
        self.enabled = False

    # -- firing -------------------------------------------------------------------------------

    @property
    def after(self) -> bool:
        """Whether the function of the firing probe has already returned to its caller."""
        return bool(self.dispatcher.after)

    def firings(self) -> Iterator[FiringRecord]:
        """Yield the firings recorded since the previous call, if ``records`` was set."""
        for number, cpu, executed, now, *registers in self.dispatcher.records():
            yield FiringRecord(self.probe(number), executed, tuple(registers), now, cpu)

    def _fire(self, number: int) -> None:
        assert self.fire is not None
        self.fire(self.probe(number), self._state)

    def _recursion(self, address: int) -> None:
        raise ProbeError(
            f"{self.image.symbols.where(address)}: this probe is in the kernel's own breakpoint "
            "handling; use --trap-path=direct"
        )

    def _back(self, state: CpuState) -> tuple[int, int]:
        """Return the stack pointer's number and value; (0, 0) if the kernel jumps to the seam."""
        sp = self.machine.arch.sp
        return (self.trap.numbers[sp], state.get(sp)) if self.trap.called else (0, 0)

    def verdict(self, address: int, code: bytes) -> Verdict:
        """Return the verdict on a displaced instruction, for breakpoints handled in Python."""
        return self.trap.instructions.classify(code, address)[1]

    def _seam(self) -> None:
        """Handle a stop at ``dtrace_invop_jump_addr``, as the dispatcher does natively."""
        machine, trap, dispatcher = self.machine, self.trap, self.dispatcher
        detour = machine.engine.detour
        address = trap.at_seam(machine)
        second = dispatcher.second(address)
        numbers = dispatcher.probes_at(address)
        if self.trapped is not None and (numbers or second is not None):
            self.trapped(address, machine.read_register(trap.frame.register) + trap.frame.bias)
        if second is not None:
            state = trap.enter(machine)
            after = second + len(dispatcher.displaced(second))
            trap.unmask(state, self._saved_mask)
            detour.thaw_at(after, False, *self._back(state))
            trap.leave(machine, state, after)
            return
        if not numbers:
            trap.decline(machine)
            return
        state = trap.enter(machine)
        if not trap.called:
            detour.wipe()
            machine.write_u64(self._scratch, self._scratch_value)
        for number in numbers:
            if not self.fires(number, state) or not self._at_copy(number, state):
                continue
            if dispatcher.is_tail(number):
                self._leave_by_tail(number, state)
            elif self.fire is not None:
                self.fire(self.probe(number), state)
        code = dispatcher.displaced(address)
        if trap.kernel_effects:
            self._tell(state, address, code)
            return
        verdict = self.verdict(address, code)
        if isinstance(verdict, Copy | Rewrite):
            site_template = dispatcher.template(address)
            assert site_template is not None
            self._saved_mask = trap.mask(state)
            detour.use_trampoline(
                site_template[1], address, len(code), machine.cpu.model.registers[trap.status.name],
                trap.status.cpu_mask, trap.status.cpu_mask if self._saved_mask else 0,
            )
            detour.thaw_at(0 if trap.second_breakpoint else address + len(code), False)
            trap.leave(machine, state, site_template[1])
            return
        assert not isinstance(verdict, Refuse)
        pc = verdict.next_pc(state)
        for name, value in getattr(state, "deferred", {}).items():
            detour.defer(machine.cpu.model.registers[name], value)
        detour.use_trampoline(0, address, len(code))
        detour.thaw_at(pc, verdict.ends_block, *self._back(state))
        trap.leave(machine, state, pc)

    def _at_copy(self, number: int, state: CpuState) -> bool:
        """Track entry to and exit from inline copies; return whether the probe fires."""
        copy_role = self.at_copy(number, state)
        if copy_role is None:
            return True
        _copy, role = copy_role
        if role == CALLS_OUT:
            instruction = self.probe(number).instruction
            self.dispatcher.leave_by_tail(number, state.get(self.machine.arch.sp),
                                          instruction.address + len(instruction.code))
            return False
        if role == ENTERS:
            return self.dispatcher.enter_copy(number)
        return role == WAY_OUT and self.dispatcher.leave_copy(number)

    def _leave_by_tail(self, number: int, state: CpuState) -> None:
        """Record the return address of a probed function that leaves through a tail call."""
        returns = returns_to(self.machine, state)
        if returns is not None:
            self.dispatcher.leave_by_tail(number, *returns)

    def _tell(self, state: CpuState, address: int, code: bytes) -> None:
        """Tell the kernel's breakpoint handler which instruction to emulate."""
        machine, trap = self.machine, self.trap
        detour, effect = machine.engine.detour, trap.kernel_effects[code]
        pc = trap.next_after(state, address, code)
        detour.use_trampoline(0, address, len(code))
        detour.thaw_at(pc, effect.returns, trap.numbers[machine.arch.sp],
                       state.get(effect.base) + effect.change & (1 << 64) - 1)
        trap.tell(machine, effect.answer)
