"""Tests of virtio disks: valid requests are carried out, and hostile queues do no harm."""

import json
import random
import struct

import pytest

from emu.devices.device import Line
from emu.devices.pci_configuration import PciConfiguration
from emu.devices.virtio_block import LATENCY, MAX_SEGMENTS, SECTOR, VirtioBlock
from emu.devices.virtio_device import DRIVER_OK, NEEDS_RESET, VERSION_1
from emu.devices.virtio_mmio import CONFIGURATION, VirtioMmio
from emu.devices.virtio_pci import VirtioPci
from emu.devices.virtio_queue import DESCRIPTOR, MAX_BYTES, MAX_SIZE, NEXT, WRITE
from emu.host.errors import MemoryAccessError
from emu.machine.events import NEVER, EventQueue

MEMORY = 1 << 20
RINGS, DATA = 0x1000, 0x8000
IN, OUT, FLUSH, GET_ID = 0, 1, 4, 8


class Computer:
    """Stand-in for a bus with memory and timers but without a CPU."""

    def __init__(self):
        self.memory = bytearray(MEMORY)
        self.events = EventQueue()
        self.now = 0
        self.accesses = 0

    def timer(self, name, callback):
        return self.events.timer(name, callback)

    def spend(self, nanoseconds):
        self.now += nanoseconds

    def _piece(self, address, size):
        self.accesses += 1
        if not 0 <= address <= MEMORY - size:
            raise MemoryAccessError(f"physical {address:#x} is not RAM")
        return slice(address, address + size)

    def check_memory(self, address, size):
        self._piece(address, size)

    def read_memory(self, address, size):
        return bytes(self.memory[self._piece(address, size)])

    def write_memory(self, address, data):
        self.memory[self._piece(address, len(data))] = data

    def until_quiet(self, most=1000):
        """Run up to ``most`` pending timers, and return the number of timers that ran."""
        rung = 0
        while self.events.next() != NEVER and rung < most:
            self.now = max(self.now, self.events.next())
            self.events.run(self.now)
            rung += 1
        return rung


class Driver:
    """Minimal virtio driver that accesses a disk through MMIO."""

    def __init__(self, content=bytes(range(256)) * 64):
        self.bus = Computer()
        self.levels = []
        self.block = VirtioBlock(self.bus, "disk0", memoryview(content),
                                 Line(lambda _n, level: self.levels.append(level), 1))
        self.device = VirtioMmio(self.block)
        self.sent = self.done = 0
        self.begin()

    def begin(self):
        write = self.device.write
        write(0x70, 4, 0)
        write(0x70, 4, 3)
        offered = 0
        for half in (0, 1):
            write(0x14, 4, half)
            offered |= self.device.read(0x10, 4) << 32 * half
        for half in (0, 1):
            write(0x24, 4, half)
            write(0x20, 4, offered >> 32 * half & 0xFFFFFFFF)
        write(0x70, 4, 11)
        assert self.device.read(0x70, 4) == 11
        write(0x30, 4, 0)
        assert self.device.read(0x34, 4) == MAX_SIZE
        write(0x38, 4, 8)
        for place, address in ((0x80, RINGS), (0x90, RINGS + 0x400), (0xA0, RINGS + 0x800)):
            write(place, 4, address)
            write(place + 4, 4, 0)
        write(0x44, 4, 1)
        write(0x70, 4, 15)
        self.sent = self.done = 0
        self.bus.memory[RINGS : RINGS + 0x1000] = bytes(0x1000)

    def put(self, pieces):
        """Queue a request with one descriptor for each (address, length, flags without NEXT)."""
        for i, (address, length, flags) in enumerate(pieces):
            more = NEXT if i + 1 < len(pieces) else 0
            DESCRIPTOR.pack_into(self.bus.memory, RINGS + DESCRIPTOR.size * i,
                                 address, length, flags | more, i + 1)
        struct.pack_into("<H", self.bus.memory, RINGS + 0x404 + 2 * (self.sent % 8), 0)
        self.sent = self.sent + 1 & 0xFFFF
        struct.pack_into("<H", self.bus.memory, RINGS + 0x402, self.sent)
        self.device.write(0x50, 4, 0)

    def ask(self, kind, sector, data=b"", room=0):
        """Execute a request and return (status, data read, length reported by the device)."""
        memory = self.bus.memory
        memory[DATA : DATA + 16] = struct.pack("<IIQ", kind, 0, sector)
        memory[DATA + 16 : DATA + 16 + len(data)] = data
        reply = DATA + 0x8000
        memory[reply : reply + room + 1] = b"\xEE" * (room + 1)
        pieces = [(DATA, 16, 0)]
        if data:
            pieces.append((DATA + 16, len(data), 0))
        if room:
            pieces.append((reply, room, WRITE))
        self.put([*pieces, (reply + room, 1, WRITE)])
        self.bus.until_quiet()
        assert struct.unpack_from("<H", memory, RINGS + 0x802)[0] == self.sent
        last = RINGS + 0x804 + 8 * ((self.sent - 1) % 8)
        _head, written = struct.unpack_from("<II", memory, last)
        return memory[reply + room], bytes(memory[reply : reply + room]), written


