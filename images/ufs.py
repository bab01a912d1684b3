"""UFS2 file systems, written from a tree of files: what a kernel mounts as its root.

The layout is that of FreeBSD's sys/ufs/ffs/fs.h, ufs/dinode.h and ufs/dir.h: little-endian, blocks
of 4 KiB without fragments, no soft updates, no check hashes.  The same tree gives the same bytes.
"""

import io
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from emu.host.errors import KinstError

BLOCK, SECTOR = 4096, 512
SUPERBLOCK_AT, SUPERBLOCK_SIZE = 65536, 8192
MAGIC, GROUP_MAGIC = 0x19540119, 0x090255
INODE, ROOT = 256, 2  # bytes of one; the number of the root's (1 is no file's)
PER_BLOCK, POINTERS = BLOCK // INODE, BLOCK // 8  # inodes and block numbers in a block
DIRECT, LEVELS = 12, 3  # block numbers in an inode: of data, and of blocks of block numbers
GROUP_HEADER = 168
GROUP_BLOCKS, GROUP_INODES = 16384, 4096  # at the most; the maps of both fit a block
SUPERBLOCK_BLOCK = (SUPERBLOCK_AT + SUPERBLOCK_SIZE) // BLOCK  # fs_sblkno: of each group's copy
GROUP_BLOCK = SUPERBLOCK_BLOCK + SUPERBLOCK_SIZE // BLOCK  # fs_cblkno
INODE_BLOCK = GROUP_BLOCK + 1  # fs_iblkno
OKAY = 0x7C269D38  # fs_state of a clean one is one less
SUMMARY = struct.Struct("<4i")  # struct csum: directories, free blocks, inodes, fragments
LINK_SIZE = (DIRECT + LEVELS) * 8  # bytes of a symbolic link that lie in the inode
MAX_NAME, MAX_DEPTH = 255, 64
MAX_SIZE = 8 << 30  # bytes of an image
MAX_FOLDER = 1 << 30  # bytes of what ``read_folder`` reads into memory
KINDS = {stat.S_IFDIR: 4, stat.S_IFREG: 8, stat.S_IFLNK: 10}  # d_type


class FileSystemError(KinstError):
    """A tree does not fit, or has something that cannot be packed."""


@dataclass(frozen=True)
class File:
    """A file, or a symbolic link whose content is where it leads.  The same object at two places is
    one file with two names.

    :param mode: as stat(2) has it, with its type.
    """

    content: bytes | memoryview
    mode: int = stat.S_IFREG | 0o644


@dataclass
class Folder:
    """A directory: names and what they are of."""

    entries: dict[str, "File | Folder"] = field(default_factory=dict)
    mode: int = stat.S_IFDIR | 0o755


def tree(files: Mapping[str, File | Folder]) -> Folder:
    """From paths, in whose folders they are then.  A folder that is given gets what others say is
    in it, too.

    :raises FileSystemError: for a path that cannot be, or is there twice.
    """
    root = Folder()
    for path, what in files.items():
        at, names = root, [name for name in path.split("/") if name]
        if not names or len(names) > MAX_DEPTH:
            raise FileSystemError(f"{path!r}: no path for a file system")
        for name in names[:-1]:
            below = at.entries.setdefault(name, Folder())
            if not isinstance(below, Folder):
                raise FileSystemError(f"{path!r}: '{name}' is a file, not a folder")
            at = below
        if names[-1] in at.entries:
            raise FileSystemError(f"{path!r}: is there twice")
        at.entries[names[-1]] = what
    return root


@dataclass
class _Inode:
    mode: int
    links: int
    content: bytes | memoryview
    blocks: list[int] = field(default_factory=list)  # of data
    tables: list[tuple[int, list[int]]] = field(default_factory=list)  # block, what it points to
    roots: list[int] = field(default_factory=list)  # of the tables: one for each level


def image(root: Folder, free: int = 0) -> bytes:
    """A file system with a tree in it.

    :param free: bytes that are left free, at least.
    :raises FileSystemError: when it would be larger than 8 GiB, or a name is too long.
    """
    out = io.BytesIO()
    write(root, out, free)
    return out.getvalue()


def write(root: Folder, file: BinaryIO, free: int = 0) -> None:
    """The same, into an empty file: what is not used is left out of it where it can be.

    :raises FileSystemError: as ``image``.
    """
    _Writer(root, free).write(file)


