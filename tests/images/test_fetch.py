"""Fetching a release, from a server on loopback."""

import hashlib
import http.server
import io
import tarfile
import threading

import pytest

from emu.errors import KinstError
from emu.guests import FREEBSD
from images import catalog
from images.fetch import FetchError, fetch
from tests.elfwriter import Elf

RELEASE = "15.0-RELEASE"


def txz(member, content):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz") as tar:
        info = tarfile.TarInfo(member)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


class Site:
    """What the server serves, and how it misbehaves."""

    def __init__(self):
        self.kernel = Elf(arch="amd64").build() + bytes(range(256)) * 64
        self.files = {
            "kernel.txz": txz("./boot/kernel/kernel", self.kernel),
            "kernel-dbg.txz": txz("./usr/lib/debug/boot/kernel/kernel.debug", b"debug data"),
        }
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


def get(site, name=f"{RELEASE}/amd64"):
    seen = []
    image = fetch(name, lambda *words: seen.append(words), site.url)
    return image, seen


def test_a_release_is_fetched_checked_and_unpacked(site):
    image, seen = get(site)
    assert image.path.read_bytes() == site.kernel
    assert (image.path.parent / "kernel.debug").read_bytes() == b"debug data"
    assert seen[-1][0] == "kernel-dbg.txz" and seen[-1][1] == seen[-1][2]
    assert not [p for p in catalog.store().rglob("*.txz")]
    assert image.name in {known.name for known in catalog.known() if known.path}


def test_every_architecture_has_its_directory(site):
    for arch, guest in FREEBSD.items():
        directory = guest.releases
        get(site, f"{RELEASE}/{arch}")
        assert any(path.startswith(f"/releases/{directory}/{RELEASE}/") for path, _ in
                   site.requests)


def test_a_broken_download_is_gone_on_from(site):
    site.cut_after = 100
    with pytest.raises(FetchError, match="broke off after 100 bytes; run the command again"):
        get(site)
    site.cut_after = None
    image, _ = get(site)
    assert image.path.read_bytes() == site.kernel
    assert ("bytes=100-" in [header for _path, header in site.requests])


def test_a_server_without_ranges_starts_again(site):
    site.cut_after = 100
    with pytest.raises(FetchError):
        get(site)
    site.cut_after, site.ranges = None, False
    assert get(site)[0].path.read_bytes() == site.kernel


def test_a_set_that_is_not_the_manifests_is_removed(site):
    good = site.files["kernel.txz"]
    site.files["kernel.txz"] = good[:-1] + bytes([good[-1] ^ 1])
    with pytest.raises(FetchError, match="SHA-256 is not the MANIFEST's"):
        get(site)
    assert not list(catalog.store().rglob("kernel"))
    site.files["kernel.txz"] = good
    assert get(site)[0].path.exists()


def test_a_set_without_the_kernel_is_refused(site):
    site.files["kernel.txz"] = txz("boot/kernel/other", b"x")
    site.manifest = f"kernel.txz\t{hashlib.sha256(site.files['kernel.txz']).hexdigest()}\n"
    with pytest.raises(FetchError, match="holds no boot/kernel/kernel"):
        get(site)


@pytest.mark.parametrize("name", ["", "15.0", "15.0-RELEASE", "15.0-RELEASE/sparc64",
                                  "../../etc/amd64", "15.0-RELEASE/../amd64"])
def test_a_name_that_is_no_release_is_refused(site, name):
    with pytest.raises(FetchError, match="give RELEASE/ARCH"):
        get(site, name)


def test_an_unknown_release_and_a_dead_server_are_one_line(site):
    with pytest.raises(FetchError, match="404"):
        get(site, "99.0-RELEASE/amd64")
    with pytest.raises(FetchError, match="cannot be reached"):
        fetch(f"{RELEASE}/amd64", lambda *w: None, "http://127.0.0.1:9/releases")


def test_an_empty_manifest_is_refused(site):
    site.manifest = "hello\n"
    with pytest.raises(FetchError, match="no checksums"):
        get(site)


def test_an_image_that_is_not_here_says_how_to_get_it(site):
    with pytest.raises(KinstError, match=r"kinst images fetch 15\.0-RELEASE/arm64"):
        catalog.find("15.0-RELEASE/arm64")
