"""Compile the native modules, or copy them from a cache that clones of the same sources share.

    python native_cache.py get      copy the modules from the cache; exit status 1 if there are none
    python native_cache.py build    compile the modules, and copy them to the cache
    python native_cache.py clear    empty the cache

A set of modules is kept under a hash of everything that it is made from: the sources, setup.py, the
versions of Python, Cython and the C compiler, and the options for the compiler and the linker.
"""

import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent
ROOMS = ("emu", "kinst", "dwarf", "dtrace")
SOURCES = (".pyx", ".pxd", ".pxi")
SUMS = "SHA256SUMS"  # file with the hashes of a set's modules
KEPT = 4  # number of sets in the cache; those that were used longest ago are deleted
SHARED = "_shared"  # the only module without a source of its own; see setup.py
OPTIONS = ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "LDSHARED")
ABANDONED = 24 * 3600  # age in seconds of files that a killed process has left
BUILT = ROOT / "build" / "native-environment"  # hash of the environment of the last build


def cache() -> Path:
    """Return the directory of the cache.

    :raises OSError: if the user has no home directory.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "kinst-emu-native"
    except RuntimeError as error:
        raise OSError(0, str(error)) from None


def environment() -> bytes:
    """Return the hash of everything but the sources that determines the compiled modules.

    :raises OSError: if there is no C compiler.
    """
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    said = subprocess.run([*compiler.split(), "--version"], capture_output=True,
                          check=False).stdout
    return hashlib.sha256(repr((
        sys.version, platform.machine(), platform.libc_ver(), version("Cython"), said,
        [os.environ.get(name) for name in OPTIONS], (ROOT / "setup.py").read_bytes(),
    )).encode()).digest()


def key() -> str:
    """Return the hash of everything that the modules are made from.

    :raises OSError: as ``environment``.
    """
    digest = hashlib.sha256(environment())
    for path in (path for room in ROOMS for path in sorted((ROOT / room).rglob("*"))
                 if path.suffix in SOURCES):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT)} {len(content)} ".encode() + content)
    return digest.hexdigest()[:32]


def modules() -> list[Path]:
    """Return the compiled modules of this Python in the source tree, relative to it."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    found = [path for room in ROOMS for path in (ROOT / room).rglob(f"*{suffix}")]
    return sorted(path.relative_to(ROOT) for path in found
                  if path.name == SHARED + suffix
                  or path.with_name(path.name.removesuffix(suffix) + ".pyx").is_file())


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def get() -> bool:
    """Copy the modules of these sources from the cache; return whether they were there, whole.

    Each module is renamed to its place, because a running process may use the one that is there.
    """
    try:
        found = cache() / key()
        rows = [line.split("  ", 1) for line in (found / SUMS).read_text().splitlines()]
        if not rows or any(digest_of(found / name) != digest for digest, name in rows):
            return False
        for _digest, name in rows:
            part = (ROOT / name).with_suffix(".part")
            shutil.copyfile(found / name, part)
            part.chmod(0o755)
            part.replace(ROOT / name)
        note_built()
        os.utime(found)
    except (OSError, ValueError):  # there is no such set, it is damaged, or there is no compiler
        return False
    return True


def note_built() -> None:
    """Note the environment in which the modules of the source tree were built."""
    BUILT.parent.mkdir(exist_ok=True)
    BUILT.write_bytes(environment())


def build() -> int:
    """Compile the modules, copy them to the cache, and return the exit status.

    If the environment has changed since the last build, all of them are compiled again.
    """
    before = key()
    known = BUILT.is_file() and BUILT.read_bytes() == environment()
    BUILT.unlink(missing_ok=True)
    running = subprocess.Popen(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace", *["--force"] * (not known)],
        cwd=ROOT, env=os.environ | ({} if known else {"KINST_FORCE": "1"}), start_new_session=True)
    try:
        if running.wait():
            return running.returncode
    finally:
        if running.poll() is None:  # end the compilers, too
            os.killpg(running.pid, signal.SIGTERM)
    note_built()
    if key() == before:  # no source has changed meanwhile
        put(before)
    return 0


def put(name: str) -> None:
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
        shutil.rmtree(home / name, ignore_errors=True)
        part.rename(home / name)
    kept = [path for path in home.iterdir() if (path / SUMS).is_file()]
    for old in sorted(kept, key=lambda path: path.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    for path in home.glob("part-*"):
        if time.time() - path.stat().st_mtime > ABANDONED:
            shutil.rmtree(path, ignore_errors=True)


def main(words: list[str]) -> int:
    """Run a command, and return the exit status."""
    if words == ["get"]:
        return 0 if get() else 1
    if words == ["build"]:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends setup.py, too
        try:
            return build()
        except OSError as error:  # without a cache, the next clone compiles the modules again
            print(f"native_cache.py: {error}", file=sys.stderr)
            return 0 if BUILT.is_file() else 1
    if words == ["clear"]:
        shutil.rmtree(cache(), ignore_errors=True)
        return 0
    print("usage: native_cache.py get|build|clear", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
