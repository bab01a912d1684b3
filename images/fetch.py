"""Gets the official kernels of a FreeBSD release: the kernel and kernel-dbg distribution sets.

The sets are checked against the release's MANIFEST: lines of file name, SHA-256, number of files,
and a description, separated by tabs.
"""

import hashlib
import http
import http.client
import lzma
import os
import re
import ssl
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from emu.errors import KinstError
from emu.guests import FREEBSD
from emu.parts import NAMES
from emu.replacing import naming, replacing
from images.catalog import KnownImage, store

SITE = "https://download.freebsd.org/releases"
SETS = {
    "kernel.txz": ("boot/kernel/kernel", "kernel"),
    "kernel-dbg.txz": ("usr/lib/debug/boot/kernel/kernel.debug", "kernel.debug"),
}
CHUNK = 1 << 18
MAX_MANIFEST, MAX_SET, MAX_MEMBER = 1 << 20, 4 << 30, 2 << 30
RELEASE = re.compile(r"\d+\.\d+-[A-Z]+\d*")

Progress = Callable[[str, int, int], None]  # file, bytes so far, bytes in all (0: unknown)


class FetchError(KinstError):
    """A set cannot be had."""


def fetch(name: str, progress: Progress, site: str | None = None) -> KnownImage:
    """Get ``RELEASE/ARCH``, e.g. ``15.0-RELEASE/amd64``.

    What was downloaded is kept on failure and gone on from the next time.

    :raises FetchError: when it cannot be had, or is not what the MANIFEST says.
    """
    release, _, arch = name.partition("/")
    if arch not in FREEBSD or not RELEASE.fullmatch(release):
        raise FetchError(
            f"'{name}': give RELEASE/ARCH, like 15.0-RELEASE/amd64 (or {', '.join(NAMES[1:])})"
        )
    site = site or os.environ.get("KINST_SITE") or SITE
    base = f"{site}/{FREEBSD[arch].releases}/{release}"
    sums = _manifest(base)
    target = store() / release / arch
    partial = store() / ".partial" / f"{release}-{arch}"
    try:
        partial.mkdir(parents=True, exist_ok=True)
        target.mkdir(parents=True, exist_ok=True)
        for file, (member, local) in SETS.items():
            if file not in sums:
                raise FetchError(f"{base}/MANIFEST: does not list {file}")
            archive = partial / file
            _download(f"{base}/{file}", archive, sums[file], progress)
            _extract(archive, member, target / local)
        for file in SETS:
            (partial / file).unlink()
    except OSError as error:
        raise FetchError(f"{target}: cannot be written: {error.strerror or error}") from None
    return KnownImage(name, target / "kernel", "kinst images")


def _open(url: str, start: int = 0) -> http.client.HTTPResponse:
    request = urllib.request.Request(url)
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=60)
        return response
    except urllib.error.HTTPError as error:
        if start and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return _open(url)  # what is here is not a beginning of it
        raise FetchError(f"{url}: the server says {error.code} {error.reason}") from None
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise FetchError(f"{url}: cannot be reached: {reason}; try again later") from None


def _manifest(base: str) -> dict[str, str]:
    try:
        with _open(f"{base}/MANIFEST") as response:
            text = response.read(MAX_MANIFEST).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        raise FetchError(f"{base}/MANIFEST: {error}; run the command again") from None
    sums = {}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) >= 2 and re.fullmatch("[0-9a-f]{64}", fields[1]):
            sums[fields[0]] = fields[1]
    if not sums:
        raise FetchError(f"{base}/MANIFEST: holds no checksums; is the release's name right?")
    return sums


def _hash(path: Path) -> "hashlib._Hash":
    h = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            h.update(chunk)
    return h


def _download(url: str, path: Path, digest: str, progress: Progress) -> None:
    have = path.stat().st_size if path.exists() else 0
    if have and _hash(path).hexdigest() == digest:
        return
    response = _open(url, have) if have else _open(url)
    with response:
        if have and response.status != 206:
            have = 0  # the server starts from the beginning
        said = response.headers.get("Content-Length") or "0"
        length = int(said) if said.isdecimal() and len(said) < 16 else 0
        if have + length > MAX_SET:
            raise FetchError(f"{url}: {have + length} bytes: not a kernel set")
        with naming(path), path.open("ab" if have else "wb") as file:
            done = have
            try:
                while chunk := response.read(CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    if done > MAX_SET:
                        raise FetchError(f"{url}: longer than {MAX_SET} bytes: not a kernel set")
                    progress(path.name, done, have + length if length else 0)
            except (http.client.HTTPException, TimeoutError, ConnectionError,
                    ssl.SSLError) as error:
                raise FetchError(
                    f"{url}: broke off after {done} bytes ({type(error).__name__}); "
                    "run the command again to go on from there"
                ) from None
    if length and done < have + length:
        raise FetchError(f"{url}: broke off after {done} bytes; run the command again to go on")
    if _hash(path).hexdigest() != digest:
        path.unlink()
        raise FetchError(
            f"{url}: its SHA-256 is not the MANIFEST's; it was removed, run the command again"
        )


def _extract(archive: Path, member: str, target: Path) -> None:
    """One file of the set, written under a temporary name and renamed."""
    try:
        with tarfile.open(archive, "r:xz") as tar:
            for info in tar:
                if info.name.removeprefix("./") == member and info.isfile():
                    if info.size > MAX_MEMBER:
                        raise FetchError(f"{archive.name}: {member} is too large")
                    source = tar.extractfile(info)
                    if source is not None:
                        _write(source, target)  # type: ignore[arg-type]
                        return
    except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError) as error:
        raise FetchError(f"{archive.name}: damaged archive: {error}") from None
    raise FetchError(f"{archive.name}: holds no {member}")


def _write(source: BinaryIO, target: Path) -> None:
    with replacing(target) as file:
        while chunk := source.read(CHUNK):
            file.write(chunk)
