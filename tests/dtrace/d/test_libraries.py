"""Tests of the limits of the D libraries that -L reads."""

import pytest

from dtrace.d.compile import libraries
from emu.host.errors import KinstError


@pytest.fixture
def folder(tmp_path):
    for name in ("a.d", "b.d"):
        (tmp_path / name).write_text("inline int one = 1;\n")
    return tmp_path


def test_as_many_libraries_as_allowed_are_read(folder, monkeypatch):
    monkeypatch.setattr(libraries, "MOST", 2)
    read = libraries.of_directories([folder])
    assert [path.name for path, _text in read] == ["a.d", "b.d"]


def test_too_many_libraries_and_a_large_library_are_refused_with_their_limits(folder, monkeypatch):
    monkeypatch.setattr(libraries, "MOST", 1)
    with pytest.raises(KinstError, match="too many libraries; at most 1 are allowed"):
        libraries.of_directories([folder])
    monkeypatch.setattr(libraries, "MOST", 2)
    monkeypatch.setattr(libraries, "MOST_BYTES", 10)
    with pytest.raises(KinstError, match=r"a\.d: too large for a library; the limit is 10 bytes"):
        libraries.of_directories([folder])
