"""Fuzzer of the gdb server on a live machine: random packets from a debugger.

The packets have all commands that ``emu.gdb.session`` implements (? g k D m M p P H T Z z q Q v b c
s), with sensible, strange and missing arguments. Some are random bytes. ``G``, ``X`` and other
commands that the session does not implement occur only as random bytes.
"""

import contextlib

from emu.arch.target_description import DESCRIPTIONS
from emu.gdb.packets import Gone
from emu.gdb.session import GdbSession, NoThreads
from emu.gdb.target import LiveTarget
from emu.machine.machine import StopReason, Until
from emu.unicorn.run_loop import CodeGoneError
from images import boots, catalog
from tests.conftest import ARCHES, MEMORY

SIZES = ("0", "1", "4", "8", "40", "41", "1000", "ffffffff", "-1", "", "zz")
QUERIES = ("qSupported:swbreak+", "qC", "qfThreadInfo", "qsThreadInfo", "qThreadExtraInfo,1",
           "qAttached", "qXfer:features:read:target.xml:0,200", "qXfer:features:read:target.xml:zz",
           "qXfer:threads:read::0,100", "qRcmd,", "qRcmd,68656c70", "qRcmd,7", "qSymbol::",
           "QStartNoAckMode", "QOther", "q", "Q", "qOffsets", "qTStatus")
LOOKS = ("?", "g", "qC", "qfThreadInfo", "H", "T", "m", "p", "q")


class Link:
    """Stand-in for a debugger's connection that delivers given packets and interrupts every run."""

    acknowledges = False

    def __init__(self, packets):
        self._packets, self.answers = list(packets), []

    def packet(self):
        if not self._packets:
            raise Gone
        return self._packets.pop(0)

    def send(self, data):
        self.answers.append(data)

    def interrupted(self):
        return True


class Ground:
    """A booted machine and its snapshot for each architecture."""

    def __init__(self):
        self.machines = {}
        for arch in ARCHES:
            machine = boots.booted(catalog.find(f"teaching/{arch}"), MEMORY)
            machine.console.stream = None
            self.machines[arch] = machine, machine.snapshot()


def ground():
    """Boot a machine for each architecture."""
    return Ground()


def packet(rng, machine):
    """Return a random packet for a machine."""
    registers = len(DESCRIPTIONS[machine.arch.name].registers)
    functions = list(machine.image.symbols.functions())

    def address():
        return rng.choice((
            lambda: f"{rng.choice(functions).address + rng.randrange(8):x}",
            lambda: f"{machine.sp + rng.randrange(-64, 64) & (1 << 64) - 1:x}",
            lambda: f"{rng.getrandbits(64):x}", lambda: f"{machine.pc:x}", lambda: "",
            lambda: f"{rng.getrandbits(70):x}", lambda: "-1", lambda: "0", lambda: "x"))()

    def digits(size):
        whole = rng.randbytes(size).hex(), "f" * 2 * size, "0" * 2 * size
        return rng.choice((*whole, "0", "xx", ""))

    size = rng.choice((1, 2, 4, 8, 16, 16, 40))
    verbs = (
        lambda: "?", lambda: "g", lambda: "k", lambda: "D",
        lambda: f"m{address()},{rng.choice(SIZES)}",
        lambda: f"M{address()},{size:x}:{digits(size)}",
        lambda: f"p{rng.randrange(registers + 3):x}",
        lambda: f"P{rng.randrange(registers + 3):x}={digits(rng.choice((1, 4, 8, 8, 8, 16, 10)))}",
        lambda: f"P{rng.randrange(registers):x}={rng.choice(('f' * 16, '0' * 16, '1' * 16))}",
        lambda: f"H{rng.choice('gcz')}{rng.choice(('0', '-1', '1', 'zz', ''))}",
        lambda: f"T{rng.choice(('0', '1', '-1', 'q'))}",
        lambda: f"Z{rng.randrange(6)},{address()},{rng.choice(SIZES)}",
        lambda: f"z{rng.randrange(6)},{address()},{rng.choice(SIZES)}",
        lambda: rng.choice(QUERIES),
        lambda: f"v{rng.choice(('Cont?', 'Kill;1', 'MustReplyEmpty'))}",
        lambda: "vCont;" + rng.choice(("c", "s", "s:1", "c:-1", f"r{address()},{address()}", "x",
                                       "", "s:1;c", "S05", "C05:zz")),
        lambda: rng.choice(("bs", "bc", "b", "bx")), lambda: "c",
        lambda: "s", lambda: "s", lambda: "s",
        lambda: rng.randbytes(rng.randrange(1, 30)).decode("latin-1"),
    )
    return rng.choice(verbs)().encode("latin-1")


def once(rng, ground):
    """Run a session of random packets; check that each is answered and the machine still runs.

    :return: ``looks`` if the packets only read state, else ``drives`` or ``breaks``
    """
    machine, kept = ground.machines[rng.choice(ARCHES)]
    machine.restore(kept)
    if rng.random() < 0.5:
        machine.type(rng.choice((b"strings\r", b"lesson\r", b"ticks\r")))
    machine.run(Until(instructions=machine.instructions + rng.randrange(2000)))
    if rng.random() < 0.2:  # send only packets that read state
        packets = [p for p in (packet(rng, machine) for _ in range(60)) if p[:1].decode("latin-1")
                   in "?gHTmpq"]
        before = machine.digest()
        _served(machine, packets)
        assert machine.digest() == before, packets
        return "looks"
    packets = [packet(rng, machine) for _ in range(rng.randrange(1, 30))]
    _served(machine, packets)
    try:
        stop = machine.run(Until(instructions=machine.instructions + 500,
                                 time=machine.now + 10**9))
        assert isinstance(stop.reason, StopReason)
    except CodeGoneError:  # writing a register has unmapped the code
        return "breaks"
    return "drives"


def _served(machine, packets):
    link = Link(packets)
    session = GdbSession(LiveTarget(machine), link, NoThreads(), {})
    with contextlib.suppress(Gone):
        session.serve()
    asked = len(packets) - len(link._packets)
    answers = [a for a in link.answers if a[:1] != b"O" or a == b"OK"]
    assert len(answers) == asked, (packets, link.answers)
