"""Tests that the D examples run with their options and print the expected output."""

import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import real_kernel
from tests.dtrace.programs import command

EXAMPLES = Path(__file__).parents[2] / "examples"
# Patterns that the output of each example matches.
SHOWS = {
    "inline_returns": r"\d+ +malloc:\d+ ",
    "inline_entries": r"\n  malloc +\d+ +\d+\n",
    "allocations": r"ALLOCATIONS\n(?s:.)*\n  bus +\d+\n(?s:.)*SIZES\n(?s:.)*@@@@",
    "flow": r"  -> malloc +\n(?s:.)*  -> uma_zalloc_arg +\n(?s:.)*  <- malloc",
    "latency": r"nanoseconds in malloc +\n +value(?s:.)*@@@@",
    "list": r"[0-9a-f]{16} \w+.*\n[0-9a-f]{16} .*\n[0-9a-f]{16} ",
    "memory_map": r"TYPE +CALLS +BYTES(?s:.)*\nbus +\d+ +\d+ +\d+ +\d+\n",
    "locks": r"CALLERS\n(?s:.)*\n  Giant +\n +kernel`module_register_init\+0x(?s:.)*"
             r"SLOW PATHS\n\n  __mtx_lock_sleep +\d+",
    "callers": r"(\n +kernel`\w+\+0x[0-9a-f]+){2,5}(\n +0x[0-9a-f]+)?\n +\d+\n",
    "argument": r"memcmp\+\d+ +[0-9a-f]+\nmemcmp\+\d+ +[0-9a-f]+\n",
    "timeline": r"milliseconds +\n(?s:.)*@@@",
    "devices": r"\n +\d+ ns  \w+\d+\n(?s:.)*\n +\d+ ns  ",
    "hottest": r"(\n  \w+ +\d{4,}){10}\n",
    "failures": r"\n  \w+_probe +\d+\n",
    "opensnoop": r" cat +3 +0 /etc/motd\nA userland .*\n +\d+ cat +-1 +2 /nope\n/nope: No such",
    "execsnoop": r"\d+ +1 cat /etc/motd\n +\d+ +1 wc\n",
    "forks": r"(\d+) init made (\d+)\n\2 false ended \(1\) after \d+ us\n",
    "syscalls": r"\n  CALLS +cat +open +2\n(?s:.)*\n  NANOSECONDS(?s:.)*@@@(?s:.)*"
                r"\n  ERRORS +cat +open +2 +1\n",
    "connections": r"syn-sent -> state-established\n(?s:.)*"
                   r"\n  BYTES +127\.0\.0\.1 +\d+ +8080 +\d+\n",
    "signals": r"\ncheck +\d+ -> +\d+ check: signal 9\n",
    "offcpu": r"\n  wc +(\n +kernel`\w+\+0x[0-9a-f]+)+\n +\d+\n",
    "iosnoop": r"\n +\d+ cat +md +R +\d+ +4096\n(?s:.)*\n +\d+ sync +md +W +\d+ +\d+\n",
    "rwtop": r"\ncat +\d+ read +35 +2\n(?s:.)*\nls +\d+ write +\d+ +\d+\n",
    "runqlat": r"\nwc: nanoseconds until it ran\n\n +value(?s:.)*@@@",
    "sysperf": r"\ncat +open +\d+ +\d+ +1\n(?s:.)*\ninit +wait4 +\d+ +\d+ +3\n",
    "faults": r"\nwork +work`main +20\n",
    "contention": r"\n__mtx_lock_sleep +Giant +\d+ +\d+\n(?s:.)*\n  Giant +\n +kernel`",
    "vfscache": r"\nhit +cat +\d+\n(?s:.)*\nMISSED\n(?s:.)*\nnope +1\n",
    "pathlookup": r"\ncat +/etc/motd +found\nA userland .*\ncat +/nope +error\n/nope: No such",
    "onecall": r"sys_open +\d+ instructions\n(?s:.)*\[inlined\]  \S+\.c:\d+\n",
    "ufunctions": r"CALLS\n(?s:.)*\n  main +1\nNANOSECONDS\n(?s:.)*\n  main +\d+\n",
    "throughcalls": r"-> main +\n(?s:.)* => open +\n(?s:.)* -> namei +\n(?s:.)* <= open +\n",
    "instructions": r"\n\d{5} instructions\n(  main\+0x[0-9a-f]+ \d{3}\n){10}",
    "tcpstates": r"state-syn-sent +-> state-established +\d+\n",
    "callouts": r"\nkernel`sleepq_timeout +\d+ +\d+\n",
    "waits": r"\nsleep +nanslp +1\d{6}\n",
    "coverage": r"(strlen\+\d+ +\d+\n){5}",
}


def test_every_example_has_an_expected_output():
    assert {path.stem for path in EXAMPLES.glob("*.d")} == set(SHOWS)


@pytest.mark.parametrize("name", SHOWS)
def test_an_example_prints_the_expected_output(arch, name):
    path = EXAMPLES / f"{name}.d"
    text = path.read_text()
    assert text.startswith("#!/usr/bin/env -S kdtrace -s\n")
    line = re.search(rf"^ \*\t{name}\.d (.*)$", text, re.MULTILINE)[1]
    words = [str(real_kernel(arch).path) if word == "KERNEL" else word
             for word in shlex.split(line)]
    status, out, errors = command("-s", str(path), *words)
    assert status == 0, errors
    assert re.search(SHOWS[name], out), out[-2000:]
    assert "error on enabled probe" not in errors
