"""Digests of kernels, large files and all files of the code, kept in the cache.

A change of a file changes its state (``emu/host/input_file.py``), so the digest is computed again.
"""

import contextlib
import functools
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace

from emu.elf.boot_options import BootOptions, DiskImage
from emu.elf.image import Image
from emu.host.atomic_file import replacing
from emu.host.fingerprint import computed_fingerprint, files_of, version_of
from emu.host.input_file import HeldFile, State, state_of
from images.cache import cached_file

DIGEST = re.compile(r"[0-9a-f]{64}")
SHORT = re.compile(r"[0-9a-f]{16}")
IDENTITY = re.compile(r"([0-9a-f]+|none)-[0-9a-f]{32}")
VERSION = 1  # increases when the same files get another fingerprint or identity


def with_known_digests(options: BootOptions) -> BootOptions:
    """Return boot options whose large disks have their digests."""
    return replace(options, disks=tuple(map(_known, options.disks)))


def with_known_identity(image: Image) -> Image:
    """Return a kernel image that has its ``kernel_identity``."""
    identity = _kept(("kernel", VERSION, image.states), IDENTITY, lambda: image.kernel_identity)
    return replace(image, known=(identity, image))


def _known(disk: DiskImage) -> DiskImage:
    if not isinstance(disk.content, HeldFile):
        return disk
    return replace(disk, known=_kept(disk.content.state, DIGEST, lambda: disk.digest))


@functools.cache
def known_fingerprint(modules: tuple[str, ...], distributions: tuple[str, ...] = ()) -> str:
    """Return the fingerprint of modules and distributions, at the first call of this process."""
    states = _states(modules)
    versions = [(name, version_of(name)) for name in distributions]
    return _kept((VERSION, states, versions), SHORT,
                 lambda: computed_fingerprint(modules, distributions),
                 lambda: _states(modules) == states)


def _states(modules: tuple[str, ...]) -> list[tuple[str, str, State]]:
    states = []
    for name, path in files_of(modules):
        with path.open("rb", buffering=0) as file:
            states.append((name, path.name, state_of(file.fileno())))
    return states


def _kept(key: object, form: re.Pattern[str], compute: Callable[[], str],
          valid: Callable[[], bool] = lambda: True) -> str:
    """Return a text from the cache, or compute and keep it.

    :param key: what determines the text.
    :param form: what the text looks like.
    :param valid: returns whether the key is still right after the text was computed.
    """
    name = hashlib.sha256(repr(key).encode()).hexdigest()
    path = cached_file("digests", f"{name}.sha256")
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = path.read_text("ascii").strip()
        if form.fullmatch(text):
            return text
    text = compute()
    if not valid():
        return text
    with contextlib.suppress(OSError), replacing(path) as file:  # the cache may be read-only
        file.write(text.encode() + b"\n")
    return text
