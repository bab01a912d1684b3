"""Tests of the real-time clocks: their dates, how a guest sets them, and their snapshots."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emu.devices import cmos as mc146818
from emu.devices import goldfish_rtc, pl031
from emu.devices.clock import SECOND
from emu.devices.cmos import Cmos
from emu.devices.goldfish_rtc import GoldfishRtc
from emu.devices.pl031 import Pl031
from tests.emu.devices.test_devices import Bus

START = datetime.datetime(2026, 1, 31, 23, 59, 58, tzinfo=datetime.UTC)
SECONDS = int(START.timestamp())


def read_cmos(clock):
    """Return the date that a CMOS clock shows, as a driver reads it."""
    def register(index):
        clock.write(0, 1, index)
        value = clock.read(1, 1)
        return (value >> 4) * 10 + (value & 15)
    year, month, day, hour, minute, second = (register(index) for index in (
        mc146818.YEAR, mc146818.MONTH, mc146818.DAY, mc146818.HOURS, mc146818.MINUTES,
        mc146818.SECONDS))
    return datetime.datetime(register(mc146818.CENTURY) * 100 + year, month, day, hour, minute,
                             second, tzinfo=datetime.UTC)


def set_cmos(clock, date):
    """Set a CMOS clock as FreeBSD's driver does: halted, and without the century."""
    def write(index, value):
        clock.write(0, 1, index)
        clock.write(1, 1, value)
    write(mc146818.B, mc146818.B_SET | mc146818.B_24H)
    for index, value in ((mc146818.SECONDS, date.second), (mc146818.MINUTES, date.minute),
                         (mc146818.HOURS, date.hour), (mc146818.DAY, date.day),
                         (mc146818.MONTH, date.month), (mc146818.YEAR, date.year % 100)):
        write(index, value // 10 << 4 | value % 10)
    write(mc146818.B, mc146818.B_24H)


def read_goldfish(clock):
    low = clock.read(goldfish_rtc.TIME_LOW, 4)
    return clock.read(goldfish_rtc.TIME_HIGH, 4) << 32 | low


def test_each_clock_shows_its_start_date_and_follows_virtual_time():
    bus = Bus()
    cmos, arm, riscv = Cmos(bus, SECONDS), Pl031(bus, SECONDS), GoldfishRtc(bus, SECONDS)
    assert read_cmos(cmos) == START
    bus.now += 2 * SECOND + 5
    assert read_cmos(cmos) == START + datetime.timedelta(seconds=2)
    assert arm.read(pl031.DR, 4) == SECONDS + 2
    assert read_goldfish(riscv) == (SECONDS + 2) * SECOND + 5


@given(st.datetimes(datetime.datetime(2000, 1, 1), datetime.datetime(2099, 12, 31)))
def test_a_guest_can_set_the_clocks(date):
    bus = Bus()
    date = date.replace(microsecond=0, tzinfo=datetime.UTC)
    seconds = int(date.timestamp())
    cmos, arm, riscv = Cmos(bus, SECONDS), Pl031(bus, SECONDS), GoldfishRtc(bus, SECONDS)
    bus.now += 7 * SECOND
    set_cmos(cmos, date)
    arm.write(pl031.LR, 4, seconds)
    riscv.write(goldfish_rtc.TIME_HIGH, 4, seconds * SECOND >> 32)
    riscv.write(goldfish_rtc.TIME_LOW, 4, seconds * SECOND & 0xFFFFFFFF)
    bus.now += SECOND
    assert read_cmos(cmos) == date + datetime.timedelta(seconds=1)
    assert arm.read(pl031.DR, 4) == seconds + 1 & 0xFFFFFFFF
    assert read_goldfish(riscv) == (seconds + 1) * SECOND


def test_an_invalid_date_leaves_the_clock_unchanged():
    clock = Cmos(Bus(), SECONDS)
    set_cmos(clock, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
    before = read_cmos(clock)
    clock.write(0, 1, mc146818.B)
    clock.write(1, 1, mc146818.B_SET | mc146818.B_24H)
    clock.write(0, 1, mc146818.MONTH)
    clock.write(1, 1, 0x99)
    clock.write(0, 1, mc146818.B)
    clock.write(1, 1, mc146818.B_24H)
    assert read_cmos(clock) == before


@pytest.mark.parametrize("make", [Cmos, Pl031, GoldfishRtc])
def test_a_snapshot_restores_a_clock_that_was_set(make):
    bus = Bus()
    clock, other = make(bus, SECONDS), make(bus, SECONDS)
    clock.set_time(5 * SECOND)
    other.restore(clock.state())
    assert other.time == clock.time == 5 * SECOND and other.state() == clock.state()


def test_the_fixed_clock_of_boots_without_a_date_keeps_its_state_format():
    assert set(Cmos(Bus()).state()) == {"index", "memory"}
