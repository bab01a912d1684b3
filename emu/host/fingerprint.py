"""Fingerprints of the code that produced a cached result: project files and library versions."""

import functools
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

OURS = ("emu", "kinst", "dwarf", "dtrace", "images", "kinst_emu")
METADATA = ".dist-info"
SUFFIXES = (".py", *EXTENSION_SUFFIXES)


@functools.cache
def fingerprint(modules: tuple[str, ...], distributions: tuple[str, ...] = ()) -> str:
    """Return ``computed_fingerprint`` of the first call with these arguments."""
    return computed_fingerprint(modules, distributions)


def computed_fingerprint(modules: tuple[str, ...], distributions: tuple[str, ...] = ()) -> str:
    """Return 16 hexadecimal digits that change if a given module or distribution changes.

    :param modules: dotted names of modules; a package stands for the files in its own directory.
    :param distributions: distributions whose installed version counts.
    :raises ImportError: if a module or distribution is not installed.
    """
    digest = hashlib.sha256()
    for name, path in files_of(modules):
        content = path.read_bytes()
        digest.update(f"{name} {path.name} {len(content)}\n".encode() + content)
    for name in distributions:
        digest.update(f"{name} {version_of(name)}\n".encode())
    return digest.hexdigest()[:16]


def files_of(modules: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """Yield the files of modules, each with the name of its module, in a fixed order.

    :raises ImportError: if a module is not installed.
    """
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ImportError(f"module {name} cannot be found")
        origin = Path(spec.origin)
        yield from ((name, path) for path in (
            [origin] if spec.submodule_search_locations is None else sorted(
                path for path in origin.parent.iterdir() if path.name.endswith(SUFFIXES))))


def machine_modules(arch: str) -> tuple[str, ...]:
    """Return the packages that determine how a machine behaves, for ``fingerprint``."""
    return tuple(f"emu.{name}" for name in (
        "host", "arch", "elf", "guest", "guests", "guests.teaching", "guests.freebsd",
        "guests.illumos.amd64", "machine", "network", "devices", "unicorn", arch, f"unicorn.{arch}",
        f"guests.freebsd.{arch}"))


@functools.cache
def our_code() -> str:
    """Return 16 hexadecimal digits that change if any Python module of this project changes.

    Native modules are left out, since each host may have built its own.
    """
    digest = hashlib.sha256()
    for name in OURS:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{name} {path.relative_to(root)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def version_of(distribution: str) -> str:
    """Return the installed version of a distribution.

    It is read from the name of the metadata directory (PyPA, "Recording installed projects"), since
    importing importlib.metadata takes 40 ms, a third of a command's start time.

    :raises ImportError: if the distribution is not installed.
    """
    begin = distribution.replace("-", "_").lower() + "-"
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.lower().startswith(begin) and name.endswith(METADATA):
                return name[len(begin) : -len(METADATA)]
    from importlib.metadata import version

    return version(distribution)
