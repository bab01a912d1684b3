"""Tests that FreeBSD boots replay exactly from any position, with and without probes."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest

from emu.machine.machine import Until
from emu.replay.player import Player
from emu.replay.recording import Recorder, Recording
from emu.replay.starts import BOOT
from emu.unicorn.machine import UnicornMachine
from images.boots import boot_to_prompt
from images.recordings import from_start, machine_at
from kinst.probes.breakpoints import DIRECT, GUEST, Breakpoints
from kinst.probes.probed_code import ProbeError
from kinst.providers.fbt import create
from tests.conftest import real_kernel
from tests.dtrace.programs import command
from tests.kinst_emu.commands.test_commands import run


@pytest.fixture
def boot(arch, tmp_path):
    image, path = real_kernel(arch), tmp_path / "boot.rec"
    machine = UnicornMachine(image)
    machine.boot()
    with Recorder(machine, path, BOOT, "boot"):
        boot_to_prompt(machine)
    return image, path


def player(boot):
    recording = Recording(boot[1])
    return Player(recording, machine_at(recording.start, boot[0]))


def test_a_boot_replays_to_the_recorded_state_from_any_position(boot):
    played = player(boot)
    assert boot[1].stat().st_size < 8 << 20
    choose = random.Random(1)
    last = played.recording.last.instructions
    for _ in range(5):
        position = choose.randrange(last)
        played.seek(position)
        assert played.position.instructions == position
        played.advance_to_end()
        assert played.difference() == ""


@pytest.mark.parametrize("path", [GUEST, DIRECT])
@pytest.mark.parametrize("functions", [1, 100, 1000])
def test_probes_do_not_change_a_replayed_boot(boot, path, functions):
    played = player(boot)
    from_start(played)
    breakpoints = Breakpoints(played.machine, path=path)
    names = [s.name for s in boot[0].symbols.functions()]
    created = 0
    for name in ("malloc", *random.Random(functions).sample(names, len(names))):
        if created >= functions:
            break
        try:
            created += len(create(breakpoints, name, "entry"))
        except ProbeError:  # an excluded function, or one without a site for an entry probe
            continue
    assert created >= functions
    breakpoints.enable()
    played.advance_to_end()
    breakpoints.disable()
    assert played.difference() == ""
    assert breakpoints.dispatcher.firings > 100


def test_a_d_program_traces_the_recorded_boot(boot):
    plain = UnicornMachine(boot[0])
    plain.boot()
    boot_to_prompt(plain)
    digest, outputs = plain.digest(), []
    for more in ("", "fbt:::return { @f[probefunc] = count(); }"):
        status, out, errors = command(
            "--replay", str(boot[1]), "-k", str(boot[0].path), "-q", "--trap-path", "direct",
            "--digest", "-n", "fbt::uma_zalloc_arg:entry { @s = sum(timestamp); @n = count(); }"
            f"{more}" 'END { printa("\\nsum %@d\\n", @s); printa("count %@d\\n", @n); trunc(@n); }')
        assert status == 0 and f"digest {digest}" in out, errors
        outputs.append([line for line in out.splitlines() if line.startswith(("sum ", "count "))])
    assert outputs[0] == outputs[1] and len(outputs[0]) == 2


def test_seeking_back_to_a_call_restores_its_registers(boot):
    played = player(boot)
    address = boot[0].symbols.find("uma_zalloc_arg").address
    seen = []
    for _ in range(50):
        played.run(Until(addresses=[address]))
        seen.append((played.position, played.machine.registers()))
    for position, registers in (seen[40], seen[3], seen[20]):
        played.seek(position)
        assert played.machine.registers() == registers
        played.seek(position.instructions - 1)
        played.run(Until(addresses=[address]))
        assert (played.position, played.machine.registers()) == (position, registers)


def kinst(*words, **options):
    return subprocess.Popen([sys.executable, "-m", "kinst_emu.commands.kinst", *words],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_twenty_new_processes_replay_to_the_recorded_state_from_random_positions(boot):
    last, choose = Recording(boot[1]).last.instructions, random.Random(20)
    for _ in range(20):
        process = kinst("replay", str(boot[1]), "-k", str(boot[0].path), "--from",
                        str(choose.randrange(last)), "--json")
        out, errors = process.communicate(timeout=300)
        assert process.returncode == 0 and json.loads(out)["same"] is True, errors


def test_a_recording_of_a_killed_process_replays_to_its_last_position(arch, tmp_path):
    """Kill a recording process at 34 random moments on each architecture."""
    image, choose, ended = real_kernel(arch), random.Random(34), []
    for number in range(34):
        path = tmp_path / f"{number}.rec"
        process = kinst("boot", "-k", str(image.path), "-q", "--record", str(path))
        deadline = time.monotonic() + 60
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(choose.random() * 2)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        recording = Recording(path)
        ended.append(recording.last.instructions)
        if recording.end is None:
            assert recording.problem
        played = Player(recording, machine_at(recording.start, image))
        played.advance_to_end()
        assert played.position == recording.last and played.difference() == ""
        path.unlink()
    assert len(set(ended)) > 1


def test_a_branch_shows_what_another_value_would_have_done(arch, tmp_path):
    path = tmp_path / "wc.rec"
    done = run("kinst", "record", "-k", str(real_kernel(arch).path), "$ echo a b | wc", "-o",
               str(path))
    assert done.returncode == 0 and "maxproc limit" not in done.stdout, done
    branch = run("kinst", "replay", str(path), "--to", "sys_fork", "--set", "maxproc=2")
    assert branch.returncode == 0, branch.stderr
    assert "maxproc limit exceeded" in branch.stdout
    assert "the branch ended after" in branch.stderr and "the shell's prompt" in branch.stderr
    again = run("kinst", "replay", str(path), "--json")
    assert '"same": true' in again.stdout, "the recording itself is unchanged"
