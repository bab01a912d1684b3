"""Tests of the virtio network and entropy devices: frames pass, hostile queues do no harm."""

import hashlib
import json
import random
import struct

import pytest

from emu.devices.device import Line
from emu.devices.pci_configuration import PciConfiguration
from emu.devices.virtio_device import DRIVER_OK, NEEDS_RESET
from emu.devices.virtio_entropy import MOST, VirtioEntropy
from emu.devices.virtio_mmio import VirtioMmio
from emu.devices.virtio_net import HARDWARE, MAX_BACKLOG, RECEIVE, TRANSMIT, VirtioNet
from emu.devices.virtio_pci import VirtioPci
from emu.devices.virtio_queue import DESCRIPTOR, MAX_SIZE, WRITE
from emu.network.link import Link
from tests.emu.devices.test_virtio import MEMORY, Computer

RINGS, STEP, DATA = 0x1000, 0x2000, 0x10000
SIZE = 8  # descriptors in each queue
FRAME = b"\xff" * 6 + HARDWARE + b"\x08\x00" + bytes(range(200))


class Recorded(Link):
    """A link that keeps the frames that the guest sends."""

    def __init__(self):
        super().__init__()
        self.sent = []

    def send(self, frame, now):
        self.sent.append(frame)


class Driver:
    """Minimal virtio driver that accesses a device through MMIO."""

    def __init__(self, make):
        self.bus = Computer()
        self.levels = []
        self.virtio = make(self.bus, Line(lambda _n, level: self.levels.append(level), 1))
        self.device = VirtioMmio(self.virtio, "kind")
        self.begin()

    def begin(self):
        write = self.device.write
        write(0x70, 4, 0)
        write(0x70, 4, 3)
        for half in (0, 1):
            write(0x14, 4, half)
            write(0x24, 4, half)
            write(0x20, 4, self.device.read(0x10, 4))
        write(0x70, 4, 11)
        for queue in range(len(self.virtio.queues)):
            write(0x30, 4, queue)
            write(0x38, 4, SIZE)
            for place, offset in ((0x80, 0), (0x90, 0x400), (0xA0, 0x800)):
                write(place, 4, RINGS + STEP * queue + offset)
                write(place + 4, 4, 0)
            write(0x44, 4, 1)
        write(0x70, 4, 15)
        self.put_count = [0] * len(self.virtio.queues)
        self.bus.memory[RINGS : RINGS + 2 * STEP] = bytes(2 * STEP)

    def put(self, queue, pieces):
        """Make a chain of (address, length, flags without NEXT) available in a queue."""
        memory, rings = self.bus.memory, RINGS + STEP * queue
        head = 2 * self.put_count[queue] % SIZE
        for i, (address, length, flags) in enumerate(pieces):
            more = 1 if i + 1 < len(pieces) else 0
            DESCRIPTOR.pack_into(memory, rings + DESCRIPTOR.size * (head + i), address, length,
                                 flags | more, head + i + 1)
        struct.pack_into("<H", memory, rings + 0x404 + 2 * (self.put_count[queue] % SIZE), head)
        self.put_count[queue] = self.put_count[queue] + 1 & 0xFFFF
        struct.pack_into("<H", memory, rings + 0x402, self.put_count[queue])
        self.device.write(0x50, 4, queue)

    def used(self, queue):
        """Return the lengths in the used ring."""
        memory, rings = self.bus.memory, RINGS + STEP * queue
        (count,) = struct.unpack_from("<H", memory, rings + 0x802)
        return [struct.unpack_from("<II", memory, rings + 0x804 + 8 * (i % SIZE))[1]
                for i in range(count)]


def network():
    link = Recorded()
    driver = Driver(lambda bus, line: VirtioNet(bus, "net0", link, line))
    return driver, link


def send(driver, frame, at=DATA):
    driver.bus.memory[at : at + 12 + len(frame)] = bytes(12) + frame
    driver.put(TRANSMIT, [(at, 12, 0), (at + 12, len(frame), 0)])


