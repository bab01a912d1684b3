"""Tests that ``--tracks`` shows what happened on a real kernel, and changes nothing."""

import json
from collections import Counter

import pytest

from dtrace.run import tracks
from tests.conftest import ARCHES, real_kernel
from tests.dtrace.run.test_tracks import slices
from tests.kinst_emu.commands.test_commands import run


@pytest.mark.parametrize("arch", ARCHES)
def test_tracks_contain_every_system_call_and_do_not_change_the_run(arch, tmp_path):
    kernel, file = real_kernel(arch), tmp_path / "x.json"
    command = "$ cat /etc/motd | wc; work calls 50; work faults 5; sleep 1"
    ran = run("kdtrace", "-k", str(kernel.path), "--tracks", str(file), "--digest", "-c", command)
    assert ran.returncode == 0 and "wrote" in ran.stderr
    plain = run("kdtrace", "-k", str(kernel.path), "-q", "--digest", "-n",
                'syscall:::entry { @[probefunc] = count(); } END { printa("%s %@d\\n", @); }',
                "-c", command)
    assert plain.stdout.splitlines()[-1] == ran.stdout.splitlines()[-1]
    found = slices(json.loads(file.read_text())["traceEvents"])
    wanted = {name: int(count) for name, count in (
        line.split() for line in plain.stdout.splitlines() if line.count(" ") == 1
        and line.split()[1].isdecimal() and not line[0].isdecimal())}
    counts = Counter(one[2] for one in found)
    assert {name: counts[name] for name in wanted} == wanted and len(wanted) > 8
    assert counts["page fault"] > 5 and any(name.startswith("off the CPU: ") for name in counts)
    assert any(one[1] == tracks.CPUS + 1 for one in found)
