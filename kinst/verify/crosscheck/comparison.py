"""Comparison of a call on two machines: stops at the seam, result, registers and memory."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from emu.machine.machine import Machine
from emu.qemu.machine import QemuMachine
from emu.unicorn.guest_memory import PAGE
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.state import Snapshot
from kinst.relocation.trap import trap_of
from kinst.verify.crosscheck.difference import MODELS, StateDifference
from kinst.verify.crosscheck.event import Event
from kinst.verify.crosscheck.lockstep import Divergence


class CallComparison:
    """Comparison of a call on a machine with the same call on QEMU.

    :param base: the state in which both machines start.
    """

    def __init__(self, machine: UnicornMachine, base: Snapshot) -> None:
        self.machine, self.base = machine, base
        self.model, self.trap = MODELS[machine.arch.name], trap_of(machine.guest, machine.arch.name)
        self.names = tuple(machine.arch.registers)
        self.last = 0  # address of the instruction to report with a difference at the end

    def stops(self, ours: Sequence[Event], theirs: Sequence[Event],
                 unfinished: bool = False) -> None:
        """Compare the trap frames and registers of the firings, stop by stop.

        :param unfinished: whether QEMU may have stopped less often, because it took too long.
        :raises Divergence: at the first difference.
        """
        trap = self.trap
        flags = {trap.status.name: self.model.flags}
        before = number = 0
        for one, other in zip(ours, theirs, strict=False):
            number += not one.second
            if (one.site, one.second) != (other.site, other.second):
                raise Divergence(
                    f"firing {number} occurred at different probes, {one.site:#x} and "
                    f"{other.site:#x}, after this instruction:", before or one.site, (), (), ())
            different = [name for name, a, b in zip(
                self.names, one.registers, other.registers, strict=False)
                if (a ^ b) & flags.get(name, -1)]
            if different:
                # Report the previous displaced instruction, because it set these registers.
                raise Divergence(
                    f"{', '.join(different)} differ{'s' * (len(different) == 1)} at firing "
                    f"{number}, {'after this' if before else 'at this'} instruction:",
                    before or one.site, self.names, one.registers, other.registers)
            if one.written != other.written:
                raise Divergence(
                    f"the bytes written differ at firing {number} ({one.written.hex()} and "
                    f"{other.written.hex()}), after this instruction:", before, (), (), ())
            self._same_frame(one, other, number)
            before = one.site
        if len(ours) != len(theirs) and not (unfinished and len(theirs) < len(ours)):
            raise Divergence(f"kinst-emu's machine stopped at the seam {len(ours)} times, but "
                             f"QEMU {len(theirs)} times", before or self.last, (), (), ())
        self.last = before or self.last

    def _same_frame(self, one: Event, other: Event, number: int) -> None:
        if one.frame == other.frame:
            return
        names, ours, theirs, different = [], [], [], []
        trampoline = self.trap.frame.names.get("pc") if one.second else None
        for name, (offset, size) in self.machine.guest.traps.trap_frame.fields.items():
            a, b = (int.from_bytes(e.frame[offset : offset + size], "little")
                    for e in (one, other))
            names.append(name)
            ours.append(a)
            theirs.append(b)
            allowed = self.model.frame.get(name)
            if a != b and name != trampoline and not (allowed and allowed.allows(a, b)):
                different.append(name)
        if different:
            which = "the second trap frames" if one.second else "the trap frames"
            raise Divergence(f"{which} of firing {number} differ in {', '.join(different)} at this "
                             "instruction:",
                             one.site, names, ours, theirs)

    def stack_pointer(self, machine: Machine, frame: int) -> int:
        """Return the interrupted stack pointer from a trap frame."""
        name = self.trap.frame.field(machine.arch.sp)
        return machine.guest.traps.trap_frame.read(machine, frame, name)

    def stack_before(
        self, ours: Sequence[Event], theirs: Sequence[Event]
    ) -> tuple[int, bytes] | None:
        """Return (address, bytes) of kinst-emu's stack before the trap matching QEMU's last stop.

        None if the machines do not agree at this stop.
        """
        if len(theirs) > len(ours):
            return None
        one, other = ours[len(theirs) - 1], theirs[-1]
        try:
            self._same_frame(one, other, len(theirs))
        except Divergence:
            return None  # ``stops`` reports the difference later
        return one.stack if (one.site, one.second) == (other.site, other.second) else None

    def value(self, ours: object, theirs: object, where: str) -> None:
        """Compare the results of a call.

        :param where: the circumstances, for the error message.
        :raises Divergence: when the results differ.
        """
        if ours != theirs:
            raise Divergence(f"the results differ {where}: {ours} and {theirs}, after this "
                             "instruction:",
                             self.last, (), (), ())

    def state(self, ours: dict[str, Any], other: QemuMachine,
                    allowed: Mapping[str, StateDifference]) -> None:
        """Compare the general, vector and system registers after the call with those on QEMU.

        :raises Divergence: when any of them differ.
        """
        names, first, second = [], [], []
        for name, value in ours.items():
            if not isinstance(value, int | str) or not other.knows(name):
                continue
            number = (int.from_bytes(bytes.fromhex(value), "little") if isinstance(value, str)
                      else value)
            theirs = other.read_register(name)
            if number != theirs and not (
                    name in allowed and allowed[name].allows(number, theirs)):
                names.append(name)
                first.append(number)
                second.append(theirs)
        if names:
            raise Divergence(f"{', '.join(names)} differ{'s' * (len(names) == 1)} at the end, "
                             "after this instruction:", self.last, names, first, second)

    def changed_memory(self) -> dict[int, bytes]:
        """Return the pages that the call changed, keyed by physical address."""
        memory = self.machine.memory_part
        pages = {}
        for at in memory.written():
            content = bytes(memory.view[at : at + PAGE])
            if content != self.base.memory.read(at, PAGE):
                pages[self.machine.ram_base + at] = content
        return pages

    def memory_left(self, ours: dict[int, bytes], other: QemuMachine,
                    unequal: Iterable[range] = ()) -> None:
        """Compare all memory after the call, except in the ``unequal`` ranges.

        :raises Divergence: when the memory differs.
        """
        apart = {at for one in unequal for at in one}
        base = self.base.memory
        for page in sorted({*ours, *other.changed(base)}):
            one = ours.get(page) or base.read(page - other.ram_base, PAGE)
            two = other.read_physical(page, PAGE)
            if one == two:
                continue
            at = next((i for i in range(PAGE) if one[i] != two[i] and page + i not in apart), None)
            if at is not None:
                at &= ~7
                raise Divergence(
                    f"memory differs at physical address {page + at:#x}, after this instruction:",
                    self.last, ("memory",),
                    (int.from_bytes(one[at : at + 8], "little"),),
                    (int.from_bytes(two[at : at + 8], "little"),))
