"""Write UFS2 file systems, which guest kernels mount as their root, from trees of files.

The layout is that of FreeBSD's sys/ufs/ffs/fs.h, ufs/dinode.h and ufs/dir.h: little-endian, blocks
of 4 KiB without fragments, no soft updates, no check hashes. The same tree always produces the same
bytes.
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
INODE, ROOT = 256, 2  # size of an inode in bytes; inode number of the root (inode 1 is unused)
PER_BLOCK, POINTERS = BLOCK // INODE, BLOCK // 8  # numbers of inodes and block pointers per block
DIRECT, LEVELS = 12, 3  # number of direct block pointers in an inode; number of indirection levels
GROUP_HEADER = 168
# maximum number of blocks and of inodes in a group; both bitmaps fit in one block
GROUP_BLOCKS, GROUP_INODES = 16384, 4096
# fs_sblkno: block offset of a superblock copy in its group
SUPERBLOCK_BLOCK = (SUPERBLOCK_AT + SUPERBLOCK_SIZE) // BLOCK
GROUP_BLOCK = SUPERBLOCK_BLOCK + SUPERBLOCK_SIZE // BLOCK  # fs_cblkno: a group's header block
INODE_BLOCK = GROUP_BLOCK + 1  # fs_iblkno: block offset of a group's first inodes
OKAY = 0x7C269D38  # FSOKAY, from which BSD computed fs_state; FreeBSD ignores that field
SUMMARY = struct.Struct("<4i")  # struct csum: directories, free blocks, inodes, fragments
LINK_SIZE = (DIRECT + LEVELS) * 8  # minimum size in bytes of a link target outside the inode
MAX_NAME, MAX_DEPTH = 255, 64
MAX_SIZE = 8 << 30  # maximum size of a file system in bytes
MAX_FOLDER = 1 << 30  # maximum total size in bytes of the files that ``read_folder`` reads
KINDS = {stat.S_IFDIR: 4, stat.S_IFREG: 8, stat.S_IFLNK: 10}  # d_type, keyed by file type


class FileSystemError(KinstError):
    """Error raised if a file tree does not fit, or contains an unsupported file or name."""


@dataclass(frozen=True)
class File:
    """A file, or a symbolic link whose content is its target.

    One object under two names in a tree becomes one file with two hard links.

    :param mode: mode with the file type, as in stat(2).
    :param time: all times of the file, in seconds since 1970.
    """

    content: bytes | memoryview
    mode: int = stat.S_IFREG | 0o644
    time: int = 0


@dataclass
class Folder:
    """A directory, which maps names to files and directories."""

    entries: dict[str, "File | Folder"] = field(default_factory=dict)
    mode: int = stat.S_IFDIR | 0o755
    time: int = 0


def tree(files: Mapping[str, File | Folder]) -> Folder:
    """Build a tree from files and directories, keyed by path; create missing parent directories.

    :raises FileSystemError: a path is invalid, or is used twice.
    """
    root = Folder()
    for path, item in files.items():
        folder, names = root, [name for name in path.split("/") if name]
        if not names:
            raise FileSystemError(f"{path!r}: the path is empty; give the name of a file")
        if len(names) > MAX_DEPTH:
            raise FileSystemError(f"{path!r}: the path has {len(names)} components; at most "
                                  f"{MAX_DEPTH} are allowed")
        for name in names[:-1]:
            child = folder.entries.setdefault(name, Folder())
            if not isinstance(child, Folder):
                raise FileSystemError(f"{path!r}: '{name}' is a file, not a directory")
            folder = child
        if names[-1] in folder.entries:
            raise FileSystemError(f"{path!r}: the path is used twice")
        folder.entries[names[-1]] = item
    return root


@dataclass
class _Inode:
    mode: int
    links: int
    content: bytes | memoryview
    time: int = 0
    blocks: list[int] = field(default_factory=list)  # block numbers of the content
    tables: list[tuple[int, list[int]]] = field(default_factory=list)  # (indirect block, contents)
    # Block numbers of the root indirect blocks, one for each level
    roots: list[int] = field(default_factory=list)


def image(root: Folder, free: int = 0) -> bytes:
    """Return a file system image that contains a tree of files.

    :param free: minimum number of free bytes.
    :raises FileSystemError: the image would be larger than 8 GiB, or a name is invalid.
    """
    out = io.BytesIO()
    write(root, out, free)
    return out.getvalue()


def write(root: Folder, file: BinaryIO, free: int = 0) -> None:
    """Write a file system image into an empty file, which stays sparse where the host allows.

    :param free: minimum number of free bytes.
    :raises FileSystemError: the image would be larger than 8 GiB, or a name is invalid.
    """
    _Writer(root, free).write(file)


class _Writer:
    def __init__(self, root: Folder, free: int) -> None:
        self.inodes: list[_Inode] = []
        self._numbers: dict[int, int] = {}  # inode numbers, keyed by the id() of the File
        self._number(root, ROOT, 0)
        wanted = sum(_blocks(inode) for inode in self.inodes) + -(-free // BLOCK) + 8
        groups = 1
        while True:  # each additional group needs blocks for its own metadata
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
                raise FileSystemError(f"the file system would be larger than {MAX_SIZE >> 20} "
                                      "MiB")
        self.groups, self.size = groups, size
        # The last group must have room for its own metadata and at least one data block.
        if size - (groups - 1) * GROUP_BLOCKS <= self.data_block:
            self.size = (groups - 1) * GROUP_BLOCKS + self.data_block + 1
        self.blocks: dict[int, bytes | memoryview] = {}
        self.used = bytearray(self.size)
        self._next = 0

    # -- inodes -----------------------------------------------------------------------------------

    def _number(self, folder: Folder, parent: int, depth: int) -> int:
        """Number a directory and its contents in traversal order; return the directory's inode."""
        if depth > MAX_DEPTH:
            raise FileSystemError(f"directories are nested more than {MAX_DEPTH} levels deep")
        inode = _Inode(folder.mode, 2, b"", folder.time)
        number = ROOT + len(self.inodes)
        self.inodes.append(inode)
        rows = [(".", number, stat.S_IFDIR), ("..", parent if depth else number, stat.S_IFDIR)]
        for name, item in sorted(folder.entries.items()):
            if name in ("", ".", "..") or set("/\0") & set(name) or (
                    len(os.fsencode(name)) > MAX_NAME):
                raise FileSystemError(f"{name[:40]!r}: invalid file name")
            if isinstance(item, Folder):
                rows.append((name, self._number(item, number, depth + 1), stat.S_IFDIR))
                inode.links += 1
            else:
                if stat.S_IFMT(item.mode) not in (stat.S_IFREG, stat.S_IFLNK):
                    raise FileSystemError(f"{name!r}: neither a file nor a symbolic link")
                file_number = self._numbers.setdefault(id(item), ROOT + len(self.inodes))
                rows.append((name, file_number, stat.S_IFMT(item.mode)))
                if file_number == ROOT + len(self.inodes):
                    self.inodes.append(_Inode(item.mode, 0, item.content, item.time))
                self.inodes[file_number - ROOT].links += 1
        inode.content = _directory(rows)
        return number

    def _allocate(self) -> int:
        """Return the next free data block and mark it as used."""
        while self.used[self._next]:
            self._next += 1
        self.used[self._next] = 1
        return self._next

    def _place(self, inode: _Inode) -> None:
        """Allocate a file's data blocks and indirect blocks."""
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
        """Allocate a tree of indirect blocks, and return the number of the root block."""
        if level > 1:
            step = POINTERS ** (level - 1)
            blocks = [self._table(inode, blocks[at : at + step], level - 1)
                      for at in range(0, len(blocks), step)]
        block = self._allocate()
        inode.tables.append((block, blocks))
        self.blocks[block] = struct.pack(f"<{len(blocks)}q", *blocks)
        return block

    # -- layout -----------------------------------------------------------------------------------

    def write(self, file: BinaryIO) -> None:
        """Lay out all blocks and write them to a file."""
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
        """Yield (index in the group, whether it is a directory) for each used inode of a group."""
        first = group * self.inodes_per_group
        for number in range(first, first + self.inodes_per_group):
            if number < ROOT:
                yield number - first, False
            elif number - ROOT < len(self.inodes):
                yield number - first, stat.S_ISDIR(self.inodes[number - ROOT].mode)

    def _group(self, group: int) -> tuple[int, int, int, int]:
        """Build a group's header block with its bitmaps, and return the group's summary."""
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
            pointers = bytes(inode.content).ljust(LINK_SIZE, b"\0")
        else:
            direct = [*inode.blocks[:DIRECT], *[0] * DIRECT][:DIRECT]
            pointers = struct.pack("<15q", *direct, *[*inode.roots, 0, 0, 0][:LEVELS])
        sectors = (len(inode.blocks) + len(inode.tables)) * (BLOCK // SECTOR)
        data = struct.pack("<HHIIIQQ", inode.mode, inode.links, 0, 0, BLOCK, len(inode.content),
                           sectors)
        data += struct.pack("<4q", *[inode.time] * 4) + bytes(4 * 4) + struct.pack("<I", number)
        data += bytes(4 + 4 + 4 + 16) + pointers
        at = index % PER_BLOCK * INODE
        table = bytes(self.blocks.get(block, b"")).ljust(BLOCK, b"\0")
        self.blocks[block] = (table[:at] + data.ljust(INODE, b"\0")
                              + table[at + INODE :])

    def _superblock(self, totals: list[int]) -> bytes:
        """Return the superblock, which is a ``struct fs``."""
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
    """Return the number of blocks that a file needs, including indirect blocks."""
    data = 0 if _in_inode(inode) else -(-len(inode.content) // BLOCK)
    count, rest = data, max(0, data - DIRECT)
    for level in range(1, LEVELS + 1):
        here = min(rest, POINTERS ** level)
        rest -= here
        count += sum(-(-here // POINTERS ** n) for n in range(1, level + 1))
    return count


def _directory(rows: list[tuple[str, int, int]]) -> bytes:
    """Pack directory entries into full sectors; no entry crosses a sector boundary."""
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
    """Read the files, directories and symbolic links of a host directory, with their permissions.

    :raises FileSystemError: the directory cannot be read, or is larger than 1 GiB.
    """
    left = MAX_FOLDER

    def read(at: Path, depth: int) -> Folder:
        nonlocal left
        node = Folder()
        if depth > MAX_DEPTH:
            raise FileSystemError(
                f"{path}: directories are nested more than {MAX_DEPTH} levels deep")
        for item in sorted(at.iterdir()):
            mode = item.lstat().st_mode
            if stat.S_ISLNK(mode):
                node.entries[item.name] = File(os.readlink(os.fsencode(item)), stat.S_IFLNK | 0o777)
            elif stat.S_ISDIR(mode):
                node.entries[item.name] = read(item, depth + 1)
            elif stat.S_ISREG(mode):
                left -= item.lstat().st_size
                if left < 0:
                    raise FileSystemError(
                        f"{path}: its files exceed {MAX_FOLDER >> 20} MiB in total")
                node.entries[item.name] = File(item.read_bytes(), stat.S_IFREG | mode & 0o7777)
        return node

    try:
        return read(path, 0)
    except OSError as error:
        raise FileSystemError(f"{error.filename or path}: {error.strerror}") from None
