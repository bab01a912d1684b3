"""Tests that effects, call trees and value origins in recorded boots match the execution."""

import io
import random
from collections import Counter

import pytest

from dtrace.flow.call_tree import CallTree
from dtrace.flow.code import KernelCode
from dtrace.flow.origin import How, Origin
from dtrace.flow.outputs import PERFETTO, output
from dtrace.flow.steps import steps
from dtrace.flow.walk import INLINE, ROOT, Walk
from emu.machine.machine import Until
from emu.machine.running_thread import thread_of
from emu.replay.flow import Head, flow
from emu.replay.recording import Recorder
from emu.replay.starts import BOOT
from emu.unicorn.machine import UnicornMachine
from images.boots import boot_to_prompt
from images.recordings import from_start, played
from kinst.code.dataflow import EFFECTS, MEMORY
from kinst.probes.breakpoints import Breakpoints
from kinst.providers.fbt import create
from tests.conftest import ARCHES, real_kernel
from tests.dtrace.flow.test_outputs import perfetto_slices

NEAR = 1_000_000  # maximum distance of a tested origin, in instructions (to save time)


@pytest.fixture(scope="module", params=ARCHES)
def recorded(request, tmp_path_factory):
    image = real_kernel(request.param)
    path = tmp_path_factory.mktemp("flow") / f"{request.param}.rec"
    machine = UnicornMachine(image)
    machine.boot()
    with Recorder(machine, path, BOOT, "boot"):
        boot_to_prompt(machine)
    return path, str(image.path)


@pytest.fixture(scope="module")
def player(recorded):
    path, kernel = recorded
    return played(path, kernel)


def places(player, seed, count, room):
    chosen = random.Random(seed)
    low = player.recording.last.instructions // 5  # the MMU is on and threads run by then
    return [chosen.randrange(low, player.recording.last.instructions - room) for _ in range(count)]


def test_declared_effects_of_instructions_match_their_execution(player):
    """Check each instruction in some parts of a boot.

    An instruction must write only the registers in its effect; a copied, loaded or stored value
    must be the value of its source.
    """
    machine = player.machine
    arch, effect = machine.arch, EFFECTS[machine.arch.name]
    code = KernelCode(machine.image)
    followed = {name for name in arch.dwarf_registers if name}
    seen, odd = set(), []
    for at in places(player, 1, 12, 30_000):
        player.seek(at)
        registers = machine.registers()
        player.seek(at + 30_000)
        end = player.position
        player.seek(at)
        done = [s for piece in steps(player, end, True, True) if not isinstance(piece, bytes)
                for s in piece]
        assert len(done) == 30_000
        for number, step in enumerate(done[:-1]):
            instruction = code.instruction(step.pc)
            e = effect(instruction)
            after = registers | step.registers
            changed = {n for n in step.registers if n in followed and n != arch.pc}
            jumped = not 0 <= done[number + 1].pc - step.pc <= 15  # an exception or a jump
            if not changed <= e.writes and not jumped:
                odd.append((hex(step.pc), arch.disassemble(instruction, step.pc), changed))
            for name, sources in e.copies.items():
                if not any(registers[s] & 0xFF == after[name] & 0xFF for s in sources):
                    odd.append((hex(step.pc), arch.disassemble(instruction, step.pc), name))
            if not jumped and len(step.stores) == len(e.stores):
                for (_at, _physical, data), source in zip(step.stores, e.stores, strict=True):
                    value = int.from_bytes(data, "little")
                    if source not in (None, MEMORY) and (
                            registers[source] & (1 << 8 * len(data)) - 1 != value):
                        odd.append((hex(step.pc), arch.disassemble(instruction, step.pc), source))
            elif not jumped and step.stores and not e.clears and set(e.stores) != {None}:
                odd.append((hex(step.pc), arch.disassemble(instruction, step.pc), "stores",
                            len(step.stores), e.stores))
            seen.add(step.pc)
            registers = after
    assert len(seen) > 2_000
    assert not odd[:10]


def test_single_steps_and_native_tracing_show_the_same_changes(player):
    (at,) = places(player, 2, 1, 3_000)
    player.seek(at + 1_000)
    end = player.position
    player.seek(at)
    machine = player.machine
    native = [s for piece in steps(player, end, True, True) if not isinstance(piece, bytes)
              for s in piece]
    assert len(native) == 1_000 and sum(len(step.stores) for step in native) > 20
    player.seek(at)
    before = machine.registers()
    for step in native:
        assert (player.position.instructions, machine.pc) == (step.position, step.pc)
        player.run(Until(instructions=step.position + 1))
        after = machine.registers()
        assert step.registers == {n: v for n, v in after.items()
                                  if v != before[n] and n != machine.arch.pc}
        for address, physical, data in step.stores:
            assert machine.read_physical(physical, len(data)) == data
            assert address is None or machine.translate(address) == physical
        before = after


