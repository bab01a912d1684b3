"""Tests that a boot uses the file contents at the time of opening, even if files change."""

import random

from tests.changing_files import Files
from tests.conftest import real_kernel

SIZE = 1 << 20  # size of a disk in bytes
OPERATIONS = 150


def test_a_boot_uses_the_file_contents_at_the_time_of_opening(tmp_path, monkeypatch):
    source = real_kernel("amd64").path
    plain = source.read_bytes()
    assert plain.count(b"Copyright (c) 1992-") == 1  # part of the first line that the kernel prints
    generator = random.Random(54)
    monkeypatch.setenv("KINST_CACHE", str(tmp_path / "cache"))
    kernels = [plain, plain.replace(b"Copyright (c) 1992-", b"Copyright (c) 1993-")]
    modules = [source.with_name("opensolaris.ko").read_bytes()]  # a module without dependencies
    disks = [generator.randbytes(4096) + bytes(SIZE - 4096) for _ in range(2)]
    files = Files(tmp_path, kernels, modules, disks, 512 << 20)
    assert len(files.digests) == 12
    files.run(OPERATIONS, 54)
    assert files.done["boot"] > OPERATIONS // 4, files.done
