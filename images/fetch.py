"""Fetch the kernel, modules and debug data of a FreeBSD release, and optionally its base system.

The distribution sets are checked against the release's MANIFEST. Its lines consist of file name,
SHA-256, number of files and description, separated by tabs.
"""

import hashlib
import http
import http.client
import os
import re
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from emu.arch.parts import NAMES
from emu.guests.registry import FREEBSD
from emu.host.atomic_file import naming
from emu.host.errors import KinstError
from images.base_settings import SETTINGS
from images.catalog import HEADERS, ROOT_FILE, KnownImage, store
from images.distribution_set import CHUNK, Progress, make_root, take

KERNEL, BASE = "kernel.txz", "base.txz"
SITE = "https://download.freebsd.org/releases"
# Set -> (directory in the archive, required file, pattern of the files to extract).
SETS = {
    KERNEL: ("boot/kernel/", "kernel", re.compile(r"kernel|[\w-]{1,60}\.ko")),
    "kernel-dbg.txz": ("usr/lib/debug/boot/kernel/", "kernel.debug",
                       re.compile(r"(?:kernel|[\w-]{1,60}\.ko)\.debug")),
}
MAX_MANIFEST, MAX_SET = 1 << 20, 4 << 30
RELEASE = re.compile(r"\d+\.\d+-[A-Z]+\d*")


class FetchError(KinstError):
    """Error raised if a distribution set cannot be downloaded, verified or written."""


@dataclass(frozen=True)
class Fetched:
    """A fetched kernel, and the directories and files that were added to its base system."""

    image: KnownImage
    added: tuple[str, ...]


def fetch(name: str, progress: Progress, site: str | None = None,
          base: bool = False) -> Fetched:
    """Fetch and install ``RELEASE/ARCH``, for example ``15.0-RELEASE/amd64``.

    If a download fails, the partial file is kept and the next call resumes it.

    :param base: also fetch the base system, and make a root file system with the kernel set and
        the configuration files of ``base_settings`` in it.
    :raises FetchError: a set cannot be downloaded, or does not match the MANIFEST.
    :raises SetError: a set is damaged or incomplete.
    """
    release, _, arch = name.partition("/")
    if arch not in FREEBSD or not RELEASE.fullmatch(release):
        raise FetchError(
            f"'{name}': not a release; use RELEASE/ARCH, for example 15.0-RELEASE/amd64 "
            f"(or {', '.join(NAMES[1:])})"
        )
    site = site or os.environ.get("KINST_SITE") or SITE
    where = f"{site}/{FREEBSD[arch].boot.releases}/{release}"
    sums = _manifest(where)
    wanted = [*SETS, *([BASE] if base else [])]
    for file in wanted:
        if file not in sums:
            raise FetchError(f"{where}/MANIFEST: does not list {file}")
    added: list[str] = []
    target = store() / release / arch
    partial = store() / ".partial" / f"{release}-{arch}"
    try:
        partial.mkdir(parents=True, exist_ok=True)
        target.mkdir(parents=True, exist_ok=True)
        for file in wanted:
            _download(f"{where}/{file}", partial / file, sums[file], progress)
        for file, (folder, needed, names) in SETS.items():
            def place(name: str, folder: str = folder,
                      names: re.Pattern[str] = names) -> Path | None:
                local = name.removeprefix(folder)
                return target / local if local != name and names.fullmatch(local) else None

            take(partial / file, place, folder + needed, progress)
        if base:
            added = make_root(partial / BASE, target / ROOT_FILE, target / HEADERS, progress,
                              partial / KERNEL, SETTINGS)
        for file in wanted:
            (partial / file).unlink()
    except OSError as error:
        raise FetchError(f"{target}: cannot be written: {error.strerror or error}") from None
    return Fetched(KnownImage(name, target / "kernel", "kinst images"), tuple(added))


def _open(url: str, start: int = 0) -> http.client.HTTPResponse:
    request = urllib.request.Request(url)
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=60)
        return response
    except urllib.error.HTTPError as error:
        if start and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return _open(url)  # the partial file is longer than the remote file
        raise FetchError(f"{url}: the server replied {error.code} {error.reason}") from None
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
        raise FetchError(f"{base}/MANIFEST: contains no checksums; check the release name")
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
            have = 0  # the server ignored the range and sends the whole file
        header = response.headers.get("Content-Length") or "0"
        length = int(header) if header.isdecimal() and len(header) < 16 else 0
        if have + length > MAX_SET:
            raise FetchError(f"{url}: too large for a distribution set: {have + length} bytes")
        with naming(path), path.open("ab" if have else "wb") as file:
            done = have
            try:
                while chunk := response.read(CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    if done > MAX_SET:
                        raise FetchError(f"{url}: exceeds {MAX_SET} bytes, the maximum size of a "
                                         "distribution set")
                    progress(path.name, done, have + length if length else 0)
            except (http.client.HTTPException, TimeoutError, ConnectionError,
                    ssl.SSLError) as error:
                raise FetchError(
                    f"{url}: the connection broke after {done} bytes ({type(error).__name__}); "
                    "run the command again to resume"
                ) from None
    if length and done < have + length:
        raise FetchError(f"{url}: the connection broke after {done} bytes; "
                         "run the command again to resume")
    if _hash(path).hexdigest() != digest:
        path.unlink()
        raise FetchError(
            f"{url}: its SHA-256 does not match the MANIFEST; the file was removed; run the "
            "command again"
        )
