"""Digests of large or many files, kept in the cache as long as the files do not change.

A change of a file changes its state (``emu/host/input_file.py``), so the digest is computed again.
"""

import contextlib
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace

from emu.elf.boot_options import BootOptions, DiskImage
from emu.host.atomic_file import replacing
from emu.host.fingerprint import files_of, fingerprint, version_of
from emu.host.input_file import HeldFile, state_of
from images.cache import cached_file

DIGEST = re.compile(r"[0-9a-f]{64}")
SHORT = re.compile(r"[0-9a-f]{16}")
VERSION = 1  # of what ``fingerprint`` computes


def with_known_digests(options: BootOptions) -> BootOptions:
    """Return boot options whose large disks have their digests."""
    return replace(options, disks=tuple(map(_known, options.disks)))


def _known(disk: DiskImage) -> DiskImage:
    if not isinstance(disk.content, HeldFile):
        return disk
    return replace(disk, known=_kept(disk.content.state, DIGEST, lambda: disk.digest))


def known_fingerprint(modules: tuple[str, ...], distributions: tuple[str, ...] = ()) -> str:
    """Return what ``fingerprint`` returns for modules and distributions."""
    states = []
    for name, path in files_of(modules):
        with path.open("rb", buffering=0) as file:
            states.append((name, path.name, state_of(file.fileno())))
    versions = [(name, version_of(name)) for name in distributions]
    return _kept((VERSION, states, versions), SHORT, lambda: fingerprint(modules, distributions))


def _kept(key: object, form: re.Pattern[str], compute: Callable[[], str]) -> str:
    """Return a text from the cache, or compute and keep it.

    :param key: what determines the text.
    :param form: what the text looks like.
    """
    name = hashlib.sha256(repr(key).encode()).hexdigest()
    path = cached_file("digests", f"{name}.sha256")
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = path.read_text("ascii").strip()
        if form.fullmatch(text):
            return text
    text = compute()
    with contextlib.suppress(OSError), replacing(path) as file:  # the cache may be read-only
        file.write(text.encode() + b"\n")
    return text
