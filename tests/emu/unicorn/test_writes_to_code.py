"""Tests that the guest executes new code, no matter how the code was written to memory."""

import gc
import random
import tempfile
from pathlib import Path

import pytest
import unicorn
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from emu.devices.device import Device
from emu.gdb.packets import Gone
from emu.gdb.session import GdbSession, NoThreads
from emu.gdb.target import LiveTarget
from emu.host.errors import MachineError, MemoryAccessError
from emu.machine.call import Caller
from emu.machine.machine import Until
from emu.replay.inputs import MEMORY as MEMORY_INPUT
from emu.replay.inputs import Input, give, position_of, reach
from emu.replay.player import Player
from emu.replay.recording import Recorder, Recording
from emu.replay.starts import STATE
from emu.unicorn import snapshot
from emu.unicorn.machine import UnicornMachine
from images import boots, catalog
from kinst.probes.breakpoints import PATHS, Breakpoints
from kinst.probes.probed_code import ProbeError
from kinst.providers import kinst_provider
from kinst_emu.api.kernel import Kernel
from kinst_emu.api.machine import Machine
from tests.conftest import ARCHES, MEMORY
from tests.kinst.verify.test_upstream_mistakes import words

RETURN = {"amd64": lambda n: b"\xb8" + n.to_bytes(4, "little") + b"\xc3",
          "arm64": lambda n: words(0x52800000 | n << 5, 0xD65F03C0),
          "riscv64": lambda n: words(0x00000513 | n << 20, 0x00008067)}


class OnePacket:
    """Debugger connection that sends one packet."""

    acknowledges = False

    def __init__(self, packet):
        self.packets, self.sent = [packet], []

    def packet(self):
        if not self.packets:
            raise Gone
        return self.packets.pop()

    def send(self, data):
        self.sent.append(data)

    def interrupted(self):
        return False


# -- public ways to write memory ------------------------------------------------------------------

def by_physical(machine, address, data):
    machine.write_physical(machine.translate(address), data)


def by_virtual(machine, address, data):
    machine.write(address, data)


