"""``kinst trial`` where it is asked for what it cannot do."""

import pytest

from tests.kinst_emu.test_front import refused, run

K = ["-k", "teaching/amd64"]


@pytest.mark.parametrize("words, says", [
    ([*K], "say what is to be judged"),
    ([*K, "--all", "memcpy"], "say what is to be judged"),
    ([*K, "memcpy", "--copies", "5"], "--copies is for --all"),
    ([*K, "--all", "--part", "verdicts", "--store", "x.db"], "--store keeps what is executed"),
    ([*K, "memcpy"], "kinst.ko: no such module"),
    (["memcpy"], "give a kernel"),
    ([*K, "memcpy", "--arch", "amd64"], "--arch is for --relocator"),
    (["--arch", "amd64", "--relocator", "x", "--assemble", "nop", "--memory", "1G"],
     "--memory: is not for --relocator"),
    (["--arch", "amd64", "--relocator", "/nowhere/x", "--assemble", "nop"], "cannot be run"),
    (["--arch", "amd64", "--relocator", "'", "--assemble", "nop"], "--relocator '"),
])
def test_what_cannot_be_judged_is_one_clear_line(words, says):
    refused(run("kinst", "trial", *words), says)
