"""Distribution sets of FreeBSD's releases: tar archives compressed by xz, and what is taken out of
them.  They are not trusted: names, sizes and numbers of members are bounded here."""

import contextlib
import lzma
import mmap
import re
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from images import ufs
from images.ufs import File, Folder

CHUNK = 1 << 18
MAX_MEMBER, MAX_ALL, MAX_MEMBERS = 2 << 30, 6 << 30, 1 << 19  # bytes of one, of all; their number
MAX_HEADER = 1 << 16  # bytes of a member that says more of the next one
FREE = 256 << 20  # bytes that are left free in a root file system
# What programs are compiled against.
HEADERS = re.compile(r"usr/(?:include/[\w.+/-]{1,200}|lib/[\w.+-]{1,100}\.[ao])")

Progress = Callable[[str, int, int], None]  # what, bytes so far, bytes in all (0: unknown)


class SetError(KinstError):
    """A set is damaged, or is not what it should be."""


class _Header(tarfile.TarInfo):
    """A member's header.  Those that only say more of the next one (long names, PAX) are read as a
    whole by ``tarfile`` before anybody else sees them."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        said_of_next = self.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
                                     tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
        if self.size < 0 or (said_of_next and self.size > MAX_HEADER):
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]


@contextlib.contextmanager
def _members(archive: Path, progress: Progress) -> Iterator[
        Iterator[tuple[str, tarfile.TarInfo, tarfile.TarFile]]]:
    """The members with their names, ``./`` left out; said on the way."""
    size = archive.stat().st_size

    def each(raw: BinaryIO, tar: tarfile.TarFile) -> Iterator[
            tuple[str, tarfile.TarInfo, tarfile.TarFile]]:
        total = 0
        for number, info in enumerate(tar):
            total += info.size if info.isfile() else 0
            if info.size > MAX_MEMBER or total > MAX_ALL or number >= MAX_MEMBERS:
                raise SetError(f"{archive.name}: {info.name[:100]!r}: the set is too large")
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
    """Files of a set, each of them written under a temporary name and renamed.

    :param wanted: where a file goes; None: nowhere.
    :raises SetError: for a set that is damaged, or has not what is ``needed``.
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
        raise SetError(f"{archive.name}: holds no {needed}")


def make_root(archive: Path, image: Path, headers: Path, progress: Progress) -> None:
    """A root file system of a base system, and a folder with its headers and libraries.

    Files belong to root in it, and devices are left out: they are the kernel's own file system.

    :param headers: is replaced.
    :raises SetError: for a set that is damaged, or has no first program.
    :raises FileSystemError: when it does not fit.
    """
    with contextlib.ExitStack() as stack:
        spool = stack.enter_context(tempfile.TemporaryFile(dir=image.parent))
        apart = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=image.parent)))
        found: dict[str, File | Folder | tuple[int, int, int] | str] = {}
        with _members(archive, progress) as members:
            for name, info, tar in members:
                if info.isdir():
                    found[name] = Folder(mode=stat.S_IFDIR | info.mode & 0o7777)
                elif info.issym():
                    found[name] = File(info.linkname.encode("utf-8", "surrogateescape"),
                                       stat.S_IFLNK | 0o777)
                elif info.islnk():
                    found[name] = str(PurePosixPath(info.linkname)).removeprefix("/")
                elif info.isfile():
                    at = spool.tell()
                    _copy(tar, info, spool)
                    found[name] = at, spool.tell() - at, stat.S_IFREG | info.mode & 0o7777
        if not isinstance(found.get("sbin/init"), tuple | str):
            raise SetError(f"{archive.name}: holds no sbin/init")
        size = spool.tell()
        spool.flush()
        held = memoryview(mmap.mmap(spool.fileno(), size, prot=mmap.PROT_READ)
                          if size else b"")
        tree = _tree(archive, found, held)
        root = ufs.tree(tree)  # what is a file and a folder is refused here
        for name, what in tree.items():
            if HEADERS.fullmatch(name) and isinstance(what, File):
                _keep(apart / name, what)
        progress(f"writing {image.name}", 0, 0)
        with replacing(image) as file:
            ufs.write(root, file, FREE)
        shutil.rmtree(headers, ignore_errors=True)
        if (apart / "usr").exists():
            headers.mkdir()
            (apart / "usr").rename(headers / "usr")


def _tree(archive: Path, found: dict[str, File | Folder | tuple[int, int, int] | str],
          held: memoryview) -> dict[str, File | Folder]:
    """The files, whose contents lie behind each other; a name of another file's is that file."""
    tree: dict[str, File | Folder] = {}
    for name, what in found.items():
        if isinstance(what, tuple):
            at, size, mode = what
            tree[name] = File(held[at : at + size], mode)
        elif not isinstance(what, str):
            tree[name] = what
    for name, what in found.items():
        if isinstance(what, str):
            other = tree.get(what)
            if not isinstance(other, File):
                raise SetError(f"{archive.name}: {name[:100]!r} is a link to nothing")
            tree[name] = other
    return tree


def _keep(path: Path, file: File) -> None:
    """A header or a library; links that lead out of their folder are left out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISLNK(file.mode):
        leads = bytes(file.content).decode("utf-8", "surrogateescape")
        if re.fullmatch(r"[\w.+-]{1,100}", leads) and leads not in (".", ".."):
            path.symlink_to(leads)
    else:
        path.write_bytes(file.content)
