"""Build the teaching kernels for all architectures with clang and lld.

Each architecture has a plain kernel and a kernel with concurrency defects (``images/races/``).
Variants take breakpoints the way another operating system's kernel does.
"""

import sys
from pathlib import Path

from emu.arch.parts import NAMES
from emu.host.errors import KinstError
from images.catalog import TEACHING
from images.compiler import linked, target

SOURCE = Path(__file__).resolve().parent / "teaching"
RACES = SOURCE.parent / "races"
COMMON = ("kernel.c", "string.c", "checksum.c", "lesson.c", "notes.c")
FLAGS = (
    "-std=gnu17", "-O2", "-gdwarf-4", "-ffreestanding", "-fno-builtin", "-fno-pic", "-fno-pie",
    "-fno-stack-protector", "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables",
    "-Wall", "-Wextra", "-Werror", "-fdebug-prefix-map={source}=.", "-fdebug-compilation-dir=.",
)


# Directory of a variant -> (base architecture, additional source files, compiler option).
FLAVOURS = {"amd64-illumos": ("amd64", ("exception.S", "invop.c"), "-DINVOP")}


def build_flavours(arch: str, target_directory: Path = TEACHING) -> list[Path]:
    """Build the variants of an architecture's teaching kernel and return their paths.

    :raises KinstError: a tool is missing or fails.
    """
    kernels = []
    for name, (base, files, option) in FLAVOURS.items():
        if base == arch:
            port = target(SOURCE, name)
            flags = [*(f.format(source=SOURCE) for f in FLAGS), f"--target={port.triple}",
                     *port.flags, option]
            sources = [SOURCE / file for file in (f"{arch}/start.S", f"{arch}/machine.c", *COMMON)]
            kernels.append(target_directory / name / "kernel")
            linked(kernels[-1], [*sources, *(SOURCE / name / file for file in files)], flags,
                   ["-T", str(SOURCE / arch / "kernel.ld")])
    return kernels


def build(arch: str, target_directory: Path = TEACHING) -> Path:
    """Build an architecture's teaching kernels, ``kernel`` and ``races``; return ``kernel``'s path.

    Each kernel file is written atomically.

    :raises KinstError: a tool is missing or fails.
    """
    port = target(SOURCE, arch)
    flags = [*(f.format(source=SOURCE) for f in FLAGS), f"--target={port.triple}",
             *port.flags]
    sources = [SOURCE / name for name in (f"{arch}/start.S", f"{arch}/machine.c", *COMMON)]
    output, script = target_directory / arch / "kernel", ["-T", str(SOURCE / arch / "kernel.ld")]
    linked(output, sources, flags, script)
    flags += ["-DTHREADS", f"-I{RACES / arch}", f"-fdebug-prefix-map={RACES}=."]
    sources += [RACES / "races.c", RACES / "threads.c"]
    linked(target_directory / arch / "races", sources, flags, script)
    return output


def main() -> None:
    """Run ``python -m images.build_teaching``: build the kernels of all architectures."""
    try:
        for arch in NAMES:
            for path in (build(arch), *build_flavours(arch)):
                print(f"teaching/{path.parent.name}: {path}")
    except KinstError as error:
        sys.exit(f"images: {error}")


if __name__ == "__main__":
    main()