def by_words(machine, address, data):
    at = address & ~7
    whole = bytearray(machine.read(at, -(-(address + len(data) - at) // 8) * 8))
    whole[address - at : address - at + len(data)] = data
    for offset in range(0, len(whole), 8):
        machine.write_u64(at + offset, int.from_bytes(whole[offset : offset + 8], "little"))


def as_code(machine, address, data):
    machine.write_code(address, data)


def by_front(machine, address, data):
    Machine(Kernel(machine.image), machine).write(address, data)


def by_debugger(machine, address, data):
    link = OnePacket(b"M%x,%x:%s" % (address, len(data), data.hex().encode()))
    with pytest.raises(Gone):
        GdbSession(LiveTarget(machine), link, NoThreads(), {}).serve()
    assert link.sent == [b"OK"]


def by_replay(machine, address, data):
    place = f"{machine.translate(address):x}"
    give(machine, Input(position_of(machine), MEMORY_INPUT, place, data))


def from_snapshot(machine, address, data):
    """Write data by restoring a snapshot from before the write and then one from after it."""
    before = machine.snapshot()
    machine.write(address, data)
    after = machine.snapshot()
    machine.restore(before)
    machine.restore(after)


WAYS = [by_physical, by_virtual, by_words, as_code, by_front, by_debugger, by_replay, from_snapshot]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_overwriting_a_function_changes_what_is_executed(booted, way):
    arch, at = booted.arch.name, booted.symbol("strlen").address
    caller = Caller(booted)
    text = caller.place(b"abc\0")

    def called():
        return caller.call(at, [text], "strlen")

    assert called() == 3
    for value in (7, 8):
        way(booted, at, RETURN[arch](value))
        assert called() == value


def test_a_probe_elsewhere_does_not_affect_an_overwritten_function(booted):
    arch, at = booted.arch.name, booted.symbol("strlen").address
    caller = Caller(booted)
    text = caller.place(b"abc\0")
    results = []
    for probed in (False, True):
        kept = booted.snapshot()
        probes = Breakpoints(booted)
        if probed:
            kinst_provider.create(probes, "strcmp", "0")
            probes.enable()
        found = [caller.call(at, [text], "strlen")]
        booted.write(at, RETURN[arch](0))
        found.append(caller.call(at, [text], "strlen"))
        probes.disable()
        booted.restore(kept)
        found.append(caller.call(at, [text], "strlen"))
        results.append(found)
    assert results == [[3, 0, 3], [3, 0, 3]]


@pytest.fixture
def paged(image, arch):
    """Return a machine whose guest virtual addresses the test can map.

    The kernels for arm64 and riscv64 do not set up page tables, so those of the emulator are used.
    """
    if arch == "amd64":
        return boots.booted(image, MEMORY)
    machine = UnicornMachine(image, MEMORY)
    machine.place_image()
    return machine


def mapped(machine, *physical):
    """Return an unmapped address, and the page table writes that map each physical page there."""
    near, free = machine.symbol("strlen").address, machine.board.ram_base + (40 << 20)
    if machine.arch.name == "arm64":  # map the GiB at virtual address 8 GiB
        tables = machine.read_register("ttbr0_el1")
        return 8 << 30, [((tables + 64, free | 3), (free, at | 0x701)) for at in physical]
    holes = [machine.guest.traps.hole(machine, near, at, 1, free) for at in physical]
    return holes[0].virtual, [hole.writes for hole in holes]


def test_page_table_writes_by_the_caller_take_effect_at_once(paged):
    """Page table writes from outside the guest also flush the TLB of the CPU model."""
    machine, pages = paged, [paged.board.ram_base + (n << 20) for n in (32, 34)]
    text, tables = mapped(machine, *pages)
    for page, content in zip(pages, (b"abc\0", b"abcdef\0"), strict=True):
        machine.write_physical(page, content)
    caller, lengths = Caller(machine), []
    for writes in (*tables, *tables):
        for place, entry in writes:
            machine.write_physical(place, entry.to_bytes(8, "little"))
        lengths.append(caller.call(machine.symbol("strlen").address, [text], "strlen"))
    assert lengths == [3, 6, 3, 6]


# Function that stores its second argument, a 32-bit word, at its first one.
STORE = {"amd64": b"\x89\x37\xc3", "arm64": words(0xB9000001, 0xD65F03C0),
         "riscv64": words(0x00B52023, 0x00008067)}
# Bits of a page table entry: those to set and those to clear, so that code cannot be fetched
NO_CODE = {"amd64": (1 << 63, 0), "arm64": (3 << 53, 0), "riscv64": (0, 8)}


def test_the_guest_can_change_code_through_another_mapping_of_its_page(paged):
    """Kernels store code through their direct map, which cannot be executed."""
    machine, arch = paged, paged.arch.name
    first = machine.symbol("strlen").address
    functions, store = (first, first + 32), machine.symbol("strcmp").address
    page = machine.translate(first) & (-4096 if arch == "riscv64" else -1 << 21)
    alias, (writes,) = mapped(machine, page)
    if arch == "amd64":
        machine.write_register("efer", machine.read_register("efer") | 1 << 11)  # EFER.NXE
    for place, entry in writes:
        if (entry & -1 << 12 & (1 << 48) - 1) in (page, page >> 2):
            entry = entry & ~NO_CODE[arch][1] | NO_CODE[arch][0]
        machine.write_physical(place, entry.to_bytes(8, "little"))
    other = alias + machine.translate(first) - page
    for at in functions:
        machine.write(at, RETURN[arch](1))
    machine.write(store, STORE[arch])
    caller = Caller(machine)
    found = [[caller.call(at, [], "changed") for at in functions]]
    immediate = 1 if arch == "amd64" else 0
    for value in (5, 6):
        for at in functions:
            word = RETURN[arch](value)[immediate : immediate + 4]
            caller.call(store, [other + at - first + immediate,
                                int.from_bytes(word, "little")], "store")
        found.append([caller.call(at, [], "changed") for at in functions])
    assert found == [[1, 1], [5, 5], [6, 6]]


def test_the_code_of_the_image_is_guarded_as_a_whole(paged):
    machine = paged
    Caller(machine).call(machine.symbol("strlen").address, [machine.symbol("strlen").address],
                         "strlen")
    (begin, end), = machine.image.code_ranges
    whole = machine.translate(begin + 4095 & -4096), machine.translate((end & -4096) - 4096) + 4096
    assert whole[1] > whole[0]
    assert any(first <= whole[0] and whole[1] <= last for first, last in machine.engine.guards)


def test_more_pages_of_code_are_guarded_than_there_are_guards(paged):
    machine, arch = paged, paged.arch.name
    begin = (machine.image.virtual_end + (1 << 20)) & -4096
    caller, pages = Caller(machine), [begin + 8192 * i for i in range(80)]
    for at in pages:
        machine.write(at, RETURN[arch](3))
        assert caller.call(at, [], "code") == 3
    guards = machine.engine.guards
    assert len(guards) == 64
    assert all(any(first <= machine.translate(at) < last for first, last in guards) for at in pages)


class Disk(Device):
    """Device that periodically writes code to memory when its timer expires."""

    STATE = ("written",)
    EVERY = 700  # period in ns

    def __init__(self, machine, at):
        self.machine, self.at, self.written = machine, machine.translate(at), 0
        machine.board.devices["disk"] = self
        self.timer = machine.timer("disk", self.done)
        self.timer.set(machine.now + self.EVERY)

    def read(self, offset, size):
        return 0

    def write(self, offset, size, value):
        self.machine.write_memory(self.at, b"\0")

    def done(self):
        self.written += 1
        place = self.at + SLOT * (1 + self.written % SLOTS)
        self.machine.write_memory(place, body(self.machine.arch.name, -self.written))
        self.timer.set(self.machine.now + self.EVERY)


def test_a_device_may_write_memory_only_when_its_timer_expires(paged):
    """A device write inside a block is refused: its effect would depend on interruptions."""
    base, outside = 0x20000000, paged.board.ram_base + paged.memory
    disk = Disk(paged, paged.sp)
    with pytest.raises(MemoryAccessError):
        paged.write_memory(outside, b"\0")
    store = {"amd64": b"\x89\x07\xc3", "arm64": words(0xB9000001, 0xD65F03C0),
             "riscv64": words(0x00B52023, 0x00008067)}[paged.arch.name]
    at = paged.symbol("strlen").address
    paged.write(at, store)
    paged.engine.map_device(base, 0x1000, disk.read, disk.write)
    window, (writes,) = mapped(paged, base)
    for place, entry in writes:
        paged.write_physical(place, entry.to_bytes(8, "little"))
    with pytest.raises(MachineError, match="only when one of its timers expires"):
        Caller(paged).call(at, [window, 1], "strlen")


def test_the_unicorn_object_can_be_used_after_its_machine_is_collected(image):
    """The hooks, clock and memory of Unicorn's object belong to the machine."""
    engine = UnicornMachine(image, MEMORY).uc
    gc.collect()
    with pytest.raises(unicorn.UcError):
        engine.emu_start(0x12345678, 0x12345680, count=10)


# -- overwriting code that runs all the time ------------------------------------------------------

SLOT, SLOTS, WORDS = 64, 3, 16
UNITS = {
    # One 4-byte or two 2-byte instructions: equal sizes, different instruction counts
    "amd64": (lambda n: b"\x48\x83\xc3" + bytes((n,)), b"\x66\x90\x66\x90", b"\xc3\x90\x90\x90"),
    "arm64": (lambda n: words(0x91000273 | n << 10), words(0xD503201F), words(0xD65F03C0)),
    "riscv64": (lambda n: words(0x00048493 | n << 20), words(0x00010001), words(0x00008067)),
}
COUNTER = {"amd64": "rbx", "arm64": "x19", "riscv64": "s1"}


def body(arch, seed):
    """Return random code for a slot: instructions that add to a register, NOPs, and a return."""
    add, nothing, back = UNITS[arch]
    rng = random.Random(seed)
    units = [add(rng.randrange(2, 60)) if rng.random() < 0.5 else nothing for _ in range(WORDS - 1)]
    units[rng.randrange(WORDS - 1)] = back
    return b"".join(units) + back


def loop(arch):
    """Return an endless loop that calls each slot; the slots come after the loop in memory."""
    code = b""
    for n in range(SLOTS):
        distance = SLOT * (n + 1) - len(code)
        if arch == "amd64":
            code += b"\xe8" + (distance - 5).to_bytes(4, "little")
        elif arch == "arm64":
            code += words(0x94000000 | distance >> 2)
        else:
            code += words(0x000000EF | (distance >> 1 & 0x3FF) << 21 | (distance >> 11 & 1) << 20)
    if arch == "amd64":
        return code + b"\xe9" + (-len(code) - 5).to_bytes(4, "little", signed=True)
    if arch == "arm64":
        return code + words(0x14000000 | (-len(code) >> 2 & 0x3FFFFFF))
    jump = -len(code)
    return code + words(0x6F | (jump >> 20 & 1) << 31 | (jump >> 1 & 0x3FF) << 21
                        | (jump >> 11 & 1) << 20 | (jump >> 12 & 0xFF) << 12)


def looping(arch):
    """Return (machine, address) for a booted machine that executes the loop at `address`.

    Interrupts are enabled, and the second slot crosses a page border.
    """
    machine = boots.booted(catalog.find(f"teaching/{arch}"), MEMORY)
    at = (machine.sp & ~0xFFF) + 0x101000 - SLOT * 2 - 32
    machine.write(at, loop(arch).ljust(SLOT, b"\0") + b"".join(body(arch, n) for n in range(SLOTS)))
    name = {"amd64": "rflags", "arm64": "pstate", "riscv64": "sstatus"}[arch]
    value = machine.read_register(name)
    machine.write_register(name, {"amd64": value | 1 << 9, "arm64": value & ~(1 << 7),
                                  "riscv64": value | 2}[arch])
    machine.pc = at
    Disk(machine, at)
    return machine, at


class Writing(RuleBasedStateMachine):
    """Random memory writes through public methods, mixed with other operations on a machine.

    Not tested here: ``Caller.place``, which chooses its own address; ``value`` in the Python
    interface and D's copyout, which use ``Machine.write``; and registers, which hold no code.
    """

    arch = "amd64"

    @initialize()
    def boot(self):
        self.machine, self.at = looping(self.arch)
        self.first = position_of(self.machine)
        self.log, self.kept, self.probes, self.written = [], None, None, 0

    def slot(self, which):
        return self.at + SLOT * (1 + which % SLOTS)

    @rule(way=st.sampled_from(WAYS), which=st.integers(0, 99), seed=st.integers(0, 1 << 30),
          part=st.sampled_from([(0, SLOT), (0, 4), (28, 8), (60, 4)]))
    def write(self, way, which, seed, part):
        if self.probes is not None and way is from_snapshot:
            return
        begin, size = part
        data = body(self.arch, seed)[begin : begin + size]
        self.log.append((position_of(self.machine), self.slot(which) + begin, data))
        way(self.machine, self.slot(which) + begin, data)
        self.written += 1

    @rule(which=st.integers(0, 99), seed=st.integers(0, 1 << 30))
    def write_by_a_handler(self, which, seed):
        """Write to a slot the next time the machine reaches the start of the loop."""
        machine, done = self.machine, []

        def handler():
            if not done:
                done.append(True)
                self.log.append((position_of(machine), self.slot(which), data))
                machine.write(self.slot(which), data)

        data = body(self.arch, seed)
        machine.handle(self.at, handler)
        self.run(300)
        machine.handle(self.at, None)

    @rule(count=st.integers(1, 500))
    def run(self, count):
        self.machine.run(Until(instructions=self.machine.instructions + count))

    @rule(count=st.integers(1, 20))
    def step(self, count):
        for _ in range(count):
            self.machine.step()

    @rule(which=st.integers(0, 99))
    def run_to_a_slot(self, which):
        self.machine.run(Until(addresses=[self.slot(which)],
                               instructions=self.machine.instructions + 300))

    @rule()
    def keep(self):
        self.kept = self.machine.snapshot(), list(self.log)

    @precondition(lambda self: self.kept and self.kept[0].patches == self.machine.patches)
    @rule()
    def go_back(self):
        self.machine.restore(self.kept[0])
        self.log = list(self.kept[1])

    @precondition(lambda self: self.probes is None)
    @rule()
    def through_a_file(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "s"
            snapshot.save(self.machine, path)
            old, self.kept = self.machine, None
            self.machine = snapshot.restore(path, old.image)
        new = Disk(self.machine, self.at)
        new.restore(old.board.devices["disk"].state())
        new.timer.set(old.events.timers["disk"].when)
        assert self.machine.digest() == old.digest()

    @precondition(lambda self: self.probes is None)
    @rule(which=st.lists(st.integers(0, 1000), min_size=1, max_size=3), path=st.sampled_from(PATHS))
    def enable(self, which, path):
        found = [f for f in self.machine.image.symbols.functions() if f.size > 8]
        probes = Breakpoints(self.machine, path=path)
        for n in which:
            try:
                kinst_provider.create(probes, found[n % len(found)].name, "")
            except ProbeError:
                continue
        probes.enable()
        self.probes = probes

    @precondition(lambda self: self.probes is not None)
    @rule()
    def disable(self):
        self.probes.disable()
        self.probes = None

    def teardown(self):
        if not hasattr(self, "machine"):
            return
        self.run(500)
        if self.probes is not None:
            self.probes.disable()
        end = self.machine.instructions
        plain, _at = looping(self.arch)
        for position, address, data in self.log:
            assert reach(plain, position) is None
            plain.write(address, data)
            plain.forget_translations()
        while plain.instructions < end:  # a panic may end a run early
            before = plain.instructions
            stop = plain.run(Until(instructions=end))
            assert plain.instructions > before, stop
        assert plain.read_register(COUNTER[self.arch]) == self.machine.read_register(
            COUNTER[self.arch])
        assert plain.digest() == self.machine.digest()


@pytest.mark.parametrize("arch", ARCHES)
def test_overwriting_running_code_matches_a_machine_that_flushes_translations(arch):
    case = type("Writing", (Writing,), {"arch": arch}).TestCase  # type: ignore[attr-defined]
    case.settings = settings(max_examples=15, stateful_step_count=40, deadline=None,
                             phases=[Phase.explicit, Phase.reuse, Phase.generate],
                             suppress_health_check=list(HealthCheck))
    case().runTest()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_recording_with_overwritten_code_is_replayed(arch, seed, tmp_path):
    """Overwrite code between runs and, in a handler, in the middle of a run."""
    machine, at = looping(arch)
    rng, path = random.Random(seed), tmp_path / "file.rec"

    def piece():
        return at + SLOT * (1 + rng.randrange(SLOTS)), body(arch, rng.randrange(1 << 30))

    with Recorder(machine, path, STATE, "written over"):
        for way in rng.sample([by_physical, by_virtual, by_words, by_front, by_debugger], 5):
            way(machine, *piece())
            machine.handle(at, lambda: rng.random() < 0.1 and machine.write(*piece()))
            machine.run(Until(instructions=machine.instructions + rng.randrange(2000)))
            machine.handle(at, None)
    recording = Recording(path)
    assert recording.end is not None and recording.end.digest
    again, _at = looping(arch)
    player = Player(recording, again)
    assert player.advance_to_end() is None and player.difference() == ""
    assert again.read_register(COUNTER[arch]) == machine.read_register(COUNTER[arch])


def test_instructions_that_the_decoder_does_not_know_are_counted():
    """Unicorn and QEMU execute 8F /6 as POP, but the decoder does not know this encoding.

    Decoding it differently would misread the instructions after it.
    """
    machine = boots.booted(catalog.find("teaching/amd64"), MEMORY)
    at, begin = machine.symbol("strlen").address, machine.instructions
    machine.write(at, bytes.fromhex("90 8f771c 90 0f0b".replace(" ", "")))  # nop, pop, nop, ud2
    machine.write_register("rdi", machine.sp - 256)
    machine.pc = at
    start = machine.snapshot()
    for _ in range(3):
        machine.step()
    assert machine.pc == at + 5 and machine.instructions == begin + 3
    machine.step()
    one_by_one, handler = machine.instructions, machine.pc
    machine.restore(start)
    machine.run(Until(addresses=[handler]))
    assert machine.pc == handler and machine.instructions == one_by_one
