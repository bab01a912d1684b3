"""Tests of walks by source lines on FreeBSD: interrupts, programs, and functions that panic."""

import subprocess
import sys

import pytest

import kinst_emu
from emu.host.errors import KinstError
from kinst_emu.path.window import Window
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.path.test_terminal import on, walked

KINST = [sys.executable, "-m", "kinst_emu.commands.kinst"]


def recorded(arch, folder, workload):
    path = folder / "x.rec"
    subprocess.run([*KINST, "record", "-k", str(real_kernel(arch).path), "-q", workload, "-o",
                    str(path)], capture_output=True, timeout=300, check=False)
    return kinst_emu.Recording(path)


@pytest.mark.parametrize("arch", ARCHES)
def test_the_call_of_a_function_that_does_not_return_is_found(arch, tmp_path):
    recording = recorded(arch, tmp_path, 'panic("hello")')
    recording.go("kern_reboot#1")  # the compiler knows that it does not return
    walk = kinst_emu.Walk(recording)
    names = [frame.function for frame in walk.stack()]
    while walk.frame.function != "vpanic":
        walk.up()
    walk.finish(back=True)
    assert walk.frame.function == "panic" and names.index("vpanic") < names.index("panic")
    recording.step()
    assert recording.machine.pc == recording.machine.kernel.symbol("vpanic")


@pytest.mark.parametrize("arch", ARCHES)
def test_steps_stay_in_the_thread_and_stop_where_the_kernel_returns(arch, tmp_path):
    recording = recorded(arch, tmp_path, "$ mkdir /etc")
    recording.go("kern_mkdirat#1")
    walk = kinst_emu.Walk(recording)
    deepest = {frame.function for frame in walk.stack()}
    assert "kern_mkdirat" in deepest
    for _ in range(60):
        walk.step()
        assert "kern_mkdirat" in {frame.function for frame in walk.stack()}
    recording.go("kern_mkdirat#1")
    for _ in range(300):
        try:
            if walk.next().said:
                break
        except KinstError as error:
            assert "is not code of the kernel" in str(error) or "not in a C function" in str(error)
            break
    else:
        pytest.fail("the kernel does not return")


@pytest.mark.parametrize("arch", ARCHES)
def test_the_viewer_shows_moments_of_a_program(arch, tmp_path):
    recording = recorded(arch, tmp_path, "$ mkdir /etc")
    recording.go("fbt::kern_mkdirat:return")
    for _ in range(500):
        if recording.machine.pc < 1 << 63:
            break
        recording.step()
    assert recording.machine.pc < 1 << 63
    begin = recording.position
    assert begin.instructions < recording.end.instructions
    window = Window(begin, recording.go(begin.instructions + 50).position, "A program")
    found, app = walked((recording, window), ["right", "n", "q"], text=False)
    assert on(found[0][1], "a program") and on(found[1][1], "instruction 1 of 50")
    assert on(found[2][1], "which is not code of the kernel") or on(
        found[2][1], "not in a C function")
    assert not app.return_code
