"""Builds our userland for the three architectures, with clang and lld: a root file system with the
shell, which is the first program and all of its tools."""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from emu.errors import KinstError
from emu.parts import NAMES
from emu.replacing import replacing
from images import catalog, ufs
from images.catalog import TEACHING
from images.compiler import compile_with, target, tool
from images.ufs import File, Folder

SOURCE = Path(__file__).resolve().parent / "userland"
FLAGS = (
    "-std=gnu17", "-O2", "-gdwarf-4", "-ffreestanding", "-nostdlibinc", "-fno-builtin",
    "-fno-pic", "-fno-pie", "-fno-stack-protector", "-fno-omit-frame-pointer",
    "-fno-asynchronous-unwind-tables", "-Wall", "-Wextra", "-Werror",
    "-fdebug-prefix-map={source}=.",
)
TOOLS = ("cat", "echo", "false", "kill", "ls", "mkdir", "rm", "rmdir", "sh", "sleep", "sync",
         "true", "wc")
FREE = 4 << 20  # bytes that are left for what programs write
EXECUTABLE = 0o100755


def program(arch: str, source: Path, output: Path, options: Sequence[str] = ()) -> None:
    """Compile and link one program; the file appears whole or not at all.

    :param options: more of the linker's.
    :raises KinstError: when a tool is missing or fails.
    """
    clang, linker = tool("clang"), tool("ld.lld", "lld")
    made_for = target(SOURCE, arch)
    flags = [flag.format(source=SOURCE) for flag in FLAGS]
    flags += [f"--target={made_for.triple}", *made_for.flags]
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        compiled, linked = Path(scratch) / "program.o", Path(scratch) / "program"
        compile_with(clang, *flags, f"-I{SOURCE}", f"-I{SOURCE / arch}", "-c", str(source), "-o",
                     str(compiled))
        compile_with(linker, "-static", "--build-id=sha1", "-z", "noexecstack", *options,
                     "-o", str(linked), str(compiled))
        os.replace(linked, output)


def root(shell: bytes, check: bytes) -> Folder:
    """The files of the root file system; devices are the kernel's own file system.  The tools are
    files of their own: a process is named for the file, not for a link to it.

    :param check: the program that checks from inside what a program can ask of the kernel.
    """
    files: dict[str, File | Folder] = {
        "sbin/init": File(shell, EXECUTABLE), "dev": Folder(), "tmp": Folder(mode=0o041777),
        "bin/check": File(check, EXECUTABLE),
        "etc/motd": File(b"A userland of a few hundred lines.\n"),
    }
    return ufs.tree(files | {f"bin/{name}": File(shell, EXECUTABLE) for name in TOOLS})


def build(arch: str, target_directory: Path = TEACHING) -> Path:
    """Build the programs and pack them.

    :raises KinstError: when a tool is missing or fails.
    """
    shell = target_directory / arch / catalog.SHELL_FILE
    check = shell.with_name(catalog.CHECK_FILE)
    for output, source in ((shell, "shell.c"), (check, "check.c")):
        program(arch, SOURCE / source, output, ["--strip-all"])
        program(arch, SOURCE / source, output.with_name(f"{output.name}.debug"))
    packed = target_directory / arch / catalog.ROOT_FILE
    with replacing(packed) as file:
        file.write(ufs.image(root(shell.read_bytes(), check.read_bytes()), FREE))
    return packed


def main() -> None:
    """``python -m images.build_userland``: build all three."""
    try:
        for arch in NAMES:
            print(f"userland/{arch}: {build(arch)}")
    except KinstError as error:
        sys.exit(f"images: {error}")


if __name__ == "__main__":
    main()
