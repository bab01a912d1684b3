"""The riscv64 computer, like QEMU's ``virt``: RAM at 2 GiB, SBI firmware, PLIC, 16550."""

from emu.devices.device import Line
from emu.devices.devicetree import DeviceNode, cells64, cpu_node, flatten
from emu.devices.goldfish_rtc import GoldfishRtc
from emu.devices.ns16550 import Ns16550
from emu.devices.plic import Plic
from emu.devices.virtio_block import VirtioBlock
from emu.devices.virtio_mmio import VirtioMmio
from emu.riscv64.registers import TIMEBASE
from emu.unicorn.board import Board
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.riscv64.cpu import RiscvCpu

RAM_BASE = 0x80000000
UART_BASE, PLIC_BASE = 0x10000000, 0x0C000000
UART_IRQ = 10
CLOCK_BASE, CLOCK_IRQ = 0x101000, 11
DISK_BASE, DISK_STEP, DISK_IRQ = 0x10001000, 0x1000, 1


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
        self.disks = tuple(
            VirtioBlock(machine, f"disk{i}", image.content,
                        Line(self.plic.set_line, DISK_IRQ + i))
            for i, image in enumerate(machine.image.options.disks))
        for i, disk in enumerate(self.disks):
            device = self.devices[f"disk{i}"] = VirtioMmio(disk)
            machine.engine.map_device(
                DISK_BASE + DISK_STEP * i, DISK_STEP, device.read, device.write)
        date = machine.image.options.date
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
                DeviceNode(f"serial@{UART_BASE:x}", compatible="ns16550a",
                     reg=cells64(UART_BASE, 0x100), clock_frequency=3686400,
                     interrupt_parent=plic, interrupts=UART_IRQ),
                *(DeviceNode(f"virtio_mmio@{DISK_BASE + DISK_STEP * i:x}",
                             compatible="virtio,mmio", interrupt_parent=plic,
                             reg=cells64(DISK_BASE + DISK_STEP * i, DISK_STEP),
                             interrupts=DISK_IRQ + i) for i in range(len(self.disks))),
                *([DeviceNode(f"rtc@{CLOCK_BASE:x}", compatible="google,goldfish-rtc",
                              interrupt_parent=plic, reg=cells64(CLOCK_BASE, 0x1000),
                              interrupts=CLOCK_IRQ)] if "clock" in self.devices else []),
            ),
        )
        return root

    def type(self, data: bytes) -> None:
        """Type bytes at the serial console."""
        self.uart.type(data)

    @property
    def keys_left(self) -> bool:
        """Whether the guest has not yet read all typed bytes."""
        return self.uart.keys_left

BOARD = RiscvBoard
