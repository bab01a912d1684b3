"""Build the guest userland for all architectures with clang and lld.

It is a root file system with a shell, which is both init and every tool, and two test programs.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from emu.arch.parts import NAMES
from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from images import catalog, ufs
from images.catalog import TEACHING
from images.compiler import linked, linked_against, target
from images.ufs import File, Folder

SOURCE = Path(__file__).resolve().parent / "userland"
LIBRARY = SOURCE / "libc"  # headers with the names of C library headers
WITH_LIBRARY = ("-include", str(LIBRARY / "libc.h"))
FLAGS = (
    "-std=gnu17", "-O2", "-gdwarf-4", "-ffreestanding", "-nostdlibinc", "-fno-builtin",
    "-fno-pic", "-fno-pie", "-fno-stack-protector", "-fno-omit-frame-pointer",
    "-fno-asynchronous-unwind-tables", "-Wall", "-Wextra",
    "-fdebug-prefix-map={source}=.", "-fdebug-compilation-dir=.",
)
TOOLS = ("cat", "echo", "false", "kill", "ls", "mkdir", "mount", "rm", "rmdir", "sh", "sleep",
         "sync", "true", "wc")
# One C file per program: the shell, checks of kernel facilities, and timed workloads.
SHELL = "shell"
PROGRAMS = (SHELL, "check", "work")
FREE = 4 << 20  # free space in bytes for files that programs write
EXECUTABLE = 0o100755
OURS = ("-Werror",)  # compiler options for this project's own sources only


def program(arch: str, source: Path, output: Path, options: Sequence[str] = (),
            more: Sequence[str] = ()) -> None:
    """Compile and link one program; the output file is written atomically.

    :param options: additional linker options.
    :param more: additional compiler options.
    :raises KinstError: a tool is missing or fails.
    """
    port = target(SOURCE, arch)
    flags = [*(flag.format(source=SOURCE) for flag in FLAGS), f"--target={port.triple}",
             *port.flags, *more, f"-I{SOURCE}", f"-I{SOURCE / arch}", f"-I{LIBRARY}"]
    linked(output, [source], flags, options)


def program_against(arch: str, source: Path, output: Path, system: Path, static: bool) -> None:
    """Compile and link one program against a system's own headers and libraries.

    :param static: whether to link statically.
    :raises KinstError: a tool is missing or fails.
    """
    linked_against(output, source, system, target(SOURCE, arch), static)


def root(programs: Mapping[str, bytes]) -> Folder:
    """Return the directory tree of the userland's root file system.

    Each tool is a separate file, because the kernel names a process after its file and not after a
    link to it. ``/dev`` is empty: the kernel mounts devfs there.

    :param programs: contents of each of ``PROGRAMS``, by name.
    """
    shell = programs[SHELL]
    files: dict[str, File | Folder] = {
        "sbin/init": File(shell, EXECUTABLE), "dev": Folder(), "tmp": Folder(mode=0o041777),
        "etc/motd": File(b"A userland of a few hundred lines.\n"),
    }
    files |= {f"bin/{name}": File(shell, EXECUTABLE) for name in TOOLS}
    return ufs.tree(files | {f"bin/{name}": File(programs[name], EXECUTABLE)
                             for name in PROGRAMS if name != SHELL})


def built(directory: Path) -> dict[str, bytes]:
    """Return the programs that ``build`` wrote to a directory: name -> content of the file.

    :raises OSError: a program is missing.
    """
    return {name: (directory / name).read_bytes() for name in PROGRAMS}


def build(arch: str, target_directory: Path = TEACHING) -> Path:
    """Build an architecture's programs, pack a root file system and return its path.

    :raises KinstError: a tool is missing or fails.
    """
    directory = target_directory / arch
    for name in PROGRAMS:
        source = SOURCE / f"{name}.c"
        program(arch, source, directory / name, ["--strip-all"], OURS)
        program(arch, source, directory / f"{name}.debug", more=OURS)
    packed = directory / catalog.ROOT_FILE
    with replacing(packed) as file:
        file.write(ufs.image(root(built(directory)), FREE))
    return packed


def main() -> None:
    """Run ``python -m images.build_userland``: build the userland of all architectures."""
    try:
        for arch in NAMES:
            print(f"userland/{arch}: {build(arch)}")
    except KinstError as error:
        sys.exit(f"images: {error}")


if __name__ == "__main__":
    main()
