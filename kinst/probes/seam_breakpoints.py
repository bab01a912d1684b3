"""Breakpoints handled by the guest's CPU and kernel up to the seam, and by Python from there on.

The breakpoint is in guest memory, the CPU goes through the guest's own vectors, and the kernel
builds its trap frame and reaches the seam, ``dtrace_invop_jump_addr``.  There the machine stops,
and the verdicts handle the breakpoint.  Time does not stand still, and what the trap writes to the
stack stays there unless ``stack_before`` supplies the earlier content.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from emu.guest.static_probe import StaticProbe
from emu.machine.machine import Machine, nothing_displaced
from kinst.probes.awaited_returns import AwaitedReturns
from kinst.probes.inline_copies import CALLS_OUT, ENTERS, WAY_OUT
from kinst.probes.probe_table import Probe, ProbeTable
from kinst.probes.probed_code import ProbeError
from kinst.relocation.trampoline import RESERVED, SLOT, Trampolines
from kinst.relocation.trap import CpuState, returns_to
from kinst.relocation.verdict import Copy, Refuse, Rewrite, Verdict

MAX_RETURN = 5000  # maximum number of instructions from the seam to the interrupted code


@dataclass(frozen=True)
class Site:
    """An instruction that is patched with a breakpoint.

    :param trampoline: the address of its trampoline; 0: the instruction is emulated.
    """

    address: int
    code: bytes
    verdict: Verdict
    numbers: tuple[int, ...]
    trampoline: int


class SeamBreakpoints(ProbeTable):
    """The probes of a machine, with breakpoints that are handled in Python at the seam.

    :param fire: called at each firing with the interrupted registers.
    :param trapped: called at the seam with the addresses of the breakpoint (the first or the second
        one) and of the trap frame.
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
        self._next_slot = RESERVED
        self._saved_mask = self._scratch = self._scratch_value = 0
        # Callback for each stop at the seam; returns (address, bytes) of the stack before the trap.
        self.stack_before: Callable[[], tuple[int, bytes] | None] | None = None
        self._stack: tuple[int, bytes] | None = None
        self._registers: dict[str, int] = {}  # register values to set at the end of the return path
        self._firing = False
        self._awaited = AwaitedReturns(machine, self.dispatcher, self._returned)
        self.after = False  # whether the firing probe's function has already returned to its caller
        self._return_at = 0  # address of the last instruction of the kernel's return path

    @property
    def declared(self) -> list[StaticProbe]:
        """Empty list: static probes need nested breakpoints, which are not supported here."""
        return []

    def enable(self) -> None:
        """Write the trampolines and the breakpoints, and set the seam.

        :raises ProbeError: when the kernel has no seam, or its code has changed.
        """
        machine, trap = self.machine, self.trap
        seam = machine.guest.traps.seam_of(machine.image)
        if seam is None:
            raise ProbeError(f"{machine.image.path}: the kernel was built without DTrace hooks")
        numbers_by_address: dict[int, list[int]] = {}
        for number in range(len(self.probes)):
            numbers_by_address.setdefault(self.dispatcher.probe(number)[0], []).append(number)
        self._area = area = Trampolines(
            machine, machine.guest.entry_address(machine.image), trap.breakpoint(4),
            len(numbers_by_address) + self.more_slots)
        self._next_slot = RESERVED + len(numbers_by_address)
        image = bytearray(machine.read_physical(area.physical, area.size))
        slot = RESERVED
        for address, numbers in numbers_by_address.items():
            code = self.probe(numbers[0]).instruction.code
            verdict = trap.instructions.classify(code, address)[1]
            assert not isinstance(verdict, Refuse)
            trampoline = 0
            if isinstance(verdict, Copy | Rewrite):
                trampoline = area.base + SLOT * slot
                body, second = trap.trampoline(trampoline, code, verdict, address + len(code))
                image[SLOT * slot : SLOT * slot + len(body)] = body
                slot += 1
            site = self._sites[address] = Site(address, code, verdict, tuple(numbers), trampoline)
            if trampoline and trap.second_breakpoint:
                self._seconds[trampoline + second] = site
            if machine.read(address, len(code)) != code:
                raise ProbeError(
                    f"{self.image.symbols.where(address)}: "
                    "the code has changed since the probe was created")
        used = SLOT * slot
        machine.write_physical(area.physical, bytes(image[:used]))
        self.forget_text()
        for site in self._sites.values():
            machine.write_code(site.address, trap.breakpoint(len(site.code)))
        if (name := machine.guest.traps.seam_word) and (word := machine.image.symbols.find(name)):
            self._scratch, self._scratch_value = word.address, machine.read_u64(word.address)
        self._seam_before = machine.read_u64(seam.address)
        machine.write_u64(seam.address, area.seam)
        machine.handle(area.seam, self._seam)
        machine.original = self._original
        self.enabled = True

    def disable(self) -> None:
        """Restore the code, the seam and the page tables.

        :raises ProbeError: during a firing.
        """
        if self._area is None:
            return
        if self._firing:
            raise ProbeError("probes cannot be changed while one fires: let the machine continue")
        machine = self.machine
        machine.handle(self._area.seam, None)
        if self.enabled:
            machine.write_u64(machine.symbol(machine.guest.traps.seam).address, self._seam_before)
            for site in self._sites.values():
                machine.write_code(site.address, site.code)
        self._awaited.clear()
        if self._return_at:
            machine.handle(self._return_at, None)
            self._return_at = 0
        machine.original = nothing_displaced
        self._area.close()
        self._area = None
        self._sites.clear()
        self._seconds.clear()
        self.enabled = False

    def _original(self, address: int) -> bytes:
        site = self._sites.get(address)
        return b"" if site is None else site.code

    def second(self, address: int) -> int | None:
        """Return the site whose trampoline has its second breakpoint at an address, or None."""
        site = self._seconds.get(address)
        return None if site is None else site.address

    # -- firing -------------------------------------------------------------------------------

    more_slots: ClassVar[int] = 0  # number of trampoline slots in addition to one for each probe

    def trampoline_of(self, site: Site) -> int:
        """Return the address of the trampoline that executes a site's displaced instruction."""
        return site.trampoline

    def _seam(self) -> None:
        machine, trap = self.machine, self.trap
        address = trap.at_seam(machine)
        second, site = self._seconds.get(address), self._sites.get(address)
        if second is None and site is None:
            trap.decline(machine)
            return
        if self.trapped is not None:
            self.trapped(address, machine.read_register(trap.frame.register) + trap.frame.bias)
        self._stack = self.stack_before() if self.stack_before is not None else None
        state = trap.enter(machine)
        if second is not None:
            trap.unmask(state, self._saved_mask)
            self._leave(state, second.address + len(second.code))
            return
        assert site is not None
        if not trap.called:
            self._back()  # ``trap.enter`` has already restored the interrupted registers
        if self._scratch:
            machine.write_u64(self._scratch, self._scratch_value)
        self._firing = True
        try:
            for number in site.numbers:
                if not self.fires(number, state) or not self._at_copy(number, state):
                    continue
                if self.dispatcher.is_tail(number):
                    self._leave_by_tail(number, state)
                elif self.fire is not None:
                    self.fire(self.probe(number), state)
        except BaseException:
            # Let the guest execute the instruction as if the probe did not exist.
            trap.leave(machine, state, address)
            for _ in range(MAX_RETURN):
                if machine.pc == address:
                    break
                machine.step()
            raise
        finally:
            self._firing = False
        if site.trampoline:
            self._saved_mask = trap.mask(state)
            self._leave(state, self.trampoline_of(site))
            return
        assert not isinstance(site.verdict, Refuse | Copy | Rewrite)
        if trap.kernel_effects:
            self._registers = {}
            self._leave(state, trap.next_after(state, address, site.code),
                        trap.kernel_effects[site.code].answer)
            return
        pc = site.verdict.next_pc(state)
        self._registers = dict(getattr(state, "deferred", {}))
        self._leave(state, pc)

    def _leave_by_tail(self, number: int, state: CpuState) -> None:
        """Arrange a stop at the return address of a function that leaves through a tail call."""
        returns = returns_to(self.machine, state)
        if returns is not None:
            self._awaited.wait(number, *returns)

    def _at_copy(self, number: int, state: CpuState) -> bool:
        """Track entry to and exit from inline copies; return whether the probe fires."""
        copy_role = self.at_copy(number, state)
        if copy_role is None:
            return True
        _copy, role = copy_role
        sp = state.get(self.machine.arch.sp)
        if role == CALLS_OUT:
            instruction = self.probe(number).instruction
            self._awaited.wait(number, sp, instruction.address + len(instruction.code))
            return False
        copies = self._awaited.copies
        if role == ENTERS:
            return copies.enter(number, sp)
        return role == WAY_OUT and copies.leave(number)

    def _returned(self, number: int, of_function: bool) -> None:
        """Fire a probe whose function has returned or whose inline copy the thread has left."""
        self.after = self._firing = of_function
        try:
            if self.fire is not None:
                self.fire(self.probe(number), CpuState(self.machine, self.machine.pc))
        finally:
            self.after = self._firing = False

    def _leave(self, state: CpuState, pc: int, answer: int | None = None) -> None:
        """Return into the kernel's breakpoint handler, which then returns to ``pc``.

        The stack and the registers that the kernel does not restore are set at the last instruction
        of its return path.

        :param answer: result of the seam that makes the kernel compute ``pc`` itself, or None.
        """
        machine, trap = self.machine, self.trap
        if answer is None:
            trap.leave(machine, state, pc)
        else:
            trap.tell(machine, answer)
        if not trap.called or not (self._registers or self._stack) or self._return_at:
            return
        for _ in range(MAX_RETURN):  # single-step to the last instruction of the return path
            last = machine.pc
            machine.step()
            if machine.pc == pc:
                self._back()
                if answer is None:
                    self._return_at = last
                    machine.handle(last, self._back)
                # If there is an answer, the last instruction reads the stack, so no handler is set
                # there; the next firing single-steps to it again.
                return
        raise ProbeError(
            f"{self.image.symbols.where(pc)}: the kernel's breakpoint handler did not return to "
            "this address")

    def _back(self) -> None:
        stack, registers = self._stack, self._registers
        self._stack, self._registers = None, {}
        if stack is not None:
            self.machine.write(*stack)
        for name, value in registers.items():
            self.machine.write_register(name, value)
