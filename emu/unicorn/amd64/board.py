"""The amd64 computer: PC devices, ACPI tables, and RAM from address 0.

The devices are those of QEMU's ``pc``: local APICs, I/O APIC, PIT, CMOS, 8259s, 16550, PCI
configuration space.
"""

import functools

import unicorn.x86_const as uc

from emu.amd64.registers import RFLAGS_IOPL
from emu.devices import acpi_power, lapic
from emu.devices.acpi_power import AcpiPower
from emu.devices.cmos import Cmos
from emu.devices.device import Device, Line
from emu.devices.i8254 import I8254
from emu.devices.i8259 import I8259
from emu.devices.ioapic import IoApic
from emu.devices.lapic import LocalApic
from emu.devices.ns16550 import Ns16550
from emu.devices.pci_configuration import PciConfiguration
from emu.devices.virtio_pci import VirtioPci
from emu.host.errors import MachineError
from emu.machine.machine import Stop, StopReason
from emu.unicorn.amd64 import acpi
from emu.unicorn.amd64.cpu import CPL, Amd64Cpu
from emu.unicorn.board import Board
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.virtio_slots import disks_in, files_in, network_in, virtio_slots

PORT_COST = 500  # duration of a port access in ns (one ISA bus cycle)
TSC_COST = 20  # duration of a TSC read in ns


