"""Tests of the folder that the network's peer serves."""

import os

import pytest

from emu.host.errors import KinstError
from images import shared_folder
from images.shared_folder import shared_files


def test_regular_files_are_taken_in_order_and_links_are_not(tmp_path):
    (tmp_path / "b").write_bytes(b"2")
    (tmp_path / "a/c").mkdir(parents=True)
    (tmp_path / "a/c/d").write_bytes(b"1")
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    files = shared_files(tmp_path)
    assert [(file.name, bytes(file.content)) for file in files] == [("a/c/d", b"1"), ("b", b"2")]


def test_a_later_change_has_no_effect(tmp_path):
    (tmp_path / "a").write_bytes(b"before")
    (file,) = shared_files(tmp_path)
    (tmp_path / "a").write_bytes(b"after!")
    assert bytes(file.content) == b"before"


def test_what_cannot_be_served_is_refused(tmp_path, monkeypatch):
    with pytest.raises(KinstError, match="is not a folder"):
        shared_files(tmp_path / "missing")
    (tmp_path / "a\nb").write_bytes(b"x")
    with pytest.raises(KinstError, match="is not printable"):
        shared_files(tmp_path)
    (tmp_path / "a\nb").rename(tmp_path / "a")
    (tmp_path / "b").write_bytes(b"x" * 100)
    monkeypatch.setattr(shared_folder, "MAX_SIZE", 100)
    with pytest.raises(KinstError, match="its files have more than"):
        shared_files(tmp_path)
    monkeypatch.setattr(shared_folder, "MAX_SHARED", 1)
    with pytest.raises(KinstError, match="has more than 1 files"):
        shared_files(tmp_path)
