"""Arm Generic Interrupt Controller v2 (IHI 0048B), with an interface for each CPU.

Interrupts are level-sensitive, or edge-triggered where GICD_ICFGR says so.  Sets of interrupts are
integers with one bit per interrupt.  The first 32 interrupts are private to each CPU, and their
registers are banked (3.1.2).
"""

from collections.abc import Callable
from typing import Any

from emu.devices.device import Device

LINES = 128
OWN = 32  # number of private interrupts of a CPU: 16 software-generated, 16 from its peripherals
SENT = 16  # number of software-generated interrupts (SGIs)
SPURIOUS = 1023
CTLR, TYPER, IIDR, IGROUPR, ISENABLER, ICENABLER = 0, 4, 8, 0x80, 0x100, 0x180
ISPENDR, ICPENDR, ISACTIVER, ICACTIVER = 0x200, 0x280, 0x300, 0x380
IPRIORITYR, ITARGETSR, ICFGR, SGIR, PIDR2 = 0x400, 0x800, 0xC00, 0xF00, 0xFE8
C_CTLR, C_PMR, C_BPR, C_IAR, C_EOIR, C_RPR, C_HPPIR, C_IIDR, C_DIR = (
    0, 4, 8, 0xC, 0x10, 0x14, 0x18, 0xFC, 0x1000)
OWN_BITS = (1 << OWN) - 1
SETS = ("enabled", "pending", "active", "levels", "edge", "group")


