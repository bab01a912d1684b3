"""What a long listing says of what is not probed."""

import json

from tests.kinst_emu.commands.test_commands import run


def test_very_many_instructions_of_one_reason_are_one_line_and_all_are_there_for_programs():
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
