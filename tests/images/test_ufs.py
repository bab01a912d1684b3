"""Tests that an independent reader reads back the contents of UFS images."""

import stat
import struct
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images import ufs
from images.ufs import File, FileSystemError, Folder

SUPERBLOCK = 65536


class Reader:
    """Independent UFS reader with offsets from FreeBSD's sys/ufs/ffs/fs.h and ufs/dinode.h."""

    def __init__(self, data):
        self.data = data
        self.word = lambda at: struct.unpack_from("<i", data, SUPERBLOCK + at)[0]
        self.long = lambda at: struct.unpack_from("<q", data, SUPERBLOCK + at)[0]
        assert self.word(1372) == 0x19540119
        self.inode_block, self.data_block = self.word(16), self.word(20)
        self.groups, self.block = self.word(44), self.word(48)
        self.per_group, self.blocks_per_group = self.word(184), self.word(188)
        self.seen = set()

    def inode(self, number):
        group, index = divmod(number, self.per_group)
        at = (group * self.blocks_per_group + self.inode_block) * self.block + index * 256
        return self.data[at : at + 256]

    def blocks(self, inode, count):
        pointers = list(struct.unpack_from("<15q", inode, 112))
        found = pointers[:12]
        for level, root in enumerate(pointers[12:], 1):
            if len(found) < count:
                found += self.below(root, level)
        return found[:count]

    def below(self, block, level):
        self.take(block)
        rows = struct.unpack_from(f"<{self.block // 8}q", self.data, block * self.block)
        rows = [row for row in rows if row]
        return rows if level == 1 else [b for row in rows for b in self.below(row, level - 1)]

    def take(self, block):
        assert block not in self.seen and 0 < block < self.long(1080)
        self.seen.add(block)

    def content(self, number):
        inode = self.inode(number)
        (size,) = struct.unpack_from("<Q", inode, 16)
        if stat.S_ISLNK(self.mode(number)) and size < 120:
            return inode[112 : 112 + size]
        blocks = self.blocks(inode, -(-size // self.block))
        for block in blocks:
            self.take(block)
        data = b"".join(self.data[b * self.block : (b + 1) * self.block] for b in blocks)
        return data[:size]

    def mode(self, number):
        return struct.unpack_from("<H", self.inode(number))[0]

    def links(self, number):
        return struct.unpack_from("<H", self.inode(number), 2)[0]

    def entries(self, number):
        data = self.content(number)
        assert len(data) % 512 == 0
        at = 0
        while at < len(data):
            inode, size, kind, length = struct.unpack_from("<IHBB", data, at)
            assert size >= 8 + length and at // 512 == (at + size - 1) // 512
            yield data[at + 8 : at + 8 + length].decode(), inode, kind
            at += size

    def tree(self, number=2, parent=2):
        rows = list(self.entries(number))
        assert [row[:2] for row in rows[:2]] == [(".", number), ("..", parent)]
        found, folders = Folder(mode=self.mode(number)), 0
        for name, inode, kind in rows[2:]:
            if kind == 4:
                found.entries[name] = self.tree(inode, number)
                folders += 1
            else:
                assert kind == (10 if stat.S_ISLNK(self.mode(inode)) else 8)
                assert self.links(inode) == 1
                found.entries[name] = File(bytes(self.content(inode)), self.mode(inode))
        assert self.links(number) == 2 + folders
        return found

    def free(self):
        """Return (set of free blocks, number of free inodes) from the cylinder group maps."""
        blocks, inodes = set(), 0
        for group in range(self.groups):
            base = group * self.blocks_per_group
            at = (base + self.word(12)) * self.block
            assert struct.unpack_from("<i", self.data, at + 4)[0] == 0x090255
            used, free, after = struct.unpack_from("<3I", self.data, at + 92)
            (count,) = struct.unpack_from("<I", self.data, at + 20)
            inodes += sum(8 - byte.bit_count() for byte in self.data[at + used : at + free])
            bits = int.from_bytes(self.data[at + free : at + after], "little")
            blocks |= {base + n for n in range(count) if bits >> n & 1}
        return blocks, inodes


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1,
                max_size=60).filter(lambda name: name not in (".", ".."))
FILES = st.builds(File, st.binary(max_size=20000),
                  st.sampled_from([0o100644, 0o100755, 0o120777]))
TREES = st.recursive(st.dictionaries(NAMES, FILES, max_size=5).map(Folder),
                     lambda inner: st.dictionaries(NAMES, FILES | inner, max_size=12).map(Folder),
                     max_leaves=20)


def checked(root, free=0):
    data = ufs.image(root, free)
    reader = Reader(data)
    assert reader.tree() == root
    free_blocks, free_inodes = reader.free()
    assert not free_blocks & reader.seen
    assert (reader.long(1008 + 8), reader.long(1008 + 16)) == (len(free_blocks), free_inodes)
    assert len(data) == reader.long(1080) * reader.block
    return data, free_blocks


@settings(max_examples=60, deadline=None)
@given(TREES)
def test_a_packed_tree_is_read_back_and_blocks_are_not_shared(root):
    checked(root)


@pytest.mark.parametrize("size", [0, 1, 4096, 49152, 49153, 2 << 20, (2 << 20) + 49153, 70 << 20])
def test_files_of_all_sizes_are_read_back(size):
    """The sizes need direct blocks, one or two levels of indirection, or two cylinder groups."""
    content = array("I", range(size // 4 + 1)).tobytes()[:size]
    checked(Folder({"f": File(content)}))


def test_the_requested_space_is_free():
    _data, free = checked(Folder(), 3 << 20)
    assert len(free) >= (3 << 20) // 4096


def test_many_files_use_several_cylinder_groups():
    checked(Folder({f"file{n:05}": File(b"") for n in range(9000)}))


def test_packing_the_same_tree_is_reproducible():
    files = {"sbin/init": File(b"x" * 9000, 0o100755), "etc/motd": File(b"hello\n")}
    assert ufs.image(ufs.tree(files)) == ufs.image(ufs.tree(dict(reversed(files.items()))))


@pytest.mark.parametrize(("root", "said"), [
    (Folder({"n" * 256: File(b"")}), "invalid file name"),
    (Folder({"d": File(b"", 0o060644)}), "neither"),
])
def test_long_names_and_device_files_are_refused(root, said):
    with pytest.raises(FileSystemError, match=said):
        ufs.image(root)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0"])
def test_an_invalid_file_name_is_refused(name):
    with pytest.raises(FileSystemError, match="invalid file name"):
        ufs.image(Folder({name: File(b"")}))


def test_a_duplicate_path_is_refused():
    with pytest.raises(FileSystemError, match="twice"):
        ufs.tree({"a/b": File(b""), "a": Folder()})


@pytest.mark.parametrize("path, message", [
    ("", "the path is empty"), ("/", "the path is empty"),
    ("/".join("a" * 100), "has 100 components; at most")])
def test_an_invalid_path_is_refused(path, message):
    with pytest.raises(FileSystemError, match=message):
        ufs.tree({path: File(b"")})


def test_a_file_used_as_a_directory_is_refused():
    with pytest.raises(FileSystemError, match="is a file"):
        ufs.tree({"a": File(b""), "a/b": File(b"")})


def test_a_file_system_that_is_too_large_is_refused():
    with pytest.raises(FileSystemError, match="8192 MiB"):
        ufs.image(Folder(), 9 << 30)


def test_a_file_at_two_paths_is_one_inode_with_two_links():
    one = File(b"x" * 5000)
    disk = Reader(ufs.image(ufs.tree({"a": one, "b/c": one, "d": File(b"x" * 5000)})))
    top = {name: number for name, number, *_ in disk.entries(2)}
    a, c, d = top["a"], {name: number for name, number, *_ in disk.entries(top["b"])}["c"], top["d"]
    assert a == c != d and disk.links(a) == 2 and disk.links(d) == 1
    assert disk.content(a) == disk.content(d) == b"x" * 5000


def test_files_and_directories_have_their_times():
    root = ufs.tree({"a": File(b"x", time=1 << 33), "b": Folder(time=7)})
    reader = Reader(ufs.image(root))
    times = [struct.unpack_from("<4q", reader.inode(number), 32) for number in (2, 3, 4)]
    assert times == [(0,) * 4, (1 << 33,) * 4, (7,) * 4]
