"""The index of inline copies on GENERIC kernels, against llvm-dwarfdump."""

import os
import random
import re
import shutil
import subprocess
from collections import defaultdict

import pytest

from dwarf.index import DebugIndex, build
from kinst.inline import caller_of
from tests.conftest import ARCHES, real_kernel

SEED = int(os.environ.get("KINST_SEED") or random.SystemRandom().randrange(1 << 31))
TOOLS = ("llvm-dwarfdump", "llvm-dwarfdump-19", "llvm-dwarfdump-16", "llvm-dwarfdump-14")
ENTRY = re.compile(r"0x[0-9a-f]+: +DW_TAG_inlined_subroutine")
ORIGIN = re.compile(r'\s+DW_AT_abstract_origin\t\(0x[0-9a-f]+ "(.*)"\)')
RANGE = re.compile(r"\s+\[0x([0-9a-f]+), 0x([0-9a-f]+)\)")
BOUND = re.compile(r"\s+DW_AT_(low|high)_pc\t\(0x([0-9a-f]+)\)")


def by_dwarfdump(path):
    """Name -> the pieces of every inline copy, as llvm-dwarfdump prints them."""
    tool = next((t for t in TOOLS if shutil.which(t)), None)
    if tool is None:
        pytest.skip("no llvm-dwarfdump: apt-get install llvm")
    found = defaultdict(set)
    with subprocess.Popen([tool, "--debug-info", str(path)], stdout=subprocess.PIPE,
                          text=True) as process:
        name, pieces, low, inside = None, [], None, False
        for line in process.stdout:
            if line == "\n":
                if inside and name and pieces:
                    found[name].add(tuple(pieces))
                inside = False
            elif inside:
                if match := ORIGIN.match(line):
                    name = match[1]
                elif match := RANGE.match(line):
                    pieces.append((int(match[1], 16), int(match[2], 16)))
                elif match := BOUND.match(line):
                    if match[1] == "low":
                        low = int(match[2], 16)
                    elif low is not None:
                        pieces.append((low, int(match[2], 16)))
            elif ENTRY.match(line):
                name, pieces, low, inside = None, [], None, True
    return found


@pytest.mark.parametrize("arch", ARCHES)
def test_500_inline_functions_have_the_copies_that_dwarfdump_prints(arch):
    kernel = real_kernel(arch)
    theirs = by_dwarfdump(kernel.path)
    index = DebugIndex(build(kernel.path), kernel.path)
    assert len(theirs) > 500
    for name in random.Random(SEED).sample(sorted(theirs), 500):
        ours = {tuple(p for p in copy.pieces) for copy in index.copies(name)}
        expected = {tuple((a, b) for a, b in pieces if a < b) for pieces in theirs[name]}
        assert ours == expected - {()}, f"{name}; KINST_SEED={SEED}"
        for copy in index.copies(name):
            caller = caller_of(kernel.symbols, copy)
            low = min(copy.pieces)[0]
            assert caller is None or caller.address <= low < caller.address + caller.size
