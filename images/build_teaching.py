"""Builds the teaching kernel for the three architectures, with clang and lld."""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from emu.errors import KinstError
from emu.parts import NAMES
from images.catalog import TEACHING

SOURCE = Path(__file__).resolve().parent / "teaching"
COMMON = ("kernel.c", "string.c", "checksum.c", "lesson.c", "notes.c")
FLAGS = (
    "-std=gnu17", "-O2", "-gdwarf-4", "-ffreestanding", "-fno-builtin", "-fno-pic", "-fno-pie",
    "-fno-stack-protector", "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables",
    "-Wall", "-Wextra", "-Werror", "-fdebug-prefix-map={source}=.",
)


@dataclass(frozen=True)
class Port:
    triple: str
    flags: tuple[str, ...]


def target(arch: str) -> Port:
    """What a compiler is told of an architecture: in its folder, the triple and then the flags."""
    triple, *flags = (SOURCE / arch / "target").read_text().split()
    return Port(triple, tuple(flags))


def _tool(*names: str) -> str:
    for name in names:
        for version in ("", *(f"-{n}" for n in range(21, 13, -1))):
            if shutil.which(name + version):
                return name + version
    raise KinstError(f"{names[0]} is not installed; on Debian: apt-get install clang lld")


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise KinstError(f"{' '.join(command)}\n{result.stderr.strip()}")


def build(arch: str, target_directory: Path = TEACHING) -> Path:
    """Compile and link one kernel; the file appears whole or not at all.

    :raises KinstError: when a tool is missing or fails.
    """
    clang, linker = _tool("clang"), _tool("ld.lld", "lld")
    made_for = target(arch)
    flags = [f.format(source=SOURCE) for f in FLAGS]
    flags += [f"--target={made_for.triple}", *made_for.flags]
    output = target_directory / arch / "kernel"
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        objects = []
        for name in (f"{arch}/start.S", f"{arch}/machine.c", *COMMON):
            source = SOURCE / name
            compiled = Path(scratch) / (source.stem + ".o")
            _run(clang, *flags, "-c", str(source), "-o", str(compiled))
            objects.append(str(compiled))
        linked = Path(scratch) / "kernel"
        script = SOURCE / arch / "kernel.ld"
        _run(linker, "-static", "--build-id=sha1", "-z", "noexecstack", "-T", str(script),
             "-o", str(linked), *objects)
        os.replace(linked, output)
    return output


def main() -> None:
    """``python -m images.build_teaching``: build all three."""
    try:
        for arch in NAMES:
            print(f"teaching/{arch}: {build(arch)}")
    except KinstError as error:
        sys.exit(f"images: {error}")


if __name__ == "__main__":
    main()
