"""Tests that no other user can write to the cache, from which boots are restored."""

import os

import pytest

import kinst_emu
from emu.host.errors import KinstError
from images import cache, catalog
from images.boots import booted, snapshot_path
from tests.conftest import MEMORY

OTHER = 12345  # IDs of another user and another group


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KINST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cache_is_private_whatever_the_umask_is(folder):
    before = os.umask(0)
    try:
        cache.cached_file("snapshots", "a")
    finally:
        os.umask(before)
    assert [one.stat().st_mode & 0o777 for one in (folder, folder / "snapshots")] == [0o700] * 2


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o770], ids=oct)
@pytest.mark.parametrize("part", ["", "snapshots"])
def test_a_cache_that_others_can_write_to_is_refused(folder, part, mode, monkeypatch):
    monkeypatch.setattr(cache, "_own_group", lambda _number: False)
    cache.cached_file("snapshots", "a")
    (folder / part).chmod(mode)
    with pytest.raises(KinstError, match=r"can write to it.*set KINST_CACHE"):
        cache.cached_file("snapshots", "a")
    (folder / part).chmod(0o755)
    cache.cached_file("snapshots", "a")


def test_a_cache_writable_by_a_private_group_is_accepted(folder, monkeypatch):
    cache.cached_file("snapshots", "a")
    folder.chmod(0o775)
    monkeypatch.setattr(cache, "_own_group", lambda _number: True)
    assert cache.cached_file("snapshots", "a").parent.is_dir()


def test_a_sticky_directory_like_tmp_is_accepted(folder):
    folder.mkdir()
    folder.chmod(0o1777)
    path = cache.cached_file("snapshots", "a")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.parent.chmod(0o777)
    with pytest.raises(KinstError, match="every user can write to it"):
        cache.cached_file("snapshots", "a")


def test_a_cache_of_another_user_is_refused(folder, monkeypatch):
    cache.cached_file("snapshots", "a")
    monkeypatch.setattr(cache, "ROOT", -1)
    monkeypatch.setattr(cache.os, "geteuid", lambda: OTHER)
    with pytest.raises(KinstError, match="belongs to another user"):
        cache.cached_file("snapshots", "a")


def test_a_cached_boot_that_others_could_write_is_replaced(folder, arch):
    image = catalog.find(f"teaching/{arch}")
    wanted = booted(image, MEMORY).digest()
    path = snapshot_path(image, MEMORY)
    for reachable in (folder, folder / "snapshots"):
        reachable.chmod(0o755)
    path.chmod(0o666)
    assert snapshot_path(image, MEMORY) == path and not path.exists()
    assert booted(image, MEMORY).digest() == wanted
    assert path.stat().st_mode & 0o022 == 0


@pytest.mark.parametrize("umask", [0, 0o002], ids=oct)
def test_a_cached_boot_is_reused_whatever_the_umask_is(folder, umask, monkeypatch):
    """The files in a private directory are safe whatever their modes are."""
    monkeypatch.setattr(cache, "_own_group", lambda _number: False)
    image = catalog.find("teaching/amd64")
    before = os.umask(umask)
    try:
        booted(image, MEMORY)
        made = snapshot_path(image, MEMORY).stat()
        booted(image, MEMORY)
    finally:
        os.umask(before)
    assert made.st_mode & 0o020
    assert snapshot_path(image, MEMORY).stat().st_mtime_ns == made.st_mtime_ns


def test_a_symbolic_link_of_another_user_is_refused(folder, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.mkdir()
    (folder / "snapshots").symlink_to(tmp_path / "elsewhere")
    # A link that belongs to this user is accepted.
    assert cache.cached_file("snapshots", "a").parent.is_symlink()
    if os.geteuid() != 0:
        pytest.skip("only root can make a link another user's")
    os.lchown(folder / "snapshots", OTHER, OTHER)
    with pytest.raises(KinstError, match="belongs to another user"):
        cache.cached_file("snapshots", "a")


def test_the_refusal_is_one_line(folder, capsys):
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(kinst_emu.KinstError) as error:
        kinst_emu.open("teaching/amd64").boot()
    assert "\n" not in str(error.value) and str(folder) in str(error.value)
