"""Faults, put into our machine while it is probed: to see that the comparison finds them."""

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
FLIPPED = 0x20  # in the status register that the trap saves


@dataclass(frozen=True)
class Astray:
    """An emulation with a fault: it also changes a register."""

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
    """Answers with another verdict than the right one, for one instruction.

    :param strayed: told of its address.
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
    """A crosscheck of a machine with a fault.

    :param fault: one of FAULTS.
    """

    def __init__(self, machine: UnicornMachine, fault: str, most: int = MAX_STEPS) -> None:
        super().__init__(machine, most)
        self.fault = fault
        self.faulty = 0  # the address of the instruction that the fault was put at

    def check(self, workload: Workload) -> Agreement:
        """As the other; :raises KinstError: also when there was no place for the fault."""
        agreement = super().check(workload)
        if not self.faulty:
            raise KinstError(f"no {self.fault} took place that a fault could be put into")
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
        """The other machine tells where the fault is."""

    def failed(self, error: CallError | TooLongError) -> None:
        """The fault's doing; the other machine tells where it began."""

    def _deliver_wrong(self, breakpoints: Breakpoints, sites: Sites) -> None:
        """As if the CPU had saved a flag wrong."""
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
        """One instruction's trampoline has another's copy."""
        copies = [i for _f, i in sites.values() if isinstance(i.verdict, Copy)]
        for one in copies:
            other = next((i for i in copies
                          if len(i.code) == len(one.code) and i.code != one.code), None)
            known = breakpoints.dispatcher.template(one.address)
            if other is not None and known is not None:
                body, _second = breakpoints.trap.trampoline(
                    known[1], other.code, Copy(), one.address + len(one.code))
                self.machine.write_code(known[1], body)
                self.faulty = one.address
                return
