"""Cache of compiled native modules, for other clones of the same sources.

    python native_cache.py get      copy the modules from the cache; exit status 1 if there are none
    python native_cache.py put      copy the modules to the cache
    python native_cache.py clear    empty the cache

A set of modules is kept under a hash of everything that it is made from: the sources, setup.py, the
versions of Python, Cython and the C compiler, and the compiler's options.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent
ROOMS = ("emu", "kinst", "dwarf", "dtrace")
SOURCES = (".pyx", ".pxd", ".pxi")
SUMS = "SHA256SUMS"  # file with the hashes of a set's modules
KEPT = 4  # number of sets in the cache; those that were used longest ago are deleted


def cache() -> Path:
    """Return the directory of the cache."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "kinst-emu-native"


def key() -> str:
    """Return the hash of everything that the modules are made from."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    said = subprocess.run([*compiler.split(), "--version"], capture_output=True,
                          check=False).stdout
    digest = hashlib.sha256(repr((sys.version, platform.machine(), platform.libc_ver(),
                                  version("Cython"), said, os.environ.get("CFLAGS"))).encode())
    for path in [ROOT / "setup.py", *(path for room in ROOMS for path in sorted(
            (ROOT / room).rglob("*")) if path.suffix in SOURCES)]:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT)} {len(content)} ".encode() + content)
    return digest.hexdigest()[:32]


def modules() -> list[Path]:
    """Return the compiled modules of this Python in the source tree, relative to it."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return sorted(path.relative_to(ROOT) for room in ROOMS
                  for path in (ROOT / room).rglob(f"*{suffix}"))


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def get() -> bool:
    """Copy the modules of these sources from the cache; return whether they were there, whole."""
    found = cache() / key()
    try:
        rows = [line.split("  ", 1) for line in (found / SUMS).read_text().splitlines()]
        if not rows or any(digest_of(found / name) != digest for digest, name in rows):
            return False
        for _digest, name in rows:
            shutil.copyfile(found / name, ROOT / name)
            (ROOT / name).chmod(0o755)
        os.utime(found)
    except (OSError, ValueError):  # there is no such set, or it is damaged
        return False
    return True


def put() -> None:
    """Copy the compiled modules to the cache, and delete the sets beyond ``KEPT``."""
    home = cache()
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix="part-") as made:
        part = Path(made) / "set"
        sums = ""
        for module in modules():
            (part / module).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / module, part / module)
            sums += f"{digest_of(part / module)}  {module}\n"
        (part / SUMS).write_text(sums)
        target = home / key()
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
    sets = sorted((path for path in home.iterdir() if (path / SUMS).is_file()),
                  key=lambda path: path.stat().st_mtime)
    for old in sets[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def main(words: list[str]) -> int:
    """Run a command, and return the exit status."""
    if words == ["get"]:
        return 0 if get() else 1
    if words == ["put"]:
        try:
            put()
        except OSError as error:  # without a cache, the next clone compiles the modules again
            print(f"native_cache.py: {cache()}: not written: {error.strerror}", file=sys.stderr)
        return 0
    if words == ["clear"]:
        shutil.rmtree(cache(), ignore_errors=True)
        return 0
    print("usage: native_cache.py get|put|clear", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
