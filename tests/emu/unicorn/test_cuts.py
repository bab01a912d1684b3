"""Tests that inspecting, stopping or saving a machine does not change its run."""

import contextlib
import importlib
import random
import tempfile
from pathlib import Path

import pytest
import unicorn
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dtrace.calls.calls import Evaluation, check, parse
from emu.host.errors import MachineError, MemoryAccessError
from emu.machine.call import Caller
from emu.machine.machine import StopReason, Until
from emu.unicorn import snapshot
from emu.unicorn.machine import UnicornMachine
from emu.unicorn.run_loop import GONE, MAX_STOPS
from images import boots, catalog
from kinst.probes.breakpoints import PATHS, Breakpoints
from kinst.probes.probed_code import ProbeError
from kinst.providers import kinst_provider
from tests.conftest import ARCHES, MEMORY
from tests.cutting import Cutting
from tests.kinst.verify.test_upstream_mistakes import assemble, words

TYPED = b"lesson\rstrings\rticks\r"


def start(image):
    machine = UnicornMachine(image, MEMORY)
    machine.boot()
    return machine


def functions(image):
    return [f for f in image.symbols.functions() if f.size > 8]


@pytest.fixture
def whole(image):
    """Boot and run some commands without interruption.

    :return: instructions at the end, digest there, instructions from which the kernel can be
        probed.
    """
    machine = start(image)
    boots.at_start(machine)
    from_ = machine.instructions
    machine = start(image)
    machine.type(TYPED)
    machine.run(Until(console="ticks\r\nteaching> "))
    return machine.instructions, machine.digest(), from_