class _Writer:
    def __init__(self, root: Folder, free: int) -> None:
        self.inodes: list[_Inode] = []
        self._numbers: dict[int, int] = {}  # of files, by their identity
        self._number(root, ROOT, 0)
        wanted = sum(_blocks(inode) for inode in self.inodes) + -(-free // BLOCK) + 8
        groups = 1
        while True:  # more groups need more blocks for themselves
            per_group = -(-(len(self.inodes) + ROOT + 64) // groups)
            self.inodes_per_group = min(-(-per_group // PER_BLOCK) * PER_BLOCK, GROUP_INODES)
            self.data_block = INODE_BLOCK + self.inodes_per_group // PER_BLOCK  # fs_dblkno
            self.summary_blocks = -(-groups * SUMMARY.size // BLOCK)
            size = wanted + self.summary_blocks + groups * self.data_block
            if size <= groups * GROUP_BLOCKS and (
                    groups * self.inodes_per_group >= len(self.inodes) + ROOT):
                break
            groups += 1
            if groups * GROUP_BLOCKS * BLOCK > MAX_SIZE:
                raise FileSystemError(f"a file system of more than {MAX_SIZE >> 20} MiB is not "
                                      "made")
        self.groups, self.size = groups, size
        # A last group without room for its own blocks is none.
        if size - (groups - 1) * GROUP_BLOCKS <= self.data_block:
            self.size = (groups - 1) * GROUP_BLOCKS + self.data_block + 1
        self.blocks: dict[int, bytes | memoryview] = {}
        self.used = bytearray(self.size)
        self._next = 0

    # -- inodes -----------------------------------------------------------------------------------

    def _number(self, folder: Folder, parent: int, depth: int) -> int:
        """The numbers of a folder and of what is below it; the folder's own.  They are in the order
        in which the tree is walked."""
        if depth > MAX_DEPTH:
            raise FileSystemError(f"more than {MAX_DEPTH} folders in each other")
        own = _Inode(folder.mode, 2, b"")
        number = ROOT + len(self.inodes)
        self.inodes.append(own)
        rows = [(".", number, stat.S_IFDIR), ("..", parent if depth else number, stat.S_IFDIR)]
        for name, what in sorted(folder.entries.items()):
            if name in ("", ".", "..") or set("/\0") & set(name) or (
                    len(os.fsencode(name)) > MAX_NAME):
                raise FileSystemError(f"{name[:40]!r}: no name for a file")
            if isinstance(what, Folder):
                rows.append((name, self._number(what, number, depth + 1), stat.S_IFDIR))
                own.links += 1
            else:
                if stat.S_IFMT(what.mode) not in (stat.S_IFREG, stat.S_IFLNK):
                    raise FileSystemError(f"{name!r}: neither a file nor a symbolic link")
                at = self._numbers.setdefault(id(what), ROOT + len(self.inodes))
                rows.append((name, at, stat.S_IFMT(what.mode)))
                if at == ROOT + len(self.inodes):
                    self.inodes.append(_Inode(what.mode, 0, what.content))
                self.inodes[at - ROOT].links += 1
        own.content = _directory(rows)
        return number

    def _allocate(self) -> int:
        """The next free block, behind what the groups have for themselves."""
        while self.used[self._next]:
            self._next += 1
        self.used[self._next] = 1
        return self._next

    def _place(self, inode: _Inode) -> None:
        """Give a file its blocks."""
        if _in_inode(inode):
            return
        content = memoryview(inode.content)
        for at in range(0, len(content), BLOCK):
            block = self._allocate()
            inode.blocks.append(block)
            self.blocks[block] = content[at : at + BLOCK]
        rest = inode.blocks[DIRECT:]
        for level in range(1, LEVELS + 1):
            if not rest:
                break
            here, rest = rest[: POINTERS ** level], rest[POINTERS ** level :]
            inode.roots.append(self._table(inode, here, level))

    def _table(self, inode: _Inode, blocks: list[int], level: int) -> int:
        """A block of block numbers, and those below it."""
        if level > 1:
            step = POINTERS ** (level - 1)
            blocks = [self._table(inode, blocks[at : at + step], level - 1)
                      for at in range(0, len(blocks), step)]
        block = self._allocate()
        inode.tables.append((block, blocks))
        self.blocks[block] = struct.pack(f"<{len(blocks)}q", *blocks)
        return block

    # -- what lies where --------------------------------------------------------------------------

    def write(self, file: BinaryIO) -> None:
        for group in range(self.groups):
            base = group * GROUP_BLOCKS
            begin = base if group == 0 else base + SUPERBLOCK_BLOCK
            end = base + self.data_block + (self.summary_blocks if group == 0 else 0)
            self.used[begin:end] = b"\1" * (end - begin)
        for inode in self.inodes:
            self._place(inode)
        summaries = [self._group(group) for group in range(self.groups)]
        table = b"".join(SUMMARY.pack(*summary) for summary in summaries)
        for at in range(0, len(table), BLOCK):
            self.blocks[self.data_block + at // BLOCK] = table[at : at + BLOCK]
        for number, inode in enumerate(self.inodes, ROOT):
            self._write_inode(number, inode)
        superblock = self._superblock([sum(column) for column in zip(*summaries, strict=True)])
        for block, content in self.blocks.items():
            file.seek(block * BLOCK)
            file.write(content)
        for at in (SUPERBLOCK_AT, *((group * GROUP_BLOCKS + SUPERBLOCK_BLOCK) * BLOCK
                                    for group in range(self.groups))):
            file.seek(at)
            file.write(superblock)
        if file.seek(0, io.SEEK_END) < self.size * BLOCK:
            file.seek(self.size * BLOCK - 1)
            file.write(b"\0")

    def _inodes_of(self, group: int) -> Iterator[tuple[int, bool]]:
        """(index in the group, whether it is a folder) of those that are used."""
        first = group * self.inodes_per_group
        for number in range(first, first + self.inodes_per_group):
            if number < ROOT:
                yield number - first, False
            elif number - ROOT < len(self.inodes):
                yield number - first, stat.S_ISDIR(self.inodes[number - ROOT].mode)

    def _group(self, group: int) -> tuple[int, int, int, int]:
        """A group's own block, with its maps; its summary."""
        base = group * GROUP_BLOCKS
        count = min(GROUP_BLOCKS, self.size - base)
        inodes, blocks = bytearray(self.inodes_per_group // 8), bytearray(GROUP_BLOCKS // 8)
        folders = taken = 0
        for index, is_folder in self._inodes_of(group):
            inodes[index >> 3] |= 1 << (index & 7)
            folders, taken = folders + is_folder, taken + 1
        free = 0
        for index in range(count):
            if not self.used[base + index]:
                blocks[index >> 3] |= 1 << (index & 7)
                free += 1
        summary = folders, free, self.inodes_per_group - taken, 0
        used_at = GROUP_HEADER
        free_at = used_at + len(inodes)
        header = struct.pack(
            "<iiiIhhI", 0, GROUP_MAGIC, 0, group, 0, 0, count) + SUMMARY.pack(*summary)
        header += struct.pack("<3I8I", 0, 0, 0, *[0] * 8)
        header += struct.pack("<iiIIIIIIIIIiIq3q", 0, 0, used_at, free_at, free_at + len(blocks),
                              0, 0, 0, self.inodes_per_group, self.inodes_per_group, 0, 0, 0, 0,
                              0, 0, 0)
        self.blocks[base + GROUP_BLOCK] = header + inodes + blocks
        return summary

    def _write_inode(self, number: int, inode: _Inode) -> None:
        group, index = divmod(number, self.inodes_per_group)
        block = group * GROUP_BLOCKS + INODE_BLOCK + index // PER_BLOCK
        if _in_inode(inode):
            places = bytes(inode.content).ljust(LINK_SIZE, b"\0")
        else:
            direct = [*inode.blocks[:DIRECT], *[0] * DIRECT][:DIRECT]
            places = struct.pack("<15q", *direct, *[*inode.roots, 0, 0, 0][:LEVELS])
        held = (len(inode.blocks) + len(inode.tables)) * (BLOCK // SECTOR)
        data = struct.pack("<HHIIIQQ", inode.mode, inode.links, 0, 0, BLOCK, len(inode.content),
                           held)
        data += bytes(8 * 4 + 4 * 4) + struct.pack("<I", number) + bytes(4 + 4 + 4 + 16) + places
        at = index % PER_BLOCK * INODE
        held_before = bytes(self.blocks.get(block, b"")).ljust(BLOCK, b"\0")
        self.blocks[block] = (held_before[:at] + data.ljust(INODE, b"\0")
                              + held_before[at + INODE :])

    def _superblock(self, totals: list[int]) -> bytes:
        """``struct fs``."""
        data_blocks = self.size - self.groups * self.data_block - self.summary_blocks
        largest = BLOCK * (DIRECT + sum(POINTERS ** n for n in range(1, LEVELS + 1))) - 1
        group_size = GROUP_HEADER + self.inodes_per_group // 8 + GROUP_BLOCKS // 8 + 4
        out = struct.pack(
            "<2i4i2i3iI", 0, 0, SUPERBLOCK_BLOCK, GROUP_BLOCK, INODE_BLOCK, self.data_block, 0, -1,
            0, 0, 0, self.groups)
        out += struct.pack("<4i2i2i4i2i", BLOCK, BLOCK, 1, 8, 0, 0, -BLOCK, -BLOCK, 12, 12,
                           1, 2048, 0, 3)
        out += struct.pack("<i2iiIi3i3i", SUPERBLOCK_SIZE // 4, 0, 0, POINTERS, PER_BLOCK, 0,
                           0, 0, 1, 0, 0, 0)
        out += struct.pack("<8i", 0, self.summary_blocks * BLOCK,
                           -(-group_size // BLOCK) * BLOCK, 0, 0, 0, 0, 0)
        out += struct.pack("<Ii4i4b", self.inodes_per_group, GROUP_BLOCKS, 0, 0, 0, 0, 0, 1, 0, 0)
        out += bytes(468 + 32) + struct.pack("<Qii", 0, 0, 0) + bytes(128)
        out += struct.pack("<iiqqqQ", 0, BLOCK, 0, self.size * BLOCK, 0, 0) + bytes(12 * 8)
        out += struct.pack("<qq", SUPERBLOCK_AT, SUPERBLOCK_AT)
        folders, free, inodes, fragments = totals
        out += struct.pack("<8q", folders, free, inodes, fragments, 0, 0, 0, 0)
        out += struct.pack("<qqqqqI", 0, self.size, data_blocks, self.data_block, 0, 0)
        out += bytes(20 * 4) + struct.pack("<IIIqi", 16384, 64, 0, 0, 0) + bytes(21 * 4)
        out += struct.pack("<IIiiiiQqq", 0, 0, 0, 0, LINK_SIZE, 2, largest, BLOCK - 1, BLOCK - 1)
        out += struct.pack("<iii2ii", OKAY - 1, 1, 1, 0, 0, MAGIC)
        return out


def _in_inode(inode: _Inode) -> bool:
    return stat.S_ISLNK(inode.mode) and len(inode.content) < LINK_SIZE


def _blocks(inode: _Inode) -> int:
    """How many a file needs, with those of block numbers."""
    data = 0 if _in_inode(inode) else -(-len(inode.content) // BLOCK)
    count, rest = data, max(0, data - DIRECT)
    for level in range(1, LEVELS + 1):
        here = min(rest, POINTERS ** level)
        rest -= here
        count += sum(-(-here // POINTERS ** n) for n in range(1, level + 1))
    return count


def _directory(rows: list[tuple[str, int, int]]) -> bytes:
    """Entries in pieces of a sector, none of them across two; the last fills its piece."""
    pieces: list[list[tuple[bytes, int, int]]] = [[]]
    room = SECTOR
    for name, number, kind in rows:
        text = os.fsencode(name)
        size = 8 + (len(text) + 4 & ~3)
        if size > room:
            pieces.append([])
            room = SECTOR
        pieces[-1].append((text, number, kind))
        room -= size
    out = b""
    for piece in pieces:
        begin = len(out)
        for at, (text, number, kind) in enumerate(piece):
            size = 8 + (len(text) + 4 & ~3)
            if at == len(piece) - 1:
                size = begin + SECTOR - len(out)
            entry = struct.pack("<IHBB", number, size, KINDS[kind], len(text)) + text
            out += entry.ljust(size, b"\0")
    return out


def read_folder(path: Path) -> Folder:
    """A folder of the host: files, folders and symbolic links, with their permissions.

    :raises FileSystemError: when it cannot be read, or is larger than 1 GiB.
    """
    left = MAX_FOLDER

    def read(at: Path, depth: int) -> Folder:
        nonlocal left
        found = Folder()
        if depth > MAX_DEPTH:
            raise FileSystemError(f"{path}: more than {MAX_DEPTH} folders in each other")
        for one in sorted(at.iterdir()):
            mode = one.lstat().st_mode
            if stat.S_ISLNK(mode):
                found.entries[one.name] = File(os.readlink(os.fsencode(one)), stat.S_IFLNK | 0o777)
            elif stat.S_ISDIR(mode):
                found.entries[one.name] = read(one, depth + 1)
            elif stat.S_ISREG(mode):
                left -= one.lstat().st_size
                if left < 0:
                    raise FileSystemError(f"{path}: has more than {MAX_FOLDER >> 20} MiB")
                found.entries[one.name] = File(one.read_bytes(), stat.S_IFREG | mode & 0o7777)
        return found

    try:
        return read(path, 0)
    except OSError as error:
        raise FileSystemError(f"{error.filename or path}: {error.strerror}") from None
