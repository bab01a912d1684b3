"""Deliberate faults in kinst-emu's probed machine, to test that the comparison detects them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from emu.host.errors import KinstError
from emu.machine.call import CallError
from emu.unicorn.machine import UnicornMachine
from kinst.probes.breakpoints import Breakpoints, Fire
from kinst.relocation.verdict import (
    Bits,
    Copy,
    Emulate,
    Lowered,
    Refuse,
    RegisterState,
    Rewrite,
    Verdict,
)
from kinst.verify.crosscheck.agreement import Agreement
from kinst.verify.crosscheck.crosscheck import Crosscheck, Sites, Workload
from kinst.verify.crosscheck.lockstep import MAX_STEPS, TooLongError

DELIVERY, TRAMPOLINE, EMULATION = "delivery", "trampoline", "emulation"
FAULTS = (DELIVERY, TRAMPOLINE, EMULATION)
FLIPPED = 0x20  # bit that the fault "delivery" flips in the trap frame's status register


@dataclass(frozen=True)
class Astray:
    """Emulation with a deliberate fault: an additional register change."""

    ends_block: ClassVar[bool] = True
    verdict: Emulate
    register: str

    def next_pc(self, state: RegisterState) -> int:
        pc = self.verdict.next_pc(state)
        state.set(self.register, state.get(self.register) ^ 1)
        return pc

    def lower(self, bits: Bits) -> Lowered:
        return self.verdict.lower(bits)


class FaultyBreakpoints(Breakpoints):
    """Breakpoints with a wrong verdict for one instruction.

    :param strayed: called with the address of that instruction.
    """

    def __init__(
        self, machine: UnicornMachine, fire: Fire, strayed: Callable[[int], None]
    ) -> None:
        super().__init__(machine, fire, python=True)
        self._strayed, self._chosen = strayed, 0

    def verdict(self, address: int, code: bytes) -> Verdict:
        right = super().verdict(address, code)
        if isinstance(right, Copy | Rewrite | Refuse) or self._chosen not in (0, address):
            return right
        self._chosen = address
        self._strayed(address)
        return Astray(right, self.machine.arch.result)


class FaultyCrosscheck(Crosscheck):
    """Crosscheck of a machine with a deliberate fault.

    :param fault: the kind of fault, one of FAULTS.
    """

    def __init__(self, machine: UnicornMachine, fault: str, most: int = MAX_STEPS) -> None:
        super().__init__(machine, most)
        self.fault = fault
        self.faulty = 0  # address at which the fault was injected, or 0 if it was not injected

    def check(self, workload: Workload) -> Agreement:
        """Compare one call on both machines.

        :raises KinstError: also when the call executes no instruction suitable for the fault.
        """
        agreement = super().check(workload)
        if not self.faulty:
            raise KinstError(f"no {self.fault} fault can be injected: the call executes no "
                             "suitable instruction")
        return agreement

    def breakpoints(self, fire: Fire) -> Breakpoints:
        if self.fault != EMULATION:
            return super().breakpoints(fire)

        def strayed(address: int) -> None:
            self.faulty = address

        return FaultyBreakpoints(self.machine, fire, strayed)

    def probed(self, breakpoints: Breakpoints, sites: Sites) -> None:
        if self.fault == DELIVERY:
            self._deliver_wrong(breakpoints, sites)
        elif self.fault == TRAMPOLINE:
            self._exchange_trampoline(breakpoints, sites)

    def gave(self, value: object, result: object) -> None:
        """Ignore the results; the comparison with QEMU locates the fault."""

    def failed(self, error: CallError | TooLongError) -> None:
        """Ignore the failure; the comparison with QEMU locates the fault."""

    def _deliver_wrong(self, breakpoints: Breakpoints, sites: Sites) -> None:
        """Flip a flag in each trap frame, as if the CPU had saved the flags incorrectly."""
        machine, trap = self.machine, breakpoints.trap
        inner = breakpoints.trapped
        assert inner is not None

        def wrong(address: int, frame: int) -> None:
            fields = machine.guest.traps.trap_frame.fields
            offset, _size = fields[trap.frame.field(trap.status.name)]
            machine.write(frame + offset,
                          bytes([machine.read(frame + offset, 1)[0] ^ FLIPPED]))
            if address in sites:
                self.faulty = self.faulty or address
            inner(address, frame)

        breakpoints.trapped = wrong

    def _exchange_trampoline(self, breakpoints: Breakpoints, sites: Sites) -> None:
        """Fill the trampoline of a copied instruction with a copy of a different instruction."""
        copies = [i for _f, i in sites.values() if isinstance(i.verdict, Copy)]
        for site in copies:
            other = next((i for i in copies
                          if len(i.code) == len(site.code) and i.code != site.code), None)
            template = breakpoints.dispatcher.template(site.address)
            if other is not None and template is not None:
                body, _second = breakpoints.trap.trampoline(
                    template[1], other.code, Copy(), site.address + len(site.code))
                self.machine.write_code(template[1], body)
                self.faulty = site.address
                return
