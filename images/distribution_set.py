"""Unpack FreeBSD distribution sets, which are tar archives compressed with xz.

The archives are not trusted: names, sizes and the number of members are checked.
"""

import contextlib
import lzma
import mmap
import os
import re
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from images import ufs
from images.ufs import File, Folder

CHUNK = 1 << 18
# maximum size of a member and of all members in bytes, and maximum number of members
MAX_MEMBER, MAX_ALL, MAX_MEMBERS = 2 << 30, 6 << 30, 1 << 19
MAX_TIME = 1 << 40  # limit of a member's time in seconds since 1970
MAX_HEADER = 1 << 16  # maximum size in bytes of an extension header, which precedes its member
FREE = 256 << 20  # free space in a root file system in bytes
# Pattern of the headers and libraries that programs are compiled against
HEADERS = re.compile(r"usr/(?:include/[\w.+/-]{1,200}"
                     r"|lib/(?:dtrace/)?[\w.+-]{1,100}\.(?:[ao]|so[\d.]*))"
                     r"|lib/[\w.+-]{1,100}\.so[\d.]*")
KEPT = "usr", "lib"  # top-level folders of these files

Progress = Callable[[str, int, int], None]  # arguments: step, bytes done, total bytes (0: unknown)


class SetError(KinstError):
    """Error raised if a distribution set is damaged, too large or incomplete."""


class _Header(tarfile.TarInfo):
    """Tar header that limits the size of extension headers, which describe the next member.

    ``tarfile`` reads such members (long names, PAX headers) into memory as a whole, before any
    other code sees them.
    """

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        describes_next = self.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
                                     tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
        if self.size < 0 or (describes_next and self.size > MAX_HEADER):
            raise tarfile.ReadError(f"a header has an invalid size of {self.size} bytes")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]


@contextlib.contextmanager
def _members(archive: Path, progress: Progress) -> Iterator[
        Iterator[tuple[str, tarfile.TarInfo, tarfile.TarFile]]]:
    """Yield an iterator over an archive's members, with ``./`` cut from names; report progress."""
    size = archive.stat().st_size

    def each(raw: BinaryIO, tar: tarfile.TarFile) -> Iterator[
            tuple[str, tarfile.TarInfo, tarfile.TarFile]]:
        total = 0
        for number, info in enumerate(tar):
            total += info.size if info.isfile() else 0
            if info.size > MAX_MEMBER or total > MAX_ALL or number >= MAX_MEMBERS:
                raise SetError(f"{archive.name}: too large at member {info.name[:100]!r}: a "
                               f"distribution set may have {MAX_MEMBERS} members, of at most "
                               f"{MAX_MEMBER >> 20} MiB each and {MAX_ALL >> 20} MiB in total")
            progress(f"unpacking {archive.name}", raw.tell(), size)
            name = str(PurePosixPath(info.name))
            if ".." not in name.split("/") and name != ".":
                yield name.removeprefix("/"), info, tar
        progress(f"unpacking {archive.name}", size, size)

    try:
        with archive.open("rb") as raw, tarfile.open(fileobj=raw, mode="r:xz",
                                                    tarinfo=_Header) as tar:
            yield each(raw, tar)
    except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError) as error:
        raise SetError(f"{archive.name}: damaged archive: {error}") from None


def _copy(tar: tarfile.TarFile, info: tarfile.TarInfo, target: BinaryIO) -> None:
    source = tar.extractfile(info)
    if source is not None:
        shutil.copyfileobj(cast(BinaryIO, source), target, CHUNK)


def take(archive: Path, wanted: Callable[[str], Path | None], needed: str,
         progress: Progress) -> None:
    """Extract files from a distribution set, replacing each target file atomically.

    :param wanted: returns the target path of a member, or None to skip the member.
    :param needed: name of a member that the set must contain.
    :raises SetError: the set is damaged or does not contain ``needed``.
    """
    found = False
    with _members(archive, progress) as members:
        for name, info, tar in members:
            target = wanted(name) if info.isfile() else None
            if target is not None:
                with replacing(target) as file:
                    _copy(tar, info, file)
                found |= name == needed
    if not found:
        raise SetError(f"{archive.name}: does not contain {needed}")


# tuple: offset and size in the spool, mode, time
Entry = File | Folder | tuple[int, int, int, int] | str


