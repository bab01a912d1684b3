import os
from pathlib import Path

import pytest

from emu.host.append_file import appending
from emu.host.atomic_file import replacing


def test_a_file_is_replaced_when_the_writer_finishes(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.stat().st_mode & 0o400


def test_a_failed_writer_leaves_only_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), replacing(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_next_writer_removes_temporary_files_of_killed_writers(tmp_path):
    path = tmp_path / "a[b].json"
    old, new, other = (tmp_path / name for name in (
        ".a[b].json.old.part", ".a[b].json.new.part", ".ab.json.old.part"))
    for file in (old, new, other):
        file.write_bytes(b"")
    for file in (old, other):
        os.utime(file, (1_000_000, 1_000_000))
    with replacing(path) as file:
        file.write(b"x")
    assert not old.exists() and new.exists() and other.exists() and path.read_bytes() == b"x"


def test_an_error_names_the_file_instead_of_the_temporary_one(tmp_path):
    path = tmp_path / "no" / "file"
    with pytest.raises(FileNotFoundError) as raised, replacing(path):
        pass
    assert raised.value.filename == str(path)
    with pytest.raises(OSError, match="No space") as raised, replacing(Path("/dev/full")) as file:
        file.write(b"x")
        file.flush()
    assert raised.value.filename == "/dev/full"


def test_an_error_about_another_file_keeps_its_name(tmp_path):
    other = tmp_path / "other"
    with pytest.raises(FileNotFoundError) as raised, replacing(tmp_path / "file"):
        other.read_bytes()
    assert raised.value.filename == str(other)


def test_a_write_error_while_appending_names_the_file(tmp_path):
    path = tmp_path / "file"
    for text in ("one\n", "two \udcff\n"):
        with appending(str(path), "surrogateescape") as file:
            file.write(text)
    assert path.read_bytes() == b"one\ntwo \xff\n"
    file = appending("/dev/full", "strict")
    file.write("x")
    with pytest.raises(OSError, match="No space") as raised:
        file.close()
    assert raised.value.filename == "/dev/full"