class Distributor(Device):
    """GIC distributor (GICD): the interrupts and their state.

    :param cpus: number of CPUs.
    :param present: returns the number of the CPU whose turn it is.
    """

    # These attributes hold CPU 0's private interrupts; ``others`` holds those of the other CPUs.
    STATE = ("control", "enabled", "pending", "active", "levels", "edge", "priority", "group",
             "targets")
    size = 0x1000

    def __init__(self, changed: Callable[[], None], cpus: int = 1,
                 present: Callable[[], int] = lambda: 0) -> None:
        self._changed, self._cpus, self._present = changed, cpus, present
        self.control = 0
        self.enabled = 0xFFFF  # SGIs are always enabled
        self.pending = self.active = self.levels = self.group = 0
        self.edge = 0xFFFF
        self.priority = [0] * LINES
        self.targets = [1] * LINES
        self.others: list[dict[str, Any]] = [
            {**dict.fromkeys(SETS, 0), "enabled": 0xFFFF, "edge": 0xFFFF, "priority": [0] * OWN}
            for _ in range(cpus - 1)]
        # For each CPU and SGI, the set of CPUs that have sent the SGI.
        self.senders = [{"of": [0] * SENT} for _ in range(cpus)]

    def kept(self) -> tuple[str, ...]:
        return (*self.STATE, "others", "senders") if self.others else self.STATE

    def bits(self, name: str, cpu: int) -> int:
        """Return an interrupt set (``enabled``, ``pending``, ...) as one CPU sees it."""
        bits: int = getattr(self, name)
        return bits if cpu == 0 else bits & ~OWN_BITS | self.others[cpu - 1][name]

    def put(self, name: str, cpu: int, bits: int) -> None:
        """Set the bits of an interrupt set (``enabled``, ``pending``, ...) as one CPU sees it."""
        if cpu == 0:
            setattr(self, name, bits)
        else:
            setattr(self, name, bits & ~OWN_BITS | getattr(self, name) & OWN_BITS)
            self.others[cpu - 1][name] = bits & OWN_BITS

    def set_line(self, number: int, level: bool) -> None:
        """Set the line level of a shared peripheral interrupt."""
        self._set_line(0, number, level)

    def set_private(self, cpu: int, number: int, level: bool) -> None:
        """Set the line level of a CPU's private peripheral interrupt, numbered from 0."""
        self._set_line(cpu, SENT + number, level)

    def _set_line(self, cpu: int, number: int, level: bool) -> None:
        bit, levels = 1 << number, self.bits("levels", cpu)
        if level and not levels & bit and self.bits("edge", cpu) & bit:
            self.put("pending", cpu, self.bits("pending", cpu) | bit)
        self.put("levels", cpu, levels | bit if level else levels & ~bit)
        self._changed()

    def waiting(self, cpu: int) -> int:
        """Return the interrupts pending at a CPU: latched, or level-sensitive and asserted."""
        return self.bits("pending", cpu) | self.bits("levels", cpu) & ~self.bits("edge", cpu)

    def priority_of(self, cpu: int, number: int) -> int:
        """Return the priority of an interrupt for a CPU; 0 is the highest."""
        if cpu and number < OWN:
            return int(self.others[cpu - 1]["priority"][number])
        return self.priority[number]

    def best(self, cpu: int) -> tuple[int, int]:
        """Return the number and priority of a CPU's most urgent enabled pending interrupt."""
        best, level = SPURIOUS, 0x100
        if self.control & 1:
            ready = (self.waiting(cpu) & self.bits("enabled", cpu)
                     & ~self.bits("active", cpu))
            while ready:
                number = (ready & -ready).bit_length() - 1
                ready &= ready - 1
                priority = self.priority_of(cpu, number)
                if priority < level and self._is_for(cpu, number):
                    best, level = number, priority
        return best, level

    def _is_for(self, cpu: int, number: int) -> bool:
        return number < OWN or self._cpus == 1 or bool(self.targets[number] >> cpu & 1)

    def acknowledge(self, cpu: int, number: int) -> int:
        """Make a pending interrupt of a CPU active.

        :return: the value of GICC_IAR: the interrupt number and, for an SGI, its sender.
        """
        sender = 0
        self.put("active", cpu, self.bits("active", cpu) | 1 << number)
        if number < SENT and self.senders[cpu]["of"][number]:
            senders = self.senders[cpu]["of"][number]
            sender = (senders & -senders).bit_length() - 1
            self.senders[cpu]["of"][number] = senders & senders - 1
            if self.senders[cpu]["of"][number]:
                return number | sender << 10
        self.put("pending", cpu, self.bits("pending", cpu) & ~(1 << number))
        return number | sender << 10

    def deactivate(self, cpu: int, number: int) -> None:
        """Make an interrupt of a CPU inactive."""
        self.put("active", cpu, self.bits("active", cpu) & ~(1 << number))

    def _word(self, bits: int, offset: int) -> int:
        return bits >> offset * 8 & 0xFFFFFFFF

    def read(self, offset: int, size: int) -> int:
        bank, at, cpu = offset & ~0x7F, offset & 0x7F, self._present()
        words = {IGROUPR: "group", ISENABLER: "enabled", ICENABLER: "enabled",
                 ISACTIVER: "active", ICACTIVER: "active"}
        if offset == CTLR:
            return self.control
        if offset == TYPER:
            return LINES // 32 - 1 | self._cpus - 1 << 5
        if offset == IIDR:
            return 0x0200143B
        if bank in words:
            return self._word(self.bits(words[bank], cpu), at)
        if bank in (ISPENDR, ICPENDR):
            return self._word(self.waiting(cpu), at)
        if IPRIORITYR <= offset < ITARGETSR:
            numbers = range(offset - IPRIORITYR, offset - IPRIORITYR + size)
            return int.from_bytes(
                bytes(self.priority_of(cpu, n) for n in numbers if n < LINES), "little")
        if ITARGETSR <= offset < ICFGR:
            start = offset - ITARGETSR
            if start < OWN and self._cpus > 1:
                return int.from_bytes(bytes((1 << cpu,)) * size, "little")
            return int.from_bytes(bytes(self.targets[start : start + size]), "little")
        if ICFGR <= offset < ICFGR + LINES // 4:
            start, edge = (offset - ICFGR) * 4, self.bits("edge", cpu)
            return sum(2 << 2 * i for i in range(16) if edge >> start + i & 1)
        if offset == PIDR2:
            return 0x2B
        return 0

    def write(self, offset: int, size: int, value: int) -> None:
        bank, bits = offset & ~0x7F, value << (offset & 0x7F) * 8 & (1 << LINES) - 1
        cpu = self._present()
        if offset == CTLR:
            self.control = value & 3
        elif bank == ISENABLER:
            self.put("enabled", cpu, self.bits("enabled", cpu) | bits)
        elif bank == ICENABLER:
            self.put("enabled", cpu, self.bits("enabled", cpu) & (~bits | 0xFFFF))
        elif bank in (ISPENDR, ICPENDR) and self._cpus > 1 and offset & 0x7F < 2:
            pass  # these registers are read-only for SGIs (4.3.7)
        elif bank == ISPENDR:
            self.put("pending", cpu, self.bits("pending", cpu) | bits)
        elif bank == ICPENDR:
            self.put("pending", cpu, self.bits("pending", cpu) & ~bits)
        elif bank == ISACTIVER:
            self.put("active", cpu, self.bits("active", cpu) | bits)
        elif bank == ICACTIVER:
            self.put("active", cpu, self.bits("active", cpu) & ~bits)
        elif IPRIORITYR <= offset < ICFGR:
            self._write_bytes(cpu, offset, value.to_bytes(8, "little")[:size])
        elif ICFGR + 4 <= offset < ICFGR + LINES // 4:
            start, edge = (offset - ICFGR) * 4, self.bits("edge", cpu)
            for i in range(16):
                bit = 1 << start + i
                edge = edge | bit if value >> 2 * i & 2 else edge & ~bit
            self.put("edge", cpu, edge)
        elif offset == SGIR:
            self._send(cpu, value)
        self._changed()

    def _write_bytes(self, cpu: int, offset: int, data: bytes) -> None:
        for i, byte in enumerate(data):
            if offset < ITARGETSR:
                number = offset - IPRIORITYR + i
                if cpu and number < OWN:
                    self.others[cpu - 1]["priority"][number] = byte
                elif number < LINES:
                    self.priority[number] = byte
            elif OWN <= offset - ITARGETSR + i < LINES:
                self.targets[offset - ITARGETSR + i] = byte

    def _send(self, sender: int, value: int) -> None:
        """Send an SGI (4.3.15) to a list of CPUs, to all but the sender, or to the sender."""
        everybody = (1 << self._cpus) - 1
        filtered = value >> 24 & 3
        targets = {0: value >> 16 & 0xFF, 1: everybody & ~(1 << sender), 2: 1 << sender}.get(
            filtered, 0) & everybody
        if self._cpus == 1 and filtered == 1:
            targets = 1
        number = value & 15
        for cpu in range(self._cpus):
            if targets >> cpu & 1:
                self.put("pending", cpu, self.bits("pending", cpu) | 1 << number)
                if self._cpus > 1:
                    self.senders[cpu]["of"][number] |= 1 << sender


