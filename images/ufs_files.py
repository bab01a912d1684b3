"""Read files of UFS2 file systems, such as the root file systems of guests.

Structures are those of FreeBSD's sys/ufs/ffs/fs.h, ufs/dinode.h and ufs/dir.h. The disk may contain
anything: a damaged file system is an error, and what is read to find a file is limited.
"""

import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from emu.host.errors import KinstError

# Possible offsets of the superblock, in the kernel's order; offsets of members of struct fs in it
SUPERBLOCKS, SUPERBLOCK_SIZE = (65536, 8192, 0, 262144), 1376
INODE_BLOCK, GEOMETRY, INODES, MAGIC_AT = 16, 48, 184, 1372
MAGIC = 0x19540119
ROOT, INODE = 2, 256  # inode number of the root; size of an inode in bytes
# struct ufs2_dinode: mode, size, and pointers, which may also be the text of a symbolic link
MODE, SIZE, POINTERS, LINK_SIZE = 0, 16, 112, 120
DIRECT, LEVELS = 12, 3  # numbers of direct block pointers in an inode, and of levels of indirection
ENTRY = struct.Struct("<IHBB")  # struct direct, up to the name
SECTOR = 512
MOST_FILE = 1 << 28  # maximum size in bytes of a file
MOST_FOLDER = 1 << 24
MOST_LINKS = 32  # maximum number of symbolic links in a path
MOST_PARTS = 1024  # maximum number of components of a path, including those of links
MOST_FOLDERS = 1 << 25  # maximum number of bytes of directories that are read to find a file


class DiskFileError(KinstError):
    """Error raised if a disk has no UFS2 file system, or a file cannot be read."""


@dataclass(frozen=True)
class _Inode:
    number: int
    mode: int
    size: int
    pointers: bytes