def test_the_address_and_the_state_of_the_link_can_be_read():
    driver, _link = network()
    read = bytes(driver.device.read(0x100 + i, 1) for i in range(8))
    assert read == HARDWARE + b"\1\0"


def test_a_frame_goes_out_without_its_header_after_some_time():
    driver, link = network()
    heard = []
    driver.virtio.listener = lambda when, frame: heard.append((when, frame))
    send(driver, FRAME)
    assert not link.sent
    driver.bus.until_quiet()
    assert link.sent == [FRAME] and heard == [(driver.bus.now, FRAME)]
    assert driver.used(TRANSMIT) == [0] and driver.levels[-1]


def test_frames_come_in_at_their_time_with_a_header():
    driver, _link = network()
    for at in (0, 2048):
        driver.put(RECEIVE, [(DATA + at, 12, WRITE), (DATA + at + 12, 1600, WRITE)])
    driver.virtio.schedule(5_000_000, FRAME)
    driver.virtio.schedule(3_000_000, FRAME[::-1])
    driver.bus.until_quiet()
    assert driver.bus.now == 5_000_000
    header = bytes(10) + b"\1\0"
    memory = driver.bus.memory
    assert memory[DATA : DATA + 12 + len(FRAME)] == header + FRAME[::-1]
    assert memory[DATA + 2048 : DATA + 2060 + len(FRAME)] == header + FRAME
    assert driver.used(RECEIVE) == [12 + len(FRAME)] * 2


def test_frames_wait_for_a_buffer_up_to_a_limit():
    driver, _link = network()
    for i in range(MAX_BACKLOG + 50):
        driver.virtio.schedule(1000 + i, FRAME + bytes((i & 0xFF,)))
    driver.bus.until_quiet(5000)
    received = []
    while len(driver.virtio.state()["backlog"]):
        driver.put(RECEIVE, [(DATA, 1600, WRITE)])
        driver.bus.until_quiet()
        received.append(driver.bus.memory[DATA + 12 + len(FRAME)])
    assert received == [i & 0xFF for i in range(MAX_BACKLOG)]


def test_a_frame_that_does_not_fit_is_lost_and_a_frame_without_a_driver_too():
    driver, _link = network()
    driver.put(RECEIVE, [(DATA, 64, WRITE)])
    driver.virtio.schedule(0, FRAME)
    driver.bus.until_quiet()
    assert driver.used(RECEIVE) == [0]
    driver.device.write(0x70, 4, 0)
    driver.virtio.schedule(driver.bus.now, FRAME)
    driver.bus.until_quiet()
    driver.begin()
    driver.put(RECEIVE, [(DATA, 1600, WRITE)])
    driver.bus.until_quiet()
    assert driver.used(RECEIVE) == []


def test_a_frame_of_a_wrong_size_is_not_sent():
    driver, link = network()
    for size in (0, 13, 1519, 4000):
        driver.bus.memory[DATA : DATA + 12 + size] = bytes(12 + size)
        driver.put(TRANSMIT, [(DATA, 12 + size, 0)])
        driver.bus.until_quiet()
    assert not link.sent and len(driver.used(TRANSMIT)) == 4 and not driver.virtio.trouble


def test_a_restored_device_delivers_the_same_frames():
    driver, _link = network()
    driver.virtio.schedule(9_000_000, FRAME)
    driver.virtio.schedule(1_000, FRAME[::-1])
    driver.bus.until_quiet(1)
    state, timers = json.loads(json.dumps(driver.device.state())), driver.bus.events.state()
    other, _link = network()
    other.bus.memory[:] = driver.bus.memory
    other.device.restore(state)
    other.bus.events.restore(timers)
    for one in (driver, other):
        one.put(RECEIVE, [(DATA, 1600, WRITE)])
        one.put(RECEIVE, [(DATA + 2048, 1600, WRITE)])
        one.bus.until_quiet()
    assert driver.bus.memory == other.bus.memory and driver.bus.now == other.bus.now
    assert driver.device.state() == other.device.state()


