"""Tests that variables at random moments of a recording have the values that gdb shows.

``KINST_STOPS`` sets the number of moments (default: 150).
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import kinst_emu
from dwarf.values import CArray, CStruct
from emu.host.errors import KinstError
from tests.conftest import ARCHES, real_kernel

GDB = shutil.which("gdb-multiarch")
KINST = [sys.executable, "-m", "kinst_emu.commands.kinst"]
STOPS = int(os.environ.get("KINST_STOPS", "150"))
SCRIPT = Path(__file__).with_name("gdb_locals.py")
pytestmark = pytest.mark.skipif(GDB is None, reason="gdb-multiarch is not installed")


def kernel_positions(recording, seed):
    """Return random positions at which kernel code is executed, sorted."""
    first, last = recording.start.instructions, recording.end.instructions
    chosen, found = random.Random(seed), list[int]()
    for position in sorted(chosen.sample(range(first, last), 2 * STOPS)):
        recording.go(position)
        if recording.machine.kernel.image.holds_code(recording.machine.pc):
            found.append(position)
    return found[:: max(1, len(found) // STOPS)][:STOPS]


def theirs(recorded, positions, folder):
    """Return what gdb shows at each position."""
    (folder / "positions").write_text("".join(f"{one}\n" for one in positions))
    with subprocess.Popen([*KINST, "replay", str(recorded), "--gdb", "0"],
                          stderr=subprocess.PIPE, text=True) as server:
        port = re.search(r":(\d+)'", server.stderr.readline())[1]
        kernel = str(kinst_emu.Recording(recorded).machine.kernel.path)
        done = subprocess.run(
            [GDB, "-nx", "-batch", "-iex", "set osabi none",
             "-iex", "set remotetimeout 60", kernel, "-ex",
             f"target remote 127.0.0.1:{port}", "-x", str(SCRIPT)],
            capture_output=True, text=True, timeout=1500, check=False,
            env=os.environ | {"POSITIONS": str(folder / "positions"),
                              "RESULTS": str(folder / "results")})
        assert server.wait(60) == 0, done.stderr
    rows = (folder / "results").read_text().splitlines()
    assert len(rows) == len(positions), done.stderr
    return [json.loads(row)[1] for row in rows]


def ours(walk):
    """Return the innermost function and its inlined functions with their variables."""
    found = []
    for frame in walk.stack():
        if frame.frame:
            break
        found.append((frame.function, walk.locals()))
        if frame.inlined:
            walk.up()
    return found


def has_callers_frame(machine):
    """Return whether the next instruction belongs to a prologue or epilogue.

    Clang's debug data does not describe them for arm64 and riscv64, so gdb uses the frame register,
    which may be the caller's there.
    """
    function, follower = (machine.kernel.image.symbols.function_at(machine.pc),
                          machine.stacks.follower)
    return function is not None and any(
        find(function, machine.pc) is not None
        for find in (follower.in_prologue, follower.in_epilogue))


def compare(shown, variables, counts, place, outside):
    """Count how our variables of a function relate to those of gdb."""
    for name, value in shown.items():
        if name not in variables:
            counts["not in scope for us"] += 1
            continue
        try:
            mine = variables[name]
        except KinstError:
            counts["both unknown" if value is None else "unknown to us"] += 1
            continue
        if value is None:
            counts["unknown to gdb"] += 1
        elif value is False or isinstance(mine, CStruct | CArray | str | float):
            counts["not compared"] += 1
        elif (int(mine) - value) % (1 << 64):
            counts["different outside the body" if outside else "different"] += 1
            print(f"{place}: {name} is {int(mine):#x}, gdb says {value:#x}")
        else:
            counts["equal"] += 1


@pytest.mark.parametrize("arch", ARCHES)
def test_variables_at_random_moments_equal_those_of_gdb(arch, tmp_path):
    recorded = tmp_path / "ls.rec"
    done = subprocess.run([*KINST, "record", "-k", str(real_kernel(arch).path), "-q",
                           "$ ls -l /; cat /etc/motd", "-o", str(recorded)], check=False)
    assert done.returncode == 0
    recording = kinst_emu.Recording(recorded)
    positions = kernel_positions(recording, 58)
    assert len(positions) == STOPS
    counts = Counter[str]()
    walk = kinst_emu.Walk(recording)
    for position, shown in zip(positions, theirs(recorded, positions, tmp_path), strict=True):
        recording.go(position)
        for (function, variables), (name, values) in zip(ours(walk), shown, strict=False):
            if function == name:
                compare(values, variables, counts, f"{function} at {position}",
                        has_callers_frame(recording.machine))
            else:
                counts["other function"] += 1
    print(arch, STOPS, dict(counts))
    assert not counts["different"] and counts["different outside the body"] < STOPS // 20, counts
    assert counts["equal"] > STOPS and counts["both unknown"] > STOPS // 4, counts
    assert counts["unknown to us"] <= STOPS // 20 and counts["other function"] <= STOPS // 20
    assert counts["not in scope for us"] <= STOPS // 20, counts
