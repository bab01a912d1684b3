import random

import pytest

from emu.devices.cmos import Cmos
from emu.devices.device import Line
from emu.devices.gicv2 import SPURIOUS, CpuInterface, Distributor
from emu.devices.i8254 import FREQUENCY, I8254
from emu.devices.ioapic import IoApic
from emu.devices.lapic import LocalApic
from emu.devices.ns16550 import Ns16550
from emu.devices.pci_configuration import PciConfiguration
from emu.devices.pl011 import Pl011
from emu.devices.plic import Plic
from emu.machine.events import EventQueue


class Bus:
    """Stand-in for the bus, with a virtual time that the test advances."""

    def __init__(self):
        self.now, self.out, self.queue = 0, bytearray(), EventQueue()
        self.timer = self.queue.timer
        self.changes = 0

    def spend(self, nanoseconds):
        self.now += nanoseconds

    def output(self, data):
        self.out.append(data)

    def interrupts_changed(self):
        self.changes += 1

    def advance(self, nanoseconds):
        end = self.now + nanoseconds
        while self.queue.next() <= end:
            self.now = self.queue.next()
            self.queue.run(self.now)
        self.now = end


class Wire:
    def __init__(self):
        self.level, self.edges = False, 0
        self.line = Line(self.set, 4)

    def set(self, number, level):
        self.edges += level and not self.level
        self.level = level


@pytest.fixture
def bus():
    return Bus()


def test_ns16550_transmits_and_reports_ready(bus):
    uart = Ns16550(bus, Wire().line)
    assert uart.read(5, 1) == 0x60 and uart.read(2, 1) == 1
    uart.write(0, 1, ord("x"))
    assert bus.out == b"x"


def test_ns16550_divisor_latch_hides_data_and_interrupt_enable(bus):
    uart = Ns16550(bus, Wire().line)
    uart.write(3, 1, 0x83)
    uart.write(0, 1, 0x34)
    uart.write(1, 1, 0x12)
    assert (uart.read(0, 1), uart.read(1, 1)) == (0x34, 0x12)
    uart.write(3, 1, 3)
    assert uart.read(1, 1) == 0 and bus.out == b""


def test_ns16550_received_bytes_raise_an_interrupt(bus):
    wire = Wire()
    uart = Ns16550(bus, wire.line)
    uart.write(2, 1, 1)
    uart.write(1, 1, 1)
    uart.type(b"ab")
    assert not wire.level
    bus.advance(100_000_000)
    assert wire.level and uart.read(2, 1) & 0xF == 4
    assert [uart.read(0, 1), uart.read(0, 1)] == [ord("a"), ord("b")]
    assert not wire.level and uart.read(5, 1) & 1 == 0


def test_ns16550_loopback_fills_sixteen_bytes_and_then_overruns(bus):
    uart = Ns16550(bus, Wire().line)
    uart.write(2, 1, 1)
    uart.write(4, 1, 0x10)
    for i in range(17):
        uart.write(0, 1, i)
    assert uart.read(5, 1) & 2
    assert [uart.read(0, 1) for _ in range(16)] == list(range(16)) and bus.out == b""


def test_ns16550_transmit_interrupt_is_cleared_by_reading_its_cause(bus):
    wire = Wire()
    uart = Ns16550(bus, wire.line)
    uart.write(1, 1, 2)
    assert wire.level and uart.read(2, 1) & 0xF == 2
    assert not wire.level and uart.read(2, 1) & 0xF == 1


def test_pl011_sends_receives_and_identifies_itself(bus):
    wire = Wire()
    uart = Pl011(bus, wire.line)
    assert [uart.read(0xFE0 + 4 * i, 4) for i in range(4)] == [0x11, 0x10, 0x14, 0]
    assert uart.read(0x18, 4) & 0x10
    uart.write(0x38, 4, 0x50)
    uart.type(b"q")
    bus.advance(100_000_000)
    assert wire.level and not uart.read(0x18, 4) & 0x10
    assert uart.read(0, 4) == ord("q") and not wire.level
    uart.write(0, 4, ord("z"))
    assert bus.out == b"z"