def make_root(archive: Path, image: Path, headers: Path, progress: Progress,
              kernel: Path | None = None, settings: Mapping[str, str] | None = None) -> list[str]:
    """Write a base system's root file system, and a directory with its headers and libraries.

    Files belong to root. Device nodes are skipped, because the kernel mounts devfs.

    :param headers: the directory, which is replaced.
    :param kernel: a distribution set whose files are added, such as the kernel's.
    :param settings: path -> content of text files to add unless the base system has them.
    :return: the directories and files that were added to the base system.
    :raises SetError: a set is damaged, or the base system does not contain ``sbin/init``.
    :raises FileSystemError: the files do not fit into a file system.
    """
    with contextlib.ExitStack() as stack:
        spool = stack.enter_context(tempfile.TemporaryFile(dir=image.parent))
        staging = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=image.parent)))
        entries: dict[str, Entry] = {}
        _spool(archive, spool, entries, progress)
        if not isinstance(entries.get("sbin/init"), tuple | str):
            raise SetError(f"{archive.name}: does not contain sbin/init")
        added = []
        if kernel is not None:
            before = set(entries)
            _spool(kernel, spool, entries, progress)
            folders = {str(PurePosixPath(name).parent) for name, entry in entries.items()
                       if name not in before and not isinstance(entry, Folder)}
            added += [f"/{folder}/" for folder in sorted(folders)]
        for name, text in (settings or {}).items():
            if name not in entries:
                entries[name] = File(text.encode(), stat.S_IFREG | 0o644)
                added.append(f"/{name}")
        size = spool.tell()
        spool.flush()
        contents = memoryview(mmap.mmap(spool.fileno(), size, prot=mmap.PROT_READ)
                          if size else b"")
        tree = _tree(archive, entries, contents)
        root = ufs.tree(tree)  # raises an error if a name is both a file and a directory
        for name, item in tree.items():
            if HEADERS.fullmatch(name) and isinstance(item, File):
                _keep(staging, name, item)
        progress(f"writing {image.name}", 0, 0)
        with replacing(image) as file:
            ufs.write(root, file, FREE)
        shutil.rmtree(headers, ignore_errors=True)
        if (staging / "usr").exists():
            headers.mkdir()
            for folder in KEPT:
                if (staging / folder).exists():
                    (staging / folder).rename(headers / folder)
    return added


def _spool(archive: Path, spool: BinaryIO, entries: dict[str, Entry], progress: Progress) -> None:
    """Copy the files of a distribution set to a temporary file, and list its members."""
    with _members(archive, progress) as members:
        for name, info, tar in members:
            if info.isdir():
                entries[name] = Folder(mode=stat.S_IFDIR | info.mode & 0o7777, time=_time(info))
            elif info.issym():
                entries[name] = File(info.linkname.encode("utf-8", "surrogateescape"),
                                     stat.S_IFLNK | 0o777, _time(info))
            elif info.islnk():
                entries[name] = str(PurePosixPath(info.linkname)).removeprefix("/")
            elif info.isfile():
                start = spool.tell()
                _copy(tar, info, spool)
                entries[name] = (start, spool.tell() - start, stat.S_IFREG | info.mode & 0o7777,
                                 _time(info))


def _time(info: tarfile.TarInfo) -> int:
    """Return the modification time of a member, or 0 if it is impossible."""
    return int(info.mtime) if 0 <= info.mtime < MAX_TIME else 0


def _tree(archive: Path, found: dict[str, Entry], held: memoryview) -> dict[str, File | Folder]:
    """Return the tree of files with contents; hard links to a file share one ``File`` object."""
    tree: dict[str, File | Folder] = {}
    for name, item in found.items():
        if isinstance(item, tuple):
            start, size, mode, time = item
            tree[name] = File(held[start : start + size], mode, time)
        elif not isinstance(item, str):
            tree[name] = item
    for name, item in found.items():
        if isinstance(item, str):
            target = tree.get(item)
            if not isinstance(target, File):
                raise SetError(f"{archive.name}: {name[:100]!r} is a link to a missing file")
            tree[name] = target
    return tree


def _keep(staging: Path, name: str, file: File) -> None:
    """Write a header or library.

    A symbolic link is kept if it leads to a file that may be kept, too.
    """
    path = staging / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISLNK(file.mode):
        target = bytes(file.content).decode("utf-8", "surrogateescape")
        there = os.path.normpath(os.path.join("/", os.path.dirname(name), target)).lstrip("/")
        if HEADERS.fullmatch(there):
            path.symlink_to(os.path.relpath(staging / there, path.parent))
    else:
        path.write_bytes(file.content)
