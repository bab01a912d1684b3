"""Tests of fetching a FreeBSD release from a server on the loopback interface."""

import hashlib
import http.server
import io
import stat
import struct
import tarfile
import threading
from pathlib import Path

import pytest

from emu.guests.registry import FREEBSD
from emu.host.errors import KinstError
from images import catalog, distribution_set
from images.distribution_set import SetError
from images.fetch import FetchError, fetch
from images.ufs import File
from tests.elfwriter import Elf
from tests.images.test_ufs import Reader

RELEASE = "15.0-RELEASE"
TIME = 1_764_633_600


def txz(members, links=()):
    """Return a distribution set (a .txz file); each link is (name, tar member type, target)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(content or b""), 0o555, TIME
            if content is None:
                info.type, info.size, info.mode = tarfile.DIRTYPE, 0, 0o750
            tar.addfile(info, io.BytesIO(content or b""))
        for name, kind, leads in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, leads
            tar.addfile(info)
    return out.getvalue()


BASE = {"./": None, "./sbin/init": b"first program", "./usr/include/sys/a.h": b"int a;",
        "./usr/lib/libc.a": b"!<arch>", "./usr/lib/crt1.o": b"start", "./root": None,
        "./usr/share/doc": b"words", "../outside": b"x", "/etc/motd": b"hello"}
LINKS = [("./rescue/init", tarfile.LNKTYPE, "./sbin/init"),
         ("./bin", tarfile.SYMTYPE, "usr/bin"),
         ("./usr/include/b.h", tarfile.SYMTYPE, "sys"),
         ("./usr/include/out.h", tarfile.SYMTYPE, "../../etc/passwd")]


class Site:
    """Simulated release site with the files to serve and the failures to simulate."""

    def __init__(self):
        self.kernel = Elf(arch="amd64").build() + bytes(range(256)) * 64
        self.files = {
            "kernel.txz": txz({"./boot/kernel/kernel": self.kernel,
                               "./boot/kernel/dtrace.ko": b"module",
                               "./boot/kernel/../dtrace.ko": b"elsewhere",
                               "./boot/kernel/linker.hints": b"hints"}),
            "kernel-dbg.txz": txz({"./usr/lib/debug/boot/kernel/kernel.debug": b"debug data",
                                   "./usr/lib/debug/boot/kernel/dtrace.ko.debug": b"of it"}),
            "base.txz": txz(BASE, LINKS),
        }
        self.list()

    def list(self):
        self.manifest = "".join(
            f"{name}\t{hashlib.sha256(data).hexdigest()}\t1\tkernel\t\"Kernel\"\ton\n"
            for name, data in self.files.items()
        )
        self.cut_after = None
        self.ranges = True
        self.requests = []


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setenv("KINST_DATA", str(tmp_path / "data"))
    site = Site()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.rsplit("/", 1)[-1]
            site.requests.append((self.path, self.headers.get("Range")))
            data = site.manifest.encode() if name == "MANIFEST" else site.files.get(name)
            if data is None or RELEASE not in self.path:
                self.send_error(404)
                return
            start = 0
            if self.headers.get("Range") and site.ranges:
                start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
                self.send_response(206)
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            body = data[start:]
            if site.cut_after is not None and name == "kernel.txz":
                body = body[: site.cut_after]
            self.wfile.write(body)

        def log_message(self, *_words):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    site.url = f"http://127.0.0.1:{server.server_port}/releases"  # type: ignore[attr-defined]
    yield site
    server.shutdown()
    server.server_close()


def get(site, name=f"{RELEASE}/amd64", base=False):
    seen = []
    fetched = fetch(name, lambda *words: seen.append(words), site.url, base)
    return fetched.image, seen


def test_a_release_is_fetched_checked_and_unpacked(site):
    image, seen = get(site)
    assert image.path.read_bytes() == site.kernel
    assert (image.path.parent / "kernel.debug").read_bytes() == b"debug data"
    downloaded = [words for words in seen if words[0] == "kernel-dbg.txz"]
    assert downloaded[-1][1] == downloaded[-1][2]
    assert seen[-1][0] == "unpacking kernel-dbg.txz" and seen[-1][1] == seen[-1][2]
    assert {path.name for path in image.path.parent.iterdir()} == {
        "kernel", "kernel.debug", "dtrace.ko", "dtrace.ko.debug"}
    assert (image.path.parent / "dtrace.ko").read_bytes() == b"module"
    assert not [p for p in catalog.store().rglob("*.txz")]
    assert image.name in {known.name for known in catalog.known() if known.path}


def test_a_base_system_becomes_a_root_file_system_and_development_files(site):
    image, seen = get(site, base=True)
    folder = image.path.parent
    disk = Reader((folder / "root.ufs").read_bytes())
    top = entries(disk, 2)
    assert set(top) == {"sbin", "usr", "root", "rescue", "bin", "etc", "boot"}
    modules = entries(disk, entries(disk, top["boot"])["kernel"])
    assert set(modules) == {"kernel", "dtrace.ko", "linker.hints"}
    assert disk.content(modules["kernel"]) == site.kernel
    settings = entries(disk, top["etc"])
    assert set(settings) == {"motd", "fstab", "rc.conf"}
    assert b"/dev/vtbd0\t/\tufs" in disk.content(settings["fstab"])
    assert b'hostname="kinst"\n' in disk.content(settings["rc.conf"])
    init, rescue = entries(disk, top["sbin"])["init"], entries(disk, top["rescue"])["init"]
    assert init == rescue and disk.content(init) == b"first program"
    assert struct.unpack_from("<q", disk.inode(init), 40) == (TIME,)
    assert disk.mode(init) & 0o7777 == 0o555 and disk.mode(top["root"]) & 0o7777 == 0o750
    assert stat.S_ISLNK(disk.mode(top["bin"])) and disk.content(top["bin"]) == b"usr/bin"
    assert len(disk.free()[0]) > (200 << 20) // 4096
    kept = {str(path.relative_to(folder / "base")): path for path in folder.rglob("base/**/*")}
    assert {name for name, path in kept.items() if path.is_file()} == {
        "usr/include/sys/a.h", "usr/lib/libc.a", "usr/lib/crt1.o"}
    assert kept["usr/include/b.h"].readlink() == Path("sys")
    assert "writing root.ufs" in {words[0] for words in seen}
    assert catalog.base(catalog.find(image.name)) == folder / "root.ufs"
    (folder / "base" / "old.h").write_text("")
    get(site, base=True)
    assert not (folder / "base" / "old.h").exists()


def test_what_is_added_to_a_base_system_is_listed_and_replaces_nothing(site):
    fetched = fetch(f"{RELEASE}/amd64", lambda *words: None, site.url, True)
    assert fetched.added == ("/boot/kernel/", "/etc/fstab", "/etc/rc.conf")
    site.files["base.txz"] = txz(BASE | {"./etc/fstab": b"own"}, LINKS)
    site.list()
    fetched = fetch(f"{RELEASE}/amd64", lambda *words: None, site.url, True)
    assert fetched.added == ("/boot/kernel/", "/etc/rc.conf")
    disk = Reader((fetched.image.path.parent / "root.ufs").read_bytes())
    assert disk.content(entries(disk, entries(disk, 2)["etc"])["fstab"]) == b"own"


@pytest.mark.parametrize("members, links, says", [
    ({"./etc/motd": b""}, [], "does not contain sbin/init"),
    ({"./sbin/init": b""}, [("./a", tarfile.LNKTYPE, "./nothing")],
     "'a' is a link to a missing file"),
    ({"./sbin/init": b"", "./etc": b"", "./etc/motd": b""}, [], "is a file"),
])
def test_an_unusable_base_system_is_refused_and_leaves_no_files(site, members, links, says):
    site.files["base.txz"] = txz(members, links)
    site.list()
    with pytest.raises(KinstError, match=says):
        get(site, base=True)
    assert not list(catalog.store().rglob("*.ufs")) and not list(catalog.store().rglob("tmp*"))


def test_a_set_that_is_too_large_is_refused(site, monkeypatch):
    monkeypatch.setattr(distribution_set, "MAX_ALL", 20)
    with pytest.raises(SetError, match="too large"):
        get(site, base=True)


def entries(disk, number):
    return {name: at for name, at, *_ in disk.entries(number) if name not in (".", "..")}


def test_every_architecture_is_fetched_from_its_directory(site):
    for arch, guest in FREEBSD.items():
        directory = guest.boot.releases
        get(site, f"{RELEASE}/{arch}")
        assert any(path.startswith(f"/releases/{directory}/{RELEASE}/") for path, _ in
                   site.requests)


def test_a_broken_download_is_resumed(site):
    site.cut_after = 100
    with pytest.raises(FetchError,
                       match="the connection broke after 100 bytes; run the command again"):
        get(site)
    site.cut_after = None
    image, _ = get(site)
    assert image.path.read_bytes() == site.kernel
    assert ("bytes=100-" in [header for _path, header in site.requests])


def test_a_server_without_range_requests_restarts_the_download(site):
    site.cut_after = 100
    with pytest.raises(FetchError):
        get(site)
    site.cut_after, site.ranges = None, False
    assert get(site)[0].path.read_bytes() == site.kernel


def test_a_set_with_a_wrong_checksum_is_removed(site):
    good = site.files["kernel.txz"]
    site.files["kernel.txz"] = good[:-1] + bytes([good[-1] ^ 1])
    with pytest.raises(FetchError, match="SHA-256 does not match the MANIFEST"):
        get(site)
    assert not list(catalog.store().rglob("kernel"))
    site.files["kernel.txz"] = good
    assert get(site)[0].path.exists()


def test_a_set_without_the_kernel_is_refused(site):
    site.files["kernel.txz"] = txz({"boot/kernel/other": b"x"})
    site.list()
    with pytest.raises(SetError, match="does not contain boot/kernel/kernel"):
        get(site)


@pytest.mark.parametrize("name", ["", "15.0", "15.0-RELEASE", "15.0-RELEASE/sparc64",
                                  "../../etc/amd64", "15.0-RELEASE/../amd64"])
def test_an_invalid_release_name_is_refused(site, name):
    with pytest.raises(FetchError, match="use RELEASE/ARCH"):
        get(site, name)


def test_an_unknown_release_and_an_unreachable_server_are_reported(site):
    with pytest.raises(FetchError, match="404"):
        get(site, "99.0-RELEASE/amd64")
    with pytest.raises(FetchError, match="cannot be reached"):
        fetch(f"{RELEASE}/amd64", lambda *w: None, "http://127.0.0.1:9/releases")


def test_an_empty_manifest_is_refused(site):
    site.manifest = "hello\n"
    with pytest.raises(FetchError, match="no checksums"):
        get(site)


def test_a_missing_image_says_how_to_fetch_it(site):
    with pytest.raises(KinstError, match=r"kinst images fetch 15\.0-RELEASE/arm64"):
        catalog.find("15.0-RELEASE/arm64")


@pytest.mark.parametrize("name, kept", [
    ("usr/include/sys/types.h", True), ("usr/lib/libm.so", True), ("usr/lib/crtbegin.o", True),
    ("lib/libc.so.7", True), ("usr/lib/libc_nonshared.a", True), ("lib/geom/geom_part.so", False),
    ("usr/lib/debug/x.debug", False), ("usr/lib/../../etc/passwd", False), ("bin/sh", False),
])
def test_what_programs_are_compiled_against_is_kept(name, kept):
    assert bool(distribution_set.HEADERS.fullmatch(name)) == kept


def test_a_link_between_library_folders_is_kept_and_others_are_not(tmp_path):
    for name, target in (("usr/lib/libm.so", "../../lib/libm.so.5"), ("lib/libx.so", "libx.so.1"),
                         ("usr/lib/libevil.so", "/etc/passwd"), ("lib/up.so", "../../etc/shadow")):
        distribution_set._keep(tmp_path, name, File(target.encode(), stat.S_IFLNK | 0o777))
    links = {str(path.relative_to(tmp_path)): str(path.readlink())
             for path in tmp_path.rglob("*") if path.is_symlink()}
    assert links == {"usr/lib/libm.so": "../../lib/libm.so.5", "lib/libx.so": "libx.so.1"}
