"""Clang and lld, as our kernels and programs are built by them."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from emu.errors import KinstError


@dataclass(frozen=True)
class Port:
    triple: str
    flags: tuple[str, ...]


def target(source: Path, arch: str) -> Port:
    """What a compiler is told of an architecture: in its folder, the triple and then the flags."""
    triple, *flags = (source / arch / "target").read_text().split()
    return Port(triple, tuple(flags))


def tool(*names: str) -> str:
    """The command that is installed, under one of its names, with its version or without.

    :raises KinstError: when none is.
    """
    for name in names:
        for version in ("", *(f"-{n}" for n in range(21, 13, -1))):
            if shutil.which(name + version):
                return name + version
    raise KinstError(f"{names[0]} is not installed; on Debian: apt-get install clang lld")


def compile_with(*command: str) -> None:
    """:raises KinstError: with what the compiler said, when it fails."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise KinstError(f"{' '.join(command)}\n{result.stderr.strip()}")
