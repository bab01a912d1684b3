"""Tests of the summary of skipped tests."""

import subprocess
import sys
from pathlib import Path

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


def test_the_summary_lists_skips_by_reason_with_counts_below_the_failures(tmp_path):
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import pytest_terminal_summary  # noqa: F401\n")
    (tmp_path / "test_some.py").write_text(TESTS)
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(root / "pyproject.toml"), "--rootdir",
         str(tmp_path), "-p", "no:cacheprovider", "-q", str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=root)
    lines = done.stdout.splitlines()
    skipped = [line for line in lines if line.startswith("SKIPPED")]
    assert skipped == ["SKIPPED [40] there is no such tool",
                       "SKIPPED [1] there is no such machine"], done.stdout
    failed = next(n for n, line in enumerate(lines) if line.startswith("FAILED"))
    assert failed < lines.index(skipped[0]) and done.returncode == 1
