"""Clang and lld, as our kernels and programs are built by them."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emu.host.errors import KinstError


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


def linked(output: Path, sources: Sequence[Path], flags: Sequence[str],
           options: Sequence[str] = ()) -> None:
    """Compile files and link them; the result appears whole or not at all.

    :param flags: of the compiler; ``options``: of the linker.
    :raises KinstError: when a tool is missing or fails, with what it said.
    """
    clang, linker = tool("clang"), tool("ld.lld", "lld")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        objects = []
        for source in sources:
            objects.append(str(Path(scratch) / f"{source.stem}.o"))
            _run(clang, *flags, "-c", str(source), "-o", objects[-1])
        made = Path(scratch) / "linked"
        _run(linker, "-static", "--build-id=sha1", "-z", "noexecstack", *options, "-o", str(made),
             *objects)
        os.replace(made, output)


def linked_against(output: Path, source: Path, system: Path, port: Port) -> None:
    """Compile a program against a system's headers and static libraries.

    :param system: the folder that has its ``usr``.
    :raises KinstError: when a tool is missing or fails, with what it said.
    """
    linker = shutil.which(tool("ld.lld"))
    _run(tool("clang"), f"--target={port.triple}", *port.flags, f"--sysroot={system}", "-static",
         "-O2", "-g", "-fno-omit-frame-pointer", f"--ld-path={linker}", "-pthread",
         str(source), "-o", str(output), "-lm")


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise KinstError(f"{command[0]} fails:\n{result.stderr.strip()}")
