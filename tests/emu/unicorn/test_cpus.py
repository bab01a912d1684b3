"""Tests of several CPUs in one engine, each running a function of a uniprocessor kernel."""

import functools
import json
import random
from dataclasses import replace

import pytest

from emu.elf.boot_options import BootOptions
from emu.host.errors import MachineError, SnapshotError
from emu.machine.machine import StopReason, Until
from emu.replay.inputs import position_of
from emu.replay.player import Player
from emu.replay.recording import Recorder, Recording
from emu.replay.starts import STATE
from emu.unicorn import snapshot
from emu.unicorn._engine import Moment, Turns
from emu.unicorn.machine import UnicornMachine
from images import catalog
from tests.conftest import MEMORY

TURN = 500


@pytest.fixture
def image(arch):
    return replace(catalog.find(f"races/{arch}"), options=BootOptions(cpus=3, turn=TURN))


def with_runs(image, functions=("crc32", "fibonacci", "collatz")):
    """Return (machine, return address); each CPU of the machine is about to call a function."""
    machine = UnicornMachine(image, MEMORY)
    machine.place_image()
    back = machine.guest.entry_address(image)
    first = machine.cpus[0].state()
    top = machine.sp
    for cpu in machine.cpus:
        cpu.on = True
        machine.give_turn(cpu.number)
        if cpu.number:
            cpu.restore({**cpu.state(), **{name: value for name, value in first.items()
                                           if name not in ("timers", "timer_at")}})
        machine.write_register(machine.arch.sp, top - 65536 * (cpu.number + 1))
        arguments = {"crc32": (0, machine.symbol("crc32").address, 900), "fibonacci": (11,),
                     "collatz": (97,)}[functions[cpu.number]]
        machine.arch.prepare_call(machine, arguments, back)
        machine.pc = machine.symbol(functions[cpu.number]).address
    machine.give_turn(0)
    return machine, back


def ended(machine, back, cut=None):
    """Run the call of every CPU to its end; return (CPU, instructions, time, result) for each CPU.

    :param cut: function that returns after how many instructions to interrupt the run.
    """
    found = []
    while len(found) < len(machine.cpus):
        stop = machine.run(Until(addresses=[back], instructions=None if cut is None else
                                 machine.instructions + cut()))
        if stop.reason is StopReason.INSTRUCTIONS:
            yield_to(machine)
            continue
        assert stop.reason is StopReason.ADDRESS, stop
        found.append((machine.cpu.number, machine.instructions, machine.engine.time,
                      machine.read_register(machine.arch.result)))
        machine.schedule.off()
        machine.schedule.over()
    return found


def yield_to(machine):
    """Compute the machine's digest, as a debugger might between two runs."""
    machine.digest()


def test_each_cpu_has_its_own_registers_and_computes_its_result(image):
    machine, back = with_runs(image)
    found = ended(machine, back)
    assert {who: result & 0xFFFFFFFF for who, _n, _t, result in found}.keys() == {0, 1, 2}
    alone = {}
    for function in ("crc32", "fibonacci", "collatz"):
        one, back = with_runs(image, (function,) * 3)
        alone[function] = {result for _w, _n, _t, result in ended(one, back)}
    results = {who: result for who, _n, _t, result in found}
    assert [{results[0]}, {results[1]}, {results[2]}] == list(alone.values())


def test_time_advances_by_the_longest_turn_of_each_round(image):
    machine, back = with_runs(image)
    times = []
    for count in range(0, 12 * TURN, 37):
        machine.run(Until(instructions=count, addresses=[back]))
        times.append((machine.instructions, machine.engine.time))
    assert times == sorted(times)
    executed, time = times[-1]
    assert executed > 10 * TURN and executed / 3.5 < time < executed / 2


def test_running_in_pieces_does_not_change_a_run_with_several_cpus(image):
    machine, back = with_runs(image)
    whole = ended(machine, back), machine.digest()
    for seed in range(4):
        chosen = random.Random(seed)
        other, back = with_runs(image)
        other.engine.slow = seed == 3
        assert ended(other, back, functools.partial(chosen.randrange, 1, 900)) == whole[0]
        other.engine.slow = False
        assert other.digest() == whole[1]


def test_snapshots_and_marks_include_all_cpus(image, tmp_path):
    machine, back = with_runs(image)
    machine.run(Until(instructions=5 * TURN + 123))
    here = machine.digest()
    kept, mark = machine.snapshot(), machine.mark()
    snapshot.save(machine, tmp_path / "cpus.kinst")
    rest = ended(machine, back)
    end = machine.digest()
    machine.back_to(mark)
    assert machine.digest() == here
    assert ended(machine, back) == rest and machine.digest() == end
    machine.restore(kept)
    assert machine.digest() == here
    assert ended(machine, back) == rest and machine.digest() == end
    other = snapshot.restore(tmp_path / "cpus.kinst", image)
    assert other.digest() == here
    assert ended(other, back) == rest and other.digest() == end


def test_returning_to_a_mark_restores_overwritten_code(image):
    machine, _back = with_runs(image)
    target = machine.symbol("fibonacci").address
    machine.give_turn(1)
    mark = machine.mark()
    results = []
    for _ in range(3):
        machine.back_to(mark)
        first = machine.run(Until(instructions=machine.instructions + 40))
        assert first.reason is StopReason.INSTRUCTIONS
        code = machine.read(target, 64)
        machine.write(target, machine.read(machine.symbol("collatz").address, 64))
        machine.run(Until(instructions=machine.instructions + 40))
        machine.write(target, code)
        machine.run(Until(instructions=machine.instructions + 40))
        results.append(machine.digest())
    assert len(set(results)) == 1


