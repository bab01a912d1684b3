"""Compile and link guest kernels and programs with clang and lld."""

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
    """A compiler target: its triple and its compiler options."""

    triple: str
    flags: tuple[str, ...]


def target(source: Path, arch: str) -> Port:
    """Read an architecture's ``target`` file, which lists the triple and then the options."""
    triple, *flags = (source / arch / "target").read_text().split()
    return Port(triple, tuple(flags))


def tool(*names: str) -> str:
    """Return the first installed command of several, with or without a version suffix.

    :raises KinstError: none of the commands is installed.
    """
    for name in names:
        for version in ("", *(f"-{n}" for n in range(21, 13, -1))):
            if shutil.which(name + version):
                return name + version
    raise KinstError(f"{names[0]} is not installed; on Debian: apt-get install clang lld")


def linked(output: Path, sources: Sequence[Path], flags: Sequence[str],
           options: Sequence[str] = ()) -> None:
    """Compile source files and link them; the output file is written atomically.

    :param flags: compiler options.
    :param options: linker options.
    :raises KinstError: a tool is missing or fails; the message includes its output.
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


def linked_against(output: Path, source: Path, system: Path, port: Port, static: bool) -> None:
    """Compile a program against a system's headers and libraries.

    :param system: the folder that contains the system's ``usr`` and ``lib``.
    :param static: whether to link statically.
    :raises KinstError: a tool is missing or fails; the message includes its output.
    """
    linker = shutil.which(tool("ld.lld"))
    _run(tool("clang"), f"--target={port.triple}", *port.flags, f"--sysroot={system}",
         *(["-static"] if static else []), "-O2", "-g", "-fno-omit-frame-pointer",
         f"--ld-path={linker}", "-pthread", str(source), "-o", str(output), "-lm")


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise KinstError(f"{command[0]} failed:\n{result.stderr.strip()}")