class Amd64Board(Board):
    """The amd64 board: PC devices, and CPUs with local APICs."""

    ram_base = 0
    hidden_base = 0xE0000000
    max_memory = 3 << 30

    def __init__(self, machine: UnicornMachine) -> None:
        self.machine = machine
        if machine.memory > self.max_memory:
            raise MachineError("amd64 supports at most 3072 MiB of memory: devices are mapped "
                               "above that address")
        Amd64Cpu.prepare(machine)
        native = machine.engine
        count = machine.image.options.cpus
        self.lapics = [
            LocalApic(machine, i, functools.partial(self._send, i) if count > 1 else None)
            for i in range(count)]
        self.cpus = tuple(Amd64Cpu(machine, i, lapic) for i, lapic in enumerate(self.lapics))
        self.ioapic = IoApic(functools.partial(self._send, None), acpi.ioapic_id(count))
        pin = self.ioapic.set_line
        self.uart = Ns16550(machine, Line(pin, acpi.UART_IRQ), needs_out2=True)
        self.pit = I8254(machine, Line(pin, 2))
        self.cmos = Cmos(machine, machine.image.options.date)
        self.power = AcpiPower(
            machine, lambda: machine.request_stop(Stop(StopReason.POWER_OFF, 0))
        )
        options = machine.image.options
        self._slots = virtio_slots(options, machine, lambda i: Line(pin, acpi.PCI_IRQ + i))
        self.disks, self.network = disks_in(self._slots), network_in(self._slots)
        self.files = files_in(self._slots)
        self.pci = PciConfiguration(machine, [
            VirtioPci(machine, slot.device, acpi.PCI_PORTS + VirtioPci.ports * i,
                      acpi.PCI_IRQ + i, slot.kind)
            for i, slot in enumerate(self._slots)])
        self.pics = I8259(), I8259()
        self.devices = {
            "lapic": self.lapics[0], "ioapic": self.ioapic, "uart": self.uart, "pit": self.pit,
            "cmos": self.cmos, "power": self.power, "pic0": self.pics[0], "pic1": self.pics[1],
            "pci": self.pci,
        }
        self.devices |= {f"lapic{i}": self.lapics[i] for i in range(1, count)}
        ports: list[tuple[int, Device]] = [
            (acpi.UART_PORT, self.uart), (0x40, self.pit), (0x70, self.cmos),
            (0xCF8, self.pci), (acpi.PM1_EVENT, self.power), (0x20, self.pics[0]),
            (0xA0, self.pics[1]),
        ]
        if options.serial:
            self.second = self.devices["uart1"] = Ns16550(
                machine, Line(pin, acpi.SECOND_IRQ), needs_out2=True, name="uart1")
            ports.append((acpi.SECOND_PORT, self.second))
        self._ports = {
            base + i: (device, i) for base, device in ports for i in range(device.size)
        }
        native.map_device(acpi.LAPIC_BASE, 0x1000, self._lapic_read, self._lapic_write)
        native.map_device(acpi.IOAPIC_BASE, 0x1000, self.ioapic.read, self.ioapic.write)
        native.hook_ports(uc.UC_X86_INS_IN, uc.UC_X86_INS_OUT, self._port_read, self._port_write,
                          self._refused)
        native.set_counter_port(acpi.PM_TIMER, acpi_power.TIMER_MASK, acpi_power.ACCESS_COST,
                                acpi_power.FREQUENCY, 1_000_000_000)
        native.hook_tsc(
            uc.UC_X86_INS_RDTSC, uc.UC_X86_INS_RDTSCP, uc.UC_X86_REG_RAX, uc.UC_X86_REG_RDX,
            uc.UC_X86_REG_RCX, TSC_COST, 1, 1,
        )

    def _refused(self) -> bool:
        """Return whether IOPL forbids a program's current IN or OUT; if so, end the run.

        The CPU model lets programs access I/O ports and has already passed the instruction here,
        so the fault of SDM volume 1, "I/O Privilege Level", cannot be delivered.
        """
        machine = self.machine
        refused = machine.read_register("rflags") >> RFLAGS_IOPL & 3 < CPL
        if refused:
            machine.request_stop(Stop(
                StopReason.UNHANDLED, 0,
                "a program used IN or OUT without I/O privilege: this fault is not emulated"))
        return refused

    def _port_read(self, port: int, size: int) -> int:
        entry = self._ports.get(port)
        if entry is not None:
            return entry[0].read(entry[1], size)
        function = self.pci.port(port)
        if function is not None:
            return function[0].read_port(function[1], size)
        if port == 0x61:
            return self.pit.gate()
        self.machine.spend(PORT_COST)
        return (1 << 8 * size) - 1  # no device answers, as on an empty PCI bus

    def _port_write(self, port: int, size: int, value: int) -> None:
        entry = self._ports.get(port)
        if (port == 0xCF9 and size == 1 and value & 4) or (port == 0x64 and value == 0xFE):
            self.machine.request_stop(Stop(StopReason.RESET, 0))  # reset register, or 8042
        elif entry is not None:
            entry[0].write(entry[1], size, value)
        elif (function := self.pci.port(port)) is not None:
            function[0].write_port(function[1], size, value)
        elif port == 0x61:
            self.pit.set_gate(value)
        else:
            self.machine.spend(PORT_COST)

    def _lapic_read(self, offset: int, size: int) -> int:
        return self.lapics[self.machine.engine.cpu].read(offset, size)

    def _lapic_write(self, offset: int, size: int, value: int) -> None:
        own = self.lapics[self.machine.engine.cpu]
        if offset & ~15 == lapic.EOI and own.isr:
            self.ioapic.end_of_interrupt(own.isr.bit_length() - 1)
        own.write(offset, size, value)

    def _send(self, sender: int | None, command: int, destination: int) -> None:
        """Deliver a message on the APIC bus.

        :param sender: index of the sending CPU, or None for the I/O APIC.
        :param command: in the format of an interrupt command register or an I/O APIC entry.
        :param destination: the destination field of the message.
        """
        if len(self.lapics) == 1:
            self.lapics[0].request(command & 0xFF)
            return
        if command >> 8 & 7 == lapic.INIT and not command & lapic.ASSERT:
            return  # processors ignore INIT de-assertion
        shorthand = command >> 18 & 3 if sender is not None else 0
        if shorthand == 0:
            logical = bool(command & lapic.LOGICAL)
            targets = [i for i, target_lapic in enumerate(self.lapics)
                       if target_lapic.is_meant(destination, logical)]
        elif shorthand == 1:
            targets = [i for i in range(len(self.lapics)) if i == sender]
        else:
            targets = [i for i in range(len(self.lapics)) if i != sender or shorthand == 2]
        delivery = command >> 8 & 7
        for target in targets[:1] if delivery == lapic.LOWEST else targets:
            target_lapic, cpu = self.lapics[target], self.cpus[target]
            if delivery in (lapic.FIXED, lapic.LOWEST):
                target_lapic.request(command & 0xFF)
            elif delivery == lapic.NMI:
                target_lapic.urge()
            elif delivery == lapic.INIT and target != sender:
                cpu.on = False
                target_lapic.reset()
            elif delivery == lapic.START and not cpu.on:
                cpu.post((command & 0xFF) << 12, 0)
                self.machine.schedule.changed()

    def firmware(self) -> bytes:
        """Put the ACPI tables into memory; the boot loader sets up the CPU."""
        options = self.machine.image.options
        self.machine.write_physical(acpi.RSDP_BASE, acpi.tables(
            options.programs, len(self._slots), len(self.cpus), options.date is not None,
            options.serial))
        return b""


BOARD = Amd64Board
