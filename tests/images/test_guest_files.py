"""Tests that files of a guest are read from its disks, or from a host directory beside them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from emu.elf.boot_options import BootOptions, DiskImage
from emu.host.errors import KinstError
from images import ufs
from images.guest_files import guest_files
from images.ufs_files import DiskFileError
from tests.elfwriter import Elf


def program(code, symbols=()):
    return Elf(kind=3, segments=[(0x10B0, code, len(code))], symbols=list(symbols)).build()


STRIPPED = program(b"code")
FULL = program(b"code", [("main", 0x10B0, 4, 2)])


def disk(path, files):
    return DiskImage(path, memoryview(ufs.image(ufs.tree(
        {name: ufs.File(content) for name, content in files.items()}))))


@pytest.fixture
def image(tmp_path):
    return SimpleNamespace(options=BootOptions(
        disks=(disk(tmp_path / "root", {"bin/x": STRIPPED, "files/a": b"hidden"}),),
        files=disk(tmp_path / "files", {"a": STRIPPED})))


def test_files_are_read_from_the_root_disk_and_from_the_shared_one(image, tmp_path):
    read = guest_files(image)
    assert read("/bin/x") == read("/files/a") == STRIPPED
    for path in ("/none", "/files/none", "/bin"):
        with pytest.raises(DiskFileError):
            read(path)
    image.options = replace(image.options, files=None)
    assert guest_files(image)("/files/a") == b"hidden"
    memory = disk(tmp_path / "memory", {"m": b"in memory"})
    image.options = replace(image.options, memory_disk=memory)
    assert guest_files(image)("/m") == b"in memory"
    image.options = BootOptions()
    with pytest.raises(DiskFileError, match="/bin/x: the guest has no disk"):
        guest_files(image)("/bin/x")


def test_a_host_directory_takes_precedence_if_the_code_is_the_same(image, tmp_path):
    (tmp_path / "sys" / "bin").mkdir(parents=True)
    (tmp_path / "sys" / "usr").mkdir()
    read = guest_files(image, tmp_path / "sys")
    (tmp_path / "sys" / "bin" / "x").write_bytes(FULL)
    (tmp_path / "sys" / "usr" / "y").write_bytes(FULL)  # the guest does not have it
    assert read("/bin/x") == read("/usr/y") == FULL
    assert read("/files/a") == STRIPPED
    (tmp_path / "sys" / "bin" / "x").write_bytes(program(b"c0de"))
    with pytest.raises(DiskFileError, match="bin/x: its code is not that of the guest's /bin/x"):
        read("/bin/x")
    (tmp_path / "sys" / "bin" / "x").write_bytes(b"#!/bin/sh")
    with pytest.raises(KinstError, match="not an ELF file"):
        read("/bin/x")
    (tmp_path / "secret").write_bytes(FULL)
    with pytest.raises(DiskFileError):
        read("/../secret")
