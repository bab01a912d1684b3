"""The arm64 computer, like QEMU's ``virt``: RAM at 1 GiB, GICv2, generic timers, PL011, PSCI."""

import functools

from emu.arm64.generic_timer import PPI_PHYSICAL, PPI_VIRTUAL
from emu.devices.device import Device, Line
from emu.devices.devicetree import DeviceNode, cells64, cpu_node, flatten
from emu.devices.gicv2 import CpuInterface, Distributor
from emu.devices.pl011 import Pl011
from emu.devices.pl031 import Pl031
from emu.devices.virtio_mmio import VirtioMmio
from emu.unicorn.arm64 import psci
from emu.unicorn.arm64.cpu import ArmCpu
from emu.unicorn.board import Board
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.virtio_slots import disks_in, files_in, network_in, virtio_slots

RAM_BASE = 0x40000000
GICD_BASE, GICC_BASE, UART_BASE = 0x08000000, 0x08010000, 0x09000000
UART_SPI = 1
CLOCK_BASE, CLOCK_SPI = 0x09010000, 2
SECOND_BASE, SECOND_SPI = 0x09040000, 8
UART_CLOCK = 24_000_000
VIRTIO_BASE, VIRTIO_STEP, VIRTIO_SPI = 0x0A000000, 0x1000, 16


class ArmBoard(Board):
    """The arm64 board: GICv2, PL011, PL031 and virtio disks, and PSCI firmware."""

    ram_base = RAM_BASE
    hidden_base = 0x30000000

    def __init__(self, machine: UnicornMachine) -> None:
        self.machine = machine
        ArmCpu.prepare(machine)
        changed = machine.interrupts_changed
        count = machine.image.options.cpus
        self.distributor = Distributor(changed, count, lambda: machine.engine.cpu)
        self.interfaces = [CpuInterface(self.distributor, changed, i) for i in range(count)]
        self.uart = Pl011(machine, Line(self.distributor.set_line, 32 + UART_SPI))
        self.devices = {"gicd": self.distributor, "gicc": self.interfaces[0], "uart": self.uart}
        self.devices |= {f"gicc{i}": self.interfaces[i] for i in range(1, count)}
        windows: tuple[tuple[int, Device], ...] = (
            (GICD_BASE, self.distributor), (UART_BASE, self.uart))
        for base, device in windows:
            machine.engine.map_device(base, device.size, device.read, device.write)
        machine.engine.map_device(GICC_BASE, CpuInterface.size, self._interface_read,
                                  self._interface_write)
        line = self.distributor.set_line
        options = machine.image.options
        self._slots = virtio_slots(options, machine, lambda i: Line(line, 32 + VIRTIO_SPI + i))
        self.disks, self.network = disks_in(self._slots), network_in(self._slots)
        self.files = files_in(self._slots)
        for i, slot in enumerate(self._slots):
            device = self.devices[slot.name] = VirtioMmio(slot.device, slot.kind)
            machine.engine.map_device(
                VIRTIO_BASE + VIRTIO_STEP * i, VIRTIO_STEP, device.read, device.write)
        if options.serial:
            port = self.second = self.devices["uart1"] = Pl011(
                machine, Line(line, 32 + SECOND_SPI), "uart1")
            machine.engine.map_device(SECOND_BASE, port.size, port.read, port.write)
        date = options.date
        if date is not None:
            clock = self.devices["clock"] = Pl031(machine, date)
            machine.engine.map_device(CLOCK_BASE, clock.size, clock.read, clock.write)
        private = self.distributor.set_private
        self.cpus = tuple(
            ArmCpu(machine, i, self.interfaces[i], functools.partial(private, i))
            for i in range(count))

    def _interface_read(self, offset: int, size: int) -> int:
        return self.interfaces[self.machine.engine.cpu].read(offset, size)

    def _interface_write(self, offset: int, size: int, value: int) -> None:
        self.interfaces[self.machine.engine.cpu].write(offset, size, value)

    def firmware(self) -> bytes:
        """Reset the boot CPU and return the flattened device tree."""
        self.cpus[0].reset()
        return flatten(self.device_tree())

    def device_tree(self) -> DeviceNode:
        """Return the device tree of the board."""
        gic, clock = 1, 2  # phandles
        level, high = 4, 0xF04

        def serial_port(base: int, spi: int) -> DeviceNode:
            return DeviceNode(f"pl011@{base:x}", compatible=["arm,pl011", "arm,primecell"],
                              reg=cells64(base, 0x1000), interrupts=[0, spi, level],
                              clocks=[clock, clock], clock_names=["uartclk", "apb_pclk"])

        root = DeviceNode("", N_address_cells=2, N_size_cells=2, compatible="linux,dummy-virt",
                    model="kinst,arm64", interrupt_parent=gic)
        root.add(
            DeviceNode("chosen", stdout_path=f"/pl011@{UART_BASE:x}"),
            DeviceNode(f"memory@{RAM_BASE:x}", device_type="memory",
                 reg=cells64(RAM_BASE, self.machine.memory)),
            DeviceNode("psci", compatible=["arm,psci-1.0", "arm,psci-0.2", "arm,psci"],
                       method="hvc",
                 cpu_off=psci.CPU_OFF, cpu_on=psci.CPU_ON_64),
            DeviceNode("cpus", N_address_cells=1, N_size_cells=0).add(
                *(cpu_node(i, len(self.cpus), compatible="arm,cortex-a57", enable_method="psci")
                  for i in range(len(self.cpus)))
            ),
            DeviceNode("timer", compatible=["arm,armv8-timer", "arm,armv7-timer"], always_on=None,
                 interrupts=[1, 13, high, 1, PPI_PHYSICAL, high, 1, PPI_VIRTUAL, high,
                             1, 10, high]),
            DeviceNode(f"intc@{GICD_BASE:x}", compatible="arm,cortex-a15-gic", N_interrupt_cells=3,
                 interrupt_controller=None, phandle=gic, N_address_cells=2, N_size_cells=2,
                 reg=cells64(GICD_BASE, 0x1000, GICC_BASE, 0x2000)),
            DeviceNode("apb-pclk", compatible="fixed-clock", N_clock_cells=0,
                 clock_frequency=UART_CLOCK, phandle=clock),
            serial_port(UART_BASE, UART_SPI),
            *(DeviceNode(f"virtio_mmio@{VIRTIO_BASE + VIRTIO_STEP * i:x}",
                         compatible="virtio,mmio",
                         reg=cells64(VIRTIO_BASE + VIRTIO_STEP * i, VIRTIO_STEP),
                         interrupts=[0, VIRTIO_SPI + i, level]) for i in range(len(self._slots))),
        )
        if self.second is not None:
            root.add(serial_port(SECOND_BASE, SECOND_SPI))
        if "clock" in self.devices:
            root.add(DeviceNode(
                f"pl031@{CLOCK_BASE:x}", compatible=["arm,pl031", "arm,primecell"],
                reg=cells64(CLOCK_BASE, 0x1000), interrupts=[0, CLOCK_SPI, level], clocks=clock,
                clock_names="apb_pclk"))
        return root


BOARD = ArmBoard
