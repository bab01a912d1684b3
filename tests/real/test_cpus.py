"""Tests that GENERIC kernels start several CPUs and run deterministically."""

import os
import random
from collections import Counter
from dataclasses import replace

import pytest

from emu.elf.boot_options import BootOptions
from emu.machine.machine import StopReason, Until
from emu.replay.inputs import position_of
from emu.replay.player import Player
from emu.replay.recording import Recorder, Recording
from emu.replay.starts import STATE
from emu.unicorn import snapshot
from emu.unicorn.machine import UnicornMachine
from kinst.probes.breakpoints import PATHS, Breakpoints
from kinst.providers import kinst_provider
from kinst_emu.explore.exploration import Runs, for_runs, stage_of
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import run

SEED = int(os.environ.get("KINST_SEED") or random.SystemRandom().randrange(1 << 31))
MEMORY = 512 << 20
CUTS = 500
PROMPT = Until(console="mountroot> ", instructions=2_000_000_000)
BYTES = 900_000  # number of bytes to checksum; the probes fire a few times per word


@pytest.fixture(params=ARCHES, scope="module")
def kernel(request):
    return real_kernel(request.param)


def on(kernel, cpus):
    return replace(kernel, options=BootOptions(cpus=cpus))


def booting(kernel, cpus):
    machine = UnicornMachine(on(kernel, cpus), MEMORY)
    machine.boot()
    return machine


@pytest.mark.parametrize("cpus", [1, 2, 4, 8])
def test_the_kernel_starts_its_cpus_and_two_boots_are_equal(kernel, cpus):
    digests = set()
    for _ in range(2):
        machine = booting(kernel, cpus)
        assert machine.run(PROMPT).reason is StopReason.CONSOLE
        address = machine.symbol("mp_ncpus").address
        assert int.from_bytes(machine.read(address, 4), "little") == cpus
        digests.add(machine.digest())
        assert {machine.image.symbols.where(machine.pc)[:5]
                for _cpu in machine.schedule.each()} - {""}
    assert len(digests) == 1


@pytest.mark.parametrize("cpus", [2, 4])
def test_a_boot_cut_at_random_points_ends_in_the_same_state(kernel, cpus, tmp_path):
    """Interrupt the boot at random points by every operation that must not change a run.

    These are stops, reads, snapshots in memory and on disk, marks, single steps, and the engine's
    slow path. Left out are given turns, calls and writes, which are inputs.
    """
    machine = booting(kernel, cpus)
    machine.run(PROMPT)
    end = machine.instructions + 10_000_000
    machine.run(Until(instructions=end))
    want, chosen = machine.digest(), random.Random(SEED)
    machine, path = booting(kernel, cpus), tmp_path / "cut.kinst"
    for number, count in enumerate(sorted(chosen.randrange(1, end) for _ in range(CUTS))):
        machine.run(Until(instructions=max(count, machine.instructions)))
        action = chosen.choice(("stop", "look", "snapshot", "mark", "step", "file", "slow"))
        if action == "look":
            machine.state()
        elif action == "snapshot":
            kept = machine.snapshot()
            machine.run(Until(instructions=machine.instructions + chosen.randrange(1, 200_000)))
            machine.restore(kept)
        elif action == "mark":
            mark = machine.mark()
            for _ in range(2):
                machine.run(Until(instructions=machine.instructions + chosen.randrange(1, 50_000)))
                machine.back_to(mark)
        elif action == "step":
            for _ in range(chosen.randrange(1, 30)):
                machine.step()
        elif action == "file" and number % 8 == 0:
            snapshot.save(machine, path)
            machine = snapshot.restore(path, on(kernel, cpus))
        elif action == "slow":
            machine.engine.slow = not machine.engine.slow
    machine.engine.slow = False
    machine.run(Until(instructions=end))
    assert machine.digest() == want, f"KINST_SEED={SEED}"