def test_the_call_tree_counts_as_many_calls_as_fbt(recorded, player):
    names = ("malloc", "uma_zalloc_arg", "strcmp", "device_probe", "spinlock_enter", "kvprintf")
    path, kernel = recorded
    traced = played(path, kernel)
    from_start(traced)
    begin = traced.position
    counts = dict.fromkeys(names, 0)

    def fired(probe, *_):
        counts[probe.function] += 1

    breakpoints = Breakpoints(traced.machine, fired)
    for name in names:
        create(breakpoints, name, "entry")
    breakpoints.enable()
    traced.advance_to_end()
    breakpoints.disable()
    player.seek(begin)
    machine = player.machine
    tree = Counting()
    walk = Walk(KernelCode(machine.image),
                Head(machine.arch.name, machine.image.identity, begin, thread_of(machine)), tree)
    for entries in flow(player, player.recording.last):
        walk.follow(entries)
    walk.end()
    assert {name: tree.calls[name] for name in names} == counts
    assert sum(top.total for top in tree.finish().values()) == (
        player.recording.last.instructions - begin.instructions)


class Counting(CallTree):
    """A call tree that also counts the calls of each function; inline copies do not count."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def enter(self, thread, position, time, name, how, site):
        super().enter(thread, position, time, name, how, site)
        self.calls[name] += how != INLINE


def test_perfetto_slices_match_the_calls_that_fbt_counts(recorded, player):
    """In a part of the boot, the number of closed slices equals FBT's count of calls."""
    path, kernel = recorded
    (at,) = places(player, 5, 1, 3_000_000)
    names = ("malloc", "strcmp", "uma_zalloc_arg", "free")
    traced = played(path, kernel)
    traced.seek(at)
    counts = Counter()
    breakpoints = Breakpoints(traced.machine, lambda probe, *_: counts.update([probe.function]))
    for name in names:
        create(breakpoints, name, "entry")
    breakpoints.enable()
    traced.run(Until(instructions=at + 3_000_000))
    breakpoints.disable()
    player.seek(at)
    machine, file = player.machine, io.BytesIO()
    out = output(PERFETTO, KernelCode(machine.image), Head(
        machine.arch.name, machine.image.identity, player.position, thread_of(machine)), file,
        "kernel", {}, [])
    for entries in flow(player, at + 3_000_000):
        out.take(entries)
    out.finish()
    slices, _instants, _tracks = perfetto_slices(
        file.getvalue(), apart=(INLINE, ROOT))  # omit functions that were entered before ``at``
    slice_counts = Counter(name for name, *_rest in slices)
    assert {name: slice_counts[name] for name in names} == {name: counts[name] for name in names}
    assert sum(counts.values()) > 10


def test_changing_a_value_at_its_origin_changes_the_register(player):
    """Change the value at its origin in fifty random cases.

    The register whose value was traced must then have another value.
    """
    machine = player.machine
    arch = machine.arch
    chosen = random.Random(3)
    code = KernelCode(machine.image)
    origin = Origin(player, code)
    names = [n for n in arch.dwarf_registers if n and n not in (arch.pc, arch.sp)]
    right = tried = 0
    ends = {}
    while right < 50:
        tried += 1
        assert tried < 400, ends
        name = chosen.choice(names)
        (at,) = places(player, 1000 + tried, 1, 10)
        player.seek(at)
        value, pc, kept = machine.read_register(name), machine.pc, machine.snapshot()
        for last in origin.of(name, at):
            if at - last.count > NEAR:
                break
        ends[last.how] = ends.get(last.how, 0) + 1
        if last.how is not How.MADE or at - last.count > NEAR:
            continue
        seen = changed_value(player, last, name, at, pc, value)
        machine.restore(kept)  # discard the changed run
        if seen:
            right += 1
        else:
            pytest.fail(f"{name} at {at}: {last}")


def changed_value(player, last, name, at, pc, value):
    """Return whether changing a bit of a value at its origin changes the register."""
    machine = player.machine
    for bit in (0, 1, 3, 7, 12, 20, 31):
        player.seek(last.count)
        machine.run(Until(instructions=last.count + 1))
        if last.place.startswith("physical"):
            physical = int(last.place.split()[1], 16)
            old = machine.read_physical(physical, 1)
            machine.write_physical(physical, bytes([old[0] ^ 1 << (bit & 7)]))
        else:
            machine.write_register(last.place, machine.read_register(last.place) ^ 1 << bit)
        machine.run(Until(instructions=at))
        if machine.instructions == at and machine.read_register(name) != value:
            return True
    return False