def test_reads_and_writes_work_and_do_not_change_the_image():
    content = bytes(range(256)) * 64
    driver = Driver(content)
    assert driver.ask(IN, 3, room=1024) == (0, content[1536:2560], 1025)
    new = bytes(255 - i % 256 for i in range(1024))
    assert driver.ask(OUT, 7, new)[0] == 0  # the write crosses a 4096-byte boundary
    assert driver.ask(FLUSH, 0)[0] == 0
    assert driver.ask(IN, 6, room=2048)[1] == content[3072:3584] + new + content[4608:5120]
    assert driver.ask(GET_ID, 0, room=20)[1].startswith(b"kinst\0")
    assert content == bytes(range(256)) * 64
    assert sorted(driver.block.written) == [0, 4096]
    assert driver.levels[-1] and driver.device.read(0x60, 4) == 1
    driver.device.write(0x64, 4, 1)
    assert not driver.levels[-1]


def test_a_request_takes_virtual_time():
    driver = Driver()
    driver.ask(IN, 0, room=512)
    assert driver.bus.now >= LATENCY


@pytest.mark.parametrize(("kind", "sector", "data", "room", "status"), [
    (IN, 32, b"", 512, 1), (IN, 1 << 62, b"", 512, 1), (IN, 0, b"", 100, 1),
    (OUT, 31, bytes(1024), 0, 1), (OUT, 0, bytes(5), 0, 1), (77, 0, b"", 512, 2),
])
def test_invalid_requests_complete_with_an_error_status(kind, sector, data, room, status):
    driver = Driver()
    assert driver.ask(kind, sector, data, room)[0] == status
    assert driver.ask(IN, 0, room=512)[0] == 0
    assert not driver.block.written


