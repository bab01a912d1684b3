"""Fuzzer of the devices: hostile drivers, hostile packets, and states and pcap files from anywhere.

The virtio devices are driven through MMIO; those behind PCI share everything but the registers.
After each case the device works again once it is reset. The clocks (CMOS, PL031, Goldfish) have
tests of their own (tests/emu/devices/test_clocks.py).
"""

import contextlib
import json
import struct
import tempfile
from pathlib import Path

from emu.devices.virtio_queue import MAX_SIZE, WRITE
from emu.host.errors import KinstError
from emu.network.capture import read_frames, write_frames
from emu.network.link import MAX_FRAME
from emu.network.peer import Peer
from tests.emu.devices import test_virtio, test_virtio_net
from tests.emu.network import test_peer

STEPS = 100  # number of timers after which a device need not be idle
WRONG = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, struct.error,
         KinstError)


class Ground:
    """Devices and a peer that live through all cases, and frames to mutate."""

    def __init__(self):
        self.network, self.entropy = test_virtio_net.network()[0], test_virtio_net.entropy()
        self.disk, self.wire = test_virtio.Driver(), test_peer.Wire()
        self.frames = test_peer.frames_seen()
        self.folder = tempfile.TemporaryDirectory()


def ground():
    """Return new devices."""
    return Ground()


def _queues(rng, driver, hostile):
    """Let a hostile driver use a device; then reset it."""
    driver.begin()
    hostile(rng, driver)
    driver.bus.accesses = 0
    rung = driver.bus.until_quiet(STEPS)
    assert driver.bus.accesses <= rung * MAX_SIZE * (4 * MAX_SIZE + 16)
    return "stopped" if driver.device.read(0x70, 4) & 0x40 else "went on"


def _network(rng, state):
    return "network queue " + _queues(rng, state.network, test_virtio_net.hostile)


def _entropy(rng, state):
    found = _queues(rng, state.entropy, test_virtio_net.hostile)
    state.entropy.begin()
    state.entropy.put(0, [(test_virtio_net.DATA, 16, WRITE)])
    state.entropy.bus.until_quiet()
    assert state.entropy.used(0) == [16]
    return "entropy queue " + found


def _disk(rng, state):
    return "disk queue " + _queues(rng, state.disk, test_virtio.hostile)


def _packet(rng, state):
    """Send a mutated frame to the peer."""
    frame = bytearray(rng.choice(state.frames))
    for _ in range(rng.randrange(5)):
        frame[rng.randrange(14, len(frame))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF,
                                                           rng.randrange(256)))
    if rng.random() < 0.3:
        frame = frame[: rng.randrange(14, len(frame) + 1)] + rng.randbytes(rng.randrange(200))
    wire = state.wire
    wire.peer.send(test_peer.repaired(frame[:MAX_FRAME]), wire.now)
    answers = wire.get(wire.now + rng.choice((0, 10**6, 10**9)))
    assert len(wire.peer.state()["tcp"]) <= 256
    return "packet answered" if answers else "packet not answered"


def _state(rng, state):
    """Restore a mutated state of the peer, and use it."""
    peer = Peer(test_peer.FILES)
    try:
        peer.restore(test_peer.mutated(json.loads(json.dumps(state.wire.peer.state())), rng))
    except WRONG:
        return "state refused"
    wire = test_peer.Wire()
    wire.peer = peer
    for _ in range(30):
        if not wire.get():
            break
    return "state used"


def _capture(rng, state):
    """Read a mutated pcap file."""
    path = Path(state.folder.name) / "frames.pcap"
    write_frames(path, [(i * 10**9, frame) for i, frame in enumerate(state.frames[:5])])
    content = bytearray(path.read_bytes())
    for _ in range(rng.randrange(4)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(content[: rng.randrange(len(content))] if rng.random() < 0.3 else content)
    with contextlib.suppress(KinstError):
        frames = read_frames(path)
        assert all(when >= 0 and 14 <= len(frame) <= MAX_FRAME for when, frame in frames)
        return "pcap read"
    return "pcap refused"


def once(rng, state):
    """Do one random thing to one device, and return what came of it."""
    return rng.choice((_network, _entropy, _disk, _packet, _packet, _state, _capture))(rng, state)
