"""The D examples do what their first lines say, as they say it."""

import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import real_kernel
from tests.dtrace.programs import command

EXAMPLES = Path(__file__).parents[2] / "examples"
# What the output has, by the example.
SHOWS = {
    "inline_returns": r"\d+ +malloc:\d+ ",
    "inline_entries": r"\n  malloc +\d+ +\d+\n",
    "allocations": r"ALLOCATIONS\n(?s:.)*\n  bus +\d+\n(?s:.)*SIZES\n(?s:.)*@@@@",
    "flow": r"  -> malloc +\n(?s:.)*  -> uma_zalloc_arg +\n(?s:.)*  <- malloc",
    "latency": r"nanoseconds in malloc +\n +value(?s:.)*@@@@",
    "list": r"[0-9a-f]{16} \w+.*\n[0-9a-f]{16} .*\n[0-9a-f]{16} ",
    "memory_map": r"TYPE +CALLS +BYTES(?s:.)*\nbus +\d+ +\d+ +\d+ +\d+\n",
    "locks": r"PLACES\n(?s:.)*\n  Giant +\n +kernel`module_register_init\+0x(?s:.)*"
             r"SLOW WAYS\n\n  __mtx_lock_sleep +\d+",
    "callers": r"(\n +kernel`\w+\+0x[0-9a-f]+){2,5}(\n +0x[0-9a-f]+)?\n +\d+\n",
    "argument": r"memcmp\+\d+ +[0-9a-f]+\nmemcmp\+\d+ +[0-9a-f]+\n",
    "timeline": r"milliseconds +\n(?s:.)*@@@",
    "devices": r"\n +\d+ ns  \w+\d+\n(?s:.)*\n +\d+ ns  ",
    "hottest": r"(\n  \w+ +\d{4,}){10}\n",
    "failures": r"\n  \w+_probe +\d+\n",
    "opensnoop": r" cat +3 +0 /etc/motd\n +\d+ cat +-1 +2 /nope\n",
    "execsnoop": r"\d+ +1 cat /etc/motd\n +\d+ +1 wc\n",
    "forks": r"(\d+) init made (\d+)\n\2 false ended \(1\) after \d+ us\n",
    "syscalls": r"\n  CALLS +cat +open +2\n(?s:.)*\n  NANOSECONDS(?s:.)*@@@(?s:.)*"
                r"\n  ERRORS +cat +open +2 +1\n",
    "connections": r"syn-sent -> state-established\n(?s:.)*"
                   r"\n  BYTES +127\.0\.0\.1 +\d+ +8080 +\d+\n",
    "signals": r"\ncheck +\d+ -> +\d+ check: signal 9\n",
    "offcpu": r"\n  wc +(\n +kernel`\w+\+0x[0-9a-f]+)+\n +\d+\n",
    "coverage": r"(strlen\+\d+ +\d+\n){5}",
}


def test_every_example_is_shown_to_work():
    assert {path.stem for path in EXAMPLES.glob("*.d")} == set(SHOWS)


@pytest.mark.parametrize("name", SHOWS)
def test_an_example_runs_as_it_says(arch, name):
    path = EXAMPLES / f"{name}.d"
    text = path.read_text()
    assert text.startswith("#!/usr/bin/env -S kdtrace -s\n")
    line = re.search(rf"^ \*\t{name}\.d (.*)$", text, re.MULTILINE)[1]
    words = [str(real_kernel(arch).path) if word == "KERNEL" else word
             for word in shlex.split(line)]
    status, out, said = command("-s", str(path), *words)
    assert status == 0, said
    assert re.search(SHOWS[name], out), out[-2000:]
    assert "error on enabled probe" not in said
