"""Tests of interrupt controllers with several CPUs, and of PSCI and SBI firmware calls."""

from types import SimpleNamespace

from emu.devices.gicv2 import CpuInterface, Distributor
from emu.devices.lapic import LocalApic
from emu.devices.plic import Plic
from emu.unicorn.arm64 import psci
from emu.unicorn.riscv64 import sbi
from tests.emu.devices.test_devices import Bus


def gic(cpus=3):
    present = [0]
    distributor = Distributor(lambda: None, cpus, lambda: present[0])
    interfaces = [CpuInterface(distributor, lambda: None, i) for i in range(cpus)]
    for number, interface in enumerate(interfaces):
        present[0] = number
        distributor.write(0, 4, 1)
        distributor.write(0x400, 4, 0x80808080)
        distributor.write(0x410, 4, 0x80808080)
        interface.write(0, 4, 1)
        interface.write(4, 4, 0xFF)
    return distributor, interfaces, present


def test_a_gic_software_interrupt_reaches_its_targets_and_names_the_sender():
    distributor, interfaces, present = gic()
    for sender, command, reached in ((0, 1 << 24 | 2, {1, 2}), (1, 2 << 24 | 1, {1}),
                                     (2, 0b011 << 16 | 3, {0, 1}), (0, 0b1000 << 16 | 3, set())):
        present[0] = sender
        distributor.write(0xF00, 4, command)
        assert {n for n, one in enumerate(interfaces) if one.asserted} == reached
        for number in sorted(reached):
            acknowledged = interfaces[number].read(0xC, 4)
            assert (acknowledged & 0x3FF, acknowledged >> 10) == (command & 15, sender)
            interfaces[number].write(0x10, 4, acknowledged)
    assert not any(one.asserted for one in interfaces)


def test_a_gic_delivers_one_software_interrupt_for_each_sender():
    distributor, interfaces, present = gic()
    for sender in (0, 2):
        present[0] = sender
        distributor.write(0xF00, 4, 0b010 << 16 | 5)
    taken = []
    while interfaces[1].asserted:
        taken.append(interfaces[1].read(0xC, 4))
        interfaces[1].write(0x10, 4, taken[-1])
    assert [one >> 10 for one in taken] == [0, 2] and {one & 0x3FF for one in taken} == {5}


def test_gic_interrupts_below_32_are_private_and_the_others_are_routed():
    distributor, interfaces, present = gic()
    present[0] = 1
    distributor.write(0x100, 4, 1 << 27)
    assert distributor.read(0x800, 4) == 0x02020202
    distributor.set_private(1, 11, True)
    distributor.set_private(2, 11, True)  # interrupt 11 is not enabled on this CPU
    assert [one.asserted for one in interfaces] == [False, True, False]
    present[0] = 2
    assert distributor.read(0x200, 4) == 1 << 27 and distributor.read(0x100, 4) == 0xFFFF
    distributor.set_private(1, 11, False)
    distributor.write(0x104, 4, 1 << 3)  # enable interrupt 35
    distributor.write(0x423, 1, 0x40)
    distributor.write(0x823, 1, 0b101)
    distributor.set_line(35, True)
    assert [one.asserted for one in interfaces] == [True, False, True]
    assert interfaces[2].read(0xC, 4) == 35
    assert not any(one.asserted for one in interfaces), "interrupt 35 is active on every CPU"


def test_gic_distributor_state_includes_banked_registers():
    one, _interfaces, present = gic()
    present[0] = 2
    one.write(0x100, 4, 1 << 20)
    one.write(0xF00, 4, 0b010 << 16 | 4)
    other = gic()[0]
    other.restore(one.state())
    assert other.state() == one.state() and other.bits("pending", 1) == 1 << 4
    kept = one.keep()
    one.write(0x180, 4, 0xFFFFFFFF)
    one.write(0xF00, 4, 0b001 << 16 | 4)
    one.put_back(kept)
    assert other.state() == one.state()


def test_a_local_apic_accepts_messages_that_its_destination_selects():
    for number, destination, logical, meant in (
            (2, 2, False, True), (2, 1, False, False), (2, 0xFF, False, True)):
        apic = LocalApic(Bus(), number, lambda *_: None)
        assert apic.is_meant(destination, logical) is meant
        assert apic.read(0x20, 4) == number << 24
    apic = LocalApic(Bus(), 5, lambda *_: None)
    apic.write(0xD0, 4, 0b0100 << 24)
    assert apic.is_meant(0b0110, True) and not apic.is_meant(0b1011, True)
    apic.write(0xE0, 4, 0x0FFFFFFF)  # select the cluster model
    apic.write(0xD0, 4, 0x24 << 24)
    assert apic.is_meant(0x2C, True) and not apic.is_meant(0x34, True)


def test_a_local_apic_sends_commands_and_init_resets_it():
    sent = []
    apic = LocalApic(Bus(), 1, lambda command, destination: sent.append((command, destination)))
    fresh = apic.state()
    apic.write(0x310, 4, 3 << 24)
    apic.write(0x300, 4, 0x4500)
    assert sent == [(0x4500, 3)]
    apic.write(0xF0, 4, 0x1FF)
    apic.request(0x50)
    apic.urge()
    assert apic.pending() == 0x50 and apic.urgent
    apic.reset()
    assert apic.pending() is None
    assert {**apic.state(), "urgent": False} == fresh