class DiskFiles:
    """The files of a UFS2 file system.

    :param read: returns bytes of the partition; called with an offset and a size.
    :param name: name of the file system in messages.
    :raises DiskFileError: if it is not UFS2.
    """

    def __init__(self, read: Callable[[int, int], bytes], name: str) -> None:
        self._read_disk, self._name, self._left = read, name, 0
        block = next((block for at in SUPERBLOCKS if len(block := read(at, SUPERBLOCK_SIZE))
                      == SUPERBLOCK_SIZE and struct.unpack_from("<I", block, MAGIC_AT)[0] == MAGIC),
                     None)
        if block is None:
            raise DiskFileError(f"{name}: has no UFS2 file system")
        self._inode_block, = struct.unpack_from("<i", block, INODE_BLOCK)
        self._block, self._fragment, self._fragments = struct.unpack_from("<3i", block, GEOMETRY)
        self._inodes, self._group = struct.unpack_from("<Ii", block, INODES)
        if not (SECTOR <= self._fragment <= self._block <= 65536
                and self._fragment * self._fragments == self._block
                and not self._block & self._block - 1 and 0 < self._inodes <= 1 << 24
                and 0 < self._group <= 1 << 24 and 0 < self._inode_block < self._group):
            raise DiskFileError(f"{name}: the superblock is damaged")

    def read(self, path: str) -> bytes:
        """Return the content of a file.

        :param path: absolute path; symbolic links are followed.
        :raises DiskFileError: if there is no such file, or it is damaged or too large.
        """
        inode = self._find(path)
        if not stat.S_ISREG(inode.mode):
            raise DiskFileError(f"{self._name}: {path}: is not a regular file")
        return self._content(inode, MOST_FILE)

    def _find(self, path: str) -> _Inode:
        parts, links, steps = path.split("/")[::-1], 0, 0
        folders = [self._inode(ROOT)]
        known, self._left = dict[int, dict[str, int]](), MOST_FOLDERS
        while parts:
            part = parts.pop()
            steps += 1
            if steps > MOST_PARTS:
                raise DiskFileError(f"{self._name}: {path}: more than {MOST_PARTS} components")
            if part == "..":
                folders = folders[:-1] or folders
            if part in ("", ".", ".."):
                continue
            if not stat.S_ISDIR(folders[-1].mode):
                raise DiskFileError(f"{self._name}: {path}: '{part}' is not in a directory")
            folder = folders[-1]
            if folder.number not in known:
                known[folder.number] = dict(self._entries(folder))
            number = known[folder.number].get(part)
            if number is None:
                raise DiskFileError(f"{self._name}: {path}: does not exist")
            inode = self._inode(number)
            if not stat.S_ISLNK(inode.mode):
                folders.append(inode)
                continue
            links += 1
            if links > MOST_LINKS:
                raise DiskFileError(f"{self._name}: {path}: more than {MOST_LINKS} symbolic links")
            target = (inode.pointers[: inode.size] if inode.size < LINK_SIZE
                      else self._content(inode, 1 << 12)).decode("utf-8", "surrogateescape")
            if target.startswith("/"):
                folders = folders[:1]
            parts += target.split("/")[::-1]
        return folders[-1]

    def _inode(self, number: int) -> _Inode:
        group, index = divmod(number, self._inodes)
        at = (group * self._group + self._inode_block) * self._fragment + index * INODE
        data = self._bytes(at, INODE)
        mode, = struct.unpack_from("<H", data, MODE)
        size, = struct.unpack_from("<Q", data, SIZE)
        return _Inode(number, mode, size, data[POINTERS : POINTERS + LINK_SIZE])

    def _entries(self, folder: _Inode) -> Iterator[tuple[str, int]]:
        """Yield (name, inode number) of the entries of a directory."""
        self._left -= folder.size
        if self._left < 0:
            raise DiskFileError(f"{self._name}: more than {MOST_FOLDERS} bytes of directories")
        data = self._content(folder, MOST_FOLDER)
        at = 0
        while at + ENTRY.size <= len(data):
            number, length, _kind, size = ENTRY.unpack_from(data, at)
            if length < ENTRY.size + size or length % 4 or at % SECTOR + length > SECTOR:
                raise DiskFileError(f"{self._name}: directory {folder.number} is damaged")
            if number:
                name = data[at + ENTRY.size : at + ENTRY.size + size]
                yield name.decode("utf-8", "surrogateescape"), number
            at += length

    def _content(self, inode: _Inode, most: int) -> bytes:
        if inode.size > most:
            raise DiskFileError(f"{self._name}: inode {inode.number} has {inode.size} bytes; at "
                                f"most {most} are read")
        pieces, left = list[bytes](), inode.size
        for block in self._blocks(inode):
            if left <= 0:
                break
            size = min(left, self._block)
            pieces.append(self._bytes(block * self._fragment, size) if block else bytes(size))
            left -= size
        if left > 0:
            raise DiskFileError(f"{self._name}: inode {inode.number} is damaged")
        return b"".join(pieces)

    def _blocks(self, inode: _Inode) -> Iterator[int]:
        """Yield the addresses of a file's blocks, in fragments; 0 is a hole."""
        pointers = struct.unpack(f"<{DIRECT + LEVELS}q", inode.pointers)
        yield from pointers[:DIRECT]
        for level in range(1, LEVELS + 1):
            yield from self._indirect(pointers[DIRECT + level - 1], level)

    def _indirect(self, block: int, level: int) -> Iterator[int]:
        count = self._block // 8
        if not block:  # a hole
            for _ in range(count ** level):
                yield 0
            return
        for one in struct.unpack(f"<{count}q", self._bytes(block * self._fragment, self._block)):
            if level == 1:
                yield one
            else:
                yield from self._indirect(one, level - 1)

    def _bytes(self, at: int, size: int) -> bytes:
        data = self._read_disk(at, size) if at >= 0 else b""
        if len(data) != size:
            raise DiskFileError(f"{self._name}: a block is outside the disk")
        return data