def test_i8254_counts_down_at_its_frequency(bus):
    pit = I8254(bus, Wire().line)
    pit.write(3, 1, 0x34)
    pit.write(0, 1, 0xFF)
    pit.write(0, 1, 0xFF)

    def count():
        pit.write(3, 1, 0)
        return pit.read(0, 1) | pit.read(0, 1) << 8

    first, began = count(), bus.now
    bus.advance(10_000_000)
    expected = (bus.now - began) * FREQUENCY // 1_000_000_000
    # Each access takes half a microsecond of virtual time.
    assert abs((first - count()) % 0xFFFF - expected) <= 4


def test_i8254_channel_0_interrupts_every_period(bus):
    wire = Wire()
    pit = I8254(bus, wire.line)
    pit.write(3, 1, 0x34)
    pit.write(0, 1, 11932 & 0xFF)
    pit.write(0, 1, 11932 >> 8)
    bus.advance(1_000_000_000)
    assert 99 <= wire.edges <= 100


def test_lapic_timer_counts_and_interrupts_once(bus):
    apic = LocalApic(bus)
    apic.write(0xF0, 4, 0x1FF)
    apic.write(0x3E0, 4, 0xB)
    apic.write(0x320, 4, 0x40)
    apic.write(0x380, 4, 1000)
    bus.advance(5000)
    assert apic.read(0x390, 4) == 500 and apic.pending() is None
    bus.advance(5000)
    assert apic.pending() == 0x40 and apic.acknowledge() == 0x40
    assert apic.pending() is None and apic.read(0x120, 4) == 1
    apic.write(0xB0, 4, 0)
    assert apic.isr == 0 and apic.read(0x390, 4) == 0


def test_lapic_holds_back_interrupts_that_the_task_priority_masks(bus):
    apic = LocalApic(bus)
    apic.write(0xF0, 4, 0x1FF)
    apic.request(0x45)
    apic.write(0x80, 4, 0x40)
    assert apic.pending() is None
    apic.write(0x80, 4, 0x30)
    assert apic.pending() == 0x45


def test_ioapic_resends_a_level_interrupt_that_stays_asserted_after_eoi():
    sent = []
    apic = IoApic(lambda entry, _destination: sent.append(entry & 0xFF), 1)
    apic.write(0, 4, 0x10 + 2 * 5)
    apic.write(0x10, 4, 0x8031)
    apic.set_line(5, True)
    apic.set_line(5, True)
    assert sent == [0x31]
    apic.end_of_interrupt(0x31)
    assert sent == [0x31, 0x31]
    apic.set_line(5, False)
    apic.end_of_interrupt(0x31)
    assert sent == [0x31, 0x31] and apic.read(0x10, 4) & 1 << 14 == 0


