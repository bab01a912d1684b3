"""Tests of long listings of instructions that cannot be probed."""

import json

from tests.kinst_emu.commands.test_commands import run


def test_many_refusals_with_one_reason_share_a_line_but_not_in_json():
    words = ("-k", "teaching/amd64-illumos", "-lv", "-n", "kinst::*:")
    listed = run("kdtrace", *words)
    assert listed.returncode == 0, listed.stderr
    lines = [line for line in listed.stdout.splitlines() if line.startswith("not probed: ")]
    counted = [int(line.split()[2]) for line in lines if " instructions: each " in line]
    every = [json.loads(line) for line in run("kdtrace", "--json", *words).stdout.splitlines()]
    left = [one for one in every if one.get("offset") is not None and "not_probed" in one]
    single = [line for line in lines if line.startswith("not probed: kinst:")]
    assert len(lines) < 150 and len(counted) == 1 and counted[0] > 1000
    assert len(single) + counted[0] == len(left)
