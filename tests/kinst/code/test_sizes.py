"""Tests of functions whose symbols declare unusual sizes, as in a damaged file."""

import json

import pytest

from kinst.code.listing import MAX_FUNCTION
from tests.elfwriter import Elf
from tests.forked import completed

BASE = 0x100000


def file_of(path, size):
    path.write_bytes(Elf(entry=BASE, segments=[(BASE, b"\x90" * size, size)],
                         symbols=[("f", BASE, size, 2), ("g", BASE, 16, 2)]).build())
    return str(path)


@pytest.mark.parametrize("words", [
    ("disas", "f"), ("disas", "g", "f", "--json"), ("disas", "f+0x10"), ("relocate", "f")])
def test_a_function_that_is_too_large_is_refused(words, tmp_path):
    path = file_of(tmp_path / "kernel", MAX_FUNCTION + 1)
    done = completed("kinst_emu.commands.kinst", [words[0], "-k", path, *words[1:]])
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith("kinst: ") and done.stderr.count("\n") == 1
    assert f"'f' has {MAX_FUNCTION + 1} bytes" in done.stderr


def test_the_json_listing_of_a_large_function_is_complete(tmp_path):
    path = file_of(tmp_path / "kernel", 5000)
    done = completed("kinst_emu.commands.kinst", ["disas", "-k", path, "f", "g", "--json"])
    rows = json.loads(done.stdout)
    assert [row["function"] for row in rows] == ["f"] * 5000 + ["g"] * 16