def test_a_recording_of_two_cpus_is_replayed_from_any_position(kernel, tmp_path):
    chosen = random.Random(SEED)
    machine = booting(kernel, 2)
    machine.run(Until(instructions=30_000_000))
    recorder = Recorder(machine, tmp_path / "two.rec", STATE, "two CPUs")
    places = []
    while machine.instructions < 170_000_000:
        machine.run(Until(instructions=machine.instructions + chosen.randrange(1, 6_000_000)))
        if chosen.random() < 0.2:
            machine.type(b"?\n")
        if chosen.random() < 0.2:
            machine.give_turn(chosen.choice([cpu.number for cpu in machine.cpus if cpu.on]))
        machine.step()
        places.append((position_of(machine), machine.digest()))
    recorder.end()
    recording = Recording(tmp_path / "two.rec")
    player = Player(recording, UnicornMachine(on(kernel, 2), MEMORY))
    for position, digest in chosen.choices(places, k=20):
        player.seek(position)
        assert player.machine.digest() == digest, f"KINST_SEED={SEED}"
    player.advance_to_end()
    assert not player.difference()


@pytest.mark.parametrize("path", PATHS)
def test_probes_in_a_loop_fire_equally_often_on_two_cpus(kernel, path):
    """Probe every instruction of crc32_z(); some are copied, some rewritten, some emulated."""
    runs = Runs((f"crc32_z(0, p, {BYTES})",) * 2, f"p = malloc({BYTES}, &M_TEMP, 258)")
    stage, _judge = stage_of(for_runs(kernel, 2), runs, MEMORY)
    machine = stage.machine
    machine.schedule.length = 1_000
    mark = machine.mark()

    def executed(wanted, breakpoints=None):
        machine.back_to(mark)
        if breakpoints is not None:
            breakpoints.enable()
        counts, done = Counter(), 0
        while done < wanted:
            stop = machine.run(Until(addresses=[stage.back],
                                     instructions=machine.instructions + 100_000))
            if breakpoints is not None:
                counts.update((one.probe.id, one.cpu) for one in breakpoints.firings())
            if stop.reason is StopReason.ADDRESS:
                done += 1
                stage.end_run()
        if breakpoints is not None:
            breakpoints.disable()
        return counts, machine.digest(), machine.instructions

    _none, want, length = executed(2)
    breakpoints = Breakpoints(machine, path=path, records=True)
    numbers = kinst_provider.create(breakpoints, "crc32_z", "")
    counts, digest, counted = executed(2, breakpoints)
    assert (digest, counted) == (want, length)
    one, other = ({probe: n for (probe, cpu), n in counts.items() if cpu == which}
                  for which in range(2))
    assert one == other and sum(one.values()) > 1_000_000
    assert breakpoints.dispatcher.firings == sum(counts.values())
    fired = {type(breakpoints.probe(number).instruction.verdict).__name__ for number in numbers
             if number in one}
    assert "Copy" in fired and len(fired) > 1, fired


def test_commands_accept_a_number_of_cpus(kernel):
    name = str(kernel.path)
    for arguments in (("kinst", "call", "-k", name, "--cpus", "2", "strlen(\"hello\")"),
                      ("kinst", "explain", "-k", name, "--cpus", "2", "strlen:4", "-c",
                       "strlen(\"hello\")", "--steps"),
                      ("kinst", "run", "-k", name, "--cpus", "2", "echo two; ls /"),
                      ("kdtrace", "-k", name, "--cpus", "2", "-qn",
                       "sched:::on-cpu { @[cpu] = count(); }", "-c", "$ ls; cat /etc/motd | wc")):
        ran = run(*arguments)
        assert ran.returncode == 0, (arguments, ran.stderr)
    assert {line.split()[0] for line in ran.stdout.splitlines() if line.count(" ") > 4} >= {
        "0", "1"}
    for cpus, message in (("0", "1 to 8"), ("9", "1 to 8"), ("two", "1 to 8")):
        ran = run("kinst", "boot", "-k", name, "--cpus", cpus)
        assert ran.returncode != 0 and message in ran.stderr