def test_gic_delivers_the_highest_priority_and_preempts_only_for_higher():
    gic = Distributor(lambda: None)
    cpu = CpuInterface(gic, lambda: None)
    gic.write(0, 4, 1)
    cpu.write(0, 4, 1)
    cpu.write(4, 4, 0xFF)
    for number, priority in ((40, 0x80), (41, 0x40)):
        gic.write(0x100 + number // 32 * 4, 4, 1 << number % 32)
        gic.write(0x400 + number, 1, priority)
        gic.set_line(number, True)
    assert cpu.asserted and cpu.read(0xC, 4) == 41
    assert not cpu.asserted and cpu.read(0xC, 4) == SPURIOUS
    gic.set_line(41, False)
    cpu.write(0x10, 4, 41)
    assert cpu.read(0xC, 4) == 40


def test_a_cpu_can_send_itself_a_gic_software_interrupt():
    gic = Distributor(lambda: None)
    cpu = CpuInterface(gic, lambda: None)
    gic.write(0, 4, 1)
    cpu.write(0, 4, 1)
    cpu.write(4, 4, 0xFF)
    gic.write(0xF00, 4, 2 << 24 | 3)
    assert cpu.read(0xC, 4) == 3


def test_plic_delivers_a_claimed_interrupt_again_only_after_completion():
    plic = Plic(lambda: None)
    plic.write(4 * 10, 4, 1)
    plic.write(0x2080, 4, 1 << 10)
    plic.set_line(10, True)
    assert plic.asserted(0) and plic.read(0x201004, 4) == 10
    assert not plic.asserted(0) and plic.read(0x201004, 4) == 0
    plic.write(0x201004, 4, 10)
    assert plic.asserted(0)
    plic.write(0x201000, 4, 1)
    assert not plic.asserted(0)


def test_cmos_calendar_follows_virtual_time_in_bcd(bus):
    cmos = Cmos(bus)

    def read(index):
        cmos.write(0, 1, index)
        return cmos.read(1, 1)

    assert (read(9), read(8), read(7), read(4), read(0)) == (0x25, 0x12, 0x02, 0, 0)
    bus.advance(((23 * 60 + 59) * 60 + 58) * 1_000_000_000)
    assert (read(4), read(2), read(0)) == (0x23, 0x59, 0x58)
    assert read(0xD) == 0x80


def test_an_empty_pci_bus_reads_ones_and_its_address_register_reads_back(bus):
    pci = PciConfiguration(bus)
    pci.write(0, 4, 0x80001003)
    assert pci.read(0, 4) == 0x80001000 and pci.read(4, 4) == 0xFFFFFFFF
    assert pci.read(6, 2) == 0xFFFF


DEVICES = [
    lambda b: Ns16550(b, Wire().line), lambda b: Pl011(b, Wire().line),
    lambda b: I8254(b, Wire().line), LocalApic, Cmos, PciConfiguration,
    lambda b: IoApic(lambda v: None, 1),
    lambda b: Plic(lambda: None), lambda b: Distributor(lambda: None),
]


@pytest.mark.parametrize("make", DEVICES)
def test_a_restored_device_answers_like_the_original(make):
    one, two = make(Bus()), make(Bus())
    for offset in (0, 1, 2, 3, 4, 0x80, 0x100, 0x320, 0x380):
        if offset < one.size:
            one.write(offset, 1, 0x35)
    two.restore(one.state())
    assert two.state() == one.state()
    for device in (one, two):
        if hasattr(device, "_bus"):
            device._bus.now = 5_000_000
    answers = [[device.read(at, 1) for at in range(0, min(one.size, 0x400), 4)]
               for device in (one, two)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("make", DEVICES)
def test_a_device_can_be_restored_between_any_two_states(make):
    bus, choice = Bus(), random.Random(5)
    device, states = make(bus), []
    for _ in range(300):
        offset = choice.randrange(min(device.size, 0x400))
        if choice.random() < 0.3:
            device.read(offset, 1)
        else:
            device.write(offset, 1, choice.randrange(256))
        bus.advance(choice.randrange(10_000))
        states.append(device.state())
        device.restore(choice.choice(states))
        device.restore(states[-1])
        assert device.state() == states[-1]


def test_a_half_read_latched_count_is_restored(bus):
    pit = I8254(bus, Wire().line)
    pit.write(3, 1, 0x34)
    pit.write(0, 1, 0x34)
    pit.write(0, 1, 0x12)
    states = [pit.state()]
    pit.write(3, 1, 0)
    states.append(pit.state())
    low = pit.read(0, 1)
    states.append(pit.state())
    high = pit.read(0, 1)
    for state in (*states, *reversed(states)):
        pit.restore(state)
        assert pit.state() == state
    pit.restore(states[1])
    assert (pit.read(0, 1), pit.read(0, 1)) == (low, high)