def test_each_hart_has_its_own_plic_context():
    plic = Plic(lambda: None, 3)
    plic.write(4 * 7, 4, 1)
    plic.write(0x2000 + 0x80 * 5, 4, 1 << 7)  # hart 2, S-mode
    plic.set_line(7, True)
    assert [plic.asserted(hart) for hart in range(3)] == [False, False, True]
    assert plic.read(0x200000 + 0x1000 * 3 + 4, 4) == 0
    assert plic.read(0x200000 + 0x1000 * 5 + 4, 4) == 7
    assert not plic.asserted(2)
    plic.write(0x200000 + 0x1000 * 5 + 4, 4, 7)
    assert plic.asserted(2)
    plic.write(0x200000 + 0x1000 * 5, 4, 1)
    assert not plic.asserted(2) and plic.read(0x200000 + 0x1000 * 5, 4) == 1
    for offset in (0x2000 + 0x80 * 7, 0x200000 + 0x1000 * 7, 0x200000 + 0x1000 * 4):
        plic.write(offset, 4, 1)  # contexts of an absent hart or of M-mode
        assert plic.read(offset, 4) == 0
    other = Plic(lambda: None, 3)
    other.restore(plic.state())
    assert other.state() == plic.state()


def cpus(*on):
    made = [SimpleNamespace(on=one, posted=[]) for one in on]
    for one in made:
        one.post = lambda address, argument, one=one: (
            setattr(one, "on", True), setattr(one, "posted", [address, argument]))
    return made


def test_psci_starts_a_cpu_once_and_reports_which_are_on():
    them, done = cpus(True, False), []

    def call(*arguments):
        return psci.call([*arguments, 0, 0, 0], them, lambda: done.append("off"),
                         lambda again: done.append(again))

    assert call(psci.AFFINITY_INFO_64, 1) == psci.IS_OFF
    assert call(psci.CPU_ON_64, 1, 0x40000000, 7) == psci.SUCCESS
    assert them[1].posted == [0x40000000, 7]
    assert call(psci.CPU_ON_64, 1, 0, 0) == psci.ON_PENDING
    assert call(psci.AFFINITY_INFO_64, 1) == psci.IS_PENDING
    them[1].posted = []
    assert call(psci.CPU_ON_64, 1, 0, 0) == psci.ALREADY_ON
    assert call(psci.CPU_ON_64, 1 << 24, 0, 0) == psci.INVALID
    assert call(psci.CPU_ON_64, 2, 0, 0) == psci.INVALID
    assert call(psci.AFFINITY_INFO_64, 1) == psci.IS_ON
    assert call(psci.CPU_OFF) == psci.SUCCESS and call(psci.SYSTEM_RESET) == psci.SUCCESS
    assert done == ["off", True]


def test_sbi_starts_harts_and_sends_interrupts_to_hart_masks():
    sent, started = [], []
    firmware = sbi.Sbi(lambda _t: None, lambda _b: None, lambda: -1, lambda _a: None,
                       sent.append, lambda *which: started.append(which) or sbi.SUCCESS,
                       lambda: started.append("stopped"),
                       lambda hart: (sbi.SUCCESS, sbi.STARTED) if hart < 2
                       else (sbi.INVALID_PARAM, 0), 3)
    assert firmware.call(sbi.HSM, 0, [1, 0x80200000, 5]) == (sbi.SUCCESS, 0)
    assert firmware.call(sbi.HSM, 2, [1, 0, 0]) == (sbi.SUCCESS, sbi.STARTED)
    assert firmware.call(sbi.HSM, 2, [2, 0, 0]) == (sbi.INVALID_PARAM, 0)
    assert firmware.call(sbi.HSM, 1, [0, 0, 0]) == (sbi.SUCCESS, 0)
    firmware.call(sbi.IPI, 0, [0b11, 1])
    firmware.call(sbi.IPI, 0, [0, (1 << 64) - 1])
    for mask, base in ((0b100, 1), (1, 64), (1, 1000)):
        assert firmware.call(sbi.IPI, 0, [mask, base])[0] == sbi.INVALID_PARAM
    assert firmware.call(sbi.IPI, 7, [1, 0])[0] == sbi.NOT_SUPPORTED
    assert firmware.call(sbi.RFENCE, 99, [1, 0])[0] == sbi.NOT_SUPPORTED
    assert started == [(1, 0x80200000, 5), "stopped"]
    assert sent == [0b110, 0b111]


def test_sbi_announces_exactly_the_legacy_calls_that_it_carries_out():
    firmware = sbi.Sbi(lambda _t: None, lambda _b: None, lambda: -1, lambda _a: None,
                       lambda _h: None, lambda *_w: sbi.SUCCESS, lambda: None,
                       lambda _h: (sbi.SUCCESS, sbi.STARTED))
    for extension in range(16):
        announced = firmware.call(sbi.BASE, 3, [extension]) == (sbi.SUCCESS, 1)
        assert announced == (firmware.call(extension, 0, [0, 0, 0])[0] != sbi.NOT_SUPPORTED)
        assert announced == (extension in sbi.LEGACY)