def test_turns_given_by_the_caller_are_recorded(image, tmp_path):
    machine, _back = with_runs(image)
    recorder = Recorder(machine, tmp_path / "turns.rec", STATE, "turns")
    places = []
    for number in (2, 0, 1, 1, 2):
        machine.give_turn(number)
        machine.run(Until(instructions=machine.instructions + 77))
        places.append((position_of(machine), machine.digest()))
    machine.switch_off()
    machine.run(Until(instructions=machine.instructions + 77))
    end = recorder.end()
    recording = Recording(tmp_path / "turns.rec")
    assert (recording.start.cpus, recording.start.turn) == (3, TURN)
    assert [one.kind for one in recording.inputs] == ["turn"] * 5 + ["off"]
    player = Player(recording, UnicornMachine(recording.options and replace(
        image, options=recording.options), MEMORY))
    for position, digest in (places[3], places[0], places[4], places[1]):
        player.seek(position)
        assert player.machine.digest() == digest
    player.advance_to_end()
    assert not player.difference() and end.digest == recording.end.digest


def test_an_exclusive_reservation_ends_with_the_turn(arch, image):
    if arch == "amd64":
        assert UnicornMachine(image, MEMORY).cpus[0].monitor_place() == 0
        return
    machine, _back = with_runs(image)
    code, address, result = {
        "arm64": ("e17f5f88e17f0388", "sp", "x3"),  # ldxr w1, [sp]; stxr w3, w1, [sp]
        "riscv64": ("af250110af21b118", "sp", "gp"),  # lr.w a1, (sp); sc.w gp, a1, (sp)
    }[arch]
    place = machine.symbol("collatz").address
    machine.write(place, bytes.fromhex(code))
    machine.give_turn(0)
    machine.pc = place
    for taken, failed in ((False, 0), (True, 1)):
        machine.pc = place
        machine.run(Until(instructions=machine.instructions + 1))
        if taken:
            machine.give_turn(1)
            machine.give_turn(0)
        machine.run(Until(instructions=machine.instructions + 1))
        assert machine.read_register(result) == failed
    assert machine.read_register(address)


def test_invalid_cpu_numbers_and_states_are_refused(image, tmp_path):
    machine, _back = with_runs(image)
    with pytest.raises(MachineError, match="CPU 3 does not exist"):
        machine.give_turn(3)
    with pytest.raises(ValueError):
        Turns(UnicornMachine(replace(image, options=BootOptions()), MEMORY).engine, 9, 100)
    with pytest.raises(RuntimeError):
        Turns(machine.engine, 2, 100)
    with pytest.raises(TypeError):
        Moment(None)
    snapshot.save(machine, tmp_path / "three.kinst")
    for cpus in (1, 2):
        with pytest.raises(SnapshotError):
            snapshot.restore(tmp_path / "three.kinst",
                             replace(image, options=BootOptions(cpus=cpus)))
    good = json.loads(json.dumps(snapshot.to_json(machine.state())))
    for change in ({"turns": None}, {"turns": {}}, {"turns": {**good["turns"], "cpu": 3}},
                   {"turns": {**good["turns"], "cpus": good["turns"]["cpus"][:2]}},
                   {"turns": {**good["turns"], "clock": [1, 2, 3, 0]}},
                   {"turns": {**good["turns"], "clock": [1, 2]}}, {"turns": 7}):
        with pytest.raises(snapshot.DAMAGE):
            machine.restore_state(snapshot.from_json({**good, **change}))
    machine.restore_state(snapshot.from_json(good))


def test_a_cpu_that_was_off_is_restored_to_off(image):
    machine = UnicornMachine(replace(image, options=BootOptions(cpus=2)), MEMORY)
    machine.boot()
    kept, digest = machine.snapshot(), machine.digest()
    first = machine.cpus[0].state()
    machine.run(Until(instructions=200_000))
    second = machine.cpus[1]
    second.on = True
    machine.give_turn(1)
    second.restore({**second.state(), **{name: value for name, value in
                                         machine.cpus[0].state().items()
                                         if name not in ("timers", "timer_at")}})
    machine.restore(kept)
    assert machine.digest() == digest and machine.cpus[0].state() == first


def test_a_machine_with_all_cpus_off_halts(image):
    machine, _back = with_runs(image)
    for _ in machine.cpus:
        machine.schedule.off()
        machine.schedule.over()
    stop = machine.run(Until(instructions=machine.instructions + 1000))
    assert stop.reason is StopReason.HALT and "off" in stop.detail
    with pytest.raises(MachineError, match="CPU 0 is off"):
        machine.give_turn(0)


def test_setting_the_pc_of_a_waiting_cpu_works_after_a_restore(image):
    machine, back = with_runs(image)
    target = machine.symbol("collatz").address
    machine.schedule.begins_to_wait(machine.pc)
    machine.pc = target
    second = target + machine.arch.instruction_length(machine.read(target, 16))
    kept = machine.snapshot()
    results = []
    for _ in range(2):
        stop = machine.run(Until(instructions=machine.instructions + TURN, addresses=[second]))
        assert stop.reason is StopReason.ADDRESS and machine.cpu.number == 0
        machine.run(Until(instructions=machine.instructions + 3 * TURN, addresses=[back]))
        results.append(machine.digest())
        machine.restore(kept)
    assert results[0] == results[1]


def test_marks_remain_valid_after_snapshots_and_other_marks(image):
    machine, back = with_runs(image)
    one = machine.mark(), machine.digest()
    machine.output(ord("x"))
    machine.run(Until(instructions=machine.instructions + 3 * TURN, addresses=[back]))
    other = machine.mark(), machine.digest()
    machine.snapshot()
    assert one[1] != other[1]
    for mark, digest in (one, other, one, other):
        machine.back_to(mark)
        assert machine.digest() == digest
