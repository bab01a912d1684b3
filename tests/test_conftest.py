"""Tests of the summary of skipped tests."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.conftest import ARCHES, left_out
from tests.slow import LEFT_OUT, ONE_ARCHITECTURE

ROOT = Path(__file__).resolve().parent.parent
TESTS = '''
import pytest

@pytest.mark.parametrize("number", range(40))
def test_many(number):
    pytest.skip("there is no such tool")

@pytest.mark.skipif(True, reason="there is no such machine")
def test_one():
    pass

def test_wrong():
    assert 1 == 2
'''


def test_slow_tests_exist_and_each_runs_on_one_architecture():
    assert not LEFT_OUT & ONE_ARCHITECTURE
    for name in LEFT_OUT | ONE_ARCHITECTURE:
        path, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text(), name
    for name in ONE_ARCHITECTURE:
        runs = [arch for arch in ARCHES if left_out(f"{name}[{arch}-2]") is None]
        assert len(runs) == 1, name
    chosen = Counter(arch for name in ONE_ARCHITECTURE for arch in ARCHES
                     if left_out(f"{name}[{arch}]") is None)
    assert min(chosen.values()) > len(ONE_ARCHITECTURE) // 5
    assert all(left_out(name) for name in LEFT_OUT)
    assert left_out("tests/test_house.py::test_other[amd64]") is None


def test_the_summary_lists_skips_by_reason_with_counts_below_the_failures(tmp_path):
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import pytest_terminal_summary  # noqa: F401\n")
    (tmp_path / "test_some.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir",
         str(tmp_path), "-p", "no:cacheprovider", "-q", str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=ROOT)
    lines = done.stdout.splitlines()
    skipped = [line for line in lines if line.startswith("SKIPPED")]
    assert skipped == ["SKIPPED [40] there is no such tool",
                       "SKIPPED [1] there is no such machine"], done.stdout
    failed = next(n for n, line in enumerate(lines) if line.startswith("FAILED"))
    assert failed < lines.index(skipped[0]) and done.returncode == 1