class CpuInterface(Device):
    """GIC CPU interface (GICC): acknowledging and ending interrupts, priority mask, IRQ line."""

    STATE = ("control", "mask", "binary_point", "running")
    size = 0x2000

    def __init__(self, distributor: Distributor, changed: Callable[[], None],
                 cpu: int = 0) -> None:
        self._distributor, self._cpu = distributor, cpu
        self._changed = changed
        self.control = self.mask = self.binary_point = 0
        self.running: list[list[int]] = []  # [number, priority] of active interrupts, newest last

    def _candidate(self) -> int:
        number, priority = self._distributor.best(self._cpu)
        limit = self.running[-1][1] if self.running else 0x100
        if number != SPURIOUS and priority < self.mask and priority < limit:
            return number
        return SPURIOUS

    @property
    def asserted(self) -> bool:
        """Whether the CPU's IRQ line is asserted."""
        return bool(self.control & 1) and self._candidate() != SPURIOUS

    def read(self, offset: int, size: int) -> int:
        if offset == C_CTLR:
            return self.control
        if offset == C_PMR:
            return self.mask
        if offset == C_BPR:
            return self.binary_point
        if offset == C_IAR:
            number = self._candidate()
            if number == SPURIOUS:
                return number
            d = self._distributor
            acknowledged = d.acknowledge(self._cpu, number)
            self.running.append([number, d.priority_of(self._cpu, number)])
            self._changed()
            return acknowledged
        if offset == C_RPR:
            return self.running[-1][1] if self.running else 0xFF
        if offset == C_HPPIR:
            return self._distributor.best(self._cpu)[0]
        if offset == C_IIDR:
            return 0x0202143B
        return 0

    def write(self, offset: int, size: int, value: int) -> None:
        if offset == C_CTLR:
            self.control = value & 0x201
        elif offset == C_PMR:
            self.mask = value & 0xFF
        elif offset == C_BPR:
            self.binary_point = value & 7
        elif offset == C_EOIR:
            number = value & 0x3FF
            for at in range(len(self.running) - 1, -1, -1):
                if self.running[at][0] == number:
                    del self.running[at]
                    break
            if not self.control & 0x200 and number < LINES:
                self._distributor.deactivate(self._cpu, number)
        elif offset == C_DIR and value & 0x3FF < LINES:
            self._distributor.deactivate(self._cpu, value & 0x3FF)
        self._changed()
