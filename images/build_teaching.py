"""Builds the teaching kernels for the three architectures, with clang and lld: the plain one, the
one with defects of order in it (``images/races/``), and where another kernel's way of taking
breakpoints is taught, too, the one that has it."""

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


# A flavour, in a folder of its own: the files that it has beside an architecture's.
FLAVOURS = {"amd64-illumos": ("amd64", ("exception.S", "invop.c"), "-DINVOP")}


def build_flavours(arch: str, target_directory: Path = TEACHING) -> list[Path]:
    """Those of an architecture.

    :raises KinstError: when a tool is missing or fails.
    """
    found = []
    for name, (of, files, option) in FLAVOURS.items():
        if of == arch:
            made_for = target(SOURCE, name)
            flags = [*(f.format(source=SOURCE) for f in FLAGS), f"--target={made_for.triple}",
                     *made_for.flags, option]
            sources = [SOURCE / file for file in (f"{arch}/start.S", f"{arch}/machine.c", *COMMON)]
            found.append(target_directory / name / "kernel")
            linked(found[-1], [*sources, *(SOURCE / name / file for file in files)], flags,
                   ["-T", str(SOURCE / arch / "kernel.ld")])
    return found


def build(arch: str, target_directory: Path = TEACHING) -> Path:
    """Compile and link an architecture's kernels; each file appears whole or not at all.

    :return: the plain one's.
    :raises KinstError: when a tool is missing or fails.
    """
    made_for = target(SOURCE, arch)
    flags = [*(f.format(source=SOURCE) for f in FLAGS), f"--target={made_for.triple}",
             *made_for.flags]
    sources = [SOURCE / name for name in (f"{arch}/start.S", f"{arch}/machine.c", *COMMON)]
    output, script = target_directory / arch / "kernel", ["-T", str(SOURCE / arch / "kernel.ld")]
    linked(output, sources, flags, script)
    flags += ["-DTHREADS", f"-I{RACES / arch}", f"-fdebug-prefix-map={RACES}=."]
    sources += [RACES / "races.c", RACES / "threads.c"]
    linked(target_directory / arch / "races", sources, flags, script)
    return output


def main() -> None:
    """``python -m images.build_teaching``: build all three."""
    try:
        for arch in NAMES:
            for path in (build(arch), *build_flavours(arch)):
                print(f"teaching/{path.parent.name}: {path}")
    except KinstError as error:
        sys.exit(f"images: {error}")


if __name__ == "__main__":
    main()
