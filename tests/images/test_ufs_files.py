"""Tests that files are read from UFS2 file systems, and that damaged ones cause errors only."""

import os
import random
import shutil
import stat
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images import ufs
from images.ufs_files import DiskFileError, DiskFiles

NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1,
                max_size=20).filter(lambda name: name not in (".", ".."))


def opened(image):
    return DiskFiles(lambda at, size: image[at : at + size], "disk")


def link(target):
    return ufs.File(target.encode(), stat.S_IFLNK | 0o777)


@settings(max_examples=30)
@given(st.recursive(st.binary(max_size=9000), lambda inner: st.dictionaries(NAMES, inner,
                                                                            max_size=5)))
def test_every_file_of_a_tree_is_read(tree):
    def folder(items):
        return ufs.Folder({name: folder(item) if isinstance(item, dict) else ufs.File(item)
                           for name, item in items.items()})

    def check(items, path):
        for name, item in items.items():
            if isinstance(item, dict):
                check(item, f"{path}/{name}")
            else:
                assert files.read(f"{path}/{name}") == item

    tree = tree if isinstance(tree, dict) else {"f": tree}
    files = opened(ufs.image(folder(tree)))
    check(tree, "")
    with pytest.raises(DiskFileError, match=r"/no/such/file: '?"):
        files.read("/no/such/file")


def test_large_files_and_links_are_followed():
    content = random.Random(1).randbytes(4096 * (12 + 512 + 3) + 77)
    files = opened(ufs.image(ufs.tree({
        "usr/lib/large": ufs.File(content), "lib": link("usr/lib"), "up": link("../usr/../lib"),
        "usr/long": link("/" + "./" * 80 + "lib/large"), "usr/abs": link("/up/large"),
        "a": link("b"), "b": link("/a"), "dangling": link("nothing")})))
    for path in ("/usr/lib/large", "/lib/large", "/up/large", "/usr/long", "//usr/./abs"):
        assert files.read(path) == content
    for path, message in (("/a", "more than 32 symbolic links"), ("/dangling", "does not exist"),
                          ("/lib", "is not a regular file"), ("/", "is not a regular file"),
                          ("/usr/lib/large/x", "'x' is not in a directory")):
        with pytest.raises(DiskFileError, match=message):
            files.read(path)


@pytest.mark.parametrize("block, fragment", [(4096, 4096), (16384, 2048), (32768, 4096)])
def test_file_systems_of_makefs_are_read(tmp_path, block, fragment):
    if shutil.which("makefs") is None:
        pytest.skip("makefs is not installed: apt-get install makefs")
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    sizes = (0, 1, 511, 2048, 2049, 16384, 70_001, 32768 * 12 + 5, 4_500_000)
    contents = {f"d/{size}": random.Random(size).randbytes(size) for size in sizes}
    contents |= {f"many{number:04}": b"" for number in range(700)}
    for name, content in contents.items():
        (source / name).write_bytes(content)
    os.symlink("d/2049", source / "s")
    with (source / "sparse").open("wb") as file:
        file.seek(1_000_000)
        file.write(b"end")
    image = tmp_path / "image"
    subprocess.run(["makefs", "-t", "ffs", "-o", f"version=2,bsize={block},fsize={fragment}",
                    str(image), str(source)], check=True, capture_output=True)
    files = opened(image.read_bytes())
    assert {name: files.read(f"/{name}") for name in contents} == contents
    assert files.read("/s") == contents["d/2049"]
    assert files.read("/sparse") == bytes(1_000_000) + b"end"


@given(st.lists(st.tuples(st.integers(65536, 65536 + 40 * 4096), st.integers(0, 255)), min_size=1,
                max_size=40), st.integers(0, 60))
def test_a_damaged_file_system_causes_one_error(changes, cut):
    image = bytearray(DAMAGED)
    for at, byte in changes:
        if at < len(image):
            image[at] = byte
    image = image[: len(image) - cut * 4096]
    try:
        files = opened(bytes(image))
        for path in ("/a/b/file", "/s", "/a/large"):
            files.read(path)
    except DiskFileError as error:
        assert str(error).startswith("disk: ") and "\n" not in str(error)


DAMAGED = ufs.image(ufs.tree({
    "a/b/file": ufs.File(b"x" * 100), "s": link("a/b/file"),
    "a/large": ufs.File(b"y" * 4096 * 20)}))


def test_long_ways_to_a_file_are_refused():
    """A chain of links through a large directory could otherwise take hours."""
    entries = {f"d/{n:0200}": ufs.File(b"") for n in range(4000)}
    files = opened(ufs.image(ufs.tree(entries | {
        "parts": link("d/../" * 700 + "parts2"), "parts2": link("d/../" * 700 + "file"),
        "file": ufs.File(b"found"), "few": link("d/../" * 300 + "file")})))
    assert files.read("/few") == b"found"
    with pytest.raises(DiskFileError, match="more than 1024 components"):
        files.read("/parts")
    nested = {"/".join(["n"] * depth + [f"{n:0250}"]): ufs.File(b"")
              for depth in range(50) for n in range(3000)}
    files = opened(ufs.image(ufs.tree(nested)))
    with pytest.raises(DiskFileError, match="bytes of directories"):
        files.read("/n" * 49 + "/none")


def test_what_is_not_ufs2_is_refused():
    for image in (b"", bytes(1 << 17), DAMAGED[:66000]):
        with pytest.raises(DiskFileError, match="disk: has no UFS2 file system"):
            opened(image)