@pytest.mark.parametrize(("part", "value"), [
    ("backlog", ["00"]), ("backlog", ["zz"]), ("backlog", 3), ("queue1", [1]), ("queue", None),
    ("link", {"coming": [[5, "00"]]}), ("link", {}), ("status", 256), ("trouble", 1),
    ("link", {"coming": [[9, "00" * 20], [3, "00" * 20]]})])
def test_an_invalid_state_is_refused(part, value):
    driver, _link = network()
    state = driver.virtio.state() | {part: value}
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        driver.virtio.restore(state)


def test_a_legacy_driver_sends_and_receives_with_a_short_header():
    bus, link = Computer(), Recorded()
    net = VirtioNet(bus, "net0", link, Line(lambda n, level: None, 16))
    function = VirtioPci(bus, net, 0xC000, 16, "net")
    pci = PciConfiguration(bus, [function])
    bus.spend = lambda _time: None
    pci.write(0, 4, 0x80000800)
    assert pci.read(4, 4) == 0x10001AF4
    pages = {RECEIVE: 0x10000, TRANSMIT: 0x20000}
    function.write_port(0x12, 1, 3)
    function.write_port(0x04, 4, function.read_port(0x00, 4))
    for queue, page in pages.items():
        function.write_port(0x0E, 2, queue)
        assert function.read_port(0x0C, 2) == MAX_SIZE
        function.write_port(0x08, 4, page // 4096)
    function.write_port(0x12, 1, 7)
    bus.memory[0x8000 : 0x8000 + 10 + len(FRAME)] = bytes(10) + FRAME
    DESCRIPTOR.pack_into(bus.memory, 0x20000, 0x8000, 10 + len(FRAME), 0, 0)
    DESCRIPTOR.pack_into(bus.memory, 0x10000, 0x9000, 2048, WRITE, 0)
    for page in pages.values():
        struct.pack_into("<HHH", bus.memory, page + 16 * MAX_SIZE, 0, 1, 0)
    net.schedule(100, FRAME[::-1])
    function.write_port(0x10, 2, TRANSMIT)
    bus.until_quiet()
    assert link.sent == [FRAME]
    assert bus.memory[0x9000 : 0x900A + len(FRAME)] == bytes(10) + FRAME[::-1]


def entropy(seed=b"seed"):
    return Driver(lambda bus, line: VirtioEntropy(bus, "entropy", seed, line))


def test_the_bytes_of_the_entropy_device_follow_from_the_seed_and_the_number_of_the_buffer():
    found = []
    for driver in (entropy(), entropy(), entropy(b"other")):
        for _ in range(2):
            driver.put(0, [(DATA, 40, WRITE), (DATA + 100, 24, WRITE)])
            driver.bus.until_quiet()
            memory = driver.bus.memory
            found.append(bytes(memory[DATA : DATA + 40] + memory[DATA + 100 : DATA + 124]))
        assert driver.used(0) == [64, 64] and driver.levels[-1]
    assert found[:2] == found[2:4] and len(set(found)) == 4
    assert found[0] == hashlib.shake_256(b"seed" + bytes(8)).digest(64)


def test_a_large_buffer_is_filled_partly():
    driver = entropy()
    driver.put(0, [(DATA, 0x8000, WRITE)])
    driver.bus.until_quiet()
    assert driver.used(0) == [MOST]


def hostile(r, driver):
    """Manipulate memory and registers at random, as a hostile driver might."""
    memory, device = driver.bus.memory, driver.device
    queues = len(driver.virtio.queues)
    interesting = [0, 1, 2, 7, 8, 0x7FFF, 0x8000, 0xFFFF, MEMORY - 1, MEMORY, MEMORY + 1, RINGS,
                   RINGS + STEP, DATA, 1 << 31, (1 << 32) - 1, (1 << 64) - 1]

    def value(bits):
        found = r.choice(interesting) if r.random() < 0.7 else r.getrandbits(bits)
        return found & (1 << bits) - 1

    def rings():
        return RINGS + STEP * r.randrange(queues)

    def request():
        queue = r.randrange(queues)
        flag = WRITE if queue == RECEIVE else 0
        driver.put(queue, [(DATA, 12, flag), (DATA + 64, r.choice((14, 60, 1514, 1600)), flag)])

    steps = {
        "request": request, "another request": request,
        "descriptor": lambda: DESCRIPTOR.pack_into(
            memory, rings() + 16 * r.randrange(8), value(64) if r.random() < 0.4 else DATA,
            r.choice((1, 12, 100, 1600, 0, value(32))), r.choice((0, 1, 2, 3, value(16))),
            r.choice((r.randrange(8), value(16)))),
        "available": lambda: struct.pack_into(
            "<HH8H", memory, rings() + 0x400, value(16) & 1, r.choice((1, 2, 8, value(16))),
            *(r.choice((r.randrange(8), value(16))) for _ in range(8))),
        "select": lambda: device.write(0x30, 4, r.choice((0, 1, 2, value(32)))),
        "place": lambda: device.write(
            r.choice((0x80, 0x84, 0x90, 0x94, 0xA0, 0xA4)), 4, r.choice((0, RINGS, value(32)))),
        "size": lambda: device.write(0x38, 4, r.choice((0, 1, 3, 8, 128, 256, value(32)))),
        "any register": lambda: device.write(
            4 * r.randrange(0x60), r.choice((1, 2, 4)), value(32)),
        "read": lambda: device.read(r.randrange(0x200), r.choice((1, 2, 4))),
        "status": lambda: device.write(0x70, 4, r.choice((0, 1, 3, 11, 15, value(8)))),
        "notify": lambda: device.write(0x50, 4, r.choice((0, 1, 1, value(32)))),
        "time": lambda: driver.bus.until_quiet(64),
        "restored": lambda: device.restore(json.loads(json.dumps(device.state()))),
    }
    if isinstance(driver.virtio, VirtioNet):
        steps["frame"] = lambda: driver.virtio.schedule(
            driver.bus.now + r.choice((0, 1, 10**6)), FRAME)
    for _ in range(r.randrange(1, 16)):
        steps[r.choice(list(steps))]()
    device.write(0x70, 4, device.read(0x70, 4) | DRIVER_OK)
    for queue in range(queues):
        device.write(0x50, 4, queue)


@pytest.mark.parametrize("make", [lambda: network()[0], entropy], ids=["network", "entropy"])
def test_hostile_queues_neither_break_the_device_nor_keep_it_busy(make):
    """Process each of 5,000 random queues until the device is idle or 100 timers have expired."""
    r = random.Random(31)
    driver, stopped, worked = make(), 0, 0
    for _ in range(5_000):
        driver.begin()
        hostile(r, driver)
        driver.bus.accesses = 0
        rung = driver.bus.until_quiet(100)
        assert driver.bus.accesses <= rung * MAX_SIZE * (4 * MAX_SIZE + 16)
        stopped += bool(driver.device.read(0x70, 4) & NEEDS_RESET)
        worked += driver.virtio.interrupts & 1
    assert stopped > 500 and worked > 500, (stopped, worked)
    driver.begin()
    while driver.bus.until_quiet(1000):
        pass
    if isinstance(driver.virtio, VirtioNet):
        send(driver, FRAME)
        driver.bus.until_quiet()
        assert driver.used(TRANSMIT) == [0]
    else:
        driver.put(0, [(DATA, 16, WRITE)])
        driver.bus.until_quiet()
        assert driver.used(0) == [16]