@pytest.mark.parametrize("pieces", [
    [(DATA, 16, 0)], [(DATA, 8, 0), (DATA, 1, WRITE)], [(DATA, 1, WRITE), (DATA, 16, 0)],
    [(MEMORY, 16, 0), (DATA, 1, WRITE)], [(DATA, 16, 0), (MEMORY - 1, 2, WRITE)],
    [(DATA, 0, 0), (DATA, 1, WRITE)], [(DATA, 16, 4), (DATA, 1, WRITE)],
    [(DATA, 16, 0), *[(DATA, MAX_BYTES // 4, WRITE)] * 5], [(1 << 63, 16, 0), (DATA, 1, WRITE)],
])
def test_a_queue_that_breaks_the_rules_stops_the_device_until_it_is_reset(pieces):
    driver = Driver()
    driver.put(pieces)
    driver.bus.until_quiet()
    assert driver.device.read(0x70, 4) & NEEDS_RESET and driver.block.trouble
    driver.device.write(0x50, 4, 0)
    assert driver.bus.until_quiet() == 0
    driver.begin()
    assert not driver.block.trouble
    assert driver.ask(IN, 0, room=512)[0] == 0


def test_a_cycle_of_descriptors_stops_the_device():
    driver = Driver()
    driver.put([(DATA, 16, 0), (DATA, 16, 0), (DATA, 1, WRITE)])
    DESCRIPTOR.pack_into(driver.bus.memory, RINGS + DESCRIPTOR.size, DATA, 16, NEXT, 0)
    driver.bus.until_quiet()
    assert "has a loop" in driver.block.trouble


def hostile(r, driver):
    """Manipulate memory and registers at random, as a hostile driver might."""
    memory, device = driver.bus.memory, driver.device
    interesting = [0, 1, 2, 7, 8, 0x7FFF, 0x8000, 0xFFFF, MEMORY - 1, MEMORY, MEMORY + 1, RINGS,
                   RINGS + 0x400, RINGS + 0x800, DATA, 1 << 31, (1 << 32) - 1, (1 << 64) - 1]

    def value(bits):
        found = r.choice(interesting) if r.random() < 0.7 else r.getrandbits(bits)
        return found & (1 << bits) - 1

    def request():
        """Queue a valid request, which later steps may corrupt."""
        driver.sent = driver.block.queues[0].taken
        kind = r.choice((IN, OUT, FLUSH, GET_ID))
        struct.pack_into("<IIQ", memory, DATA, kind, 0, r.randrange(30))
        driver.put([(DATA, 16, 0), *[(DATA + 512, 512, r.choice((0, WRITE)))] * r.randrange(2),
                    (DATA + 2048, 1, WRITE)])

    steps = {
        "request": request, "another request": request,
        "descriptor": lambda: DESCRIPTOR.pack_into(
            memory, RINGS + 16 * r.randrange(8), value(64) if r.random() < 0.4 else DATA,
            r.choice((1, 16, 512, 0, value(32))), r.choice((0, 1, 2, 3, 3, 1, value(16))),
            r.choice((r.randrange(8), value(16)))),
        "head": lambda: struct.pack_into(
            "<IIQ", memory, DATA, r.choice((0, 1, 4, 8, value(32))), 0,
            r.choice((0, 1, 31, value(64)))),
        "available": lambda: struct.pack_into(
            "<HH8H", memory, RINGS + 0x400, value(16) & 1,
            driver.block.queues[0].taken + r.choice((1, 1, 1, 2, 8, value(16))) & 0xFFFF,
            *(r.choice((r.randrange(8), value(16))) for _ in range(8))),
        "queue over itself": lambda: device.write(
            r.choice((0x80, 0x90, 0xA0)), 4, r.choice((RINGS, value(32)))),
        "high half": lambda: device.write(
            r.choice((0x84, 0x94, 0xA4)), 4, r.choice((0, value(32)))),
        "size": lambda: device.write(0x38, 4, r.choice((0, 1, 3, 8, 128, 256, value(32)))),
        "any register": lambda: device.write(
            4 * r.randrange(0x60), r.choice((1, 2, 4)), value(32)),
        "read": lambda: device.read(r.randrange(0x200), r.choice((1, 2, 4))),
        "status": lambda: device.write(0x70, 4, r.choice((0, 1, 3, 11, 15, value(8)))),
        "notify": lambda: device.write(0x50, 4, r.choice((0, 0, 0, value(32)))),
        "time": lambda: driver.bus.until_quiet(64),
        "restored": lambda: device.restore(json.loads(json.dumps(device.state()))),
    }
    for _ in range(r.randrange(1, 16)):
        steps[r.choice(list(steps))]()
    device.write(0x70, 4, device.read(0x70, 4) | DRIVER_OK)
    device.write(0x50, 4, 0)


def test_hostile_queues_neither_break_the_disk_nor_keep_it_busy():
    """Process each of 10,000 random queues until the disk is idle or 100 timers have expired.

    A queue whose requests overwrite the queue itself may continue forever, as on hardware.  After
    a reset the disk must work.
    """
    r = random.Random(29)
    driver, stopped, worked = Driver(), 0, 0
    for _ in range(10_000):
        driver.begin()
        hostile(r, driver)
        driver.bus.accesses = 0
        before = driver.bus.now
        rung = driver.bus.until_quiet(100)
        assert driver.bus.now - before >= LATENCY * (rung - 1)
        assert driver.bus.accesses <= rung * (4 * MAX_SIZE + 16)
        stopped += bool(driver.block.trouble)
        worked += driver.block.interrupts & 1
        assert all(len(block) == 4096 for block in driver.block.written.values())
    assert stopped > 2_000 and worked > 500, (stopped, worked)
    driver.begin()
    assert driver.ask(OUT, 5, b"x" * 512)[0] == 0
    assert driver.ask(IN, 5, room=512)[1] == b"x" * 512


def test_a_state_includes_written_blocks_and_pending_requests():
    one, two = Driver(), Driver()
    one.ask(OUT, 9, b"n" * 512)
    one.bus.memory[DATA : DATA + 16] = struct.pack("<IIQ", IN, 0, 9)
    one.put([(DATA, 16, 0), (DATA + 64, 512, WRITE), (DATA + 600, 1, WRITE)])
    two.bus.memory[:] = one.bus.memory
    two.device.restore(json.loads(json.dumps(one.device.state())))
    two.bus.now = one.bus.now
    two.bus.events.restore(one.bus.events.state())
    for driver in (one, two):
        driver.bus.until_quiet()
        assert driver.bus.memory[DATA + 64 : DATA + 576] == b"n" * 512
    assert one.device.state() == two.device.state()


@pytest.mark.parametrize("change", [
    {"written": {"99": "00" * 4096}}, {"written": {"0": "00"}}, {"written": {"-1": ""}},
    {"written": {"x": "00" * 4096}}, {"queue": [1]}, {"queue": ["a"] * 6}, {"trouble": 5},
    {"written": []}, {"status": "a"}, {"written": {"4": ""}}, {"status": -1}, {"interrupts": 9},
    {"queue": [-1] * 6},
])
def test_an_invalid_block_device_state_is_refused(change):
    driver = Driver()
    state = json.loads(json.dumps(driver.device.state()))
    state["block"] |= change
    with pytest.raises(ValueError):
        driver.device.restore(state)


@pytest.mark.parametrize("change", [
    {"device_half": -1}, {"driver_half": -1}, {"selected": 1 << 40},
])
def test_a_state_with_impossible_mmio_registers_is_refused(change):
    driver = Driver()
    with pytest.raises(ValueError):
        driver.device.restore(driver.device.state() | change)


@pytest.mark.parametrize("change", [
    {"command": 1 << 20}, {"base": 1 << 40}, {"line": 1000}, {"line": -1}, {"selected": -1},
])
def test_a_state_with_an_impossible_configuration_space_is_refused(change):
    bus = Computer()
    block = VirtioBlock(bus, "disk0", memoryview(bytes(4096)), Line(lambda n, level: None, 16))
    function = VirtioPci(bus, block, 0xC000, 16)
    function.restore(json.loads(json.dumps(function.state())))
    with pytest.raises(ValueError):
        function.restore(function.state() | change)


def test_features_that_were_not_offered_are_not_accepted():
    driver = Driver()
    for features, taken in ((VERSION_1, True), (0, False), (VERSION_1 | 1 << 28, False)):
        driver.device.write(0x70, 4, 0)
        for half in (0, 1):
            driver.device.write(0x24, 4, half)
            driver.device.write(0x20, 4, features >> 32 * half & 0xFFFFFFFF)
        driver.device.write(0x70, 4, 11)
        assert bool(driver.device.read(0x70, 4) & 8) == taken


def test_the_configuration_reports_disk_size_and_request_limits():
    driver = Driver()
    assert driver.device.read(CONFIGURATION, 4) == 16384 // SECTOR
    assert driver.device.read(CONFIGURATION + 12, 4) == MAX_SEGMENTS
    assert driver.device.read(CONFIGURATION + 20, 4) == SECTOR
    assert driver.device.read(0x1F0, 4) == 0


def test_hostile_ports_and_configuration_neither_break_the_disk_nor_keep_it_busy():
    """Mix random accesses to the legacy PCI registers with timers and restores."""
    r = random.Random(30)
    bus = Computer()
    block = VirtioBlock(bus, "disk0", memoryview(bytes(8192)), Line(lambda n, level: None, 16))
    pci = PciConfiguration(bus, [function := VirtioPci(bus, block, 0xC000, 16)])
    stopped = worked = 0
    for _ in range(2000):
        bus.memory[: 1 << 14] = bytes(1 << 14)
        function.write_port(0x12, 1, 0)
        # A valid request in the queue at page 1, which the random steps below may corrupt.
        ring = 0x1000 + 16 * MAX_SIZE
        for i, piece in enumerate(((DATA, 16, NEXT, 1), (DATA + 64, 512, NEXT | WRITE, 2),
                                   (DATA + 600, 1, WRITE, 0))):
            DESCRIPTOR.pack_into(bus.memory, 0x1000 + 16 * i, *piece)
        struct.pack_into("<HHH", bus.memory, ring, 0, r.choice((1, 1, 1, 2, 200, 0xFFFF)), 0)
        kind = r.choice((IN, OUT, FLUSH, 99))
        struct.pack_into("<IIQ", bus.memory, DATA, kind, 0, r.randrange(20))
        steps = {
            "port": lambda: function.write_port(
                r.choice((0, 4, 8, 0xC, 0xE, 0x10, 0x12, 0x13, 0x14, r.randrange(64))),
                r.choice((1, 2, 4)), r.choice((0, 1, 4, 7, 0xFFFF, r.getrandbits(32)))),
            "read": lambda: function.read_port(r.randrange(64), r.choice((1, 2, 4))),
            "configuration": lambda: (pci.write(0, 4, 1 << 31 | 1 << 11 | r.randrange(256)),
                                      pci.write(4 + r.randrange(4), r.choice((1, 2, 4)),
                                                r.getrandbits(32)), pci.read(4, 4)),
            "find": lambda: pci.port(r.choice((0xC000, 0xC03F, function.base, r.getrandbits(16)))),
            "memory": lambda: bus.memory.__setitem__(
                r.randrange(0x1000, 0x2000), r.getrandbits(8)),
            "time": lambda: bus.until_quiet(8),
            "restored": lambda: pci.restore(json.loads(json.dumps(pci.state()))),
        }
        function.write_port(8, 4, 1)
        function.write_port(0x12, 1, 7)
        for _ in range(r.randrange(6)):
            steps[r.choice(list(steps))]()
        function.write_port(0x10, 2, 0)
        before, rung = bus.now, bus.until_quiet(100)
        assert bus.now - before >= LATENCY * (rung - 1)
        stopped += bool(block.trouble)
        worked += block.interrupts & 1
    assert stopped > 100 and worked > 500, (stopped, worked)


def test_the_pci_bus_has_only_a_bridge_and_the_disk():
    bus = Computer()
    block = VirtioBlock(bus, "disk0", memoryview(bytes(4096)), Line(lambda n, level: None, 16))
    pci = PciConfiguration(bus, [VirtioPci(bus, block, 0xC000, 16)])

    def register(device, number, function=0, other_bus=0):
        pci.write(0, 4, 1 << 31 | other_bus << 16 | device << 11 | function << 8 | number)
        return pci.read(4, 4)

    assert register(0, 0) == 0x12378086 and register(0, 8) >> 8 == 0x060000
    assert register(1, 0) == 0x10011AF4 and register(1, 0x2C) == 0x00021AF4
    assert register(1, 0x10) == 0xC001 and register(1, 0x3C) == 0x0110
    assert register(1, 0xFC) == 0
    for absent in ((2, 0), (1, 0, 1), (1, 0, 0, 1)):
        assert register(*absent) == 0xFFFFFFFF
    register(1, 0x10)
    pci.write(4, 4, 0xFFFFFFFF)
    assert pci.read(4, 4) == 0xFFC1  # the size mask of a BAR with 64 I/O ports
    pci.write(4, 4, 0xD000)
    assert pci.port(0xC000) is None and pci.port(0xD012)[1] == 0x12
    register(1, 4)
    pci.write(4, 2, 0)
    assert pci.port(0xD012) is None
    assert PciConfiguration(bus).read(4, 4) == 0xFFFFFFFF
