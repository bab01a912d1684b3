"""The riscv64 computer, like QEMU's ``virt``: RAM at 2 GiB, SBI firmware, PLIC, 16550."""

from emu.devices.device import Line
from emu.devices.devicetree import DeviceNode, cells64, cpu_node, flatten
from emu.devices.goldfish_rtc import GoldfishRtc
from emu.devices.ns16550 import Ns16550
from emu.devices.plic import Plic
from emu.devices.virtio_mmio import VirtioMmio
from emu.riscv64.registers import TIMEBASE
from emu.unicorn.board import Board
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.riscv64.cpu import RiscvCpu
from emu.unicorn.virtio_slots import disks_in, files_in, network_in, virtio_slots

RAM_BASE = 0x80000000
UART_BASE, PLIC_BASE = 0x10000000, 0x0C000000
UART_IRQ = 10
CLOCK_BASE, CLOCK_IRQ = 0x101000, 11
SECOND_BASE, SECOND_IRQ = 0x10010000, 12
VIRTIO_BASE, VIRTIO_STEP, VIRTIO_IRQ = 0x10001000, 0x1000, 1


class RiscvBoard(Board):
    """The riscv64 board: PLIC, 16550, real-time clock and virtio disks, and SBI firmware."""

    ram_base = RAM_BASE
    hidden_base = 0x40000000

    def __init__(self, machine: UnicornMachine) -> None:
        self.machine = machine
        RiscvCpu.prepare(machine)
        count = machine.image.options.cpus
        self.plic = Plic(machine.interrupts_changed, count)
        self.uart = Ns16550(machine, Line(self.plic.set_line, UART_IRQ))
        self.devices = {"plic": self.plic, "uart": self.uart}
        machine.engine.map_device(PLIC_BASE, self.plic.size, self.plic.read, self.plic.write)
        machine.engine.map_device(UART_BASE, 0x1000, self.uart.read, self.uart.write)
        options, line = machine.image.options, self.plic.set_line
        self._slots = virtio_slots(options, machine, lambda i: Line(line, VIRTIO_IRQ + i))
        self.disks, self.network = disks_in(self._slots), network_in(self._slots)
        self.files = files_in(self._slots)
        for i, slot in enumerate(self._slots):
            device = self.devices[slot.name] = VirtioMmio(slot.device, slot.kind)
            machine.engine.map_device(
                VIRTIO_BASE + VIRTIO_STEP * i, VIRTIO_STEP, device.read, device.write)
        if options.serial:
            port = self.second = self.devices["uart1"] = Ns16550(
                machine, Line(line, SECOND_IRQ), name="uart1")
            machine.engine.map_device(SECOND_BASE, 0x1000, port.read, port.write)
        date = options.date
        if date is not None:
            clock = self.devices["clock"] = GoldfishRtc(machine, date)
            machine.engine.map_device(CLOCK_BASE, clock.size, clock.read, clock.write)
        self.cpus = tuple(RiscvCpu(machine, i, self.plic) for i in range(count))

    def firmware(self) -> bytes:
        """Reset the boot hart and return the flattened device tree."""
        self.cpus[0].reset()
        return flatten(self.device_tree())

    def device_tree(self) -> DeviceNode:
        """Return the device tree of the board."""
        count = len(self.cpus)
        # Phandles of the interrupt controllers: one for each hart, and one for the PLIC.
        harts, plic = [1, *range(3, 2 + count)], 2

        def serial_port(base: int, irq: int) -> DeviceNode:
            return DeviceNode(f"serial@{base:x}", compatible="ns16550a",
                              reg=cells64(base, 0x100), clock_frequency=3686400,
                              interrupt_parent=plic, interrupts=irq)

        root = DeviceNode("", N_address_cells=2, N_size_cells=2, compatible="riscv-virtio",
                    model="kinst,riscv64")
        root.add(
            DeviceNode("chosen", stdout_path=f"/soc/serial@{UART_BASE:x}"),
            DeviceNode(f"memory@{RAM_BASE:x}", device_type="memory",
                 reg=cells64(RAM_BASE, self.machine.memory)),
            DeviceNode("cpus", N_address_cells=1, N_size_cells=0, timebase_frequency=TIMEBASE).add(
                *(cpu_node(i, count, status="okay", compatible="riscv", riscv__isa="rv64imafdc",
                           mmu_type="riscv,sv39").add(
                    DeviceNode("interrupt-controller", N_interrupt_cells=1,
                               interrupt_controller=None, compatible="riscv,cpu-intc",
                               phandle=hart)) for i, hart in enumerate(harts))
            ),
            DeviceNode("soc", N_address_cells=2, N_size_cells=2, compatible="simple-bus",
                 ranges=None).add(
                DeviceNode(f"plic@{PLIC_BASE:x}", compatible=["sifive,plic-1.0.0", "riscv,plic0"],
                     reg=cells64(PLIC_BASE, self.plic.size), N_interrupt_cells=1,
                     N_address_cells=0, interrupt_controller=None, riscv__ndev=63, phandle=plic,
                     interrupts_extended=[
                         cell for hart in harts for cell in (hart, 11, hart, 9)]),
                serial_port(UART_BASE, UART_IRQ),
                *(DeviceNode(f"virtio_mmio@{VIRTIO_BASE + VIRTIO_STEP * i:x}",
                             compatible="virtio,mmio", interrupt_parent=plic,
                             reg=cells64(VIRTIO_BASE + VIRTIO_STEP * i, VIRTIO_STEP),
                             interrupts=VIRTIO_IRQ + i) for i in range(len(self._slots))),
                *([serial_port(SECOND_BASE, SECOND_IRQ)] if self.second is not None else []),
                *([DeviceNode(f"rtc@{CLOCK_BASE:x}", compatible="google,goldfish-rtc",
                              interrupt_parent=plic, reg=cells64(CLOCK_BASE, 0x1000),
                              interrupts=CLOCK_IRQ)] if "clock" in self.devices else []),
            ),
        )
        return root


BOARD = RiscvBoard