@pytest.mark.parametrize("seed", [1, 2])
def test_interruptions_of_every_kind_do_not_change_a_boot(image, whole, seed, tmp_path):
    end, digest, from_ = whole
    machine = start(image)
    machine.type(TYPED)
    cutting = Cutting(machine, seed, max(1, end // 700), functions(image), tmp_path, start=from_)
    stop = cutting.run(Until(instructions=end))
    assert stop.reason is StopReason.INSTRUCTIONS
    assert cutting.machine.digest() == digest
    assert sum(cutting.cuts.values()) > 300, cutting.cuts


def test_single_stepping_does_not_change_a_boot(image, whole):
    end, _digest, _from = whole
    end = min(end, 6_000)  # long enough to include waits for the clock
    one = start(image)
    one.type(TYPED)
    one.run(Until(instructions=end))
    stepped = start(image)
    stepped.type(TYPED)
    while stepped.instructions < end:
        before = stepped.instructions
        stepped.step()
        assert stepped.instructions == before + 1
    assert stepped.now == one.now
    assert stepped.digest() == one.digest()


@pytest.mark.parametrize("every", [97, 1])
def test_instruction_limits_do_not_change_virtual_time(image, every):
    plain, cut = start(image), start(image)
    plain.run(Until(instructions=5000))
    while cut.instructions < 5000:
        cut.run(Until(instructions=min(5000, cut.instructions + every)))
    assert (cut.now, cut.digest()) == (plain.now, plain.digest())


@pytest.mark.parametrize("name", ["machine_init", "clock_interrupt", "uart_put", "strcmp"])
def test_stop_addresses_do_not_change_a_run(image, whole, name):
    end, digest, _from = whole
    machine = start(image)
    machine.type(TYPED)
    address, seen = machine.symbol(name).address, 0
    while machine.instructions < end:
        stop = machine.run(Until(addresses=[address], instructions=end))
        seen += stop.reason is StopReason.ADDRESS
    assert seen and machine.digest() == digest


def test_a_stop_address_takes_precedence_over_a_limit(image):
    """A run whose limit falls on a stop address must report the stop address as the reason."""
    machine = start(image)
    address = machine.symbol("clock_interrupt").address
    assert machine.run(Until(addresses=[address])).reason is StopReason.ADDRESS
    count, now = machine.instructions, machine.now
    for limits in ({"instructions": count}, {"time": now}, {"instructions": count, "time": now}):
        again = start(image)
        stop = again.run(Until(addresses=[address], **limits))
        while stop.reason is StopReason.TIME and again.instructions < count:
            stop = again.run(Until(addresses=[address], **limits | {"time": now + 1}))
        assert (stop.reason, stop.pc, again.instructions) == (StopReason.ADDRESS, address, count)
        later = now + 1_000_000
        assert again.run(Until(time=later)).reason is StopReason.TIME and again.now >= later


def test_unmapped_stop_addresses_do_not_accumulate(image):
    """Unicorn checks every stop address for each instruction that it translates."""
    machine = start(image)
    machine.run(Until(addresses=[machine.symbol("clock_interrupt").address]))
    nowhere = [0x12345678000 + 0x1000 * page for page in range(8)]
    for turn in range(40):
        machine.run(Until(addresses=[nowhere[turn % 8]], instructions=machine.instructions + 5))
    machine.step()
    # On amd64, all 8 addresses are unmapped.
    unmapped = sum(machine.translate(address) is None for address in nowhere)
    assert machine.engine.stops_left == unmapped


CALLS = ['strlen("hello")', 'memcmp("abc", "abd", 3)', 'strtoul("1234zz", 0, 10)',
         'strcmp("a", "a")', "fibonacci(9)", "strlen(buf(300))"]


def test_interruptions_of_every_kind_do_not_change_calls(booted, tmp_path):
    def evaluate(machine, text):
        program = parse(text)
        check(machine.image, program)
        return Evaluation(Caller(machine, 1_000_000)).run(program)

    plain, begin = booted.snapshot(), booted.instructions
    values = [evaluate(booted, text) for text in CALLS]
    length, digest = booted.instructions - begin, booted.digest()
    for seed in (1, 2, 3):
        booted.restore(plain)
        cutting = Cutting(booted, seed, max(1, length // 300), functions(booted.image), tmp_path,
                          files=0)
        assert [evaluate(cutting, text) for text in CALLS] == values
        assert cutting.machine.digest() == digest and sum(cutting.cuts.values()) > 100


def test_the_fast_path_at_a_block_start_matches_the_slow_path(image):
    """The compared runs include interrupts, waits and stops."""
    ends = []
    for slow in (True, False):
        machine = start(image)
        machine.engine.slow = slow
        machine.type(TYPED)
        machine.run(Until(console="ticks\r\nteaching> "))
        ends.append((machine.instructions, machine.now, machine.engine.blocks, machine.digest()))
    assert ends[0] == ends[1]


def test_every_form_of_conditional_branch_ends_a_block(booted):
    """The engine does not ask the CPU model about them."""
    cpu = booted.cpu
    branches = importlib.import_module(type(cpu).__module__).BRANCHES
    chosen, width = random.Random(5), (1 << 32) - 1
    for size, mask, value in branches:
        for _ in range(300):
            word = chosen.getrandbits(32) & ~mask & width | value
            code = (word.to_bytes(4, "little") + bytes(4))[:size]
            assert cpu._block_ends(code), code.hex()
            assert booted.engine.split(code) == (1, 0)


def test_code_is_split_natively_as_in_python(booted):
    chosen, certain = random.Random(6), 0
    segment = next(segment for segment in booted.image.segments if segment.executable)
    functions = [f for f in booted.image.symbols.functions()
                 if segment.virtual <= f.address < segment.virtual + len(segment.data)]
    for _ in range(2000):
        function = chosen.choice(functions)
        at = function.address - segment.virtual + 4 * chosen.randrange(8)
        code = chosen.choice((bytes(segment.data[at : at + chosen.randrange(1, 60)]),
                              chosen.randbytes(chosen.randrange(1, 30))))
        native = booted.engine.split(code)
        if native is not None:
            pieces = booted.arch.split(code)
            assert native == (len(pieces), len(code) - len(pieces[-1])), code.hex()
            certain += 1
    assert certain > 300


class Looking(RuleBasedStateMachine):
    """Random operations between instructions; none of them may change the machine's run."""

    arch = "amd64"
    whole: tuple[int, str] | None = None

    @initialize()
    def boot(self):
        self.image = catalog.find(f"teaching/{self.arch}")
        self.machine = boots.booted(self.image, MEMORY)
        self.machine.type(TYPED)
        self.first = self.machine.instructions
        self.kept, self.probes, self.seen = None, None, 0

    @rule(count=st.integers(1, 2000))
    def run(self, count):
        self.machine.run(Until(instructions=self.machine.instructions + count))

    @rule(nanoseconds=st.integers(1, 2_000_000))
    def run_for_a_time(self, nanoseconds):
        at = self.machine.instructions + 3000
        self.machine.run(Until(time=self.machine.now + nanoseconds, instructions=at))

    @rule(which=st.integers(0, 1000))
    def run_to_a_function(self, which):
        found = functions(self.image)
        self.machine.run(Until(addresses=[found[which % len(found)].address],
                               instructions=self.machine.instructions + 3000))

    @rule(count=st.integers(1, 20))
    def step(self, count):
        for _ in range(count):
            self.machine.step()

    @rule()
    def keep(self):
        self.kept = self.machine.snapshot()

    @precondition(lambda self: self.kept and self.kept.patches == self.machine.patches)
    @rule()
    def go_back(self):
        self.machine.restore(self.kept)

    @precondition(lambda self: self.probes is None)
    @rule()
    def through_a_file(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "s"
            snapshot.save(self.machine, path)
            self.machine, self.kept = snapshot.restore(path, self.image), None

    @precondition(lambda self: self.probes is None)
    @rule(which=st.lists(st.integers(0, 1000), min_size=1, max_size=5),
          path=st.sampled_from(PATHS))
    def enable(self, which, path):
        found = functions(self.image)
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

    @rule(which=st.integers(0, 1000))
    def handle(self, which):
        found = functions(self.image)
        address = found[which % len(found)].address
        if address in self.machine._loop.handlers:
            return
        self.machine.handle(address, lambda: None)
        self.run(500)
        self.machine.handle(address, None)

    @rule(address=st.integers(0, (1 << 64) - 1))
    def look(self, address):
        machine = self.machine
        machine.registers()
        with contextlib.suppress(MemoryAccessError):
            machine.read(address, 1)
        machine.read(machine.pc, 1)
        machine.digest()

    def teardown(self):
        if not hasattr(self, "machine"):
            return
        end = self.first + 60_000
        if self.machine.instructions < end:
            self.machine.run(Until(instructions=end))
        end = self.machine.instructions
        if self.probes is not None:
            self.probes.disable()
        plain = boots.booted(self.image, MEMORY)
        plain.type(TYPED)
        plain.run(Until(instructions=end))
        assert self.machine.digest() == plain.digest()


@pytest.mark.parametrize("arch", ARCHES)
def test_random_inspection_does_not_change_a_run(arch):
    case = type("Looking", (Looking,), {"arch": arch}).TestCase  # type: ignore[attr-defined]
    case.settings = settings(max_examples=12, stateful_step_count=25, deadline=None,
                             suppress_health_check=list(HealthCheck))
    case().runTest()


def placed(machine, code):
    """Write code to unused memory above the stack and return its address."""
    address = (machine.sp & ~0xFFF) + 0x100000 + 0x40
    machine.write_code(address, code)
    return address


def straight(arch, count):
    """Return a long block of additions that ends with a return instruction."""
    if arch == "amd64":
        return assemble(arch, "inc rax; add rdx, rax;") * (count // 2) + b"\xc3"
    if arch == "arm64":
        return assemble(arch, "add x0, x0, #1; add x1, x1, x0;") * (count // 2) + words(0xD65F03C0)
    return words(0x00150513, 0x00A585B3) * (count // 2) + words(0x00008067)


@pytest.mark.parametrize("count", [600, 3000])
def test_cuts_in_a_very_long_block_do_not_change_the_run(image, arch, count):
    """The run is stopped at many places in the block, and a clock interrupt arrives inside it."""
    ends = set()
    for seed in range(4):
        machine = boots.booted(image, MEMORY)
        code = straight(arch, count)
        address = placed(machine, code)
        machine.run(Until(time=machine.now + 9_900_000))  # shortly before the clock interrupt
        while not interruptible(machine):
            machine.step()
        saved = machine.registers()
        rng = random.Random(seed)
        size = (len(code) - 4) // count if arch != "amd64" else 3
        for _ in range(60):
            machine.arch.prepare_call(machine, (0, 0), machine.guest.entry_address(image))
            machine.pc = address
            stops = [] if seed == 0 else [
                address + size * rng.randrange(count) for _ in range(3)]
            while True:
                stop = machine.run(Until(addresses=[machine.guest.entry_address(image), *stops]))
                assert stop.reason is StopReason.ADDRESS
                if stop.pc == machine.guest.entry_address(image):
                    break
            machine.write_register(machine.arch.sp, saved[machine.arch.sp])
        for name, value in saved.items():
            machine.write_register(name, value)
        ends.add((machine.instructions, machine.now, machine.digest()))
    assert len(ends) == 1


def interruptible(machine):
    name = {"amd64": "rflags", "arm64": "pstate", "riscv64": "sstatus"}[machine.arch.name]
    value = machine.read_register(name)
    return {"amd64": value >> 9 & 1, "arm64": not value >> 7 & 1,
            "riscv64": value >> 1 & 1}[machine.arch.name]


def test_the_machine_cannot_be_run_from_inside_its_own_run(booted):
    said = []

    def again():
        with pytest.raises(MachineError, match="already running: a handler") as error:
            booted.run(Until(instructions=booted.instructions + 1))
        said.append(str(error.value))

    booted.handle(booted.symbol("strlen").address, again)
    caller = Caller(booted)
    assert caller.call(booted.symbol("strlen").address, [caller.place(b"ab\0")], "strlen") == 2
    assert len(said) == 1 and "\n" not in said[0]


@pytest.mark.parametrize("path", PATHS)
def test_a_snapshot_inside_a_firing_is_refused(booted, path):
    probes = Breakpoints(booted, lambda _probe, _state: booted.snapshot(), path=path)
    kinst_provider.create(probes, "strlen", "0")
    probes.enable()
    caller = Caller(booted)
    with pytest.raises(MachineError, match="middle of an instruction"):
        caller.call(booted.symbol("strlen").address, [caller.place(b"ab\0")], "strlen")
    probes.disable()


def test_a_pending_power_off_survives_a_stop_and_a_snapshot(tmp_path):
    """A snapshot that is taken right after the port write must contain the pending request.

    The teaching kernels for arm64 and riscv64 power off by a firmware call, which ends its block.
    """
    machine = boots.booted(catalog.find("teaching/amd64"), MEMORY)
    machine.run(Until(instructions=machine.instructions + 1000))
    machine.type(b"off\r")
    machine.run(Until(addresses=[machine.symbol("machine_off").address]))
    while machine.state().stop is None:
        machine.step()
    snapshot.save(machine, tmp_path / "s")
    other = snapshot.restore(tmp_path / "s", machine.image)
    for one in (machine, other):
        assert one.run(Until(instructions=one.instructions + 1000)).reason is StopReason.POWER_OFF
    assert machine.digest() == other.digest()


def test_only_block_ending_instructions_end_a_block(fresh):
    """In every block of a boot, only the last instruction may be of a kind that ends a block.

    It must do so unless the CPU model's own limits cut the block.
    """
    blocks = set()
    fresh.uc.hook_add(unicorn.UC_HOOK_BLOCK, lambda _uc, at, size, _d: blocks.add((at, size)))
    fresh.run(Until(console="teaching> "))
    board, arch, asked = fresh.cpu, fresh.arch, 0
    page = {"amd64": 64, "arm64": 10, "riscv64": 12}[arch.name]
    for begin, size in blocks:
        if not size or fresh.translate(begin) is None:
            continue
        code = fresh.read(begin, size)
        found = []
        while code:
            length = arch.instruction_length(code[:15]) or len(code)
            found.append(code[:length])
            code = code[length:]
        expected = [board._block_ends(one) for one in found]
        assert [board.ends_block(one) for one in found] == expected
        assert not any(expected[:-1]), (hex(begin), [one.hex() for one in found])
        # Exclude blocks of one instruction, which may be in an interrupt shadow.
        if 1 < len(found) < 16 and not (begin ^ begin + size) >> page:
            assert expected[-1] or board.is_wait(found[-1]), (hex(begin), found[-1].hex())
            asked += 1
    assert asked > 50


def test_a_handler_beyond_the_limit_is_refused(fresh):
    base = fresh.symbol("strlen").address
    already = len(fresh._loop.handlers)
    for n in range(MAX_STOPS - already):
        fresh.handle(base + 16 + n, lambda: None)
    with pytest.raises(MachineError, match=f"{MAX_STOPS + 1} stop addresses and handlers"):
        fresh.handle(base, lambda: None)
    assert base not in fresh._loop.handlers
    fresh.handle(base + 16, None)
    fresh.handle(base, lambda: None)
    assert base in fresh._loop.handlers


@pytest.mark.parametrize("cut", ["count", "steps", "address", "elsewhere", "handler"])
def test_cuts_do_not_flush_the_tlb(cut):
    """A TLB flush would let a page walk set the accessed bit that the guest has cleared."""
    machine = boots.booted(catalog.find("teaching/amd64"), MEMORY)
    free = machine.board.ram_base + (32 << 20)
    near = machine.symbol("strlen").address
    hole = machine.guest.traps.hole(machine, near, free, 1, free + (1 << 20))
    text, page, tables = hole.virtual, hole.virtual + 0x14000, hole.virtual + 0x15000

    def put(at, entry):
        machine.write_physical(at, entry.to_bytes(8, "little"))

    for place, entry in hole.writes:
        put(place, free | 7 if place == free + (1 << 20) else entry | 4)
    for number, physical in ((0, 0x200000 + free), (20, 0x214000 + free), (21, free)):
        put(free + 8 * number, physical | 0x63)
    load = assemble("amd64", "mov rax, [rdi]")
    machine.write_physical(0x200000 + free, b"".join((
        load, assemble("amd64", "and byte ptr [rsi], 0xdf"), b"\xeb\x00", b"\x90" * 6, b"\xeb\x00",
        b"\x90" * 4, load, b"\xeb\x00", b"\x90\xeb\xfe")))
    for name, value in (("rdi", page), ("rsi", tables + 160), ("rflags", 2), ("rip", text)):
        machine.write_register(name, value)
    end = machine.instructions + 16
    if cut == "count":
        machine.run(Until(instructions=end - 11))
    elif cut == "steps":
        for _ in range(6):
            machine.step()
    elif cut == "address":
        machine.run(Until(addresses=[text + 9], instructions=end))
    elif cut == "elsewhere":
        machine.run(Until(instructions=end - 13))
        machine.run(Until(addresses=[near], instructions=end - 10))
    else:
        machine.handle(text + 9, lambda: None)
    machine.run(Until(instructions=end))
    assert machine.instructions == end and not machine.read_physical(free + 160, 1)[0] & 0x20


@pytest.mark.parametrize("arch, name, value", [
    ("riscv64", "satp", 8 << 60), ("arm64", "sctlr_el1", (1 << 64) - 1), ("amd64", "cr3", 0)])
def test_a_run_ends_when_the_mapping_of_its_code_disappears(arch, name, value):
    """If a debugger unmaps the running code, Unicorn by itself continues with stale TLB entries."""
    machine = boots.booted(catalog.find(f"teaching/{arch}"), MEMORY)
    machine.type(b"strings\r")
    kept, digest, gone = machine.snapshot(), machine.digest(), 0
    for count in range(60):
        machine.restore(kept)
        machine.run(Until(instructions=machine.instructions + count))
        machine.write_register(name, value)
        try:
            stop = machine.run(Until(instructions=machine.instructions + 500))
            assert stop.reason is StopReason.UNHANDLED
        except MachineError as error:
            assert str(error).startswith(GONE)
            gone += 1
        machine.restore(kept)
        assert machine.digest() == digest
    assert bool(gone) == (arch == "riscv64")
